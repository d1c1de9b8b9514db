// One rank with `ep`, the router choosing and written down: what every layout, kind and micro-batching must
// follow.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/training/small_run.h"

namespace steppe::testing {

struct Reference {
  RoutingRecord record;
  std::vector<double> losses;
};

// Trained once per program; always asked for the same number of steps.
inline Reference& reference(int64_t num_kv_heads, int64_t steps) {
  static std::map<int64_t, Reference> references;
  auto& reference = references[num_kv_heads];
  if (reference.losses.empty()) {
    reference.losses = train_losses(small_run(num_kv_heads, {}), steps,
                                    [&] { return std::make_unique<RecordedTopK>(reference.record); });
    EXPECT_GT(reference.losses.front() - reference.losses.back(), 0.3);
  }
  return reference;
}

// The run, with the reference's routing replayed, has its losses within 1e-6.
inline void expect_follows(const SmallRun& run, int64_t steps, const std::string& what) {
  auto& expected = reference(run.model.num_key_value_heads, steps);
  const auto losses = train_losses(
      run, steps, [&] { return std::make_unique<ops::GivenRouting>(expected.record.replay(run.model)); });
  double worst = 0;
  for (int64_t i = 0; i < steps; ++i) worst = std::max(worst, std::abs(losses[i] - expected.losses[i]));
  EXPECT_LE(worst, 1e-6) << what;
}

inline std::string describe(const layout::LayoutConfig& layout) {
  return fmt::format("W={} D={} E_p={} P={}", layout.world_size, layout.ulysses_degree, layout.expert_degree,
                     layout.vocab_degree);
}

}  // namespace steppe::testing
