// Shards of given state and gradients under one placement, and a step on them.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>

#include "steppe/memory/scope.h"
#include "steppe/optim/optimizer.h"

namespace steppe::cli {

// Of a step whose number is `step`: the same for all.
optim::AdamWUpdate bench_update(int64_t step);

class OptimizerProblem {
 public:
  // master and grad: fp32 [n] on the CPU, copied.
  OptimizerProblem(const optim::StateOptions& state, const optim::BucketConfig& buckets,
                   const ops::OpContext& context, const at::Tensor& master, const at::Tensor& grad);

  void step();  // waits until everything is where it belongs
  double step_seconds();

  bool same_bits(const OptimizerProblem& other) const;
  at::Tensor master() const;  // fp32 [n] on the CPU

  // stream: what its buckets move, without an update in between.
  double link_seconds();
  // cpu: the arithmetic alone, on state, gradients and working weights in host memory.
  double host_update_seconds();

  memory::Ledger& ledger() { return *ledger_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  int64_t link_bytes() const;
  const optim::StateOptions& options() const { return options_; }

 private:
  std::unique_ptr<memory::Ledger> ledger_;  // first: it outlives what it books
  optim::StateOptions options_;
  ops::OpContext context_;
  optim::StateMemory state_;
  optim::HostLink link_;
  std::deque<optim::ParameterShard> shards_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  int64_t num_steps_ = 0;
  at::Tensor host_grad_, host_working_;  // of host_update_seconds()
};

}  // namespace steppe::cli
