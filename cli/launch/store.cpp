#include "cli/launch/store.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "cli/launch/failure.h"
#include "steppe/base/error.h"

namespace steppe::launch {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr const char* kLoopback = "127.0.0.1";
constexpr int kBacklog = 2048;  // ranks of a large job connect within milliseconds

std::string rank_key(int rank) {
  return "rank/" + std::to_string(rank);
}

StorePtr with_prefix(StorePtr store, int attempt) {
  return c10::make_intrusive<c10d::PrefixStore>("steppe/" + std::to_string(attempt), std::move(store));
}

// Returns an open socket, or -1 with errno.
int try_listen(int family, const sockaddr* address, socklen_t bytes) {
  const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int on = 1, off = 0;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));  // not blocked by a dead job's TIME_WAIT
  if (family == AF_INET6) ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (::bind(fd, address, bytes) == 0 && ::listen(fd, kBacklog) == 0) return fd;
  const int why = errno;
  ::close(fd);
  errno = why;
  return -1;
}

// Listening happens here, not in TCPStore, so that a port in use is known as such before anything else.
int listen_everywhere(const LaunchEnvironment& environment) {
  sockaddr_in6 any6{};
  any6.sin6_family = AF_INET6;
  any6.sin6_addr = in6addr_any;
  any6.sin6_port = htons(environment.master_port);
  int fd = try_listen(AF_INET6, reinterpret_cast<const sockaddr*>(&any6), sizeof(any6));
  if (fd < 0 && (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL)) {
    sockaddr_in any4{};
    any4.sin_family = AF_INET;
    any4.sin_addr.s_addr = htonl(INADDR_ANY);
    any4.sin_port = htons(environment.master_port);
    fd = try_listen(AF_INET, reinterpret_cast<const sockaddr*>(&any4), sizeof(any4));
  }
  STEPPE_CHECK(
      fd >= 0 || errno != EADDRINUSE,
      "[launch] port {} ({}) is in use on this host: another job may still be running; set MASTER_PORT to "
      "a free port on every rank",
      environment.master_port, environment.master_port_source);
  STEPPE_CHECK(fd >= 0, "[launch] cannot listen on port {} ({}): {}", environment.master_port,
               environment.master_port_source, std::strerror(errno));
  return fd;
}

c10d::TCPStoreOptions store_options(std::uint16_t port, std::optional<int> listening, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = listening.has_value();
  options.masterListenFd = listening;
  options.waitWorkers = false;  // make_store waits itself, and can say who is missing
  options.timeout = timeout;
  return options;
}

// TCPStore's constructor tries twice, each time for its timeout, and has no bound at all when something that
// is not a store answers on the port. This one takes at most `timeout`, give or take the pause in between.
StorePtr connect(const LaunchEnvironment& environment, std::optional<int> listening, milliseconds timeout) {
  constexpr milliseconds kPause{5000};
  std::promise<StorePtr> promise;
  auto connected = promise.get_future();
  std::thread([promise = std::move(promise), host = environment.master_addr,
               options = store_options(environment.master_port, listening, timeout / 2)]() mutable {
    try {
      promise.set_value(c10::make_intrusive<c10d::TCPStore>(host, options));
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  }).detach();
  const std::string where = fmt::format("{}:{}", environment.master_addr, environment.master_port);
  const double seconds = timeout.count() / 1000.0;
  if (connected.wait_for(timeout + kPause) != std::future_status::ready) {
    throw RuntimeFailure(
        fmt::format("[launch] rank {}: what listens at {} does not answer as a store within {:g} s: is "
                    "MASTER_PORT ({}) taken "
                    "by another program?",
                    environment.rank, where, seconds, environment.master_port_source));
  }
  try {
    StorePtr store = connected.get();
    store->setTimeout(timeout);
    return store;
  } catch (const c10::Error& error) {
    throw RuntimeFailure(fmt::format(
        "[launch] rank {} cannot reach the store at {} within {:g} s: has rank 0 started there, and do "
        "MASTER_ADDR "
        "and MASTER_PORT ({}) agree on all ranks? ({})",
        environment.rank, where, seconds, environment.master_port_source, describe(error).message));
  }
}

std::string this_process() {
  char host[256] = "";
  ::gethostname(host, sizeof(host) - 1);
  return fmt::format("{}, process {}", host, ::getpid());
}

void claim_rank(c10d::Store& store, const LaunchEnvironment& environment) {
  const std::string me = this_process();
  const std::string owner = store.compareSet(rank_key(environment.rank), std::string(), me);
  STEPPE_CHECK(owner == me,
               "[launch] rank {} of {}:{} is taken already by {} (this is {}): two jobs share MASTER_PORT "
               "({}), or two "
               "processes got the same rank",
               environment.rank, environment.master_addr, environment.master_port, owner, me,
               environment.master_port_source);
}

std::string missing_ranks(c10d::Store& store, int world_size) {
  constexpr int kNamed = 8;
  std::string names;
  int missing = 0;
  for (int rank = 0; rank < world_size; ++rank) {
    if (store.check({rank_key(rank)})) continue;
    if (++missing <= kNamed) names += (names.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (missing > kNamed) names += fmt::format(" and {} more", missing - kNamed);
  return names;
}

void wait_for_all(c10d::Store& store, const LaunchEnvironment& environment, Clock::time_point deadline,
                  milliseconds init_timeout) {
  constexpr milliseconds kLongest{500};
  if (store.add("arrived", 1) == environment.world_size) store.set("all", std::string("1"));
  for (milliseconds pause{5}; !store.check({"all"}); pause = std::min(2 * pause, kLongest)) {
    if (const auto failure = find_failure(store)) {
      throw RuntimeFailure(fmt::format("[launch] rank {} failed: {}", failure->rank, failure->message));
    }
    STEPPE_CHECK(Clock::now() < deadline,
                 "[launch] rank {} waited {:g} s (comm.init_timeout) at {}:{}, but of {} ranks these have "
                 "not arrived: "
                 "{}",
                 environment.rank, init_timeout.count() / 1000.0, environment.master_addr,
                 environment.master_port, environment.world_size,
                 missing_ranks(store, environment.world_size));
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace

StorePtr make_store(const LaunchEnvironment& environment, milliseconds init_timeout) {
  if (environment.world_size == 1 && !environment.agent_store) return c10::make_intrusive<c10d::HashStore>();
  const auto deadline = Clock::now() + init_timeout;
  std::optional<int> listening;
  if (hosts_store(environment)) listening = listen_everywhere(environment);
  auto store = with_prefix(connect(environment, listening, init_timeout), environment.attempt);
  try {
    claim_rank(*store, environment);
    wait_for_all(*store, environment, deadline, init_timeout);
  } catch (const c10::Error& error) {
    throw RuntimeFailure(fmt::format(
        "[launch] rank {} lost the store at {}:{} while waiting for all {} ranks: {}", environment.rank,
        environment.master_addr, environment.master_port, environment.world_size, describe(error).message));
  }
  return store;
}

LocalStore serve_local_store() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = try_listen(AF_INET, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  socklen_t bytes = sizeof(address);
  STEPPE_CHECK(fd >= 0 && ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0,
               "[launch] cannot listen on {}: {}", kLoopback, std::strerror(errno));
  LocalStore local;
  local.port = ntohs(address.sin_port);
  LaunchEnvironment environment;
  environment.master_port = local.port;
  environment.master_port_source = "chosen by --ranks";
  local.store = with_prefix(connect(environment, fd, milliseconds(30000)), 0);
  return local;
}

}  // namespace steppe::launch
