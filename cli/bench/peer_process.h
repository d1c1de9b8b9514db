// A program beside this one that answers a line with a line: a peer of a benchmark, in an environment of its
// own. Its error stream is ours.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace steppe::cli {

class PeerProcess {
 public:
  // argv[0] is the program's path. Throws RuntimeFailure when it cannot be started.
  explicit PeerProcess(const std::vector<std::string>& argv);
  // The peer reads the end of its input, and is waited for.
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  void say(const std::string& line);
  // Without its line end. Throws RuntimeFailure, with the peer's exit status, if there will be none.
  std::string answer();
  std::string ask(const std::string& line) {
    say(line);
    return answer();
  }

 private:
  int wait_for_end();

  pid_t pid_ = -1;
  int socket_ = -1;
  std::string received_, name_;
};

}  // namespace steppe::cli
