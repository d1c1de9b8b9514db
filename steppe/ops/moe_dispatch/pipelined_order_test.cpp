// Whether rows travel while experts work: for every exchange, what the experts computed between its issue and
// the wait for it.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "steppe/ops/moe_dispatch/kinds_test.h"

namespace steppe::ops {
namespace {

// Exchanges of activations, with the experts' operations counted so far when issued and when awaited.
class OverlapCommunicator final : public comm::Communicator {
 public:
  OverlapCommunicator(comm::Communicator& inner, const Counters& counters)
      : Communicator(inner.name(), inner.rank(), inner.size()), inner_(inner), counters_(counters) {}

  comm::Pending exchange(std::span<const at::Tensor> sends, std::span<const at::Tensor> receives) override {
    auto pending = std::make_shared<comm::Pending>(inner_.exchange(sends, receives));
    if (!sends[rank()].defined() || sends[rank()].dim() != 2) return comm::Pending([=] { pending->wait(); });
    const int64_t issued = counters_.flops[FlopKind::kExpert];
    ++num_exchanges;
    return comm::Pending([this, pending, issued] {
      num_overlapped += counters_.flops[FlopKind::kExpert] > issued;
      pending->wait();
    });
  }
  std::vector<int64_t> all_gather_host(std::span<const int64_t> mine) override {
    return inner_.all_gather_host(mine);
  }
  void barrier() override { inner_.barrier(); }

  int64_t num_exchanges = 0, num_overlapped = 0;

 private:
  comm::Communicator& inner_;
  const Counters& counters_;
};

struct Overlaps {
  int64_t forward = 0, forward_overlapped = 0, backward = 0, backward_overlapped = 0;
  bool operator==(const Overlaps&) const = default;
};

void expect_overlaps(const KindCase& kind, const Overlaps& want) {
  for (const int degree : {2, 3}) {
    const auto layer = make_layer(std::vector<int64_t>(degree, 60), Routes::kRandom, at::kFloat);
    comm::run_ranks(degree, [&](int rank, const auto& store) {
      const auto group = comm::make_world(rank, degree, store);
      auto part = part_for(layer, *group, at::kCPU, kind);
      Counters counters;
      OverlapCommunicator forward(*group, counters), backward(*group, counters);
      const auto context = context_of(part, counters);
      dispatch_forward({context, forward, part.routing, part.weights, kind.options}, part.y_NH, part.x_NH,
                       nullptr);
      dispatch_backward({context, backward, part.routing, part.weights, kind.options}, part.grads, part.dy_NH,
                        part.x_NH, nullptr);
      const Overlaps got{forward.num_exchanges, forward.num_overlapped, backward.num_exchanges,
                         backward.num_overlapped};
      EXPECT_EQ(got, want) << fmt::format("rank {} of {}: {} of {}, {} of {}", rank, degree,
                                          got.forward_overlapped, got.forward, got.backward_overlapped,
                                          got.backward);
    });
  }
}

// All but the first dispatch and the last return; dy comes in two halves.
TEST(PipelinedOrder, ExpertsWorkWhileRowsTravel) {
  for (const int64_t chunks : {2, 5}) {
    SCOPED_TRACE(chunks);
    const KindCase kind{"", kind_options(DispatchKind::kPipelinedLlep, 4), {chunks}};
    expect_overlaps(kind, {2 * chunks, 2 * chunks - 2, 4 * chunks, 4 * chunks - 4});
  }
}

TEST(PipelinedOrder, NothingOverlapsInOneShot) {
  expect_overlaps({"", kind_options(DispatchKind::kLlep, 4), {}}, {2, 0, 3, 0});
  expect_overlaps({"", kind_options(DispatchKind::kEp), {}}, {2, 0, 3, 0});
}

}  // namespace
}  // namespace steppe::ops
