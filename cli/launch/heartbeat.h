// What each rank publishes about itself, and what can be read out of all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "cli/launch/failure.h"

namespace steppe::launch {

struct Heartbeat {
  std::int64_t beats = 0;     // counts up while the process lives
  std::int64_t progress = 0;  // counts up while its training thread moves
  std::int64_t step = 0;
  std::string where;
  bool done = false;  // left the run as planned
};

void publish(c10d::Store& store, int rank, const Heartbeat& heartbeat);

// Nothing when the rank has not published yet. Two round trips.
std::optional<Heartbeat> read_heartbeat(c10d::Store& store, int rank);

// Of all ranks, in their order. 2·W round trips: for diagnosis, not for every interval.
std::vector<std::optional<Heartbeat>> read_heartbeats(c10d::Store& store, int world_size);

// Ranks whose heart has not beaten between two readings.
std::vector<int> silent_ranks(const std::vector<std::optional<Heartbeat>>& before,
                              const std::vector<std::optional<Heartbeat>>& after);

// The failure of a job in which nothing moves: names the rank whose training thread stands furthest behind,
// since the others wait for it.
Failure no_progress(const std::vector<std::optional<Heartbeat>>& heartbeats, int noticed_by, double seconds);

}  // namespace steppe::launch
