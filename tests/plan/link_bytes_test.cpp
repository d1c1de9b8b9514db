// Bytes over the host link against formulas, from dry runs (whose counters are the real run's:
// dry_run_test.cpp).
#include <gtest/gtest.h>

#include "steppe/model/hugging_face_config.h"
#include "steppe/plan/time_model.h"
#include "tests/plan/planned_run.h"

namespace steppe::testing {
namespace {

constexpr auto kUp = LinkDirection::kHostToDevice, kDown = LinkDirection::kDeviceToHost;

struct Sums {
  Counters passes, update;
  int64_t params = 0;  // of the model
};

// Over all ranks.
Sums sums_of(const PlannedRun& planned) {
  const auto run = small_recipe(planned);
  Sums sums;
  sums.params = model::model_config(run.model).num_parameters();
  for (const auto& rank : plan::dry_run_all(run, {.world_size = planned.world_size})) {
    sums.passes += rank.counters;
    sums.passes -= rank.update;
    sums.update += rank.update;
  }
  return sums;
}

// Of sizes that need no padding; `more` last.
PlannedRun layout(int world_size, std::vector<std::string> more, bool bf16 = true) {
  PlannedRun run{
      "",
      world_size,
      {"parallelism.expert_parallel_degree=" + std::to_string(world_size), "optimizer.bucket_params=7777",
       "training.seq_length=64", "model.hidden_size=64", "model.vocab_size=128", "model.qk_norm=none"}};
  if (bf16) run.overrides.emplace_back("model.compute_dtype=bfloat16");
  run.overrides.insert(run.overrides.end(), more.begin(), more.end());
  return run;
}

TEST(LinkBytes, NothingLeavesTheDeviceOfAResidentRun) {
  const auto sums = sums_of(layout(2, {}));
  EXPECT_EQ(sums.passes.link_bytes[kDown].sum() + sums.update.link_bytes[kDown].sum(), 0);
  const auto up = sums.passes.link_bytes[kUp];
  EXPECT_GT(up[LinkPurpose::kControl], 0);  // tokens, targets, positions, indices
  EXPECT_EQ(up.sum(), up[LinkPurpose::kControl]);
}

// Every parameter has one owner, whatever the layout.
TEST(LinkBytes, StreamedAdamWMovesTwelveBytesAParameterEachWay) {
  for (const int world_size : {1, 2, 4}) {
    for (const char* expert : {"1", "2", "4"}) {
      if (world_size % (expert[0] - '0') != 0) continue;
      auto planned = layout(world_size, {"optimizer.placement=stream"});
      planned.overrides.push_back(std::string("parallelism.expert_parallel_degree=") + expert);
      const auto sums = sums_of(planned);
      EXPECT_EQ(sums.update.link_bytes[kUp][LinkPurpose::kOptimizer], 12 * sums.params);
      EXPECT_EQ(sums.update.link_bytes[kDown][LinkPurpose::kOptimizer], 12 * sums.params);
      EXPECT_EQ(sums.update.link_bytes[kDown].sum(), 12 * sums.params);
      EXPECT_EQ(sums.update.link_bytes[kUp][LinkPurpose::kGradients], 0);
    }
  }
}

TEST(LinkBytes, MastersThatAreWorkingWeightsAndNarrowMomentsAreNotSent) {
  const auto fp32 = sums_of(layout(2, {"optimizer.placement=stream"}, /*bf16=*/false));
  EXPECT_EQ(fp32.update.link_bytes[kUp][LinkPurpose::kOptimizer], 8 * fp32.params);
  EXPECT_EQ(fp32.update.link_bytes[kDown][LinkPurpose::kOptimizer], 8 * fp32.params);
  const auto narrow = sums_of(layout(2, {"optimizer.placement=stream", "optimizer.moments_dtype=bfloat16"}));
  EXPECT_EQ(narrow.update.link_bytes[kUp][LinkPurpose::kOptimizer], 8 * narrow.params);
}

TEST(LinkBytes, FrozenParametersStay) {
  auto planned = layout(2, {"optimizer.placement=stream", "optimizer.freeze=[\"lm_head.weight\"]"});
  const auto sums = sums_of(planned);
  const auto config = model::model_config(small_recipe(planned).model);
  const int64_t head = config.vocab_size * config.hidden_size;
  EXPECT_EQ(sums.update.link_bytes[kUp][LinkPurpose::kOptimizer], 12 * (sums.params - head));
}

TEST(LinkBytes, AnUpdateOnTheHostTakesGradientsAndGivesWeights) {
  for (const bool bf16 : {true, false}) {
    const auto sums = sums_of(layout(2, {"optimizer.placement=cpu"}, bf16));
    EXPECT_EQ(sums.update.link_bytes[kDown].sum(), 4 * sums.params);
    EXPECT_EQ(sums.update.link_bytes[kDown][LinkPurpose::kGradients], 4 * sums.params);
    EXPECT_EQ(sums.update.link_bytes[kUp][LinkPurpose::kWeights], (bf16 ? 2 : 4) * sums.params);
  }
}

// Down once a micro-batch, up once for every one but the first: the accumulators of all that a rank holds
// (with E_p = P = W each parameter once); the last time the owned part alone. Half as many in bf16.
TEST(LinkBytes, GradientsOnTheHostTravelOnceAMicroBatch) {
  for (const auto& [dtype, bytes] : {std::pair{"float32", 4}, {"bfloat16", 2}}) {
    for (const int64_t micro_batches : {1, 2, 5}) {
      const auto sums = sums_of(
          layout(2, {"optimizer.placement=stream", "optimizer.gradients=host",
                     "parallelism.vocab_parallel_degree=2", std::string("training.gradient_dtype=") + dtype,
                     "training.global_batch_size=" + std::to_string(2 * micro_batches)}));
      const int64_t once = bytes * sums.params;
      EXPECT_EQ(sums.passes.link_bytes[kDown][LinkPurpose::kGradients], once * micro_batches);
      EXPECT_EQ(sums.passes.link_bytes[kUp][LinkPurpose::kGradients], once * (micro_batches - 1));
      EXPECT_EQ(sums.update.link_bytes[kUp][LinkPurpose::kGradients], once);
    }
  }
}

// Gradients of experts and vocabulary shards go to their owners in the accumulators' dtype, and working
// weights come back.
TEST(LinkBytes, SumsOverReplicasSendWhatIsStored) {
  const auto sent = [](const char* dtype) {
    const auto sums = sums_of(
        layout(2, {std::string("training.gradient_dtype=") + dtype, "parallelism.expert_parallel_degree=1"}));
    return std::pair{sums.passes.wire_bytes[WirePurpose::kReplicas],
                     sums.update.wire_bytes[WirePurpose::kReplicas]};
  };
  const auto [wide, refreshed] = sent("float32");
  EXPECT_GT(wide, 0);
  EXPECT_EQ(sent("bfloat16"), std::pair(wide / 2, refreshed));
}

TEST(LinkBytes, BoundariesGoAndComeOnceAMicroBatch) {
  constexpr int64_t kTokens = 4 * 64, kWidth = 64, kLayers = 3;  // four sequences a step
  for (const int64_t micro_batch : {1, 2}) {
    const auto sums = sums_of(layout(2, {"offload.activations=all", "offload.host_budget=\"10MiB\"",
                                         "training.micro_batch_size=" + std::to_string(micro_batch)}));
    for (const auto way : {kUp, kDown}) {
      EXPECT_EQ(sums.passes.link_bytes[way][LinkPurpose::kBoundary], kLayers * kTokens * kWidth * 2);
      EXPECT_EQ(sums.passes.link_bytes[way][LinkPurpose::kSaved], 0);
      EXPECT_EQ(sums.update.link_bytes[way][LinkPurpose::kBoundary], 0);
    }
  }
}

TEST(LinkBytes, ABudgetSendsAsManyBoundariesAsItHolds) {
  constexpr int64_t kOne = 64 * 64 * 2;  // of a layer and sequence; a rank has one sequence at a time
  for (const int64_t layers : {0, 1, 2}) {
    const auto sums =
        sums_of(layout(2, {"offload.activations=sco",
                           "offload.host_budget=" + std::to_string(2 * (layers * kOne + kOne / 2))}));
    for (const auto way : {kUp, kDown}) {
      EXPECT_EQ(sums.passes.link_bytes[way][LinkPurpose::kBoundary], layers * 4 * kOne);
    }
  }
}

TEST(LinkBytes, AttentionOutputsGoWithTheirLogSumExp) {
  constexpr int64_t kTokens = 4 * 64, kHeads = 12, kHeadDim = 16, kLayers = 3;
  const auto sums = sums_of(layout(2, {"offload.activations=sco", "offload.host_budget=\"100MiB\"",
                                       "activation_checkpoint.mode=selective"}));
  for (const auto way : {kUp, kDown}) {
    EXPECT_EQ(sums.passes.link_bytes[way][LinkPurpose::kSaved],
              kLayers * kTokens * kHeads * (kHeadDim * 2 + 4));
  }
}

// What the search compares placements by is what a dry run counts.
TEST(LinkBytes, OfAnUpdateByFormulaAreThoseCounted) {
  for (const auto& [bf16, narrow] : {std::pair{true, false}, {true, true}, {false, false}}) {
    for (const char* placement : {"resident", "cpu", "stream"}) {
      for (const char* gradients : {"device", "host"}) {
        if (placement[0] == 'r' && gradients[0] == 'h') continue;
        const auto planned =
            layout(2,
                   {std::string("optimizer.placement=") + placement,
                    std::string("optimizer.gradients=") + gradients, "router.load_balancing=none",
                    std::string("training.gradient_dtype=") + (narrow ? "bfloat16" : "float32")},
                   bf16);
        const auto run = small_recipe(planned);
        const auto sums = sums_of(planned);
        const auto by_formula = plan::update_work(run.optimizer, sums.params, {bf16 ? 2 : 4, narrow ? 2 : 4});
        EXPECT_EQ(by_formula.update.link_bytes, sums.update.link_bytes) << placement << " " << gradients;
        EXPECT_EQ(sums.update.flops[FlopKind::kOptimizer], 16 * sums.params);
      }
    }
  }
}

}  // namespace
}  // namespace steppe::testing
