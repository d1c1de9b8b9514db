#include "steppe/optim/bucket.h"

#include <algorithm>

#include "steppe/base/error.h"

namespace steppe::optim {

std::vector<Bucket> cut_into_buckets(std::span<const ParameterShard* const> shards, int64_t bucket_params) {
  STEPPE_CHECK_VALUE(bucket_params >= 1, "[optimizer] bucket_params must be at least 1, got {}",
                     bucket_params);
  std::vector<Bucket> buckets;
  for (const auto* shard : shards) {
    for (const auto& segment : shard->segments) {
      if (segment.treatment.frozen) continue;
      for (int64_t begin = segment.begin; begin < segment.end;) {
        if (buckets.empty() || buckets.back().numel == bucket_params) buckets.emplace_back();
        auto& bucket = buckets.back();
        const int64_t count = std::min(segment.end - begin, bucket_params - bucket.numel);
        bucket.pieces.push_back(
            {shard, &segment, begin, count, segment.state_begin + begin - segment.begin, bucket.numel});
        bucket.numel += count;
        begin += count;
      }
    }
  }
  return buckets;
}

}  // namespace steppe::optim
