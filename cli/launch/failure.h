// How a failing rank tells the others: one key in the store, which the first report takes.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "cli/launch/exit_report.h"

namespace steppe::launch {

enum class FailureKind {
  kCause,       // this rank's own: an error in its input, a crash, a hang
  kConnection,  // it lost a peer; the peer may still tell why
  kLatePeer,    // as that, and the peer did not answer in time
};

struct Failure {
  int rank = 0;
  std::string message = {};
  FailureKind kind = FailureKind::kCause;
  std::int64_t timestamp = 0;  // seconds since the epoch; 0: now
};

// Publishes a failure unless one stands already, and returns the one that stands: the job's cause.
// One round trip. Throws what the store throws when it is out of reach.
Failure report_failure(c10d::Store& store, const Failure& failure);
Failure report_failure(c10d::Store& store, int rank, const std::string& message);

// The failure that stands, if any. One or two round trips.
std::optional<Failure> find_failure(c10d::Store& store);

// kConnection or kLatePeer for what communicators and the store throw when a peer goes away or does not
// answer in time. Where the type says little (NCCL's are std::runtime_error), the words decide.
FailureKind kind_of(const std::exception& error);

// Message without, details with the C++ backtrace that Torch's errors carry.
ErrorReport describe(const std::exception& error);

}  // namespace steppe::launch
