// The optimizer's peers: torch.optim.AdamW(fused=True) and DeepSpeedCPUAdam on fp32 parameters in host
// memory. They live in a child process, benchmarks/peers/optimizer_peers.py, on the same weights and
// gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench/peer_process.h"
#include "steppe/base/temporary_folder.h"

namespace steppe::cli {

class OptimizerPeers {
 public:
  // `python` has what benchmarks/peers/optimizer.lock lists. master and grad: fp32 [n] on the CPU.
  OptimizerPeers(const std::string& python, const at::Tensor& master, const at::Tensor& grad);

  const std::vector<std::string>& kinds() const { return kinds_; }
  // fp32 [n], after that many steps of bench_update() from `master`.
  at::Tensor weights_after(const std::string& kind, int64_t num_steps);
  double seconds(const std::string& kind);  // of one more step

 private:
  TemporaryFolder folder_;
  int64_t numel_;
  std::optional<PeerProcess> process_;
  std::vector<std::string> kinds_;
};

}  // namespace steppe::cli
