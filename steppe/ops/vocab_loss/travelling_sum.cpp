#include "steppe/ops/vocab_loss/travelling_sum.h"

#include <algorithm>
#include <utility>

#include "steppe/kernels/pointwise.h"

namespace steppe::ops {

TravellingSum::TravellingSum(const OpContext& context, comm::Communicator& group,
                             std::span<const int64_t> rows_of_rank, int64_t width, int64_t tile_rows,
                             const at::Tensor& alone)
    : group_(group), rows_of_rank_(rows_of_rank), tile_rows_(tile_rows) {
  const int64_t longest = *std::max_element(rows_of_rank.begin(), rows_of_rank.end());
  for (int64_t begin = 0; begin < longest; begin += tile_rows) {
    const int64_t rows = std::min(tile_rows, longest - begin);
    // Full ones: they change places.
    tiles_.push_back(alone.defined() ? alone.narrow(0, begin, rows)
                                     : context.empty({tile_rows, width}, at::kFloat));
    kernels::fill_zero(tiles_.back());
  }
  if (group.size() > 1 && longest > 0) spare_ = context.empty({tile_rows, width}, at::kFloat);
}

int64_t TravellingSum::rows_at(int64_t s, int64_t t) const {
  const int64_t degree = group_.size();
  const int64_t rows = rows_of_rank_[(group_.rank() - s % degree + degree) % degree];
  return std::clamp<int64_t>(rows - t * tile_rows_, 0, tile_rows_);
}

void TravellingSum::settle() {
  if (moving_tile_ < 0) return;
  moving_.wait();
  std::swap(tiles_[moving_tile_], spare_);
  moving_tile_ = -1;
}

at::Tensor TravellingSum::tile(int64_t s, int64_t t) {
  if (moving_tile_ == t) settle();
  return tiles_[t].narrow(0, 0, rows_at(s, t));
}

void TravellingSum::send_on(int64_t s, int64_t t) {
  const int64_t degree = group_.size();
  if (degree == 1) return;
  settle();
  std::vector<at::Tensor> sends(degree), receives(degree);
  sends[(group_.rank() + 1) % degree] = tiles_[t].narrow(0, 0, rows_at(s, t));
  receives[(group_.rank() + degree - 1) % degree] = spare_.narrow(0, 0, rows_at(s + 1, t));
  moving_ = group_.exchange(sends, receives);
  moving_tile_ = t;
}

}  // namespace steppe::ops
