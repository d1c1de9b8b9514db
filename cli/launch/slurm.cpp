#include "cli/launch/slurm.h"

#include <charconv>
#include <string_view>

#include "steppe/base/error.h"

namespace steppe::launch {
namespace {

constexpr int kMostNodes = 1 << 20;

int number(std::string_view text, const std::string& list) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  STEPPE_CHECK_VALUE(error == std::errc() && end == text.data() + text.size() && value > 0,
                     "[launch] SLURM_TASKS_PER_NODE must look like 2(x3),1, got \"{}\"", list);
  return value;
}

}  // namespace

std::string first_host(const std::string& nodelist) {
  std::string host;
  std::size_t at = 0;
  while (at < nodelist.size() && nodelist[at] != ',') {
    if (nodelist[at] != '[') {
      STEPPE_CHECK_VALUE(nodelist[at] != ']', "[launch] unbalanced ] in the node list \"{}\"", nodelist);
      host += nodelist[at++];
      continue;
    }
    const std::size_t close = nodelist.find(']', at);
    STEPPE_CHECK_VALUE(close != std::string::npos, "[launch] unbalanced [ in the node list \"{}\"", nodelist);
    // The range's first number, with its leading zeros, is the first host's.
    const std::size_t end = nodelist.find_first_of(",-]", at);
    STEPPE_CHECK_VALUE(end > at + 1, "[launch] empty range in the node list \"{}\"", nodelist);
    host += nodelist.substr(at + 1, end - at - 1);
    at = close + 1;
  }
  STEPPE_CHECK_VALUE(!host.empty(), "[launch] no host in the node list \"{}\"", nodelist);
  return host;
}

std::vector<int> tasks_per_node(const std::string& list) {
  std::vector<int> tasks;
  std::string_view rest = list;
  while (true) {
    const std::size_t comma = rest.find(',');
    std::string_view entry = rest.substr(0, comma);
    int repeat = 1;
    if (const std::size_t open = entry.find("(x"); open != std::string_view::npos && entry.back() == ')') {
      repeat = number(entry.substr(open + 2, entry.size() - open - 3), list);
      entry = entry.substr(0, open);
    }
    const int here = number(entry, list);
    STEPPE_CHECK_VALUE(repeat <= kMostNodes, "[launch] SLURM_TASKS_PER_NODE=\"{}\" names too many nodes",
                       list);
    tasks.insert(tasks.end(), repeat, here);
    if (comma == std::string_view::npos) return tasks;
    rest = rest.substr(comma + 1);
  }
}

}  // namespace steppe::launch
