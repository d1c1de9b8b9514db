#include "steppe/model/weights.h"

#include <fmt/format.h>

#include "steppe/base/error.h"
#include "steppe/kernels/pointwise.h"
#include "steppe/memory/scope.h"
#include "steppe/model/initialize.h"

namespace steppe::model {
namespace {

LogicalSlice whole(std::string tensor, std::vector<int64_t> shape, double std) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const bool matrix = shape.size() > 1;
  return {std::move(tensor), std::move(shape), 0, count, 0, matrix, matrix ? std : -1.0};
}

// Rows [interval) of a matrix of `rows` rows.
LogicalSlice rows_of(std::string tensor, int64_t rows, int64_t columns, layout::Interval interval,
                     double std) {
  return {
      std::move(tensor), {rows, columns}, interval.begin * columns, interval.size() * columns, 0, true, std};
}

std::string expert_tensor(int64_t layer, int64_t expert, const char* part) {
  return fmt::format("model.layers.{}.mlp.experts.{}.{}.weight", layer, expert, part);
}

const LogicalSlice* find_slice(const WeightUnit& unit, std::string_view ending) {
  for (const auto& slice : unit.slices()) {
    if (slice.tensor.ends_with(ending)) return &slice;
  }
  return nullptr;
}

// The slice as a tensor of its own shape, or undefined where the unit has none of that name.
at::Tensor view_of(const WeightUnit& unit, const at::Tensor& flat, std::string_view ending) {
  const auto* slice = find_slice(unit, ending);
  return slice == nullptr ? at::Tensor{} : flat.narrow(0, slice->unit_begin, slice->count).view(slice->shape);
}

// gate and up lie one behind the other.
ops::FeedForwardWeights feed_forward_views(const WeightUnit& unit, const at::Tensor& flat,
                                           const std::string& prefix) {
  const auto* gate = find_slice(unit, prefix + ".gate_proj.weight");
  if (gate == nullptr) return {};
  return {flat.narrow(0, gate->unit_begin, 2 * gate->count).view({2 * gate->shape[0], gate->shape[1]}),
          view_of(unit, flat, prefix + ".down_proj.weight")};
}

void add_feed_forward(WeightUnit& unit, const std::string& prefix, int64_t hidden, int64_t intermediate,
                      double std) {
  unit.add(whole(prefix + ".gate_proj.weight", {intermediate, hidden}, std), /*aligned=*/true);
  unit.add(whole(prefix + ".up_proj.weight", {intermediate, hidden}, std), /*aligned=*/false);
  unit.add(whole(prefix + ".down_proj.weight", {hidden, intermediate}, std), /*aligned=*/true);
}

}  // namespace

ModelWeights::ModelWeights(const ModelConfig& config, const layout::RankLayout& layout, comm::Groups& groups,
                           const ops::OpContext& context, const optim::StateOptions& state)
    : config_(config) {
  using layout::Axis;
  local_experts_ = layout::even_part(config.num_experts, layout.degree(Axis::kExpert),
                                     layout.index_in_group(Axis::kExpert));
  vocab_ =
      layout::even_part(config.vocab_size, layout.degree(Axis::kVocab), layout.index_in_group(Axis::kVocab));
  const double std = config.initializer_range;
  const auto add_table = [&](const char* unit, const char* tensor) {
    units_.emplace_back(unit, UnitKind::kReplicated, *groups.vocab_replicas);
    units_.back().add(rows_of(tensor, config.vocab_size, config.hidden_size, vocab_, std), true);
    return units_.size() - 1;
  };
  embedding_ = add_table("embedding", "model.embed_tokens.weight");
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    lay_out_dense(layer, groups);
    experts_.push_back(units_.size());
    if (!config.is_dense_layer(layer)) lay_out_experts(layer, groups);
  }
  units_.emplace_back("final_norm", UnitKind::kSharded, *groups.weights);
  units_.back().add(whole("model.norm.weight", {config.hidden_size}, std), true);
  final_norm_ = units_.size() - 1;
  head_ = config.tie_word_embeddings ? embedding_ : add_table("head", "lm_head.weight");
  allocate(context, state);

  const memory::Scope scope(memory::Category::kWeights);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    at::Tensor bias;
    if (!config.is_dense_layer(layer)) {
      bias = context.empty({config.num_experts}, at::kFloat);
      kernels::fill_zero(bias);
    }
    expert_biases_.push_back(std::move(bias));
  }
}

void ModelWeights::allocate(const ops::OpContext& context, const optim::StateOptions& state) {
  if (!state.rules.empty()) optim::check_rules(state.rules, parameter_names());
  int64_t state_numel = 0, grad_numel = 0;
  for (auto& unit : units_) {
    unit.finish_layout(state.rules);
    state_numel += unit.state_numel();
    grad_numel += unit.grad_numel();
  }
  state_ = std::make_unique<optim::StateMemory>(state, context, state_numel, grad_numel);
  for (auto& unit : units_) unit.allocate(context, *state_);
}

// Every rank has slices of every tensor but of the others' experts.
std::vector<std::string> ModelWeights::parameter_names() const {
  std::vector<std::string> names;
  for (const auto& unit : units_) {
    for (const auto& slice : unit.slices()) {
      if (slice.tensor.find(".mlp.experts.") == std::string::npos) names.push_back(slice.tensor);
    }
  }
  for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
    if (config_.is_dense_layer(layer)) continue;
    for (int64_t e = 0; e < config_.num_experts; ++e) {
      for (const char* part : {"gate_proj", "up_proj", "down_proj"})
        names.push_back(expert_tensor(layer, e, part));
    }
  }
  return names;
}

void ModelWeights::lay_out_dense(int64_t layer, comm::Groups& groups) {
  const auto& c = config_;
  const int64_t hidden = c.hidden_size, q = c.num_attention_heads * c.head_dim,
                kv = c.num_key_value_heads * c.head_dim;
  const double std = c.initializer_range;
  const auto prefix = fmt::format("model.layers.{}", layer);
  dense_.push_back(units_.size());
  units_.emplace_back(fmt::format("layer {} dense", layer), UnitKind::kSharded, *groups.weights);
  auto& unit = units_.back();
  const auto add = [&](const char* name, std::vector<int64_t> shape) {
    unit.add(whole(fmt::format("{}.{}.weight", prefix, name), std::move(shape), std), /*aligned=*/true);
  };
  add("input_layernorm", {hidden});
  add("self_attn.q_proj", {q, hidden});
  add("self_attn.k_proj", {kv, hidden});
  add("self_attn.v_proj", {kv, hidden});
  if (c.qk_norm != QkNorm::kNone) {
    const bool head = c.qk_norm == QkNorm::kHead;
    add("self_attn.q_norm", {head ? c.head_dim : q});
    add("self_attn.k_norm", {head ? c.head_dim : kv});
  }
  add("self_attn.o_proj", {hidden, q});
  add("post_attention_layernorm", {hidden});
  if (c.is_dense_layer(layer)) {
    add_feed_forward(unit, prefix + ".mlp", hidden, c.intermediate_size, std);
    return;
  }
  add("mlp.gate", {c.num_experts, hidden});
  if (c.shared_expert_intermediate_size > 0) {
    add_feed_forward(unit, prefix + ".mlp.shared_expert", hidden, c.shared_expert_intermediate_size, std);
  }
}

void ModelWeights::lay_out_experts(int64_t layer, comm::Groups& groups) {
  const int64_t hidden = config_.hidden_size, intermediate = config_.moe_intermediate_size;
  const double std = config_.initializer_range;
  units_.emplace_back(fmt::format("layer {} experts", layer), UnitKind::kReplicated, *groups.expert_replicas);
  auto& unit = units_.back();
  const auto add = [&](int64_t expert, const char* name, std::vector<int64_t> shape, bool aligned) {
    unit.add(whole(expert_tensor(layer, expert, name), std::move(shape), std), aligned);
  };
  // [E_l, 2I, H], then [E_l, H, I].
  for (int64_t e = local_experts_.begin; e < local_experts_.end; ++e) {
    add(e, "gate_proj", {intermediate, hidden}, false);
    add(e, "up_proj", {intermediate, hidden}, false);
  }
  for (int64_t e = local_experts_.begin; e < local_experts_.end; ++e) {
    add(e, "down_proj", {hidden, intermediate}, e == local_experts_.begin);
  }
}

DenseViews ModelWeights::dense_views(int64_t layer, const at::Tensor& flat) const {
  const auto& unit = units_[dense_[layer]];
  DenseViews v;
  v.input_norm_H = view_of(unit, flat, ".input_layernorm.weight");
  v.q_H = view_of(unit, flat, ".q_proj.weight");
  v.k_H = view_of(unit, flat, ".k_proj.weight");
  v.v_H = view_of(unit, flat, ".v_proj.weight");
  v.q_norm = view_of(unit, flat, ".q_norm.weight");
  v.k_norm = view_of(unit, flat, ".k_norm.weight");
  v.o_H = view_of(unit, flat, ".o_proj.weight");
  v.post_norm_H = view_of(unit, flat, ".post_attention_layernorm.weight");
  v.router_EH = view_of(unit, flat, ".mlp.gate.weight");
  v.feed_forward = feed_forward_views(unit, flat, ".mlp");
  v.shared_expert = feed_forward_views(unit, flat, ".shared_expert");
  return v;
}

namespace {

at::Tensor gate_up_view(const at::Tensor& flat, const WeightUnit& unit, int64_t experts, int64_t intermediate,
                        int64_t hidden) {
  const int64_t begin = unit.slices().front().unit_begin;
  return flat.narrow(0, begin, experts * 2 * intermediate * hidden).view({experts, 2 * intermediate, hidden});
}

at::Tensor down_view(const at::Tensor& flat, const WeightUnit& unit, int64_t experts, int64_t intermediate,
                     int64_t hidden) {
  const int64_t begin = unit.slices()[2 * experts].unit_begin;
  return flat.narrow(0, begin, experts * intermediate * hidden).view({experts, hidden, intermediate});
}

}  // namespace

ops::ExpertWeights ModelWeights::expert_weights(int64_t layer) {
  const auto& unit = experts(layer);
  const int64_t count = local_experts_.size(), i = config_.moe_intermediate_size, h = config_.hidden_size;
  return {gate_up_view(unit.working(), unit, count, i, h), down_view(unit.working(), unit, count, i, h)};
}

ops::ExpertGradients ModelWeights::expert_gradients(int64_t layer, const at::Tensor& flat) {
  const auto& unit = experts(layer);
  const int64_t count = local_experts_.size(), i = config_.moe_intermediate_size, h = config_.hidden_size;
  return {gate_up_view(flat, unit, count, i, h), down_view(flat, unit, count, i, h)};
}

at::Tensor ModelWeights::table_view(const at::Tensor& flat) const {
  return flat.narrow(0, 0, vocab_.size() * config_.hidden_size).view({vocab_.size(), config_.hidden_size});
}

std::vector<const optim::ParameterShard*> ModelWeights::shards() const {
  std::vector<const optim::ParameterShard*> shards;
  for (const auto& unit : units_) shards.push_back(&unit.shard());
  return shards;
}

void ModelWeights::initialize(uint64_t seed) {
  for (auto& unit : units_) initialize_unit(unit, seed);
}

int64_t ModelWeights::num_local_parameters() const {
  int64_t count = 0;
  for (const auto& unit : units_) count += unit.working().numel();
  return count;
}

}  // namespace steppe::model
