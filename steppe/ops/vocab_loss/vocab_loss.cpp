#include "steppe/ops/vocab_loss/vocab_loss.h"

#include <algorithm>

#include "steppe/base/error.h"
#include "steppe/layout/layout.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/product.h"
#include "steppe/ops/vocab_loss/vocab_loss_kinds.h"

namespace steppe::ops {
namespace {

constexpr int64_t kMinTileBytes = int64_t{32} << 20;
// What a byte on the wire costs in floating-point operations where auto has to compare them: 500 Tflop/s over
// 50 GB/s, an accelerator of today on its network.
constexpr double kFlopsPerWireByte = 1e4;

int64_t largest_shard(const VocabLossShape& shape) {
  return (shape.vocab_size + shape.degree - 1) / shape.degree;
}

Circulate resolve_circulate(Circulate wanted, const VocabLossShape& shape) {
  if (wanted != Circulate::kAuto) return wanted;
  return shape.max_rows > largest_shard(shape) ? Circulate::kWeights : Circulate::kActivations;
}

// Activations to and fro, P − 1 times.
double tiled_wire_bytes(const VocabLossShape& s) {
  return 2.0 * static_cast<double>((s.degree - 1) * s.max_rows * s.hidden * s.itemsize);
}

// Weights P − 1 times in each pass, their fp32 gradient P times.
double weight_ring_wire_bytes(const VocabLossShape& s) {
  return static_cast<double>(largest_shard(s) * s.hidden) *
         static_cast<double>(2 * (s.degree - 1) * s.itemsize + 4 * s.degree);
}

VocabLossKind resolve_auto(const VocabLossShape& s) {
  const double product = 2.0 * static_cast<double>(s.max_rows * s.hidden) * static_cast<double>(s.vocab_size);
  const double saved = tiled_wire_bytes(s) - weight_ring_wire_bytes(s);
  return s.degree > 1 && saved * kFlopsPerWireByte > product ? VocabLossKind::kRing : VocabLossKind::kTiled;
}

void check_vector(const at::Tensor& x, const char* name, int64_t rows, at::ScalarType dtype) {
  STEPPE_CHECK_VALUE(
      x.defined() && x.dim() == 1 && x.size(0) == rows && x.scalar_type() == dtype && x.is_contiguous(),
      "[vocab_loss] {} must be a contiguous {} [N={}]", name, c10::toString(dtype), rows);
}

void check_matrix(const at::Tensor& x, const char* name, int64_t rows, int64_t columns,
                  at::ScalarType dtype) {
  STEPPE_CHECK_VALUE(x.defined() && x.dim() == 2 && x.size(0) == rows && x.size(1) == columns &&
                         x.scalar_type() == dtype && x.is_contiguous(),
                     "[vocab_loss] {} must be a contiguous {} [{}, {}]", name, c10::toString(dtype), rows,
                     columns);
}

void check_group(const comm::Communicator& group, const VocabLossInput& in, int64_t rows) {
  const auto degree = static_cast<size_t>(group.size());
  STEPPE_CHECK_VALUE(in.rows_of_rank.size() == degree && in.rows_of_rank[group.rank()] == rows,
                     "[vocab_loss] rows_of_rank must have {} entries, this rank's being N={}", degree, rows);
  const auto columns = layout::even_part(in.vocab_size, group.size(), group.rank());
  STEPPE_CHECK_VALUE(in.first_column == columns.begin && in.weight_vH.size(0) == columns.size(),
                     "[vocab_loss] rank {} of {} owns columns [{}, {}) of {}, got {} from {}", group.rank(),
                     degree, columns.begin, columns.end, in.vocab_size, in.weight_vH.size(0),
                     in.first_column);
  if (in.host_targets.empty() && in.targets_of_rank.empty()) return;
  const auto kept =
      std::count_if(in.host_targets.begin(), in.host_targets.end(), [](int32_t t) { return t >= 0; });
  STEPPE_CHECK_VALUE(
      static_cast<int64_t>(in.host_targets.size()) == rows && in.targets_of_rank.size() == degree &&
          in.targets_of_rank[group.rank()] == kept,
      "[vocab_loss] host_targets must have N={} entries, and targets_of_rank {}, this rank's being {}", rows,
      degree, kept);
}

void check(const OpContext& context, const comm::Communicator& group, const VocabLossInput& in,
           const VocabLossOutput& out) {
  STEPPE_CHECK_VALUE(in.x_NH.defined() && in.x_NH.dim() == 2, "[vocab_loss] x must be a matrix [N, H]");
  STEPPE_CHECK_VALUE(in.weight_vH.defined() && in.weight_vH.dim() == 2,
                     "[vocab_loss] weight must be a matrix [v, H]");
  const int64_t rows = in.x_NH.size(0), hidden = in.x_NH.size(1), v = in.weight_vH.size(0);
  check_matrix(in.x_NH, "x", rows, hidden, context.dtype);
  check_matrix(in.weight_vH, "weight", v, hidden, context.dtype);
  check_vector(in.targets_N, "targets", rows, at::kInt);
  check_group(group, in, rows);
  STEPPE_CHECK_VALUE(
      out.loss_1.defined() && out.loss_1.numel() == 1 && out.loss_1.scalar_type() == at::kDouble,
      "[vocab_loss] loss must be one fp64 value");
  if (out.row_loss_N.defined()) check_vector(out.row_loss_N, "row_loss", rows, at::kFloat);
  STEPPE_CHECK_VALUE(out.dx_NH.defined() == out.grad_weight_vH.defined(),
                     "[vocab_loss] dx and grad_weight must be given both, or neither");
  if (!out.dx_NH.defined()) return;
  check_vector(in.row_weight_N, "row_weight", rows, at::kFloat);
  check_matrix(out.dx_NH, "dx", rows, hidden, context.dtype);
  check_matrix(out.grad_weight_vH, "grad_weight", v, hidden, at::kFloat);
}

}  // namespace

VocabLossOptions resolve_kind(const VocabLossOptions& options, const VocabLossShape& shape) {
  auto resolved = options;
  if (options.kind == VocabLossKind::kAuto) {
    resolved.kind = resolve_auto(shape);
    resolved.circulate = Circulate::kWeights;  // the only ring that auto picks
  } else {
    resolved.circulate = resolve_circulate(options.circulate, shape);
  }
  return resolved;
}

int64_t resolve_tile_tokens(const VocabLossOptions& options, const VocabLossShape& shape) {
  if (options.tile_tokens > 0) return options.tile_tokens;
  const int64_t v = largest_shard(shape);
  const int64_t budget = std::max(kMinTileBytes, 4 * v * shape.hidden / 2);
  // Beside the strip: two gathered tiles, the partial dx and what is received of it; in the ring, the partial
  // dx.
  const bool ring = options.kind == VocabLossKind::kRing;
  const int64_t beside = ring ? 1 : shape.degree > 1 ? 4 : 0;
  const int64_t row_bytes = std::max<int64_t>(1, shape.itemsize * (v + beside * shape.hidden));
  const int64_t rows = budget / row_bytes / (ring ? 1 : shape.degree);
  return rows > 16 ? rows / 16 * 16 : std::max<int64_t>(1, rows);
}

void VocabLossCall::project(const at::Tensor& strip, const at::Tensor& x, const at::Tensor& weight) const {
  product(context, FlopKind::kVocab, strip, x, weight.t());
  if (loss_shape.softcap > 0) kernels::soft_cap(strip, loss_shape.softcap);
}

void VocabLossCall::add_loss(const at::Tensor& row_loss, const at::Tensor& stats,
                             const at::Tensor& targets) const {
  kernels::add_loss(out.loss_1, row_loss, stats, targets, {}, loss_shape);
}

void VocabLossCall::to_gradient(const at::Tensor& strip, const at::Tensor& stats, const at::Tensor& targets,
                                const at::Tensor& row_weight, int64_t first_column) const {
  kernels::logits_to_gradient(strip, stats, targets, row_weight, first_column, loss_shape);
}

void vocab_loss(const VocabLossOptions& options, const OpContext& context, comm::Communicator& group,
                const VocabLossInput& input, const VocabLossOutput& output) {
  const memory::Scope scope(memory::Category::kVocab);
  check(context, group, input, output);
  const VocabLossShape shape{input.x_NH.size(1), input.vocab_size, group.size(),
                             *std::max_element(input.rows_of_rank.begin(), input.rows_of_rank.end()),
                             context.itemsize()};
  const auto resolved = resolve_kind(options, shape);
  const auto tile_tokens = resolve_tile_tokens(resolved, shape);
  auto loss_shape = options.loss_shape;
  if (!output.dx_NH.defined()) loss_shape.z_loss_coeff = 0;
  const VocabLossCall call{context, group, input, output, loss_shape};
  switch (resolved.kind) {
    case VocabLossKind::kVocabParallel:
      return vocab_parallel_loss(call);
    case VocabLossKind::kFull:
      return full_loss(call);
    case VocabLossKind::kRing:
      return ring_loss(call, tile_tokens, resolved.circulate);
    case VocabLossKind::kTiled:
    case VocabLossKind::kAuto:
      return tiled_loss(call, tile_tokens);
  }
}

}  // namespace steppe::ops
