#include "steppe/train/metrics/summary_tables.h"

#include <gtest/gtest.h>

#include "steppe/base/error.h"

namespace steppe::metrics {
namespace {

constexpr int64_t kMiB = 1 << 20;

TEST(PeakTable, IsSortedAlignedAndAddsUp) {
  EXPECT_EQ(peak_table({{"grads", 512 * kMiB}, {"idle", 0}, {"weights", 1536 * kMiB}}),
            "category     peak   share\n"
            "weights   1.50GiB   75.0%\n"
            "grads      512MiB   25.0%\n"
            "total        2GiB  100.0%");
}

TEST(PeakTable, EqualSizesGoByNameAndThePlanStandsBelow) {
  EXPECT_EQ(peak_table({{"b", kMiB}, {"a", kMiB}}, 3 * kMiB),
            "category  peak   share\n"
            "a         1MiB   50.0%\n"
            "b         1MiB   50.0%\n"
            "total     2MiB  100.0%\n"
            "planned   3MiB  150.0%");
}

TEST(PeakTable, NothingHeld) {
  EXPECT_EQ(peak_table({}),
            "category  peak  share\n"
            "total       0B      -");
}

TEST(PeakTable, RefusesANegativeSize) {
  EXPECT_THROW(peak_table({{"weights", -1}}), ValueError);
}

TEST(ValidationLines, ColumnsAreAligned) {
  EXPECT_EQ(validation_lines(500, {{"wiki", 2.25, 131072}, {"source", 20, 7}}),
            "validation  step 500  wiki    loss  2.2500  ppl     9.49  131072 tokens\n"
            "validation  step 500  source  loss 20.0000  ppl 4.85e+08       7 tokens");
  EXPECT_EQ(validation_lines(0, {}), "");
}

}  // namespace
}  // namespace steppe::metrics
