// A rank's streams and host memory for what its layers keep; owned by the step, made once. Where nothing
// leaves the device there is no thread, no stream and no memory.
#pragma once

#include "steppe/memory/host_arena.h"
#include "steppe/offload/offload_config.h"
#include "steppe/offload/saved_store.h"
#include "steppe/ops/context.h"

namespace steppe::offload {

class ActivationOffload {
 public:
  // Takes the arenas: category `boundary` and `saved`, in the host's domain.
  ActivationOffload(const OffloadConfig& config, const ops::OpContext& context);

  const OffloadConfig& config() const { return config_; }
  // What could not be had as it was asked for: memory that cannot be pinned.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // One micro-batch's.
  SavedStore store(int64_t num_layers) { return {num_layers, streams(), {boundaries_, outputs_}}; }

  Placement boundary_placement() const;
  bool keeps_attention_output(int64_t layer) const;
  Placement output_placement(int64_t layer) const;

 private:
  CopyStreams streams() { return {compute_, to_device_, to_host_}; }
  memory::HostArenaOptions arena_options(memory::Category category, const ops::OpContext& context);

  OffloadConfig config_;
  std::vector<std::string> warnings_;
  memory::HostArena boundaries_, outputs_;
  Stream compute_, to_device_, to_host_;  // behind the arenas: their threads end first
};

}  // namespace steppe::offload
