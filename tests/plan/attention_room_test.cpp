// The room for kept attention outputs: what the machine has beyond the run without them.
#include "steppe/plan/attention_room.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "steppe/offload/attention_outputs.h"
#include "steppe/plan/plan.h"
#include "tests/plan/planned_run.h"

namespace steppe::testing {
namespace {

constexpr int64_t kLayers = 6, kTokens = 4096, kHeads = 12, kHeadDim = 16;

// On accelerators of so many bytes beyond what no tensor has.
recipe::RunConfig selective(int64_t tensors, std::vector<std::string> more = {}) {
  PlannedRun run{"",
                 2,
                 {"activation_checkpoint.mode=selective", "hardware.preset=H200", "hardware.ranks_per_node=2",
                  fmt::format("model.num_hidden_layers={}", kLayers), "parallelism.ulysses_degree=2",
                  fmt::format("training.seq_length={}", kTokens), "model.compute_dtype=bfloat16",
                  fmt::format("hardware.device_memory=\"{}B\"", (int64_t{2} << 30) + tensors)}};
  run.overrides.insert(run.overrides.end(), more.begin(), more.end());
  return small_recipe(run);
}

int64_t output_bytes() {
  return offload::attention_output_cost(kTokens, kHeads / 2, kHeadDim, 2).device_bytes;
}

int64_t peak_without(std::vector<std::string> more = {}) {
  more.emplace_back("activation_checkpoint.mode=full");
  return plan::make_plan(selective(int64_t{1} << 40, more), {.world_size = 2}).rank.device.bytes;
}

std::string on_device(int64_t count) {
  return fmt::format("attention outputs: {} of {} layers on the device", count, kLayers);
}

TEST(AttentionRoom, AsManyStayAsTheMachineHasRoomFor) {
  const int64_t base = peak_without();
  for (int64_t count = 0; count <= kLayers; ++count) {
    for (const int64_t more : {int64_t{0}, output_bytes() - 1}) {
      const auto made = plan::make_plan(selective(base + count * output_bytes() + more), {.world_size = 2});
      EXPECT_TRUE(made.fits) << made.verdict;
      EXPECT_EQ(made.attention_output_bytes, count * output_bytes() + more);
      EXPECT_TRUE(made.kept.starts_with(on_device(count))) << made.kept;
      EXPECT_NE(made.kept.find(fmt::format("{} recomputed", kLayers - count)), std::string::npos)
          << made.kept;
      EXPECT_LE(made.rank.device.bytes, base + count * output_bytes());
    }
  }
}

TEST(AttentionRoom, TextAndJsonSayWhatIsKept) {
  const auto run = selective(peak_without() + 3 * output_bytes());
  const auto made = plan::make_plan(run, {.world_size = 2});
  EXPECT_NE(plan::plan_text(run, made).find(on_device(3)), std::string::npos);
  EXPECT_NE(plan::plan_json(run, made).find(made.kept), std::string::npos);
  for (const auto& options : {plan::PlanOptions{.world_size = 2, .rank = 1},
                              plan::PlanOptions{.world_size = 2, .all_ranks = true}}) {
    EXPECT_EQ(plan::make_plan(run, options).kept, made.kept);  // whichever rank is looked at
  }
}

TEST(AttentionRoom, OthersTravelWhereTheHostHasABudget) {
  const std::vector<std::string> sco = {"offload.activations=sco", "offload.host_budget=\"1GiB\""};
  const int64_t base = peak_without(sco);
  // Two on their way beside one that stays; without that much room nobody travels.
  const auto three = plan::make_plan(selective(base + 3 * output_bytes(), sco), {.world_size = 2});
  EXPECT_TRUE(three.fits) << three.verdict;
  EXPECT_NE(three.kept.find(on_device(1)), std::string::npos) << three.kept;
  EXPECT_NE(three.kept.find("5 in host memory"), std::string::npos) << three.kept;
  EXPECT_LE(three.rank.device.bytes, base + 3 * output_bytes());
  const auto one = plan::make_plan(selective(base + 2 * output_bytes() - 1, sco), {.world_size = 2});
  EXPECT_TRUE(one.fits) << one.verdict;
  EXPECT_NE(one.kept.find(on_device(1)), std::string::npos) << one.kept;
  EXPECT_NE(one.kept.find("0 in host memory"), std::string::npos) << one.kept;
}

TEST(AttentionRoom, ARunThatDoesNotFitKeepsNone) {
  const auto made = plan::make_plan(selective(peak_without() - 1), {.world_size = 2});
  EXPECT_FALSE(made.fits);
  EXPECT_EQ(made.attention_output_bytes, 0);
  EXPECT_TRUE(made.kept.starts_with(on_device(0))) << made.kept;
}

TEST(AttentionRoom, OnACpuHostMemoryIsTheSame) {
  const std::vector<std::string> sco = {"offload.activations=sco", "offload.host_budget=\"6MiB\""};
  const auto with_memory = [&](int64_t bytes) {
    PlannedRun run{"",
                   1,
                   {"activation_checkpoint.mode=selective", fmt::format("training.seq_length={}", kTokens),
                    fmt::format("hardware.host_memory=\"{}B\"", bytes)}};
    run.overrides.insert(run.overrides.end(), sco.begin(), sco.end());
    return plan::make_plan(small_recipe(run), {});
  };
  const auto roomy = with_memory(int64_t{8} << 30);
  const int64_t needed = roomy.device_bytes + roomy.host_bytes_per_node;
  // From the least that fits upwards, whatever is chosen fits.
  int64_t kept = 0;
  for (int64_t bytes = needed - (int64_t{24} << 20); bytes <= needed; bytes += int64_t{512} << 10) {
    const auto made = with_memory(bytes);
    if (made.attention_output_bytes == 0) continue;
    EXPECT_TRUE(made.fits) << made.verdict << ", " << made.kept;
    ++kept;
  }
  EXPECT_GT(kept, 5);
}

}  // namespace
}  // namespace steppe::testing
