// Raw-pointer backends of embedding.h. No Torch header.
#pragma once

#include <cstdint>

#include "steppe/kernels/element.h"

namespace steppe::kernels {

struct EmbeddingForward {
  char* out = nullptr;
  const char* table = nullptr;
  const int32_t* ids = nullptr;
  int64_t rows = 0, row_bytes = 0, out_stride_bytes = 0, first_row = 0;
};

struct EmbeddingBackward {
  float* grad_table = nullptr;
  const void* dy = nullptr;
  Element element = Element::kFloat32;
  const int32_t* ids = nullptr;
  int64_t rows = 0, width = 0, dy_stride = 0, first_row = 0;
};

namespace cpu {
void embedding_forward(const EmbeddingForward& args);
void embedding_backward(const EmbeddingBackward& args);
}  // namespace cpu

namespace cuda {
void embedding_forward(const EmbeddingForward& args, void* stream);
void embedding_backward(const EmbeddingBackward& args, void* stream);
}  // namespace cuda

}  // namespace steppe::kernels
