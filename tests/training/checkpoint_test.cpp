// What one layout saves, every other loads: the same bits, and training that goes on as if nothing had been.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>

#include "steppe/base/error.h"
#include "steppe/base/temporary_folder.h"
#include "steppe/checkpoint/native_folder.h"
#include "steppe/checkpoint/native_reader.h"
#include "steppe/checkpoint/native_restore.h"
#include "steppe/checkpoint/native_shard.h"
#include "tests/training/follows_reference.h"
#include "tests/training/small_run.h"

namespace steppe::testing {
namespace {

using checkpoint::State;

constexpr int64_t kKvHeads = 1;  // fits every D
constexpr int64_t kBefore = 4, kAfter = 20;

// Two of each W, unlike one another.
const std::vector<layout::LayoutConfig> kLayouts = {{1, 1, 1, 1}, {2, 2, 1, 2}, {2, 1, 2, 1}, {3, 3, 3, 1},
                                                    {3, 1, 1, 3}, {4, 2, 4, 2}, {4, 4, 2, 1}};

SmallRun run_of(const layout::LayoutConfig& layout, at::ScalarType dtype = at::kFloat) {
  auto run = small_run(kKvHeads, layout);
  run.dtype = dtype;
  return run;
}

// Logical tensors by name and state, put together from what the ranks hold in memory.
class Values {
 public:
  void add(const checkpoint::UnitState& unit) {
    const std::lock_guard lock(mutex_);
    for (const auto& [state, values] : unit.tensors) {
      const auto* from = values.const_data_ptr<float>();
      for (const auto& slice : unit.slices) put(slice, state, from + slice.offset);
    }
  }
  // The working weights of a whole unit, as a state of their own.
  void add_working(const model::WeightUnit& unit) {
    const std::lock_guard lock(mutex_);
    const auto working = unit.working().to(at::kFloat);
    const int64_t begin = unit.working_is_whole() ? 0 : unit.shard_begin();
    for (const auto& slice : unit.slices()) {
      const int64_t from = std::max(begin, slice.unit_begin),
                    to = std::min(begin + working.numel(), slice.unit_begin + slice.count);
      if (from >= to) continue;
      working_[slice.tensor].resize(numel(slice.shape));
      std::copy_n(working.const_data_ptr<float>() + from - begin, to - from,
                  working_[slice.tensor].begin() + slice.tensor_begin + from - slice.unit_begin);
    }
  }
  bool operator==(const Values& other) const {
    return states_ == other.states_ && working_ == other.working_;
  }
  const auto& states() const { return states_; }

 private:
  static int64_t numel(const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    return count;
  }
  void put(const checkpoint::StateSlice& slice, State state, const float* from) {
    auto& whole = states_[{slice.tensor, state}];
    whole.resize(numel(slice.shape), std::nanf(""));  // an element that nobody has is unlike all others
    std::copy_n(from, slice.count, whole.begin() + slice.begin);
  }

  std::mutex mutex_;
  std::map<std::pair<std::string, State>, std::vector<float>> states_;
  std::map<std::string, std::vector<float>> working_;
};

void collect(Values& values, Rank& rank) {
  for (const auto& unit : checkpoint::rank_states(rank.weights, rank.layout.rank())) values.add(unit);
  for (const auto& unit : rank.weights.units()) values.add_working(unit);
}

void save(Rank& rank, const std::string& folder, int64_t step) {
  write_shard(checkpoint::partial_path(folder, step), "trial", rank.layout.rank(),
              checkpoint::rank_states(rank.weights, rank.layout.rank()));
  rank.groups.control->barrier();
  if (rank.layout.rank() != 0) return;
  checkpoint::SavedRun run;
  run.step = step;
  run.world_size = rank.layout.world_size();
  checkpoint::publish(folder, checkpoint::partial_path(folder, run.step), "trial", run);
}

std::unique_ptr<ops::RoutingSource> top_k() {
  return std::make_unique<ops::TopKRouting>();
}

// Trains a little, with expert biases that are not zero, and saves.
void train_and_save(const SmallRun& given, const std::string& folder, Values& values) {
  auto run = given;
  run.step.bias_update_rate = 1e-3;
  on_all_ranks(run, top_k, [&](Rank& rank) {
    for (int64_t step = 0; step < kBefore; ++step)
      rank.step.train(small_batch(run, step, rank.group()), run.lr, step + 1);
    save(rank, folder, kBefore);
    collect(values, rank);
  });
}

void load(const SmallRun& run, const std::string& folder, Values& values) {
  on_all_ranks(run, top_k, [&](Rank& rank) {
    checkpoint::NativeReader reader(folder);
    checkpoint::restore(reader, rank.weights, checkpoint::Restore::kEverything);
    collect(values, rank);
  });
}

TEST(Checkpoint, EveryLayoutLoadsTheBitsThatAnySaved) {
  for (const auto& from : kLayouts) {
    const TemporaryFolder folder;
    Values saved;
    train_and_save(run_of(from), folder / "c", saved);
    EXPECT_FALSE(std::isnan(saved.states().begin()->second.front()));
    for (const auto& to : kLayouts) {
      Values loaded;
      load(run_of(to), folder / "c", loaded);
      EXPECT_TRUE(loaded == saved) << describe(from) << " to " << describe(to);
    }
  }
}

// What is frozen has no masters and moments: its weights are saved, and moments that nobody saved are zeros.
TEST(Checkpoint, FrozenParametersComeAndGoBetweenRuns) {
  const TemporaryFolder folder;
  auto frozen = run_of({2, 1, 2, 2}), trained = run_of({4, 2, 4, 1}), others = run_of({1, 1, 1, 1});
  frozen.state.rules.freeze = {"model.layers.1.self_attn.*", "*experts.7.up_proj.weight"};
  others.state.rules.freeze = {"*norm.weight", "*experts.7.*"};
  Values saved, again, thawed, elsewhere;
  train_and_save(frozen, folder / "frozen", saved);
  auto same_elsewhere = run_of({1, 1, 1, 1});
  same_elsewhere.state.rules = frozen.state.rules;
  load(same_elsewhere, folder / "frozen", again);
  EXPECT_TRUE(again == saved);
  load(trained, folder / "frozen", thawed);
  int64_t zeros = 0;
  for (const auto& [key, values] : thawed.states()) {
    const auto before = saved.states().find(key);
    if (before != saved.states().end()) {
      EXPECT_EQ(values, before->second) << key.first;
      continue;
    }
    EXPECT_NE(key.second, State::kMaster) << key.first;
    EXPECT_TRUE(std::ranges::all_of(values, [](float value) { return value == 0; })) << key.first;
    ++zeros;
  }
  EXPECT_EQ(zeros, 2 * (6 + 2));  // moments of four projections, two norms, and an expert of two layers
  // Frozen only now: its moments are left where they are.
  Values all;
  train_and_save(trained, folder / "trained", all);
  load(others, folder / "trained", elsewhere);
  for (const auto& [key, values] : elsewhere.states()) EXPECT_EQ(values, all.states().at(key)) << key.first;
  EXPECT_FALSE(elsewhere.states().contains({"model.norm.weight", State::kM}));
}

TEST(Checkpoint, AnotherWorkingPrecisionHasTheSameMastersAndRoundedWeights) {
  const TemporaryFolder folder;
  Values in_bf16, loaded_bf16, loaded_fp32, from_fp32;
  train_and_save(run_of({2, 1, 2, 2}, at::kBFloat16), folder / "bf16", in_bf16);
  load(run_of({4, 2, 2, 4}, at::kBFloat16), folder / "bf16", loaded_bf16);
  EXPECT_TRUE(loaded_bf16 == in_bf16);  // masters, moments, and working weights as the optimizer rounded them
  load(run_of({1, 1, 1, 1}), folder / "bf16", loaded_fp32);
  EXPECT_TRUE(loaded_fp32.states() == in_bf16.states());
  EXPECT_FALSE(loaded_fp32 == in_bf16);
}

// Saves after kBefore steps, and goes on elsewhere; the routing is replayed. One layout of each W.
TEST(Checkpoint, TrainingGoesOnAtEveryOtherNumberOfRanks) {
  const std::vector<layout::LayoutConfig> layouts = {{1, 1, 1, 1}, {2, 2, 1, 2}, {3, 3, 3, 1}, {4, 2, 4, 2}};
  const int64_t steps = kBefore + kAfter;
  auto& expected = reference(kKvHeads, steps);
  const auto replay = [&] {
    return std::make_unique<ops::GivenRouting>(expected.record.replay(small_model(kKvHeads)));
  };
  for (const auto& saved_at : layouts) {
    const TemporaryFolder folder;
    const auto from = run_of(saved_at);
    on_all_ranks(from, replay, [&](Rank& rank) {
      for (int64_t step = 0; step < kBefore; ++step)
        rank.step.train(small_batch(from, step, rank.group()), from.lr, step + 1);
      save(rank, folder / "c", kBefore);
    });
    for (const auto& loaded_at : layouts) {
      if (loaded_at.world_size == saved_at.world_size) continue;
      const auto to = run_of(loaded_at);
      double worst = 0;
      on_all_ranks(to, replay, [&](Rank& rank) {
        checkpoint::NativeReader reader(folder / "c");
        checkpoint::restore(reader, rank.weights, checkpoint::Restore::kEverything);
        for (int64_t step = kBefore; step < steps; ++step) {
          const double loss = rank.step.train(small_batch(to, step, rank.group()), to.lr, step + 1).loss;
          if (rank.layout.rank() == 0) worst = std::max(worst, std::abs(loss - expected.losses[step]));
        }
      });
      EXPECT_LE(worst, 1e-6) << describe(from.layout) << " to " << describe(to.layout);
    }
  }
}

TEST(Checkpoint, WeightsAloneLeaveTheMomentsZero) {
  const TemporaryFolder folder;
  Values saved, loaded;
  train_and_save(run_of({2, 2, 2, 2}), folder / "c", saved);
  const auto run = run_of({3, 1, 3, 3});
  on_all_ranks(run, top_k, [&](Rank& rank) {
    checkpoint::NativeReader reader(folder / "c");
    checkpoint::restore(reader, rank.weights, checkpoint::Restore::kWeightsOnly);
    collect(loaded, rank);
  });
  for (const auto& [key, values] : loaded.states()) {
    if (key.second == State::kMaster) {
      EXPECT_EQ(values, saved.states().at(key)) << key.first;
    } else {
      EXPECT_EQ(values, std::vector<float>(values.size())) << key.first;
    }
  }
}

TEST(Checkpoint, AnotherModelsIsRefusedWithTheList) {
  const TemporaryFolder folder;
  Values values;
  train_and_save(run_of({2, 1, 2, 2}), folder / "c", values);
  const auto refusal = [&](const std::function<void(model::ModelConfig&)>& change) {
    auto run = run_of({2, 1, 2, 2});
    change(run.model);
    std::string message;
    on_all_ranks(run, top_k, [&](Rank& rank) {
      checkpoint::NativeReader reader(folder / "c");
      try {
        checkpoint::check_fits(reader.manifest(), rank.weights, reader.path());
      } catch (const ValueError& error) {
        if (rank.layout.rank() == 0) message = error.what();
      }
    });
    return message;
  };
  EXPECT_EQ(refusal([](model::ModelConfig&) {}), "");
  const auto wider = refusal([](model::ModelConfig& model) { model.moe_intermediate_size = 40; });
  EXPECT_NE(wider.find("of another model"), std::string::npos) << wider;
  EXPECT_NE(wider.find("is [32, 48], not [40, 48]"), std::string::npos) << wider;
  const auto deeper = refusal([](model::ModelConfig& model) { model.num_hidden_layers = 4; });
  EXPECT_NE(deeper.find("missing: model.layers.3."), std::string::npos) << deeper;
  const auto shallower = refusal([](model::ModelConfig& model) { model.num_hidden_layers = 2; });
  EXPECT_NE(shallower.find("without a use: model.layers.2."), std::string::npos) << shallower;
  EXPECT_NE(refusal([](model::ModelConfig& model) { model.num_experts = 6; }).find("without a use"),
            std::string::npos);
  EXPECT_NE(refusal([](model::ModelConfig& model) { model.tie_word_embeddings = true; }).find("lm_head"),
            std::string::npos);
}

}  // namespace
}  // namespace steppe::testing
