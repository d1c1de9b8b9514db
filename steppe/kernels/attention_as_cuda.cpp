// On `meta`, what attention_cuda.cpp's flash kernel allocates: read off ATen's flash_api.cpp of the release
// that is built against, for head dims up to 256 and without ATen's deterministic algorithms, which this
// program never turns on.
#include <ATen/ops/empty.h>

#include "steppe/kernels/attention_backend.h"
#include "steppe/kernels/meta_device.h"

namespace steppe::kernels {
namespace {

thread_local c10::DeviceType standing_for = c10::DeviceType::CPU;

// Rows are padded by a block for each document.
constexpr int64_t kBlockRows = 128;

int64_t padded_rows(const AttentionInput& input) {
  int64_t rows = 0;
  for (size_t i = 1; i < input.document_bounds.size(); ++i) {
    const int64_t n = input.document_bounds[i] - input.document_bounds[i - 1];
    if (n > 0) rows += n + kBlockRows;
  }
  return rows;
}

int64_t padded_head_dim(int64_t d) {
  const int64_t multiple = d <= 128 ? 32 : 64;
  return (d + multiple - 1) / multiple * multiple;
}

}  // namespace

c10::DeviceType meta_device() {
  return standing_for;
}

MetaStandsFor::MetaStandsFor(c10::DeviceType device) : previous_(standing_for) {
  standing_for = device;
}

MetaStandsFor::~MetaStandsFor() {
  standing_for = previous_;
}

AttentionOutput attention_forward_as_cuda(const AttentionInput& input) {
  const at::Tensor& q = input.q_Shd;
  return {at::empty(q.sizes(), q.options()),
          at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat))};
}

AttentionGradients attention_backward_as_cuda(const AttentionInput& input) {
  const at::Tensor &q = input.q_Shd, &k = input.k_Shd, &v = input.v_Shd;
  AttentionGradients grads{at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()),
                           at::empty(v.sizes(), v.options())};
  if (q.size(0) == 0) return grads;
  // A gradient of its keys and values for every query head, where heads share them.
  at::Tensor dk_of_heads, dv_of_heads;
  if (q.size(1) != k.size(1)) {
    dk_of_heads = at::empty({k.size(0), q.size(1), q.size(2)}, k.options());
    dv_of_heads = at::empty(dk_of_heads.sizes(), v.options());
  }
  const int64_t rows = padded_rows(input);
  const auto fp32 = q.options().dtype(at::kFloat);
  const auto row_sums = at::empty({q.size(1), rows}, fp32);
  const auto dq_sum = at::empty({rows, q.size(1), padded_head_dim(q.size(2))}, fp32);
  return grads;
}

}  // namespace steppe::kernels
