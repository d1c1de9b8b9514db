// A program of its own: what the ledger says against what the kernel of the operating system counts. RSS is
// the process's, and honest only when freed pages go back (--return-freed-pages).
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "steppe/memory/scope.h"
#include "steppe/memory/tracking_allocator.h"
#include "tests/training/small_run.h"

namespace steppe::testing {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// The most that was ever resident (VmHWM).
int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (int64_t kib = 0; word == "VmHWM:" && status >> kib) return kib * 1024;
  }
  ADD_FAILURE() << "/proc/self/status has no line VmHWM";
  return 0;
}

void train(const SmallRun& run, int64_t steps) {
  ops::TopKRouting routing;
  const layout::RankLayout layout(run.layout, 0);
  Rank rank(run, 0, comm::make_groups(layout, {}, std::chrono::seconds(1), /*cuda=*/false), at::kCPU,
            routing);
  for (int64_t step = 0; step < steps; ++step) {
    rank.step.train(small_batch(run, step, 0), run.lr, step + 1);
  }
}

SmallRun large_run(train::Recompute recompute) {
  auto run = small_run(4, {});
  run.model.hidden_size = 256;
  run.model.intermediate_size = run.model.moe_intermediate_size = 512;
  run.model.vocab_size = 16384;
  run.model.num_attention_heads = 8;
  run.model.head_dim = 32;
  run.seq_length = 512;
  run.global_batch_size = run.micro_batch_size = 4;
  run.step.recompute = recompute;
  return run;
}

class TrainingResident : public ::testing::TestWithParam<train::Recompute> {};

// Nothing is bound: the process's ledger has the kernels' worker threads too.
TEST_P(TrainingResident, PeakFollowsTheLedger) {
  train(small_run(2, {}), 1);  // libraries are paged in, threads started, the products' own buffers taken
  auto& ledger = memory::process_ledger();
  ledger.reset_peak();
  const int64_t live_before = ledger.live_bytes(), resident_before = memory::resident_bytes();
  const int64_t highest_before = peak_resident_bytes();

  train(large_run(GetParam()), 1);

  const int64_t tracked = ledger.peak().bytes - live_before;
  ASSERT_GT(peak_resident_bytes(), highest_before) << "the peak is that of an earlier training";
  const int64_t resident = peak_resident_bytes() - resident_before;
  RecordProperty("tracked_mib", std::to_string(tracked / kMiB));
  RecordProperty("resident_mib", std::to_string(resident / kMiB));
  EXPECT_GT(tracked, 300 * kMiB);
  const auto tolerance = std::max<double>(64 * kMiB, 0.05 * static_cast<double>(resident));
  EXPECT_NEAR(static_cast<double>(tracked), static_cast<double>(resident), tolerance);
  EXPECT_EQ(ledger.live_bytes(), live_before);
}

// In the order of their peaks.
INSTANTIATE_TEST_SUITE_P(Recomputation, TrainingResident,
                         ::testing::Values(train::Recompute::kFull, train::Recompute::kNone));

}  // namespace
}  // namespace steppe::testing
