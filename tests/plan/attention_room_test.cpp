// The room for kept attention outputs: what the machine has beyond the run without them.
#include "steppe/plan/attention_room.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "steppe/offload/attention_outputs.h"
#include "steppe/plan/advice.h"
#include "steppe/plan/limits.h"
#include "steppe/plan/plan.h"
#include "tests/plan/planned_run.h"

namespace steppe::testing {
namespace {

constexpr int64_t kLayers = 6, kTokens = 4096, kHeads = 12, kHeadDim = 16;

// On accelerators of so many bytes beyond what no tensor has, and what their allocators lose.
recipe::RunConfig selective(int64_t tensors, std::vector<std::string> more = {}) {
  const int64_t usable = (int64_t{2} << 30) + tensors;
  PlannedRun run{"",
                 2,
                 {"activation_checkpoint.mode=selective", "hardware.preset=H200", "hardware.ranks_per_node=2",
                  fmt::format("model.num_hidden_layers={}", kLayers), "parallelism.ulysses_degree=2",
                  fmt::format("training.seq_length={}", kTokens), "model.compute_dtype=bfloat16",
                  fmt::format("hardware.device_memory=\"{}B\"", usable + usable / 49)}};
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
      ASSERT_TRUE(made.attention_output_bytes);
      EXPECT_EQ(made.attention_output_bytes->device_bytes, count * output_bytes() + more);
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
  const int64_t base = peak_without();
  const auto keeps_none = [](const plan::Plan& made) {
    EXPECT_EQ(made.attention_output_bytes->device_bytes, 0);
    EXPECT_TRUE(made.kept.starts_with(on_device(0))) << made.kept;
  };
  const auto fits = plan::make_plan(selective(base - 1), {.world_size = 2});
  EXPECT_TRUE(fits.fits) << fits.verdict;  // in what outputs leave to the allocator
  keeps_none(fits);
  const auto does_not = plan::make_plan(
      selective(0, {fmt::format("hardware.device_memory=\"{}B\"", (int64_t{2} << 30) + base - 1)}),
      {.world_size = 2});
  EXPECT_FALSE(does_not.fits);
  keeps_none(does_not);
}

// More device than anybody needs, in a node of a CPU's memory.
recipe::RunConfig in_a_node_of(int64_t bytes, const std::string& mode) {
  return small_recipe(
      {"",
       2,
       {"activation_checkpoint.mode=" + mode, fmt::format("model.num_hidden_layers={}", kLayers),
        "parallelism.ulysses_degree=2", fmt::format("training.seq_length={}", kTokens),
        "model.compute_dtype=bfloat16", "checkpoint.async=false", "hardware.device_memory=\"1TiB\"",
        "hardware.ranks_per_node=2", fmt::format("hardware.host_memory=\"{}B\"", bytes)}});
}

int64_t node_needs(const recipe::RunConfig& run) {
  const auto made = plan::make_plan(run, {.world_size = 2});
  return plan::needs_of(plan::limits_of(made.hardware, run.hardware), made.rank.device.bytes,
                        made.host_bytes_per_node)
      .node;
}

TEST(AttentionRoom, OutputsOnWhatStandsForADeviceFitIntoTheNode) {
  const int64_t base = node_needs(in_a_node_of(int64_t{1} << 42, "full"));
  for (int64_t count = 0; count <= kLayers; ++count) {
    const auto made = plan::make_plan(in_a_node_of(base + 2 * (count * output_bytes() + 9), "selective"),
                                      {.world_size = 2});
    EXPECT_TRUE(made.fits) << made.verdict;
    EXPECT_TRUE(made.kept.starts_with(on_device(count))) << made.kept;
  }
}

TEST(AttentionRoom, WhereANodeIsShortRecomputingIsProposed) {
  const auto run = in_a_node_of(node_needs(in_a_node_of(int64_t{1} << 42, "full")), "none");
  const auto made = plan::make_plan(run, {.world_size = 2});
  ASSERT_FALSE(made.fits);
  const auto advice = plan::advise(run, made, {.world_size = 2});
  EXPECT_TRUE(advice.is_enough) << advice.text;
  EXPECT_EQ(advice.changes, std::vector<std::string>{"activation_checkpoint.mode = \"full\""});
}

int64_t output_host_bytes() {
  return offload::attention_output_cost(kTokens, kHeads / 2, kHeadDim, 2).host_bytes;
}

std::string on_host(int64_t count) {
  return fmt::format(", {} in host memory", count);
}

// Of a device with room for three: all three stay, until one that stays and those that fit into the node are
// more.
TEST(AttentionRoom, AsManyTravelAsTheNodeHasRoomFor) {
  const std::vector<std::string> sco = {"offload.activations=sco", "offload.host_budget=\"1GiB\"",
                                        "checkpoint.async=false"};
  const int64_t base = peak_without(sco);
  auto full = sco;
  full.emplace_back("activation_checkpoint.mode=full");
  const int64_t node = node_needs(selective(base, full));
  for (int64_t fitting = 0; fitting < kLayers; ++fitting) {
    for (const int64_t more : {int64_t{0}, output_host_bytes() - 1}) {
      auto limited = sco;
      limited.push_back(
          fmt::format("hardware.host_memory=\"{}B\"", node + 2 * (fitting * output_host_bytes() + more)));
      const auto run = selective(base + 3 * output_bytes(), limited);
      const auto made = plan::make_plan(run, {.world_size = 2});
      const bool travels = 1 + fitting > 3;
      EXPECT_TRUE(made.fits) << made.verdict;
      EXPECT_NE(made.kept.find(on_device(travels ? 1 : 3)), std::string::npos) << fitting << made.kept;
      EXPECT_NE(made.kept.find(on_host(travels ? fitting : 0)), std::string::npos) << fitting << made.kept;
      EXPECT_EQ(node_needs(run), node + (travels ? 2 * fitting * output_host_bytes() : 0));
      EXPECT_LE(made.rank.device.bytes, base + 3 * output_bytes());
    }
  }
}

// Two on their way, one that stays, and two of the other four in host memory.
TEST(AttentionRoom, ARunKeepsWhatAShortNodeHasRoomFor) {
  PlannedRun planned{
      "",
      2,
      {"activation_checkpoint.mode=selective", "offload.activations=sco", "offload.host_budget=\"10MiB\"",
       "parallelism.ulysses_degree=2", "model.num_hidden_layers=5"}};
  const auto run = small_recipe(planned);
  const auto cost = offload::attention_output_cost(100, kHeads / 2, kHeadDim, 4);
  planned.attention_output_bytes = {3 * cost.device_bytes, 3 * cost.host_bytes + cost.host_bytes - 1};
  const auto dry = plan::dry_run_all(run, planned.options());
  const auto real = real_run(run, planned);
  auto unlimited = planned;
  unlimited.attention_output_bytes->host_bytes = int64_t{1} << 40;
  const auto all = plan::dry_run_all(run, unlimited.options());
  for (int rank = 0; rank < planned.world_size; ++rank) {
    EXPECT_EQ(dry[rank].device.bytes, real[rank].device.bytes);
    EXPECT_EQ(dry[rank].device.by_category, real[rank].device.by_category);
    EXPECT_EQ(dry[rank].host.bytes, real[rank].host.bytes);
    EXPECT_EQ(dry[rank].counters.link_bytes, real[rank].counters.link_bytes);
    EXPECT_EQ(all[rank].host.bytes - dry[rank].host.bytes, cost.host_bytes);
  }
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
    if (made.attention_output_bytes->device_bytes == 0) continue;
    EXPECT_TRUE(made.fits) << made.verdict << ", " << made.kept;
    ++kept;
  }
  EXPECT_GT(kept, 5);
}

}  // namespace
}  // namespace steppe::testing
