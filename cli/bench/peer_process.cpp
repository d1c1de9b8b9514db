#include "cli/bench/peer_process.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "steppe/base/error.h"

namespace steppe::cli {

PeerProcess::PeerProcess(const std::vector<std::string>& argv) : name_(argv.at(0)) {
  // A socket and no pipe: writing to a peer that is gone is then an error, and no signal.
  int ends[2];
  STEPPE_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "[bench] socketpair: {}",
               std::strerror(errno));
  std::vector<char*> arguments;
  for (const auto& word : argv) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_adddup2(&files, ends[1], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, ends[1], STDOUT_FILENO);
  const int failed = ::posix_spawn(&pid_, name_.c_str(), &files, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&files);
  ::close(ends[1]);
  socket_ = ends[0];
  if (failed == 0) return;
  ::close(socket_);
  throw RuntimeFailure(fmt::format("[bench] cannot start {}: {}", name_, std::strerror(failed)));
}

PeerProcess::~PeerProcess() {
  ::close(socket_);
  wait_for_end();
}

int PeerProcess::wait_for_end() {
  int status = 0;
  if (pid_ > 0) {
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  pid_ = -1;
  return status;
}

void PeerProcess::say(const std::string& line) {
  const std::string bytes = line + "\n";
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t n = ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;  // it is gone: answer() says so
    sent += static_cast<size_t>(n);
  }
}

std::string PeerProcess::answer() {
  for (;;) {
    if (const auto end = received_.find('\n'); end != std::string::npos) {
      auto line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    char bytes[4096];
    const ssize_t n = ::recv(socket_, bytes, sizeof bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    received_.append(bytes, static_cast<size_t>(n));
  }
  const int status = wait_for_end();
  throw RuntimeFailure(WIFEXITED(status)
                           ? fmt::format("[bench] the peer {} ended with status {}; its message is above",
                                         name_, WEXITSTATUS(status))
                           : fmt::format("[bench] the peer {} ended by signal {}", name_, WTERMSIG(status)));
}

}  // namespace steppe::cli
