// Names a failing transfer: "[comm expert.0] rank 1 (global 5): receiving from rank 3 (global 7)".
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

namespace steppe::comm {

struct Endpoint {
  std::string name;        // of the communicator
  int rank = 0;            // within the group
  std::vector<int> ranks;  // global

  std::string describe(std::string_view verb, int peer) const {
    return fmt::format("[comm {}] rank {} (global {}): {} rank {} (global {})", name, rank,
                       ranks[static_cast<size_t>(rank)], verb, peer, ranks[static_cast<size_t>(peer)]);
  }
};

}  // namespace steppe::comm
