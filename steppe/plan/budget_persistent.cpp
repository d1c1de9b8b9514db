#include <algorithm>

#include "steppe/comm/groups.h"
#include "steppe/memory/host_arena.h"
#include "steppe/memory/scope.h"
#include "steppe/model/weights.h"
#include "steppe/plan/budget_sizes.h"

namespace steppe::plan {

using memory::Category;

int64_t dense_of_all_layers(const Sizes& s) {
  int64_t elements = 0;
  for (int64_t layer = 0; layer < s.L; ++layer) elements += dense_unit(s, layer);
  return elements;
}

int64_t num_moe_layers(const Sizes& s) {
  int64_t count = 0;
  for (int64_t layer = 0; layer < s.L; ++layer) count += s.shape.model.is_dense_layer(layer) ? 0 : 1;
  return count;
}

int64_t num_tables(const Sizes& s) {
  return s.shape.model.tie_word_embeddings ? 1 : 2;
}

int64_t norm_unit(const Sizes& s) {
  return (s.H + 16 * s.W - 1) / (16 * s.W) * 16 * s.W;
}

int64_t owned(const Sizes& s) {
  return (dense_of_all_layers(s) + norm_unit(s)) / s.W + num_moe_layers(s) * expert_unit(s) * s.Ep / s.W +
         num_tables(s) * table_unit(s) * s.P / s.W - s.frozen;
}

int64_t frozen_elements(const train::RankShape& shape, const optim::StateOptions& given) {
  if (given.rules.freeze.empty()) return 0;
  optim::StateOptions state;  // of any dtypes: elements are counted
  state.rules = given.rules;
  memory::Ledger apart;
  const memory::LedgerBinding binding(apart);
  auto groups = comm::make_shape_only_groups(shape.layout);
  const ops::OpContext context{at::kMeta, at::kFloat, nullptr};
  model::ModelWeights weights(shape.model, shape.layout, groups, context, state);
  int64_t frozen = 0;
  for (const auto& unit : weights.units()) frozen += unit.shard_numel() - unit.state_numel();
  return frozen;
}

int64_t accumulated(const Sizes& s) {
  return (dense_of_all_layers(s) + norm_unit(s)) / s.W + num_moe_layers(s) * expert_unit(s) +
         num_tables(s) * table_unit(s);
}

int64_t moment_bytes(const Sizes& s) {
  return static_cast<int64_t>(c10::elementSize(s.state.moments_dtype));
}

int64_t bucket(const Sizes& s) {
  return std::min(s.step.buckets.bucket_params, owned(s));
}

int64_t bucket_slots(const Sizes& s) {
  const int64_t size = std::max<int64_t>(1, bucket(s));
  return std::min(s.step.buckets.slots, (owned(s) + size - 1) / size);
}

// Whether fp32 working weights are the masters.
bool masters_double(const Sizes& s) {
  return s.state.masters_are_working(s.fp32() ? at::kFloat : at::kBFloat16);
}

void add_persistent(const Sizes& s, Terms& terms) {
  const int64_t dense = dense_of_all_layers(s) + norm_unit(s), experts = num_moe_layers(s) * expert_unit(s),
                vocab = num_tables(s) * table_unit(s);
  terms.add("dense weights", "b·Θd/W", Category::kWeights, s.b * dense / s.W);
  terms.add("expert weights", "b·Θe/Ep", Category::kWeights, s.b * experts);
  terms.add("vocabulary weights", "b·Θv/P", Category::kWeights, s.b * vocab);
  terms.add("expert biases", "4·L·E", Category::kWeights, 4 * num_moe_layers(s) * s.E);
  if (!s.state.host_gradients) {
    terms.add("gradient accumulators", "g·(Θd/W+Θe/Ep+Θv/P)", Category::kGrads,
              s.g * (dense / s.W + experts + vocab));
  }
  if (s.state.on_host()) return;
  terms.add(masters_double(s) ? "moments (weights are the masters)" : "masters and moments",
            masters_double(s) ? "8·Θ/W" : "12·Θ/W", Category::kOptimizer,
            (masters_double(s) ? 0 : 4 * owned(s)) + 2 * moment_bytes(s) * owned(s));
}

// In the node's memory.
void add_host(const Sizes& s, Terms& terms) {
  if (s.state.on_host()) {
    terms.add("masters and moments", "12·Θ/W", Category::kOptimizer,
              3 * memory::HostArena::kAlignment + (masters_double(s) ? 0 : 4 * owned(s)) +
                  2 * moment_bytes(s) * owned(s));
  }
  if (s.state.host_gradients) {
    terms.add("gradient accumulators", "g·(Θd/W+Θe/Ep+Θv/P)", Category::kGrads,
              memory::HostArena::kAlignment + s.g * accumulated(s));
  }
  if (s.state.placement == optim::Placement::kCpu) {
    const int64_t bytes = (s.state.host_gradients ? 0 : s.g) + (s.fp32() ? 0 : 2);
    terms.add("optimizer staging", "s·β·(2…6)", Category::kStaging,
              bucket_slots(s) * (bucket(s) * bytes + 2 * memory::HostArena::kAlignment));
  }
  terms.add("layer inputs", "offload.host_budget", Category::kBoundary, s.offload.boundary_host_bytes);
  terms.add("attention outputs", "offload.host_budget", Category::kSaved, s.offload.output_host_bytes);
}

}  // namespace steppe::plan
