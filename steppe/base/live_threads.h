// For tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace steppe {

// Threads of this process, without those on their way out: a joined thread stands in the kernel's list for a
// moment longer, on a busy machine for many milliseconds. It has PF_EXITING before its end is told to anyone.
inline int64_t num_live_threads() {
  constexpr uint64_t kExiting = 0x4;
  int64_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "stat");
    const std::string stat{std::istreambuf_iterator<char>(file), {}};
    const auto name_end = stat.rfind(')');
    if (name_end == std::string::npos) continue;  // gone meanwhile
    std::istringstream fields(stat.substr(name_end + 1));
    std::string field;
    for (int i = 0; i < 6; ++i) fields >> field;  // state, parent, group, session, terminal, its group
    uint64_t flags = 0;
    if (fields >> flags && (flags & kExiting) == 0) ++count;
  }
  return count;
}

}  // namespace steppe
