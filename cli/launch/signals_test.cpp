#include "cli/launch/signals.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <thread>

namespace steppe::launch {
namespace {

using std::chrono::milliseconds;

// Runs in a child; its exit status, or 1000 + the signal that ended it.
int status_of(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(Signals, TheFirstSetsTheFlag) {
  const SignalFlag flag;
  EXPECT_EQ(flag.received(), 0);
  EXPECT_EQ(flag.since_received(), milliseconds(0));
  raise(SIGTERM);
  EXPECT_EQ(flag.received(), SIGTERM);
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_GE(flag.since_received(), milliseconds(20));
}

TEST(Signals, SeveralAtOnceAreOneRequest) {
  const SignalFlag flag;
  raise(SIGINT);
  raise(SIGTERM);
  raise(SIGTERM);
  EXPECT_EQ(flag.received(), SIGINT);  // and the process lives
}

TEST(Signals, ASecondRequestLeavesAtOnce) {
  EXPECT_EQ(status_of([] {
              const SignalFlag flag(milliseconds(30));
              raise(SIGTERM);
              std::this_thread::sleep_for(milliseconds(60));
              raise(SIGINT);
              return 0;
            }),
            128 + SIGINT);
}

TEST(Signals, UserSignalsAreLeftAlone) {
  EXPECT_EQ(status_of([] {
              const SignalFlag flag;
              raise(SIGUSR1);
              return 0;
            }),
            1000 + SIGUSR1);
}

TEST(Signals, TheOldHandlingComesBackAndIgnoredStaysIgnored) {
  EXPECT_EQ(status_of([] {
              { const SignalFlag flag; }
              raise(SIGTERM);
              return 0;
            }),
            1000 + SIGTERM);
  EXPECT_EQ(status_of([] {
              signal(SIGINT, SIG_IGN);  // as a shell does for a background job
              const SignalFlag flag;
              raise(SIGINT);
              return flag.received();
            }),
            0);
}

TEST(Signals, WhatReplacedTheHandlingStays) {
  EXPECT_EQ(status_of([] {
              {
                const SignalFlag flag;
                signal(SIGTERM, SIG_IGN);
              }
              raise(SIGTERM);
              return 5;
            }),
            5);
}

TEST(Signals, Names) {
  EXPECT_EQ(signal_name(SIGTERM), "SIGTERM");
  EXPECT_EQ(signal_name(SIGKILL), "SIGKILL");
}

}  // namespace
}  // namespace steppe::launch
