// `--tune` on models of a few hundred million parameters.
#include <gtest/gtest.h>

#include "steppe/base/error.h"
#include "steppe/ops/moe_dispatch/plan_cases_test.h"
#include "steppe/plan/advice.h"
#include "steppe/plan/search.h"
#include "steppe/plan/tune_candidates.h"
#include "steppe/plan/work_estimate.h"
#include "tests/plan/planned_run.h"

namespace steppe::plan {
namespace {

using testing::PlannedRun, testing::small_recipe;

recipe::RunConfig medium(std::vector<std::string> more = {}) {
  PlannedRun run{"",
                 8,
                 {"model.hidden_size=1024", "model.num_attention_heads=16", "model.head_dim=64",
                  "model.num_key_value_heads=8", "model.vocab_size=32000", "model.num_hidden_layers=6",
                  "model.moe_intermediate_size=512", "model.compute_dtype=bfloat16",
                  "training.seq_length=4096", "training.global_batch_size=8", "hardware.preset=H200"}};
  run.overrides.insert(run.overrides.end(), more.begin(), more.end());
  return small_recipe(run);
}

std::string with_memory(int64_t mebibytes) {
  return "hardware.device_memory=\"" + std::to_string(2048 + mebibytes) + "MiB\"";  // 2 GiB are reserved
}

std::string all_reasons(const Found& found) {
  std::string text;
  for (const auto& reason : found.reasons) text += reason + "\n";
  return text;
}

// Layer interiors are most of the memory here.
const std::vector<std::string> kLong = {"training.seq_length=32768", "training.global_batch_size=8"};

std::vector<std::string> with(std::vector<std::string> overrides, const std::string& more) {
  overrides.push_back(more);
  return overrides;
}

TEST(Tune, TurnsOperatorsOnOnlyWhereThereIsNoRoom) {
  const auto roomy = tune(medium(kLong), {.world_size = 8});
  EXPECT_TRUE(roomy.plan.fits);
  EXPECT_EQ(roomy.run.optimizer.placement, "resident");
  EXPECT_EQ(roomy.run.offload.activations, "none");
  EXPECT_EQ(roomy.run.activation_checkpoint.mode, "none");
  double before = roomy.plan.step_seconds;
  for (const int64_t mebibytes : {1000, 500}) {
    const auto tight = tune(medium(with(kLong, with_memory(mebibytes))), {.world_size = 8});
    EXPECT_TRUE(tight.plan.fits);
    EXPECT_GE(tight.plan.step_seconds, before);
    before = tight.plan.step_seconds;
    const bool saves = tight.run.optimizer.placement != "resident" ||
                       tight.run.offload.activations != "none" ||
                       tight.run.activation_checkpoint.mode != "none";
    EXPECT_TRUE(saves) << mebibytes;
    EXPECT_NE(all_reasons(tight).find("the run would need"), std::string::npos) << all_reasons(tight);
  }
}

// The widest layout with every operator on is what the paper runs.
TEST(Tune, IsNoSlowerThanTheWidestLayoutAndFits) {
  const std::vector<std::string> widest = {"parallelism.ulysses_degree=8",
                                           "parallelism.expert_parallel_degree=8",
                                           "parallelism.vocab_parallel_degree=8",
                                           "dispatch.kind=pipelined_llep",
                                           "offload.activations=sco",
                                           "offload.host_budget=\"10GiB\"",
                                           "optimizer.placement=stream"};
  for (const auto& more : std::vector<std::vector<std::string>>{
           {with_memory(100'000)},
           {with_memory(2'000)},
           {with_memory(800)},
           {with_memory(3'000), "training.seq_length=65536", "training.global_batch_size=1"},
           {with_memory(2'000), "hardware.ranks_per_node=2", "hardware.link=\"5GB\""}}) {
    auto overrides = widest;
    overrides.insert(overrides.end(), more.begin(), more.end());
    const auto run = medium(overrides);
    const auto given = make_plan(run, {.world_size = 8});
    const auto tuned = tune(run, {.world_size = 8});
    SCOPED_TRACE(more.front());
    EXPECT_TRUE(make_plan(tuned.run, {.world_size = 8}).fits);
    if (given.fits) {
      EXPECT_LE(tuned.plan.step_seconds, given.step_seconds);
    }
  }
}

TEST(Tune, SaysWhatItChoseAndWhy) {
  const auto run = medium({with_memory(450)});
  const auto found = tune(run, {.world_size = 8});
  const auto text = all_reasons(found);
  EXPECT_NE(text.find("layouts"), std::string::npos) << text;
  std::string changes;
  for (const auto& change : found.changes) changes += change + "\n";
  for (const char* key :
       {"parallelism.ulysses_degree", "parallelism.expert_parallel_degree",
        "parallelism.vocab_parallel_degree", "dispatch.token_budget", "dispatch.tile_bytes",
        "loss.tile_tokens", "activation_checkpoint.mode", "activation_checkpoint.mlp_tile_tokens",
        "offload.activations", "optimizer.placement", "optimizer.gradients", "optimizer.bucket_params"}) {
    EXPECT_NE(changes.find(std::string(key) + " = "), std::string::npos) << key;
  }
  EXPECT_EQ(found.run.optimizer.placement == "resident",
            text.find("optimizer state on the device") != std::string::npos)
      << text;
}

// A search leaves a fifth of the host's memory, a recipe need not.
TEST(Tune, TheRecipeAsItIsIsPlannedAsAsked) {
  const std::vector<std::string> given = {with_memory(210), "checkpoint.async=false"};
  const auto roomy = tune(medium(given), {.world_size = 8});
  ASSERT_EQ(roomy.run.optimizer.placement, "stream");
  auto run = roomy.run;
  run.hardware.host_memory = roomy.plan.host_bytes_per_node + (int64_t{1} << 20);
  const auto found = tune(run, {.world_size = 8, .rank = 3, .record_timeline = true});
  EXPECT_TRUE(found.plan.fits);
  EXPECT_EQ(found.reasons, std::vector<std::string>{"the recipe as it is: no other layout fits"});
  EXPECT_EQ(found.plan.rank.rank, 3);
  EXPECT_FALSE(found.plan.rank.timeline.empty());
}

// What was chosen, read back, is the same plan.
TEST(Tune, ItsChangesAreTheRunItPlanned) {
  const std::vector<std::string> given = {with_memory(450)};
  const auto found = tune(medium(given), {.world_size = 8});
  auto overrides = given;
  for (const auto& change : found.changes) {
    const auto equals = change.find(" = ");
    overrides.push_back(change.substr(0, equals) + "=" + change.substr(equals + 3));
  }
  const auto again = make_plan(medium(overrides), {.world_size = 8});
  EXPECT_EQ(again.rank.device.bytes, found.plan.rank.device.bytes);
  EXPECT_EQ(again.step_seconds, found.plan.step_seconds);
}

TEST(Tune, ASlowLinkToAHostOfItsOwnMakesTheHostUpdate) {
  const auto found = tune(medium({with_memory(450), "hardware.ranks_per_node=1", "hardware.link=\"1GB\""}),
                          {.world_size = 8});
  EXPECT_EQ(found.run.optimizer.placement, "cpu");
}

// Of a model whose update, with all its state on the way at once, would need most.
recipe::RunConfig tiny(std::vector<std::string> more = {}) {
  PlannedRun run{"",
                 1,
                 {"training.seq_length=16", "training.global_batch_size=1", "optimizer.placement=stream",
                  "optimizer.gradients=host", "checkpoint.async=false", "hardware.preset=H200"}};
  run.overrides.insert(run.overrides.end(), more.begin(), more.end());
  return small_recipe(run);
}

TEST(Tune, BucketsGetSmallerByPowersOfTen) {
  EXPECT_EQ(smaller_buckets(100'000'000, 10'000'000'000), 10'000'000);
  EXPECT_EQ(smaller_buckets(2'500'000, 10'000'000'000), 1'000'000);
  EXPECT_EQ(smaller_buckets(1'000'000, 10'000'000'000), std::nullopt);
  EXPECT_EQ(smaller_buckets(100'000'000, 350'000), 100'000);
  EXPECT_EQ(smaller_buckets(100'000, 350'000), 10'000);
  EXPECT_EQ(smaller_buckets(10'000, 350'000), std::nullopt);
  EXPECT_EQ(smaller_buckets(100'000'000, 100), std::nullopt);
}

TEST(Tune, BucketsOfATinyModelAreSmallerThanIt) {
  const TuneProblem problem(tiny({"hardware.link=\"100TB\""}), 1, 1);  // so that it is streamed
  const int64_t params = problem.model.num_parameters();
  ASSERT_LT(params, 1'000'000);
  RoutedSizes routed(problem);
  const Means means{.host_state = true, .host_gradients = true};
  const auto chosen = make_candidate(problem, {}, means, routed);
  ASSERT_EQ(chosen.run.optimizer.placement, "stream");
  EXPECT_LT(chosen.run.optimizer.bucket_params, params);
  auto whole = chosen.run;
  whole.activation_checkpoint.mode = "full";
  whole.optimizer.bucket_params = 1'000'000;
  EXPECT_LT(chosen.budget.expected(), make_budget(whole, 0, problem.dry_run_options()).expected());
}

TEST(Advice, NamesSmallerBucketsWhereTheirStagingIsThePeak) {
  const auto roomy = make_plan(tiny(), {});
  ASSERT_TRUE(roomy.fits);
  const auto tight = tiny({"hardware.device_memory=\"" + std::to_string(roomy.device_bytes - 1) + "B\""});
  const auto made = make_plan(tight, {});
  ASSERT_FALSE(made.fits);
  const auto advice = advise(tight, made, {});
  EXPECT_TRUE(advice.is_enough) << advice.text;
  EXPECT_EQ(advice.changes, std::vector<std::string>{"optimizer.bucket_params = 100000"});
}

std::string refusal(const recipe::RunConfig& run, int world_size) {
  try {
    tune(run, {.world_size = world_size});
  } catch (const ValueError& error) {
    return error.what();
  }
  return "it fits";
}

TEST(Tune, NamesTheTermThatBreaksAndWhatWouldHelp) {
  const auto text = refusal(medium({with_memory(10), "hardware.host_memory=\"1GiB\""}), 8);
  EXPECT_NE(text.find("no layout of 8 ranks fits"), std::string::npos) << text;
  EXPECT_NE(text.find("on a device of"), std::string::npos) << text;
  EXPECT_NE(text.find(" = "), std::string::npos) << text;  // a term and its formula
  EXPECT_NE(text.find("it would fit with"), std::string::npos) << text;
}

int64_t number_behind(const std::string& text, const std::string& words) {
  const auto at = text.find(words);
  return at == std::string::npos ? 0 : std::stoll(text.substr(at + words.size()));
}

// Each change that it names is enough by itself.
TEST(Tune, WhatItSaysWouldHelpHelps) {
  const std::vector<std::string> given = {with_memory(700), "training.seq_length=524288",
                                          "training.global_batch_size=1",
                                          "model.max_position_embeddings=1048576"};
  const auto text = refusal(medium(given), 8);
  const auto length = number_behind(text, "training.seq_length = ");
  ASSERT_GE(length, 16384) << text;
  EXPECT_LT(length, 524288);
  EXPECT_EQ(refusal(medium(with(given, "training.seq_length=" + std::to_string(length))), 8), "it fits");

  const std::vector<std::string> large = {with_memory(250), "model.num_experts=64"};
  const auto refused = refusal(medium(large), 8);
  const auto ranks = number_behind(refused, "it would fit with ");
  ASSERT_GT(ranks, 8) << refused;
  EXPECT_EQ(refusal(medium(large), static_cast<int>(ranks)), "it fits");
}

TEST(Tune, HostMemoryThatIsShortIsNamed) {
  const auto text = refusal(medium({with_memory(450), "hardware.host_memory=\"300MiB\""}), 8);
  EXPECT_NE(text.find("hardware.host_memory = "), std::string::npos) << text;
}

// The search ranks by sizes alone: near enough to what a dry run counts.
TEST(WorkEstimate, IsNearWhatADryRunCounts) {
  const auto layouts = std::vector<std::vector<std::string>>{
      {},
      {"parallelism.expert_parallel_degree=8"},
      {"parallelism.ulysses_degree=4", "parallelism.expert_parallel_degree=2"},
      {"parallelism.ulysses_degree=8", "parallelism.expert_parallel_degree=4",
       "parallelism.vocab_parallel_degree=8", "training.seq_length=16384"},
      {"activation_checkpoint.mode=none", "parallelism.expert_parallel_degree=8"},
      {"activation_checkpoint.mode=none", "parallelism.expert_parallel_degree=8",
       "dispatch.token_budget=2048"},
      {"offload.activations=sco", "offload.host_budget=\"1GiB\"", "optimizer.placement=stream"},
      {"optimizer.placement=cpu", "optimizer.gradients=host", "training.global_batch_size=24"},
      {"plan.routing_profile=\"80/2\"", "parallelism.expert_parallel_degree=8",
       "dispatch.min_tokens_per_gemm=64"}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    SCOPED_TRACE(i);
    auto overrides = layouts[i];
    overrides.insert(overrides.begin(), {"dispatch.kind=pipelined_llep", "loss.kind=tiled"});
    const auto run = medium(overrides);
    const DryRunOptions options{.world_size = 8, .as_cuda = true};
    const auto dry = dry_run(run, options, 0);
    const auto estimate = estimated_work(run, sizes_of(run, 0, options));
    auto counted = dry.counters;
    auto guessed = estimate.passes;
    guessed += estimate.update;
    const auto near = [](int64_t a, int64_t b, const char* what) {
      EXPECT_NEAR(static_cast<double>(a), static_cast<double>(b), 0.05 * static_cast<double>(b) + 1e6)
          << what;
    };
    for (size_t kind = 0; kind < counted.flops.values().size(); ++kind) {
      near(guessed.flops.values()[kind], counted.flops.values()[kind],
           name(static_cast<FlopKind>(kind)).data());
    }
    for (size_t purpose = 0; purpose < counted.wire_bytes.values().size(); ++purpose) {
      if (static_cast<WirePurpose>(purpose) == WirePurpose::kControl) continue;
      near(guessed.wire_bytes.values()[purpose], counted.wire_bytes.values()[purpose],
           name(static_cast<WirePurpose>(purpose)).data());
    }
    for (const auto way : {LinkDirection::kHostToDevice, LinkDirection::kDeviceToHost}) {
      for (size_t purpose = 0; purpose < counted.link_bytes[way].values().size(); ++purpose) {
        if (static_cast<LinkPurpose>(purpose) == LinkPurpose::kControl) continue;
        near(guessed.link_bytes[way].values()[purpose], counted.link_bytes[way].values()[purpose],
             name(static_cast<LinkPurpose>(purpose)).data());
      }
    }
  }
}

// Own experts that others help with, and others' that `rank` helps with.
std::pair<int64_t, int64_t> lent_and_borrowed(const ops::DispatchPlan& plan, int64_t rank) {
  int64_t lent = 0;
  for (int64_t helper = 0; helper < plan.degree; ++helper)
    for (const int64_t expert : plan.helpers.experts_of(helper))
      lent += expert / (plan.num_experts / plan.degree) == rank;
  return {lent, static_cast<int64_t>(plan.helpers.experts_of(rank).size())};
}

TEST(WorkEstimate, CountsForeignExpertsAsTheirProfileIsPlanned) {
  const auto run_of = [](const std::string& profile) {
    return medium({"dispatch.kind=pipelined_llep", "parallelism.expert_parallel_degree=8",
                   "dispatch.min_tokens_per_gemm=64", "dispatch.token_budget=1024",
                   "plan.routing_profile=\"" + profile + "\""});
  };
  for (const int rank : {0, 5}) {
    const auto difference = [&](auto of) { return of("80/2") - of("balanced"); };
    const auto counted = difference([&](const std::string& profile) {
      const auto run = run_of(profile);
      const auto work = estimated_work(run, sizes_of(run, rank, {.world_size = 8}));
      return work.passes.wire_bytes[WirePurpose::kDispatch];
    });
    const auto want = difference([&](const std::string& profile) {
      const auto sizes = sizes_of(run_of(profile), rank, {.world_size = 8});
      const auto routes =
          ops::profile_case(ops::RoutingProfile::parse(profile), sizes.E, 8, sizes.k, 4096, 4);
      const auto plan = ops::plan_dispatch(routes.counts, 8, sizes.k, ops::plan_options(sizes.step.dispatch));
      const auto [lent, borrowed] = lent_and_borrowed(plan, rank);
      // bf16 weights in two passes, fp32 gradients.
      return num_moe_layers(sizes) * 3 * 1024 * 512 * (2 * 2 * lent + 4 * borrowed);
    });
    EXPECT_NE(want, 0);
    EXPECT_EQ(counted, want) << "rank " << rank;
  }
}

}  // namespace
}  // namespace steppe::plan
