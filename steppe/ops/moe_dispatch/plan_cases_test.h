// Routings for tests of the plans: at random, adversarial, and the profiles of the measurements.
#pragma once

#include <fmt/format.h>

#include <random>
#include <string>
#include <vector>

#include "steppe/ops/moe_dispatch/dispatch_plan.h"
#include "steppe/ops/moe_dispatch/routing_profile.h"

namespace steppe::ops {

inline constexpr const char* kProfiles[] = {"balanced", "30/16", "50/16", "80/16", "95/16", "30/4", "50/4"};

struct PlanCase {
  std::string name;
  RouteCounts counts;
  int64_t degree = 1, top_k = 1, min_rows = 1;
};

inline DispatchPlanOptions options_of(const PlanCase& c) {
  return {.least_loaded = {.min_rows = c.min_rows}, .replan_threshold = 1.2};
}

// ids_of(source, token, experts) of every token, counted.
template <class IdsOf>
PlanCase counted(std::string name, int64_t num_experts, int64_t top_k,
                 const std::vector<int64_t>& tokens_of_rank, ChunkSplit split, IdsOf ids_of) {
  PlanCase c{
      std::move(name), {num_experts, {}, split}, static_cast<int64_t>(tokens_of_rank.size()), top_k, 1};
  std::vector<int32_t> ids(top_k);
  for (int64_t source = 0; source < c.degree; ++source)
    for (int64_t chunk = 0; chunk < split.num_chunks; ++chunk) {
      const size_t begin = c.counts.routes.size();
      c.counts.routes.resize(begin + num_experts, 0);
      const int64_t tokens = tokens_of_rank[source];
      for (int64_t j = 0; j < split.tokens(chunk, tokens); ++j) {
        ids_of(source, split.first_token(chunk, tokens) + j * split.stride(), std::span(ids));
        for (const int32_t e : ids) ++c.counts.routes[begin + e];
      }
    }
  return c;
}

// Every rank routes alike.
inline PlanCase profile_case(const RoutingProfile& profile, int64_t num_experts, int64_t degree,
                             int64_t top_k, int64_t tokens, int64_t chunks) {
  auto c = counted(fmt::format("{} of {} experts on {}", profile.name(), num_experts, degree), num_experts,
                   top_k, {tokens}, {chunks}, [&](int64_t, int64_t token, std::span<int32_t> ids) {
                     profile.experts_of({tokens, num_experts, chunks, num_experts / degree}, token, ids);
                   });
  const auto one = c.counts.routes;
  for (int64_t rank = 1; rank < degree; ++rank)
    c.counts.routes.insert(c.counts.routes.end(), one.begin(), one.end());
  c.degree = degree;
  return c;
}

// Any sizes; uniform, power-law, one expert, one rank's experts, or tied to the chunk.
inline PlanCase random_case(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  const int64_t degree = 1 + below(8), num_experts = degree * (1 + below(6)), top_k = 1 + below(4);
  const ChunkSplit split{1 + below(7), below(2) == 0 ? Membership::kStrided : Membership::kContiguous};
  std::vector<int64_t> tokens(degree);
  for (auto& n : tokens) n = below(4) == 0 ? below(3) : below(120);
  const int64_t kind = below(5), favourite = below(num_experts), local = num_experts / degree;
  auto c = counted(
      fmt::format("seed {}", seed), num_experts, top_k, tokens, split,
      [&](int64_t, int64_t token, std::span<int32_t> ids) {
        for (auto& id : ids) {
          const double u = static_cast<double>(random() >> 11) * 0x1p-53;
          switch (kind) {
            case 0:
              id = static_cast<int32_t>(below(num_experts));
              break;
            case 1:
              id = static_cast<int32_t>(u * u * u * u * static_cast<double>(num_experts));
              break;
            case 2:
              id = static_cast<int32_t>(favourite);
              break;
            case 3:
              id = static_cast<int32_t>(favourite / local * local + below(local));
              break;
            default:
              id = static_cast<int32_t>((token % split.num_chunks * local + below(local)) % num_experts);
          }
        }
      });
  c.min_rows = below(2) == 0 ? 1 : 1 + below(60);
  return c;
}

}  // namespace steppe::ops
