// A program of its own: RSS is the process's, and honest only under `return_freed_pages`.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <vector>

#include "steppe/memory/scope.h"
#include "steppe/memory/tracking_allocator.h"

namespace steppe::memory {
namespace {

at::Tensor touched(int64_t bytes) {
  return at::ones({bytes}, at::kByte);
}

TEST(Resident, FollowsTheLedger) {
  const at::Tensor warm_up = touched(1 << 20);
  Ledger ledger;
  LedgerBinding binding(ledger);
  const int64_t before = resident_anonymous_bytes();
  std::mt19937 random(3);
  std::vector<at::Tensor> blocks;
  const auto check = [&](const char* when) {
    const int64_t live = ledger.live_bytes();
    const double tolerance = (4 << 20) + 0.005 * static_cast<double>(live);
    EXPECT_NEAR(static_cast<double>(resident_anonymous_bytes() - before), static_cast<double>(live),
                tolerance)
        << when;
  };
  for (int i = 0; i < 64; ++i) blocks.push_back(touched(random() % (6 << 20) + 1));
  EXPECT_GT(ledger.live_bytes(), 100 << 20);
  check("allocated");
  for (size_t i = 0; i < blocks.size(); i += 2) blocks[i].reset();
  check("every other block released");
  for (size_t i = 0; i < blocks.size(); i += 2) blocks[i] = touched(random() % (3 << 20) + 1);
  check("refilled with smaller blocks");
  blocks.clear();
  check("all released");
}

TEST(Resident, CountsAllOfTheProcess) {
  EXPECT_GT(resident_bytes(), resident_anonymous_bytes());
  EXPECT_GT(resident_anonymous_bytes(), 0);
}

}  // namespace
}  // namespace steppe::memory
