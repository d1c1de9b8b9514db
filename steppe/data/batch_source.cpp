#include "steppe/data/batch_source.h"

#include <memory>
#include <utility>

#include "steppe/base/error.h"

namespace steppe::data {
namespace {

std::shared_ptr<const IndexedDataset> open(const DatasetConfig& config) {
  return std::make_shared<const IndexedDataset>(config.path, config.name);
}

std::vector<SequenceStream> open_training(const DataConfig& config, int64_t vocab_size) {
  check(config);
  STEPPE_CHECK_VALUE(!config.train.empty(), "[data] `data.train` must name at least one dataset");
  std::vector<SequenceStream> streams;
  for (const DatasetConfig& set : config.train) {
    streams.emplace_back(open(set), config,
                         StreamOptions{.part = StreamOptions::Part::kTraining,
                                       .kind = StreamOptions::Kind::kEndless,
                                       .vocab_size = vocab_size});
  }
  return streams;
}

std::vector<double> weights(const DataConfig& config) {
  std::vector<double> weights;
  for (const DatasetConfig& set : config.train) weights.push_back(set.weight);
  return weights;
}

}  // namespace

BatchSource::BatchSource(const DataConfig& config, const BatchShape& shape, int64_t group, int64_t vocab_size)
    : plan_(shape), group_(group), train_(open_training(config, vocab_size)), blend_(weights(config)) {
  STEPPE_CHECK_VALUE(group >= 0 && group < shape.num_groups, "[data] group must be in [0, {}), got {}",
                     shape.num_groups, group);
  open_validation(config, vocab_size);
  std::vector<int64_t> epochs;
  for (const SequenceStream& stream : train_) epochs.push_back(stream.sequences_per_epoch());
  sequences_per_epoch_ = blend_.sequences_covering(epochs);
  reader_ = std::jthread([this](std::stop_token stop) { read_ahead(std::move(stop)); });
}

BatchSource::~BatchSource() = default;

void BatchSource::open_validation(const DataConfig& config, int64_t vocab_size) {
  StreamOptions options{.kind = StreamOptions::Kind::kOnce, .vocab_size = vocab_size};
  for (const DatasetConfig& set : config.validation) validation_.emplace_back(open(set), config, options);
  if (config.val_split == 0) return;
  options.part = StreamOptions::Part::kHeldOut;
  for (const DatasetConfig& set : config.train) {
    for (const SequenceStream& other : validation_) {
      STEPPE_CHECK_VALUE(
          other.dataset().name() != set.name,
          "[data] `validation.set` name \"{}\" is taken by the held-out part of `data.train` \"{}\" "
          "(`data.val_split` = {})",
          set.name, set.name, config.val_split);
    }
    validation_.emplace_back(open(set), config, options);
  }
}

std::vector<Microbatch> BatchSource::read(int64_t step) {
  STEPPE_ASSERT(step >= 0, "[data] step {}", step);
  std::unique_lock lock(mutex_);
  if (finished_ && finished_->step != step) finished_.reset();
  if (!finished_) {
    if (reading_ != step) wanted_ = step;
    changed_.notify_all();
    // A step read ahead in vain may be put down first; it is passed over.
    changed_.wait(lock, [&] { return finished_ && finished_->step == step; });
  }
  Finished taken = std::move(*finished_);
  finished_.reset();
  wanted_ = step + 1;
  changed_.notify_all();
  if (taken.error) std::rethrow_exception(taken.error);
  return std::move(taken.micro_batches);
}

void BatchSource::read_ahead(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return wanted_.has_value(); })) {
    Finished next{*wanted_, {}, nullptr};
    reading_ = std::exchange(wanted_, std::nullopt);
    lock.unlock();
    try {
      next.micro_batches = load(next.step);
    } catch (...) {
      next.error = std::current_exception();
    }
    lock.lock();
    reading_.reset();
    finished_ = std::move(next);
    changed_.notify_all();
  }
}

std::vector<Microbatch> BatchSource::load(int64_t step) {
  std::vector<Microbatch> loaded;
  for (const auto& sequences : plan_.micro_batches(step, group_)) {
    Microbatch& micro_batch = loaded.emplace_back();
    for (const int64_t sequence : sequences) {
      const Blend::Choice choice = blend_.choose(sequence);
      micro_batch.append(train_[choice.dataset].sample(choice.index), sequence);
    }
  }
  return loaded;
}

int64_t BatchSource::num_validation_steps(size_t set) const {
  return plan_.num_steps(validation_[set].sequences_per_epoch());
}

std::vector<Microbatch> BatchSource::validation_microbatches(size_t set, int64_t step) {
  STEPPE_ASSERT(set < validation_.size(), "[data] validation set {} of {}", set, validation_.size());
  SequenceStream& stream = validation_[set];
  std::vector<Microbatch> loaded;
  for (const auto& sequences : plan_.micro_batches(step, group_, stream.sequences_per_epoch())) {
    Microbatch& micro_batch = loaded.emplace_back();
    for (const int64_t sequence : sequences) micro_batch.append(stream.sample(sequence), sequence);
  }
  return loaded;
}

}  // namespace steppe::data
