#include "steppe/optim/adamw.h"

#include "steppe/kernels/adamw.h"

namespace steppe::optim {

void adamw_step(const AdamWConfig& config, const AdamWUpdate& update,
                std::span<const ParameterShard* const> shards) {
  for (const ParameterShard* shard : shards) {
    for (const Segment& segment : shard->segments) {
      const auto part = [&](const at::Tensor& x) {
        return x.narrow(0, segment.begin, segment.end - segment.begin);
      };
      const bool aliased = shard->working.data_ptr() == shard->master.data_ptr() && !shard->master.is_meta();
      kernels::adamw({part(shard->master), part(shard->m), part(shard->v), part(shard->grad),
                      aliased ? at::Tensor{} : part(shard->working)},
                     {update.lr, config.beta1, config.beta2, config.eps,
                      segment.decay ? config.weight_decay : 0.0, update.grad_scale, update.step});
    }
  }
}

double clip_scale(double norm, double max_norm) {
  // PyTorch's clip_grad_norm_ adds the same 1e-6.
  return max_norm > 0 && norm > max_norm ? max_norm / (norm + 1e-6) : 1.0;
}

}  // namespace steppe::optim
