#include "steppe/train/metrics/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "steppe/base/error.h"

namespace steppe::metrics {

AppendFile::AppendFile(std::filesystem::path path, int64_t keep_bytes) : path_(std::move(path)) {
  if (path_.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(path_.parent_path(), error);
    STEPPE_CHECK(!error, "[metrics] cannot create the folder {}: {}", path_.parent_path().string(),
                 error.message());
  }
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("open", errno);
  try {
    struct stat status {};
    if (::fstat(fd_, &status) != 0) fail("inspect", errno);
    STEPPE_CHECK(keep_bytes <= status.st_size, "[metrics] {} must have at least {} bytes, got {}",
                 path_.string(), keep_bytes, status.st_size);
    if (::ftruncate(fd_, keep_bytes) != 0) fail("truncate", errno);
  } catch (...) {
    ::close(fd_);
    throw;
  }
  size_bytes_ = keep_bytes;
}

AppendFile::~AppendFile() {
  ::close(fd_);
}

void AppendFile::append(std::string_view piece) {
  size_t done = 0;
  while (done < piece.size()) {
    const ssize_t written = ::write(fd_, piece.data() + done, piece.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error_code = written < 0 ? errno : ENOSPC;
      // Best effort: the cause of the failed write is what the caller must hear of.
      [[maybe_unused]] const int restored = ::ftruncate(fd_, size_bytes_);
      fail("write", error_code);
    }
    done += static_cast<size_t>(written);
  }
  size_bytes_ += static_cast<int64_t>(piece.size());
}

void AppendFile::sync() {
  if (::fdatasync(fd_) != 0) fail("sync", errno);
}

void AppendFile::fail(const char* action, int error_code) const {
  throw RuntimeFailure(
      fmt::format("[metrics] cannot {} {}: {}", action, path_.string(), std::strerror(error_code)));
}

}  // namespace steppe::metrics
