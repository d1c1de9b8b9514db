// A weight unit: parameters that are gathered, reduced and updated together, flat in one buffer. The ranks
// that hold the same unit are its replicas; masters, moments and the reduced gradient are sharded over them.
//
//   sharded     working weights are sharded too (ZeRO-3): gathered before use. Dense weights, replicas = all
//   W. replicated  every replica holds the whole working unit: experts (W/E_p), vocabulary shards (W/P).
//
// Elements [r·n, (r+1)·n) of the padded buffer belong to replica r. Where masters and moments live:
// optim/state_memory.h. The unit's bytes: see docs/architecture.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "steppe/comm/communicator.h"
#include "steppe/ops/context.h"
#include "steppe/optim/adamw.h"
#include "steppe/optim/state_memory.h"

namespace steppe::model {

// A contiguous piece of a logical tensor (Hugging Face's names and shapes) inside a unit.
struct LogicalSlice {
  std::string tensor;          // "model.layers.0.mlp.experts.3.up_proj.weight"
  std::vector<int64_t> shape;  // of the whole tensor
  int64_t tensor_begin = 0;    // first element within it, row-major
  int64_t count = 0;
  int64_t unit_begin = 0;  // first element within the unit
  bool decay = true;       // matrices decay, vectors do not
  double init_std = 0.02;  // normal; negative: ones
};

enum class UnitKind { kSharded, kReplicated };

class WeightUnit {
 public:
  WeightUnit(std::string name, UnitKind kind, comm::Communicator& replicas)
      : name_(std::move(name)), kind_(kind), replicas_(&replicas) {}

  // Appends a slice; `aligned` starts it at a multiple of 16 elements. Returns where it begins.
  int64_t add(LogicalSlice slice, bool aligned);
  // Fixes the size: the padded unit, this rank's shard, and how its elements are treated.
  void finish_layout(const optim::ParameterRules& rules);
  // Takes working weights, masters, moments and gradient accumulators, zero-filled.
  void allocate(const ops::OpContext& context, optim::StateMemory& state);

  const std::string& name() const { return name_; }
  UnitKind kind() const { return kind_; }
  const std::vector<LogicalSlice>& slices() const { return slices_; }
  comm::Communicator& replicas() const { return *replicas_; }
  int64_t numel() const { return numel_; }  // padded
  int64_t shard_numel() const { return numel_ / replicas_->size(); }
  int64_t state_numel() const { return state_numel_; }  // of the shard's masters and moments
  int64_t shard_begin() const { return replicas_->rank() * shard_numel(); }

  // Working weights: [shard_numel] if sharded over more than one rank, else [numel].
  const at::Tensor& working() const { return working_; }
  bool working_is_whole() const { return kind_ == UnitKind::kReplicated || replicas_->size() == 1; }
  // Gradient accumulators, fp32 or bf16: of the shard where gradients are reduced per layer, else of the
  // whole unit. In host memory under optimizer.gradients = "host".
  const at::Tensor& grad() const { return grad_; }
  int64_t grad_numel() const { return kind_ == UnitKind::kSharded ? shard_numel() : numel_; }
  int64_t grad_shard_begin() const { return kind_ == UnitKind::kSharded ? 0 : shard_begin(); }
  optim::ParameterShard& shard() { return shard_; }
  const optim::ParameterShard& shard() const { return shard_; }

  // Every replica's updated shard back into the whole working weights. Collective over the replicas.
  void refresh_working();

 private:
  std::string name_;
  UnitKind kind_;
  comm::Communicator* replicas_;
  std::vector<LogicalSlice> slices_;
  int64_t numel_ = 0, state_numel_ = 0;
  at::Tensor working_, grad_;
  optim::ParameterShard shard_;
};

// A unit's whole working weights for a while: gathered, or a view where they are whole already.
class GatheredUnit {
 public:
  GatheredUnit() = default;
  // Starts the gather (category `gathered`); collective over the replicas.
  GatheredUnit(const ops::OpContext& context, WeightUnit& unit);
  const at::Tensor& wait();  // flat [numel]
  void release();

 private:
  at::Tensor flat_;
  comm::Pending pending_;
};

}  // namespace steppe::model
