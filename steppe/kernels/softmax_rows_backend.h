// Raw-pointer backends of softmax_rows.h. No Torch header.
#pragma once

#include <cstdint>

#include "steppe/kernels/element.h"

namespace steppe::kernels {

struct LogitStrip {
  void* logits = nullptr;  // [rows, columns]
  Element element = Element::kFloat32;
  int64_t rows = 0, columns = 0, row_stride = 0;
  const int32_t* targets = nullptr;  // [rows]
  int64_t first_column = 0;
  float softcap = 0, z_loss_coeff = 0;  // of the gradient; 0: none
};

struct LossRows {
  double* loss = nullptr;
  float* row_loss = nullptr;  // or null
  const float* stats = nullptr;
  const int32_t* targets = nullptr;
  const float* row_weight = nullptr;  // null: 1
  int64_t rows = 0;
  double z_loss_coeff = 0;
};

namespace cpu {
void soft_cap(const LogitStrip& strip);
void logit_statistics(float* stats, const LogitStrip& strip);
void merge_statistics(float* merged, const float* parts, int64_t num_parts, int64_t rows);
void add_loss(const LossRows& args);
void logits_to_gradient(const LogitStrip& strip, const float* stats, const float* row_weight);
void statistics_and_gradient(float* stats, const LogitStrip& strip, const float* row_weight);
}  // namespace cpu

namespace cuda {
void soft_cap(const LogitStrip& strip, void* stream);
void logit_statistics(float* stats, const LogitStrip& strip, void* stream);
void merge_statistics(float* merged, const float* parts, int64_t num_parts, int64_t rows, void* stream);
void add_loss(const LossRows& args, void* stream);
void logits_to_gradient(const LogitStrip& strip, const float* stats, const float* row_weight, void* stream);
}  // namespace cuda

}  // namespace steppe::kernels
