#include "steppe/plan/dry_run.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "steppe/base/error.h"
#include "steppe/kernels/meta_device.h"
#include "steppe/memory/scope.h"
#include "steppe/memory/timeline_recording.h"
#include "steppe/ops/moe_dispatch/dispatch_plan.h"
#include "steppe/plan/budget_sizes.h"
#include "steppe/plan/host_meeting.h"
#include "steppe/plan/most_tokens.h"
#include "steppe/plan/supposed_batch.h"
#include "steppe/plan/supposed_routing.h"
#include "steppe/train/assembly.h"
#include "steppe/train/configure.h"

namespace steppe::plan {
namespace {

using layout::Axis;
using train::RankShape;

// What does not change from one full micro-batch to the next shows in two.
constexpr int64_t kMicroBatchesRun = 2;

std::vector<data::Microbatch> batch_of(const recipe::RunConfig& run, const DryRunOptions& options,
                                       const RankShape& shape, bool alone) {
  const int64_t group = shape.layout.group_index(Axis::kSequence);
  if (options.batch_of_group) return options.batch_of_group(group);
  const auto& training = run.training;
  STEPPE_CHECK_VALUE(
      training.seq_length <= kMostTokens / std::min(training.micro_batch_size, kMostTokens),
      "[plan] training.seq_length = {} times training.micro_batch_size = {} must be at most {}: "
      "a dry run holds a micro-batch's ids, as a run does",
      training.seq_length, training.micro_batch_size, kMostTokens);
  return supposed_batch(run, shape.layout_config, shape.model.vocab_size, {group, kMicroBatchesRun, alone});
}

Counters times(const Counters& one, int64_t factor) {
  Counters many;
  const auto scale = [factor](auto& to, const auto& from) {
    for (size_t i = 0; i < from.values().size(); ++i) to.values()[i] = factor * from.values()[i];
  };
  scale(many.flops, one.flops), scale(many.wire_bytes, one.wire_bytes);
  for (const auto way : {LinkDirection::kHostToDevice, LinkDirection::kDeviceToHost}) {
    scale(many.link_bytes[way], one.link_bytes[way]);
  }
  return many;
}

Counters since(const Counters& before, const train::Assembly& rank) {
  Counters counters = rank.counters;
  return counters -= before;
}

// A step of `dry.num_micro_batches`, of which those in `batch` are run; fills in what it took.
void run_step(train::Assembly& rank, std::span<const data::Microbatch> batch, bool record, DryRun& dry) {
  auto& ledger = memory::current_ledger();
  const int64_t more = dry.num_micro_batches - static_cast<int64_t>(batch.size());
  const bool ends_shorter = static_cast<int64_t>(batch.size()) > kMicroBatchesRun;
  const auto counted = [&](int64_t num) {
    const auto before = rank.counters;
    rank.step.accumulate(batch.first(num));
    return since(before, rank);
  };
  Counters of_one, of_two;
  if (more > 0) of_one = counted(1);
  if (more > 0 && ends_shorter) of_two = counted(kMicroBatchesRun);
  ledger.reset_peak();
  const int64_t allocations = ledger.num_allocations();
  std::optional<memory::TimelineRecording> recording;
  if (record) recording.emplace(ledger);

  const auto before = rank.counters;
  auto result = rank.step.accumulate(batch);
  dry.counters = since(before, rank);
  if (more > 0) {
    auto each = ends_shorter ? of_two : dry.counters;
    dry.counters += times(each -= of_one, more);
  }
  const auto accumulated = rank.counters;
  rank.step.update(result, /*lr=*/1e-3, /*step=*/1);
  dry.update = since(accumulated, rank);
  dry.counters += dry.update;

  if (recording) dry.timeline = recording->finish(/*step=*/1, dry.rank);
  dry.device = ledger.peak();
  dry.host = ledger.peak(memory::Domain::kHost);
  dry.own_peak = ledger.peak_by_own_category();
  dry.num_allocations = ledger.num_allocations() - allocations;
}

// On the calling thread, which has a ledger of its own.
DryRun run_rank(const recipe::RunConfig& run, const DryRunOptions& options, const RankShape& shape,
                comm::Groups groups, bool alone) {
  auto& ledger = memory::current_ledger();
  at::set_num_threads(options.num_threads);
  const at::AutoDispatchBelowADInplaceOrView no_autograd;  // there is none in the step: quicker dispatch
  const kernels::MetaStandsFor device(options.as_cuda ? at::kCUDA : at::kCPU);
  const auto batch = batch_of(run, options, shape, alone);
  train::Assembly rank(run, shape, at::kMeta, std::move(groups),
                       supposed_routing(run, shape.model, shape.layout.rank()),
                       options.attention_output_bytes);
  DryRun dry;
  dry.rank = shape.layout.rank();
  dry.persistent = ledger.live_by_category();
  dry.persistent_host = ledger.live_by_category(memory::Domain::kHost);
  dry.num_micro_batches = options.batch_of_group ? static_cast<int64_t>(batch.size())
                                                 : num_micro_batches(run, shape.layout_config);
  for (const auto& micro_batch : batch) {
    const auto shard = layout::even_part(micro_batch.num_tokens(), shape.layout.degree(Axis::kSequence),
                                         shape.layout.index_in_group(Axis::kSequence));
    dry.num_tokens = std::max(dry.num_tokens, shard.size());
  }
  run_step(rank, batch, options.record_timeline, dry);
  return dry;
}

// A thread with a ledger of its own, so that a plan made beside a run leaves the run's account alone.
template <class Body>
std::thread rank_thread(std::exception_ptr& failure, Body body) {
  return std::thread([&failure, body] {
    memory::Ledger ledger;
    const memory::LedgerBinding binding(ledger);
    try {
      body();
    } catch (...) {
      failure = std::current_exception();
    }
  });
}

// The meetings of all groups that host values cross.
class Meetings {
 public:
  explicit Meetings(const layout::LayoutConfig& config)
      : world_(std::make_shared<HostMeeting>(config.world_size)) {
    for (int g = 0; g < config.world_size / config.expert_degree; ++g) {
      expert_.push_back(std::make_shared<HostMeeting>(config.expert_degree));
    }
  }

  comm::Groups groups_of(const layout::RankLayout& layout) const {
    auto groups = comm::make_shape_only_groups(layout);
    const auto meet = [](std::unique_ptr<comm::Communicator>& group, std::shared_ptr<HostMeeting> meeting) {
      group = std::make_unique<MeetingCommunicator>(group->name(), group->rank(), group->size(), meeting);
    };
    meet(groups.control, world_);
    meet(groups.expert, expert_[layout.group_index(Axis::kExpert)]);
    return groups;
  }

  void give_up() {
    world_->give_up();
    for (auto& meeting : expert_) meeting->give_up();
  }

 private:
  std::shared_ptr<HostMeeting> world_;
  std::vector<std::shared_ptr<HostMeeting>> expert_;
};

}  // namespace

DryRun dry_run(const recipe::RunConfig& run, const DryRunOptions& options, int rank) {
  const RankShape shape(run, rank, options.world_size);
  DryRun dry;
  std::exception_ptr failure;
  rank_thread(failure, [&] {
    dry = run_rank(run, options, shape, comm::make_shape_only_groups(shape.layout), /*alone=*/true);
  }).join();
  if (failure) std::rethrow_exception(failure);
  return dry;
}

std::vector<DryRun> dry_run_all(const recipe::RunConfig& run, const DryRunOptions& options) {
  std::vector<RankShape> shapes;
  for (int rank = 0; rank < options.world_size; ++rank) shapes.emplace_back(run, rank, options.world_size);
  Meetings meetings(shapes[0].layout_config);
  std::vector<DryRun> all(options.world_size);
  std::vector<std::exception_ptr> failures(options.world_size);
  std::exception_ptr first;
  std::once_flag once;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.world_size; ++rank) {
    threads.push_back(rank_thread(failures[rank], [&, rank] {
      try {
        all[rank] =
            run_rank(run, options, shapes[rank], meetings.groups_of(shapes[rank].layout), /*alone=*/false);
      } catch (...) {
        std::call_once(once, [&] { first = std::current_exception(); });
        meetings.give_up();
        throw;
      }
    }));
  }
  for (auto& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
  return all;
}

namespace {

// Frozen parameters have no state, and may be one rank's and not another's: whose shards have fewest of them,
// from `first` onwards.
int most_trained(const recipe::RunConfig& run, int first, int world_size) {
  if (run.optimizer.freeze.empty()) return first;
  const auto state = train::state_options(run);
  int most = first;
  int64_t fewest = INT64_MAX;
  for (int rank = first; rank < first + world_size; ++rank) {
    const int64_t frozen = frozen_elements(RankShape(run, rank % world_size, world_size), state);
    if (frozen < fewest) fewest = frozen, most = rank % world_size;
  }
  return most;
}

}  // namespace

std::vector<int> heaviest_candidates(const recipe::RunConfig& run, int world_size) {
  const RankShape shape(run, 0, world_size);
  const int first = fullest_rank(run, shape.layout_config);
  std::vector<int> candidates = {first};
  const auto add = [&](int rank) {
    if (std::ranges::find(candidates, rank) == candidates.end()) candidates.push_back(rank);
  };
  add(most_trained(run, first, world_size));
  // Of shards that do not come out even the first rank has the largest, though others may have more
  // micro-batches of the same size.
  const int64_t ulysses = shape.layout_config.ulysses_degree;
  const int64_t largest = supposed_rows(run, shape.layout_config, first / ulysses);
  if (supposed_rows(run, shape.layout_config, 0) == largest) add(0);
  const int degree = shape.layout_config.expert_degree;
  if (degree == 1 || run.dispatch.kind == "ep" || run.router.force_load_balancing) return candidates;

  // Peers suppose the same of each other, so one rank's routes say what everyone's are.
  const auto routing = supposed_routing(run, shape.model, first);
  const auto options = train::step_config(run).dispatch;
  const int64_t tokens = layout::even_part(largest, ulysses, 0).size();
  const auto split = ops::split_tokens(options, tokens);
  std::map<int64_t, int> rank_of_helped;  // how many foreign experts, who
  for (int64_t layer = 0; layer < shape.model.num_hidden_layers; ++layer) {
    if (shape.model.is_dense_layer(layer)) continue;
    const auto counts = routed_alike(*routing, shape.model, layer, split, tokens, degree);
    const auto dispatch =
        ops::plan_dispatch(counts, degree, shape.model.num_experts_per_tok, ops::plan_options(options));
    for (int rank = 0; rank < degree; ++rank) {
      const auto helped = static_cast<int64_t>(dispatch.helpers.experts_of(rank).size());
      if (helped > 0) rank_of_helped.try_emplace(helped, first / degree * degree + rank);
    }
    if (!run.plan.routing_profile.ends_with(".jsonl")) break;  // every layer is alike
  }
  if (!rank_of_helped.empty()) add(rank_of_helped.rbegin()->second);
  return candidates;
}

DryRun dry_run_heaviest(const recipe::RunConfig& run, const DryRunOptions& options) {
  DryRun heaviest;
  for (const int rank : heaviest_candidates(run, options.world_size)) {
    auto dry = dry_run(run, options, rank);
    if (dry.device.bytes > heaviest.device.bytes) heaviest = std::move(dry);
  }
  return heaviest;
}

}  // namespace steppe::plan
