// A shard of a checkpoint, read with pread; no byte leaves it whose block does not match its checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "steppe/checkpoint/native_manifest.h"

namespace steppe::checkpoint {

class CheckedFile;

// The block read last, shared by the files of a reader: neighbours in a file are read one after another.
struct BlockCache {
  const CheckedFile* file = nullptr;
  int64_t index = -1;
  std::vector<std::byte> bytes;
};

class CheckedFile {
 public:
  // Checks the file's size, its list of checksums, and the blocks of its header. `id` is the manifest's.
  // Errors name the file: RuntimeFailure when it cannot be opened or read, ValueError when it is damaged, cut
  // short, or of another checkpoint.
  CheckedFile(const std::string& folder, ShardFile description, std::string id, BlockCache& cache);
  ~CheckedFile();
  CheckedFile(const CheckedFile&) = delete;
  CheckedFile& operator=(const CheckedFile&) = delete;

  const std::string& path() const { return path_; }
  const ShardFile& description() const { return description_; }
  int64_t num_blocks() const { return description_.num_blocks(); }
  // Bytes [begin, begin + out.size()), reading whole blocks and checking each.
  void read(int64_t begin, std::span<std::byte> out);
  // Reads and checks one block.
  void check_block(int64_t index) { block(index); }

 private:
  void check_checksums(const std::string& folder);
  std::span<const std::byte> block(int64_t index);
  void read_exactly(int64_t begin, std::span<std::byte> out) const;
  std::string what_is_wrong() const;

  std::string path_;
  ShardFile description_;
  std::string id_;
  BlockCache& cache_;
  int file_ = -1;
  std::vector<uint32_t> checksums_;
};

}  // namespace steppe::checkpoint
