// Jobs of real processes: each ends by itself, within seconds, with the right message, and leaves nobody
// behind.
#include "cli/launch/spawn.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "steppe/base/error.h"

namespace steppe::launch {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Loading LibTorch takes a second, on a starved machine half a minute; a job that hangs takes for ever.
constexpr milliseconds kAtMost{120000};

class Jobs : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("steppe-jobs-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override {
    for (const pid_t process : started_) ::kill(process, SIGKILL);
    for (const pid_t process : started_) ::waitpid(process, nullptr, 0);
    fs::remove_all(folder_);
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // `pending`: a signal that has come already when the program begins.
  pid_t start(const std::vector<std::string>& arguments, const std::vector<std::string>& variables = {},
              int pending = 0) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (pending != 0) {
        sigset_t blocked;
        sigemptyset(&blocked);
        sigaddset(&blocked, pending);
        ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
        ::raise(pending);
      }
      const int errors = ::open(path("stderr").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
      ::dup2(errors, STDERR_FILENO);
      for (const std::string& one : variables) ::putenv(const_cast<char*>(one.c_str()));
      std::vector<char*> argv{const_cast<char*>(LAUNCH_TEST_RANK)};
      for (const std::string& one : arguments) argv.push_back(const_cast<char*>(one.c_str()));
      argv.push_back(nullptr);
      ::execv(LAUNCH_TEST_RANK, argv.data());
      ::_exit(126);
    }
    started_.push_back(child);
    return child;
  }

  pid_t start_parent(int ranks, const std::string& mode, int pending = 0) {
    return start({"parent", std::to_string(ranks), mode, folder_.string()}, {}, pending);
  }

  // The exit status, 1000 + the signal that ended it, or -1 when it has not ended in time.
  int wait(pid_t process) {
    const auto deadline = Clock::now() + kAtMost;
    while (Clock::now() < deadline) {
      int status = 0;
      if (::waitpid(process, &status, WNOHANG) == process) {
        std::erase(started_, process);
        return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
      }
      std::this_thread::sleep_for(milliseconds(20));
    }
    return -1;
  }

  bool wait_for_file(const std::string& name) {
    const auto deadline = Clock::now() + kAtMost;
    while (!fs::exists(path(name))) {
      if (Clock::now() > deadline) return false;
      std::this_thread::sleep_for(milliseconds(20));
    }
    return true;
  }

  std::string read(const std::string& name) const {
    std::ifstream file(path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // Ranks that still run.
  std::vector<std::string> left_behind() const {
    std::vector<std::string> alive;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("pid_")) continue;
      std::ifstream stat("/proc/" + read(name) + "/stat");
      std::string number, program, state;
      if ((stat >> number >> program >> state) && state != "Z" && state != "X") alive.push_back(name);
    }
    return alive;
  }

  void expect_ending(const std::string& part) const {
    const std::string text = read("stderr");
    EXPECT_NE(text.find(part), std::string::npos) << "wanted \"" << part << "\" in:\n" << text;
  }

  // Ranks 0 … count-1 without any parent that reports: as under Slurm or MPI, rank 0 serves the store.
  std::vector<pid_t> start_bare(int count, const std::string& mode) {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t bytes = sizeof(address);
    EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), bytes), 0);
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &bytes);
    ::close(listener);
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < count; ++rank) {
      ranks.push_back(start({"rank", mode, folder_.string()},
                            {"RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(count),
                             "LOCAL_RANK=" + std::to_string(rank), "MASTER_ADDR=127.0.0.1",
                             "MASTER_PORT=" + std::to_string(ntohs(address.sin_port))}));
    }
    return ranks;
  }

  fs::path folder_;
  std::vector<pid_t> started_;
};

TEST_F(Jobs, AllRanksSucceed) {
  EXPECT_EQ(wait(start_parent(3, "succeed")), 0) << read("stderr");
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(fs::exists(path("finished_" + std::to_string(rank))));
  EXPECT_EQ(read("stderr").find("failed"), std::string::npos) << read("stderr");
}

TEST_F(Jobs, OneRankThrows) {
  EXPECT_EQ(wait(start_parent(3, "throw")), 3);
  const std::string text = read("stderr");
  const std::string wanted = "[launch] rank 1 failed: [data] token id 70000 must be below vocab_size=512";
  EXPECT_NE(text.find(wanted), std::string::npos) << text;
  EXPECT_EQ(text.find("failed:"), text.rfind("failed:")) << "one message, not one per rank:\n" << text;
  EXPECT_EQ(left_behind().size(), 0u);
}

TEST_F(Jobs, OneRankFailsBeforeTheRendezvous) {
  EXPECT_EQ(wait(start_parent(3, "early")), 2);
  expect_ending("rank 1 failed: [recipe] optimizer.lr must be positive, got -1");
  EXPECT_EQ(left_behind().size(), 0u);
}

TEST_F(Jobs, OneRankIsKilled) {
  EXPECT_EQ(wait(start_parent(3, "kill")), 128 + SIGKILL);
  expect_ending("rank 1 failed: ended by SIGKILL");
  EXPECT_EQ(left_behind().size(), 0u);
}

TEST_F(Jobs, TheCauseBeatsThePeersWhoNoticeItFirst) {
  EXPECT_EQ(wait(start_parent(3, "kill_seen")), 128 + SIGKILL);
  expect_ending("rank 1 failed: ended by SIGKILL");
  EXPECT_EQ(read("stderr").find("Connection closed"), std::string::npos) << read("stderr");
}

TEST_F(Jobs, OneRankLeavesWithoutAWord) {
  EXPECT_EQ(wait(start_parent(2, "exit")), 7);
  expect_ending("rank 1 failed: exit status 7, without a message");
}

TEST_F(Jobs, OneRankHangs) {
  EXPECT_EQ(wait(start_parent(3, "hang")), 1);
  expect_ending(
      "rank 1 failed: no progress for 2 s (comm.timeout): rank 1 stands at step 3 (forward), while rank");
  expect_ending("has come to step 3 (all-reduce)");
  EXPECT_EQ(left_behind().size(), 0u);
  EXPECT_TRUE(fs::exists(path("aborted_0")));
}

TEST_F(Jobs, OneProcessIsFrozen) {
  const int status = wait(start_parent(3, "freeze"));
  EXPECT_EQ(status, 1);
  // Its heart stops, or its peers' training threads run out of time first: either names rank 1.
  expect_ending("rank 1 failed: no ");
  EXPECT_EQ(left_behind().size(), 0u);
}

TEST_F(Jobs, ASignalReachesEveryRankOnceAndTheyLeaveInPeace) {
  const pid_t parent = start_parent(2, "until_signal");
  ASSERT_TRUE(wait_for_file("ready_0") && wait_for_file("ready_1")) << read("stderr");
  for (int i = 0; i < 3; ++i) ::kill(parent, SIGTERM);
  EXPECT_EQ(wait(parent), 0) << read("stderr");
  EXPECT_EQ(read("stopped_0"), "SIGTERM");
  EXPECT_EQ(read("stopped_1"), "SIGTERM");
}

// The one that has started holds the signal back as the parent does, and is killed.
TEST_F(Jobs, AfterASignalNoMoreRanksAreStarted) {
  EXPECT_EQ(wait(start_parent(3, "until_signal", SIGTERM)), 128 + SIGKILL);
  expect_ending("rank 0 failed: did not leave on SIGTERM, and was killed");
  EXPECT_EQ(read("stderr").find("the others were ended"), std::string::npos) << read("stderr");
  EXPECT_EQ(left_behind().size(), 0u);
}

TEST_F(Jobs, NoRankOutlivesAKilledParent) {
  const pid_t parent = start_parent(3, "until_signal");
  for (const char* name : {"ready_0", "ready_1", "ready_2"})
    ASSERT_TRUE(wait_for_file(name)) << read("stderr");
  EXPECT_EQ(left_behind().size(), 3u);
  ::kill(parent, SIGKILL);
  EXPECT_EQ(wait(parent), 1000 + SIGKILL);
  for (int i = 0; i < 1000 && !left_behind().empty(); ++i) std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(left_behind().size(), 0u);
}

TEST_F(Jobs, WithoutAParentRankZeroServesAndAllSucceed) {
  for (const pid_t rank : start_bare(3, "succeed")) EXPECT_EQ(wait(rank), 0) << read("stderr");
  EXPECT_EQ(read("stderr").find("lost the store"), std::string::npos) << read("stderr");
}

TEST_F(Jobs, WithoutAParentTheFailingRankIsNamed) {
  const auto ranks = start_bare(3, "throw");
  EXPECT_EQ(wait(ranks[1]), 3);
  EXPECT_EQ(wait(ranks[0]), 1);
  EXPECT_EQ(wait(ranks[2]), 1);
  expect_ending("[launch] rank 1 failed: [data] token id 70000");
}

TEST_F(Jobs, WithoutAParentTheServingRankStaysUntilItsFailureHasBeenRead) {
  const auto ranks = start_bare(3, "host_throws");
  EXPECT_EQ(wait(ranks[0]), 3);
  for (const int rank : {1, 2}) EXPECT_EQ(wait(ranks[rank]), 1);
  expect_ending("[launch] rank 0 failed: [data] corpus.idx ends early");
  EXPECT_EQ(read("stderr").find("lost the store"), std::string::npos) << read("stderr");
}

TEST_F(Jobs, WithoutAParentAKilledRankIsNamedByItsPeers) {
  const auto ranks = start_bare(3, "kill_seen");
  EXPECT_EQ(wait(ranks[1]), 1000 + SIGKILL);
  for (const int rank : {0, 2}) {
    const int status = wait(ranks[rank]);
    EXPECT_TRUE(status == 1 || status == 3) << status;  // its watchdog, or its training thread, was faster
  }
  expect_ending("[launch] rank 1 failed: died, or lost its network, without a word; rank ");
  expect_ending("Connection closed by peer");
}

TEST_F(Jobs, WithoutAParentTheEndOfTheServingRankEndsTheOthers) {
  const auto ranks = start_bare(3, "host_dies");
  EXPECT_EQ(wait(ranks[0]), 1000 + SIGKILL);
  for (const int rank : {1, 2}) {
    const int status = wait(ranks[rank]);
    EXPECT_TRUE(status == 1 || status == 3) << status;
  }
}

TEST(Spawn, NeedsARank) {
  SpawnOptions options;
  options.ranks = 0;
  EXPECT_THROW(spawn_ranks(options), ValueError);
}

}  // namespace
}  // namespace steppe::launch
