// The batches of a run, as one group sees them: blended training data read ahead by one step in the
// background, and the validation sets.
//
// Every rank makes its own; all ranks of a group get the same micro-batches. What a step holds depends on
// (configuration, step) alone, so a run resumes by asking for the next step.
// Errors: those of IndexedDataset and SequenceStream at construction; an id outside the vocabulary when the
// step that holds it is asked for (never earlier, although it is read earlier). The thread is joined on
// destruction. One caller at a time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "steppe/data/batch_plan.h"
#include "steppe/data/blend.h"
#include "steppe/data/config.h"
#include "steppe/data/sequence_stream.h"

namespace steppe::data {

class BatchSource {
 public:
  // `group`: this rank's, of shape.num_groups. `vocab_size`: the model's.
  BatchSource(const DataConfig& config, const BatchShape& shape, int64_t group, int64_t vocab_size);
  ~BatchSource();
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;

  // Micro-batches of a training step, any step, fastest in rising order. Begins to read the step after.
  std::vector<Microbatch> read(int64_t step);
  // Sequences in which every training document has been read at least once (exactly once with one dataset, up
  // to the last sequence, where the next epoch begins).
  int64_t sequences_per_epoch() const { return sequences_per_epoch_; }
  int64_t num_micro_batches() const { return plan_.num_micro_batches(plan_.shape().global_batch_size); }

  // [[validation.set]], then, with val_split, the held-out part of each training dataset under its name.
  size_t num_validation_sets() const { return validation_.size(); }
  const std::string& validation_name(size_t set) const { return validation_[set].dataset().name(); }
  int64_t num_validation_steps(size_t set) const;
  std::vector<Microbatch> validation_microbatches(size_t set, int64_t step);

 private:
  struct Finished {
    int64_t step;
    std::vector<Microbatch> micro_batches;
    std::exception_ptr error;
  };

  void open_validation(const DataConfig& config, int64_t vocab_size);
  std::vector<Microbatch> load(int64_t step);  // by the reading thread only
  void read_ahead(std::stop_token stop);

  BatchPlan plan_;
  int64_t group_;
  std::vector<SequenceStream> train_;  // owned by the reading thread once it runs
  Blend blend_;
  int64_t sequences_per_epoch_ = 0;
  std::vector<SequenceStream> validation_;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<int64_t> wanted_;     // the step to read next
  std::optional<int64_t> reading_;    // the step being read
  std::optional<Finished> finished_;  // read and not yet taken
  std::jthread reader_;               // last, so that it is joined before what it uses goes
};

}  // namespace steppe::data
