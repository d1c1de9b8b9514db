#include "cli/bench/optimizer_bench_problem.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>

namespace steppe::cli {
namespace {

constexpr int64_t kShard = 1 << 22;  // elements: as a model's units would be
const optim::AdamWConfig kAdamW{};

template <class Body>
double seconds_of(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

optim::AdamWUpdate bench_update(int64_t step) {
  return {.lr = 1e-3, .grad_scale = 1, .step = step};
}

OptimizerProblem::OptimizerProblem(const optim::StateOptions& state, const optim::BucketConfig& buckets,
                                   const ops::OpContext& context, const at::Tensor& master,
                                   const at::Tensor& grad)
    : ledger_(std::make_unique<memory::Ledger>()),
      options_(state),
      context_(context),
      state_([&] {
        const memory::LedgerBinding binding(*ledger_);
        return optim::StateMemory(state, context, master.numel(), master.numel());
      }()),
      link_(optim::make_host_link(context)) {
  const memory::LedgerBinding binding(*ledger_);
  std::vector<const optim::ParameterShard*> pointers;
  for (int64_t begin = 0; begin < master.numel(); begin += kShard) {
    const int64_t n = std::min(kShard, master.numel() - begin);
    auto& shard = shards_.emplace_back();
    {
      const memory::Scope scope(memory::Category::kWeights);
      shard.working = context.empty({n});
    }
    shard.working.copy_(master.narrow(0, begin, n));
    shard.master = state.masters_are_working(context.dtype) ? shard.working : state_.take_master(n);
    shard.master.copy_(master.narrow(0, begin, n));
    shard.m = state_.take_m(n);
    shard.v = state_.take_v(n);
    shard.grad = state_.take_gradient(n);
    shard.grad.copy_(grad.narrow(0, begin, n));
    shard.segments = {{0, n, /*matrix=*/true, {}}};
    pointers.push_back(&shard);
  }
  optimizer_ = std::make_unique<optim::Optimizer>(kAdamW, buckets, state, context_, link_, pointers);
}

void OptimizerProblem::step() {
  const memory::LedgerBinding binding(*ledger_);
  optimizer_->step(bench_update(++num_steps_));
  optimizer_->wait_for_state();
  link_.compute.synchronize();
}

double OptimizerProblem::step_seconds() {
  return seconds_of([&] { step(); });
}

bool OptimizerProblem::same_bits(const OptimizerProblem& other) const {
  const auto same = [](const at::Tensor& a, const at::Tensor& b) { return at::equal(a.cpu(), b.cpu()); };
  for (size_t i = 0; i < shards_.size(); ++i) {
    const auto &a = shards_[i], &b = other.shards_[i];
    if (!same(a.master, b.master) || !same(a.m, b.m) || !same(a.v, b.v) || !same(a.working, b.working)) {
      return false;
    }
  }
  return true;
}

at::Tensor OptimizerProblem::master() const {
  std::vector<at::Tensor> parts;
  for (const auto& shard : shards_) parts.push_back(shard.master.cpu());
  return at::cat(parts);
}

int64_t OptimizerProblem::link_bytes() const {
  if (!options_.on_host()) return 0;
  int64_t in = 0, out = 0;
  for (const auto& shard : shards_) {
    const auto grad = static_cast<int64_t>(shard.grad.nbytes());
    if (options_.placement == optim::Placement::kCpu) {
      out += options_.host_gradients ? 0 : grad;
      in += static_cast<int64_t>(shard.working.nbytes());
      continue;
    }
    const int64_t state = static_cast<int64_t>(shard.m.nbytes() + shard.v.nbytes()) +
                          (shard.working_is_master() ? 0 : static_cast<int64_t>(shard.master.nbytes()));
    out += state;
    in += state + (options_.host_gradients ? grad : 0);
  }
  return std::max(in, out);
}

double OptimizerProblem::link_seconds() {
  const memory::LedgerBinding binding(*ledger_);
  const memory::Scope scope(memory::Category::kStaging);
  const auto arrived = context_.empty({kShard}, at::kFloat), leaves = context_.empty({kShard}, at::kFloat);
  memory::HostArena landing(
      4 * kShard,
      {.name = "bench optimizer", .category = memory::Category::kStaging, .device = context_.device});
  void* landed = landing.data(landing.take(4 * kShard));
  const auto seconds = seconds_of([&] {
    for (const auto& shard : shards_) {
      const auto move = [&](const at::Tensor& host) {
        const auto bytes = host.nbytes();
        link_.to_device.copy(arrived.data_ptr(), host.const_data_ptr(), bytes, LinkPurpose::kOptimizer);
        link_.to_host.copy(landed, leaves.const_data_ptr(), bytes, LinkPurpose::kOptimizer);
      };
      move(shard.m);
      move(shard.v);
      if (!shard.working_is_master()) move(shard.master);
      if (options_.host_gradients) {
        link_.to_device.copy(arrived.data_ptr(), shard.grad.const_data_ptr(), shard.grad.nbytes(),
                             LinkPurpose::kGradients);
      }
    }
    link_.to_device.synchronize();
    link_.to_host.synchronize();
  });
  return seconds;
}

double OptimizerProblem::host_update_seconds() {
  int64_t numel = 0;
  for (const auto& shard : shards_) numel += shard.master.numel();
  if (!host_grad_.defined()) {
    host_grad_ = at::full({numel}, 1e-3, at::kFloat);
    if (context_.dtype != at::kFloat) host_working_ = at::zeros({numel}, context_.dtype);
  }
  ++num_steps_;
  return seconds_of([&] {
    int64_t begin = 0;
    for (const auto& shard : shards_) {
      const auto part = [&](const at::Tensor& whole) {
        return whole.defined() ? whole.narrow(0, begin, shard.master.numel()) : whole;
      };
      kernels::adamw({shard.master, shard.m, shard.v, part(host_grad_), part(host_working_)},
                     optim::kernel_step(kAdamW, bench_update(num_steps_), shard.segments[0]));
      begin += shard.master.numel();
    }
  });
}

}  // namespace steppe::cli
