#include "cli/run_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "steppe/base/error.h"

namespace steppe::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll{50};

std::string path_in(const std::string& run_folder) {
  return run_folder + "/.lock";
}

// "process 17 on node-3", as the holder wrote it.
std::string holder_of(int file) {
  std::array<char, 256> text{};
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  return size > 0 ? std::string(text.data(), static_cast<size_t>(size)) : "another job";
}

void lock(int file, const std::string& run_folder, std::chrono::milliseconds patience) {
  const auto end = Clock::now() + patience;
  while (::flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return;  // no locks here
    STEPPE_CHECK(
        Clock::now() < end,
        "[train] run.folder = \"{}\" is in use: {} trains there. Name another with --set run.folder=…, "
        "or stop that job",
        run_folder, holder_of(file));
    std::this_thread::sleep_for(kPoll);
  }
}

void name_holder(int file) {
  std::array<char, 128> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host.front() = '?';
  const auto text = fmt::format("process {} on {}", ::getpid(), host.data());
  // For a message alone: what fails here is no failure.
  [[maybe_unused]] const bool written =
      ::ftruncate(file, 0) == 0 && ::pwrite(file, text.data(), text.size(), 0) > 0;
}

}  // namespace

RunLock::RunLock(const std::string& run_folder, std::chrono::milliseconds patience) {
  const auto path = path_in(run_folder);
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  STEPPE_CHECK(file_ >= 0, "[train] cannot create {}: {}", path, std::strerror(errno));
  try {
    lock(file_, run_folder, patience);
  } catch (...) {
    ::close(file_);
    throw;
  }
  name_holder(file_);
}

RunLock::~RunLock() {
  ::close(file_);
}

void RunLock::check_free(const std::string& run_folder, std::chrono::milliseconds patience) {
  const int file = ::open(path_in(run_folder).c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return;  // nobody was ever there
  try {
    lock(file, run_folder, patience);
  } catch (...) {
    ::close(file);
    throw;
  }
  ::close(file);
}

}  // namespace steppe::cli
