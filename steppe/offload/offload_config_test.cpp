#include "steppe/offload/offload_config.h"

#include <gtest/gtest.h>

#include <string>

#include "steppe/base/error.h"

namespace steppe::offload {
namespace {

// 10 tokens of 12 values of 4 bytes: 480, in whole ranges 512.
const BoundaryBytes kBoundaries{5, 10, 12, 4};

TEST(OffloadConfig, RanksOfANodeShareItsBudgetEquallyAndNeverExceedIt) {
  for (const int64_t budget : {0, 1, 63, 64, 1000, 4096, 1'000'000}) {
    for (const int64_t ranks : {1, 2, 3, 7, 8}) {
      const int64_t share = host_share(budget, ranks);
      EXPECT_LE(share * ranks, budget);
      EXPECT_GT((share + 64) * ranks, budget);
      EXPECT_EQ(share % 64, 0);
    }
  }
}

TEST(OffloadConfig, TheArenaIsNoLargerThanItsUse) {
  EXPECT_EQ(boundary_arena_bytes(BoundaryPolicy::kNone, 1 << 20, kBoundaries), 0);
  EXPECT_EQ(boundary_arena_bytes(BoundaryPolicy::kSco, 1024, kBoundaries), 1024);
  EXPECT_EQ(boundary_arena_bytes(BoundaryPolicy::kSco, 1 << 20, kBoundaries), 5 * 512);
  EXPECT_EQ(boundary_arena_bytes(BoundaryPolicy::kAll, 1 << 20, kBoundaries), 5 * 512);
  EXPECT_EQ(boundary_arena_bytes(BoundaryPolicy::kAll, 5 * 512, kBoundaries), 5 * 512);
}

TEST(OffloadConfig, AllIsAnErrorWhereTheBudgetDoesNotHoldAll) {
  try {
    boundary_arena_bytes(BoundaryPolicy::kAll, 5 * 512 - 64, kBoundaries);
    FAIL() << "no error";
  } catch (const ValueError& error) {
    EXPECT_EQ(std::string(error.what()),
              "[offload] offload.host_budget must hold 5 boundaries of 512 bytes = 2560 bytes on each rank "
              "with offload.activations = \"all\", but a rank's share is 2496");
  }
}

}  // namespace
}  // namespace steppe::offload
