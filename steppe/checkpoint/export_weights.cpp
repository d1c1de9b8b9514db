#include "steppe/checkpoint/export_weights.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "steppe/base/counters.h"
#include "steppe/base/error.h"
#include "steppe/checkpoint/durable_file.h"
#include "steppe/checkpoint/safetensors_dtype.h"
#include "steppe/comm/groups.h"
#include "steppe/kernels/pointwise.h"
#include "steppe/layout/layout.h"
#include "steppe/memory/scope.h"
#include "steppe/model/family.h"
#include "steppe/model/weights.h"

namespace steppe::checkpoint {
namespace {

constexpr int64_t kBlock = int64_t{1} << 22;  // elements

struct TensorOfShard {
  const NamedShape* ours;
  std::string name;  // theirs
  int64_t numel = 0;
};

struct Shard {
  std::vector<TensorOfShard> tensors;
  int64_t bytes = 0;
};

at::ScalarType scalar_type(Dtype dtype) {
  if (dtype == Dtype::kF32) return at::kFloat;
  if (dtype == Dtype::kF16) return at::kHalf;
  STEPPE_CHECK_VALUE(dtype == Dtype::kBF16, "[export] weights are written as F32, BF16 or F16, not {}",
                     name_of(dtype));
  return at::kBFloat16;
}

std::vector<Shard> plan_shards(const std::vector<NamedShape>& tensors, const model::Family& family,
                               const ExportOptions& options) {
  std::vector<Shard> shards(1);
  for (const auto& tensor : tensors) {
    const int64_t numel = numel_of(tensor.shape).value();
    const int64_t bytes = numel * size_bytes_of(options.dtype);
    if (!shards.back().tensors.empty() && shards.back().bytes + bytes > options.max_shard_bytes)
      shards.emplace_back();
    shards.back().tensors.push_back({&tensor, model::stored_name(family, tensor.name), numel});
    shards.back().bytes += bytes;
  }
  return shards;
}

std::string header_of(const Shard& shard, Dtype dtype) {
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  int64_t at = 0;
  for (const auto& tensor : shard.tensors) {
    const int64_t end = at + tensor.numel * size_bytes_of(dtype);
    header[tensor.name] = {
        {"dtype", name_of(dtype)}, {"shape", tensor.ours->shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

// Blocks of values on their way from the source to a file.
class Writer {
 public:
  Writer(const MasterSource& source, at::ScalarType dtype, int64_t largest) : source_(source) {
    const memory::Scope scope(memory::Category::kStaging);
    const int64_t size = std::min(largest, kBlock);
    masters_ = at::empty({size}, at::kFloat);
    if (dtype != at::kFloat) rounded_ = at::empty({size}, dtype);
  }

  void write(DurableFile& file, const TensorOfShard& tensor) {
    for (int64_t begin = 0; begin < tensor.numel; begin += kBlock) {
      const int64_t count = std::min(kBlock, tensor.numel - begin);
      auto block = masters_.narrow(0, 0, count);
      source_(tensor.ours->name, begin, {block.mutable_data_ptr<float>(), static_cast<size_t>(count)});
      if (rounded_.defined()) block = rounded(block, tensor.name);
      file.write({static_cast<const std::byte*>(block.const_data_ptr()), block.nbytes()});
    }
  }

 private:
  at::Tensor rounded(const at::Tensor& block, const std::string& name) {
    const auto out = rounded_.narrow(0, 0, block.numel());
    kernels::copy_cast(out, block);
    if (out.scalar_type() != at::kHalf) return out;  // bfloat16 has the range of float32
    constexpr float kOverflow = 65520;               // the least that rounds to infinity
    for (const float value : std::span(block.const_data_ptr<float>(), static_cast<size_t>(block.numel()))) {
      STEPPE_CHECK_VALUE(!(std::isfinite(value) && std::abs(value) >= kOverflow),
                         "[export] {} has the value {}, too large for float16: export as bfloat16 or float32",
                         name, value);
    }
    return out;
  }

  const MasterSource& source_;
  at::Tensor masters_, rounded_;
};

void write_index(const std::string& folder, const std::vector<Shard>& shards,
                 const std::vector<std::string>& files, const Exported& exported, int64_t parameters) {
  nlohmann::json map = nlohmann::json::object();
  for (size_t s = 0; s < shards.size(); ++s) {
    for (const auto& tensor : shards[s].tensors) map[tensor.name] = files[s];
  }
  const nlohmann::json index = {
      {"metadata", {{"total_parameters", parameters}, {"total_size", exported.num_bytes}}},
      {"weight_map", std::move(map)}};
  DurableFile file(folder + "/model.safetensors.index.json");
  file.write(index.dump(2) + "\n");
  file.finish();
}

}  // namespace

std::vector<NamedShape> logical_tensors(const model::ModelConfig& config) {
  const layout::RankLayout layout({}, 0);
  auto groups = comm::make_shape_only_groups(layout);
  Counters counters;
  const ops::OpContext context{at::kMeta, at::kFloat, &counters};
  model::ModelWeights weights(config, layout, groups, context);
  std::vector<NamedShape> tensors;
  for (const auto& unit : weights.units()) {
    for (const auto& slice : unit.slices()) tensors.push_back({slice.tensor, slice.shape});
  }
  return tensors;
}

Exported export_weights(const std::string& folder, const model::ModelConfig& config,
                        const MasterSource& source, const ExportOptions& options) {
  const auto& family = model::family_of(config);
  model::check_family_has(family, config);
  const auto dtype = scalar_type(options.dtype);
  const auto tensors = logical_tensors(config);
  const auto shards = plan_shards(tensors, family, options);
  int64_t largest = 0, parameters = 0;
  for (const auto& shard : shards) {
    for (const auto& tensor : shard.tensors) {
      largest = std::max(largest, tensor.numel), parameters += tensor.numel;
    }
  }
  Exported exported{static_cast<int64_t>(tensors.size()), static_cast<int64_t>(shards.size()), 0};
  std::vector<std::string> files;
  Writer writer(source, dtype, largest);
  for (size_t s = 0; s < shards.size(); ++s) {
    files.push_back(shards.size() == 1
                        ? "model.safetensors"
                        : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size()));
    DurableFile file((std::filesystem::path(folder) / files.back()).string());
    file.write(header_of(shards[s], options.dtype));
    for (const auto& tensor : shards[s].tensors) writer.write(file, tensor);
    file.finish();
    exported.num_bytes += shards[s].bytes;
  }
  if (shards.size() > 1) write_index(folder, shards, files, exported, parameters);
  return exported;
}

}  // namespace steppe::checkpoint
