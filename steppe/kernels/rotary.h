// Rotary position embedding, the half-split form of Hugging Face's Llama and Qwen: for pair (i, i+hd/2),
// (a, b) → (a·cos − b·sin, b·cos + a·sin). Fill given tensors, return at once on `meta` (after the checks),
// allocate nothing. ValueError: shapes, dtypes, devices or layouts that do not fit; head dims over 1024.
// Source: Su et al. 2021.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace steppe::kernels {

// In place on x [N, heads, hd] (fp32 or bf16; token and head strides free, last dim contiguous), with cos,
// sin [N, hd/2] fp32, contiguous. `inverse` rotates back (the backward). Computed in fp32.
void rotary(const at::Tensor& x, const at::Tensor& cos_Nh, const at::Tensor& sin_Nh, bool inverse);

// cos, sin [N, hd/2] fp32 of positions [N] int32: angle = position · inverse_frequencies[i] (computed in fp32
// as Hugging Face does), both times `attention_factor`. The frequencies are on the host.
void rotary_tables(const at::Tensor& cos_Nh, const at::Tensor& sin_Nh, const at::Tensor& positions_N,
                   std::span<const float> inverse_frequencies, double attention_factor);

}  // namespace steppe::kernels
