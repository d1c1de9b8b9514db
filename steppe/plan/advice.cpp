#include "steppe/plan/advice.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "steppe/base/bytes.h"
#include "steppe/base/error.h"
#include "steppe/model/hugging_face_config.h"
#include "steppe/plan/degrees.h"
#include "steppe/plan/limits.h"
#include "steppe/plan/tune_candidates.h"
#include "steppe/train/configure.h"

namespace steppe::plan {
namespace {

using memory::Category;
using Changes = std::vector<std::string>;

constexpr double kHostShare = 0.8;  // of what a node has free, for layer inputs
constexpr int kMostChanges = 8;
constexpr int64_t kSmallChunk = 4096;

// Whole GiB, or MiB of a small budget.
int64_t rounded_down(int64_t bytes) {
  const int shift = bytes >= int64_t{16} << 30 ? 30 : 20;
  return bytes >> shift << shift;
}

std::string quoted(const std::string& key, const std::string& value) {
  return fmt::format("{} = \"{}\"", key, value);
}

// A run and its plan, being changed.
class Relief {
 public:
  Relief(recipe::RunConfig& run, const Plan& plan)
      : run_(run),
        plan_(plan),
        model_(model::model_config(run.model)),
        limits_(limits_of(plan.hardware, run.hardware)) {}

  // Less host memory where that is short; else less of the category that the peak has most of and that
  // anything helps against. Nothing where there is no such change.
  Changes next() {
    const auto needs = needs_of(limits_, plan_.rank.device.bytes, plan_.host_bytes_per_node);
    if (needs.device <= limits_.device_memory) return of_host(needs.node - limits_.node_memory);
    lacks_ = needs.device - limits_.device_memory;
    const auto& bytes = plan_.rank.device.by_category;
    std::array<int, memory::kNumCategories> order;
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return bytes[a] > bytes[b]; });
    for (const int category : order) {
      // A few hundredths of the peak are not why it does not fit.
      if (bytes[category] < plan_.rank.device.bytes / 50) break;
      if (auto changes = of(static_cast<Category>(category)); !changes.empty()) return changes;
    }
    return {};
  }

 private:
  Changes of(Category category) {
    switch (category) {
      case Category::kVocab:
        return of_logits();
      case Category::kDispatch:
      case Category::kExpert:
        return of_dispatch();
      case Category::kOptimizer:
        return of_optimizer();
      case Category::kGrads:
        if (auto changes = wider_experts(category); !changes.empty()) return changes;
        if (auto changes = wider_vocabulary(category); !changes.empty()) return changes;
        return of_gradients();
      case Category::kWeights:
        if (auto changes = wider_experts(category); !changes.empty()) return changes;
        return wider_vocabulary(category);
      case Category::kBoundary:
        if (auto changes = of_boundaries(); !changes.empty()) return changes;
        return wider_sequence(category);
      case Category::kSaved:
        return of_kept();
      case Category::kStaging:
        return of_staging();
      case Category::kGathered:
      case Category::kControl:
      case Category::kUntagged:
        return {};
      default:
        return wider_sequence(category);
    }
  }

  Changes of_logits() {
    auto& loss = run_.loss;
    if (loss.kind == "tiled" || loss.kind == "auto") {
      if (!loss.tile_tokens) return {};
      loss.tile_tokens.reset();
      return {quoted("loss.tile_tokens", "auto")};
    }
    loss.kind = "tiled", loss.circulate = "auto";
    return {quoted("loss.kind", "tiled")};
  }

  Changes of_dispatch() {
    auto& dispatch = run_.dispatch;
    if (dispatch.kind != "pipelined_llep") {
      dispatch.kind = "pipelined_llep";
      return {quoted("dispatch.kind", "pipelined_llep")};
    }
    const int64_t chunks = (plan_.rank.num_tokens + dispatch.token_budget - 1) / dispatch.token_budget;
    if (chunks > dispatch.max_chunks) {
      dispatch.max_chunks = chunks;
      return {fmt::format("dispatch.max_chunks = {}", chunks)};
    }
    if (dispatch.token_budget <= kSmallChunk) return {};
    dispatch.token_budget = kSmallChunk;
    return {fmt::format("dispatch.token_budget = {}", kSmallChunk)};
  }

  Changes of_optimizer() {
    if (!limits_.is_apart || run_.optimizer.placement != "resident") return {};
    run_.optimizer.placement = "stream";
    return {quoted("optimizer.placement", "stream")};
  }

  // In the update: elsewhere it is the wire's.
  Changes of_staging() {
    if (run_.optimizer.placement != "stream" || plan_.budget.largest().name != "optimizer") return {};
    const auto smaller =
        smaller_buckets(run_.optimizer.bucket_params, model_.num_parameters() / plan_.layout.world_size);
    if (!smaller) return {};
    run_.optimizer.bucket_params = *smaller;
    return {fmt::format("optimizer.bucket_params = {}", *smaller)};
  }

  Changes of_gradients() {
    if (!limits_.is_apart || run_.optimizer.gradients == "host") return {};
    auto changes = of_optimizer();  // gradients are on the host for an optimizer that is there
    run_.optimizer.gradients = "host";
    changes.push_back(quoted("optimizer.gradients", "host"));
    return changes;
  }

  Changes of_boundaries() {
    if (!limits_.is_apart) return {};
    const int64_t free =
        limits_.node_memory - needs_of(limits_, plan_.rank.device.bytes, plan_.host_bytes_per_node).node;
    const int64_t on_device = plan_.rank.device.by_category[static_cast<int>(Category::kBoundary)];
    const int64_t wanted = on_device * limits_.ranks_per_node;
    const auto given = std::min(wanted, static_cast<int64_t>(kHostShare * static_cast<double>(free)));
    const int64_t budget = rounded_down(run_.offload.host_budget + given);
    // What is left of a budget for a layer or two would be asked for again and again.
    if (given < wanted / 4 || budget <= run_.offload.host_budget) return {};
    Changes changes;
    if (run_.offload.activations == "none") changes.push_back(quoted("offload.activations", "sco"));
    run_.offload.activations = "sco", run_.offload.host_budget = budget;
    changes.push_back(quoted("offload.host_budget", format_bytes_exactly(budget)));
    return changes;
  }

  Changes of_host(int64_t shortage) {
    if (auto changes = smaller_budget(shortage); !changes.empty()) return changes;
    // On a CPU what stands for the device's tensors is the node's too.
    const int64_t kept = plan_.rank.device.by_category[static_cast<int>(Category::kSaved)];
    return limits_.libraries_bytes > 0 && kept > 0 ? of_kept() : Changes{};
  }

  Changes of_kept() {
    if (run_.activation_checkpoint.mode == "full") return {};
    run_.activation_checkpoint.mode = "full";
    return {quoted("activation_checkpoint.mode", "full")};
  }

  Changes smaller_budget(int64_t shortage) {
    auto& offload = run_.offload;
    if (offload.activations == "none" || offload.host_budget == 0) return {};
    // A budget may be above what is there to hold.
    int64_t held = 0;
    for (const auto& term : plan_.budget.host.terms) {
      if (term.category == Category::kBoundary || term.category == Category::kSaved) held += term.expected;
    }
    const int64_t budget = rounded_down(held * limits_.ranks_per_node - shortage);
    if (budget <= 0 || budget >= offload.host_budget) return {};
    offload.activations = "sco", offload.host_budget = budget;
    return {quoted("offload.host_budget", format_bytes_exactly(budget))};
  }

  // The least degree that makes room enough if a category's bytes are shared out so much wider; else the
  // widest that the ranks and `allows` allow.
  Changes widen(const char* key, int64_t& degree, Category category,
                const std::function<bool(int64_t)>& allows) {
    const int64_t bytes = plan_.rank.device.by_category[static_cast<int>(category)], before = degree;
    for (int64_t wider = before + 1; wider <= plan_.layout.world_size; ++wider) {
      if (plan_.layout.world_size % wider != 0 || !allows(wider)) continue;
      degree = wider;
      if (bytes - bytes / wider * before >= lacks_) break;
    }
    return degree == before ? Changes{} : Changes{fmt::format("{} = {}", key, degree)};
  }

  Changes wider_experts(Category category) {
    if (model_.num_experts == 0) return {};
    return widen("parallelism.expert_parallel_degree", run_.parallelism.expert_parallel_degree, category,
                 [&](int64_t degree) { return model_.num_experts % degree == 0; });
  }

  Changes wider_vocabulary(Category category) {
    return widen("parallelism.vocab_parallel_degree", run_.parallelism.vocab_parallel_degree, category,
                 [](int64_t degree) { return degree <= kWidestVocab; });
  }

  Changes wider_sequence(Category category) {
    return widen("parallelism.ulysses_degree", run_.parallelism.ulysses_degree, category,
                 [&](int64_t degree) { return heads_divide(model_, degree); });
  }

  recipe::RunConfig& run_;
  const Plan& plan_;
  model::ModelConfig model_;
  Limits limits_;
  int64_t lacks_ = 0;  // bytes, of a device
};

// A later change of a key stands for an earlier one.
void add(Changes& changes, const Changes& more) {
  for (const auto& change : more) {
    const auto key = change.substr(0, change.find(" = ") + 3);
    std::erase_if(changes, [&](const std::string& earlier) { return earlier.starts_with(key); });
    changes.push_back(change);
  }
}

bool fits_by_budget(recipe::RunConfig run, const Plan& plan, const DryRunOptions& dry) {
  run.hardware.ranks_per_node = plan.hardware.ranks_per_node;
  const auto limits = limits_of(plan.hardware, run.hardware);
  const auto budget = make_budget(run, plan.rank.rank, dry);
  const int64_t host = plan.hardware.ranks_per_node * (budget.host.expected() + budget.checkpoint_snapshot);
  return fits(limits, needs_of(limits, budget.expected(), host));
}

// The longest sequences of the run that fit by the budget; 0: not even one token a rank does. Attention
// outputs are kept only where there is room, so they do not count.
int64_t length_that_fits(const recipe::RunConfig& run, const Plan& plan, const PlanOptions& options) {
  const DryRunOptions dry{.world_size = options.world_size,
                          .num_threads = options.num_threads,
                          .as_cuda = plan.hardware.is_accelerator};
  auto shorter = run;
  if (run.activation_checkpoint.mode == "selective") shorter.activation_checkpoint.mode = "full";
  const auto works = [&](int64_t length) {
    shorter.training.seq_length = length;
    return fits_by_budget(shorter, plan, dry);
  };
  int64_t too_long = run.training.seq_length;
  for (const int64_t unit : {1024, 64, 1}) {
    const int64_t granule = std::lcm(run.parallelism.ulysses_degree, unit);
    int64_t good = 0, bad = (too_long + granule - 1) / granule;
    while (bad - good > std::max<int64_t>(1, good / 64)) {
      const int64_t middle = good + (bad - good) / 2;
      (works(middle * granule) ? good : bad) = middle;
    }
    if (good > 0) return good * granule;
    too_long = std::min(too_long, granule);
  }
  return 0;
}

std::string what_else(const recipe::RunConfig& run, const Plan& plan, const PlanOptions& options,
                      const Changes& changes) {
  const auto needs =
      needs_of(limits_of(plan.hardware, run.hardware), plan.rank.device.bytes, plan.host_bytes_per_node);
  std::string text =
      changes.empty()
          ? std::string("no key of the recipe makes room on this layout")
          : fmt::format("not enough, with {}: still {} on a device and {} of host memory per node",
                        fmt::join(changes, ", "), format_bytes(needs.device), format_bytes(needs.node));
  const int64_t length = length_that_fits(run, plan, options);
  if (length > 0) return text + fmt::format("; training.seq_length = {} would fit", length);
  return text + "; no training.seq_length does: more ranks, or more memory";
}

}  // namespace

std::vector<std::string> first_change(const recipe::RunConfig& run, const Plan& plan) {
  auto changed = run;
  return Relief(changed, plan).next();
}

Advice advise(const recipe::RunConfig& run, const Plan& plan, const PlanOptions& options) {
  Advice advice;
  auto changed = run;
  Plan now = plan;
  for (int i = 0; i < kMostChanges && !now.fits; ++i) {
    auto next = changed;
    const auto changes = Relief(next, now).next();
    if (changes.empty()) break;
    now = make_plan(next, options);
    changed = std::move(next);
    add(advice.changes, changes);
  }
  advice.is_enough = now.fits;
  advice.text = now.fits ? fmt::format("with {} it {}", fmt::join(advice.changes, ", "), now.verdict)
                         : what_else(changed, now, options, advice.changes);
  return advice;
}

}  // namespace steppe::plan
