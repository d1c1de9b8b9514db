// The peers of the vocabulary loss: PyTorch's cross entropy, plain and in chunks, and Cut Cross-Entropy. They
// live in a child process, benchmarks/peers/vocab_loss_peers.py, on the same input.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench/peer_process.h"
#include "steppe/base/temporary_folder.h"

namespace steppe::cli {

struct VocabPeerInput {
  at::Tensor x_NH, targets_N, weight_VH;
  int64_t tile_tokens = 0;
};

struct VocabPeerRun {
  double loss = 0;  // the mean over rows
  at::Tensor dx_NH, grad_weight_VH;
  int64_t gained_bytes = 0;  // by the process at its peak, dx and dW not among them
};

class VocabPeers {
 public:
  // `python` has what benchmarks/peers/vocab_loss.lock lists.
  VocabPeers(const std::string& python, const VocabPeerInput& input);

  const std::vector<std::string>& kinds() const { return kinds_; }
  VocabPeerRun measure(const std::string& kind);
  double seconds(const std::string& kind);

 private:
  TemporaryFolder folder_;
  VocabPeerInput input_;
  std::optional<PeerProcess> process_;
  std::vector<std::string> kinds_;
};

}  // namespace steppe::cli
