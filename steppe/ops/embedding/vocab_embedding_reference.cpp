#include "steppe/ops/embedding/vocab_embedding_reference.h"

#include <ATen/ATen.h>

#include <cmath>

namespace steppe::ops {

at::Tensor embedding_reference(const at::Tensor& table_VH, std::span<const int32_t> tokens) {
  const auto table = table_VH.to(at::kDouble).contiguous();
  const int64_t n = static_cast<int64_t>(tokens.size()), hidden = table.size(1);
  const auto out = at::empty({n, hidden}, at::kDouble);
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t c = 0; c < hidden; ++c) {
      out.data_ptr<double>()[t * hidden + c] = table.data_ptr<double>()[tokens[t] * hidden + c];
    }
  }
  return out;
}

void embedding_gradient_reference(const at::Tensor& grad_VH, const at::Tensor& terms_VH,
                                  const at::Tensor& dy_NH, std::span<const int32_t> tokens) {
  const auto dy = dy_NH.to(at::kDouble).contiguous();
  const int64_t hidden = dy.size(1);
  for (size_t t = 0; t < tokens.size(); ++t) {
    for (int64_t c = 0; c < hidden; ++c) {
      const double value = dy.data_ptr<double>()[static_cast<int64_t>(t) * hidden + c];
      grad_VH.data_ptr<double>()[tokens[t] * hidden + c] += value;
      terms_VH.data_ptr<double>()[tokens[t] * hidden + c] += std::abs(value);
    }
  }
}

}  // namespace steppe::ops
