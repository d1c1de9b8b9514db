#include "steppe/offload/activation_offload.h"

#include "steppe/kernels/backend.h"

namespace steppe::offload {
namespace {

Stream compute_stream(const ops::OpContext& context) {
  if (context.device.is_meta()) return Stream::inert();
  if (!context.device.is_cuda()) return Stream::caller();
  return Stream::borrowed_cuda(context.device.index(), kernels::current_cuda_stream(context.empty({0})));
}

Stream uncounted_stream(const OffloadConfig& config, const ops::OpContext& context, LinkDirection way) {
  if (!config.uses_host() || context.device.is_meta()) return Stream::inert();
  if (context.device.is_cuda()) return Stream::cuda(context.device.index());
  return Stream::worker(way == LinkDirection::kHostToDevice ? "saved to device" : "saved to host");
}

Stream copy_stream(const OffloadConfig& config, const ops::OpContext& context, LinkDirection way) {
  auto stream = uncounted_stream(config, context, way);
  if (context.counters) stream.count_copies_in(&context.counters->link_bytes[way]);
  return stream;
}

}  // namespace

ActivationOffload::ActivationOffload(const OffloadConfig& config, const ops::OpContext& context)
    : config_(config),
      boundaries_(config.boundary_host_bytes, arena_options(memory::Category::kBoundary, context)),
      outputs_(config.output_host_bytes, arena_options(memory::Category::kSaved, context)),
      compute_(compute_stream(context)),
      to_device_(copy_stream(config, context, LinkDirection::kHostToDevice)),
      to_host_(copy_stream(config, context, LinkDirection::kDeviceToHost)) {}

memory::HostArenaOptions ActivationOffload::arena_options(memory::Category category,
                                                          const ops::OpContext& context) {
  return {.name = "offload.host_budget",
          .category = category,
          .device = context.device,
          .pin = config_.pin_memory,
          .warn = [this](const std::string& warning) { warnings_.push_back(warning); }};
}

Placement ActivationOffload::boundary_placement() const {
  if (config_.boundaries == BoundaryPolicy::kNone) return Placement::kDevice;
  return config_.boundaries == BoundaryPolicy::kAll ? Placement::kHost : Placement::kHostIfRoom;
}

bool ActivationOffload::keeps_attention_output(int64_t layer) const {
  return !config_.attention_outputs.empty() &&
         config_.attention_outputs[layer] != OutputPlacement::kRecompute;
}

Placement ActivationOffload::output_placement(int64_t layer) const {
  return config_.attention_outputs[layer] == OutputPlacement::kHost ? Placement::kHost : Placement::kDevice;
}

}  // namespace steppe::offload
