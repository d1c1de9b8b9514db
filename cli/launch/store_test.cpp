#include "cli/launch/store.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "cli/launch/failure.h"
#include "cli/launch/heartbeat.h"
#include "steppe/base/error.h"
#include "steppe/comm/connection_lost.h"

namespace steppe::launch {
namespace {

using std::chrono::milliseconds;

// A port held open by somebody else.
class TakenPort {
 public:
  TakenPort() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t bytes = sizeof(address);
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), bytes), 0);
    EXPECT_EQ(::listen(socket_, 8), 0);
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &bytes);
    port_ = ntohs(address.sin_port);
  }
  ~TakenPort() { release(); }
  void release() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }
  std::uint16_t port() const { return port_; }

 private:
  int socket_;
  std::uint16_t port_ = 0;
};

LaunchEnvironment rank_of(int rank, int world_size, std::uint16_t port) {
  LaunchEnvironment e;
  e.launcher = Launcher::kVariables;
  e.rank = e.local_rank = rank;
  e.world_size = e.local_world_size = world_size;
  e.master_port = port;
  e.master_port_source = "MASTER_PORT";
  return e;
}

std::uint16_t free_port() {
  return TakenPort().port();
}

// What make_store refuses with; empty when it does not.
std::string refusal(const LaunchEnvironment& environment, milliseconds timeout) {
  try {
    make_store(environment, timeout);
  } catch (const RuntimeFailure& error) {
    return error.what();
  }
  return "";
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "wanted \"" << part << "\" in \"" << text << "\"";
}

TEST(Store, APortInUseIsNamed) {
  const TakenPort taken;
  // Known at once: whoever waits for the timeout does not end.
  const std::string text = refusal(rank_of(0, 2, taken.port()), std::chrono::hours(24));
  expect_part(text, "port " + std::to_string(taken.port()) + " (MASTER_PORT) is in use");
}

TEST(Store, AllRanksShareIt) {
  constexpr int kRanks = 4;
  const std::uint16_t port = free_port();
  std::vector<c10::intrusive_ptr<c10d::Store>> stores(kRanks);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&stores, rank, port] {
      stores[rank] = make_store(rank_of(rank, kRanks, port), milliseconds(60000));
    });
  }
  for (auto& rank : ranks) rank.join();
  stores[3]->set("key", std::string("value"));
  for (const auto& store : stores) EXPECT_EQ(store->get_to_str("key"), "value");
  EXPECT_EQ(stores[1]->clone()->get_to_str("key"), "value");
}

TEST(Store, MissingRanksAreNamed) {
  const std::uint16_t port = free_port();
  std::string first, second;
  std::thread other([&] { second = refusal(rank_of(2, 4, port), milliseconds(4000)); });
  first = refusal(rank_of(0, 4, port), milliseconds(6000));
  other.join();
  expect_part(second, "these have not arrived: 1, 3");
  expect_part(first, "of 4 ranks these have not arrived: 1, 3");
}

TEST(Store, AnotherProcessWithTheSameRankIsNamed) {
  const LocalStore local = serve_local_store();
  local.store->set("rank/1", std::string("node9, process 77"));
  LaunchEnvironment e = rank_of(1, 2, local.port);
  e.agent_store = true;
  expect_part(refusal(e, milliseconds(20000)), "is taken already by node9, process 77");
}

TEST(Store, NobodyThere) {
  const std::uint16_t port = free_port();
  const std::string text = refusal(rank_of(1, 2, port), milliseconds(1500));
  expect_part(text, "rank 1 cannot reach the store at 127.0.0.1:" + std::to_string(port));
}

TEST(Store, SomethingElseThere) {
  const TakenPort mute;  // accepts, and says nothing
  expect_part(refusal(rank_of(1, 2, mute.port()), milliseconds(1500)),
              "127.0.0.1:" + std::to_string(mute.port()));
}

TEST(Store, AFailureElsewhereEndsTheWaiting) {
  const LocalStore local = serve_local_store();
  report_failure(*local.store, 1, "no such file: config.json");
  LaunchEnvironment e = rank_of(0, 2, local.port);
  e.agent_store = true;
  expect_part(refusal(e, milliseconds(60000)), "rank 1 failed: no such file: config.json");
}

TEST(Store, OneRankNeedsNoPort) {
  const TakenPort taken;
  const auto store = make_store(rank_of(0, 1, taken.port()), milliseconds(1000));
  store->set("a", std::string("b"));
  EXPECT_EQ(store->clone()->get_to_str("a"), "b");
}

TEST(Failures, TheFirstReportStands) {
  const LocalStore local = serve_local_store();
  EXPECT_FALSE(find_failure(*local.store));
  EXPECT_EQ(report_failure(*local.store, 2, "first").rank, 2);
  const Failure standing = report_failure(*local.store, 0, "second");
  EXPECT_EQ(standing.rank, 2);
  EXPECT_EQ(standing.message, "first");
  ASSERT_TRUE(find_failure(*local.store));
  EXPECT_EQ(find_failure(*local.store)->message, "first");
}

TEST(Failures, LostConnectionsAreToldFromCauses) {
  EXPECT_EQ(kind_of(std::runtime_error("[a/pair.cc:1] Connection closed by peer [::1]:3")),
            FailureKind::kConnection);
  EXPECT_EQ(kind_of(std::runtime_error("[a/pair.cc:1] Timed out waiting 100ms")), FailureKind::kLatePeer);
  EXPECT_EQ(kind_of(c10::DistNetworkError({"f", "g", 1}, "x")), FailureKind::kConnection);
  EXPECT_EQ(kind_of(comm::ConnectionLost("it left")), FailureKind::kConnection);
  EXPECT_EQ(kind_of(comm::ConnectionLost("no answer", comm::LossCause::kLate)), FailureKind::kLatePeer);
  EXPECT_EQ(kind_of(ValueError("[data] token id 9 must be below 4")), FailureKind::kCause);
}

Heartbeat at(std::int64_t beats, std::int64_t progress, std::int64_t step, const char* where,
             bool done = false) {
  return {beats, progress, step, where, done};
}

TEST(Heartbeats, ComeBackAndTellTheSilent) {
  const LocalStore local = serve_local_store();
  publish(*local.store, 0, at(1, 10, 3, "all-reduce of gradients"));
  publish(*local.store, 2, at(5, 9, 3, "forward", true));
  const auto before = read_heartbeats(*local.store, 4);
  ASSERT_TRUE(before[0] && before[2]);
  EXPECT_EQ(before[0]->where, "all-reduce of gradients");
  EXPECT_EQ(before[0]->progress, 10);
  EXPECT_TRUE(before[2]->done);
  EXPECT_FALSE(before[1] || before[3]);
  publish(*local.store, 0, at(2, 10, 3, "all-reduce of gradients"));
  publish(*local.store, 1, at(1, 1, 1, "forward"));
  // Rank 1 has begun to beat, 2 is done, 3 has never beaten.
  EXPECT_EQ(silent_ranks(before, read_heartbeats(*local.store, 4)), std::vector<int>({3}));
}

TEST(Heartbeats, TheRankFurthestBehindIsNamed) {
  const Failure failure = no_progress({at(9, 40, 5, "all-reduce"), at(9, 39, 5, "forward"),
                                       at(9, 40, 5, "all-reduce"), at(9, 2, 1, "forward", /*done=*/true)},
                                      /*noticed_by=*/2, 300);
  EXPECT_EQ(failure.rank, 1);
  expect_part(failure.message, "no progress for 300 s (comm.timeout): rank 1 stands at step 5 (forward)");
  const Failure even = no_progress({at(9, 4, 2, "a"), at(9, 4, 2, "a")}, 1, 10);
  expect_part(even.message, "every rank stands at step 2 (a)");
}

}  // namespace
}  // namespace steppe::launch
