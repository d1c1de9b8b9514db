// What the two threads of a Watchdog share. Included by its three sources only.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/launch/heartbeat.h"
#include "cli/launch/watchdog.h"

namespace steppe::launch {

using SteadyTime = std::chrono::steady_clock::time_point;

inline std::chrono::milliseconds since(SteadyTime begin) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
}

inline double seconds(std::chrono::milliseconds time) {
  return time.count() / 1000.0;
}

struct Watchdog::State {
  c10::intrusive_ptr<c10d::Store> store;  // the talker's own connection
  LaunchEnvironment environment;
  WatchdogOptions options;

  // Written by the training thread, read by the talker.
  std::atomic<std::int64_t> progress{0};
  std::atomic<std::int64_t> step{0};
  std::atomic<const char*> where{"start"};
  std::atomic<std::int64_t> progress_at{0};  // on the clock below
  // Milliseconds this process has been awake, kept by the judge. A job that the cluster suspends and
  // resumes (SIGSTOP, SIGCONT) has not hung meanwhile.
  std::atomic<std::int64_t> awake{0};

  std::mutex mutex;
  std::condition_variable changed;
  // All below under the mutex.
  bool stopping = false;   // threads leave at their next look
  bool finishing = false;  // the run is over; the host still waits for the others
  bool talker_left = false;
  bool hang_seen = false;
  std::optional<Failure> own;  // what fail() was told
  std::string own_details;
  std::int64_t failing_at = 0, hang_at = 0, contact_at = 0, lost_at = 0;
  std::string lost_why;  // the store's last error; empty while it answers
  std::optional<Failure> verdict;
  bool told_by_me = false;  // this rank found the verdict, so it prints it

  std::thread talker, judge;

  // The talker's thread.
  void talk();
  void exchange();
  void watch_next();
  void report_own();
  void report_hang();
  bool finish();
  void decide(const Failure& failure, bool by_me);
  Heartbeat heartbeat(bool done) const;
  // The judge's thread.
  void judge_until_stopped();
  std::optional<Failure> judgement(std::int64_t now);
  [[noreturn]] void leave(const Failure& failure);
  void print(const Failure& failure) const;
  void leave_error_file(const Failure& failure);
  // The store goes with the process that serves it: the others look once per interval.
  void let_others_read() const;

  // The talker's memory.
  std::int64_t beats = 0;
  int next = 0;
  std::int64_t next_beats = -1, next_changed_at = 0;
  std::optional<SteadyTime> own_since;
  std::vector<std::optional<Heartbeat>> before;  // heartbeats when the connection was lost
  bool said_done = false;
};

}  // namespace steppe::launch
