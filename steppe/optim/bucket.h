// The trained elements of a rank's shards, cut into buckets of equal size: what is updated at one time. A cut
// falls anywhere, a bucket may span shards; frozen elements are in none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "steppe/optim/adamw.h"

namespace steppe::optim {

// Elements of one shard that are treated alike.
struct Piece {
  const ParameterShard* shard = nullptr;
  const Segment* segment = nullptr;
  int64_t begin = 0, count = 0;  // within the shard
  int64_t state_begin = 0;       // within its masters and moments
  int64_t bucket_begin = 0;      // within the bucket

  at::Tensor of(const at::Tensor& shard_tensor) const { return shard_tensor.narrow(0, begin, count); }
  at::Tensor of_state(const at::Tensor& state) const { return state.narrow(0, state_begin, count); }
  at::Tensor master() const {
    return shard->working_is_master() ? of(shard->master) : of_state(shard->master);
  }
  at::Tensor of_bucket(const at::Tensor& bucket_tensor) const {
    return bucket_tensor.narrow(0, bucket_begin, count);
  }
};

struct Bucket {
  std::vector<Piece> pieces;
  int64_t numel = 0;
};

// All but the last bucket have `bucket_params` elements. The shards must outlive the buckets.
std::vector<Bucket> cut_into_buckets(std::span<const ParameterShard* const> shards, int64_t bucket_params);

}  // namespace steppe::optim
