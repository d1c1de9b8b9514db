// One rank's part of a native checkpoint: what it consists of, and the files it is written to.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "steppe/checkpoint/native_manifest.h"
#include "steppe/model/weights.h"

namespace steppe::checkpoint {

// A run of a logical tensor within a rank's part of a unit.
struct StateSlice {
  std::string tensor;
  std::vector<int64_t> shape;  // of the whole tensor
  int64_t offset = 0, begin = 0, count = 0;
};

// Elements of a rank's part of one unit, the same of each state. Tensors are 1-D, fp32 or (moments, weights
// that are frozen) bf16, on any device.
struct UnitState {
  struct Tensor {
    State state;
    at::Tensor values;
  };
  std::string name;
  int64_t numel = 0;
  std::vector<StateSlice> slices;
  std::vector<Tensor> tensors;
};

// The one place, with set_working_from_master(), that knows where a unit's masters and moments live: a
// placement of the optimizer's state joins here. Views, nothing is copied.
// What is frozen has no state but its weights, in the working dtype, and is an entry of its own.
std::vector<UnitState> unit_states(const model::WeightUnit& unit);

// The working weights of the whole unit from this rank's masters. Collective over the unit's replicas.
void set_working_from_master(model::WeightUnit& unit);

// The name under which a router's balancing bias [E] is kept, as a logical tensor with a master alone.
std::string expert_bias_name(int64_t layer);

// Everything that this rank saves: its part of every unit and, on rank 0, the expert biases.
std::vector<UnitState> rank_states(model::ModelWeights& weights, int64_t rank);

std::string shard_stem(int64_t rank);  // "rank_0003"

// Writes rank_N.safetensors, rank_N.crc32c and rank_N.json (its ShardIndex) into `folder`, which is made if
// missing; all are on the disk on return. Not collective. What lies on a device passes through `chunk_bytes`
// of host memory. RuntimeFailure naming the file.
void write_shard(const std::string& folder, const std::string& id, int64_t rank,
                 const std::vector<UnitState>& units, int64_t chunk_bytes = int64_t{16} << 20);

}  // namespace steppe::checkpoint
