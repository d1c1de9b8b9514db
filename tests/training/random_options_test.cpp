// Options together that nobody thought of: whatever is chosen, the losses are those of one rank with none of
// it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "steppe/memory/host_arena.h"
#include "tests/training/follows_reference.h"
#include "tests/training/small_run.h"

namespace steppe::testing {
namespace {

constexpr int64_t kSteps = 20;

class RandomOptions {
 public:
  explicit RandomOptions(uint32_t seed) : random_(seed) {}

  SmallRun next() {
    const int world_size = static_cast<int>(pick(1, 4));
    const int ulysses = degree_of(world_size);
    auto run =
        small_run(ulysses == 3 ? 1 : 2, {world_size, ulysses, degree_of(world_size), degree_of(world_size)});
    run.micro_batch_size = 1 << pick(0, 2);
    run.step.mlp_tile_tokens = 7 * pick(0, 2);
    run.step.loss.kind =
        std::vector{ops::VocabLossKind::kTiled, ops::VocabLossKind::kRing, ops::VocabLossKind::kVocabParallel,
                    ops::VocabLossKind::kFull}[pick(0, 3)];
    run.step.loss.tile_tokens = 5 * pick(0, 2);
    run.step.loss.circulate = std::vector{ops::Circulate::kAuto, ops::Circulate::kActivations,
                                          ops::Circulate::kWeights}[pick(0, 2)];
    choose_dispatch(run.step.dispatch);
    choose_where_things_live(run);
    return run;
  }

 private:
  int64_t pick(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }

  int degree_of(int world_size) {
    if (pick(0, 1) == 0) return 1;
    return world_size == 4 && pick(0, 1) ? 2 : world_size;
  }

  void choose_dispatch(ops::DispatchOptions& dispatch) {
    dispatch.kind = std::vector{ops::DispatchKind::kEp, ops::DispatchKind::kLlep,
                                ops::DispatchKind::kPipelinedLlep}[pick(0, 2)];
    dispatch.token_budget = 1 << pick(2, 7);
    dispatch.max_chunks = pick(1, 10);
    dispatch.membership = pick(0, 1) ? ops::Membership::kStrided : ops::Membership::kContiguous;
    dispatch.tile_rows = 5 * pick(0, 2);
    auto& plan = dispatch.plan;
    plan.replan_threshold = pick(0, 1) ? 1.2 : 0;
    plan.least_loaded.imbalance_threshold = pick(0, 1) ? 1.3 : 0;
    plan.least_loaded.min_rows = pick(1, 8);
    if (pick(0, 2) == 0) plan.least_loaded.max_helpers = pick(0, 2);
  }

  void choose_where_things_live(SmallRun& run) {
    run.step.buckets = {pick(0, 1) ? 500 : 9000, pick(2, 3)};
    run.state.placement = std::vector{optim::Placement::kResident, optim::Placement::kCpu,
                                      optim::Placement::kStream}[pick(0, 2)];
    run.state.host_gradients = run.state.on_host() && pick(0, 2) > 0;
    if (pick(0, 3) == 0) {
      run.step.recompute = train::Recompute::kNone;
      return;
    }
    const int64_t row = run.seq_length * run.micro_batch_size, degree = run.layout.ulysses_degree;
    const int64_t tokens = (row + degree - 1) / degree;
    auto& offload = run.step.offload;
    if (pick(0, 2) > 0) {
      offload.boundaries = offload::BoundaryPolicy::kSco;
      offload.boundary_host_bytes = pick(0, run.model.num_hidden_layers) *
                                    memory::HostArena::aligned(tokens * run.model.hidden_size * 4);
    }
    if (pick(0, 1) == 0) return;
    for (int64_t layer = 0; layer < run.model.num_hidden_layers; ++layer) {
      offload.attention_outputs.push_back(static_cast<offload::OutputPlacement>(pick(0, 2)));
    }
    const std::vector<offload::OutputCost> costs(
        run.model.num_hidden_layers,
        offload::attention_output_cost(tokens * degree, run.model.num_attention_heads / degree,
                                       run.model.head_dim, 4));
    offload.output_host_bytes = offload::host_bytes_of(offload.attention_outputs, costs);
  }

  std::mt19937 random_;
};

std::string options_of(const SmallRun& run) {
  const auto& step = run.step;
  const auto& state = run.state;
  std::string outputs;
  for (const auto placement : step.offload.attention_outputs)
    outputs += fmt::format("{}", static_cast<int>(placement));
  return fmt::format(
      "{}, micro-batch {}, recompute {}, mlp tile {}, loss {} tile {} circulate {}, dispatch {} budget {} "
      "chunks {} "
      "membership {} tile {} replan {} λ {} m {} helpers {}, placement {} gradients {} bucket {} slots {}, "
      "boundaries {} in {} B, outputs {}",
      describe(run.layout), run.micro_batch_size, static_cast<int>(step.recompute), step.mlp_tile_tokens,
      static_cast<int>(step.loss.kind), step.loss.tile_tokens, static_cast<int>(step.loss.circulate),
      static_cast<int>(step.dispatch.kind), step.dispatch.token_budget, step.dispatch.max_chunks,
      static_cast<int>(step.dispatch.membership), step.dispatch.tile_rows,
      step.dispatch.plan.replan_threshold, step.dispatch.plan.least_loaded.imbalance_threshold,
      step.dispatch.plan.least_loaded.min_rows, step.dispatch.plan.least_loaded.max_helpers.value_or(-1),
      static_cast<int>(state.placement), state.host_gradients ? "host" : "device", step.buckets.bucket_params,
      step.buckets.slots, static_cast<int>(step.offload.boundaries), step.offload.boundary_host_bytes,
      outputs);
}

TEST(RandomOptions, DoNotChangeTheLosses) {
  RandomOptions options(20261130);
  for (int i = 0; i < 10; ++i) {
    const auto run = options.next();
    EXPECT_NO_THROW(expect_follows(run, kSteps, options_of(run))) << options_of(run);
  }
}

}  // namespace
}  // namespace steppe::testing
