// Files that are on the disk when they say so. Errors are RuntimeFailures naming the path and the system's
// reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace steppe::checkpoint {

inline constexpr int64_t kBlockBytes = int64_t{1} << 20;  // what one checksum covers

// A file written from its beginning to its end, with a CRC-32C of each block taken on the way. The kernel is
// asked to start writing back early, so that finish() waits for little.
class DurableFile {
 public:
  explicit DurableFile(std::string path);  // emptied if it exists
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  // Synced and closed on return.
  void finish();

  const std::string& path() const { return path_; }
  int64_t size_bytes() const { return size_bytes_; }
  // Of [0, 1 MiB), [1 MiB, 2 MiB), …; the last may be short. After finish().
  const std::vector<uint32_t>& block_checksums() const { return checksums_; }

 private:
  void require(bool done, const char* what) const;
  void add_to_checksums(std::span<const std::byte> bytes);

  std::string path_;
  int file_ = -1;
  int64_t size_bytes_ = 0, handed_over_ = 0;  // handed over: writing back has been asked for
  std::vector<uint32_t> checksums_;
  uint32_t open_checksum_ = 0;  // of the block under way
  int64_t open_bytes_ = 0;
};

// `path` is the old file or the whole new one, whenever the machine stops: beside, synced, renamed, and the
// folder synced.
void replace_durably(const std::string& path, std::string_view text);

// Returns once renames and removals in the folder are on the disk.
void sync_folder(const std::string& folder);

// Gives a folder that is complete the name `path`, in one step. One that has the name already is exchanged
// for it and removed.
void put_in_place(const std::string& partial, const std::string& path);

// A text with its own checksum: a JSON object whose last key is "crc32c". read_sealed() throws ValueError
// naming `path` where it does not match.
std::string sealed(std::string object);
std::string read_sealed(const std::string& path);

}  // namespace steppe::checkpoint
