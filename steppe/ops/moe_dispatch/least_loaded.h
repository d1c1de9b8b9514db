// The least-loaded assignment of experts' rows to ranks: a pure host function of the experts' loads, the same
// on every rank. No Torch.
//
// Experts are dealt in order, E/E_p to a rank, their native one. Each rank has the capacity α·Σl/E_p. Experts
// are taken by decreasing load: the native rank takes what fits beside what it has been given and what is
// still pending for its own later experts; the rest spills to the other rank with the least (given + pending)
// rows, in pieces of at least `min_rows` (a smaller one only if it finishes the expert); if that rank cannot
// take a piece, it is forced to take all that is left. With α = 1 and any number of helpers, no rank gets
// more than ⌈Σl/E_p⌉ + (E_p − 1)·min_rows rows. Source: least-loaded expert parallelism (arXiv 2601.17111).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace steppe::ops {

struct LeastLoadedOptions {
  double imbalance_threshold = 1.3;      // λ: below max(l)/mean(l) = λ nothing moves; 0: always plan
  double max_tokens_factor = 1.0;        // α
  int64_t min_rows = 1024;               // m
  std::optional<int64_t> max_helpers{};  // foreign experts a rank may hold; nothing: any number
};

// Rows [begin, end) of an expert's load, at `rank`.
struct Piece {
  int64_t rank, begin, end;
};

// An expert that does not simply stay at home. At most one piece per rank, none of them empty; the offsets
// ascend.
struct MovedExpert {
  int64_t expert, load;
  std::vector<Piece> pieces;
};

struct Assignment {
  std::vector<int32_t> index_E;  // of the expert in `moved`, −1: all of it stays at home
  std::vector<MovedExpert> moved;

  const MovedExpert* find(int64_t expert) const {
    return index_E[expert] < 0 ? nullptr : &moved[index_E[expert]];
  }
};

// Which foreign experts each rank holds. Over several assignments a helper that is there already costs
// nothing.
class Helpers {
 public:
  Helpers(int64_t degree, int64_t num_experts)
      : num_experts_(num_experts), holds_(degree * num_experts, 0), experts_of_rank_(degree) {}

  bool may_hold(int64_t rank, int64_t expert, const std::optional<int64_t>& most) const {
    return !most || holds_[rank * num_experts_ + expert] != 0 ||
           static_cast<int64_t>(experts_of_rank_[rank].size()) < *most;
  }
  void add(int64_t rank, int64_t expert);
  const std::vector<int64_t>& experts_of(int64_t rank) const { return experts_of_rank_[rank]; }
  int64_t most() const;

 private:
  int64_t num_experts_;
  std::vector<uint8_t> holds_;                         // [rank][expert]
  std::vector<std::vector<int64_t>> experts_of_rank_;  // in the order they were given
};

// Adds to `helpers` whom it makes one.
Assignment assign_least_loaded(std::span<const int64_t> load_E, int64_t degree,
                               const LeastLoadedOptions& options, Helpers& helpers);

// Everything stays at home.
Assignment assign_natively(int64_t num_experts);

}  // namespace steppe::ops
