#include "steppe/optim/state_memory.h"

#include "steppe/base/error.h"
#include "steppe/kernels/pointwise.h"
#include "steppe/memory/scope.h"

namespace steppe::optim {

using memory::Category, memory::HostArena;

StateMemory::StateMemory(const StateOptions& options, const ops::OpContext& context, int64_t state_numel,
                         int64_t grad_numel)
    : options_(options), context_(context) {
  STEPPE_CHECK_VALUE(options.on_host() || !options.host_gradients,
                     "[optimizer] gradients must be on the device where masters and moments are");
  STEPPE_CHECK_VALUE(options.moments_dtype == at::kFloat || options.moments_dtype == at::kBFloat16,
                     "[optimizer] moments_dtype must be float32 or bfloat16, got {}",
                     c10::toString(options.moments_dtype));
  STEPPE_CHECK_VALUE(
      options.gradient_dtype == at::kFloat || options.gradient_dtype == context.dtype,
      "[optimizer] gradient_dtype must be float32, or bfloat16 beside bfloat16 working weights, "
      "got {} beside {}",
      c10::toString(options.gradient_dtype), c10::toString(context.dtype));
  if (options.on_host()) lay_out_state(state_numel);
  if (options.host_gradients) lay_out_gradients(grad_numel);
}

std::unique_ptr<HostArena> StateMemory::make_arena(int64_t bytes, Category category, const char* name) {
  return std::make_unique<HostArena>(
      bytes,
      memory::HostArenaOptions{.name = name,
                               .category = category,
                               .device = context_.device,
                               .pin = options_.pin_memory,
                               .warn = [this](const std::string& warning) { warnings_.push_back(warning); }});
}

void StateMemory::lay_out_state(int64_t state_numel) {
  const bool masters = !options_.masters_are_working(context_.dtype);
  const int64_t moment_bytes = HostArena::aligned(state_numel * c10::elementSize(options_.moments_dtype));
  const int64_t master_bytes = masters ? HostArena::aligned(state_numel * 4) : 0;
  state_arena_ = make_arena(master_bytes + 2 * moment_bytes, Category::kOptimizer, "optimizer.placement");
  const auto plane = [&](int64_t bytes, at::ScalarType dtype) {
    return state_arena_->tensor(state_arena_->take(bytes), {state_numel}, dtype);
  };
  if (masters) master_.host = plane(master_bytes, at::kFloat);
  m_.host = plane(moment_bytes, options_.moments_dtype);
  v_.host = plane(moment_bytes, options_.moments_dtype);
}

void StateMemory::lay_out_gradients(int64_t grad_numel) {
  const int64_t bytes = HostArena::aligned(grad_numel * options_.gradient_itemsize());
  grad_arena_ = make_arena(bytes, Category::kGrads, "optimizer.gradients");
  grad_.host = grad_arena_->tensor(grad_arena_->take(bytes), {grad_numel}, options_.gradient_dtype);
}

int64_t StateMemory::host_bytes() const {
  return (state_arena_ ? state_arena_->bytes() : 0) + (grad_arena_ ? grad_arena_->bytes() : 0);
}

at::Tensor StateMemory::take(Plane& plane, int64_t numel, at::ScalarType dtype) {
  at::Tensor part;
  if (plane.host.defined()) {
    STEPPE_ASSERT(plane.taken + numel <= plane.host.numel(),
                  "[optimizer] {} elements were announced, and {} taken", plane.host.numel(),
                  plane.taken + numel);
    part = plane.host.narrow(0, plane.taken, numel);
    plane.taken += numel;
  } else {
    const memory::Scope scope(Category::kOptimizer);
    part = context_.empty({numel}, dtype);
  }
  kernels::fill_zero(part);
  return part;
}

at::Tensor StateMemory::take_gradient(int64_t numel) {
  if (grad_.host.defined()) return take(grad_, numel, options_.gradient_dtype);
  const memory::Scope scope(Category::kGrads);
  const auto grad = context_.empty({numel}, options_.gradient_dtype);
  kernels::fill_zero(grad);
  return grad;
}

}  // namespace steppe::optim
