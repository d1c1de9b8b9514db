// Layers, options and runs of the kinds of dispatch.
#pragma once

#include <string>
#include <vector>

#include "steppe/ops/moe_dispatch/moe_layer_test.h"

namespace steppe::ops {

struct KindCase {
  std::string name;
  DispatchOptions options;
  ChunkSplit split;
  bool keep = false;
};

inline DispatchOptions kind_options(DispatchKind kind, int64_t tile_rows = 0) {
  DispatchOptions options{.tile_rows = tile_rows, .kind = kind};
  options.plan.least_loaded.min_rows = 2;
  return options;
}

inline std::vector<KindCase> all_kinds() {
  const auto llep = kind_options(DispatchKind::kLlep), pipelined = kind_options(DispatchKind::kPipelinedLlep);
  auto capped = kind_options(DispatchKind::kPipelinedLlep, 3);
  capped.plan.least_loaded.max_helpers = 1;
  const auto ep = kind_options(DispatchKind::kEp), ep_in_tiles = kind_options(DispatchKind::kEp, 4);
  return {{"ep", ep, {}},
          {"ep, kept", ep, {}, true},
          {"ep in tiles", ep_in_tiles, {}},
          {"ep in tiles, kept", ep_in_tiles, {}, true},
          {"llep", llep, {}},
          {"llep, kept", llep, {}, true},
          {"llep in tiles", kind_options(DispatchKind::kLlep, 4), {}},
          {"one chunk", pipelined, {1}},
          {"two chunks", pipelined, {2}},
          {"two chunks, kept", pipelined, {2}, true},
          {"five chunks", pipelined, {5}},
          {"three runs of tokens, one helper", capped, {3, Membership::kContiguous}},
          {"three runs of tokens, one helper, kept", capped, {3, Membership::kContiguous}, true}};
}

// Token t lists experts of rank t mod 5 only: five chunks, strided, of one destination each.
inline MoeLayer stride_layer(int degree) {
  auto layer = make_layer(std::vector<int64_t>(degree, 20), Routes::kRandom, at::kFloat);
  const int64_t local = kExperts / degree;
  for (int64_t t = 0; t < layer.ids_Nk.size(0); ++t)
    for (int64_t j = 0; j < kTopK; ++j)
      layer.ids_Nk[t][j] = static_cast<int32_t>((t % 5 * local + j % local) % kExperts);
  return layer;
}

inline RankPart part_for(const MoeLayer& layer, comm::Communicator& group, at::DeviceType device,
                         const KindCase& kind, double grads_start = 0) {
  auto part = part_of(layer, group, device, grads_start);
  const auto ids = rows_of_rank(layer, layer.ids_Nk, group.rank());
  const int64_t tokens = ids.size(0);
  std::vector<int64_t> counts(kind.split.num_chunks * kExperts, 0);
  for (int64_t chunk = 0; chunk < kind.split.num_chunks; ++chunk)
    for (int64_t i = 0; i < kind.split.tokens(chunk, tokens); ++i)
      for (int64_t j = 0; j < kTopK; ++j) {
        const int64_t token = kind.split.first_token(chunk, tokens) + i * kind.split.stride();
        ++counts[chunk * kExperts + ids[token][j].item<int64_t>()];
      }
  part.routing.counts = exchange_route_counts(group, counts, kind.split);
  return part;
}

inline void run_kind(const OpContext& context, comm::Communicator& group, RankPart& part,
                     const KindCase& kind) {
  DispatchSaved saved;
  auto* kept = kind.keep ? &saved : nullptr;
  const DispatchLayer layer{context, group, part.routing, part.weights, kind.options};
  dispatch_forward(layer, part.y_NH, part.x_NH, kept);
  dispatch_backward(layer, part.grads, part.dy_NH, part.x_NH, kept);
}

}  // namespace steppe::ops
