#include "steppe/plan/supposed_routing.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "steppe/base/error.h"
#include "steppe/ops/router/position_routing.h"

namespace steppe::plan {
namespace {

constexpr const char* kLoadKey = "moe/expert_load";

// Loads of the MoE layers, in order, of the last line that has them.
nlohmann::json last_load(const std::string& path) {
  std::ifstream file(path);
  STEPPE_CHECK(file.good(), "[plan] cannot read {} (plan.routing_profile)", path);
  nlohmann::json load;
  for (std::string line; std::getline(file, line);) {
    const auto row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (row.is_object() && row.contains(kLoadKey)) load = row.at(kLoadKey);
  }
  STEPPE_CHECK_VALUE(load.is_array() && !load.empty(),
                     "[plan] {} (plan.routing_profile) has no line with {}: train with logging.moe = "
                     "\"detailed\"",
                     path, kLoadKey);
  return load;
}

}  // namespace

std::vector<std::vector<int64_t>> recorded_load(const std::string& metrics_path,
                                                const model::ModelConfig& model) {
  const auto recorded = last_load(metrics_path);
  std::vector<std::vector<int64_t>> load(model.num_hidden_layers);
  size_t next = 0;
  for (int64_t layer = 0; layer < model.num_hidden_layers; ++layer) {
    if (model.is_dense_layer(layer)) continue;
    STEPPE_CHECK_VALUE(next < recorded.size(), "[plan] {} has loads of {} MoE layers, the model has more",
                       metrics_path, recorded.size());
    load[layer] = recorded.at(next++).get<std::vector<int64_t>>();
    STEPPE_CHECK_VALUE(static_cast<int64_t>(load[layer].size()) == model.num_experts,
                       "[plan] {} has loads of {} experts, the model has {}", metrics_path,
                       load[layer].size(), model.num_experts);
  }
  STEPPE_CHECK_VALUE(next == recorded.size(), "[plan] {} has loads of {} MoE layers, the model has {}",
                     metrics_path, recorded.size(), next);
  return load;
}

std::unique_ptr<ops::RoutingSource> supposed_routing(const recipe::RunConfig& run,
                                                     const model::ModelConfig& model, int rank) {
  if (run.router.force_load_balancing || model.num_experts == 0) return nullptr;
  const ops::RouterConfig config{model.num_experts, model.num_experts_per_tok, model.norm_topk_prob};
  const auto& profile = run.plan.routing_profile;
  if (profile.ends_with(".jsonl")) return ops::recorded_routing(recorded_load(profile, model), config);
  const int64_t experts_per_rank = model.num_experts / run.parallelism.expert_parallel_degree;
  return ops::profile_routing(ops::RoutingProfile::parse(profile), config, experts_per_rank,
                              static_cast<uint64_t>(rank));
}

ops::RouteCounts routed_alike(ops::RoutingSource& routing, const model::ModelConfig& model, int64_t layer,
                              const ops::ChunkSplit& split, int64_t num_tokens, int64_t num_sources) {
  const auto ids_Nk = at::empty({num_tokens, model.num_experts_per_tok},
                                at::TensorOptions().device(at::kMeta).dtype(at::kInt));
  const std::vector<int64_t> tokens(num_tokens);
  const auto mine = routing.choose({layer, tokens, split}, ids_Nk, {}, {}, {});
  ops::RouteCounts counts{model.num_experts, {}, split};
  for (int64_t source = 0; source < num_sources; ++source)
    counts.routes.insert(counts.routes.end(), mine.begin(), mine.end());
  return counts;
}

}  // namespace steppe::plan
