// The rank layout (MoP): one set of W ranks, and for each named axis a partition of it into sub-groups,
// chosen independently of the other axes. Along an axis of degree d, ranks [d·⌊r/d⌋, d·⌊r/d⌋+d) form rank r's
// *group* (they hold disjoint shards); the W/d ranks with the same position in their groups hold the same
// shard and form its *replicas*. Pure arithmetic, no communication, the same on every rank.
// Source: Mixture of Parallelisms as described in docs/architecture.md.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace steppe::layout {

// kWorld shards dense weights (degree W, no replicas). New axes are added here and in kAxisNames.
enum class Axis : uint8_t { kWorld, kSequence, kExpert, kVocab };
inline constexpr std::array kAxes = {Axis::kWorld, Axis::kSequence, Axis::kExpert, Axis::kVocab};
std::string_view axis_name(Axis axis);

struct LayoutConfig {
  int world_size = 1;      // W
  int ulysses_degree = 1;  // D: ranks that share one token row
  int expert_degree = 1;   // E_p: ranks that hold disjoint experts
  int vocab_degree = 1;    // P: ranks that hold disjoint vocabulary intervals
};

// What the degrees must divide; zeros are not checked.
struct LayoutConstraints {
  int64_t num_experts = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
};

// Half-open interval of rows, elements or experts.
struct Interval {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Interval&) const = default;
};

// Part `index` of `total` items cut into `parts` near-even pieces; the first total % parts pieces have one
// more.
Interval even_part(int64_t total, int64_t parts, int64_t index);

// The part that owns `item` under even_part.
int64_t even_owner(int64_t total, int64_t parts, int64_t item);

class RankLayout {
 public:
  // Throws ValueError naming the recipe key (`parallelism.*`) when a degree does not divide W, E_p does not
  // divide the experts, D does not divide the heads, or neither of D and the key-value heads divides the
  // other.
  RankLayout(const LayoutConfig& config, int rank, const LayoutConstraints& constraints = {});

  int rank() const { return rank_; }
  int world_size() const { return config_.world_size; }
  int degree(Axis axis) const;
  int index_in_group(Axis axis) const { return rank_ % degree(axis); }
  int group_index(Axis axis) const { return rank_ / degree(axis); }        // which group of the axis
  int num_groups(Axis axis) const { return world_size() / degree(axis); }  // = number of replicas
  std::vector<int> group(Axis axis) const;                                 // global ranks, ascending
  std::vector<int> replicas(Axis axis) const;                              // global ranks, ascending
  const LayoutConfig& config() const { return config_; }

 private:
  LayoutConfig config_;
  int rank_;
};

}  // namespace steppe::layout
