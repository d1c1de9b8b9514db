// The gradient of attention's queries with the same bits on every run: what the CUDA backward writes over the
// flash kernel's, which adds shares of key blocks as they come. No Torch header.
#pragma once

#include <cstdint>

namespace steppe::kernels {

// bf16 rows of one head each, whose elements lie side by side.
struct HeadRows {
  const void* at;
  int64_t token_stride, head_stride;
};

struct AttentionDq {
  void* dq;  // [S, heads, head_dim], contiguous
  HeadRows q, k, v, out, dout;
  const float* lse;       // [heads, S]
  const int32_t* bounds;  // on the device: cumulative, 0 … S, one more than documents
  int num_documents;
  int tokens, heads, key_heads, head_dim;
  float scale;
};

namespace cuda {

// Larger head dims have no kernel.
inline constexpr int kMostHeadDim = 256;

// `stream` is a cudaStream_t. Two products for the scores' gradient and one for the queries': beside the
// flash kernel's five, three more.
void attention_dq(const AttentionDq& args, void* stream);

}  // namespace cuda
}  // namespace steppe::kernels
