// What the ranks of a run agree on before it starts.
#include "cli/run_plan.h"

#include <gtest/gtest.h>

#include "steppe/base/temporary_folder.h"
#include "steppe/comm/rank_threads.h"
#include "steppe/offload/offload_config.h"

namespace steppe::cli {
namespace {

// Three ranks: two on the first node, one on the second.
constexpr int kRanks = 3;

launch::LaunchEnvironment environment_of(int rank) {
  launch::LaunchEnvironment environment;
  environment.rank = rank, environment.world_size = kRanks;
  environment.local_rank = rank % 2, environment.local_world_size = rank < 2 ? 2 : 1;
  return environment;
}

TEST(RanksPerNode, AreTheLaunchersUnlessTheRecipeSaysMore) {
  constexpr int64_t kBudget = 100'000;
  const std::pair<std::optional<int64_t>, int64_t> cases[] = {{{}, 2}, {1, 2}, {3, 3}, {8, 3}};
  for (const auto& [in_recipe, expected] : cases) {
    recipe::RunConfig run;
    run.hardware.ranks_per_node = in_recipe;
    std::vector<int64_t> agreed(kRanks), share(kRanks);
    comm::run_ranks(kRanks, [&](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
      agreed[rank] = agree_on_ranks_per_node(run, environment_of(rank), *store, Log::silent());
      share[rank] = offload::host_share(kBudget, agreed[rank]);
    });
    EXPECT_EQ(agreed, std::vector<int64_t>(kRanks, expected));
    EXPECT_LE(share[0] + share[1], kBudget);  // of the fuller node
  }
}

constexpr const char* kRecipe = R"(
[model]
num_hidden_layers = 3
hidden_size = 48
num_attention_heads = 12
num_key_value_heads = 2
head_dim = 16
intermediate_size = 64
vocab_size = 101
max_position_embeddings = 4096
num_experts = 12
num_experts_per_tok = 2
moe_intermediate_size = 32
[activation_checkpoint]
mode = "selective"
[optimizer]
lr = 1e-3
[training]
steps = 1
seq_length = 96
[hardware]
host_memory = "2GiB"
)";

TEST(RunPlan, TellsAllRanksTheRoomOfAttentionOutputs) {
  const TemporaryFolder folder;
  auto recipe = recipe::Recipe::parse(kRecipe, "small.toml", {});
  auto run = recipe::read_run_config(recipe);
  run.run.folder = folder / "run";
  const Log log(LogOptions{.folder = run.run.folder + "/logs", .level = LogLevel::kError});
  std::vector<RunPlan> plans(kRanks);
  comm::run_ranks(kRanks, [&](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
    plans[rank] = plan_run(run, environment_of(rank), *store, 1, log);
  });
  EXPECT_TRUE(plans[0].memory.has_value());
  EXPECT_FALSE(plans[2].memory.has_value());
  // A third of the memory, without libraries and the run itself.
  EXPECT_GT(plans[0].attention_output_bytes->device_bytes, int64_t{300} << 20);
  EXPECT_LT(plans[0].attention_output_bytes->device_bytes, int64_t{700} << 20);
  for (const auto& plan : plans) EXPECT_EQ(plan.attention_output_bytes, plans[0].attention_output_bytes);
}

}  // namespace
}  // namespace steppe::cli
