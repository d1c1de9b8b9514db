#include "steppe/recipe/run_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "steppe/base/error.h"
#include "steppe/recipe/every_key.h"
#include "steppe/recipe/expect_message.h"
#include "steppe/recipe/least_recipe.h"
#include "steppe/recipe/unknown_keys.h"

namespace steppe::recipe {
namespace {

RunConfig config_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  Recipe recipe = Recipe::parse(text, "recipes/least.toml", overrides);
  return read_run_config(recipe);
}

// The least recipe with one override must be refused with these parts in the message.
void expect_refused(const std::string& override, std::initializer_list<std::string> parts) {
  SCOPED_TRACE(override);
  expect_message<ValueError>([&] { config_of(kLeast, {override}); }, parts);
}

TEST(RunConfig, DefaultsAreThoseOfTheStructs) {
  const RunConfig config = config_of(kLeast);
  RunConfig expected;
  expected.run = {"runs/least", "least"};
  expected.checkpoint.folder = "runs/least/checkpoints";
  expected.optimizer.lr = 3e-4;
  expected.training.steps = 200;
  expected.training.seq_length = 2048;
  expected.training.gradient_accumulation_steps = 1;
  expected.lr_scheduler.decay_steps = 200;
  expected.logging.run_name = "least";
  EXPECT_EQ(config, expected);
}

TEST(RunConfig, ReadsEveryKey) {
  const RunConfig config = config_of(kEverything);
  EXPECT_EQ(config.run.folder, "out/trial");
  EXPECT_EQ(config.model.head_dim, 16);
  EXPECT_EQ(config.model.rope_theta, 1e6);
  ASSERT_TRUE(config.model.rope_scaling);
  EXPECT_EQ(config.model.rope_scaling->factor, 4.0);
  EXPECT_EQ(config.model.rope_scaling->truncate, false);
  EXPECT_EQ(config.model.rope_scaling->beta_slow, std::nullopt);
  EXPECT_EQ(config.parallelism.vocab_parallel_degree, 3);
  EXPECT_EQ(config.checkpoint.folder, "out/saves");
  EXPECT_EQ(config.checkpoint.keep_every, 14);
  EXPECT_EQ(config.checkpoint.max_shard_size, 2'000'000'000);
  EXPECT_EQ(config.hardware.link, 50e9);
  EXPECT_TRUE(config.plan.allow_unfit);
  EXPECT_EQ(config.loss.kind, "ring");
  EXPECT_EQ(config.loss.tile_tokens, 256);
  EXPECT_EQ(config.loss.circulate, "weights");
  EXPECT_EQ(config.loss.z_loss_coeff, 1e-4);
  EXPECT_EQ(config.loss.logit_softcap, 30);
  EXPECT_EQ(config.optimizer.betas, (std::array<double, 2>{0.8, 0.99}));
  EXPECT_EQ(config.lr_scheduler.warmup_steps, 50);  // 0.1 · 500
  EXPECT_EQ(config.lr_scheduler.decay_steps, 50);   // a tenth of the run
  EXPECT_EQ(config.training.global_batch_size, 12);
  EXPECT_EQ(config.training.gradient_accumulation_steps, std::nullopt);
  ASSERT_EQ(config.data.train.size(), 2u);
  EXPECT_EQ(config.data.train[0].name, "code");
  EXPECT_EQ(config.data.train[1].name, "books");
  EXPECT_EQ(config.validation.sets.at(0).name, "held_out");
  EXPECT_EQ(config.comm.timeout, 2.5);
  EXPECT_EQ(config.profiler.steps, (std::vector<std::int64_t>{1, 20}));
  EXPECT_EQ(config.profiler.ranks, (std::vector<std::int64_t>{0, 2}));
}

TEST(RunConfig, ResolvedTomlLoadsBackToTheSame) {
  for (const char* text : {kLeast, kEverything}) {
    Recipe recipe = Recipe::parse(text, "recipes/least.toml");
    const RunConfig config = read_run_config(recipe);
    const std::string resolved = recipe.resolved_toml();
    // Under another name, so that names come from the text.
    Recipe again = Recipe::parse(resolved, "elsewhere/resolved.toml");
    EXPECT_EQ(read_run_config(again), config);
    // And is a fixed point, but for the file's name in the first line.
    const std::string twice = again.resolved_toml();
    EXPECT_EQ(twice.substr(twice.find('\n')), resolved.substr(resolved.find('\n')));
  }
}

TEST(RunConfig, RequiredKeysAreAllReportedAtOnce) {
  expect_message<ValueError>(
      [] { config_of("[optimizer]\nlearning_rate = 1e-3\n[[data.train]]\nname = 'a'\n"); },
      {"`optimizer.learning_rate` (recipes/least.toml:2): in Steppe `optimizer.lr`",
       "`optimizer.lr` (recipes/least.toml) is required", "`training.steps`", "`training.seq_length`",
       "`data.train[0].path`"});
}

TEST(RunConfig, BadValuesNameKeyValueAndPlace) {
  expect_message<ValueError>([] { config_of(std::string(kLeast) + "micro_batch_size = 0\n"); },
                             {"training.micro_batch_size = 0 (recipes/least.toml:6) must be at least 1"});
  const std::pair<const char*, const char*> bad[] = {
      {"run.name=a/b", "file name"},
      {"run.folder=\"\"", "empty"},
      {"model.config=\"\"", "config.json"},
      {"model.hidden_size=0", "at least 1"},
      {"model.first_k_dense_replace=-1", "at least 0"},
      {"model.shared_expert_intermediate_size=-1", "at least 0"},
      {"model.rms_norm_eps=0", "above 0"},
      {"model.rope_theta=-1", "above 0"},
      {"model.qk_norm=layer", "\"head\", \"full\", \"none\""},
      {"model.compute_dtype=float16", "\"bfloat16\", \"float32\""},
      {"model.rope_scaling.rope_type=longrope", "\"yarn\""},
      {"router.load_balancing=aux", "\"none\", \"expert_bias\""},
      {"router.bias_update_rate=0", "above 0"},
      {"router.aux_loss_coeff=-1", "at least 0"},
      {"router.z_loss_coeff=-0.5", "at least 0"},
      {"router.force_load_balancing=1", "true or false"},
      {"parallelism.ulysses_degree=0", "at least 1"},
      {"parallelism.expert_parallel_degree=1.5", "whole number"},
      {"parallelism.vocab_parallel_degree=-2", "at least 1"},
      {"loss.kind=fused", "\"auto\", \"tiled\", \"ring\", \"vocab_parallel\", \"full\""},
      {"loss.tile_tokens=0", "at least 1"},
      {"loss.z_loss_coeff=-1", "at least 0"},
      {"loss.logit_softcap=-30", "at least 0"},
      {"loss.circulate=weights", "only a ring"},
      {"loss.circulate=logits", "\"activations\", \"weights\""},
      {"loss.ignore_index=0", "below 0"},
      {"activation_checkpoint.mode=some", "\"full\", \"selective\", \"none\""},
      {"optimizer.name=sgd", "\"adamw\""},
      {"optimizer.lr=0", "above 0"},
      {"optimizer.lr=nan", "a number"},
      {"optimizer.betas=[0.9]", "two numbers"},
      {"optimizer.betas=[0.9, 1.0]", "two numbers"},
      {"optimizer.eps=0", "above 0"},
      {"optimizer.weight_decay=-0.1", "at least 0"},
      {"optimizer.max_grad_norm=-1", "at least 0"},
      {"optimizer.placement=disk", "\"resident\", \"cpu\", \"stream\""},
      {"lr_scheduler.type=step", "\"wsd\""},
      {"lr_scheduler.warmup_steps=1.5", "whole number"},
      {"lr_scheduler.warmup_steps=-1", "whole number"},
      {"lr_scheduler.warmup_steps=201", "at most training.steps = 200"},
      {"lr_scheduler.decay_steps=201", "at most the 200 steps"},
      {"lr_scheduler.decay_steps=-1", "at least 0"},
      {"lr_scheduler.decay_type=sqrt", "\"linear\", \"cosine\""},
      {"lr_scheduler.min_lr_ratio=1.1", "from 0 to 1"},
      {"training.steps=0", "at least 1"},
      {"training.seq_length=0", "at least 1"},
      {"training.global_batch_size=0", "at least 1"},
      {"training.gradient_accumulation_steps=0", "at least 1"},
      {"training.gradient_dtype=float16", "\"float32\", \"bfloat16\""},
      {"training.seed=-1", "at least 0"},
      {"training.deterministic=maybe", "true or false"},
      {"training.on_nonfinite=ignore", "\"stop\", \"skip\""},
      {"data.prepared=\"\"", "folder"},
      {"data.tokenizer=\"\"", "tokenizer.json"},
      {"data.over_length=wrap", "\"truncate\""},
      {"data.val_split=1", "below 1"},
      {"data.train=corpus", "[[data.train]]"},
      {"validation.interval=-1", "at least 0"},
      {"validation.steps=0", "\"all\""},
      {"validation.steps=some", "\"all\""},
      {"logging.interval=0", "at least 1"},
      {"logging.report_to=[\"wandb\"]", "\"tensorboard\""},
      {"logging.moe=loud", "\"detailed\""},
      {"hardware.threads_per_rank=0", "\"auto\""},
      {"comm.init_timeout=0", "seconds"},
      {"comm.timeout=-5", "seconds"},
  };
  for (const auto& [override, expectation] : bad) {
    const std::string key = std::string(override).substr(0, std::string(override).find('='));
    expect_refused(override, {"[recipe] " + key + " = ", "(--set)", expectation});
  }
}

TEST(RunConfig, KeysThatContradictEachOther) {
  expect_message<ValueError>(
      [] {
        config_of(kLeast, {"training.global_batch_size=8", "training.gradient_accumulation_steps=2"});
      },
      {"training.gradient_accumulation_steps = 2 (--set)", "training.global_batch_size = 8", "keep one"});
  expect_message<ValueError>(
      [] {
        config_of(kLeast, {"training.gradient_dtype=bfloat16", "model.compute_dtype=float32"});
      },
      {"training.gradient_dtype = \"bfloat16\" (--set)", "must be \"float32\"",
       "model.compute_dtype = \"float32\"", "fewer bits than the weights"});
  expect_message<ValueError>(
      [] {
        config_of(kLeast, {"model.num_experts=4", "model.num_experts_per_tok=5"});
      },
      {"model.num_experts_per_tok = 5 (--set) must be at most model.num_experts = 4"});
  expect_message<ValueError>(
      [] {
        config_of(kLeast, {"lr_scheduler.type=constant", "lr_scheduler.decay_steps=5"});
      },
      {"lr_scheduler.decay_steps = 5 (--set)", "\"constant\""});
  expect_message<ValueError>(
      [] {
        config_of(std::string(kLeast) +
                  "[[data.train]]\npath='a/x.txt'\n"
                  "[[data.train]]\npath='b/x.txt'\n");
      },
      {"data.train[1].name = \"x\" (default)", "names must differ"});
  expect_message<ValueError>(
      [] { config_of(std::string(kLeast) + "[[data.train]]\npath='a'\nname='x y'\n"); },
      {"data.train[0].name = \"x y\" (recipes/least.toml:8)", "it names files"});
  expect_message<ValueError>([] { config_of(std::string(kLeast) + "[[data.train]]\npath='a'\nweight=0\n"); },
                             {"data.train[0].weight = 0.0 (recipes/least.toml:8) must be above 0"});
}

TEST(RunConfig, DecayFillsWhatWarmUpLeaves) {
  const auto scheduler = [](const std::vector<std::string>& overrides) {
    return config_of(kLeast, overrides).lr_scheduler;
  };
  EXPECT_EQ(scheduler({"lr_scheduler.warmup_steps=30"}).decay_steps, 170);
  EXPECT_EQ(scheduler({"lr_scheduler.type=constant", "lr_scheduler.warmup_steps=30"}).decay_steps, 0);
  EXPECT_EQ(scheduler({"lr_scheduler.type=wsd"}).decay_steps, 20);
  EXPECT_EQ(scheduler({"lr_scheduler.type=wsd", "lr_scheduler.warmup_steps=195"}).decay_steps, 5);
  EXPECT_EQ(scheduler({"lr_scheduler.type=wsd", "lr_scheduler.decay_steps=40"}).decay_steps, 40);
  EXPECT_EQ(scheduler({"lr_scheduler.warmup_steps=200"}).decay_steps, 0);
}

// The table behind the messages must not drift from what is read.
TEST(RunConfig, AliasesLeadSomewhere) {
  Recipe recipe = Recipe::parse(kEverything, "run.toml");
  read_run_config(recipe);
  std::set<std::string> known{"model.path",        "data.train",        "data.train[].path",
                              "data.train[].type", "data.train[].name", "validation.set[].path"};
  known.insert("training.gradient_accumulation_steps");
  const Document document = Document::parse(recipe.resolved_toml(), "resolved");
  for (const Entry& entry : document.entries()) known.insert(entry.key);
  for (const Alias& alias : aliases()) EXPECT_TRUE(known.count(std::string(alias.ours))) << alias.ours;
}

TEST(RunConfig, EveryRecipeOfTheProjectLoads) {
  std::size_t count = 0;
  for (const auto& file : std::filesystem::directory_iterator(STEPPE_RECIPES)) {
    if (file.path().extension() != ".toml") continue;
    SCOPED_TRACE(file.path().string());
    Recipe recipe = Recipe::load(file.path().string());
    EXPECT_NO_THROW(read_run_config(recipe));
    ++count;
  }
  EXPECT_GE(count, 1u);
}

}  // namespace
}  // namespace steppe::recipe
