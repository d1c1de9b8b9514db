#include "steppe/kernels/rotary.h"

#include <string_view>

#include "steppe/base/error.h"
#include "steppe/kernels/backend.h"
#include "steppe/kernels/rotary_backend.h"

namespace steppe::kernels {
namespace {

void check_table(const at::Tensor& table, int64_t tokens, int64_t half, const at::Tensor& like,
                 std::string_view place, std::string_view name) {
  check_device(table, like, place, name);
  check_dtype(table, at::kFloat, place, name);
  check_contiguous(table, place, name);
  STEPPE_CHECK_VALUE(table.dim() == 2 && table.size(0) == tokens && table.size(1) == half,
                     "[{}] {} must be [{}, {}], got {} dimensions and {} elements", place, name, tokens, half,
                     table.dim(), table.numel());
}

}  // namespace

void rotary(const at::Tensor& x, const at::Tensor& cos_Nh, const at::Tensor& sin_Nh, bool inverse) {
  constexpr std::string_view kPlace = "rotary";
  STEPPE_CHECK_VALUE(x.defined() && x.dim() == 3, "[rotary] x must have 3 dimensions, got {}",
                     x.defined() ? x.dim() : 0);
  const int64_t head_dim = x.size(2);
  STEPPE_CHECK_VALUE(head_dim % 2 == 0 && head_dim <= 2 * kMostFrequencies,
                     "[rotary] x.size(2) must be even and at most {}, got {}", 2 * kMostFrequencies,
                     head_dim);
  STEPPE_CHECK_VALUE(head_dim == 0 || x.stride(2) == 1,
                     "[rotary] x's last dimension must be contiguous, got stride {}", x.stride(2));
  check_table(cos_Nh, x.size(0), head_dim / 2, x, kPlace, "cos");
  check_table(sin_Nh, x.size(0), head_dim / 2, x, kPlace, "sin");
  const Element element = element_of(x, kPlace, "x");
  if (x.is_meta() || x.numel() == 0) return;
  const Rotary raw{
      .x = x.data_ptr(),
      .cos = cos_Nh.const_data_ptr<float>(),
      .sin = sin_Nh.const_data_ptr<float>(),
      .element = element,
      .tokens = x.size(0),
      .heads = x.size(1),
      .half = head_dim / 2,
      .token_stride = x.stride(0),
      .head_stride = x.stride(1),
      .inverse = inverse,
  };
  if (x.is_cuda()) return cuda::rotary(raw, current_cuda_stream(x));
  cpu::rotary(raw);
}

void rotary_tables(const at::Tensor& cos_Nh, const at::Tensor& sin_Nh, const at::Tensor& positions_N,
                   std::span<const float> inverse_frequencies, double attention_factor) {
  constexpr std::string_view kPlace = "rotary_tables";
  STEPPE_CHECK_VALUE(positions_N.defined() && positions_N.dim() == 1,
                     "[rotary_tables] positions must have 1 dimension, got {}",
                     positions_N.defined() ? positions_N.dim() : 0);
  check_dtype(positions_N, at::kInt, kPlace, "positions");
  check_contiguous(positions_N, kPlace, "positions");
  const auto half = static_cast<int64_t>(inverse_frequencies.size());
  STEPPE_CHECK_VALUE(half <= kMostFrequencies,
                     "[rotary_tables] inverse_frequencies must be at most {}, got {}", kMostFrequencies,
                     half);
  check_table(cos_Nh, positions_N.size(0), half, positions_N, kPlace, "cos");
  check_table(sin_Nh, positions_N.size(0), half, positions_N, kPlace, "sin");
  if (positions_N.is_meta() || cos_Nh.numel() == 0) return;
  const RotaryTables raw{
      .cos = cos_Nh.data_ptr<float>(),
      .sin = sin_Nh.data_ptr<float>(),
      .positions = positions_N.const_data_ptr<int32_t>(),
      .inverse_frequencies = inverse_frequencies,
      .tokens = positions_N.size(0),
      .attention_factor = static_cast<float>(attention_factor),
  };
  if (positions_N.is_cuda()) return cuda::rotary_tables(raw, current_cuda_stream(positions_N));
  cpu::rotary_tables(raw);
}

}  // namespace steppe::kernels
