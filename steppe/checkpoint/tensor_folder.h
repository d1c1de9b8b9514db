// The tensors of a Hugging Face model: of one safetensors file, or of the shards that a folder's index names,
// looked up by the names that our units use.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "steppe/checkpoint/safetensors.h"

namespace steppe::checkpoint {

// Where a tensor of ours begins: in a tensor of its own, or in one that packs the experts of a layer.
struct TensorPlace {
  const SafetensorsFile* file = nullptr;
  std::string stored_name;
  int64_t offset = 0;                // elements
  std::vector<int64_t> found_shape;  // of our tensor, as the file has it
  int64_t packed_experts = 0;        // that the stored tensor holds; 0 for a tensor of its own
};

class TensorFolder {
 public:
  // A .safetensors file, or a folder with model.safetensors, or with model.safetensors.index.json and its
  // shards. ValueError for an index that does not agree with its shards; RuntimeFailure for what cannot be
  // read.
  explicit TensorFolder(const std::string& folder_or_file);

  const std::string& path() const { return path_; }
  // Nothing when there is no such tensor. An expert's gate_proj, up_proj or down_proj is also found in the
  // packed …experts.gate_up_proj [E, 2I, H] and …experts.down_proj [E, H, I] of newer files, whatever their
  // E: who asks compares it.
  std::optional<TensorPlace> find(const std::string& tensor) const;
  std::vector<std::string> names() const;
  void read(const TensorPlace& place, int64_t begin, std::span<float> out) const;

 private:
  void open_file(const std::string& path);
  void open_index(const std::string& index_path);
  std::optional<TensorPlace> find_packed(const std::string& tensor) const;

  std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*, std::less<>> file_of_;
};

}  // namespace steppe::checkpoint
