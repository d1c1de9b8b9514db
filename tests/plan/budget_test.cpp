// The expected budget is never below the dry run, and at most a tenth above it; the guaranteed one is never
// below the dry run of any routing.
#include "steppe/plan/budget.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "steppe/base/bytes.h"
#include "tests/plan/planned_run.h"

namespace steppe::testing {
namespace {

std::string describe(const plan::Budget& budget, const plan::DryRun& dry) {
  std::string text = fmt::format("expected {} ({}), dry run {} ({})\n", format_bytes(budget.expected()),
                                 budget.largest().name, format_bytes(dry.device.bytes), dry.device.mark);
  memory::BytesByCategory by_category{};
  for (const auto* phase : {&budget.persistent, &budget.largest()}) {
    for (const auto& term : phase->terms) by_category[static_cast<int>(term.category)] += term.expected;
  }
  for (int c = 0; c < memory::kNumCategories; ++c) {
    if (by_category[c] + dry.device.by_category[c] == 0) continue;
    text += fmt::format("  {:<10} {:>12} {:>12}\n", memory::category_name(static_cast<memory::Category>(c)),
                        by_category[c], dry.device.by_category[c]);
  }
  return text;
}

constexpr double kMost = 1.10;

void expect_close(const recipe::RunConfig& run, const plan::DryRunOptions& options) {
  const auto dry = plan::dry_run_heaviest(run, options);
  const auto budget = plan::make_budget(run, dry.rank, options);
  EXPECT_GE(budget.expected(), dry.device.bytes) << describe(budget, dry);
  EXPECT_LE(static_cast<double>(budget.expected()), kMost * static_cast<double>(dry.device.bytes))
      << describe(budget, dry);
  EXPECT_GE(budget.guaranteed(), budget.expected());
}

TEST(Budget, BoundsTheDryRunOfSmallRuns) {
  for (const auto& planned : planned_runs()) {
    SCOPED_TRACE(planned.name);
    expect_close(small_recipe(planned), planned.options());
  }
}

TEST(Budget, GuaranteesWhateverTheRouter) {
  for (const char* kind : {"ep", "llep", "pipelined_llep"}) {
    PlannedRun run{kind,
                   2,
                   {std::string("dispatch.kind=") + kind, "parallelism.expert_parallel_degree=2",
                    "dispatch.token_budget=16"}};
    const auto guaranteed = plan::make_budget(small_recipe(run), 0, {.world_size = 2}).guaranteed();
    run.overrides.push_back("");
    for (const char* profile : {"one", "random", "stride", "95/1", "50/8"}) {
      run.overrides.back() = std::string("plan.routing_profile=") + profile;
      const auto dry = plan::dry_run_heaviest(small_recipe(run), {.world_size = 2});
      EXPECT_LE(dry.device.bytes, guaranteed) << kind << " " << profile;
    }
  }
}

int64_t booked(const plan::Phase& phase, memory::Category category) {
  int64_t bytes = 0;
  for (const auto& term : phase.terms) bytes += term.category == category ? term.expected : 0;
  return bytes;
}

// Of experts that a rank helps with, weights are gathered and gradients are gradients: in fp32 as many bytes.
TEST(Budget, BooksForeignExpertsWhereTheyAre) {
  for (const auto& [mode, name] :
       {std::pair{"none", "backward of kept layer 2"}, {"full", "experts backward, MoE layer 2"}}) {
    SCOPED_TRACE(mode);
    const auto phase_of = [&, name = std::string(name)](const char* kind) {
      const auto run = small_recipe(
          {"",
           2,
           {std::string("dispatch.kind=") + kind, std::string("activation_checkpoint.mode=") + mode,
            "parallelism.expert_parallel_degree=2", "plan.routing_profile=80/4"}});
      const auto helper = plan::heaviest_candidates(run, 2).back();
      const auto budget = plan::make_budget(run, helper, {.world_size = 2});
      return *std::find_if(budget.phases.begin(), budget.phases.end(),
                           [&](const plan::Phase& phase) { return phase.name == name; });
    };
    const auto helping = phase_of("llep"), alone = phase_of("ep");
    const auto more = [&](memory::Category category) {
      return booked(helping, category) - booked(alone, category);
    };
    EXPECT_GT(more(memory::Category::kGathered), 0);
    EXPECT_EQ(more(memory::Category::kGathered), more(memory::Category::kGrads));
  }
}

// Larger ones, by chance but the same every time.
class LargeRuns {
 public:
  explicit LargeRuns(uint32_t seed) : random_(seed) {}

  PlannedRun next() {
    PlannedRun run;
    run.world_size = 1 << pick(0, 6);
    const auto set = [&](const char* key, auto value) {
      run.overrides.push_back(fmt::format("{}={}", key, value));
    };
    const int64_t kv = 1 << pick(0, 3), heads = kv << pick(0, 3);
    int64_t degree = divisor(run.world_size);
    while (heads % degree != 0) degree /= 2;
    set("parallelism.ulysses_degree", degree);
    const int64_t expert = divisor(run.world_size);
    set("parallelism.expert_parallel_degree", expert);
    set("parallelism.vocab_parallel_degree", divisor(run.world_size));
    set("model.num_hidden_layers", pick(2, 9));
    set("model.first_k_dense_replace", pick(0, 1));
    set("model.hidden_size", 256 * pick(1, 12));
    set("model.num_attention_heads", heads), set("model.num_key_value_heads", kv);
    set("model.head_dim", 64 * pick(1, 2));
    set("model.intermediate_size", 512 * pick(1, 8));
    set("model.moe_intermediate_size", 128 * pick(1, 10));
    set("model.shared_expert_intermediate_size", 256 * pick(0, 2));
    set("model.num_experts", std::max<int64_t>(8, expert) * pick(1, 3));
    set("model.num_experts_per_tok", pick(1, 8));
    set("model.vocab_size", 1000 * pick(8, 150));
    set("model.qk_norm", std::vector{"head", "none", "full"}[pick(0, 2)]);
    const bool fp32 = pick(0, 3) == 0;
    set("model.compute_dtype", fp32 ? "float32" : "bfloat16");
    set("training.gradient_dtype", fp32 || pick(0, 2) ? "float32" : "bfloat16");
    set("training.seq_length", 1000 * pick(1, 12));
    set("training.micro_batch_size", pick(1, 2));
    set("training.global_batch_size", run.world_size / degree * pick(1, 4));
    set("dispatch.kind", std::vector{"ep", "llep", "pipelined_llep"}[pick(0, 2)]);
    set("dispatch.token_budget", 1 << pick(8, 13));
    set("dispatch.min_tokens_per_gemm", 1 << pick(4, 10));
    set("loss.kind", std::vector{"tiled", "ring", "vocab_parallel", "full"}[pick(0, 3)]);
    set("plan.routing_profile", std::vector{"balanced", "30/16", "95/4"}[pick(0, 2)]);
    set("model.max_position_embeddings", 1 << 20);
    set_more(run);
    return run;
  }

 private:
  // What leaves the device, and the losses beside the main one.
  void set_more(PlannedRun& run) {
    const auto set = [&](const char* key, auto value) {
      run.overrides.push_back(fmt::format("{}={}", key, value));
    };
    set("model.tie_word_embeddings", pick(0, 3) == 0);
    set("router.aux_loss_coeff", pick(0, 3) ? 0.0 : 0.01);
    set("router.z_loss_coeff", pick(0, 3) ? 0.0 : 0.001);
    const int64_t mode = pick(0, 3);
    set("activation_checkpoint.mode", std::vector{"none", "selective", "full", "full"}[mode]);
    set("offload.activations", mode > 0 && pick(0, 2) ? "sco" : "none");
    set("offload.host_budget", fmt::format("\"{}MiB\"", pick(0, 2) ? 1 << 20 : pick(1, 2000)));
    const int64_t placement = pick(0, 3);
    set("optimizer.placement", std::vector{"resident", "cpu", "stream", "stream"}[placement]);
    set("optimizer.gradients", placement > 0 && pick(0, 2) ? "host" : "device");
    set("optimizer.bucket_params", 1 << pick(16, 26));
  }

  int64_t pick(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }
  int64_t divisor(int64_t power_of_two) {
    int64_t log = 0;
    while ((int64_t{1} << log) < power_of_two) ++log;
    return int64_t{1} << pick(0, log);
  }

  std::mt19937 random_;
};

TEST(Budget, BoundsTheDryRunOfTwoHundredLargeRuns) {
  LargeRuns runs(20240601);
  for (int i = 0; i < 200; ++i) {
    const auto run = runs.next();
    SCOPED_TRACE(fmt::format("run {}, {} ranks, {}", i, run.world_size, fmt::join(run.overrides, " ")));
    EXPECT_NO_THROW(expect_close(small_recipe(run), {.world_size = run.world_size, .as_cuda = i % 2 == 1}));
  }
}

}  // namespace
}  // namespace steppe::testing
