#include "steppe/ops/attention/ulysses_attention_reference.h"

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

namespace steppe::ops {
namespace {

struct Row {
  double* values;
  int64_t size;
  double dot(const Row& other) const {
    double sum = 0;
    for (int64_t c = 0; c < size; ++c) sum += values[c] * other.values[c];
    return sum;
  }
  void add(double factor, const Row& other) const {
    for (int64_t c = 0; c < size; ++c) values[c] += factor * other.values[c];
  }
};

Row row(const at::Tensor& x_Shd, int64_t token, int64_t head) {
  const int64_t heads = x_Shd.size(1), d = x_Shd.size(2);
  return {x_Shd.data_ptr<double>() + (token * heads + head) * d, d};
}

}  // namespace

AttentionReference attention_reference(const at::Tensor& q_Shd, const at::Tensor& k_Shd,
                                       const at::Tensor& v_Shd, const at::Tensor& dout_Shd,
                                       std::span<const int64_t> document_bounds, double scale) {
  const auto wide = [](const at::Tensor& x) { return x.to(at::kDouble).contiguous(); };
  const auto q = wide(q_Shd), k = wide(k_Shd), v = wide(v_Shd), dout = wide(dout_Shd);
  const AttentionReference r{at::zeros_like(q), at::zeros_like(q), at::zeros_like(k), at::zeros_like(v)};
  const int64_t heads_per_kv = q.size(1) / k.size(1);
  for (size_t document = 1; document < document_bounds.size(); ++document) {
    const int64_t begin = document_bounds[document - 1], end = document_bounds[document];
    for (int64_t h = 0; h < q.size(1); ++h) {
      const int64_t kv = h / heads_per_kv;
      for (int64_t i = begin; i < end; ++i) {
        std::vector<double> p;
        double total = 0;
        for (int64_t j = begin; j <= i; ++j) {
          p.push_back(std::exp(scale * row(q, i, h).dot(row(k, j, kv))));
          total += p.back();
        }
        double mean_dp = 0;
        for (int64_t j = begin; j <= i; ++j) {
          double& p_j = p[j - begin];
          p_j /= total;
          row(r.out_Shd, i, h).add(p_j, row(v, j, kv));
          row(r.dv_Shd, j, kv).add(p_j, row(dout, i, h));
          mean_dp += p_j * row(dout, i, h).dot(row(v, j, kv));
        }
        for (int64_t j = begin; j <= i; ++j) {
          const double ds = p[j - begin] * (row(dout, i, h).dot(row(v, j, kv)) - mean_dp) * scale;
          row(r.dq_Shd, i, h).add(ds, row(k, j, kv));
          row(r.dk_Shd, j, kv).add(ds, row(q, i, h));
        }
      }
    }
  }
  return r;
}

}  // namespace steppe::ops
