#include "cli/bench/peer_process.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "steppe/base/error.h"

namespace steppe::cli {
namespace {

std::string message_of(PeerProcess& peer) {
  try {
    peer.answer();
  } catch (const RuntimeFailure& failure) {
    return failure.what();
  }
  return "no failure";
}

TEST(PeerProcess, AnswersLineByLine) {
  PeerProcess peer({"/bin/cat"});
  peer.say("one");
  peer.say("two");
  EXPECT_EQ(peer.answer(), "one");
  EXPECT_EQ(peer.answer(), "two");
  const std::string longer_than_one_read(100'000, 'x');
  EXPECT_EQ(peer.ask(longer_than_one_read), longer_than_one_read);
}

TEST(PeerProcess, AnswersBeforeTheEndAreRead) {
  PeerProcess peer({"/bin/sh", "-c", "echo last; exit 3"});
  EXPECT_EQ(peer.answer(), "last");
  EXPECT_NE(message_of(peer).find("/bin/sh ended with status 3"), std::string::npos);
}

TEST(PeerProcess, OneThatIsGoneIsAFailureAndNoSignal) {
  PeerProcess peer({"/bin/sh", "-c", "kill -9 $$"});
  EXPECT_NE(message_of(peer).find("ended by signal 9"), std::string::npos);
  peer.say("to nobody");
}

TEST(PeerProcess, MissingProgram) {
  EXPECT_THROW(PeerProcess({"/no/such/program"}), RuntimeFailure);
}

TEST(PeerProcess, TwoAtOnceDoNotHoldEachOtherOpen) {
  auto first = std::make_unique<PeerProcess>(std::vector<std::string>{"/bin/cat"});
  PeerProcess second({"/bin/cat"});
  first.reset();  // returns only if the second has no end of the first's socket
  EXPECT_EQ(second.ask("still here"), "still here");
}

}  // namespace
}  // namespace steppe::cli
