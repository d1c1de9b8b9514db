#include "steppe/kernels/attention.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "steppe/base/error.h"
#include "steppe/kernels/attention_backend.h"
#include "steppe/kernels/meta_device.h"

namespace steppe::kernels {
namespace {

void check_heads(const char* place, const char* name, const at::Tensor& x, const at::Tensor& q) {
  STEPPE_CHECK_VALUE(x.dim() == 3 && x.size(0) == q.size(0) && x.size(2) == q.size(2),
                     "[{}] {} must be [{}, heads, {}], got {} dims of sizes {}", place, name, q.size(0),
                     q.size(2), x.dim(), fmt::join(x.sizes(), "×"));
  STEPPE_CHECK_VALUE(x.scalar_type() == q.scalar_type(), "[{}] {} must have q's dtype {}, got {}", place,
                     name, c10::toString(q.scalar_type()), c10::toString(x.scalar_type()));
  STEPPE_CHECK_VALUE(x.device() == q.device(), "[{}] {} must be on q's device {}, got {}", place, name,
                     q.device().str(), x.device().str());
  STEPPE_CHECK_VALUE(x.size(2) == 1 || x.stride(2) == 1,
                     "[{}] {}'s last dim must be contiguous, got stride {}", place, name, x.stride(2));
}

void check_bounds(const char* place, std::span<const int64_t> bounds, int64_t num_tokens) {
  STEPPE_CHECK_VALUE(!bounds.empty() && bounds.front() == 0 && bounds.back() == num_tokens,
                     "[{}] document_bounds must run from 0 to S={}, got {} entries from {} to {}", place,
                     num_tokens, bounds.size(), bounds.empty() ? -1 : bounds.front(),
                     bounds.empty() ? -1 : bounds.back());
  for (size_t i = 1; i < bounds.size(); ++i)
    STEPPE_CHECK_VALUE(bounds[i] >= bounds[i - 1],
                       "[{}] document_bounds must not descend, got {} after {} at {}", place, bounds[i],
                       bounds[i - 1], i);
}

void check_input(const char* place, const AttentionInput& input) {
  const at::Tensor& q = input.q_Shd;
  STEPPE_CHECK_VALUE(q.dim() == 3, "[{}] q must be [S, heads, d], got {} dims", place, q.dim());
  STEPPE_CHECK_VALUE(q.scalar_type() == at::kFloat || q.scalar_type() == at::kBFloat16,
                     "[{}] q must be fp32 or bf16, got {}", place, c10::toString(q.scalar_type()));
  check_heads(place, "q", q, q);
  check_heads(place, "k", input.k_Shd, q);
  check_heads(place, "v", input.v_Shd, q);
  const int64_t num_key_heads = input.k_Shd.size(1);
  STEPPE_CHECK_VALUE(input.v_Shd.size(1) == num_key_heads, "[{}] v must have k's {} heads, got {}", place,
                     num_key_heads, input.v_Shd.size(1));
  STEPPE_CHECK_VALUE(num_key_heads > 0 && q.size(1) > 0 && q.size(1) % num_key_heads == 0,
                     "[{}] q's heads must be a multiple of k's {}, got {}", place, num_key_heads, q.size(1));
  STEPPE_CHECK_VALUE(q.size(2) > 0, "[{}] the head dim must be at least 1, got {}", place, q.size(2));
  STEPPE_CHECK_VALUE(std::isfinite(input.scale) && input.scale > 0,
                     "[{}] scale must be finite and above 0, got {}", place, input.scale);
  check_bounds(place, input.document_bounds, q.size(0));
}

// The flash kernel is for bf16; of the fp32 one the CPU's sizes are as good a guess as any.
bool stands_for_cuda(const at::Tensor& q) {
  return q.is_meta() && meta_device() == at::kCUDA && q.scalar_type() == at::kBFloat16;
}

}  // namespace

AttentionOutput attention_forward(const at::Tensor& q_Shd, const at::Tensor& k_Shd, const at::Tensor& v_Shd,
                                  std::span<const int64_t> document_bounds, double scale) {
  const AttentionInput input{q_Shd, k_Shd, v_Shd, document_bounds, scale};
  check_input("attention_forward", input);
  if (stands_for_cuda(q_Shd)) return attention_forward_as_cuda(input);
  return q_Shd.is_cuda() ? attention_forward_cuda(input) : attention_forward_cpu(input);
}

AttentionGradients attention_backward(const at::Tensor& dout_Shd, const at::Tensor& q_Shd,
                                      const at::Tensor& k_Shd, const at::Tensor& v_Shd,
                                      const AttentionOutput& output, std::span<const int64_t> document_bounds,
                                      double scale, bool deterministic) {
  const char* place = "attention_backward";
  const AttentionInput input{q_Shd, k_Shd, v_Shd, document_bounds, scale, deterministic};
  check_input(place, input);
  check_heads(place, "dout", dout_Shd, q_Shd);
  check_heads(place, "output.out", output.out_Shd, q_Shd);
  STEPPE_CHECK_VALUE(dout_Shd.size(1) == q_Shd.size(1) && output.out_Shd.size(1) == q_Shd.size(1),
                     "[{}] dout and output.out must have q's {} heads, got {} and {}", place, q_Shd.size(1),
                     dout_Shd.size(1), output.out_Shd.size(1));
  const at::Tensor& lse = output.lse_hS;
  STEPPE_CHECK_VALUE(lse.dim() == 2 && lse.size(0) == q_Shd.size(1) && lse.size(1) == q_Shd.size(0) &&
                         lse.scalar_type() == at::kFloat && lse.is_contiguous(),
                     "[{}] output.lse must be contiguous fp32 [{}, {}], got {} [{}]", place, q_Shd.size(1),
                     q_Shd.size(0), c10::toString(lse.scalar_type()), fmt::join(lse.sizes(), ", "));
  if (stands_for_cuda(q_Shd)) return attention_backward_as_cuda(input);
  return q_Shd.is_cuda() ? attention_backward_cuda(dout_Shd, input, output)
                         : attention_backward_cpu(dout_Shd, input, output);
}

}  // namespace steppe::kernels
