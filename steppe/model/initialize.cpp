#include "steppe/model/initialize.h"

#include <ATen/ops/from_blob.h>

#include <cmath>
#include <numbers>
#include <vector>

namespace steppe::model {
namespace {

// SplitMix64's finalizer (Steele, Lea and Flood 2014).
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

uint64_t key_of(const std::string& name, uint64_t seed) {
  uint64_t key = mixed(seed);
  for (const char c : name) key = mixed(key ^ static_cast<unsigned char>(c));
  return key;
}

// Box-Muller on two uniforms of one 64-bit draw.
float normal(uint64_t draw) {
  const double u = (static_cast<double>(draw >> 32) + 1) / 4294967297.0,
               angle = static_cast<double>(draw & 0xffffffffU) / 4294967296.0;
  return static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * angle));
}

// Elements [begin, begin + out.numel()) of the unit into out (1-D, any float dtype).
void fill_range(const WeightUnit& unit, const SliceSource& source, int64_t begin, const at::Tensor& out) {
  const int64_t end = begin + out.numel();
  std::vector<float> values;
  for (const auto& slice : unit.slices()) {
    const int64_t from = std::max(begin, slice.unit_begin),
                  to = std::min(end, slice.unit_begin + slice.count);
    if (from >= to) continue;
    values.resize(to - from);
    source(slice, slice.tensor_begin + from - slice.unit_begin, values);
    out.narrow(0, from - begin, to - from).copy_(at::from_blob(values.data(), {to - from}, at::kFloat));
  }
}

}  // namespace

void fill_unit(WeightUnit& unit, const SliceSource& source) {
  if (unit.working().is_meta()) return;
  const int64_t working_begin = unit.working_is_whole() ? 0 : unit.shard_begin();
  fill_range(unit, source, working_begin, unit.working());
  if (unit.shard().working_is_master()) return;
  for (const auto& run : optim::state_runs(unit.shard().segments)) {
    if (!run.frozen) fill_range(unit, source, unit.shard_begin() + run.begin, run.weights(unit.shard()));
  }
}

void initialize_unit(WeightUnit& unit, uint64_t seed) {
  fill_unit(unit, [&](const LogicalSlice& slice, int64_t tensor_begin, std::span<float> out) {
    const uint64_t key = key_of(slice.tensor, seed);
    const auto std = static_cast<float>(slice.init_std);
#pragma omp parallel for if (out.size() > 16384)
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = std < 0 ? 1.0F : std * normal(mixed(key + static_cast<uint64_t>(tensor_begin) + i));
    }
  });
}

}  // namespace steppe::model
