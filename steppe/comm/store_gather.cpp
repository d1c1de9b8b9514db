#include "steppe/comm/store_gather.h"

#include <fmt/format.h>

namespace steppe::comm {

std::vector<std::string> gather_through_store(c10d::Store& store, std::string_view name, int rank, int size,
                                              std::string_view mine, std::chrono::milliseconds timeout) {
  std::vector<std::string> keys;
  for (int peer = 0; peer < size; ++peer) keys.push_back(fmt::format("{}/{}", name, peer));
  store.set(keys[static_cast<size_t>(rank)], std::vector<uint8_t>(mine.begin(), mine.end()));
  store.wait(keys, timeout);
  std::vector<std::string> all;
  for (const std::string& key : keys) {
    const std::vector<uint8_t> value = store.get(key);
    all.emplace_back(value.begin(), value.end());
  }
  return all;
}

}  // namespace steppe::comm
