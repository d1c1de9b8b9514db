#include "steppe/kernels/adamw.h"

#include <cmath>
#include <string_view>

#include "steppe/base/error.h"
#include "steppe/kernels/adamw_backend.h"
#include "steppe/kernels/backend.h"

namespace steppe::kernels {
namespace {

constexpr std::string_view kPlace = "adamw";

AdamWCoefficients coefficients_of(const AdamWStep& step) {
  STEPPE_CHECK_VALUE(step.step >= 1, "[adamw] step must be at least 1, got {}", step.step);
  STEPPE_CHECK_VALUE(step.beta1 >= 0 && step.beta1 < 1, "[adamw] beta1 must be in [0, 1), got {}",
                     step.beta1);
  STEPPE_CHECK_VALUE(step.beta2 >= 0 && step.beta2 < 1, "[adamw] beta2 must be in [0, 1), got {}",
                     step.beta2);
  STEPPE_CHECK_VALUE(step.eps >= 0, "[adamw] eps must not be negative, got {}", step.eps);
  const auto t = static_cast<double>(step.step);
  const auto f = [](double x) { return static_cast<float>(x); };
  return {
      .grad_scale = f(step.grad_scale),
      .beta1 = f(step.beta1),
      .one_minus_beta1 = f(1 - step.beta1),
      .beta2 = f(step.beta2),
      .one_minus_beta2 = f(1 - step.beta2),
      .rsqrt_bias2 = f(1 / std::sqrt(1 - std::pow(step.beta2, t))),
      .eps = f(step.eps),
      .minus_decay = f(-step.lr * step.weight_decay),
      .minus_step_size = f(-step.lr / (1 - std::pow(step.beta1, t))),
  };
}

void check_beside(const at::Tensor& x, const at::Tensor& master, std::string_view name) {
  check_device(x, master, kPlace, name);
  check_contiguous(x, kPlace, name);
  STEPPE_CHECK_VALUE(x.numel() == master.numel(), "[adamw] {} must have {} elements as master, got {}", name,
                     master.numel(), x.numel());
}

}  // namespace

void adamw(const AdamWTensors& tensors, const AdamWStep& step) {
  const auto& [master, m, v, grad, working] = tensors;
  STEPPE_CHECK_VALUE(master.defined(), "[adamw] master must be a tensor, but is undefined");
  AdamWUpdate raw;
  raw.coefficients = coefficients_of(step);
  check_dtype(master, at::kFloat, kPlace, "master");
  check_contiguous(master, kPlace, "master");
  check_beside(m, master, "m");
  raw.moments_element = element_of(m, kPlace, "m");
  check_beside(v, master, "v");
  check_dtype(v, m.scalar_type(), kPlace, "v");
  check_beside(grad, master, "grad");
  raw.grad_element = element_of(grad, kPlace, "grad");
  if (working.defined()) {
    check_beside(working, master, "working");
    raw.working_element = element_of(working, kPlace, "working");
  }
  if (master.is_meta() || master.numel() == 0) return;
  raw.master = master.data_ptr<float>();
  raw.m = m.data_ptr();
  raw.v = v.data_ptr();
  raw.grad = grad.const_data_ptr();
  if (working.defined() && working.data_ptr() != raw.master) raw.working = working.data_ptr();
  raw.size = master.numel();
  if (master.is_cuda()) return cuda::adamw(raw, current_cuda_stream(master));
  cpu::adamw(raw);
}

}  // namespace steppe::kernels
