#include "steppe/checkpoint/native_shard.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "steppe/base/error.h"
#include "steppe/checkpoint/crc32c.h"
#include "steppe/checkpoint/durable_file.h"
#include "steppe/checkpoint/safetensors_dtype.h"
#include "steppe/memory/scope.h"

namespace steppe::checkpoint {
namespace {

constexpr size_t kDataAlignment = 64;

Dtype dtype_of(const at::Tensor& tensor) {
  STEPPE_ASSERT(tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16,
                "[checkpoint] a state is fp32 or bf16");
  return tensor.scalar_type() == at::kFloat ? Dtype::kF32 : Dtype::kBF16;
}

std::string stored_name(const std::string& unit, State state) {
  return fmt::format("{}/{}", unit, name_of(state));
}

// The length and the JSON of a safetensors header; fills in where each state lies.
std::string lay_out(const std::string& id, int64_t rank, const std::vector<UnitState>& units,
                    ShardFile& file) {
  nlohmann::json header = nlohmann::json::object();
  header["__metadata__"] = {{"format", "steppe"}, {"checkpoint", id}, {"rank", std::to_string(rank)}};
  int64_t at = 0;
  // fp32 before bf16: each tensor is aligned to its element.
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    for (size_t u = 0; u < units.size(); ++u) {
      for (const auto& [state, values] : units[u].tensors) {
        if (dtype_of(values) != dtype) continue;
        const int64_t end = at + values.numel() * size_bytes_of(dtype);
        header[stored_name(units[u].name, state)] = {
            {"dtype", name_of(dtype)}, {"shape", {values.numel()}}, {"data_offsets", {at, end}}};
        file.units[u].states.push_back({state, dtype, at});
        at = end;
      }
    }
  }
  std::string text = header.dump();
  const size_t length_bytes = sizeof(uint64_t);
  text.resize(
      (length_bytes + text.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment - length_bytes,
      ' ');
  file.header_bytes = static_cast<int64_t>(length_bytes + text.size());
  for (auto& unit : file.units) {
    for (auto& stored : unit.states) stored.begin_byte += file.header_bytes;
  }
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), length_bytes) + text;
}

std::span<const std::byte> bytes_of(const at::Tensor& host) {
  return {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()};
}

void write_tensor(DurableFile& file, const at::Tensor& values, int64_t chunk_bytes) {
  if (values.is_cpu() && values.is_contiguous()) {
    file.write(bytes_of(values));
    return;
  }
  const memory::Scope scope(memory::Category::kStaging);
  const auto chunk = std::max<int64_t>(1, chunk_bytes / static_cast<int64_t>(values.itemsize()));
  const auto host = at::empty({std::min(chunk, values.numel())}, values.options().device(at::kCPU));
  for (int64_t begin = 0; begin < values.numel(); begin += chunk) {
    const auto part = host.narrow(0, 0, std::min(chunk, values.numel() - begin));
    part.copy_(values.narrow(0, begin, part.numel()));
    file.write(bytes_of(part));
  }
}

}  // namespace

std::vector<UnitState> unit_states(const model::WeightUnit& unit) {
  const auto& shard = unit.shard();
  const auto runs = optim::state_runs(shard.segments);
  std::vector<UnitState> states;
  for (const auto& run : runs) {
    UnitState state;
    state.name = runs.size() == 1 ? unit.name() : fmt::format("{}, part {}", unit.name(), states.size());
    state.numel = run.count;
    const int64_t begin = unit.shard_begin() + run.begin, end = begin + run.count;
    for (const auto& slice : unit.slices()) {
      const int64_t from = std::max(begin, slice.unit_begin),
                    to = std::min(end, slice.unit_begin + slice.count);
      if (from >= to) continue;
      state.slices.push_back(
          {slice.tensor, slice.shape, from - begin, slice.tensor_begin + from - slice.unit_begin, to - from});
    }
    state.tensors = {{State::kMaster, run.weights(shard)}};
    if (!run.frozen) {
      state.tensors.push_back({State::kM, run.of_state(shard.m)});
      state.tensors.push_back({State::kV, run.of_state(shard.v)});
    }
    states.push_back(std::move(state));
  }
  return states;
}

void set_working_from_master(model::WeightUnit& unit) {
  const auto& shard = unit.shard();
  for (const auto& run : optim::state_runs(shard.segments)) {
    const auto weights = run.weights(shard), working = shard.working.narrow(0, run.begin, run.count);
    if (working.data_ptr() != weights.data_ptr()) working.copy_(weights);
  }
  unit.refresh_working();
}

std::string expert_bias_name(int64_t layer) {
  return fmt::format("model.layers.{}.mlp.gate.expert_bias", layer);
}

std::vector<UnitState> rank_states(model::ModelWeights& weights, int64_t rank) {
  std::vector<UnitState> states;
  for (const auto& unit : weights.units()) {
    for (auto& state : unit_states(unit)) states.push_back(std::move(state));
  }
  if (rank != 0) return states;
  const auto& biases = weights.expert_biases();
  for (size_t layer = 0; layer < biases.size(); ++layer) {
    if (!biases[layer].defined()) continue;
    const int64_t experts = biases[layer].numel();
    states.push_back({fmt::format("layer {} expert bias", layer),
                      experts,
                      {{expert_bias_name(static_cast<int64_t>(layer)), {experts}, 0, 0, experts}},
                      {{State::kMaster, biases[layer]}}});
  }
  return states;
}

std::string shard_stem(int64_t rank) {
  return fmt::format("rank_{:04}", rank);
}

void write_shard(const std::string& folder, const std::string& id, int64_t rank,
                 const std::vector<UnitState>& units, int64_t chunk_bytes) {
  const auto stem = (std::filesystem::path(folder) / shard_stem(rank)).string();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  STEPPE_CHECK(!error, "[checkpoint] cannot make the folder {}: {}", folder, error.message());

  ShardIndex index{id, rank, {}, {}};
  index.file.name = shard_stem(rank) + ".safetensors";
  for (size_t u = 0; u < units.size(); ++u) {
    index.file.units.push_back({units[u].name, units[u].numel, {}});
    for (const auto& slice : units[u].slices) {
      index.slices.push_back(
          {slice.tensor, slice.shape, {0, static_cast<int64_t>(u), slice.offset, slice.begin, slice.count}});
    }
  }
  DurableFile shard(stem + ".safetensors");
  shard.write(lay_out(id, rank, units, index.file));
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    for (const auto& unit : units) {
      for (const auto& [state, values] : unit.tensors) {
        if (dtype_of(values) == dtype) write_tensor(shard, values, chunk_bytes);
      }
    }
  }
  shard.finish();
  index.file.size_bytes = shard.size_bytes();

  DurableFile checksums(stem + ".crc32c");
  const auto bytes = std::as_bytes(std::span(shard.block_checksums()));
  checksums.write(bytes);
  checksums.finish();
  index.file.checksums_crc32c = crc32c(bytes);

  DurableFile description(stem + ".json");
  description.write(to_text(index));
  description.finish();
}

}  // namespace steppe::checkpoint
