#include "steppe/checkpoint/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "steppe/base/error.h"
#include "steppe/checkpoint/crc32c.h"

namespace steppe::checkpoint {
namespace {

constexpr int64_t kWriteBackBytes = int64_t{16} << 20;
constexpr std::string_view kSeal = ",\"crc32c\":\"";

std::string seal_of(std::string_view text) {
  return fmt::format("{}{:08x}\"}}\n", kSeal, crc32c(text));
}

}  // namespace

DurableFile::DurableFile(std::string path) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  require(file_ >= 0, "create");
}

DurableFile::~DurableFile() {
  if (file_ >= 0) ::close(file_);
}

void DurableFile::require(bool done, const char* what) const {
  const int reason = errno;
  STEPPE_CHECK(done, "[checkpoint] cannot {} {}: {}", what, path_, std::strerror(reason));
}

void DurableFile::add_to_checksums(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), static_cast<size_t>(kBlockBytes - open_bytes_)));
    open_checksum_ = crc32c(part, open_checksum_);
    open_bytes_ += static_cast<int64_t>(part.size());
    bytes = bytes.subspan(part.size());
    if (open_bytes_ < kBlockBytes) continue;
    checksums_.push_back(std::exchange(open_checksum_, 0));
    open_bytes_ = 0;
  }
}

void DurableFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    // A block at a time: its checksum is taken while it is in the cache.
    const auto piece = bytes.first(std::min<size_t>(bytes.size(), kBlockBytes));
    const ssize_t written = ::write(file_, piece.data(), piece.size());
    if (written < 0 && errno == EINTR) continue;
    require(written > 0, "write");
    add_to_checksums(piece.first(static_cast<size_t>(written)));
    bytes = bytes.subspan(static_cast<size_t>(written));
    size_bytes_ += written;
    if (size_bytes_ - handed_over_ >= kWriteBackBytes) {
      // A hint: what fails here fails in fsync too.
      [[maybe_unused]] const int asked =
          ::sync_file_range(file_, handed_over_, size_bytes_ - handed_over_, SYNC_FILE_RANGE_WRITE);
      handed_over_ = size_bytes_;
    }
  }
}

void DurableFile::finish() {
  if (open_bytes_ > 0) checksums_.push_back(std::exchange(open_checksum_, 0));
  open_bytes_ = 0;
  require(::fsync(file_) == 0, "sync");
  require(::close(std::exchange(file_, -1)) == 0, "close");
}

void replace_durably(const std::string& path, std::string_view text) {
  const std::string beside = path + ".partial";
  DurableFile file(beside);
  file.write(text);
  file.finish();
  STEPPE_CHECK(::rename(beside.c_str(), path.c_str()) == 0, "[checkpoint] cannot rename {} to {}: {}", beside,
               path, std::strerror(errno));
  const auto folder = std::filesystem::path(path).parent_path();
  sync_folder(folder.empty() ? "." : folder.string());
}

void sync_folder(const std::string& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = file >= 0 && ::fsync(file) == 0;
  const int reason = errno;
  if (file >= 0) ::close(file);
  STEPPE_CHECK(synced, "[checkpoint] cannot sync the folder {}: {}", folder, std::strerror(reason));
}

void put_in_place(const std::string& partial, const std::string& path) {
  const auto fail = [&] {
    throw RuntimeFailure(
        fmt::format("[checkpoint] cannot rename {} to {}: {}", partial, path, std::strerror(errno)));
  };
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    if (::rename(partial.c_str(), path.c_str()) != 0) fail();
    return;
  }
  if (::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) != 0) {
    // A file system without the exchange: for an instant, neither has the name.
    const std::string aside = path + ".deleted";
    std::filesystem::remove_all(aside, error);
    if (::rename(path.c_str(), aside.c_str()) != 0 || ::rename(partial.c_str(), path.c_str()) != 0) fail();
    std::filesystem::remove_all(aside, error);
    return;
  }
  std::filesystem::remove_all(partial, error);
}

std::string sealed(std::string object) {
  STEPPE_ASSERT(object.size() > 2 && object.back() == '}', "[checkpoint] a sealed text is a JSON object");
  object.pop_back();
  const auto seal = seal_of(object);
  return std::move(object) + seal;
}

std::string read_sealed(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  STEPPE_CHECK(stream.good(), "[checkpoint] cannot open {}: {}", path, std::strerror(errno));
  std::ostringstream all;
  all << stream.rdbuf();
  STEPPE_CHECK(!stream.bad(), "[checkpoint] cannot read {} to its end", path);
  std::string text = std::move(all).str();
  const size_t at = text.rfind(kSeal);
  STEPPE_CHECK_VALUE(at != std::string::npos,
                     "[checkpoint] {} is cut short or altered: it has no checksum at its end", path);
  const auto expected = seal_of(std::string_view(text).substr(0, at));
  STEPPE_CHECK_VALUE(
      text.compare(at, std::string::npos, expected) == 0,
      "[checkpoint] {} is cut short or altered: its text does not match the checksum at its end", path);
  return text;
}

}  // namespace steppe::checkpoint
