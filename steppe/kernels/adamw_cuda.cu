// Rounding is spelled out (_rn), so that the compiler contracts nothing and the bits are the CPU's.
#include <cuda_runtime.h>

#include <cstdint>

#include "steppe/kernels/adamw_backend.h"
#include "steppe/kernels/cuda_failure.h"
#include "steppe/kernels/element_cuda.cuh"
#include "steppe/kernels/launch_cuda.cuh"

namespace steppe::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <class Moment, class Grad, class Working>
__global__ void adamw_kernel(AdamWUpdate args) {
  const AdamWCoefficients& c = args.coefficients;
  Moment* m_of = static_cast<Moment*>(args.m);
  Moment* v_of = static_cast<Moment*>(args.v);
  const Grad* grad = static_cast<const Grad*>(args.grad);
  Working* working = static_cast<Working*>(args.working);
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < args.size;
       i += gridDim.x * int64_t{kThreads}) {
    const float g = __fmul_rn(to_float(grad[i]), c.grad_scale);
    const float m = __fmaf_rn(c.beta1, to_float(m_of[i]), __fmul_rn(c.one_minus_beta1, g));
    const float v = __fmaf_rn(c.beta2, to_float(v_of[i]), __fmul_rn(__fmul_rn(c.one_minus_beta2, g), g));
    const float denominator = __fadd_rn(__fmul_rn(__fsqrt_rn(v), c.rsqrt_bias2), c.eps);
    const float decayed = __fmaf_rn(c.minus_decay, args.master[i], args.master[i]);
    const float w = __fmaf_rn(c.minus_step_size, __fdiv_rn(m, denominator), decayed);
    m_of[i] = from_float<Moment>(m);
    v_of[i] = from_float<Moment>(v);
    args.master[i] = w;
    if (working != nullptr) working[i] = from_float<Working>(w);
  }
}

}  // namespace

void adamw(const AdamWUpdate& args, void* stream) {
  const unsigned blocks = num_blocks(args.size, kThreads);
  with_element(args.moments_element, [&](auto moment_zero) {
    with_element(args.grad_element, [&](auto grad_zero) {
      with_element(args.working_element, [&](auto working_zero) {
        launch(adamw_kernel<decltype(moment_zero), decltype(grad_zero), decltype(working_zero)>, blocks,
               kThreads, stream, args);
      });
    });
  });
  check_launch("adamw");
}

}  // namespace steppe::kernels::cuda
