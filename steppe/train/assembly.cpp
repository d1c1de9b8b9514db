#include "steppe/train/assembly.h"

#include "steppe/model/hugging_face_config.h"
#include "steppe/train/configure.h"

namespace steppe::train {
namespace {

std::unique_ptr<ops::RoutingSource> routing_source(const recipe::RunConfig& run,
                                                   const model::ModelConfig& model) {
  if (!run.router.force_load_balancing) return std::make_unique<ops::TopKRouting>();
  return std::make_unique<ops::GivenRouting>(
      ops::balanced_routing({model.num_experts, model.num_experts_per_tok, model.norm_topk_prob}));
}

StepConfig step_config_of(const recipe::RunConfig& run, const RankShape& shape,
                          std::optional<offload::OutputBudgets> attention_output_bytes) {
  auto config = step_config(run);
  config.offload = offload_config(run, shape.model, shape.layout_config, attention_output_bytes);
  return config;
}

}  // namespace

RankShape::RankShape(const recipe::RunConfig& run, int rank, int world_size)
    : model(model::model_config(run.model)),
      layout_config(train::layout_config(run, world_size)),
      layout(layout_config, rank, layout_constraints(model)) {}

Assembly::Assembly(const recipe::RunConfig& run, const RankShape& shape, at::Device device,
                   comm::Groups given_groups, std::unique_ptr<ops::RoutingSource> given_routing,
                   std::optional<offload::OutputBudgets> attention_output_bytes)
    : context{device, compute_dtype(run), &counters},
      groups(std::move(given_groups)),
      weights(shape.model, shape.layout, groups, context, state_options(run)),
      routing(given_routing ? std::move(given_routing) : routing_source(run, shape.model)),
      step(step_config_of(run, shape, attention_output_bytes), shape.model, shape.layout, groups, context,
           weights, *routing) {}

}  // namespace steppe::train
