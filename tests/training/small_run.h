// A small model trained on a small language, for tests of the whole step: ranks are threads over Gloo, or one
// rank on `meta` over shape-only groups.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "steppe/comm/groups.h"
#include "steppe/data/batch_plan.h"
#include "steppe/layout/layout.h"
#include "steppe/model/config.h"
#include "steppe/model/weights.h"
#include "steppe/train/step.h"

namespace steppe::testing {

struct SmallRun {
  model::ModelConfig model;
  layout::LayoutConfig layout;
  train::StepConfig step;
  optim::StateOptions state;  // where masters, moments and gradients live
  int64_t seq_length = 50;    // no degree divides it
  int64_t global_batch_size = 4;
  int64_t micro_batch_size = 1;
  at::ScalarType dtype = at::kFloat;
  double lr = 3e-3;
};

// Three layers, the first dense, 12 experts, uneven vocabulary.
model::ModelConfig small_model(int64_t num_kv_heads);
SmallRun small_run(int64_t num_kv_heads, layout::LayoutConfig layout);

// Sequences of a noisy cyclic language, two or three documents each.
data::Sequence small_sequence(const SmallRun& run, int64_t index);
std::vector<data::Microbatch> small_batch(const SmallRun& run, int64_t step, int64_t group);

// Expert choices by (layer, token id), shared by the ranks of a run.
class RoutingRecord {
 public:
  void put(int64_t layer, int64_t token_id, std::span<const int32_t> experts);
  ops::GivenRouting replay(const model::ModelConfig& model) const;

 private:
  std::mutex mutex_;
  std::map<std::pair<int64_t, int64_t>, std::vector<int32_t>> experts_;
};

// The router's own choice, written down.
class RecordedTopK final : public ops::RoutingSource {
 public:
  explicit RecordedTopK(RoutingRecord& record) : record_(record) {}
  std::vector<int64_t> choose(const ops::RoutedTokens& tokens, const at::Tensor& ids_Nk,
                              const at::Tensor& scores_NE, const at::Tensor& bias_E,
                              const at::Tensor& counts_E) override;

 private:
  RoutingRecord& record_;
  ops::TopKRouting router_;
};

// One rank of a run: everything a step needs, in the order it must live.
struct Rank {
  Rank(const SmallRun& run, int rank, comm::Groups groups, at::Device device, ops::RoutingSource& routing);
  int64_t group() const { return layout.group_index(layout::Axis::kSequence); }

  const SmallRun& run;
  Counters counters;
  ops::OpContext context;
  layout::RankLayout layout;
  comm::Groups groups;
  model::ModelWeights weights;
  train::Step step;
};

// Runs `body` on every rank as threads over Gloo.
void on_all_ranks(const SmallRun& run, const std::function<std::unique_ptr<ops::RoutingSource>()>& routing,
                  const std::function<void(Rank&)>& body);

// Losses of `steps` steps of training on all ranks; the ranks agree on them.
std::vector<double> train_losses(const SmallRun& run, int64_t steps,
                                 const std::function<std::unique_ptr<ops::RoutingSource>()>& routing);

}  // namespace steppe::testing
