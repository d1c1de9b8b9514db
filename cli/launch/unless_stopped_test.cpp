#include "cli/launch/unless_stopped.h"

#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cli/launch/store.h"
#include "steppe/base/error.h"

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

TEST(UnlessStopped, ARankThatIsDoneHeedsItsOwnSignal) {
  const LocalStore local = serve_local_store();
  std::vector<std::future<int>> ranks;
  std::promise<void> release;  // at the end of the test, however it ends
  const auto released = release.get_future().share();
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&local, released, rank] {
      const auto store = local.store->clone();
      std::atomic<bool> done{false};
      int looks = 0;  // after the work's end; some may come before it is noticed
      const StartingRank self{.rank = rank,
                              .world_size = 2,
                              .stop_signal = [&] { return rank == 1 && done && ++looks > 5 ? SIGTERM : 0; },
                              .timeout = std::chrono::seconds(20)};
      const auto work = [&done, released, rank] {
        if (rank == 0) released.wait();
        if (rank == 1) done = true;
      };
      return run_unless_stopped(work, *store, self);
    }));
  }
  EXPECT_EQ(ranks[1].get(), SIGTERM);
  EXPECT_EQ(ranks[0].get(), SIGTERM);
}

TEST(UnlessStopped, ASignalAfterAllAreReadyIsLeftToWhatComesNext) {
  const LocalStore local = serve_local_store();
  const StartingRank self{
      .rank = 0, .world_size = 2, .stop_signal = [] { return SIGTERM; }, .timeout = std::chrono::minutes(2)};
  const std::string all_ready = "0";
  local.store->set("steppe/start/verdict", std::vector<uint8_t>(all_ready.begin(), all_ready.end()));
  EXPECT_EQ(run_unless_stopped([] {}, *local.store, self), 0);
}

TEST(UnlessStopped, RanksThatAreNotReadyInTimeAreCountedAndTheKeyNamed) {
  const LocalStore local = serve_local_store();
  const StartingRank self{
      .rank = 1, .world_size = 2, .stop_signal = [] { return 0; }, .timeout = std::chrono::milliseconds(200)};
  try {
    run_unless_stopped([] {}, *local.store, self);
    FAIL() << "rank 0 never comes";
  } catch (const RuntimeFailure& error) {
    const std::string said = error.what();
    EXPECT_NE(said.find("1 of 2 ranks are ready"), std::string::npos) << said;
    EXPECT_NE(said.find("comm.init_timeout = 0.2 s"), std::string::npos) << said;
  }
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
