#include "steppe/plan/time_model.h"

#include <algorithm>

namespace steppe::plan {
namespace {

constexpr double kProductShare = 0.4, kWireShare = 0.7, kLinkShare = 0.8, kHostShare = 0.5;
constexpr double kExposedShare = 0.5;

double product_seconds(const Counters& counters, const Hardware& hardware) {
  return static_cast<double>(counters.flops.sum()) / (kProductShare * hardware.flops_per_s);
}

// The link and the memory behind it, which work at a time.
double host_side_seconds(const LinkTally& bytes, double host_update_bytes, const Hardware& hardware) {
  const auto down = static_cast<double>(bytes[LinkDirection::kDeviceToHost].sum());
  const auto up = static_cast<double>(bytes[LinkDirection::kHostToDevice].sum());
  const double link = std::max(down, up) / (kLinkShare * hardware.link_bytes_per_s);
  const double host = static_cast<double>(hardware.ranks_per_node) * (down + up + host_update_bytes) /
                      (kHostShare * hardware.host_bytes_per_s);
  return std::max(link, host);
}

int64_t moments_itemsize(const recipe::OptimizerSection& optimizer) {
  return optimizer.moments_dtype == "bfloat16" ? 2 : 4;
}

}  // namespace

StepTime step_time(const StepWork& work, const layout::LayoutConfig& layout, const Hardware& hardware) {
  auto wire = work.passes.wire_bytes;
  wire += work.update.wire_bytes;
  const auto seconds = [&](WirePurpose purpose, int degree) {
    const bool within_node = degree <= hardware.ranks_per_node;
    const double speed = within_node ? hardware.node_bytes_per_s : hardware.wire_bytes_per_s;
    return static_cast<double>(wire[purpose]) / (kWireShare * speed);
  };
  const double exchanges = seconds(WirePurpose::kDispatch, layout.expert_degree) +
                           seconds(WirePurpose::kSequence, layout.ulysses_degree) +
                           seconds(WirePurpose::kVocab, layout.vocab_degree);
  const double weights =
      seconds(WirePurpose::kWeights, layout.world_size) + seconds(WirePurpose::kGradients, layout.world_size);
  StepTime time;
  time.passes = std::max({product_seconds(work.passes, hardware) + kExposedShare * exchanges, weights,
                          host_side_seconds(work.passes.link_bytes, 0, hardware)});
  time.replicas = seconds(WirePurpose::kReplicas, layout.world_size);
  time.update = std::max(product_seconds(work.update, hardware),
                         host_side_seconds(work.update.link_bytes, work.host_update_bytes, hardware));
  return time;
}

double host_update_bytes(const recipe::OptimizerSection& optimizer, int64_t params,
                         int64_t gradient_itemsize) {
  if (optimizer.placement != "cpu") return 0;
  const int64_t state = 4 + 2 * moments_itemsize(optimizer);
  return static_cast<double>((2 * state + gradient_itemsize) * params);
}

StepWork update_work(const recipe::OptimizerSection& optimizer, int64_t params, const ItemSizes& itemsizes) {
  StepWork work;
  auto& up = work.update.link_bytes[LinkDirection::kHostToDevice];
  auto& down = work.update.link_bytes[LinkDirection::kDeviceToHost];
  const bool host_gradients = optimizer.gradients == "host", fp32 = itemsizes.working == 4;
  if (optimizer.placement == "stream") {
    const int64_t state = (fp32 ? 0 : 4) + 2 * moments_itemsize(optimizer);  // fp32 weights are the masters
    up.add(LinkPurpose::kOptimizer, state * params);
    down.add(LinkPurpose::kOptimizer, state * params);
    if (host_gradients) up.add(LinkPurpose::kGradients, itemsizes.gradient * params);
  } else if (optimizer.placement == "cpu") {
    up.add(LinkPurpose::kWeights, itemsizes.working * params);
    if (!host_gradients) down.add(LinkPurpose::kGradients, itemsizes.gradient * params);
    work.host_update_bytes = host_update_bytes(optimizer, params, itemsizes.gradient);
  }
  return work;
}

}  // namespace steppe::plan
