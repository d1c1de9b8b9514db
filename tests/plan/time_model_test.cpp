#include "steppe/plan/time_model.h"

#include <gtest/gtest.h>

#include "steppe/plan/plan.h"
#include "tests/plan/planned_run.h"

namespace steppe::plan {
namespace {

constexpr auto kUp = LinkDirection::kHostToDevice, kDown = LinkDirection::kDeviceToHost;

// Round figures, eight ranks a node.
Hardware machine() {
  Hardware hardware;
  hardware.name = "test", hardware.ranks_per_node = 8;
  hardware.flops_per_s = 1e15, hardware.wire_bytes_per_s = 50e9, hardware.node_bytes_per_s = 400e9;
  hardware.link_bytes_per_s = 50e9, hardware.host_bytes_per_s = 800e9;
  return hardware;
}

const layout::LayoutConfig kLayout{16, 1, 8, 1};

StepTime time_of(const StepWork& work, const Hardware& hardware = machine()) {
  return step_time(work, kLayout, hardware);
}

TEST(TimeModel, ExchangesWithinANodeAreQuicker) {
  StepWork work;
  work.passes.wire_bytes[WirePurpose::kDispatch] = 1'000'000'000;
  const auto near = step_time(work, {16, 1, 8, 1}, machine());
  const auto far = step_time(work, {16, 1, 16, 1}, machine());
  EXPECT_DOUBLE_EQ(far.total() / near.total(), 8);
  EXPECT_DOUBLE_EQ(far.passes, 0.5 * 1e9 / (0.7 * 50e9));  // half is hidden
}

TEST(TimeModel, WhatRunsBesideThePassesCostsNothingUntilItIsTheLongest) {
  StepWork work;
  work.passes.flops[FlopKind::kDense] = 400'000'000'000'000;  // a second
  work.passes.link_bytes[kUp].add(LinkPurpose::kBoundary, 39'000'000'000);
  work.passes.wire_bytes[WirePurpose::kWeights] = 34'000'000'000;
  EXPECT_DOUBLE_EQ(time_of(work).total(), 1);
  auto more_link = work;
  more_link.passes.link_bytes[kUp].add(LinkPurpose::kSaved, 9'000'000'000);  // 48 of 40 a second
  EXPECT_DOUBLE_EQ(time_of(more_link).total(), 1.2);
  auto more_wire = work;
  more_wire.passes.wire_bytes[WirePurpose::kGradients] = 36'000'000'000;  // 70 of 35 a second
  EXPECT_DOUBLE_EQ(time_of(more_wire).total(), 2);
}

TEST(TimeModel, SumsOverReplicasAndTheUpdateWait) {
  StepWork work;
  work.passes.flops[FlopKind::kDense] = 400'000'000'000'000;
  work.passes.wire_bytes[WirePurpose::kReplicas] = 35'000'000'000;
  work.update.link_bytes[kDown].add(LinkPurpose::kOptimizer, 40'000'000'000);
  const auto time = time_of(work);
  EXPECT_DOUBLE_EQ(time.passes, 1);
  EXPECT_DOUBLE_EQ(time.replicas, 1);
  EXPECT_DOUBLE_EQ(time.update, 1);
}

// Each way it is the link's, but all ranks of a node meet in its memory.
TEST(TimeModel, RanksOfANodeShareItsMemory) {
  StepWork work;
  for (const auto way : {kUp, kDown})
    work.update.link_bytes[way].add(LinkPurpose::kOptimizer, 40'000'000'000);
  EXPECT_DOUBLE_EQ(time_of(work).update, 8 * 80e9 / (0.5 * 800e9));
  auto alone = machine();
  alone.ranks_per_node = 1;
  EXPECT_DOUBLE_EQ(time_of(work, alone).update, 1);
}

TEST(TimeModel, AHostThatUpdatesMovesTwentyEightBytesAParameter) {
  recipe::OptimizerSection optimizer;
  optimizer.placement = "cpu";
  EXPECT_EQ(host_update_bytes(optimizer, 1000, 4), 28'000);
  EXPECT_EQ(host_update_bytes(optimizer, 1000, 2), 26'000);
  optimizer.moments_dtype = "bfloat16";
  EXPECT_EQ(host_update_bytes(optimizer, 1000, 4), 20'000);
  optimizer.placement = "stream";
  EXPECT_EQ(host_update_bytes(optimizer, 1000, 4), 0);
}

// Where a node's memory is shared by many, what moves least through it wins; a host of one's own behind a
// slow link updates quicker than the link streams.
TEST(TimeModel, StreamOrCpuIsAMatterOfLinkAndHost) {
  const auto seconds = [](const char* placement, const Hardware& hardware) {
    recipe::OptimizerSection optimizer;
    optimizer.placement = placement;
    return time_of(update_work(optimizer, 1'000'000'000, {}), hardware).update;
  };
  EXPECT_LT(seconds("stream", machine()), seconds("cpu", machine()));
  EXPECT_DOUBLE_EQ(seconds("cpu", machine()) / seconds("stream", machine()), 34.0 / 24.0);
  auto alone = machine();
  alone.ranks_per_node = 1, alone.link_bytes_per_s = 10e9;
  EXPECT_DOUBLE_EQ(seconds("stream", alone), 12 / 8.0);
  EXPECT_DOUBLE_EQ(seconds("cpu", alone), 4 / 8.0);
}

// The plan's seconds hold what the formula says of the update.
TEST(TimeModel, PlansCountTheUpdateByItsPlacement) {
  const auto plan_with = [](const char* placement) {
    const testing::PlannedRun planned{"",
                                      2,
                                      {"model.compute_dtype=bfloat16", "hardware.preset=H200",
                                       std::string("optimizer.placement=") + placement}};
    const auto run = testing::small_recipe(planned);
    const auto made = make_plan(run, {.world_size = 2});
    const int64_t params = made.rank.update.flops[FlopKind::kOptimizer] / 16;
    EXPECT_GT(params, 10'000);
    const auto by_formula =
        step_time(update_work(run.optimizer, params, {}), made.layout, made.hardware).update;
    return std::pair(made.step_seconds, by_formula);
  };
  const auto [resident, nothing] = plan_with("resident");
  EXPECT_EQ(nothing, 0);
  for (const char* placement : {"stream", "cpu"}) {
    const auto [seconds, update] = plan_with(placement);
    EXPECT_NEAR(seconds - resident, update, update / 50) << placement;
  }
}

}  // namespace
}  // namespace steppe::plan
