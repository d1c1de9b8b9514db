#include "steppe/kernels/router.h"

#include <fmt/format.h>

#include <string_view>

#include "steppe/base/error.h"
#include "steppe/kernels/backend.h"
#include "steppe/kernels/router_backend.h"

namespace steppe::kernels {
namespace {

void check_matrix(const at::Tensor& x, int64_t rows, int64_t columns, at::ScalarType dtype,
                  const at::Tensor& where, std::string_view place, std::string_view name) {
  check_device(x, where, place, name);
  check_dtype(x, dtype, place, name);
  check_contiguous(x, place, name);
  STEPPE_CHECK_VALUE(x.dim() == 2 && x.size(0) == rows && x.size(1) == columns,
                     "[{}] {} must be [{}, {}], got {} elements in {} dims", place, name, rows, columns,
                     x.numel(), x.dim());
}

// Of a vector that may be undefined.
void check_vector(const at::Tensor& x, int64_t size, const at::Tensor& where, std::string_view place,
                  std::string_view name) {
  if (!x.defined()) return;
  check_device(x, where, place, name);
  check_dtype(x, at::kFloat, place, name);
  check_contiguous(x, place, name);
  STEPPE_CHECK_VALUE(x.numel() == size, "[{}] {} must have {} elements, got {}", place, name, size,
                     x.numel());
}

const float* data_or_null(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr<float>() : nullptr;
}

// N, E and k from scores and ids, whose shapes and dtypes are checked.
RouterRows rows_of(const at::Tensor& scores, const at::Tensor& ids, std::string_view place) {
  STEPPE_CHECK_VALUE(scores.dim() == 2 && ids.dim() == 2,
                     "[{}] scores and ids must have 2 dims, got {} and {}", place, scores.dim(), ids.dim());
  const RouterRows rows{scores.size(0), scores.size(1), ids.size(1)};
  check_matrix(scores, rows.tokens, rows.experts, at::kFloat, ids, place, "scores");
  check_matrix(ids, rows.tokens, rows.k, at::kInt, scores, place, "ids");
  STEPPE_CHECK_VALUE(rows.k >= 1 && rows.k <= kMaxTopK, "[{}] k must be from 1 to {}, got {}", place,
                     kMaxTopK, rows.k);
  return rows;
}

}  // namespace

void softmax_rows(const at::Tensor& scores_NE, const at::Tensor& logits_NE, const at::Tensor& log_sum_exp_N) {
  const char* place = "softmax_rows";
  STEPPE_CHECK_VALUE(logits_NE.dim() == 2, "[{}] logits must have 2 dims, got {}", place, logits_NE.dim());
  const RouterRows rows{logits_NE.size(0), logits_NE.size(1), 0};
  check_matrix(logits_NE, rows.tokens, rows.experts, at::kFloat, scores_NE, place, "logits");
  check_matrix(scores_NE, rows.tokens, rows.experts, at::kFloat, logits_NE, place, "scores");
  check_vector(log_sum_exp_N, rows.tokens, scores_NE, place, "log_sum_exp");
  if (scores_NE.is_meta() || scores_NE.numel() == 0) return;
  float* scores = scores_NE.mutable_data_ptr<float>();
  const float* logits = logits_NE.const_data_ptr<float>();
  float* log_sum_exp = log_sum_exp_N.defined() ? log_sum_exp_N.mutable_data_ptr<float>() : nullptr;
  if (scores_NE.is_cuda())
    return cuda::softmax_rows(scores, logits, log_sum_exp, rows, current_cuda_stream(scores_NE));
  cpu::softmax_rows(scores, logits, log_sum_exp, rows);
}

void top_k(const at::Tensor& ids_Nk, const at::Tensor& scores_NE, const at::Tensor& bias_E) {
  const char* place = "top_k";
  const RouterRows rows = rows_of(scores_NE, ids_Nk, place);
  STEPPE_CHECK_VALUE(rows.k <= rows.experts, "[{}] k must be at most E={}, got {}", place, rows.experts,
                     rows.k);
  check_vector(bias_E, rows.experts, scores_NE, place, "bias");
  if (ids_Nk.is_meta() || rows.tokens == 0) return;
  int32_t* ids = ids_Nk.mutable_data_ptr<int32_t>();
  const float* scores = scores_NE.const_data_ptr<float>();
  const float* bias = data_or_null(bias_E);
  if (ids_Nk.is_cuda()) return cuda::top_k(ids, scores, bias, rows, current_cuda_stream(ids_Nk));
  cpu::top_k(ids, scores, bias, rows);
}

void gather_scores(const at::Tensor& weights_Nk, const at::Tensor& scores_NE, const at::Tensor& ids_Nk,
                   bool normalize) {
  const char* place = "gather_scores";
  const RouterRows rows = rows_of(scores_NE, ids_Nk, place);
  check_matrix(weights_Nk, rows.tokens, rows.k, at::kFloat, scores_NE, place, "weights");
  if (weights_Nk.is_meta() || rows.tokens == 0) return;
  float* weights = weights_Nk.mutable_data_ptr<float>();
  const float* scores = scores_NE.const_data_ptr<float>();
  const int32_t* ids = ids_Nk.const_data_ptr<int32_t>();
  if (weights_Nk.is_cuda())
    return cuda::gather_scores(weights, scores, ids, rows, normalize, current_cuda_stream(weights_Nk));
  cpu::gather_scores(weights, scores, ids, rows, normalize);
}

void router_backward(const RouterBackward& args) {
  const char* place = "router_backward";
  const RouterRows rows = rows_of(args.scores_NE, args.ids_Nk, place);
  check_matrix(args.dlogits_NE, rows.tokens, rows.experts, at::kFloat, args.scores_NE, place, "dlogits");
  check_matrix(args.dweights_Nk, rows.tokens, rows.k, at::kFloat, args.scores_NE, place, "dweights");
  check_matrix(args.weights_Nk, rows.tokens, rows.k, at::kFloat, args.scores_NE, place, "weights");
  check_vector(args.dscores_E, rows.experts, args.scores_NE, place, "dscores");
  check_vector(args.log_sum_exp_N, rows.tokens, args.scores_NE, place, "log_sum_exp");
  if (args.dlogits_NE.is_meta() || rows.tokens == 0) return;
  const RouterBackwardPointers pointers{
      .dlogits = args.dlogits_NE.mutable_data_ptr<float>(),
      .dweights = args.dweights_Nk.const_data_ptr<float>(),
      .weights = args.weights_Nk.const_data_ptr<float>(),
      .scores = args.scores_NE.const_data_ptr<float>(),
      .ids = args.ids_Nk.const_data_ptr<int32_t>(),
      .normalize = args.normalize,
      .dscores = data_or_null(args.dscores_E),
      .log_sum_exp = data_or_null(args.log_sum_exp_N),
      .log_sum_exp_squared_coeff = static_cast<float>(args.log_sum_exp_squared_coeff)};
  if (args.dlogits_NE.is_cuda())
    return cuda::router_backward(pointers, rows, current_cuda_stream(args.dlogits_NE));
  cpu::router_backward(pointers, rows);
}

void count_routes(const at::Tensor& counts_E, const at::Tensor& ids_Nk) {
  const char* place = "count_routes";
  check_device(counts_E, ids_Nk, place, "counts");
  check_dtype(counts_E, at::kLong, place, "counts");
  check_contiguous(counts_E, place, "counts");
  check_dtype(ids_Nk, at::kInt, place, "ids");
  check_contiguous(ids_Nk, place, "ids");
  if (counts_E.is_meta() || counts_E.numel() == 0) return;
  int64_t* counts = counts_E.mutable_data_ptr<int64_t>();
  const int32_t* ids = ids_Nk.const_data_ptr<int32_t>();
  if (counts_E.is_cuda())
    return cuda::count_routes(counts, ids, counts_E.numel(), ids_Nk.numel(), current_cuda_stream(counts_E));
  cpu::count_routes(counts, ids, counts_E.numel(), ids_Nk.numel());
}

}  // namespace steppe::kernels
