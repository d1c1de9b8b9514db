#include "steppe/plan/tune_candidates.h"

#include <algorithm>
#include <functional>

#include "steppe/model/hugging_face_config.h"
#include "steppe/plan/degrees.h"
#include "steppe/plan/limits.h"
#include "steppe/plan/supposed_batch.h"
#include "steppe/plan/time_model.h"
#include "steppe/plan/work_estimate.h"
#include "steppe/train/configure.h"

namespace steppe::plan {
namespace {

std::vector<int64_t> degrees(int world_size, const std::function<bool(int64_t)>& allowed) {
  std::vector<int64_t> found;
  for (int64_t degree = 1; degree <= world_size; ++degree) {
    if (world_size % degree == 0 && allowed(degree)) found.push_back(degree);
  }
  return found;
}

// State on the host is updated by whoever takes less time; `stream` where that is the same.
std::string quicker_placement(const TuneProblem& problem, const recipe::RunConfig& run) {
  return update_seconds(problem, run, "cpu") < update_seconds(problem, run, "stream") ? "cpu" : "stream";
}

void apply(const TuneProblem& problem, const Means& means, recipe::RunConfig& run) {
  run.dispatch.kind = "pipelined_llep", run.dispatch.token_budget = means.token_budget;
  run.dispatch.tile_bytes.reset();
  run.loss.kind = "auto", run.loss.tile_tokens.reset();
  run.activation_checkpoint.mode = means.recomputes ? "selective" : "none";
  run.activation_checkpoint.mlp_tile_tokens.reset();
  run.optimizer.bucket_params = kMostBucketParams;
  run.optimizer.gradients = means.host_gradients ? "host" : "device";
  run.optimizer.placement = means.host_state ? quicker_placement(problem, run) : "resident";
  run.offload.activations = means.host_boundaries ? "sco" : "none";
  run.offload.host_budget = 0;
}

recipe::RunConfig recomputing_attention(recipe::RunConfig run) {
  if (run.activation_checkpoint.mode == "selective") run.activation_checkpoint.mode = "full";
  return run;
}

// What is left of the host, but no more than layer inputs and attention outputs fill. Whole GiB.
int64_t host_budget(const TuneProblem& problem, const Sizes& s, int64_t taken) {
  const int64_t ranks = problem.hardware.ranks_per_node;
  const int64_t useful = s.L * (s.n * s.H * s.b + attention_output(s)) * ranks;
  const int64_t free = std::max<int64_t>(0, problem.room().host - taken) * ranks;
  constexpr int64_t kGiB = int64_t{1} << 30;
  return std::min(free / kGiB, (useful + kGiB - 1) / kGiB) * kGiB;
}

}  // namespace

std::vector<Means> all_means() {
  std::vector<Means> all;
  for (const bool recomputes : {false, true}) {
    for (const bool boundaries : {false, true}) {
      for (const int state : {0, 1, 2}) {  // resident, on the host, gradients too
        for (const int64_t tokens : {16384, 8192, 4096}) {
          if (!recomputes && boundaries) continue;  // what keeps everything has room for layer inputs
          auto& means = all.emplace_back();
          means.recomputes = recomputes, means.host_boundaries = boundaries;
          means.host_state = state > 0, means.host_gradients = state > 1, means.token_budget = tokens;
        }
      }
    }
  }
  return all;
}

std::vector<Means> saving_means() {
  auto means = all_means();
  std::erase_if(means, [](const Means& m) {
    return !m.recomputes || !m.host_state || m.token_budget > kEveryMeans.token_budget;
  });
  return means;
}

TuneProblem::TuneProblem(const recipe::RunConfig& given, int ranks, int threads)
    : run(given),
      model(model::model_config(given.model)),
      hardware(hardware_of(given.hardware, ranks)),
      world_size(ranks),
      num_threads(threads) {
  run.hardware.ranks_per_node = hardware.ranks_per_node;
}

Room TuneProblem::room() const {
  const auto limits = limits_of(hardware, run.hardware);
  Room room;
  room.device = limits.device_memory - limits.rounding_bytes - limits.reserved_bytes;
  room.host = static_cast<int64_t>(Room::kHostShare * static_cast<double>(limits.node_memory)) /
              limits.ranks_per_node;
  if (limits.is_share) {  // both come out of one memory
    room.device /= 2, room.host /= 2;
  } else if (limits.libraries_bytes > 0) {  // and so does what stands for a device's
    room.host = std::max<int64_t>(0, room.host - limits.device_memory - limits.libraries_bytes);
  }
  return room;
}

TuneProblem TuneProblem::with_host_memory(int64_t bytes) const {
  auto other = *this;
  other.hardware.host_memory = bytes;
  return other;
}

DryRunOptions TuneProblem::dry_run_options() const {
  return {.world_size = world_size, .num_threads = num_threads, .as_cuda = hardware.is_accelerator};
}

std::vector<recipe::ParallelismSection> all_layouts(const TuneProblem& problem) {
  const auto& m = problem.model;
  const auto heads_allow = [&](int64_t d) { return heads_divide(m, d); };
  const auto experts_allow = [&](int64_t d) { return m.num_experts % d == 0; };
  std::vector<recipe::ParallelismSection> all;
  for (const int64_t ulysses : degrees(problem.world_size, heads_allow)) {
    for (const int64_t expert : degrees(problem.world_size, experts_allow)) {
      for (const int64_t vocab : degrees(problem.world_size, [](int64_t d) { return d <= kWidestVocab; })) {
        all.push_back({ulysses, expert, vocab});
      }
    }
  }
  return all;
}

int64_t tokens_of_step(const recipe::RunConfig& run, int world_size) {
  return train::batch_shape(run, train::layout_config(run, world_size)).global_batch_size *
         run.training.seq_length;
}

std::optional<int64_t> smaller_buckets(int64_t bucket_params, int64_t params_of_rank) {
  const int64_t least = std::clamp<int64_t>(params_of_rank / 64, 1'000, 1'000'000);
  const int64_t now = std::min(bucket_params, params_of_rank);  // larger ones are the same
  int64_t smaller = 1;
  while (10 * smaller < now) smaller *= 10;
  return smaller < now && smaller >= least ? std::optional(smaller) : std::nullopt;
}

double update_seconds(const TuneProblem& problem, const recipe::RunConfig& run, const char* placement) {
  auto optimizer = run.optimizer;
  optimizer.placement = placement;
  const int64_t params = problem.model.num_parameters() / problem.world_size;
  const auto itemsize = static_cast<int64_t>(c10::elementSize(train::compute_dtype(run)));
  const auto layout = train::layout_config(run, problem.world_size);
  const ItemSizes itemsizes{itemsize, train::state_options(run).gradient_itemsize()};
  return step_time(update_work(optimizer, params, itemsizes), layout, problem.hardware).update;
}

Sizes RoutedSizes::sizes_of(const recipe::RunConfig& run, const DryRunOptions& options) {
  const auto& p = run.parallelism;
  const std::array key = {p.ulysses_degree, p.expert_parallel_degree, run.dispatch.token_budget};
  const auto known = known_.find(key);
  const int rank = fullest_rank(run, train::layout_config(run, problem_.world_size));
  auto sizes = plan::sizes_of(run, rank, options, known == known_.end() ? nullptr : &known->second);
  if (known == known_.end()) known_.emplace(key, sizes);
  return sizes;
}

Candidate make_candidate(const TuneProblem& problem, const recipe::ParallelismSection& layout,
                         const Means& means, RoutedSizes& routed) {
  Candidate candidate{problem.run, means, {}, 0};
  auto& run = candidate.run;
  run.parallelism = layout;
  apply(problem, means, run);
  auto options = problem.dry_run_options();
  const auto size = [&] {
    const auto recomputing = recomputing_attention(run);
    const auto s = routed.sizes_of(recomputing, options);
    candidate.budget = budget_of(recomputing, s, options);
    return s;
  };
  const auto without_offload = size();
  if (means.host_boundaries) {
    run.offload.host_budget = host_budget(problem, without_offload, candidate.budget.host.expected());
    size();
  }
  const int64_t params = problem.model.num_parameters() / problem.world_size;
  while (candidate.budget.largest().name == "optimizer") {
    const auto smaller = smaller_buckets(run.optimizer.bucket_params, params);
    if (!smaller) break;
    run.optimizer.bucket_params = *smaller;
    size();
  }
  const int64_t free = std::max<int64_t>(0, problem.room().device - candidate.budget.expected());
  options.attention_output_bytes = {free, kBoundless};  // of the host what offload.host_budget says
  const auto work = estimated_work(run, routed.sizes_of(run, options));
  const double seconds =
      step_time(work, train::layout_config(run, problem.world_size), problem.hardware).total();
  candidate.seconds_a_token = seconds / static_cast<double>(tokens_of_step(run, problem.world_size));
  return candidate;
}

double fullness(const Budget& budget, const Room& room) {
  const auto share = [](int64_t bytes, int64_t of) {
    return static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(1, of));
  };
  return std::max(share(budget.expected(), room.device), share(budget.host.expected(), room.host));
}

}  // namespace steppe::plan
