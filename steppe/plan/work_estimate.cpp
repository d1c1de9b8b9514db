#include "steppe/plan/work_estimate.h"

#include <algorithm>

#include "steppe/kernels/adamw.h"
#include "steppe/train/configure.h"

namespace steppe::plan {
namespace {

using offload::OutputPlacement;

// Of a step.
struct Volume {
  int64_t tokens = 0;     // of the fullest rank
  int64_t routed = 0;     // rows that an even routing brings a rank, of a layer
  int64_t sequences = 0;  // that the fullest rank's group takes, one after another
  int64_t micro_batches = 0;
};

Volume volume_of(const recipe::RunConfig& run, const Sizes& s) {
  const auto shape = train::batch_shape(run, s.shape.layout_config);
  Volume volume;
  volume.sequences = (shape.global_batch_size + shape.num_groups - 1) / shape.num_groups;
  volume.tokens = volume.sequences * run.training.seq_length / s.D;
  volume.routed = shape.global_batch_size * run.training.seq_length / s.W * s.k;
  volume.micro_batches = s.num_micro_batches;
  return volume;
}

// A rank's share of what a group exchanges stays at home.
int64_t sent(int64_t bytes, int64_t degree) {
  return bytes / degree * (degree - 1);
}

int64_t feed_forward_width(const Sizes& s, int64_t layer) {
  const auto& m = s.shape.model;
  return m.is_dense_layer(layer) ? m.intermediate_size : m.shared_expert_intermediate_size;
}

// Forward, its recomputation, and two products of backward for each of forward.
void add_products(const recipe::RunConfig& run, const Sizes& s, const Volume& v, Tally<FlopKind>& flops) {
  const int64_t again = s.keeps_all() ? 0 : 1, S = run.training.seq_length;
  const int64_t pairs = v.sequences * (S * (S + 1) / 2) / s.D;
  for (int64_t layer = 0; layer < s.L; ++layer) {
    flops.add(FlopKind::kDense, (3 + again) * 2 * v.tokens * s.H * (2 * s.q_width + 2 * s.kv_width));
    flops.add(FlopKind::kDense, (3 + again) * 6 * v.tokens * s.H * feed_forward_width(s, layer));
    const int64_t forwards = again == 1 && !s.keeps_output(layer) ? 2 : 1;
    flops.add(FlopKind::kAttention, (4 * forwards + 10) * pairs * s.q_width);
    if (s.shape.model.is_dense_layer(layer)) continue;
    flops.add(FlopKind::kRouter, (3 + again) * 2 * v.tokens * s.H * s.E);
    flops.add(FlopKind::kExpert, (18 + 4 * again) * v.routed * s.H * s.I);  // the down projection runs once
  }
  flops.add(FlopKind::kVocab, 6 * v.tokens * s.H * s.V);
}

void add_exchanges(const Sizes& s, const Volume& v, Tally<WirePurpose>& wire) {
  const int64_t rows = v.routed * s.H * s.b * num_moe_layers(s);
  // Rows go again in front of the backward, unless the layer kept them: those of chunks it does not.
  const int64_t exchanges = s.keeps_all() && s.expected.num_chunks == 1 ? 4 : 5;
  wire.add(WirePurpose::kDispatch, exchanges * sent(rows, s.Ep));
  // Weights of foreign experts in either pass; their gradients go home.
  const int64_t expert = 3 * s.H * s.I;
  wire.add(WirePurpose::kDispatch,
           v.micro_batches * expert * (2 * s.expected.lent * s.b + s.expected.borrowed * s.g));
  const int64_t heads = 2 * s.q_width + 2 * std::max(s.kv_width, s.D * s.d);
  wire.add(WirePurpose::kSequence, (s.keeps_all() ? 2 : 3) * s.L * sent(v.tokens * heads * s.b, s.D));
  wire.add(WirePurpose::kVocab, 2 * v.tokens * s.H * s.b * (s.P - 1) + 2 * sent(v.tokens * s.H * s.b, s.P));
}

void add_weights(const Sizes& s, const Volume& v, Tally<WirePurpose>& wire) {
  const int64_t dense = sent(dense_of_all_layers(s), s.W);
  wire.add(WirePurpose::kWeights, 2 * v.micro_batches * dense * s.b);
  wire.add(WirePurpose::kGradients, v.micro_batches * dense * s.b);
  // Gradients to their owners, working weights back.
  const int64_t experts = num_moe_layers(s) * expert_unit(s), tables = num_tables(s) * table_unit(s);
  wire.add(WirePurpose::kReplicas, (s.g + s.b) * (sent(experts, s.W / s.Ep) + sent(tables, s.W / s.P)));
}

void add_copies(const recipe::RunConfig& run, const Sizes& s, const Volume& v, LinkTally& link) {
  const int64_t boundary = v.tokens * s.H * s.b;
  const int64_t output = v.tokens * (s.q_width * s.b + 4 * s.q_width / s.d);
  const auto outputs = std::count(s.offload.attention_outputs.begin(), s.offload.attention_outputs.end(),
                                  OutputPlacement::kHost);
  for (const auto way : {LinkDirection::kHostToDevice, LinkDirection::kDeviceToHost}) {
    link[way].add(LinkPurpose::kBoundary, s.host_boundaries * boundary);
    link[way].add(LinkPurpose::kSaved, outputs * output);
  }
  if (run.optimizer.gradients != "host") return;
  const int64_t gradients = s.g * accumulated(s);
  link[LinkDirection::kHostToDevice].add(LinkPurpose::kGradients, (v.micro_batches - 1) * gradients);
  link[LinkDirection::kDeviceToHost].add(LinkPurpose::kGradients,
                                         (v.micro_batches - 1) * gradients + s.g * owned(s));
}

}  // namespace

StepWork estimated_work(const recipe::RunConfig& run, const Sizes& s) {
  const auto volume = volume_of(run, s);
  auto work = update_work(run.optimizer, owned(s), {s.b, s.g});
  work.update.flops.add(FlopKind::kOptimizer, kernels::kAdamWFlops * owned(s));
  add_products(run, s, volume, work.passes.flops);
  add_exchanges(s, volume, work.passes.wire_bytes);
  add_weights(s, volume, work.passes.wire_bytes);
  add_copies(run, s, volume, work.passes.link_bytes);
  return work;
}

}  // namespace steppe::plan
