// A model's weights in Hugging Face's form: model.safetensors, or model-00001-of-0000N.safetensors and
// model.safetensors.index.json, each expert by itself under the names of the model's family.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "steppe/checkpoint/safetensors.h"
#include "steppe/model/config.h"

namespace steppe::checkpoint {

// Writes the fp32 masters of elements [begin, begin + out.size()) of a logical tensor (our names) into `out`.
using MasterSource = std::function<void(const std::string& tensor, int64_t begin, std::span<float> out)>;

struct NamedShape {
  std::string name;  // ours
  std::vector<int64_t> shape;
};

// The tensors that make up a model, in the order of its layers. Allocates nothing on a device.
std::vector<NamedShape> logical_tensors(const model::ModelConfig& config);

struct ExportOptions {
  Dtype dtype = Dtype::kBF16;               // or kF32, kF16
  int64_t max_shard_bytes = 5'000'000'000;  // of a file's tensors; a larger tensor has a file of its own
};

struct Exported {
  int64_t num_tensors = 0, num_files = 0, num_bytes = 0;  // bytes of tensors
};

// Writes into an existing folder; everything is on the disk on return. One process; its host memory is a
// block of 4M elements, whatever the model's size. RuntimeFailure naming the file; ValueError for a value
// that the dtype cannot hold, and what check_family_has refuses.
Exported export_weights(const std::string& folder, const model::ModelConfig& config,
                        const MasterSource& source, const ExportOptions& options);

}  // namespace steppe::checkpoint
