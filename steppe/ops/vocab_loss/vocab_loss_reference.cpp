#include "steppe/ops/vocab_loss/vocab_loss_reference.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace steppe::ops {
namespace {

using Matrix = std::vector<std::vector<double>>;

Matrix matrix(const at::Tensor& x) {
  const auto wide = x.to(at::kDouble).contiguous();
  Matrix rows(wide.size(0), std::vector<double>(wide.size(1)));
  for (size_t r = 0; r < rows.size(); ++r) {
    const double* from = wide.data_ptr<double>() + static_cast<int64_t>(r) * wide.size(1);
    std::copy(from, from + wide.size(1), rows[r].begin());
  }
  return rows;
}

at::Tensor tensor(const Matrix& rows, at::IntArrayRef sizes) {
  const auto out = at::empty(sizes, at::kDouble);
  for (size_t r = 0; r < rows.size(); ++r) {
    std::copy(rows[r].begin(), rows[r].end(), out.data_ptr<double>() + static_cast<int64_t>(r) * sizes[1]);
  }
  return out;
}

double largest(const Matrix& rows) {
  double value = 0;
  for (const auto& row : rows) {
    for (const double x : row) value = std::max(value, x);
  }
  return value;
}

}  // namespace

VocabLossReference vocab_loss_reference(const at::Tensor& x_NH, const at::Tensor& targets_N,
                                        const at::Tensor& row_weight_N, const at::Tensor& weight_VH) {
  const auto x = matrix(x_NH), w = matrix(weight_VH);
  const auto targets = targets_N.to(at::kLong).contiguous();
  const auto row_weights = row_weight_N.to(at::kDouble).contiguous();
  const size_t hidden = static_cast<size_t>(x_NH.size(1)), vocab = w.size();
  const Matrix no_x(x.size(), std::vector<double>(hidden, 0)), no_w(vocab, std::vector<double>(hidden, 0));
  Matrix dx = no_x, dx_terms = no_x, dw = no_w, dw_terms = no_w;
  VocabLossReference result;
  result.row_loss_N = at::zeros({x_NH.size(0)}, at::kDouble);
  for (size_t r = 0; r < x.size(); ++r) {
    std::vector<double> y(vocab, 0);
    for (size_t v = 0; v < vocab; ++v) {
      double terms = 0;
      for (size_t c = 0; c < hidden; ++c) {
        y[v] += x[r][c] * w[v][c];
        terms += std::abs(x[r][c] * w[v][c]);
      }
      result.logit_size = std::max(result.logit_size, terms);
    }
    const int64_t target = targets.data_ptr<int64_t>()[r];
    if (target < 0) continue;
    const double top = *std::max_element(y.begin(), y.end());
    double sum = 0;
    for (const double value : y) sum += std::exp(value - top);
    result.row_loss_N.data_ptr<double>()[r] = std::log(sum) + top - y[static_cast<size_t>(target)];
    for (size_t v = 0; v < vocab; ++v) {
      const double p = std::exp(y[v] - top) / sum, hit = static_cast<int64_t>(v) == target ? 1 : 0;
      const double g = (p - hit) * row_weights.data_ptr<double>()[r];
      for (size_t c = 0; c < hidden; ++c) {
        dx[r][c] += g * w[v][c], dx_terms[r][c] += std::abs(g * w[v][c]);
        dw[v][c] += g * x[r][c], dw_terms[v][c] += std::abs(g * x[r][c]);
      }
    }
  }
  result.dx_NH = tensor(dx, x_NH.sizes()), result.grad_weight_VH = tensor(dw, weight_VH.sizes());
  result.dx_size = largest(dx_terms), result.grad_size = largest(dw_terms);
  return result;
}

}  // namespace steppe::ops
