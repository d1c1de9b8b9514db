#include "steppe/comm/groups.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "steppe/base/error.h"
#include "steppe/comm/rank_threads.h"

namespace steppe::comm {
namespace {

using layout::Axis;
using layout::LayoutConfig;
using layout::RankLayout;

std::vector<int64_t> wide(const std::vector<int>& ranks) {
  return {ranks.begin(), ranks.end()};
}

// Each group answers with the global ranks of its members, in the layout's order.
void expect_members(const Groups& groups, const RankLayout& layout) {
  const int64_t me = layout.rank();
  const auto members = [&](Communicator& group) {
    const auto ranks = group.all_gather_host({&me, 1});
    EXPECT_EQ(ranks[group.rank()], me) << group.name();
    EXPECT_EQ(static_cast<int>(ranks.size()), group.size());
    return ranks;
  };
  const std::vector<int64_t> all = wide(layout.group(Axis::kWorld));
  EXPECT_EQ(members(*groups.weights), all);
  EXPECT_EQ(members(*groups.gradients), all);
  EXPECT_EQ(members(*groups.control), all);
  EXPECT_EQ(members(*groups.sequence), wide(layout.group(Axis::kSequence)));
  EXPECT_EQ(members(*groups.expert), wide(layout.group(Axis::kExpert)));
  EXPECT_EQ(members(*groups.expert_replicas), wide(layout.replicas(Axis::kExpert)));
  EXPECT_EQ(members(*groups.vocab), wide(layout.group(Axis::kVocab)));
  EXPECT_EQ(members(*groups.vocab_replicas), wide(layout.replicas(Axis::kVocab)));
}

TEST(Groups, FollowTheLayout) {
  const std::vector<LayoutConfig> configs = {{1, 1, 1, 1}, {2, 2, 1, 2}, {3, 1, 3, 1}, {4, 2, 4, 1},
                                             {4, 1, 2, 2}, {4, 4, 1, 4}, {6, 2, 3, 6}};
  for (const LayoutConfig& config : configs) {
    run_ranks(config.world_size, [&](int rank, const auto& store) {
      const RankLayout layout(config, rank);
      const Groups groups = make_groups(layout, store, std::chrono::minutes(5), /*cuda=*/false);
      expect_members(groups, layout);
    });
  }
}

TEST(Groups, NamesAreSharedByMembersOnly) {
  std::map<std::string, std::set<std::vector<int>>> ranks_by_name;
  for (int rank = 0; rank < 12; ++rank) {
    const RankLayout layout({12, 2, 4, 3}, rank);
    const Groups groups = make_shape_only_groups(layout);
    ranks_by_name[groups.sequence->name()].insert(layout.group(Axis::kSequence));
    ranks_by_name[groups.expert->name()].insert(layout.group(Axis::kExpert));
    ranks_by_name[groups.expert_replicas->name()].insert(layout.replicas(Axis::kExpert));
    ranks_by_name[groups.vocab->name()].insert(layout.group(Axis::kVocab));
    ranks_by_name[groups.vocab_replicas->name()].insert(layout.replicas(Axis::kVocab));
    EXPECT_EQ(groups.weights->name(), "weights");
    EXPECT_EQ(groups.expert->size(), 4);
    EXPECT_EQ(groups.expert->rank(), rank % 4);
    EXPECT_EQ(groups.expert_replicas->size(), 3);
    EXPECT_EQ(groups.expert_replicas->rank(), rank / 4);
  }
  EXPECT_EQ(ranks_by_name.size(), 6u + 3 + 4 + 4 + 3);
  for (const auto& [name, sets] : ranks_by_name) EXPECT_EQ(sets.size(), 1u) << name;
  EXPECT_EQ(ranks_by_name.count("expert.2"), 1u);
}

TEST(Groups, TwiceOnOneStore) {
  run_ranks(2, [](int rank, const auto& store) {
    const RankLayout layout({2, 2, 1, 2}, rank);
    for (int i = 0; i < 2; ++i) {
      const Groups groups = make_groups(layout, store, std::chrono::minutes(5), /*cuda=*/false);
      expect_members(groups, layout);
    }
  });
}

TEST(Groups, AMissingRankIsNamedAsSuch) {
  run_ranks(3, [](int rank, const auto& store) {
    if (rank == 2) return;
    try {
      make_groups(RankLayout({.world_size = 3}, rank), store, std::chrono::milliseconds(800), /*cuda=*/false);
      FAIL() << "must throw";
    } catch (const RuntimeFailure& error) {
      const std::string start =
          fmt::format("[comm] rank {} of 3: the ranks did not all reach the store", rank);
      EXPECT_EQ(std::string(error.what()).rfind(start, 0), 0u) << error.what();
    }
  });
}

TEST(Groups, SeveralRanksNeedAStore) {
  EXPECT_THROW(make_groups(RankLayout({.world_size = 2}, 0), nullptr, std::chrono::seconds(1), false),
               ValueError);
}

}  // namespace
}  // namespace steppe::comm
