#include "steppe/comm/shared_memory_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "steppe/base/error.h"
#include "steppe/comm/connection_lost.h"
#include "steppe/comm/endpoint.h"
#include "steppe/comm/exchange_contract.h"
#include "steppe/comm/shared_pipe.h"
#include "steppe/comm/store_gather.h"

namespace steppe::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A reader may begin with a piece while the next is written.
constexpr size_t kPieceBytes = Pipe::kBytes / 4;
// How often a sleeper looks whether its peers are still there.
constexpr milliseconds kLook{50};

// The tensors of one exchange, and how many of its transfers are still under way.
struct Exchange {
  std::vector<at::Tensor> tensors;
  int open = 0;
};

// One message to or from a peer: its length, then its bytes.
struct Transfer {
  Exchange* exchange = nullptr;
  std::byte* bytes = nullptr;
  std::uint64_t size = 0;
  std::uint64_t moved = 0;      // of length and bytes together
  std::uint64_t announced = 0;  // the length that arrived

  static constexpr size_t kHead = sizeof(std::uint64_t);
  bool in_head() const { return moved < kHead; }
  bool done() const { return moved == kHead + size; }
  size_t left() const { return kHead + size - moved; }
};

}  // namespace

class SharedMemoryCommunicator::Engine {
 public:
  Engine(Endpoint self, milliseconds timeout);
  ~Engine() { leave(); }

  void meet(c10d::Store& store);
  void start(Exchange& exchange, std::span<const at::Tensor> sends, std::span<const at::Tensor> receives);
  void wait(const Exchange& exchange);
  // No peer hears from this rank again.
  void leave();

 private:
  struct Peer {
    std::unique_ptr<SharedSegment> segment;
    std::deque<Transfer> sends, receives;
  };

  // The mutex, for a caller: the helper gives way, and takes up what is left.
  class Calling {
   public:
    explicit Calling(Engine& engine) : engine_(engine) {
      ++engine_.num_callers_;
      lock = std::unique_lock(engine_.mutex_);
    }
    ~Calling() {
      if (--engine_.num_callers_ == 0 && engine_.needs_help()) engine_.call_helper();
    }
    std::unique_lock<std::mutex> lock;

   private:
    Engine& engine_;
  };

  int size() const { return static_cast<int>(self_.ranks.size()); }
  // All under the mutex.
  bool progress();
  bool push(Peer& peer);
  bool pull(int rank, Peer& peer);
  void begin_message(int rank, Transfer& transfer);
  bool needs_help() const;
  void call_helper();
  bool gives_way() const { return std::this_thread::get_id() == helper_.get_id() && num_callers_ > 0; }
  void fail(std::string why);
  void look_for_the_dead();
  std::string late() const;

  void help();

  const Endpoint self_;
  const milliseconds timeout_;
  std::mutex mutex_;
  SharedSegment segment_;
  std::vector<Peer> peers_;
  std::optional<std::string> failure_;
  LossCause loss_cause_ = LossCause::kGone;  // of the failure
  // The helper moves what no caller is waiting for.
  std::thread helper_;
  std::condition_variable help_wanted_;
  std::atomic<int> num_callers_{0};
  bool leaving_ = false;
};

SharedMemoryCommunicator::Engine::Engine(Endpoint self, milliseconds timeout)
    : self_(std::move(self)), timeout_(timeout), segment_(size()), peers_(self_.ranks.size()) {}

void SharedMemoryCommunicator::Engine::meet(c10d::Store& store) {
  const auto& name = self_.name;
  try {
    const auto everyones = [&](std::string_view what, std::string_view mine) {
      return gather_through_store(store, fmt::format("shared_memory/{}/{}", name, what), self_.rank, size(),
                                  mine, timeout_);
    };
    const auto addresses = everyones("segment", segment_.address());
    for (int rank = 0; rank < size(); ++rank) {
      if (rank != self_.rank) peers_[rank].segment = std::make_unique<SharedSegment>(size(), addresses[rank]);
    }
    // Nobody leaves before all have come: a segment can be mapped only while its owner holds it.
    everyones("mapped", "yes");
  } catch (const std::exception& error) {
    throw ConnectionLost(
        fmt::format("[comm {}] rank {} of {} (global {}) cannot connect to its peers within {} s: {}", name,
                    self_.rank, size(), self_.ranks[self_.rank], timeout_.count() / 1000.0, error.what()));
  }
}

void SharedMemoryCommunicator::Engine::start(Exchange& exchange, std::span<const at::Tensor> sends,
                                             std::span<const at::Tensor> receives) {
  const Calling calling(*this);
  if (failure_) throw ConnectionLost(*failure_, loss_cause_);
  const auto post = [&](const at::Tensor& tensor, std::deque<Transfer>& queue) {
    if (is_nothing(tensor)) return;
    exchange.tensors.push_back(tensor);
    ++exchange.open;
    queue.push_back({.exchange = &exchange,
                     .bytes = static_cast<std::byte*>(tensor.data_ptr()),
                     .size = static_cast<std::uint64_t>(tensor.nbytes())});
  };
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == self_.rank) continue;
    post(sends[rank], peers_[rank].sends);
    post(receives[rank], peers_[rank].receives);
  }
  progress();
}

void SharedMemoryCommunicator::Engine::call_helper() {
  if (leaving_) return;
  if (!helper_.joinable()) helper_ = std::thread([this] { help(); });
  help_wanted_.notify_one();
}

// A message that fits into its pipe arrives there by itself and waits.
bool SharedMemoryCommunicator::Engine::needs_help() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
    size_t coming = 0;
    for (const auto& transfer : peer.receives) coming += transfer.left();
    return !peer.sends.empty() || coming > Pipe::kBytes;
  });
}

bool SharedMemoryCommunicator::Engine::progress() {
  bool moved = false;
  for (int step = 1; step < size() && !failure_; ++step) {
    // Each rank begins with another peer, so that they do not all crowd one.
    const int rank = (self_.rank + step) % size();
    moved = push(peers_[rank]) || moved;
    moved = pull(rank, peers_[rank]) || moved;
  }
  return moved;
}

bool SharedMemoryCommunicator::Engine::push(Peer& peer) {
  Pipe& pipe = peer.segment->pipe_from(self_.rank);
  bool moved = false;
  while (!peer.sends.empty() && !gives_way()) {
    Transfer& transfer = peer.sends.front();
    size_t took = 0;
    if (transfer.in_head()) {
      const auto* head = reinterpret_cast<const std::byte*>(&transfer.size);
      took = pipe.write(head + transfer.moved, Transfer::kHead - transfer.moved);
    } else {
      took = pipe.write(transfer.bytes + (transfer.moved - Transfer::kHead),
                        std::min(transfer.left(), kPieceBytes));
      if (took > 0) peer.segment->bell().ring();
    }
    transfer.moved += took;
    moved = moved || took > 0;
    if (transfer.done()) {
      --transfer.exchange->open;
      peer.sends.pop_front();
    } else if (took == 0 && !pipe.want_room()) {
      break;
    }
  }
  return moved;
}

bool SharedMemoryCommunicator::Engine::pull(int rank, Peer& peer) {
  Pipe& pipe = segment_.pipe_from(rank);
  bool moved = false;
  while (!peer.receives.empty() && !failure_ && !gives_way()) {
    Transfer& transfer = peer.receives.front();
    const bool in_head = transfer.in_head();
    std::byte* into = in_head ? reinterpret_cast<std::byte*>(&transfer.announced) + transfer.moved
                              : transfer.bytes + (transfer.moved - Transfer::kHead);
    const size_t took =
        pipe.read(into, in_head ? Transfer::kHead - transfer.moved : std::min(transfer.left(), kPieceBytes));
    if (took == 0) break;
    moved = true;
    transfer.moved += took;
    if (pipe.reader_made_room()) peer.segment->bell().ring();
    if (in_head && !transfer.in_head()) begin_message(rank, transfer);
    if (transfer.done() && !failure_) {
      --transfer.exchange->open;
      peer.receives.pop_front();
    }
  }
  return moved;
}

void SharedMemoryCommunicator::Engine::begin_message(int rank, Transfer& transfer) {
  if (transfer.announced == transfer.size) return;
  fail(fmt::format("{} failed: it sends {} bytes, {} are expected", self_.describe("receiving from", rank),
                   transfer.announced, transfer.size));
}

void SharedMemoryCommunicator::Engine::fail(std::string why) {
  if (!failure_) failure_ = std::move(why);
  // Nothing may touch the tensors from here on.
  for (Peer& peer : peers_) {
    peer.sends.clear();
    peer.receives.clear();
  }
  segment_.bell().ring();
}

void SharedMemoryCommunicator::Engine::look_for_the_dead() {
  for (int rank = 0; rank < size() && !failure_; ++rank) {
    if (rank == self_.rank) continue;
    Peer& peer = peers_[rank];
    if (peer.sends.empty() && peer.receives.empty()) continue;
    // Asked before the last look into the pipe: what a peer sent before it left arrives.
    const bool left = peer.segment->closed() || !peer.segment->owner_lives();
    if (!left) continue;
    if (!progress() && !failure_ && !(peer.sends.empty() && peer.receives.empty())) {
      fail(fmt::format("{} failed: the peer has left",
                       self_.describe(peer.receives.empty() ? "sending to" : "receiving from", rank)));
    }
  }
}

std::string SharedMemoryCommunicator::Engine::late() const {
  for (int rank = 0; rank < size(); ++rank) {
    const Peer& peer = peers_[rank];
    if (peer.sends.empty() && peer.receives.empty()) continue;
    return fmt::format("{} failed: it did not answer within {} s (comm.timeout)",
                       self_.describe(peer.receives.empty() ? "sending to" : "receiving from", rank),
                       timeout_.count() / 1000.0);
  }
  return fmt::format("[comm {}] rank {}: timed out", self_.name, self_.rank);
}

void SharedMemoryCommunicator::Engine::wait(const Exchange& exchange) {
  const auto deadline = Clock::now() + timeout_;
  Calling calling(*this);
  auto& lock = calling.lock;
  while (exchange.open > 0 && !failure_) {
    const auto seen = segment_.bell().count();
    if (progress() || exchange.open == 0) continue;
    lock.unlock();
    segment_.bell().sleep(seen, kLook);
    lock.lock();
    if (segment_.bell().count() != seen) continue;
    look_for_the_dead();
    if (!failure_ && exchange.open > 0 && Clock::now() > deadline) {
      loss_cause_ = LossCause::kLate;
      fail(late());
    }
  }
  if (exchange.open > 0) throw ConnectionLost(*failure_, loss_cause_);
}

void SharedMemoryCommunicator::Engine::help() {
  std::unique_lock lock(mutex_);
  while (!leaving_) {
    help_wanted_.wait(lock, [this] { return leaving_ || (num_callers_ == 0 && needs_help()); });
    if (leaving_) return;
    const auto seen = segment_.bell().count();
    if (progress() || num_callers_ > 0) continue;
    lock.unlock();
    segment_.bell().sleep(seen, kLook);
    lock.lock();
  }
}

void SharedMemoryCommunicator::Engine::leave() {
  {
    const std::lock_guard lock(mutex_);
    if (leaving_) return;
    leaving_ = true;
    fail(fmt::format("[comm {}] rank {}: the communicator is gone", self_.name, self_.rank));
  }
  help_wanted_.notify_one();
  if (helper_.joinable()) helper_.join();
  segment_.close();
  for (Peer& peer : peers_) {
    if (peer.segment) peer.segment->bell().ring();
  }
}

SharedMemoryCommunicator::SharedMemoryCommunicator(std::string name, int rank, std::vector<int> ranks,
                                                   const c10::intrusive_ptr<c10d::Store>& store,
                                                   milliseconds timeout)
    : Communicator(name, rank, static_cast<int>(ranks.size())) {
  STEPPE_CHECK_VALUE(rank >= 0 && rank < size(), "[comm {}] rank must be in [0, {}), got {}", name, size(),
                     rank);
  engine_ = std::make_shared<Engine>(Endpoint{std::move(name), rank, std::move(ranks)}, timeout);
  engine_->meet(*store);
}

SharedMemoryCommunicator::~SharedMemoryCommunicator() {
  engine_->leave();
}

Pending SharedMemoryCommunicator::exchange(std::span<const at::Tensor> sends,
                                           std::span<const at::Tensor> receives) {
  check_exchange(*this, sends, receives, at::kCPU);
  auto exchange = std::make_shared<Exchange>();
  engine_->start(*exchange, sends, receives);
  copy_own_pair(*this, sends, receives);  // while the others are under way
  wire_bytes_ += bytes_to_peers(*this, sends);
  return Pending([engine = engine_, exchange] { engine->wait(*exchange); });
}

std::vector<int64_t> SharedMemoryCommunicator::all_gather_host(std::span<const int64_t> mine) {
  return all_gather_by_exchange(*this, mine);
}

void SharedMemoryCommunicator::barrier() {
  const int64_t token = 0;
  all_gather_host({&token, 1});
}

bool ranks_share_memory(int rank, int world_size, c10d::Store& store, milliseconds timeout) {
  const auto everyones = [&](std::string_view what, std::string_view word) {
    return gather_through_store(store, fmt::format("shared_memory/{}", what), rank, world_size, word,
                                timeout);
  };
  SharedSegment mine(1);
  const auto addresses = everyones("probe", mine.address());
  bool reached = true;
  for (int peer = 0; peer < world_size && reached; ++peer) {
    if (peer == rank) continue;
    try {
      const SharedSegment theirs(1, addresses[peer]);
    } catch (const RuntimeFailure&) {
      reached = false;
    }
  }
  return std::ranges::count(everyones("reached", reached ? "yes" : "no"), "yes") == world_size;
}

}  // namespace steppe::comm
