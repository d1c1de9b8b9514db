#include "cli/launch/unless_stopped.h"

#include <algorithm>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "steppe/base/error.h"

namespace steppe::launch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLook{50};
constexpr int kLooksPerQuestion = 10;       // at the store, while there is work
constexpr milliseconds kLongestPause{100};  // between questions, once there is none
// "0" or a signal: whatever is there first holds for all ranks.
constexpr const char* kVerdict = "steppe/start/verdict";
constexpr const char* kReady = "steppe/start/ready";      // ranks whose work is done
constexpr const char* kLeaving = "steppe/start/leaving";  // ranks that have read a verdict to stop

int decide(c10d::Store& store, int signal) {
  const auto text = std::to_string(signal);
  const std::vector<uint8_t> none, mine(text.begin(), text.end());
  const auto verdict = store.compareSet(kVerdict, none, mine);
  return std::stoi(std::string(verdict.begin(), verdict.end()));
}

std::optional<int> verdict_of(c10d::Store& store) {
  if (!store.check({kVerdict})) return std::nullopt;
  const auto verdict = store.get(kVerdict);
  return std::stoi(std::string(verdict.begin(), verdict.end()));
}

// Nothing when the work is done, else the verdict that does not wait for it.
std::optional<int> wait_for_work(std::future<void>& done, c10d::Store& store, const StartingRank& self) {
  for (int look = 1; done.wait_for(kLook) != std::future_status::ready; ++look) {
    if (const int signal = self.stop_signal(); signal != 0) return decide(store, signal);
    if (look % kLooksPerQuestion != 0) continue;
    if (const auto verdict = verdict_of(store)) return verdict;
  }
  done.get();
  return std::nullopt;
}

int wait_for_verdict(c10d::Store& store, const StartingRank& self) {
  const auto deadline = Clock::now() + self.timeout;
  if (store.add(kReady, 1) == self.world_size) return decide(store, 0);
  for (auto pause = milliseconds(1);; pause = std::min(2 * pause, kLongestPause)) {
    if (const int signal = self.stop_signal(); signal != 0) return decide(store, signal);
    if (const auto verdict = verdict_of(store)) return *verdict;
    STEPPE_CHECK(Clock::now() < deadline,
                 "[launch] {} of {} ranks are ready to start: the others are not within comm.init_timeout = "
                 "{:g} s of rank {}, which holds for rank 0's plan too",
                 store.add(kReady, 0), self.world_size, std::chrono::duration<double>(self.timeout).count(),
                 self.rank);
    std::this_thread::sleep_for(pause);
  }
}

// The store may live in the process of a rank that leaves.
void wait_until_all_know(c10d::Store& store, const StartingRank& self) {
  const auto deadline = Clock::now() + self.timeout;
  try {
    auto known = store.add(kLeaving, 1);
    for (; known < self.world_size && Clock::now() < deadline; known = store.add(kLeaving, 0))
      std::this_thread::sleep_for(kLook);
  } catch (const std::exception&) {  // a rank that is asked to stop leaves whatever the others do
  }
}

}  // namespace

int run_unless_stopped(const std::function<void()>& work, c10d::Store& store, const StartingRank& self) {
  const auto own = store.clone();  // the work may wait in the other connection
  std::packaged_task<void()> task(work);
  auto done = task.get_future();
  std::thread(std::move(task)).detach();
  auto verdict = wait_for_work(done, *own, self);
  if (!verdict) verdict = wait_for_verdict(*own, self);
  if (*verdict != 0) wait_until_all_know(*own, self);
  return *verdict;
}

}  // namespace steppe::launch
