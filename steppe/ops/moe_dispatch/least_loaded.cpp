#include "steppe/ops/moe_dispatch/least_loaded.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace steppe::ops {
namespace {

class Planner {
 public:
  Planner(std::span<const int64_t> load_E, int64_t degree, const LeastLoadedOptions& options,
          Helpers& helpers)
      : load_E_(load_E),
        degree_(degree),
        local_(static_cast<int64_t>(load_E.size()) / degree),
        options_(options),
        helpers_(helpers),
        rows_(degree, 0) {
    // Given and pending rows are only ever needed as their sum.
    for (size_t e = 0; e < load_E.size(); ++e) rows_[static_cast<int64_t>(e) / local_] += load_E[e];
    const auto total = std::accumulate(load_E.begin(), load_E.end(), int64_t{0});
    const double capacity =
        std::ceil(options.max_tokens_factor * static_cast<double>(total) / static_cast<double>(degree));
    capacity_ = capacity < static_cast<double>(total) ? static_cast<int64_t>(capacity) : total;
  }

  // The rows of each rank that works on `expert`, native first.
  void place(int64_t expert, std::vector<Piece>& pieces) {
    const int64_t native = expert / local_, load = load_E_[expert];
    rows_[native] -= load;
    int64_t left = load;
    give(native, std::clamp(capacity_ - rows_[native], int64_t{0}, load), left, pieces);
    while (left > 0) {
      const int64_t rank = least_loaded(expert, native);
      const int64_t fits = std::min(left, capacity_ - rows_[rank]);
      const bool forced = fits < left && fits < std::max(options_.min_rows, int64_t{1});
      if (rank != native) helpers_.add(rank, expert);
      give(rank, forced || rank == native ? left : fits, left, pieces);
    }
  }

 private:
  // Among the others that may help; the native one when none may.
  int64_t least_loaded(int64_t expert, int64_t native) const {
    int64_t best = native;
    for (int64_t rank = 0; rank < degree_; ++rank) {
      if (rank == native || (best != native && rows_[rank] >= rows_[best])) continue;
      if (helpers_.may_hold(rank, expert, options_.max_helpers)) best = rank;
    }
    return best;
  }

  void give(int64_t rank, int64_t rows, int64_t& left, std::vector<Piece>& pieces) {
    rows_[rank] += rows, left -= rows;
    const auto same =
        std::find_if(pieces.begin(), pieces.end(), [&](const Piece& p) { return p.rank == rank; });
    if (same != pieces.end()) {
      same->end += rows;
    } else if (rows > 0) {
      pieces.push_back({rank, 0, rows});
    }
  }

  std::span<const int64_t> load_E_;
  int64_t degree_, local_;
  const LeastLoadedOptions& options_;
  Helpers& helpers_;
  std::vector<int64_t> rows_;  // per rank: given, and pending for its own experts
  int64_t capacity_ = 0;
};

bool is_balanced(std::span<const int64_t> load_E, double threshold) {
  const auto total = std::accumulate(load_E.begin(), load_E.end(), int64_t{0});
  const auto largest = *std::max_element(load_E.begin(), load_E.end());
  return static_cast<double>(largest) * static_cast<double>(load_E.size()) <
         threshold * static_cast<double>(total);
}

}  // namespace

void Helpers::add(int64_t rank, int64_t expert) {
  auto& holds = holds_[rank * num_experts_ + expert];
  if (holds == 0) experts_of_rank_[rank].push_back(expert);
  holds = 1;
}

int64_t Helpers::most() const {
  size_t most = 0;
  for (const auto& experts : experts_of_rank_) most = std::max(most, experts.size());
  return static_cast<int64_t>(most);
}

Assignment assign_natively(int64_t num_experts) {
  return {std::vector<int32_t>(num_experts, -1), {}};
}

Assignment assign_least_loaded(std::span<const int64_t> load_E, int64_t degree,
                               const LeastLoadedOptions& options, Helpers& helpers) {
  auto assignment = assign_natively(static_cast<int64_t>(load_E.size()));
  if (degree == 1 || load_E.empty() || is_balanced(load_E, options.imbalance_threshold)) return assignment;
  std::vector<int32_t> by_load(load_E.size());
  std::iota(by_load.begin(), by_load.end(), 0);
  std::stable_sort(by_load.begin(), by_load.end(),
                   [&](int32_t a, int32_t b) { return load_E[a] > load_E[b]; });
  Planner planner(load_E, degree, options, helpers);
  const int64_t local = static_cast<int64_t>(load_E.size()) / degree;
  std::vector<Piece> pieces;
  for (const int32_t expert : by_load) {
    if (load_E[expert] == 0) break;
    pieces.clear();
    planner.place(expert, pieces);
    if (pieces.size() == 1 && pieces[0].rank == expert / local) continue;
    int64_t offset = 0;
    for (auto& piece : pieces) {
      piece.begin += offset, piece.end += offset;
      offset = piece.end;
    }
    assignment.index_E[expert] = static_cast<int32_t>(assignment.moved.size());
    assignment.moved.push_back({expert, load_E[expert], pieces});
  }
  return assignment;
}

}  // namespace steppe::ops
