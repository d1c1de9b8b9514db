#include "steppe/train/agree_text.h"

#include <algorithm>
#include <cstring>

namespace steppe::train {

std::vector<std::string> all_gather_text(comm::Communicator& group, const std::string& text) {
  const int64_t own_length = std::ssize(text);
  const auto lengths = group.all_gather_host({&own_length, 1});
  const auto words = static_cast<size_t>(*std::ranges::max_element(lengths) + 7) / 8;
  std::vector<int64_t> mine(words, 0);
  std::memcpy(mine.data(), text.data(), text.size());
  const auto all = group.all_gather_host(mine);
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < lengths.size(); ++rank) {
    const auto* begin = reinterpret_cast<const char*>(all.data() + rank * words);
    texts.emplace_back(begin, static_cast<size_t>(lengths[rank]));
  }
  return texts;
}

}  // namespace steppe::train
