// Which dataset each sequence of a blend comes from, and which of that dataset's sequences it is.
//
// Pure integer arithmetic on the sequence's number, hence no table, the same anywhere, and O(datasets) from
// any start. The first dataset takes round(i·share) of the first i sequences, spread evenly; the others
// divide the rest among themselves in the same way. Each count stays within one sequence per preceding
// dataset of its exact share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace steppe::data {

class Blend {
 public:
  struct Choice {
    size_t dataset;
    int64_t index;
  };

  // Weights above 0, in any unit.
  explicit Blend(const std::vector<double>& weights);

  Choice choose(int64_t sequence) const;
  // Fewest sequences of the blend that hold at least `counts[d]` of each dataset d.
  int64_t sequences_covering(const std::vector<int64_t>& counts) const;

 private:
  // Sequences of each dataset among the first `sequences`.
  std::vector<int64_t> taken(int64_t sequences) const;

  std::vector<uint64_t> shares_;  // of what the datasets before leave, in 2^-32; the last one's is 1
};

}  // namespace steppe::data
