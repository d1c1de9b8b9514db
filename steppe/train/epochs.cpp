#include "steppe/train/epochs.h"

#include <algorithm>
#include <cmath>

#include "steppe/base/error.h"
#include "steppe/data/batch_source.h"
#include "steppe/train/assembly.h"
#include "steppe/train/configure.h"

namespace steppe::train {
namespace {

constexpr int64_t kMostSteps = 1'000'000'000;

}  // namespace

int64_t steps_of_epochs(const recipe::RunConfig& run, int world_size) {
  STEPPE_ASSERT(run.training.epochs, "[epochs] the recipe does not count in epochs");
  const RankShape shape(run, 0, world_size);
  const auto batch = batch_shape(run, shape.layout_config);
  const data::BatchSource source(data_config(run), batch, /*group=*/0, shape.model.vocab_size);
  const double sequences = *run.training.epochs * static_cast<double>(source.sequences_per_epoch());
  const double steps = std::ceil(sequences / static_cast<double>(batch.global_batch_size));
  STEPPE_CHECK_VALUE(steps <= kMostSteps,
                     "[recipe] training.epochs = {} would take {:.3g} steps, more than {}",
                     *run.training.epochs, steps, kMostSteps);
  return std::max<int64_t>(1, static_cast<int64_t>(steps));
}

}  // namespace steppe::train
