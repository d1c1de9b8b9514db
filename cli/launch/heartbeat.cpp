#include "cli/launch/heartbeat.h"

#include <algorithm>
#include <sstream>

#include "steppe/base/error.h"

namespace steppe::launch {
namespace {

std::string key(int rank) {
  return "heartbeat/" + std::to_string(rank);
}

}  // namespace

void publish(c10d::Store& store, int rank, const Heartbeat& h) {
  store.set(key(rank), fmt::format("{} {} {} {:d} {}", h.beats, h.progress, h.step, h.done, h.where));
}

std::optional<Heartbeat> read_heartbeat(c10d::Store& store, int rank) {
  if (!store.check({key(rank)})) return std::nullopt;
  const std::string text = store.get_to_str(key(rank));
  std::istringstream fields(text);
  Heartbeat h;
  fields >> h.beats >> h.progress >> h.step >> h.done;
  STEPPE_ASSERT(fields, "[launch] the heartbeat of rank {} reads \"{}\"", rank, text);
  fields.get();
  std::getline(fields, h.where);
  return h;
}

std::vector<std::optional<Heartbeat>> read_heartbeats(c10d::Store& store, int world_size) {
  std::vector<std::optional<Heartbeat>> all;
  for (int rank = 0; rank < world_size; ++rank) all.push_back(read_heartbeat(store, rank));
  return all;
}

std::vector<int> silent_ranks(const std::vector<std::optional<Heartbeat>>& before,
                              const std::vector<std::optional<Heartbeat>>& after) {
  std::vector<int> silent;
  for (std::size_t rank = 0; rank < after.size(); ++rank) {
    if (after[rank] && (after[rank]->done || !before[rank] || before[rank]->beats != after[rank]->beats))
      continue;
    silent.push_back(static_cast<int>(rank));
  }
  return silent;
}

Failure no_progress(const std::vector<std::optional<Heartbeat>>& heartbeats, int noticed_by, double seconds) {
  const auto standing = [&heartbeats](int rank) { return heartbeats[rank] ? heartbeats[rank]->progress : 0; };
  const auto done = [&heartbeats](int rank) { return heartbeats[rank] && heartbeats[rank]->done; };
  int behind = noticed_by, furthest = noticed_by;
  for (int rank = 0; rank < static_cast<int>(heartbeats.size()); ++rank) {
    if (done(rank)) continue;
    if (standing(rank) < standing(behind)) behind = rank;
    if (standing(rank) > standing(furthest)) furthest = rank;
  }
  const auto place = [&heartbeats](int rank) {
    return heartbeats[rank] ? fmt::format("step {} ({})", heartbeats[rank]->step, heartbeats[rank]->where)
                            : std::string("the start");
  };
  std::string message = fmt::format("no progress for {:g} s (comm.timeout): ", seconds);
  if (standing(behind) == standing(furthest)) {
    message += fmt::format("every rank stands at {}; noticed by rank {}", place(behind), noticed_by);
  } else {
    message += fmt::format("rank {} stands at {}, while rank {} has come to {}", behind, place(behind),
                           furthest, place(furthest));
  }
  return {.rank = behind, .message = message};
}

}  // namespace steppe::launch
