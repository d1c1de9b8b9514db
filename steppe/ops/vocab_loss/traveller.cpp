#include "steppe/ops/vocab_loss/traveller.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace steppe::ops {

Traveller::Traveller(const OpContext& context, comm::Communicator& group, Travel travel)
    : group_(group), travel_(std::move(travel)) {
  const int64_t degree = group.size();
  // Round s of 1 to P − 1 has what came into buffer (s + 1) mod 2.
  const std::array<bool, 2> used{degree > 1, degree > 2};
  std::vector<int64_t> sizes{*std::max_element(travel_.rows_of_rank.begin(), travel_.rows_of_rank.end())};
  sizes.insert(sizes.end(), travel_.width.begin(), travel_.width.end());
  for (int i = 0; i < 2; ++i) {
    if (used[i]) buffers_[i] = context.empty(sizes, travel_.dtype);
  }
}

int64_t Traveller::rows_at(int64_t s) const {
  const int64_t degree = group_.size();
  return travel_.rows_of_rank[(group_.rank() - s % degree + degree) % degree];
}

at::Tensor Traveller::at_round(int64_t s) const {
  if (s == 0 || s == group_.size()) return travel_.own;
  return buffers_[(s + 1) % 2].narrow(0, 0, rows_at(s));
}

void Traveller::send_on(int64_t s) {
  const int64_t degree = group_.size();
  if (degree == 1 || (s == degree - 1 && !travel_.returns)) return;
  std::vector<at::Tensor> sends(degree), receives(degree);
  sends[(group_.rank() + 1) % degree] = at_round(s);
  receives[(group_.rank() + degree - 1) % degree] = at_round(s + 1);
  moving_ = group_.exchange(sends, receives);
}

}  // namespace steppe::ops
