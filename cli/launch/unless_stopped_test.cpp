#include "cli/launch/unless_stopped.h"

#include <gtest/gtest.h>

#include <csignal>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "cli/launch/store.h"

namespace steppe::launch {
namespace {

constexpr int kRanks = 3;

// What each rank returns; rank 0's work waits for `release`, and `asked` ranks are asked to stop.
std::vector<int> signals_of(const std::shared_future<void>& release, const std::vector<int>& asked) {
  const LocalStore local = serve_local_store();
  std::vector<std::future<int>> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&local, &asked, release, rank] {
      const auto store = local.store->clone();
      const StartingRank self{.rank = rank,
                              .world_size = kRanks,
                              .stop_signal = [&asked, rank] { return asked[static_cast<size_t>(rank)]; },
                              .timeout = std::chrono::minutes(2)};
      const auto work = [release, rank] {
        if (rank == 0) release.wait();
      };
      return run_unless_stopped(work, *store, self);
    }));
  }
  std::vector<int> signals;
  for (auto& rank : ranks) signals.push_back(rank.get());
  return signals;
}

TEST(UnlessStopped, AllGoOnWhenAllHaveDoneTheirWork) {
  std::promise<void> release;
  release.set_value();
  EXPECT_EQ(signals_of(release.get_future().share(), {0, 0, 0}), (std::vector<int>{0, 0, 0}));
}

TEST(UnlessStopped, AllStopThoughTheWorkOfOneDoesNotEnd) {
  auto release = std::make_shared<std::promise<void>>();
  const auto released = release->get_future().share();
  EXPECT_EQ(signals_of(released, {SIGTERM, 0, 0}), (std::vector<int>(kRanks, SIGTERM)));
  release->set_value();
}

TEST(UnlessStopped, AnotherRanksSignalEndsAWaitToo) {
  const LocalStore local = serve_local_store();
  auto release = std::make_shared<std::promise<void>>();
  const auto released = release->get_future().share();
  std::vector<std::future<int>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&local, released, rank] {
      const auto store = local.store->clone();
      const StartingRank self{.rank = rank,
                              .world_size = 2,
                              .stop_signal = [rank] { return rank == 1 ? SIGINT : 0; },
                              .timeout = std::chrono::minutes(2)};
      return run_unless_stopped([released] { released.wait(); }, *store, self);
    }));
  }
  EXPECT_EQ(ranks[0].get(), SIGINT);
  EXPECT_EQ(ranks[1].get(), SIGINT);
  release->set_value();
}

TEST(UnlessStopped, AFailureOfTheWorkIsThrown) {
  const LocalStore local = serve_local_store();
  const StartingRank self{
      .rank = 0, .world_size = 1, .stop_signal = [] { return 0; }, .timeout = std::chrono::minutes(2)};
  EXPECT_THROW(run_unless_stopped([] { throw std::invalid_argument("no plan"); }, *local.store, self),
               std::invalid_argument);
}

}  // namespace
}  // namespace steppe::launch
