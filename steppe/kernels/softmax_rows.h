// The row passes of the vocabulary loss over a strip of logits [R, v] (fp32 or bf16), whose columns are
// vocabulary entries [first_column, first_column + v). Statistics in fp32. Overflow-safe; rows of −∞ and
// empty strips are ordinary: max = −∞, sum = 0. Fill given tensors, return at once on `meta`, allocate
// nothing. Source of the running form: Milakov and Gimelshein 2018.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace steppe::kernels {

// What may lie between a product and its loss; 0: nothing does.
struct LossShape {
  double softcap = 0;       // logits are y = cap·tanh(product/cap) (Gemma 2, Gemma Team 2024)
  double z_loss_coeff = 0;  // a row's loss has c·(log Σ e^y)² more (PaLM, Chowdhery et al. 2022)
};

// In place: logits = cap·tanh(logits/cap), cap > 0, within 2⁻²² of cap before rounding to the dtype.
void soft_cap(const at::Tensor& logits_Rv, double cap);

// stats [R, 3] fp32: row maximum m, Σ e^{y−m}, and the target's logit if the target (int32 [R]; negative:
// none) lies in this strip, else −∞.
void logit_statistics(const at::Tensor& stats_R3, const at::Tensor& logits_Rv, const at::Tensor& targets_R,
                      int64_t first_column);

// merged [R, 3] = the statistics of several strips of the same rows, parts [P, R, 3], folded in the order of
// P: m = max m_p, z = Σ z_p e^{m_p − m}, y = max over p of y_p (exactly one strip has it).
void merge_statistics(const at::Tensor& merged_R3, const at::Tensor& parts_PR3);

// loss[0] (fp64 [1]) += Σ_rows weight_r (m + log z − y + c·(m + log z)²); row_loss [R] fp32 (or undefined)
// the unweighted values. Rows with a negative target count nothing.
void add_loss(const at::Tensor& loss_1, const at::Tensor& row_loss_R, const at::Tensor& stats_R3,
              const at::Tensor& targets_R, const at::Tensor& row_weight_R, const LossShape& shape = {});

// In place, from (capped) logits to the gradient of the product: logits[r, c] = row_weight[r] ·
// (e^{y−m}/z · (1 + 2c·(m + log z)) − [c is the target]) · (1 − (y/cap)²); 0 in rows with a negative target
// or weight 0, whatever the logits hold.
void logits_to_gradient(const at::Tensor& logits_Rv, const at::Tensor& stats_R3, const at::Tensor& targets_R,
                        const at::Tensor& row_weight_R, int64_t first_column, const LossShape& shape = {});

// logit_statistics, then logits_to_gradient, row by row while a row is in the cache: for strips that have all
// columns, whose statistics are final. The same bits.
void statistics_and_gradient(const at::Tensor& stats_R3, const at::Tensor& logits_Rv,
                             const at::Tensor& targets_R, const at::Tensor& row_weight_R,
                             int64_t first_column, const LossShape& shape = {});

}  // namespace steppe::kernels
