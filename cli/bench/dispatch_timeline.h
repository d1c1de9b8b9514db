// When a rank's experts worked and when its rows travelled, written down while the benchmark's layer runs: of
// every matrix product when it began and ended, of every exchange when it was issued and when the last of its
// messages had arrived, as a thread of its own saw it.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "steppe/comm/communicator.h"

namespace steppe::cli {

using TimelineClock = std::chrono::steady_clock;

struct Span {
  double begin = 0, end = 0;  // seconds since the timeline's start
};

// One pass of one kind on one rank.
struct PassTimeline {
  std::string kind, pass;
  int rank = 0;
  Span whole;
  std::vector<Span> products, exchanges;

  // Seconds in which rows travelled, and in which they did while products were computed.
  double travelling() const;
  double hidden() const;
};

// Chrome's trace format, which Perfetto and chrome://tracing read: a process per rank, in it the experts and
// the exchanges.
void write_timeline(const std::string& path, const std::vector<std::vector<PassTimeline>>& of_ranks);

// While alive, this thread's matrix products are added to `spans`.
class ProductRecorder {
 public:
  ProductRecorder(TimelineClock::time_point start, std::vector<Span>& spans);
  ~ProductRecorder();
  ProductRecorder(const ProductRecorder&) = delete;
  ProductRecorder& operator=(const ProductRecorder&) = delete;

 private:
  uint64_t handle_;
};

// Adds every exchange to `spans` when it is done.
class RecordingCommunicator final : public comm::Communicator {
 public:
  RecordingCommunicator(comm::Communicator& inner, TimelineClock::time_point start, std::vector<Span>& spans)
      : Communicator(inner.name(), inner.rank(), inner.size()), inner_(inner), start_(start), spans_(spans) {}

  comm::Pending exchange(std::span<const at::Tensor> sends, std::span<const at::Tensor> receives) override;
  std::vector<int64_t> all_gather_host(std::span<const int64_t> mine) override {
    return inner_.all_gather_host(mine);
  }
  void barrier() override { inner_.barrier(); }

 private:
  comm::Communicator& inner_;
  TimelineClock::time_point start_;
  std::mutex mutex_;
  std::vector<Span>& spans_;
};

}  // namespace steppe::cli
