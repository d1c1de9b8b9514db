#include "steppe/ops/moe_dispatch/helper_experts.h"

#include <array>
#include <numeric>

#include "steppe/base/error.h"
#include "steppe/kernels/pointwise.h"
#include "steppe/memory/scope.h"

namespace steppe::ops {
namespace {

using memory::Category;

constexpr std::array kWeights = {&ExpertWeights::gate_up_E2IH, &ExpertWeights::down_EHI,
                                 &ExpertWeights::gate_up_bias_E2I, &ExpertWeights::down_bias_EH};
constexpr std::array kGradients = {&ExpertGradients::gate_up_E2IH, &ExpertGradients::down_EHI,
                                   &ExpertGradients::gate_up_bias_E2I, &ExpertGradients::down_bias_EH};

at::Tensor rows(const at::Tensor& x, int64_t begin, int64_t count) {
  return x.defined() ? x.narrow(0, begin, count) : x;
}

}  // namespace

HelperExperts::HelperExperts(const DispatchLayer& layer, const DispatchPlan& plan)
    : context_(layer.context), group_(layer.expert_group), plan_(plan) {
  const auto& own = layer.weights;
  const int64_t rank = group_.rank(), local = plan.num_experts / plan.degree;
  const auto& held = plan.helpers.experts_of(rank);
  if (!held.empty()) {
    const memory::Scope scope(Category::kGathered);
    for (const auto of : kWeights) {
      if (!(own.*of).defined()) continue;
      auto sizes = (own.*of).sizes().vec();
      sizes[0] = static_cast<int64_t>(held.size());
      weights_.*of = context_.empty(sizes);
    }
  }
  weights_.form = own.form;
  // Round j brings every helper its j-th expert.
  for (size_t j = 0; j < static_cast<size_t>(plan.helpers.most()); ++j)
    for (const auto of : kWeights) {
      if (!(own.*of).defined()) continue;
      std::vector<at::Tensor> sends(plan.degree), receives(plan.degree);
      for (int64_t helper = 0; helper < plan.degree; ++helper) {
        const auto& experts = plan.helpers.experts_of(helper);
        if (j < experts.size() && experts[j] / local == rank)
          sends[helper] = (own.*of).select(0, experts[j] - rank * local);
      }
      if (j < held.size()) receives[held[j] / local] = (weights_.*of).select(0, static_cast<int64_t>(j));
      arriving_.push_back(group_.exchange(sends, receives));
    }
}

const ExpertWeights& HelperExperts::wait() {
  for (auto& pending : arriving_) pending.wait();
  arriving_.clear();
  return weights_;
}

ExpertGradients HelperExperts::make_gradients(const ExpertGradients& own) const {
  if (!weights_.down_EHI.defined()) return {};
  const memory::Scope scope(Category::kGrads);
  ExpertGradients grads;
  for (size_t i = 0; i < kGradients.size(); ++i) {
    const auto& weights = weights_.*kWeights[i];
    if (!weights.defined()) continue;
    grads.*kGradients[i] = context_.empty(weights.sizes(), (own.*kGradients[i]).scalar_type());
    kernels::fill_zero(grads.*kGradients[i]);
  }
  return grads;
}

void HelperExperts::send_home(const ExpertGradients& helped, const ExpertGradients& own) {
  const memory::Scope scope(Category::kGrads);
  STEPPE_ASSERT(arriving_.empty(), "[helper_experts] gradients go home before {} weights have come",
                arriving_.size());
  weights_ = {};
  const int64_t rank = group_.rank(), local = plan_.num_experts / plan_.degree;
  ExpertGradients scratch;
  for (int64_t helper = 0; helper < plan_.degree; ++helper) {
    const auto& experts = plan_.helpers.experts_of(helper);
    for (size_t j = 0; j < experts.size(); ++j) {
      const int64_t home = experts[j] / local;
      const bool receives_here = home == rank;
      if (receives_here && !scratch.down_EHI.defined())
        for (const auto of : kGradients)
          if ((own.*of).defined())
            scratch.*of = context_.empty((own.*of).sizes().slice(1), (own.*of).scalar_type());
      std::vector<comm::Pending> transfers;
      for (const auto of : kGradients) {
        if (!(own.*of).defined()) continue;
        std::vector<at::Tensor> sends(plan_.degree), receives(plan_.degree);
        if (helper == rank) sends[home] = (helped.*of).select(0, static_cast<int64_t>(j));
        if (receives_here) receives[helper] = scratch.*of;
        transfers.push_back(group_.exchange(sends, receives));
      }
      for (auto& transfer : transfers) transfer.wait();
      if (!receives_here) continue;
      for (const auto of : kGradients)
        if ((own.*of).defined()) kernels::add_to((own.*of).select(0, experts[j] - rank * local), scratch.*of);
    }
  }
}

void experts_forward(const OpContext& context, const at::Tensor& y_RH, const ExpertRows& all,
                     const AllExperts& experts, const at::Tensor& keep_gate_up_R2I, int64_t tile_rows) {
  const auto own_experts = static_cast<size_t>(experts.own.down_EHI.size(0));
  const auto own = all.rows_of_expert.first(own_experts), foreign = all.rows_of_expert.subspan(own_experts);
  const int64_t num_own = std::accumulate(own.begin(), own.end(), int64_t{0}),
                num_foreign = y_RH.size(0) - num_own;
  const auto part = [&](int64_t begin, int64_t count, std::span<const int64_t> of,
                        const ExpertWeights& weights) {
    expert_mlp_forward(context, rows(y_RH, begin, count),
                       {rows(all.x_RH, begin, count), rows(all.weight_R, begin, count), of, all.workspace},
                       weights, rows(keep_gate_up_R2I, begin, count), tile_rows);
  };
  part(0, num_own, own, experts.own);
  if (num_foreign > 0) part(num_own, num_foreign, foreign, experts.helped);
}

void experts_backward(const OpContext& context, const ExpertBackward& args, const ExpertWeights& helped,
                      const ExpertGradients& helped_grads) {
  const auto own_experts = static_cast<size_t>(args.weights.down_EHI.size(0));
  const auto own = args.rows.rows_of_expert.first(own_experts),
             foreign = args.rows.rows_of_expert.subspan(own_experts);
  const int64_t num_own = std::accumulate(own.begin(), own.end(), int64_t{0});
  const int64_t num_foreign = args.dy_RH.size(0) - num_own;
  const auto part = [&](int64_t begin, int64_t count, std::span<const int64_t> of,
                        const ExpertWeights& weights, const ExpertGradients& grads) {
    expert_mlp_backward(context, {rows(args.dy_RH, begin, count),
                                  rows(args.dweight_R, begin, count),
                                  {rows(args.rows.x_RH, begin, count), rows(args.rows.weight_R, begin, count),
                                   of, args.rows.workspace},
                                  weights,
                                  grads,
                                  rows(args.kept_gate_up_R2I, begin, count),
                                  args.tile_rows});
  };
  part(0, num_own, own, args.weights, args.grads);
  if (num_foreign > 0) part(num_own, num_foreign, foreign, helped, helped_grads);
}

}  // namespace steppe::ops
