#include "steppe/layout/layout.h"

#include <algorithm>
#include <cstddef>

#include "steppe/base/error.h"

namespace steppe::layout {
namespace {

constexpr std::array<std::string_view, kAxes.size()> kAxisNames = {"world", "sequence", "expert", "vocab"};

void check_degree(std::string_view key, int degree, int world_size) {
  STEPPE_CHECK_VALUE(degree >= 1 && world_size % degree == 0,
                     "[layout] {} must be at least 1 and divide the number of ranks W={}, got {}", key,
                     world_size, degree);
}

void check_heads(int degree, int64_t num_heads, int64_t num_key_value_heads) {
  STEPPE_CHECK_VALUE(num_heads % degree == 0,
                     "[layout] parallelism.ulysses_degree must divide model.num_attention_heads={}, got {}",
                     num_heads, degree);
  if (num_key_value_heads == 0) return;
  STEPPE_CHECK_VALUE(num_key_value_heads % degree == 0 || degree % num_key_value_heads == 0,
                     "[layout] parallelism.ulysses_degree must divide, or be a multiple of, "
                     "model.num_key_value_heads={}, got {}",
                     num_key_value_heads, degree);
}

}  // namespace

std::string_view axis_name(Axis axis) {
  const auto index = static_cast<size_t>(axis);
  STEPPE_ASSERT(index < kAxisNames.size(), "[layout] axis {} must be below {}", index, kAxisNames.size());
  return kAxisNames[index];
}

Interval even_part(int64_t total, int64_t parts, int64_t index) {
  STEPPE_CHECK_VALUE(total >= 0 && parts >= 1, "[layout] cannot cut total={} items into parts={}", total,
                     parts);
  STEPPE_CHECK_VALUE(index >= 0 && index < parts, "[layout] part index must be in [0, {}), got {}", parts,
                     index);
  const int64_t size = total / parts;
  const int64_t longer = total % parts;
  const int64_t begin = index * size + std::min(index, longer);
  return {begin, begin + size + (index < longer ? 1 : 0)};
}

int64_t even_owner(int64_t total, int64_t parts, int64_t item) {
  STEPPE_CHECK_VALUE(parts >= 1, "[layout] cannot cut total={} items into parts={}", total, parts);
  STEPPE_CHECK_VALUE(item >= 0 && item < total, "[layout] item must be in [0, {}), got {}", total, item);
  const int64_t size = total / parts;
  const int64_t longer = total % parts;
  const int64_t in_longer = longer * (size + 1);
  return item < in_longer ? item / (size + 1) : longer + (item - in_longer) / size;
}

RankLayout::RankLayout(const LayoutConfig& config, int rank, const LayoutConstraints& constraints)
    : config_(config), rank_(rank) {
  const int world = config.world_size;
  STEPPE_CHECK_VALUE(world >= 1, "[layout] the number of ranks must be at least 1, got {}", world);
  STEPPE_CHECK_VALUE(rank >= 0 && rank < world, "[layout] rank must be in [0, W={}), got {}", world, rank);
  check_degree("parallelism.ulysses_degree", config.ulysses_degree, world);
  check_degree("parallelism.expert_parallel_degree", config.expert_degree, world);
  check_degree("parallelism.vocab_parallel_degree", config.vocab_degree, world);
  STEPPE_CHECK_VALUE(constraints.num_experts % config.expert_degree == 0,
                     "[layout] parallelism.expert_parallel_degree must divide model.num_experts={}, got {}",
                     constraints.num_experts, config.expert_degree);
  check_heads(config.ulysses_degree, constraints.num_attention_heads, constraints.num_key_value_heads);
}

int RankLayout::degree(Axis axis) const {
  switch (axis) {
    case Axis::kWorld:
      return config_.world_size;
    case Axis::kSequence:
      return config_.ulysses_degree;
    case Axis::kExpert:
      return config_.expert_degree;
    case Axis::kVocab:
      return config_.vocab_degree;
  }
  throw InternalError(fmt::format("[layout] axis {} has no degree", static_cast<int>(axis)));
}

std::vector<int> RankLayout::group(Axis axis) const {
  const int size = degree(axis);
  std::vector<int> ranks;
  for (int i = 0; i < size; ++i) ranks.push_back(group_index(axis) * size + i);
  return ranks;
}

std::vector<int> RankLayout::replicas(Axis axis) const {
  std::vector<int> ranks;
  for (int r = index_in_group(axis); r < world_size(); r += degree(axis)) ranks.push_back(r);
  return ranks;
}

}  // namespace steppe::layout
