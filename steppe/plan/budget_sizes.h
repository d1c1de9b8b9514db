// The sizes that the terms of a budget are made of.
#pragma once

#include <cstdint>
#include <optional>

#include "steppe/offload/offload_config.h"
#include "steppe/ops/moe_dispatch/moe_dispatch.h"
#include "steppe/optim/state_memory.h"
#include "steppe/plan/budget.h"
#include "steppe/train/assembly.h"

namespace steppe::plan {

// Rows that a layer's routing brings a rank, and what it then needs.
struct RoutedRows {
  int64_t received = 0;  // in all
  int64_t at_once = 0;   // of the own experts or of the foreign ones, whichever are more; one takes its turn
  int64_t slot = 0;      // of a slot, with chunks
  int64_t tile = 0;      // of an expert tile, with chunks
  int64_t chunk_sent = 0;  // k·c: routes of this rank in a chunk
  int64_t num_chunks = 1;
  int64_t helped = 0;  // foreign experts
  bool moves = false;  // an expert's rows leave their home
  bool sends_home = false;
  // Over all layers: foreign experts on this rank, and this rank's own that are foreign to others.
  int64_t borrowed = 0, lent = 0;
};

struct Sizes {
  train::RankShape shape;
  train::StepConfig step;
  optim::StateOptions state;
  offload::OffloadConfig offload;
  int num_threads = 1;
  bool as_cuda = false;
  int64_t num_documents = 1;  // of a row
  int64_t b = 2;              // bytes a value
  int64_t g = 4;              // of a gradient accumulator
  int64_t n = 0, row = 0;     // N, S
  int64_t longest_document = 0;
  int64_t num_micro_batches = 1;
  // Of the micro-batch that these are the sizes of: it adds to an earlier one's gradients; it is the step's
  // last.
  bool adds_to_gradients = false, is_last = true;
  int64_t W = 1, D = 1, Ep = 1, P = 1;
  int64_t L = 0, H = 0, E = 0, k = 0, I = 0, V = 0;
  int64_t vocab_rows = 0;             // V/P
  int64_t q_width = 0, kv_width = 0;  // hq·d, hk·d
  int64_t heads_each = 0, kv_heads_each = 0, d = 0;
  int64_t expert_tile_rows = 0;  // 0: no limit
  int64_t host_boundaries = 0;   // layers whose input leaves the device
  int64_t frozen = 0;            // elements of this rank's shards that have no masters and moments
  RoutedRows expected, guaranteed;

  bool fp32() const { return b == 4; }
  bool narrow_gradients() const { return g < 4; }
  bool keeps_all() const { return step.recompute == train::Recompute::kNone; }
  offload::OutputPlacement output_of(int64_t layer) const {
    return offload.attention_outputs.empty() ? offload::OutputPlacement::kRecompute
                                             : offload.attention_outputs[layer];
  }
  bool keeps_output(int64_t layer) const { return output_of(layer) != offload::OutputPlacement::kRecompute; }
};

// `routed_alike`: sizes of a run whose layers route the same, whose rows need not be counted again.
Sizes sizes_of(const recipe::RunConfig& run, int rank, const DryRunOptions& options,
               const Sizes* routed_alike = nullptr);
// Of the step's last micro-batch, where it is shorter than the largest: it may be cut into fewer chunks.
std::optional<Sizes> sizes_of_shorter(const recipe::RunConfig& run, const Sizes& largest);

Budget budget_of(const recipe::RunConfig& run, const Sizes& sizes, const DryRunOptions& options);

// Padded elements of a layer's dense unit, of its experts on this rank, of a vocabulary shard.
int64_t dense_unit(const Sizes& s, int64_t layer);
int64_t expert_unit(const Sizes& s);
int64_t table_unit(const Sizes& s);

// Attention's output and its log-sum-exp, of one layer.
int64_t attention_output(const Sizes& s);

int64_t dense_of_all_layers(const Sizes& s);
int64_t num_moe_layers(const Sizes& s);
int64_t num_tables(const Sizes& s);
int64_t norm_unit(const Sizes& s);
// Of its shards, by the layout of its units.
int64_t frozen_elements(const train::RankShape& shape, const optim::StateOptions& state);
// Elements whose masters and moments are this rank's, and those whose gradients it accumulates.
int64_t owned(const Sizes& s);
int64_t accumulated(const Sizes& s);
int64_t moment_bytes(const Sizes& s);
int64_t bucket(const Sizes& s);
int64_t bucket_slots(const Sizes& s);
bool masters_double(const Sizes& s);

// Appends terms; `guaranteed` defaults to `expected`.
class Terms {
 public:
  explicit Terms(std::vector<Term>& terms) : terms_(terms) {}
  void add(const char* name, const char* formula, memory::Category category, int64_t bytes) {
    add(name, formula, category, bytes, bytes);
  }
  void add(const char* name, const char* formula, memory::Category category, int64_t expected,
           int64_t guaranteed) {
    if (expected > 0 || guaranteed > 0) terms_.push_back({name, formula, category, expected, guaranteed});
  }

 private:
  std::vector<Term>& terms_;
};

void add_persistent(const Sizes& s, Terms& terms);
void add_host(const Sizes& s, Terms& terms);  // in the node's memory
std::vector<Phase> phases_of(const Sizes& s);

// The largest live set of each, besides what surrounds it.
// `from_kept`: the kernel does not run, its output is there.
void add_attention_forward(const Sizes& s, bool from_kept, Terms& terms);
void add_attention_saved(const Sizes& s, Terms& terms);     // from its recomputation to its backward
void add_attention_backward(const Sizes& s, Terms& terms);  // in all
void add_dispatch_forward(const Sizes& s, Terms& terms);
void add_dispatch_backward(const Sizes& s, Terms& terms);
void add_feed_forward(const Sizes& s, int64_t intermediate, bool backward, Terms& terms);
void add_vocab_loss(const Sizes& s, Terms& terms);
// Bytes that a layer keeps when nothing is recomputed.
int64_t kept_by_layer(const Sizes& s, int64_t layer, const RoutedRows& rows);

}  // namespace steppe::plan
