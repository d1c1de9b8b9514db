// When a signal comes in a step that would not end in time: the step is dropped, and what the one before left
// is saved.
//
// A step changes weights and optimizer state at its end only. Until then they are those of the last finished
// step, and a thread beside the training thread can save them, whatever the training thread waits for. What
// keeps it from changing them meanwhile is a gate, which the training thread holds except while it computes
// gradients. Rank 0 decides, by its own clock; the ranks agree through the store in rounds: rank 0 closes its
// gate and names its step, the others close theirs if they are at the same one, and only when all are closed
// is the step dropped. Otherwise all open again, and the step ends as any other.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "steppe/base/log.h"
#include "steppe/base/stream.h"
#include "steppe/recipe/run_config.h"
#include "steppe/train/checkpointing.h"
#include "steppe/train/trainer.h"

namespace steppe::train {

class LastSave {
 public:
  // By the training thread, which then holds the gate. Everything given must outlive it. Does nothing without
  // process.leave.
  LastSave(const recipe::RunConfig& run, const Process& process, const Log& log, Checkpointing& checkpointing,
           int64_t step, int64_t tokens);
  ~LastSave();
  LastSave(const LastSave&) = delete;
  LastSave& operator=(const LastSave&) = delete;

  // While it lives, the training thread changes neither weights nor optimizer state. Its end may never
  // return: the process leaves.
  class Computing {
   public:
    explicit Computing(LastSave& save);
    ~Computing();
    Computing(const Computing&) = delete;

   private:
    LastSave& save_;
  };
  // The training thread finished a step; its state is whole behind the events.
  void finished(int64_t step, int64_t tokens, const std::array<Event, 2>& state);

 private:
  using Clock = std::chrono::steady_clock;

  void watch(const std::stop_token& stop);
  bool step_is_too_long() const;
  void lead();
  void follow();
  void save_and_leave();
  std::string save();
  std::string key(const std::string& name) const;
  bool appears(const std::string& name, std::chrono::milliseconds limit) const;
  std::string text_of(const std::string& name) const;

  const recipe::RunConfig& run_;
  const Process& process_;
  const Log& log_;
  Checkpointing& checkpointing_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::timed_mutex gate_;
  std::array<Event, 2> state_;                  // behind the gate, as the next
  int64_t step_, tokens_;                       // of the last finished step; behind the gate
  std::atomic<Clock::rep> computing_since_{0};  // 0: it does not compute
  std::atomic<double> step_s_{0};               // of the last finished step's gradients; 0: none yet
  int round_ = 1;
  std::jthread thread_;
};

}  // namespace steppe::train
