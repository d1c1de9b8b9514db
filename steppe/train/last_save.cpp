#include "steppe/train/last_save.h"

#include <fmt/format.h>

#include <exception>
#include <vector>

namespace steppe::train {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{50}, kPoll{10};
constexpr milliseconds kToClose{700};  // a gate
constexpr milliseconds kToAgree{1500};

double seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

}  // namespace

LastSave::LastSave(const recipe::RunConfig& run, const Process& process, const Log& log,
                   Checkpointing& checkpointing, int64_t step, int64_t tokens)
    : run_(run), process_(process), log_(log), checkpointing_(checkpointing), step_(step), tokens_(tokens) {
  gate_.lock();
  if (!process.leave) return;
  store_ = process.store->clone();  // a connection of its own: the training thread's may be waiting
  thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

LastSave::~LastSave() {
  if (thread_.joinable()) {
    thread_.request_stop();
    thread_.join();
  }
  gate_.unlock();
}

LastSave::Computing::Computing(LastSave& save) : save_(save) {
  save.computing_since_ = Clock::now().time_since_epoch().count();
  save.gate_.unlock();
}

LastSave::Computing::~Computing() {
  save_.gate_.lock();
  const Clock::time_point since{Clock::duration(save_.computing_since_.exchange(0))};
  save_.step_s_ = seconds(Clock::now() - since);
}

void LastSave::finished(int64_t step, int64_t tokens, const std::array<Event, 2>& state) {
  state_ = state;
  step_ = step;
  tokens_ = tokens;
}

void LastSave::watch(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::this_thread::sleep_for(kLook);
    if (process_.stop_signal() == 0) continue;
    try {
      process_.rank == 0 ? lead() : follow();
    } catch (const std::exception& error) {
      log_.warning("the step cannot be dropped: {}", error.what());
      return;
    }
  }
}

bool LastSave::step_is_too_long() const {
  const auto since = computing_since_.load();
  if (since == 0) return false;
  const double elapsed = seconds(Clock::now() - Clock::time_point(Clock::duration(since)));
  const double last = step_s_;
  if (last == 0) return true;  // nothing was finished yet, and nothing is lost but the beginning of a step
  const double rest = std::max(0.0, 1.1 * last - elapsed);
  return process_.seconds_since_signal() + rest + checkpointing_.save_seconds() > run_.checkpoint.grace;
}

std::string LastSave::key(const std::string& name) const {
  return fmt::format("last_save/{}/{}", round_, name);
}

bool LastSave::appears(const std::string& name, milliseconds limit) const {
  const auto end = Clock::now() + limit;
  while (!store_->check({key(name)})) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

std::string LastSave::text_of(const std::string& name) const {
  const auto bytes = store_->get(key(name));
  return {bytes.begin(), bytes.end()};
}

void LastSave::lead() {
  if (!step_is_too_long()) return;
  const std::unique_lock gate(gate_, kToClose);
  if (!gate.owns_lock()) return;
  store_->set(key("step"), bytes_of(std::to_string(step_)));
  bool all = true;
  const auto end = Clock::now() + kToAgree;
  for (int rank = 1; rank < process_.world_size && all; ++rank) {
    const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
    all = appears(fmt::format("closed/{}", rank), std::max(left, milliseconds(0)));
  }
  store_->set(key("verdict"), bytes_of(all ? "drop" : "finish"));
  if (all) save_and_leave();
  ++round_;
}

void LastSave::follow() {
  if (!store_->check({key("step")})) return;
  std::unique_lock gate(gate_, kToClose);
  const bool same = gate.owns_lock() && std::to_string(step_) == text_of("step");
  if (same) store_->set(key(fmt::format("closed/{}", process_.rank)), bytes_of("1"));
  if (!same && gate.owns_lock()) gate.unlock();
  if (appears("verdict", 4 * kToAgree) && text_of("verdict") == "drop") save_and_leave();
  ++round_;
}

// The error of any rank; empty when the checkpoint is in place.
std::string LastSave::save() {
  const milliseconds limit(static_cast<int64_t>(1000 * run_.comm.timeout));
  const auto failure_of = [](const auto& act) -> std::string {
    try {
      act();
      return {};
    } catch (const std::exception& error) {
      return error.what();
    }
  };
  const auto written = [](int rank) { return fmt::format("written/{}", rank); };
  store_->set(key(written(process_.rank)), bytes_of(failure_of([&] {
                for (const auto& event : state_) event.wait();
                checkpointing_.write_beside(step_);
              })));
  if (process_.rank == 0) {
    std::string failure;
    for (int rank = 0; rank < process_.world_size && failure.empty(); ++rank) {
      failure = appears(written(rank), limit) ? text_of(written(rank)) : "it does not answer";
      if (!failure.empty()) failure = fmt::format("rank {}: {}", rank, failure);
    }
    if (failure.empty()) failure = failure_of([&] { checkpointing_.publish_beside(step_, tokens_); });
    store_->set(key("published"), bytes_of(failure));
  }
  return appears("published", limit) ? text_of("published") : "rank 0 does not answer";
}

void LastSave::save_and_leave() {
  process_.dropped_step();
  log_.info("step {} is dropped: it would not end within checkpoint.grace", step_ + 1);
  const auto failure = save();
  process_.leave(step_,
                 failure.empty() ? "" : fmt::format("[checkpoint] step {} is not saved: {}", step_, failure));
}

}  // namespace steppe::train
