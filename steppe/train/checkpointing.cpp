#include "steppe/train/checkpointing.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <utility>
#include <vector>

#include "steppe/base/bytes.h"
#include "steppe/base/error.h"
#include "steppe/checkpoint/native_folder.h"
#include "steppe/checkpoint/native_shard.h"
#include "steppe/comm/collectives.h"
#include "steppe/train/agree_text.h"

namespace steppe::train {
namespace {

using Status = checkpoint::BackgroundTask::Status;

constexpr std::chrono::milliseconds kLook{1000};

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::filesystem::path save_request(const recipe::RunConfig& run) {
  return std::filesystem::path(run.run.folder) / "save";
}

}  // namespace

Checkpointing::Checkpointing(Run run, int64_t start_step)
    : run_(std::move(run)), start_step_(start_step), saved_step_(start_step) {
  const std::string drawn = fmt::format("{:08x}{:08x}", std::random_device{}(), std::random_device{}());
  nonce_ = all_gather_text(run_.control, drawn).front();
  choose_writer();
}

void Checkpointing::choose_writer() {
  const auto& config = run_.config.checkpoint;
  state_bytes_ = checkpoint::HostSnapshot::size_for(checkpoint::rank_states(run_.weights, run_.process.rank));
  if (!config.async) return;
  const int64_t bytes = state_bytes_;
  const int64_t budget =
      config.host_budget.value_or(checkpoint::automatic_host_budget()) / run_.process.local_world_size;
  const int64_t mine[] = {bytes - budget, bytes, budget};
  const auto all = run_.control.all_gather_host(mine);
  size_t worst = 0;
  for (size_t r = 0; r < all.size(); r += 3) {
    if (all[r] > all[worst]) worst = r;
  }
  if (all[worst] <= 0) {
    snapshot_ = std::make_unique<checkpoint::HostSnapshot>(bytes);
    return;
  }
  run_.log.warning(
      "checkpoint.host_budget leaves {} to rank {}, whose snapshot takes {}: training waits while "
      "checkpoints are "
      "written",
      format_bytes(all[worst + 2]), worst / 3, format_bytes(all[worst + 1]));
}

bool Checkpointing::save_is_asked_for() const {
  std::error_code ignored;
  return run_.process.rank == 0 && std::filesystem::remove(save_request(run_.config), ignored);
}

int Checkpointing::after_step(int64_t step, int64_t tokens, bool last) {
  const auto& config = run_.config.checkpoint;
  const int64_t mine[] = {run_.process.stop_signal(), save_is_asked_for() ? 1 : 0,
                          static_cast<int64_t>(task_.status())};
  const auto all = run_.control.all_gather_host(mine);
  int64_t signal = 0;
  std::vector<int64_t> statuses;
  for (size_t r = 0; r < all.size(); r += 3) {
    signal = std::max(signal, all[r]);
    statuses.push_back(all[r + 2]);
  }
  const bool first = config.first_step && start_step_ == 0 && step == 1;
  const bool ends = last || signal != 0;
  if (first || ends) required_step_ = step;
  advance(statuses);
  const bool on_interval = config.interval > 0 && step % config.interval == 0;
  const bool due = first || ends || on_interval || all[1] != 0;
  if (due && saved_step_ != step) {
    finish_save(step);
    const auto begin = Clock::now();
    begin_save(step, tokens);
    if (first || ends || !snapshot_) finish_save(step);
    stall_s_ += seconds_since(begin);
  } else if (ends) {
    finish_save(step);
  }
  STEPPE_CHECK(failure_.empty() || !(first || ends), "{}", failure_);
  return static_cast<int>(signal);
}

void Checkpointing::begin_save(int64_t step, int64_t tokens) {
  saved_step_ = step;
  run_.saved.step = step;
  run_.saved.tokens = tokens;
  failure_.clear();
  id_ = fmt::format("{}-{}", nonce_, ++attempt_);
  phase_ = Phase::kWriting;
  auto copied = std::make_shared<std::promise<void>>();
  copied_ = copied->get_future();
  task_.start([this, copied, state = run_.state_events(), id = id_,
               folder = checkpoint::partial_path(run_.config.checkpoint.folder, step)] {
    const auto begin = Clock::now();
    auto units = checkpoint::rank_states(run_.weights, run_.process.rank);
    for (const auto& event : state) event.wait();
    if (snapshot_) units = snapshot_->take(units);
    copied->set_value();  // a promise that fails before wakes who waits as well
    write_shard(folder, id, run_.process.rank, units);
    write_s_ = seconds_since(begin);
  });
}

void Checkpointing::before_update() {
  if (!copied_.valid()) return;
  const auto begin = Clock::now();
  copied_.wait();
  copied_ = {};
  stall_s_ += seconds_since(begin);
}

void Checkpointing::publish(const std::string& partial, const std::string& id,
                            const checkpoint::SavedRun& saved) {
  const auto begin = Clock::now();
  const auto& config = run_.config.checkpoint;
  run_.before_publishing();
  checkpoint::publish(config.folder, partial, id, saved);
  for (const auto& failure : checkpoint::prune(config.folder, config.keep, config.keep_every))
    run_.log.warning("cannot remove an old checkpoint: {}", failure);
  publish_s_ = seconds_since(begin);
}

bool Checkpointing::is_saved(int64_t step) const {
  return phase_ == Phase::kNone && saved_step_ == step && failure_.empty();
}

void Checkpointing::write_beside(int64_t step) {
  if (is_saved(step)) return;
  while (task_.status() == Status::kBusy) task_.wait_for(kLook);
  write_shard(checkpoint::last_partial_path(run_.config.checkpoint.folder, step), nonce_ + "-last",
              run_.process.rank, checkpoint::rank_states(run_.weights, run_.process.rank));
}

void Checkpointing::publish_beside(int64_t step, int64_t tokens) {
  if (is_saved(step)) return;
  auto saved = run_.saved;
  saved.step = step;
  saved.tokens = tokens;
  publish(checkpoint::last_partial_path(run_.config.checkpoint.folder, step), nonce_ + "-last", saved);
}

double Checkpointing::save_seconds() const {
  constexpr double kGuess = 200e6;  // bytes a second
  const double last = write_s_ + publish_s_;
  return last > 0 ? last : static_cast<double>(state_bytes_) / kGuess;
}

void Checkpointing::advance(std::span<const int64_t> statuses) {
  const auto is = [](Status status) {
    return [status](int64_t s) { return s == static_cast<int64_t>(status); };
  };
  if (phase_ == Phase::kWriting) {
    if (std::ranges::any_of(statuses, is(Status::kBusy))) return;
    if (std::ranges::any_of(statuses, is(Status::kFailed))) return fail();
    task_.reset();
    phase_ = Phase::kPublishing;
    if (run_.process.rank != 0) return;
    task_.start([this, partial = checkpoint::partial_path(run_.config.checkpoint.folder, run_.saved.step),
                 id = id_, saved = run_.saved] { publish(partial, id, saved); });
  } else if (phase_ == Phase::kPublishing) {
    if (is(Status::kBusy)(statuses.front())) return;
    if (is(Status::kFailed)(statuses.front())) return fail();
    task_.reset();
    phase_ = Phase::kNone;
    published_ = checkpoint::checkpoint_path(run_.config.checkpoint.folder, run_.saved.step);
    run_.log.info("saved step {} in {}: {} in {:.2f} s", run_.saved.step, published_,
                  format_bytes(state_bytes_), write_s_ + publish_s_);
  }
}

// Collective. All ranks know the reason afterwards.
void Checkpointing::fail() {
  phase_ = Phase::kNone;
  const auto reasons = all_gather_text(run_.control, task_.failure());
  task_.reset();
  std::string what;
  for (size_t rank = 0; rank < reasons.size() && what.empty(); ++rank) {
    if (!reasons[rank].empty()) what = fmt::format("rank {}: {}", rank, reasons[rank]);
  }
  failure_ = fmt::format("[checkpoint] step {} is not saved: {}", run_.saved.step, what);
  if (!published_.empty()) {
    failure_ += fmt::format("; {} is untouched", published_);
  } else {
    failure_ += start_step_ > 0
                    ? fmt::format("; that of step {}, which the run goes on from, is untouched", start_step_)
                    : "; there is no earlier checkpoint of this run";
  }
  if (run_.saved.step != required_step_) run_.log.warning("{}", failure_);
  if (run_.process.rank == 0) checkpoint::remove_partial(run_.config.checkpoint.folder, run_.saved.step);
}

void Checkpointing::finish_save(int64_t step) {
  while (phase_ != Phase::kNone) {
    run_.process.progress(step, "checkpoint");
    task_.wait_for(kLook);
    const int64_t mine = static_cast<int64_t>(task_.status());
    const auto statuses = run_.control.all_gather_host({&mine, 1});
    advance(statuses);
  }
}

}  // namespace steppe::train
