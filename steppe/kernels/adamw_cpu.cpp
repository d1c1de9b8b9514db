#include <cmath>
#include <cstdint>
#include <type_traits>

#include "steppe/kernels/adamw_backend.h"
#include "steppe/kernels/bfloat16_cpu.h"
#include "steppe/kernels/parallel_cpu.h"

namespace steppe::kernels::cpu {
namespace {

// What a refresh writes when there is nothing to refresh.
struct Nothing {};

// Compiled without contraction: the fused multiply-adds are those written.
template <class Moment, class Grad, class Working>
void update(const AdamWUpdate& args, int64_t begin, int64_t end) {
  const AdamWCoefficients c = args.coefficients;
  float* __restrict master = args.master;
  Moment* __restrict m = static_cast<Moment*>(args.m);
  Moment* __restrict v = static_cast<Moment*>(args.v);
  const Grad* __restrict grad = static_cast<const Grad*>(args.grad);
  [[maybe_unused]] Working* __restrict working = static_cast<Working*>(args.working);
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float g = to_float(grad[i]) * c.grad_scale;
    const float new_m = std::fma(c.beta1, to_float(m[i]), c.one_minus_beta1 * g);
    const float new_v = std::fma(c.beta2, to_float(v[i]), (c.one_minus_beta2 * g) * g);
    const float denominator = std::sqrt(new_v) * c.rsqrt_bias2 + c.eps;
    const float decayed = std::fma(c.minus_decay, master[i], master[i]);
    const float w = std::fma(c.minus_step_size, new_m / denominator, decayed);
    m[i] = from_float<Moment>(new_m);
    v[i] = from_float<Moment>(new_v);
    master[i] = w;
    if constexpr (!std::is_same_v<Working, Nothing>) working[i] = from_float<Working>(w);
  }
}

template <class Moment, class Grad, class Working>
void update_all(const AdamWUpdate& args) {
  constexpr int64_t kGrain = 16384, kCacheLine = 32;
  parallel_ranges(
      args.size, kGrain, [&](int64_t begin, int64_t end) { update<Moment, Grad, Working>(args, begin, end); },
      kCacheLine);
}

}  // namespace

void adamw(const AdamWUpdate& args) {
  with_element(args.moments_element, [&](auto moment_zero) {
    with_element(args.grad_element, [&](auto grad_zero) {
      using Moment = decltype(moment_zero);
      using Grad = decltype(grad_zero);
      if (args.working == nullptr) return update_all<Moment, Grad, Nothing>(args);
      with_element(args.working_element,
                   [&](auto working_zero) { update_all<Moment, Grad, decltype(working_zero)>(args); });
    });
  });
}

}  // namespace steppe::kernels::cpu
