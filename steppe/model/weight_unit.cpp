#include "steppe/model/weight_unit.h"

#include "steppe/base/error.h"
#include "steppe/comm/collectives.h"
#include "steppe/kernels/pointwise.h"
#include "steppe/memory/scope.h"

namespace steppe::model {
namespace {

constexpr int64_t kAlignment = 16;  // elements: 64 bytes of fp32

int64_t rounded_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Runs of equal treatment within [begin, end) of a unit; padding is treated as its left neighbour (it is
// zero).
std::vector<optim::Segment> segments_of(const std::vector<LogicalSlice>& slices,
                                        const optim::ParameterRules& rules, int64_t begin, int64_t end) {
  std::vector<optim::Segment> segments;
  for (size_t i = 0; i < slices.size(); ++i) {
    const int64_t from = std::max(begin, i == 0 ? 0 : slices[i].unit_begin);
    const int64_t to = std::min(end, i + 1 == slices.size() ? end : slices[i + 1].unit_begin);
    if (from >= to) continue;
    const auto treatment = optim::treatment_of(rules, slices[i].tensor);
    if (!segments.empty() && segments.back().matrix == slices[i].decay &&
        segments.back().treatment == treatment) {
      segments.back().end = to - begin;
    } else {
      segments.push_back({from - begin, to - begin, slices[i].decay, treatment, 0});
    }
  }
  return segments;
}

}  // namespace

int64_t WeightUnit::add(LogicalSlice slice, bool aligned) {
  STEPPE_ASSERT(!working_.defined(), "[weight_unit] {} is allocated already", name_);
  slice.unit_begin = aligned ? rounded_up(numel_, kAlignment) : numel_;
  numel_ = slice.unit_begin + slice.count;
  slices_.push_back(std::move(slice));
  return slices_.back().unit_begin;
}

void WeightUnit::finish_layout(const optim::ParameterRules& rules) {
  numel_ = rounded_up(numel_, kAlignment * replicas_->size());
  shard_.segments = segments_of(slices_, rules, shard_begin(), shard_begin() + shard_numel());
  state_numel_ = optim::place_states(shard_.segments);
}

void WeightUnit::allocate(const ops::OpContext& context, optim::StateMemory& state) {
  const int64_t n = shard_numel();
  {
    const memory::Scope scope(memory::Category::kWeights);
    working_ = context.empty({working_is_whole() ? numel_ : n});
    kernels::fill_zero(working_);
  }
  grad_ = state.take_gradient(grad_numel());
  shard_.working = working_is_whole() ? working_.narrow(0, shard_begin(), n) : working_;
  shard_.master =
      state.options().masters_are_working(context.dtype) ? shard_.working : state.take_master(state_numel_);
  shard_.m = state.take_m(state_numel_);
  shard_.v = state.take_v(state_numel_);
  shard_.grad = grad_.narrow(0, grad_shard_begin(), n);
}

void WeightUnit::refresh_working() {
  if (working_is_whole() && replicas_->size() > 1)
    comm::all_gather(*replicas_, working_, shard_.working).wait();
}

GatheredUnit::GatheredUnit(const ops::OpContext& context, WeightUnit& unit) {
  if (unit.working_is_whole()) {
    flat_ = unit.working();
    return;
  }
  const memory::Scope scope(memory::Category::kGathered);
  flat_ = context.empty({unit.numel()});
  pending_ = comm::all_gather(unit.replicas(), flat_, unit.working());
}

const at::Tensor& GatheredUnit::wait() {
  pending_.wait();
  return flat_;
}

void GatheredUnit::release() {
  pending_.wait();
  flat_.reset();
}

}  // namespace steppe::model
