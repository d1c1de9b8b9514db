#include "steppe/comm/gloo_communicator.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "steppe/base/error.h"
#include "steppe/comm/connection_lost.h"
#include "steppe/comm/endpoint.h"
#include "steppe/comm/exchange_contract.h"

namespace steppe::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Each exchange has a tag of its own, so that several under way cannot mix even if Gloo served them out of
// turn. They are reused after a while, since Gloo keeps some state per tag.
constexpr int kNumTags = 1 << 16;

// The transfers of one exchange. Each Work keeps its tensor.
class Transfers {
 public:
  Transfers(Endpoint self, std::chrono::milliseconds timeout) : self_(std::move(self)), timeout_(timeout) {}

  template <typename Post>
  void post(std::string_view verb, int peer, Post&& post) {
    try {
      entries_.push_back({post(), verb, peer});
    } catch (const std::exception& error) {
      throw ConnectionLost(fmt::format("{} failed: {}", self_.describe(verb, peer), error.what()));
    }
  }

  void wait() {
    const auto deadline = Clock::now() + timeout_;
    for (const Entry& entry : entries_) {
      // Zero would mean Gloo's own default.
      const auto left =
          std::max(std::chrono::milliseconds(1),
                   std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()));
      try {
        if (entry.work->wait(left)) continue;
      } catch (const std::exception& error) {
        // Gloo's errors are of one type; it is late where the time is over, a rounded millisecond aside.
        const bool late = Clock::now() + std::chrono::milliseconds(2) >= deadline;
        const auto what = late ? fmt::format("it did not answer within {} s", timeout_.count() / 1000.0)
                               : std::string("it is gone");
        throw ConnectionLost(
            fmt::format("{} failed: {}: {}", self_.describe(entry.verb, entry.peer), what, error.what()),
            late ? LossCause::kLate : LossCause::kGone);
      }
      throw ConnectionLost(fmt::format("{} was aborted", self_.describe(entry.verb, entry.peer)));
    }
  }

 private:
  struct Entry {
    c10::intrusive_ptr<c10d::Work> work;
    std::string_view verb;  // a literal
    int peer;
  };
  Endpoint self_;
  std::chrono::milliseconds timeout_;
  std::vector<Entry> entries_;
};

c10::intrusive_ptr<c10d::ProcessGroupGloo> connect(const Endpoint& self,
                                                   const c10::intrusive_ptr<c10d::Store>& store,
                                                   const GlooOptions& options) {
  auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
  gloo->group_name = self.name;
  gloo->threads = 1;  // for Gloo's collectives, of which there are none
  try {
    gloo->devices.push_back(options.loopback ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                                             : c10d::ProcessGroupGloo::createDefaultDevice());
    return c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>(self.name, store), self.rank,
        static_cast<int>(self.ranks.size()), gloo);
  } catch (const std::exception& error) {
    throw RuntimeFailure(fmt::format(
        "[comm {}] rank {} of {} (global {}) cannot connect to its peers within {} s: {}", self.name,
        self.rank, self.ranks.size(), self.ranks[self.rank], options.timeout.count() / 1000.0, error.what()));
  }
}

}  // namespace

GlooCommunicator::GlooCommunicator(std::string name, int rank, std::vector<int> ranks,
                                   const c10::intrusive_ptr<c10d::Store>& store, const GlooOptions& options)
    : Communicator(std::move(name), rank, static_cast<int>(ranks.size())),
      ranks_(std::move(ranks)),
      timeout_(options.timeout) {
  STEPPE_CHECK_VALUE(rank >= 0 && rank < size(), "[comm {}] rank must be in [0, {}), got {}", this->name(),
                     size(), rank);
  process_group_ = connect({this->name(), rank, ranks_}, store, options);
}

GlooCommunicator::~GlooCommunicator() = default;

Pending GlooCommunicator::exchange(std::span<const at::Tensor> sends, std::span<const at::Tensor> receives) {
  check_exchange(*this, sends, receives, at::kCPU);
  const int tag = std::exchange(next_tag_, (next_tag_ + 1) % kNumTags);
  auto transfers = std::make_shared<Transfers>(Endpoint{name(), rank(), ranks_}, timeout_);
  // Receives first: a send that finds its receive posted is written at once. Each rank begins with another
  // peer, so that they do not all send to rank 0 first.
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() - step + size()) % size();
    if (is_nothing(receives[peer])) continue;
    std::vector<at::Tensor> one = {receives[peer]};
    transfers->post("receiving from", peer, [&] { return process_group_->recv(one, peer, tag); });
  }
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    if (is_nothing(sends[peer])) continue;
    std::vector<at::Tensor> one = {sends[peer]};
    transfers->post("sending to", peer, [&] { return process_group_->send(one, peer, tag); });
  }
  copy_own_pair(*this, sends, receives);  // while the others are under way
  wire_bytes_ += bytes_to_peers(*this, sends);
  return Pending([transfers] { transfers->wait(); });
}

std::vector<int64_t> GlooCommunicator::all_gather_host(std::span<const int64_t> mine) {
  return all_gather_by_exchange(*this, mine);
}

void GlooCommunicator::barrier() {
  const int64_t token = 0;
  all_gather_host({&token, 1});
}

}  // namespace steppe::comm
