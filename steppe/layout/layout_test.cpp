#include "steppe/layout/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "steppe/base/error.h"

namespace steppe::layout {
namespace {

std::vector<int> divisors(int n) {
  std::vector<int> all;
  for (int d = 1; d <= n; ++d) {
    if (n % d == 0) all.push_back(d);
  }
  return all;
}

LayoutConfig with_degree(int world, Axis axis, int degree) {
  LayoutConfig config{.world_size = world};
  if (axis == Axis::kSequence) config.ulysses_degree = degree;
  if (axis == Axis::kExpert) config.expert_degree = degree;
  if (axis == Axis::kVocab) config.vocab_degree = degree;
  return config;
}

// What makes groups and replicas of one axis a grid: each partitions the ranks, and a group meets a replica
// set in exactly one rank.
void expect_grid(int world, Axis axis, int degree) {
  std::vector<RankLayout> ranks;
  for (int r = 0; r < world; ++r) ranks.emplace_back(with_degree(world, axis, degree), r);
  std::set<std::vector<int>> groups, replica_sets;
  for (int r = 0; r < world; ++r) {
    const auto group = ranks[r].group(axis), replicas = ranks[r].replicas(axis);
    groups.insert(group);
    replica_sets.insert(replicas);
    ASSERT_EQ(static_cast<int>(group.size()), degree);
    ASSERT_EQ(static_cast<int>(replicas.size()), world / degree);
    ASSERT_TRUE(std::is_sorted(group.begin(), group.end()) &&
                std::is_sorted(replicas.begin(), replicas.end()));
    ASSERT_EQ(group[ranks[r].index_in_group(axis)], r);
    ASSERT_EQ(replicas[ranks[r].group_index(axis)], r);
    ASSERT_EQ(static_cast<int>(replicas.size()), ranks[r].num_groups(axis));
    for (int member : group) {
      ASSERT_EQ(ranks[member].group(axis), group);
      ASSERT_EQ(ranks[member].group_index(axis), ranks[r].group_index(axis));
      ASSERT_EQ(std::count(replicas.begin(), replicas.end(), member), member == r);
    }
    for (int member : replicas) {
      ASSERT_EQ(ranks[member].replicas(axis), replicas);
      ASSERT_EQ(ranks[member].index_in_group(axis), ranks[r].index_in_group(axis));
    }
  }
  ASSERT_EQ(static_cast<int>(groups.size()), world / degree);
  ASSERT_EQ(static_cast<int>(replica_sets.size()), degree);
}

TEST(RankLayout, EveryAxisIsAGridUpTo64Ranks) {
  for (int world = 1; world <= 64; ++world) {
    for (Axis axis : {Axis::kSequence, Axis::kExpert, Axis::kVocab}) {
      for (int degree : divisors(world)) expect_grid(world, axis, degree);
    }
    expect_grid(world, Axis::kWorld, world);
  }
}

TEST(RankLayout, AxesAreIndependent) {
  for (int d : divisors(24)) {
    for (int e : divisors(24)) {
      for (int p : divisors(24)) {
        for (int r = 0; r < 24; ++r) {
          const RankLayout layout({24, d, e, p}, r);
          EXPECT_EQ(layout.degree(Axis::kWorld), 24);
          EXPECT_EQ(layout.group(Axis::kSequence),
                    RankLayout({.world_size = 24, .ulysses_degree = d}, r).group(Axis::kSequence));
          EXPECT_EQ(layout.group(Axis::kExpert),
                    RankLayout({.world_size = 24, .expert_degree = e}, r).group(Axis::kExpert));
          EXPECT_EQ(layout.replicas(Axis::kVocab),
                    RankLayout({.world_size = 24, .vocab_degree = p}, r).replicas(Axis::kVocab));
        }
      }
    }
  }
}

TEST(EvenPart, PartitionsInOrderAndNearEvenly) {
  for (int64_t total : {0, 1, 2, 7, 63, 64, 65, 1000, 151'936}) {
    for (int64_t parts = 1; parts <= 64; ++parts) {
      int64_t next = 0, shortest = total, longest = 0;
      for (int64_t i = 0; i < parts; ++i) {
        const Interval part = even_part(total, parts, i);
        ASSERT_EQ(part.begin, next);
        if (i > 0) {
          ASSERT_LE(part.size(), shortest);
        }  // longer ones first
        next = part.end;
        shortest = std::min(shortest, part.size());
        longest = std::max(longest, part.size());
        if (part.size() > 0) {
          ASSERT_EQ(even_owner(total, parts, part.begin), i);
          ASSERT_EQ(even_owner(total, parts, part.end - 1), i);
        }
      }
      ASSERT_EQ(next, total);
      ASSERT_LE(longest - shortest, 1);
    }
  }
}

template <typename Function>
std::string message_of(Function function) {
  try {
    function();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no ValueError";
}

void expect_refused(const LayoutConfig& config, const LayoutConstraints& constraints,
                    std::initializer_list<std::string> words, int rank = 0) {
  const std::string message = message_of([&] { RankLayout(config, rank, constraints); });
  for (const auto& word : words)
    EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
}

TEST(RankLayout, ErrorsNameTheKeyTheValueAndTheExpectation) {
  expect_refused({.world_size = 4, .ulysses_degree = 3}, {}, {"parallelism.ulysses_degree", "W=4", "got 3"});
  expect_refused({.world_size = 4, .expert_degree = 8}, {},
                 {"parallelism.expert_parallel_degree", "W=4", "got 8"});
  expect_refused({.world_size = 6, .vocab_degree = 4}, {},
                 {"parallelism.vocab_parallel_degree", "W=6", "got 4"});
  expect_refused({.world_size = 4, .vocab_degree = 0}, {}, {"parallelism.vocab_parallel_degree", "got 0"});
  expect_refused({.world_size = 4, .expert_degree = -2}, {},
                 {"parallelism.expert_parallel_degree", "got -2"});
  expect_refused({.world_size = 4, .expert_degree = 4}, {.num_experts = 6},
                 {"parallelism.expert_parallel_degree", "model.num_experts=6", "got 4"});
  expect_refused({.world_size = 4, .ulysses_degree = 4}, {.num_attention_heads = 6},
                 {"parallelism.ulysses_degree", "model.num_attention_heads=6", "got 4"});
  expect_refused({.world_size = 6, .ulysses_degree = 6},
                 {.num_attention_heads = 12, .num_key_value_heads = 4},
                 {"parallelism.ulysses_degree", "model.num_key_value_heads=4", "got 6"});
  expect_refused({.world_size = 0}, {}, {"number of ranks", "got 0"});
  expect_refused({.world_size = 2}, {}, {"rank", "W=2", "got 2"}, 2);
}

TEST(RankLayout, KeyValueHeadsAndDegreeDivideOneAnother) {
  const LayoutConstraints constraints{.num_experts = 8, .num_attention_heads = 16, .num_key_value_heads = 4};
  for (int degree : {1, 2, 4, 8, 16}) {
    EXPECT_NO_THROW(RankLayout({.world_size = 16, .ulysses_degree = degree}, 3, constraints)) << degree;
  }
}

TEST(EvenPart, RefusesWhatIsOutOfRange) {
  EXPECT_THROW(even_part(4, 0, 0), ValueError);
  EXPECT_THROW(even_part(-1, 2, 0), ValueError);
  EXPECT_THROW(even_part(4, 2, 2), ValueError);
  EXPECT_THROW(even_owner(4, 2, 4), ValueError);
  EXPECT_THROW(even_owner(4, 0, 1), ValueError);
}

TEST(Axis, NamesAreDistinct) {
  std::set<std::string_view> names;
  for (Axis axis : kAxes) names.insert(axis_name(axis));
  EXPECT_EQ(names.size(), kAxes.size());
}

}  // namespace
}  // namespace steppe::layout
