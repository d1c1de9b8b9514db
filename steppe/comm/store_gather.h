// How ranks tell each other a word before they have a communicator: through the store.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace steppe::comm {

// Everyone's `mine`, in rank order. Collective over the `size` ranks that use this `name` in this store,
// once; returns when all have come. Throws what the store throws when they do not within `timeout`.
std::vector<std::string> gather_through_store(c10d::Store& store, std::string_view name, int rank, int size,
                                              std::string_view mine, std::chrono::milliseconds timeout);

}  // namespace steppe::comm
