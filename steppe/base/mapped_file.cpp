#include "steppe/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "steppe/base/error.h"

namespace steppe {

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  STEPPE_CHECK(file >= 0, "[file] cannot open {}: {}", path_, std::strerror(errno));
  struct stat status {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(file);
    throw RuntimeFailure(fmt::format("[file] {} is not a regular file", path_));
  }
  size_bytes_ = status.st_size;
  if (size_bytes_ > 0) {
    void* mapped = ::mmap(nullptr, static_cast<size_t>(size_bytes_), PROT_READ, MAP_SHARED, file, 0);
    const int reason = errno;
    ::close(file);
    STEPPE_CHECK(mapped != MAP_FAILED, "[file] cannot map {} ({} bytes): {}", path_, size_bytes_,
                 std::strerror(reason));
    bytes_ = static_cast<const unsigned char*>(mapped);
  } else {
    ::close(file);
  }
}

MappedFile::~MappedFile() {
  if (bytes_ != nullptr) ::munmap(const_cast<unsigned char*>(bytes_), static_cast<size_t>(size_bytes_));
}

}  // namespace steppe
