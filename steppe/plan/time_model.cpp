#include "steppe/plan/time_model.h"

#include <algorithm>

namespace steppe::plan {
namespace {

constexpr double kProductShare = 0.4, kWireShare = 0.7, kLinkShare = 0.8, kExposedShare = 0.5;

}  // namespace

double StepTime::total() const {
  return std::max(compute + exposed_exchange, beside);
}

StepTime step_time(const Counters& counters, const layout::LayoutConfig& layout, const Hardware& hardware) {
  const auto seconds = [&](WirePurpose purpose, int degree) {
    const bool within_node = degree <= hardware.ranks_per_node;
    const double speed = within_node ? hardware.node_bytes_per_s : hardware.wire_bytes_per_s;
    return static_cast<double>(counters.wire_bytes[purpose]) / (kWireShare * speed);
  };
  StepTime time;
  time.compute = static_cast<double>(counters.flops.sum()) / (kProductShare * hardware.flops_per_s);
  time.exposed_exchange = kExposedShare * (seconds(WirePurpose::kDispatch, layout.expert_degree) +
                                           seconds(WirePurpose::kSequence, layout.ulysses_degree) +
                                           seconds(WirePurpose::kVocab, layout.vocab_degree));
  const double weights =
      seconds(WirePurpose::kWeights, layout.world_size) + seconds(WirePurpose::kGradients, layout.world_size);
  const auto link = static_cast<double>(std::max(counters.link_bytes[LinkDirection::kHostToDevice],
                                                 counters.link_bytes[LinkDirection::kDeviceToHost]));
  time.beside = std::max(weights, link / (kLinkShare * hardware.link_bytes_per_s));
  return time;
}

}  // namespace steppe::plan
