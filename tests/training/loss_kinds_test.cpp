// A training run does not depend on the kind of its vocabulary loss.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/training/small_run.h"

namespace steppe::testing {
namespace {

constexpr int64_t kSteps = 50;

ops::VocabLossOptions options_of(ops::VocabLossKind kind, int64_t tile_tokens, ops::Circulate circulate) {
  ops::VocabLossOptions options(kind);
  options.tile_tokens = tile_tokens;
  options.circulate = circulate;
  return options;
}

TEST(LossKinds, FollowFullLogitsForFiftySteps) {
  using enum ops::VocabLossKind;
  using ops::Circulate;
  RoutingRecord record;
  auto reference = small_run(2, {});
  reference.step.loss = kFull;
  const auto want = train_losses(reference, kSteps, [&] { return std::make_unique<RecordedTopK>(record); });
  EXPECT_GT(want.front() - want.back(), 0.3);

  const auto tiled = options_of(kTiled, 7, Circulate::kAuto);
  const auto ring_of_activations = options_of(kRing, 7, Circulate::kActivations);
  const auto ring_of_weights = options_of(kRing, 7, Circulate::kWeights);
  const layout::LayoutConfig alone{1, 1, 1, 1}, shards{4, 1, 4, 4};
  const layout::LayoutConfig replicas{4, 2, 1, 2};  // and a sequence is shared by two ranks
  const struct {
    const char* name;
    layout::LayoutConfig layout;
    ops::VocabLossOptions options;
  } cases[] = {{"tiled", alone, tiled},
               {"ring", alone, ring_of_weights},
               {"tiled", replicas, tiled},
               {"ring of activations", replicas, ring_of_activations},
               {"vocab_parallel", shards, kVocabParallel},
               {"tiled", shards, tiled},
               {"ring of activations", shards, ring_of_activations},
               {"ring of weights", shards, ring_of_weights}};
  for (const auto& [name, layout, options] : cases) {
    auto run = small_run(2, layout);
    run.step.loss = options;
    const auto losses = train_losses(
        run, kSteps, [&] { return std::make_unique<ops::GivenRouting>(record.replay(run.model)); });
    double worst = 0;
    for (int64_t i = 0; i < kSteps; ++i) worst = std::max(worst, std::abs(losses[i] - want[i]));
    EXPECT_LE(worst, 1e-6) << name << ", P = " << layout.vocab_degree;
  }
}

}  // namespace
}  // namespace steppe::testing
