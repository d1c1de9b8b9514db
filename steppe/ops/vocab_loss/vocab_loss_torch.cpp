// The vocabulary loss for PyTorch programs: torch.ops.steppe.vocab_loss (python/steppe/ops is its Python
// face). The forward computes both gradients, the backward scales them, once: kept between the two are N·H·b
// and 4·v·H bytes. Where no gradient is wanted, none is computed.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>

#include "steppe/base/error.h"
#include "steppe/comm/local_communicator.h"
#include "steppe/layout/layout.h"
#include "steppe/ops/vocab_loss/process_group_communicator.h"
#include "steppe/ops/vocab_loss/vocab_loss_pair.h"

namespace steppe::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

struct TorchCall {
  at::Tensor x_NH, weight_vH, targets_N, row_weight_N;
  int64_t vocab_size = 0;
  VocabLossOptions options;
  Group group;  // null: alone
};

struct TorchResult {
  at::Tensor loss;  // fp32 scalar: Σ row_weight · row_loss over this rank's rows
  VocabLossSaved saved;
};

VocabLossOptions options_of(const std::string& kind, const std::string& circulate, int64_t tile_tokens,
                            double softcap, double z_loss_coeff) {
  static const std::map<std::string, VocabLossKind> kinds{{"auto", VocabLossKind::kAuto},
                                                          {"tiled", VocabLossKind::kTiled},
                                                          {"ring", VocabLossKind::kRing},
                                                          {"vocab_parallel", VocabLossKind::kVocabParallel},
                                                          {"full", VocabLossKind::kFull}};
  static const std::map<std::string, Circulate> directions{
      {"auto", Circulate::kAuto}, {"activations", Circulate::kActivations}, {"weights", Circulate::kWeights}};
  STEPPE_CHECK_VALUE(kinds.contains(kind),
                     "[vocab_loss] kind must be auto, tiled, ring, vocab_parallel or full, got {}", kind);
  STEPPE_CHECK_VALUE(directions.contains(circulate),
                     "[vocab_loss] circulate must be auto, activations or weights, got {}", circulate);
  STEPPE_CHECK_VALUE(
      tile_tokens >= 0 && softcap >= 0 && z_loss_coeff >= 0,
      "[vocab_loss] tile_tokens, softcap and z_loss_coeff must not be negative, got {}, {}, {}", tile_tokens,
      softcap, z_loss_coeff);
  VocabLossOptions options(kinds.at(kind));
  options.circulate = directions.at(circulate);
  options.tile_tokens = tile_tokens;
  options.loss_shape = {softcap, z_loss_coeff};
  return options;
}

std::unique_ptr<comm::Communicator> communicator(const TorchCall& call) {
  if (call.group && call.group->getSize() > 1) return std::make_unique<ProcessGroupCommunicator>(call.group);
  return std::make_unique<comm::LocalCommunicator>("alone", call.x_NH.device().type());
}

TorchResult compute(const TorchCall& call, bool wants_gradient) {
  STEPPE_CHECK_VALUE(call.x_NH.dim() == 2, "[vocab_loss] x must be a matrix [N, H], got {} dims",
                     call.x_NH.dim());
  const auto group = communicator(call);
  const auto columns = layout::even_part(call.vocab_size, group->size(), group->rank());
  const std::array<int64_t, 1> rows{call.x_NH.size(0)};
  const auto rows_of_rank = group->all_gather_host(rows);
  Counters counters;
  const OpContext context{call.x_NH.device(), call.x_NH.scalar_type(), &counters};
  VocabLossInput input{.x_NH = call.x_NH.contiguous(),
                       .targets_N = call.targets_N.contiguous(),
                       .row_weight_N = call.row_weight_N.contiguous(),
                       .weight_vH = call.weight_vH.contiguous(),
                       .vocab_size = call.vocab_size,
                       .first_column = columns.begin,
                       .rows_of_rank = rows_of_rank,
                       .host_targets = {},
                       .targets_of_rank = {}};
  std::vector<int64_t> targets_of_rank;
  if (input.targets_N.is_cpu() && input.targets_N.scalar_type() == at::kInt) {
    // They lie on the host: rows without one can be left out.
    input.host_targets = {input.targets_N.const_data_ptr<int32_t>(), static_cast<size_t>(rows[0])};
    const std::array<int64_t, 1> kept{std::count_if(input.host_targets.begin(), input.host_targets.end(),
                                                    [](int32_t target) { return target >= 0; })};
    targets_of_rank = group->all_gather_host(kept);
    input.targets_of_rank = targets_of_rank;
  }
  const auto sum = at::zeros({1}, input.x_NH.options().dtype(at::kDouble));
  const auto row_loss = at::empty({rows[0]}, input.x_NH.options().dtype(at::kFloat));
  TorchResult result;
  if (wants_gradient) {
    result.saved = vocab_loss_forward(call.options, context, *group, input, sum, row_loss);
  } else {
    vocab_loss(call.options, context, *group, input, {sum, row_loss, {}, {}});
  }
  result.loss = row_loss.to(at::kDouble).mul_(input.row_weight_N).sum().to(at::kFloat);
  return result;
}

class VocabLossFunction : public torch::autograd::Function<VocabLossFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& weight,
                          const at::Tensor& targets, const at::Tensor& row_weight, int64_t vocab_size,
                          const VocabLossOptions& options, const Group& group) {
    auto result = compute({x, weight, targets, row_weight, vocab_size, options, group}, true);
    context->saved_data["dx"] = result.saved.dx_NH;
    context->saved_data["grad_weight"] = result.saved.grad_weight_vH;
    context->saved_data["weight_dtype"] = static_cast<int64_t>(weight.scalar_type());
    return result.loss;
  }

  static variable_list backward(AutogradContext* context, const variable_list& upstream) {
    auto& data = context->saved_data;
    STEPPE_CHECK_VALUE(
        data.count("dx") == 1,
        "[vocab_loss] backward must be called once: the gradients of the forward are scaled in "
        "place, and gone");
    const VocabLossSaved saved{data["dx"].toTensor(), data["grad_weight"].toTensor()};
    data.erase("dx");
    data.erase("grad_weight");
    vocab_loss_backward(saved, upstream[0].item<double>());
    const auto weight_dtype = static_cast<at::ScalarType>(data["weight_dtype"].toInt());
    return {saved.dx_NH, saved.grad_weight_vH.to(weight_dtype), {}, {}, {}, {}, {}};
  }
};

at::Tensor vocab_loss_torch(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                            const at::Tensor& row_weight, int64_t vocab_size, const std::string& kind,
                            const std::string& circulate, int64_t tile_tokens, double softcap,
                            double z_loss_coeff, const std::optional<Group>& group) {
  try {
    const auto options = options_of(kind, circulate, tile_tokens, softcap, z_loss_coeff);
    const Group members = group.value_or(Group());
    // In a group, all ranks or none.
    const bool wants_gradient = at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad());
    if (!wants_gradient)
      return compute({x, weight, targets, row_weight, vocab_size, options, members}, false).loss;
    return VocabLossFunction::apply(x, weight, targets, row_weight, vocab_size, options, members);
  } catch (const ValueError& mistake) {
    TORCH_CHECK_VALUE(false, mistake.what());  // Python's ValueError
  }
}

}  // namespace

TORCH_LIBRARY(steppe, library) {
  library.def(
      "vocab_loss(Tensor x, Tensor weight, Tensor targets, Tensor row_weight, int vocab_size, *, "
      "str kind='auto', str circulate='auto', int tile_tokens=0, float softcap=0.0, float z_loss_coeff=0.0, "
      "__torch__.torch.classes.c10d.ProcessGroup? group=None) -> Tensor",
      &vocab_loss_torch);
}

}  // namespace steppe::ops
