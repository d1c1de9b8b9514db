// What a dispatch costs: bytes alive by category, bytes on the wire, floating-point operations; and that a
// dry run predicts them.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "steppe/comm/shape_only_communicator.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/moe_dispatch/moe_dispatch.h"
#include "steppe/ops/moe_dispatch/moe_layer_test.h"

namespace steppe::ops {
namespace {

using memory::BytesByCategory;
using memory::Category;

int64_t of(const BytesByCategory& bytes, Category category) {
  return bytes[static_cast<size_t>(category)];
}

// Routes between ranks, counted from the ids one by one.
struct Traffic {
  int64_t sent = 0, sent_away = 0;  // by this rank
  int64_t received = 0, from_others = 0;
};

Traffic traffic_of(const MoeLayer& layer, int rank, int degree) {
  Traffic traffic;
  for (int source = 0; source < degree; ++source) {
    const auto ids = rows_of_rank(layer, layer.ids_Nk, source).flatten();
    for (int64_t i = 0; i < ids.numel(); ++i) {
      const auto owner = ids[i].item<int64_t>() / (kExperts / degree);
      traffic.sent += source == rank;
      traffic.sent_away += source == rank && owner != rank;
      traffic.received += owner == rank;
      traffic.from_others += owner == rank && source != rank;
    }
  }
  return traffic;
}

// The header's claims.
struct Claim {
  int64_t forward_dispatch = 0, backward_dispatch = 0, saved = 0;
  int64_t expert = 0;
};

int64_t packed_bytes(int64_t row) {
  return (row + 15) / 16 * 16 + 16;
}

Claim claim_of(const Traffic& t, int degree, const Variant& variant, int64_t row) {
  const int64_t item = row / kHidden, packed = packed_bytes(row), n = t.sent, r = t.received;
  const int64_t indices = 8 * n, at_experts = r * (row + 4);
  Claim claim;
  const int64_t tile = variant.tile_rows == 0 ? r : std::min(variant.tile_rows, r);
  claim.expert = tile * (variant.keep ? 1 : 3) * kIntermediate * item;
  if (variant.keep) claim.saved = indices + at_experts + r * 2 * kIntermediate * item;
  if (degree == 1) {  // x and dy stay where they are
    claim.forward_dispatch = variant.keep ? r * row : indices + at_experts;
    claim.backward_dispatch = (variant.keep ? 0 : indices + at_experts) + at_experts;
    return claim;
  }
  // A send buffer, a receive buffer and its regrouping, of which two are alive at once.
  const int64_t pair = std::max(n + r, 2 * r) * row, sent_packed = (n + r) * packed;
  const int64_t there = std::max(sent_packed, r * packed + (variant.keep ? 0 : at_experts));
  claim.forward_dispatch = std::max(there, pair) + (variant.keep ? 0 : indices);
  // dy travels while x is there; the weights' gradients return with dx, when x is gone.
  const int64_t beside = variant.keep ? 0 : at_experts;
  claim.backward_dispatch = std::max({variant.keep ? 0 : there, beside + std::max(pair, at_experts),
                                      at_experts + r * packed, sent_packed}) +
                            (variant.keep ? 0 : indices);
  return claim;
}

// Ledger readings relative to where a pass began.
class Watch {
 public:
  Watch() : before_(memory::current_ledger().live_by_category()) { memory::current_ledger().reset_peak(); }
  int64_t own_peak(Category category) const {
    return of(memory::current_ledger().peak_by_own_category(), category) - of(before_, category);
  }
  BytesByCategory change() const {
    auto live = memory::current_ledger().live_by_category();
    for (size_t c = 0; c < live.size(); ++c) live[c] -= before_[c];
    return live;
  }

 private:
  BytesByCategory before_;
};

void expect_claims(const MoeLayer& layer, comm::Communicator& group, RankPart& part, const Variant& variant) {
  const int64_t row = kHidden * part.x_NH.element_size();
  const auto claim = claim_of(traffic_of(layer, group.rank(), group.size()), group.size(), variant, row);
  Counters counters;
  const auto context = context_of(part, counters);
  DispatchSaved saved;
  const Watch both;
  run_forward(context, group, part, variant, saved);
  EXPECT_EQ(both.own_peak(Category::kDispatch), claim.forward_dispatch);
  EXPECT_EQ(both.own_peak(Category::kSaved), claim.saved);
  EXPECT_LE(both.own_peak(Category::kExpert), claim.expert);
  if (variant.tile_rows == 0) {
    EXPECT_EQ(both.own_peak(Category::kExpert), claim.expert);
  }
  BytesByCategory kept{};
  kept[static_cast<size_t>(Category::kSaved)] = claim.saved;
  EXPECT_EQ(both.change(), kept);
  memory::current_ledger().reset_peak();
  run_backward(context, group, part, variant, saved);
  EXPECT_EQ(both.own_peak(Category::kDispatch), claim.backward_dispatch);
  EXPECT_LE(both.own_peak(Category::kExpert), claim.expert);
  if (variant.tile_rows == 0) {
    EXPECT_EQ(both.own_peak(Category::kExpert), claim.expert);
  }
  EXPECT_EQ(both.change(), BytesByCategory{}) << "something outlives the backward";
}

// One for each kind of routes. Made before the ranks start: they share the generator of random numbers.
std::vector<MoeLayer> uneven_layers(int degree, at::ScalarType dtype) {
  std::vector<MoeLayer> layers;
  for (const auto routes : kAllRoutes) layers.push_back(make_layer(uneven_tokens(degree), routes, dtype));
  return layers;
}

TEST(EpBytes, CategoriesHoldWhatTheContractSays) {
  for (const int degree : kDegrees) {
    const auto layers = uneven_layers(degree, at::kFloat);
    comm::run_ranks(degree, [&](int rank, const auto& store) {
      const auto group = comm::make_world(rank, degree, store);
      for (size_t i = 0; i < layers.size(); ++i)
        for (const auto& variant : kVariants) {
          SCOPED_TRACE(fmt::format("rank {} of {}, layer {}, tiles of {}, kept {}", rank, degree, i,
                                   variant.tile_rows, variant.keep));
          auto part = part_of(layers[i], *group, at::kCPU);
          expect_claims(layers[i], *group, part, variant);
        }
    });
  }
}

// Every rank sends the same counts: what the shape-only communicator assumes.
MoeLayer symmetric_layer(int degree, at::ScalarType dtype) {
  auto layer = make_layer(std::vector<int64_t>(degree, 10), Routes::kPowerLaw, dtype);
  for (int rank = 1; rank < degree; ++rank)
    rows_of_rank(layer, layer.ids_Nk, rank).copy_(rows_of_rank(layer, layer.ids_Nk, 0).roll(rank, 0));
  return layer;
}

TEST(EpBytes, CategoriesHoldWhatTheContractSaysOfBf16) {
  for (const int degree : kDegrees) {
    const auto layer = symmetric_layer(degree, at::kBFloat16);
    for (int rank = 0; rank < degree; ++rank)
      for (const auto& variant : kVariants) {
        comm::ShapeOnlyCommunicator group("expert", rank, degree);
        auto part = part_of(layer, group, at::kMeta);
        expect_claims(layer, group, part, variant);
      }
  }
}

struct Cost {
  std::vector<memory::Event> events;
  int64_t wire_bytes = 0;
  Counters counters;
};

Cost cost_of(comm::Communicator& group, RankPart& part, const Variant& variant) {
  auto& ledger = memory::current_ledger();
  const int64_t live = ledger.live_bytes(), wire = group.wire_bytes();
  Cost cost;
  ledger.start_timeline();
  run_both(context_of(part, cost.counters), group, part, variant);
  cost.events = ledger.stop_timeline().events;
  for (auto& event : cost.events) event.live_bytes -= live;
  cost.wire_bytes = group.wire_bytes() - wire;
  return cost;
}

TEST(EpBytes, ADryRunPredictsEveryAllocationAndByteAndOperation) {
  for (const int degree : kDegrees) {
    const auto layer = symmetric_layer(degree, at::kFloat);
    comm::run_ranks(degree, [&](int rank, const auto& store) {
      const auto group = comm::make_world(rank, degree, store);
      for (const auto& variant : kVariants) {
        SCOPED_TRACE(fmt::format("rank {} of {}, tiles of {}, kept {}", rank, degree, variant.tile_rows,
                                 variant.keep));
        auto real_part = part_of(layer, *group, at::kCPU);
        comm::ShapeOnlyCommunicator shapes("expert", rank, degree);
        auto shape_part = part_of(layer, shapes, at::kMeta);
        const auto real = cost_of(*group, real_part, variant),
                   predicted = cost_of(shapes, shape_part, variant);
        EXPECT_FALSE(real.events.empty());
        EXPECT_TRUE(real.events == predicted.events);
        EXPECT_EQ(real.wire_bytes, predicted.wire_bytes);
        EXPECT_EQ(real.counters, predicted.counters);
      }
    });
  }
}

// Out: a packed row forward; backward again, unless it is kept, and a row of dy. Back: a row forward; a
// packed row of dx and the weight's gradient backward. What a rank keeps for itself is not sent.
void expect_wire_and_flops(const MoeLayer& layer, comm::Communicator& group, bool keep) {
  auto part = part_of(layer, group, at::kCPU);
  const auto traffic = traffic_of(layer, group.rank(), group.size());
  const int64_t row = kHidden * part.x_NH.element_size();
  const int64_t packed = packed_bytes(row);
  const int64_t forward = traffic.sent_away * packed + traffic.from_others * row;
  const int64_t backward = traffic.sent_away * (row + (keep ? 0 : packed)) + traffic.from_others * packed;
  const auto cost = cost_of(group, part, {0, keep});
  EXPECT_EQ(cost.wire_bytes, forward + backward);
  const int64_t unit = 2 * traffic.received * kHidden * kIntermediate;
  EXPECT_EQ(cost.counters.flops[FlopKind::kExpert], (3 + 6 + (keep ? 0 : 2)) * unit);
  EXPECT_EQ(cost.counters.flops.sum(), cost.counters.flops[FlopKind::kExpert]);
}

TEST(EpBytes, RowsAndWeightsTravelOnce) {
  for (const int degree : kDegrees) {
    auto layers = uneven_layers(degree, at::kFloat);
    layers.push_back(make_layer(uneven_tokens(degree), Routes::kPowerLaw, at::kBFloat16));
    comm::run_ranks(degree, [&](int rank, const auto& store) {
      const auto group = comm::make_world(rank, degree, store);
      for (size_t i = 0; i < layers.size(); ++i)
        for (const bool keep : {false, true}) {
          SCOPED_TRACE(fmt::format("rank {} of {}, layer {}, kept {}", rank, degree, i, keep));
          expect_wire_and_flops(layers[i], *group, keep);
        }
    });
  }
}

}  // namespace
}  // namespace steppe::ops
