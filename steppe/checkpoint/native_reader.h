// Reads logical tensors from a native checkpoint, whatever layout wrote it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "steppe/checkpoint/checked_file.h"
#include "steppe/checkpoint/native_manifest.h"

namespace steppe::checkpoint {

class NativeReader {
 public:
  // `path`: as for resolve_checkpoint (native_folder.h). Reads the manifest; shards are opened as they are
  // needed. Errors: those of read_manifest and CheckedFile.
  explicit NativeReader(const std::string& path);

  const std::string& path() const { return path_; }  // of the checkpoint's folder
  const Manifest& manifest() const { return manifest_; }

  // Elements [begin, begin + out.size()) of a logical tensor, row-major, as fp32. Reads only the blocks that
  // hold them, and checks each. Moments that are not stored, of what was frozen, are zeros. One thread. Host
  // memory: a block.
  void read(std::string_view tensor, State state, int64_t begin, std::span<float> out);

 private:
  CheckedFile& file(int64_t index);

  std::string path_;
  Manifest manifest_;
  BlockCache cache_;
  std::map<int64_t, std::unique_ptr<CheckedFile>> files_;
};

}  // namespace steppe::checkpoint
