#include "steppe/checkpoint/checked_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "steppe/base/error.h"
#include "steppe/checkpoint/crc32c.h"
#include "steppe/checkpoint/durable_file.h"
#include "steppe/checkpoint/safetensors.h"

namespace steppe::checkpoint {

CheckedFile::CheckedFile(const std::string& folder, ShardFile description, std::string id, BlockCache& cache)
    : path_((std::filesystem::path(folder) / description.name).string()),
      description_(std::move(description)),
      id_(std::move(id)),
      cache_(cache) {
  file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  STEPPE_CHECK(file_ >= 0, "[checkpoint] cannot open {}: {}", path_, std::strerror(errno));
  try {
    struct stat status {};
    STEPPE_CHECK(::fstat(file_, &status) == 0, "[checkpoint] cannot inspect {}: {}", path_,
                 std::strerror(errno));
    STEPPE_CHECK_VALUE(status.st_size == description_.size_bytes,
                       "[checkpoint] {} has {} bytes; the manifest says {}: {}", path_,
                       static_cast<int64_t>(status.st_size), description_.size_bytes, what_is_wrong());
    check_checksums(folder);
    for (int64_t b = 0; b * kBlockBytes < description_.header_bytes; ++b) check_block(b);
  } catch (...) {
    cache_.file = nullptr;
    ::close(file_);
    throw;
  }
}

CheckedFile::~CheckedFile() {
  ::close(file_);
  if (cache_.file == this) cache_.file = nullptr;
}

void CheckedFile::check_checksums(const std::string& folder) {
  const auto path = (std::filesystem::path(folder) / description_.checksums_name()).string();
  std::ifstream stream(path, std::ios::binary);
  STEPPE_CHECK(stream.good(), "[checkpoint] cannot open {}: {}", path, std::strerror(errno));
  checksums_.resize(static_cast<size_t>(num_blocks()));
  const auto bytes = std::as_writable_bytes(std::span(checksums_));
  stream.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  const bool whole = stream.gcount() == static_cast<std::streamsize>(bytes.size()) && stream.peek() == EOF;
  STEPPE_CHECK_VALUE(whole && crc32c(bytes) == description_.checksums_crc32c,
                     "[checkpoint] {} does not match the manifest: it is damaged, or of another checkpoint",
                     path);
}

void CheckedFile::read_exactly(int64_t begin, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(file_, out.data(), out.size(), begin);
    if (got < 0 && errno == EINTR) continue;
    STEPPE_CHECK(got >= 0, "[checkpoint] cannot read {} at byte {}: {}", path_, begin, std::strerror(errno));
    STEPPE_CHECK(got > 0, "[checkpoint] {} ends at byte {}: it was cut short while it was read", path_,
                 begin);
    begin += got;
    out = out.subspan(static_cast<size_t>(got));
  }
}

// For a message: a file whose header names another checkpoint was put here by somebody.
std::string CheckedFile::what_is_wrong() const {
  try {
    const SafetensorsFile file(path_);
    const auto found = file.metadata().find("checkpoint");
    if (found != file.metadata().end() && found->second != id_)
      return fmt::format("the file is of another checkpoint ({}, not {})", found->second, id_);
  } catch (const std::exception&) {
    // Damaged beyond its header.
  }
  return "the file is damaged";
}

std::span<const std::byte> CheckedFile::block(int64_t index) {
  if (cache_.file != this || cache_.index != index) {
    cache_.file = nullptr;
    const int64_t begin = index * kBlockBytes;
    cache_.bytes.resize(static_cast<size_t>(std::min(kBlockBytes, description_.size_bytes - begin)));
    read_exactly(begin, cache_.bytes);
    STEPPE_CHECK_VALUE(crc32c(cache_.bytes) == checksums_[static_cast<size_t>(index)],
                       "[checkpoint] {}: block {}, bytes {} to {}, does not match its checksum: {}", path_,
                       index, begin, begin + std::ssize(cache_.bytes), what_is_wrong());
    cache_.file = this;
    cache_.index = index;
  }
  return cache_.bytes;
}

void CheckedFile::read(int64_t begin, std::span<std::byte> out) {
  STEPPE_ASSERT(begin >= 0 && std::ssize(out) <= description_.size_bytes - begin,
                "[checkpoint] {}: bytes {} to {}", path_, begin, begin + std::ssize(out));
  while (!out.empty()) {
    const int64_t index = begin / kBlockBytes, within = begin % kBlockBytes;
    const auto bytes = block(index).subspan(static_cast<size_t>(within));
    const size_t count = std::min(bytes.size(), out.size());
    std::memcpy(out.data(), bytes.data(), count);
    begin += static_cast<int64_t>(count);
    out = out.subspan(count);
  }
}

}  // namespace steppe::checkpoint
