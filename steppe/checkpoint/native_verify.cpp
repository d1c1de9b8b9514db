#include "steppe/checkpoint/native_verify.h"

#include <fmt/format.h>

#include "steppe/base/error.h"
#include "steppe/checkpoint/checked_file.h"
#include "steppe/checkpoint/safetensors.h"

namespace steppe::checkpoint {
namespace {

void check_header(const std::string& path, const ShardFile& description) {
  const SafetensorsFile file(path);
  size_t stored = 0;
  for (const auto& unit : description.units) {
    for (const auto& state : unit.states) {
      const auto name = fmt::format("{}/{}", unit.name, name_of(state.state));
      const auto& entry = file.at(name);
      STEPPE_CHECK_VALUE(
          entry.dtype == state.dtype && entry.begin_byte == state.begin_byte && entry.numel == unit.numel,
          "[checkpoint] {}: {} lies elsewhere than the manifest says", path, name);
      ++stored;
    }
  }
  STEPPE_CHECK_VALUE(stored == file.tensors().size(), "[checkpoint] {} has {} tensors; the manifest names {}",
                     path, file.tensors().size(), stored);
}

}  // namespace

Verification verify(const std::string& folder, const Manifest& manifest) {
  Verification result;
  BlockCache cache;
  for (const auto& description : manifest.files) {
    try {
      CheckedFile file(folder, description, manifest.id, cache);
      for (int64_t b = 0; b < file.num_blocks(); ++b) file.check_block(b);
      check_header(file.path(), description);
      result.num_blocks += file.num_blocks();
      result.size_bytes += description.size_bytes;
      ++result.num_files;
    } catch (const std::exception& error) {
      result.faults.emplace_back(error.what());
    }
  }
  return result;
}

}  // namespace steppe::checkpoint
