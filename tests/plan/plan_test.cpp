#include "steppe/plan/plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "steppe/base/error.h"
#include "steppe/plan/advice.h"
#include "steppe/plan/search.h"
#include "tests/plan/planned_run.h"

namespace steppe::testing {
namespace {

using plan::PlanOptions;

// A model of a few hundred million parameters on devices of a size of their own.
PlannedRun medium(int world_size, std::vector<std::string> more = {}) {
  PlannedRun run{"",
                 world_size,
                 {"model.hidden_size=1024", "model.num_attention_heads=16", "model.head_dim=64",
                  "model.num_key_value_heads=8", "model.vocab_size=32000", "model.num_hidden_layers=6",
                  "model.moe_intermediate_size=512", "model.compute_dtype=bfloat16",
                  "training.seq_length=4096", "training.global_batch_size=8", "hardware.preset=H200"}};
  run.overrides.insert(run.overrides.end(), more.begin(), more.end());
  return run;
}

std::string with_memory(int64_t mebibytes) {
  return "hardware.device_memory=\"" + std::to_string(2048 + mebibytes) + "MiB\"";  // 2 GiB are reserved
}

TEST(Plan, SaysByHowMuchItFits) {
  const auto run = small_recipe(medium(8));
  const auto made = plan::make_plan(run, {.world_size = 8});
  EXPECT_TRUE(made.fits);
  EXPECT_TRUE(made.verdict.starts_with("fits: ")) << made.verdict;
  EXPECT_GT(made.rank.device.bytes, int64_t{100} << 20);
  EXPECT_EQ(made.device_bytes, made.rank.device.bytes + made.reserved_bytes);
  EXPECT_GE(made.budget.expected(), made.rank.device.bytes);
  EXPECT_GT(made.step_seconds, 0);
}

TEST(Plan, NamesWhatMakesThePeakAndWhatToChange) {
  // Full logits are most of it.
  const auto run = small_recipe(medium(8, {with_memory(300), "loss.kind=full", "training.seq_length=16384"}));
  const auto made = plan::make_plan(run, {.world_size = 8});
  EXPECT_FALSE(made.fits);
  EXPECT_NE(made.verdict.find("vocab"), std::string::npos) << made.verdict;
  EXPECT_NE(made.verdict.find("loss.kind = \"tiled\""), std::string::npos) << made.verdict;
  EXPECT_NE(made.verdict.find("vocabulary loss"), std::string::npos) << made.verdict;
}

TEST(Plan, HoldsHostMemoryAgainstTheNode) {
  auto planned = medium(8, {"optimizer.placement=stream", "hardware.host_memory=\"100MiB\""});
  const auto made = plan::make_plan(small_recipe(planned), {.world_size = 8});
  EXPECT_FALSE(made.fits);
  EXPECT_NE(made.verdict.find("host memory"), std::string::npos) << made.verdict;
  EXPECT_GT(made.host_bytes_per_node, int64_t{100} << 20);
}

TEST(Plan, HostBudgetIsTheDryRuns) {
  for (const char* placement : {"cpu", "stream"}) {
    for (const char* gradients : {"device", "host"}) {
      const auto run = small_recipe(
          medium(4, {std::string("optimizer.placement=") + placement,
                     std::string("optimizer.gradients=") + gradients, "optimizer.bucket_params=1000000"}));
      const auto made = plan::make_plan(run, {.world_size = 4});
      EXPECT_GE(made.budget.host.expected(), made.rank.host.bytes);
      EXPECT_LE(made.budget.host.expected(), made.rank.host.bytes * 11 / 10);
    }
  }
}

TEST(Plan, CountsTheSnapshotThatACheckpointsBudgetHolds) {
  const auto plain = plan::make_plan(small_recipe(medium(4, {"checkpoint.async=false"})), {.world_size = 4});
  const auto automatic = plan::make_plan(small_recipe(medium(4)), {.world_size = 4});
  const auto roomy =
      plan::make_plan(small_recipe(medium(4, {"checkpoint.host_budget=\"100GiB\""})), {.world_size = 4});
  const auto tight =
      plan::make_plan(small_recipe(medium(4, {"checkpoint.host_budget=\"1MiB\""})), {.world_size = 4});
  const auto state = plain.rank.persistent[static_cast<int>(memory::Category::kOptimizer)];
  EXPECT_EQ(plain.host_bytes_per_node, 0);
  EXPECT_GE(roomy.host_bytes_per_node, 4 * state);
  EXPECT_LE(roomy.host_bytes_per_node, 4 * state * 101 / 100);
  EXPECT_EQ(tight.host_bytes_per_node, 0);
  EXPECT_EQ(automatic.host_bytes_per_node, roomy.host_bytes_per_node);
  // A node that holds the run and once the copy: half of what the run leaves does not hold it.
  const int64_t host_memory = 4 * state + (plain.hardware.is_accelerator ? 0 : 4 * plain.device_bytes);
  const auto full = plan::make_plan(
      small_recipe(medium(4, {fmt::format("hardware.host_memory=\"{}B\"", host_memory)})), {.world_size = 4});
  EXPECT_EQ(full.host_bytes_per_node, 0);
}

TEST(Plan, JsonHasTheFiguresOfTheText) {
  const auto run = small_recipe(medium(2, {"parallelism.expert_parallel_degree=2"}));
  const auto made = plan::make_plan(run, {.world_size = 2, .record_timeline = true});
  const auto json = nlohmann::json::parse(plan::plan_json(run, made));
  EXPECT_EQ(json["fits"], made.fits);
  EXPECT_EQ(json["peak_bytes"], made.rank.device.bytes);
  EXPECT_EQ(json["expected_bytes"], made.budget.expected());
  EXPECT_EQ(json["guaranteed_bytes"], made.budget.guaranteed());
  EXPECT_EQ(json["host_bytes"], made.host_bytes_per_node);
  int64_t sum = 0;
  for (const auto& [category, bytes] : json["by_category"].items()) sum += bytes.get<int64_t>();
  EXPECT_EQ(sum, made.rank.device.bytes);
  EXPECT_GT(json["terms"].size(), 3u);
  EXPECT_NE(plan::plan_text(run, made).find(made.rank.device.mark), std::string::npos);

  // The timeline, followed from its start, has the peak.
  const auto timeline = nlohmann::json::parse(made.rank.timeline);
  int64_t peak = 0;
  for (const auto& event : timeline["events"]) {
    if (event[2] == 0) peak = std::max(peak, event[3].get<int64_t>());
  }
  EXPECT_EQ(peak, made.rank.device.bytes);
}

TEST(Plan, RefusesWhatCannotBe) {
  const auto run = small_recipe(medium(3, {"parallelism.expert_parallel_degree=2"}));
  EXPECT_THROW(plan::make_plan(run, {.world_size = 3}), ValueError);
  EXPECT_THROW(plan::make_plan(small_recipe(medium(2)), {.world_size = 2, .rank = 2}), ValueError);
  EXPECT_THROW(plan::make_plan(small_recipe(medium(1, {"plan.routing_profile=50-4"})), {}), ValueError);
}

// On a CPU nothing moves to the host for room.
TEST(Advice, NamesALengthThatFitsHoweverShort) {
  const auto run_of = [](int64_t length, const char* mode, const std::string& host_memory) {
    return small_recipe(medium(1, {fmt::format("training.seq_length={}", length), "checkpoint.async=false",
                                   fmt::format("activation_checkpoint.mode={}", mode), "loss.kind=tiled",
                                   "dispatch.kind=pipelined_llep", "hardware.preset=auto",
                                   "hardware.host_memory=\"" + host_memory + "\""}));
  };
  const auto advice_of = [&](int64_t length, const char* mode, int64_t memory) {
    const auto run = run_of(length, mode, std::to_string(memory) + "B");
    const auto made = plan::make_plan(run, {});
    EXPECT_FALSE(made.fits);
    return plan::advise(run, made, {}).text;
  };
  for (const auto& [given, least] : {std::pair<int64_t, int64_t>{8192, 4096}, {1000, 300}}) {
    const auto fitting = plan::make_plan(run_of(least, "full", "1TiB"), {});
    const auto memory = fitting.budget.expected() + fitting.reserved_bytes;
    const auto text = advice_of(given, "selective", memory);
    const std::string words = "training.seq_length = ";
    ASSERT_NE(text.find(words), std::string::npos) << text;
    const int64_t length = std::stoll(text.substr(text.find(words) + words.size()));
    EXPECT_GT(length, 0) << text;
    EXPECT_LT(length, given) << text;
    const auto shorter = run_of(length, "selective", std::to_string(memory) + "B");
    EXPECT_TRUE(plan::make_plan(shorter, {}).fits) << text;
    EXPECT_NE(advice_of(given, "full", memory).find(words + std::to_string(length) + " would fit"),
              std::string::npos)
        << text;
  }
}

TEST(Search, LongestContextFitsAndALongerOneDoesNot) {
  const auto run = small_recipe(
      medium(4, {"parallelism.ulysses_degree=4", "parallelism.expert_parallel_degree=4", with_memory(2000)}));
  const auto found = plan::longest_context(run, {.world_size = 4}, 1024);
  EXPECT_TRUE(found.plan.fits);
  const int64_t length = found.run.training.seq_length;
  EXPECT_GE(length, 4096);
  EXPECT_EQ(found.changes.front(), "training.seq_length = " + std::to_string(length));
  auto longer = found.run;
  longer.training.seq_length += length / 64 + 1024;
  EXPECT_FALSE(plan::make_plan(longer, {.world_size = 4}).fits);
}

TEST(Search, LongestContextMayBeShort) {
  auto run = small_recipe({"", 1, {"training.seq_length=320", "training.global_batch_size=1"}});
  run.hardware.device_memory = plan::make_plan(run, {}).rank.device.bytes;
  const auto found = plan::longest_context(run, {});
  EXPECT_GE(found.run.training.seq_length, 320);
  EXPECT_LT(found.run.training.seq_length, 400);
}

TEST(Search, LargestBatchGrowsWithMemory) {
  int64_t before = 0;
  for (const int64_t memory : {1500, 3000}) {
    const auto run = small_recipe(medium(4, {"parallelism.expert_parallel_degree=4", with_memory(memory)}));
    const auto found = plan::largest_batch(run, {.world_size = 4});
    EXPECT_TRUE(found.plan.fits);
    EXPECT_EQ(found.plan.rank.num_micro_batches, 1);
    EXPECT_GT(found.run.training.micro_batch_size, before);
    before = found.run.training.micro_batch_size;
  }
}

// Host memory for its ids would be gone before there is a verdict.
TEST(Search, AMistypedLengthIsRefused) {
  auto run = small_recipe({"", 1, {"training.global_batch_size=1"}});
  for (const int64_t length : {(int64_t{1} << 26) + 1, int64_t{1'000'000'000'000}}) {
    run.training.seq_length = length;
    try {
      plan::make_plan(run, {});
      ADD_FAILURE() << length;
    } catch (const ValueError& error) {
      EXPECT_NE(std::string(error.what()).find(fmt::format("training.seq_length = {} ", length)),
                std::string::npos)
          << error.what();
    }
  }
}

TEST(Search, SaysWhenNotEvenTheLeastFits) {
  const auto run = small_recipe(medium(4, {with_memory(10), "hardware.host_memory=\"1GiB\""}));
  EXPECT_THROW(plan::longest_context(run, {.world_size = 4}), ValueError);
}

}  // namespace
}  // namespace steppe::testing
