#include <fstream>
#include <sstream>
#include <string>

#include "steppe/base/error.h"
#include "steppe/memory/tracking_allocator.h"

namespace steppe::memory {
namespace {

int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(key + ":", 0) != 0) continue;
    std::istringstream fields(line.substr(key.size() + 1));
    int64_t kib = -1;
    fields >> kib;
    STEPPE_CHECK(kib >= 0, "[memory] /proc/self/status: {} must be a number of kB, got '{}'", key, line);
    return kib * 1024;
  }
  throw RuntimeFailure(fmt::format("[memory] /proc/self/status has no line {}", key));
}

}  // namespace

int64_t resident_bytes() {
  return status_bytes("VmRSS");
}
int64_t resident_anonymous_bytes() {
  return status_bytes("RssAnon");
}

}  // namespace steppe::memory
