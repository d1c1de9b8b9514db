// Rotary position embedding, the half-split form of Hugging Face's Llama and Qwen: for pair (i, i+hd/2),
// (a, b) → (a·cos − b·sin, b·cos + a·sin). In place on x [N, heads, hd] (token and head strides free, last dim
// contiguous), with cos, sin [N, hd/2] fp32. `inverse` rotates back (the backward). fp32 and bf16; computed in
// fp32. Returns at once on `meta`, allocates nothing.
#pragma once

#include <span>

#include <ATen/core/Tensor.h>

namespace steppe::kernels {

void rotary(const at::Tensor& x, const at::Tensor& cos_Nh, const at::Tensor& sin_Nh, bool inverse);

// cos, sin [N, hd/2] fp32 of positions [N] int32: angle = position · inverse_frequencies[i] (computed in fp32 as
// Hugging Face does), both times `attention_factor`.
void rotary_tables(const at::Tensor& cos_Nh, const at::Tensor& sin_Nh, const at::Tensor& positions_N,
                   std::span<const float> inverse_frequencies, double attention_factor);

}  // namespace steppe::kernels
