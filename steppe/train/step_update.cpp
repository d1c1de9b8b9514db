#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "steppe/base/error.h"
#include "steppe/kernels/pointwise.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/host_copy.h"
#include "steppe/train/gradient_buffer.h"
#include "steppe/train/step.h"

namespace steppe::train {
using memory::Category;

namespace {

// What a rank tells the others at the end of a step, as 64-bit words; doubles by their bits.
struct Words {
  std::vector<int64_t> words;
  void push(double value) { words.push_back(std::bit_cast<int64_t>(value)); }
};

template <class T>
std::vector<T> to_host(const at::Tensor& values) {
  std::vector<T> out(values.numel(), T{0});
  if (!values.is_meta()) {
    at::from_blob(out.data(), {values.numel()}, values.scalar_type()).copy_(values);
  }
  return out;
}

// The first layer, and in it the first rank, with values that are not finite. counts [rank][layer].
std::string first_nonfinite(const std::vector<std::vector<int64_t>>& counts, int64_t num_layers) {
  for (int64_t layer = 0; layer <= num_layers; ++layer) {
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      const int64_t count = counts[rank][layer];
      if (count == 0) continue;
      return layer < num_layers
                 ? fmt::format("layer {} on rank {} ({} values of its output)", layer, rank, count)
                 : fmt::format("the output head on rank {} ({} values of its gradient)", rank, count);
    }
  }
  return {};
}

}  // namespace

void Step::finish_gradients() {
  begin_phase("gradients over replicas");
  gradients_.finish();
}

// The communicators count what they send; here it goes to the counters, by purpose.
void Step::count_wire_bytes() {
  auto& wire = context_.counters->wire_bytes;
  wire[WirePurpose::kWeights] = groups_.weights->wire_bytes();
  wire[WirePurpose::kGradients] = groups_.gradients->wire_bytes();
  wire[WirePurpose::kReplicas] = groups_.expert_replicas->wire_bytes() + groups_.vocab_replicas->wire_bytes();
  wire[WirePurpose::kSequence] = groups_.sequence->wire_bytes();
  wire[WirePurpose::kDispatch] = groups_.expert->wire_bytes();
  wire[WirePurpose::kVocab] = groups_.vocab->wire_bytes();
  wire[WirePurpose::kControl] = groups_.control->wire_bytes();
}

void Step::collect(const Accumulators& sums, StepResult& result) {
  const int64_t num_layers = model_.num_hidden_layers;
  Words own;
  own.push(to_host<double>(sums.loss_1)[0]);
  double squares_of_units = 0;
  for (const double squares_of_unit : to_host<double>(sums.square_sums_U))
    squares_of_units += squares_of_unit;
  own.push(squares_of_units);
  own.push(sums.balance_1.defined() ? to_host<float>(sums.balance_1)[0] : 0.0);
  own.push(sums.router_squares_1.defined() ? to_host<double>(sums.router_squares_1)[0] : 0.0);
  for (const int64_t count : to_host<int64_t>(sums.nonfinite_layers)) own.words.push_back(count);
  for (const auto& layer : local_load_) own.words.insert(own.words.end(), layer.begin(), layer.end());
  const auto all = groups_.control->all_gather_host(own.words);

  for (const auto& layer : local_load_) result.expert_load.emplace_back(layer.size(), 0);
  double loss = 0, squares = 0, router_squares = 0;
  std::vector<std::vector<int64_t>> nonfinite;
  for (auto word = all.begin(); word != all.end();) {
    loss += std::bit_cast<double>(*word++);
    squares += std::bit_cast<double>(*word++);
    result.balance_loss += std::bit_cast<double>(*word++);
    router_squares += std::bit_cast<double>(*word++);
    nonfinite.emplace_back(word, word + num_layers + 1);
    word += num_layers + 1;
    for (auto& layer : result.expert_load) {
      for (auto& count : layer) count += *word++;
    }
  }
  count_wire_bytes();
  result.loss = result.num_targets > 0 ? loss / static_cast<double>(result.num_targets) : 0.0;
  if (result.num_tokens > 0)
    result.router_z_loss = config_.router_z_coeff * router_squares / static_cast<double>(result.num_tokens);
  result.grad_norm = std::sqrt(squares);
  result.applied = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  result.nonfinite = first_nonfinite(nonfinite, num_layers);
  if (!result.applied && result.nonfinite.empty()) result.nonfinite = first_nonfinite_gradient();
}

// Looked for only once the norm is known to be bad, which all ranks agree on. Collective over all ranks. A
// summed gradient is bad wherever its shard lies; an expert's names the ranks that hold the expert.
std::string Step::first_nonfinite_gradient() {
  const memory::Scope scope(Category::kControl);
  std::vector<model::WeightUnit*> in_backward_order = {&weights_.head(), &weights_.final_norm()};
  for (int64_t layer = model_.num_hidden_layers - 1; layer >= 0; --layer) {
    if (!model_.is_dense_layer(layer)) in_backward_order.push_back(&weights_.experts(layer));
    in_backward_order.push_back(&weights_.dense(layer));
  }
  in_backward_order.push_back(&weights_.embedding());

  const auto num_units = static_cast<int64_t>(in_backward_order.size());
  optimizer_.wait_for_state();  // gradients in host memory have arrived there
  const auto where = weights_.units().front().grad().options();
  const auto counts = at::empty({num_units}, where.dtype(at::kLong));
  kernels::fill_zero(counts);
  for (int64_t u = 0; u < num_units; ++u) {
    kernels::add_nonfinite_count(counts.narrow(0, u, 1), in_backward_order[u]->shard().grad);
  }
  const auto all = groups_.control->all_gather_host(to_host<int64_t>(counts));
  for (int64_t u = 0; u < num_units; ++u) {
    for (int64_t rank = 0; rank < groups_.control->size(); ++rank) {
      const int64_t count = all[rank * num_units + u];
      if (count == 0) continue;
      return fmt::format("the gradient of {} on rank {} ({} values); every layer's output is finite",
                         in_backward_order[u]->name(), rank, count);
    }
  }
  return "the gradient norm, which overflows; every gradient is finite";
}

void Step::update(StepResult& result, double lr, int64_t step) {
  if (!result.applied) {
    STEPPE_CHECK(
        config_.skip_nonfinite,
        "[step] step {}: loss {} or gradient norm {} is not finite; first seen in {}. To skip such steps: "
        "training.on_nonfinite = \"skip\"",
        step, result.loss, result.grad_norm, result.nonfinite);
    return;
  }
  begin_phase("optimizer");
  optimizer_.step({lr, optim::clip_scale(result.grad_norm, config_.max_grad_norm), step});
  for (auto& unit : weights_.units()) unit.refresh_working();
  if (config_.bias_update_rate > 0) update_biases(result);
  count_wire_bytes();
}

void Step::update_biases(const StepResult& result) {
  const memory::Scope scope(memory::Category::kControl);
  const double rate = config_.bias_update_rate;
  for (int64_t layer = 0; layer < model_.num_hidden_layers; ++layer) {
    const auto& load = result.expert_load[layer];
    if (load.empty()) continue;
    double mean = 0;
    for (const int64_t count : load) mean += static_cast<double>(count);
    mean /= static_cast<double>(load.size());
    std::vector<float> change(load.size());
    for (size_t e = 0; e < load.size(); ++e) {
      const double gap = mean - static_cast<double>(load[e]);
      change[e] = static_cast<float>(gap > 0 ? rate : gap < 0 ? -rate : 0.0);
    }
    kernels::add_to(weights_.expert_biases()[layer], ops::upload(context_, change));
  }
}

}  // namespace steppe::train
