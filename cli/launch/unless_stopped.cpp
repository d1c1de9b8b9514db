#include "cli/launch/unless_stopped.h"

#include <algorithm>
#include <future>
#include <string>
#include <thread>

#include "steppe/comm/store_gather.h"

namespace steppe::launch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{50};
constexpr int kLooksPerQuestion = 10;  // at the store
constexpr const char* kStopped = "steppe/start/stopped";

int number_in(const std::vector<uint8_t>& bytes) {
  return std::stoi(std::string(bytes.begin(), bytes.end()));
}

}  // namespace

int run_unless_stopped(const std::function<void()>& work, c10d::Store& store, const StartingRank& self) {
  const auto own = store.clone();  // the work may wait in the other connection
  std::packaged_task<void()> task(work);
  auto done = task.get_future();
  std::thread(std::move(task)).detach();
  int signal = 0;
  for (int look = 1; signal == 0 && done.wait_for(kLook) != std::future_status::ready; ++look) {
    signal = self.stop_signal();
    if (signal == 0 && look % kLooksPerQuestion == 0 && own->check({kStopped}))
      signal = number_in(own->get(kStopped));
  }
  if (signal == 0) done.get();
  const auto text = std::to_string(signal);
  if (signal != 0) own->set(kStopped, std::vector<uint8_t>(text.begin(), text.end()));
  try {
    for (const auto& theirs :
         comm::gather_through_store(*own, "steppe/start", self.rank, self.world_size, text, self.timeout))
      signal = std::max(signal, std::stoi(theirs));
  } catch (const std::exception&) {
    if (signal == 0) throw;  // a rank that is asked to stop leaves whatever the others do
  }
  return signal;
}

}  // namespace steppe::launch
