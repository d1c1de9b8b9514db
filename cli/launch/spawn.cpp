#include "cli/launch/spawn.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>

#include "cli/launch/exit_report.h"
#include "cli/launch/failure.h"
#include "cli/launch/signals.h"
#include "cli/launch/store.h"
#include "cli/launch/watchdog.h"
#include "steppe/base/error.h"

extern char** environ;

namespace steppe::launch {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The signals that the parent takes from a queue instead of being ended by them. An ignored one stays so.
class HeldSignals {
 public:
  HeldSignals() {
    sigemptyset(&set_);
    for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) {
      struct sigaction action {};
      sigaction(signal, nullptr, &action);
      if (signal == SIGCHLD || action.sa_handler != SIG_IGN) sigaddset(&set_, signal);
    }
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~HeldSignals() {
    while (next(milliseconds(0)) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  HeldSignals(const HeldSignals&) = delete;

  // A signal, or 0 after the pause.
  int next(milliseconds pause) const {
    const timespec time{pause.count() / 1000, pause.count() % 1000 * 1000000};
    const int signal = sigtimedwait(&set_, nullptr, &time);
    return signal > 0 ? signal : 0;
  }
  const sigset_t& before() const { return before_; }

 private:
  sigset_t set_, before_;
};

// For the error files; removed with all it holds.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    const char* root = std::getenv("TMPDIR");
    path_ = std::string(root != nullptr && *root != '\0' ? root : "/tmp") + "/steppe-launch-XXXXXX";
    STEPPE_CHECK(::mkdtemp(path_.data()) != nullptr, "[launch] cannot create a folder like {}: {}", path_,
                 std::strerror(errno));
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  std::string error_file(int rank) const { return fmt::format("{}/rank_{}.json", path_, rank); }

 private:
  std::string path_;
};

// argv or envp: strings and the null-terminated pointers to them. Everything is laid out before the fork.
class StringTable {
 public:
  explicit StringTable(std::vector<std::string> strings) : strings_(std::move(strings)) {
    for (std::string& one : strings_) pointers_.push_back(one.data());
    pointers_.push_back(nullptr);
  }
  StringTable(const StringTable&) = delete;
  char* const* get() const { return pointers_.data(); }

 private:
  std::vector<std::string> strings_;
  std::vector<char*> pointers_;
};

std::vector<std::string> rank_environment(int rank, int ranks, std::uint16_t port,
                                          const std::string& error_file) {
  const std::vector<std::pair<std::string, std::string>> ours = {
      {"RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(ranks)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(port)},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"TORCHELASTIC_ERROR_FILE", error_file},
      {"STEPPE_PARENT", std::to_string(::getpid())},
  };
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string variable = *entry;
    bool replaced = variable.starts_with("TORCHELASTIC_");
    for (const auto& [name, value] : ours) replaced |= variable.starts_with(name + "=");
    if (!replaced) result.push_back(variable);
  }
  for (const auto& [name, value] : ours) result.push_back(name + "=" + value);
  return result;
}

std::string program_path(const std::string& given) {
  if (!given.empty()) return given;
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  // A rebuilt program reads "… (deleted)"; the link itself still leads to the running one.
  return !error && std::filesystem::exists(path) ? path.string() : "/proc/self/exe";
}

struct Child {
  int rank = 0;
  pid_t process = 0;
  bool running = false;
  int status = 0;  // as from waitpid

  bool crashed_by(int signal) const { return WIFSIGNALED(status) && WTERMSIG(status) == signal; }
  // Signals that come from the rank's own doing or the kernel's, never as a consequence of another's end.
  bool crashed() const {
    for (const int signal : {SIGKILL, SIGSEGV, SIGBUS, SIGILL, SIGFPE}) {
      if (crashed_by(signal)) return true;
    }
    return false;
  }
  int exit_status() const { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }
  std::string ending() const {
    if (!WIFSIGNALED(status)) return fmt::format("exit status {}", WEXITSTATUS(status));
    return "ended by " + signal_name(WTERMSIG(status));
  }
};

class Ranks {
 public:
  explicit Ranks(const SpawnOptions& options) : options_(options), local_(serve_local_store()) {}

  void start();
  int wait();

 private:
  void start_one(int rank);
  bool asked_to_stop();
  bool reap();
  void take_cause(const Child& child);
  void send(int signal, int except_rank = -1);
  void pass_on(int signal);
  void end_the_rest();
  void say(const std::string& text) const;
  void say_ending() const;

  const SpawnOptions& options_;
  HeldSignals signals_;  // before the store, whose threads inherit the mask
  TemporaryFolder folder_;
  LocalStore local_;
  std::vector<Child> children_;
  std::optional<Failure> cause_;
  std::optional<Child> first_;  // to fail
  int passed_on_ = 0;           // the last signal
  bool killed_ = false;
  std::optional<Clock::time_point> first_request_, ending_since_;
};

void Ranks::start_one(int rank) {
  std::vector<std::string> arguments{program_path(options_.program)};
  const std::string program = arguments.front();
  arguments.insert(arguments.end(), options_.arguments.begin(), options_.arguments.end());
  const StringTable argv(std::move(arguments));
  const StringTable envp(rank_environment(rank, options_.ranks, local_.port, folder_.error_file(rank)));
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  STEPPE_CHECK(child >= 0, "[launch] cannot start rank {} of {}: {}", rank, options_.ranks,
               std::strerror(errno));
  if (child == 0) {
    // Only async-signal-safe calls between fork and exec: the store's threads hold locks that are gone here.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    // A request to stop waits until the rank has a SignalFlag: libraries take longer to load than a user
    // waits.
    sigset_t mask = signals_.before();
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    pthread_sigmask(SIG_SETMASK, &mask, nullptr);
    ::execve(program.c_str(), argv.get(), envp.get());
    constexpr char kText[] = "[launch] cannot execute the program of a rank\n";
    [[maybe_unused]] const ssize_t wrote = ::write(STDERR_FILENO, kText, sizeof(kText) - 1);
    ::_exit(127);
  }
  children_.push_back({.rank = rank, .process = child, .running = true});
}

// Looked at between two starts; before the first there is nobody to pass a signal on to.
bool Ranks::asked_to_stop() {
  if (children_.empty()) return false;
  const int signal = signals_.next(milliseconds(0));
  if (signal == 0 || signal == SIGCHLD) return false;
  pass_on(signal);
  ending_since_ = Clock::now();  // those that have started wait for the others, and would not leave
  return true;
}

void Ranks::start() {
  try {
    for (int rank = 0; rank < options_.ranks && !asked_to_stop(); ++rank) start_one(rank);
  } catch (...) {
    send(SIGKILL);
    for (const Child& child : children_) ::waitpid(child.process, nullptr, 0);
    throw;
  }
}

void Ranks::send(int signal, int except_rank) {
  for (const Child& child : children_) {
    if (child.running && child.rank != except_rank) ::kill(child.process, signal);
  }
}

// True when something ended since the last look.
bool Ranks::reap() {
  bool ended = false;
  for (Child& child : children_) {
    if (!child.running || ::waitpid(child.process, &child.status, WNOHANG) != child.process) continue;
    child.running = false;
    ended = true;
    if (child.exit_status() == 0) continue;
    // Several may end between two looks; the order of their ends is then unknown, but a crash is nobody's
    // consequence (unless we sent the signal).
    if (!first_ || (child.crashed() && !first_->crashed() && !killed_)) {
      first_ = child;
    }
  }
  return ended;
}

void Ranks::take_cause(const Child& child) {
  const auto report = read_error_file(folder_.error_file(child.rank));
  Failure failure;
  failure.rank = child.rank;
  if (report) {
    failure.message = report->message;
    failure.timestamp = report->timestamp;
  } else if (passed_on_ != 0 && (child.crashed_by(passed_on_) || child.exit_status() == 128 + passed_on_)) {
    failure.message = fmt::format("left at once on {}", signal_name(passed_on_));
  } else if (passed_on_ != 0 && killed_ && child.crashed_by(SIGKILL)) {
    failure.message = fmt::format("did not leave on {}, and was killed", signal_name(passed_on_));
  } else {
    failure.message = child.ending() + ", without a message";
    if (child.crashed_by(SIGKILL)) failure.message += "; on a machine short of memory the kernel does that";
  }
  try {
    cause_ = report_failure(*local_.store, failure);
  } catch (const std::exception& error) {
    say(fmt::format("[launch] cannot tell the other ranks: {}", describe(error).message));
  }
  if (!cause_ || (child.crashed() && !killed_)) cause_ = failure;
}

void Ranks::end_the_rest() {
  const auto now = Clock::now();
  if (!ending_since_) {
    ending_since_ = now;
    // The failing rank is on its way out, and its own exit status is worth having.
    send(SIGTERM, cause_ ? cause_->rank : -1);
  } else if (!killed_ && now - *ending_since_ > options_.kill_grace) {
    killed_ = true;
    send(SIGKILL);
  }
}

void Ranks::pass_on(int signal) {
  passed_on_ = signal;
  send(signal);
  const auto now = Clock::now();
  if (!first_request_) {
    first_request_ = now;
  } else if (now - *first_request_ > kOneRequest && !ending_since_) {
    ending_since_ = now;  // a rank that cannot leave at once is killed after the grace
  }
}

int Ranks::wait() {
  constexpr milliseconds kLook{100};
  const auto any_running = [this] {
    for (const Child& child : children_) {
      if (child.running) return true;
    }
    return false;
  };
  while (any_running()) {
    if (const int signal = signals_.next(kLook); signal != 0 && signal != SIGCHLD) pass_on(signal);
    if (reap() && first_ && !killed_) take_cause(*first_);
    if (first_ || ending_since_) end_the_rest();
  }
  if (!first_) return 0;
  if (!cause_) take_cause(*first_);
  say_ending();
  // The failing rank's own, unless it was ended from here (one that hung) or is not among ours.
  for (const Child& child : children_) {
    const bool ended_here = killed_ && child.crashed_by(SIGKILL);
    if (child.rank == cause_->rank && child.exit_status() != 0 && !ended_here) return child.exit_status();
  }
  return first_->exit_status();
}

void Ranks::say(const std::string& text) const {
  if (options_.print) {
    options_.print(text);
  } else {
    std::fprintf(stderr, "%s\n", text.c_str());
  }
}

void Ranks::say_ending() const {
  std::string others;
  for (const Child& child : children_) {
    if (child.rank == cause_->rank) continue;
    others += fmt::format("{}rank {}: {}", others.empty() ? "" : ", ", child.rank, child.ending());
  }
  std::string text = "[launch] " + failure_text(*cause_);
  if (cause_->rank >= 0 && cause_->rank < static_cast<int>(children_.size())) {
    text += fmt::format("\n[launch] rank {}: {}", cause_->rank, children_[cause_->rank].ending());
  }
  if (!others.empty()) text += fmt::format("; the others were ended ({})", others);
  say(text);
}

}  // namespace

int spawn_ranks(const SpawnOptions& options) {
  STEPPE_CHECK_VALUE(options.ranks >= 1, "[launch] --ranks must be at least 1, got {}", options.ranks);
  // More than these only takes the machine down, slowly.
  const int most = std::max(64, 4 * static_cast<int>(std::thread::hardware_concurrency()));
  STEPPE_CHECK_VALUE(options.ranks <= most, "[launch] --ranks must be at most {} on this machine, got {}",
                     most, options.ranks);
  Ranks ranks(options);
  ranks.start();
  return ranks.wait();
}

}  // namespace steppe::launch
