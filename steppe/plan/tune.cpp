#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "steppe/base/bytes.h"
#include "steppe/base/error.h"
#include "steppe/model/hugging_face_config.h"
#include "steppe/plan/search.h"
#include "steppe/train/configure.h"

namespace steppe::plan {
namespace {

// Means to save memory, each for some time; from none to all.
struct Rung {
  const char* what;
  void (*apply)(recipe::RunConfig& run);
};

constexpr double kHostShare = 0.8;  // of a node's memory, for offload and the optimizer

// Two ways up. Attention outputs are worth most where sequences are long, the optimizer's place where they
// are short: each ladder gives up the other first.
const Rung kFromTheTop = {"attention outputs kept, all else on the device",
                          [](recipe::RunConfig& run) { run.activation_checkpoint.mode = "selective"; }};
const Rung kRecompute = {"attention recomputed: its outputs would not fit",
                         [](recipe::RunConfig& run) { run.activation_checkpoint.mode = "full"; }};
const Rung kStream = {"optimizer state streamed from the host: it would not fit on the device",
                      [](recipe::RunConfig& run) { run.optimizer.placement = "stream"; }};
const Rung kSco = {"layer inputs to the host: they would not fit on the device",
                   [](recipe::RunConfig& run) { run.offload.activations = "sco"; }};
const Rung kHostGradients = {"gradients on the host too: their accumulators would not fit on the device",
                             [](recipe::RunConfig& run) { run.optimizer.gradients = "host"; }};
const Rung kSmallChunks = {"smaller chunks of expert dispatch",
                           [](recipe::RunConfig& run) { run.dispatch.token_budget = 4096; }};
using Ladder = std::array<Rung, 6>;
const Ladder kLadders[] = {{kFromTheTop, kRecompute, kStream, kSco, kHostGradients, kSmallChunks},
                           {kFromTheTop, kStream, kSco, kRecompute, kHostGradients, kSmallChunks}};

struct Candidate {
  recipe::RunConfig run;
  const Ladder* ladder = nullptr;
  int rung = 0;
  double exchange = 0;  // seconds, estimated
};

std::vector<int64_t> degrees(int world_size, const std::function<bool(int64_t)>& allowed) {
  std::vector<int64_t> found;
  for (int64_t degree = 1; degree <= world_size; ++degree) {
    if (world_size % degree == 0 && allowed(degree)) found.push_back(degree);
  }
  return found;
}

// Exchanges that a step waits for, by sizes alone: enough to say which layouts are worth a dry run.
double exchange_seconds(const recipe::RunConfig& run, const model::ModelConfig& m, int world_size,
                        const Hardware& hardware) {
  const auto& p = run.parallelism;
  const auto bytes = static_cast<double>(c10::elementSize(train::compute_dtype(run)));
  const auto shape = train::batch_shape(run, train::layout_config(run, world_size));
  const double tokens = static_cast<double>(run.training.seq_length * shape.global_batch_size) / world_size;
  const auto seconds = [&](double sent, int64_t degree) {
    const double speed =
        degree <= hardware.ranks_per_node ? hardware.node_bytes_per_s : hardware.wire_bytes_per_s;
    return sent * static_cast<double>(degree - 1) / static_cast<double>(degree) / speed;
  };
  const auto layers = static_cast<double>(m.num_hidden_layers), hidden = static_cast<double>(m.hidden_size);
  const auto heads = static_cast<double>((m.num_attention_heads + m.num_key_value_heads) * m.head_dim);
  const double dispatch = 5 * layers * tokens * static_cast<double>(m.num_experts_per_tok) * hidden * bytes;
  const double sequence = 3 * layers * tokens * 2 * heads * bytes, vocab = 2 * tokens * hidden * bytes;
  return seconds(dispatch, p.expert_parallel_degree) + seconds(sequence, p.ulysses_degree) +
         seconds(vocab * static_cast<double>(p.vocab_parallel_degree), p.vocab_parallel_degree);
}

DryRunOptions as_run(int world_size, const Hardware& hardware) {
  return {.world_size = world_size, .as_cuda = hardware.is_accelerator};
}

struct Room {
  int64_t device, host_per_rank;
};

Room room_of(const Hardware& hardware) {
  const auto host = static_cast<int64_t>(kHostShare * static_cast<double>(hardware.host_memory));
  const int64_t per_rank = host / hardware.ranks_per_node;
  // On a CPU both come out of one memory.
  const int64_t device = hardware.is_accelerator ? hardware.device_memory : hardware.device_memory / 2;
  return {device - reserved_bytes(hardware), per_rank};
}

// What the ladder's means leave of the host goes to layer inputs.
void set_host_budget(recipe::RunConfig& run, int world_size, const Hardware& hardware, const Room& room) {
  run.offload.host_budget = 0;
  if (run.offload.activations == "none") return;
  auto without = run;
  without.offload.activations = "none";
  const int64_t taken = make_budget(without, 0, as_run(world_size, hardware)).host.expected();
  run.hardware.ranks_per_node = hardware.ranks_per_node;
  const int64_t free = std::max<int64_t>(0, room.host_per_rank - taken) * hardware.ranks_per_node;
  run.offload.host_budget = free >> 30 << 30;  // whole GiB
}

// What breaks where nothing fits: of all layouts, with every means, the one that needs least.
struct Least {
  int64_t bytes = INT64_MAX;
  std::string term;

  void learn(const Budget& budget) {
    if (budget.expected() >= bytes) return;
    bytes = budget.expected();
    const bool persists = budget.persistent.expected() > budget.largest().expected();
    const auto& terms = persists ? budget.persistent.terms : budget.largest().terms;
    const auto top = std::max_element(terms.begin(), terms.end(),
                                      [](const Term& a, const Term& b) { return a.expected < b.expected; });
    term = fmt::format("{} ({} = {})", format_bytes(top->expected), top->name, top->formula);
  }
};

// Whether the layout fits by its budget, and on which rung first.
std::optional<Candidate> climb(const recipe::RunConfig& layout, const Ladder& ladder, int world_size,
                               const Hardware& hardware, Least& least) {
  const auto room = room_of(hardware);
  const auto fits = [&](recipe::RunConfig& run) {
    set_host_budget(run, world_size, hardware, room);
    const auto budget = make_budget(run, 0, as_run(world_size, hardware));
    least.learn(budget);
    return budget.expected() <= room.device && budget.host.expected() <= room.host_per_rank;
  };
  // Most layouts fit on no rung: the last one says so.
  auto top = layout;
  for (const auto& rung : ladder) rung.apply(top);
  if (!fits(top)) return std::nullopt;
  Candidate candidate{layout, &ladder, 0, 0};
  for (; candidate.rung < static_cast<int>(ladder.size()); ++candidate.rung) {
    ladder[candidate.rung].apply(candidate.run);
    if (fits(candidate.run)) return candidate;
  }
  return std::nullopt;
}

void list_changes(const recipe::RunConfig& run, Found& found) {
  const auto set = [&](const char* key, const auto& value) {
    found.changes.push_back(fmt::format("{} = {}", key, value));
  };
  const auto text = [](const std::string& value) { return "\"" + value + "\""; };
  set("parallelism.ulysses_degree", run.parallelism.ulysses_degree);
  set("parallelism.expert_parallel_degree", run.parallelism.expert_parallel_degree);
  set("parallelism.vocab_parallel_degree", run.parallelism.vocab_parallel_degree);
  set("dispatch.kind", text(run.dispatch.kind));
  set("dispatch.token_budget", run.dispatch.token_budget);
  set("loss.kind", text(run.loss.kind));
  set("activation_checkpoint.mode", text(run.activation_checkpoint.mode));
  set("offload.activations", text(run.offload.activations));
  if (run.offload.activations != "none") {
    set("offload.host_budget", text(format_bytes_exactly(run.offload.host_budget)));
  }
  set("optimizer.placement", text(run.optimizer.placement));
  set("optimizer.gradients", text(run.optimizer.gradients));
}

void explain(const Candidate& best, const Hardware& hardware, int num_layouts, int num_fit, Found& found) {
  const auto& p = best.run.parallelism;
  const auto place = [&](int64_t degree) {
    return degree == 1 ? "no exchange" : degree <= hardware.ranks_per_node ? "within a node" : "across nodes";
  };
  found.reasons.push_back(
      fmt::format("{} layouts, {} of them fit; the quickest by the time model", num_layouts, num_fit));
  found.reasons.push_back(fmt::format("sequence exchanges {}, dispatch {}, vocabulary {}",
                                      place(p.ulysses_degree), place(p.expert_parallel_degree),
                                      place(p.vocab_parallel_degree)));
  for (int rung = 0; rung <= best.rung; ++rung) {
    if (rung > 0 || best.rung == 0) found.reasons.emplace_back((*best.ladder)[rung].what);
  }
}

std::vector<recipe::RunConfig> layouts(const recipe::RunConfig& run, const model::ModelConfig& m,
                                       int world_size) {
  std::vector<recipe::RunConfig> all;
  const auto heads_allow = [&](int64_t d) {
    return m.num_attention_heads % d == 0 &&
           (m.num_key_value_heads % d == 0 || d % m.num_key_value_heads == 0);
  };
  for (const int64_t ulysses : degrees(world_size, heads_allow)) {
    for (const int64_t expert : degrees(world_size, [&](int64_t d) { return m.num_experts % d == 0; })) {
      for (const int64_t vocab : degrees(world_size, [](int64_t d) { return d <= 8; })) {
        auto& layout = all.emplace_back(run);
        layout.parallelism = {ulysses, expert, vocab};
        layout.dispatch.kind = "pipelined_llep", layout.dispatch.token_budget = 16384;
        layout.loss.kind = "auto";
        layout.optimizer.placement = "resident", layout.optimizer.gradients = "device";
        layout.offload.activations = "none";
      }
    }
  }
  return all;
}

}  // namespace

Found tune(const recipe::RunConfig& run, const PlanOptions& options) {
  constexpr size_t kDryRuns = 10;
  const int world_size = options.world_size;
  const auto hardware = hardware_of(run.hardware, world_size);
  const auto model = model::model_config(run.model);
  std::vector<Candidate> fitting;
  Least least;
  int num_fit = 0;
  const auto all = layouts(run, model, world_size);
  for (const auto& layout : all) {
    const size_t before = fitting.size();
    for (const auto& ladder : kLadders) {
      auto candidate = climb(layout, ladder, world_size, hardware, least);
      if (!candidate) break;
      candidate->exchange = exchange_seconds(candidate->run, model, world_size, hardware);
      // Both ways may lead to the same.
      if (fitting.size() == before || fitting.back().run != candidate->run)
        fitting.push_back(std::move(*candidate));
    }
    num_fit += fitting.size() > before ? 1 : 0;
  }
  STEPPE_CHECK_VALUE(
      !fitting.empty(),
      "[plan] no layout of {} ranks fits {}: the least needs {} of {} on a device, most of it {}, with "
      "everything "
      "that saves memory on; more ranks, a shorter training.seq_length, or more hardware.host_memory",
      world_size, hardware.name, format_bytes(least.bytes + reserved_bytes(hardware)),
      format_bytes(hardware.device_memory), least.term);
  std::stable_sort(fitting.begin(), fitting.end(),
                   [](const Candidate& a, const Candidate& b) { return a.exchange < b.exchange; });
  Found best;
  std::optional<Candidate> chosen;
  for (size_t i = 0, tried = 0; i < fitting.size() && tried < kDryRuns; ++i) {
    auto plan = make_plan(fitting[i].run, options);
    if (!plan.fits) continue;
    ++tried;
    if (chosen && plan.step_seconds >= best.plan.step_seconds) continue;
    best.run = fitting[i].run, best.plan = std::move(plan), chosen = fitting[i];
  }
  STEPPE_CHECK_VALUE(chosen.has_value(), "[plan] {} layouts fit by their budgets, and none when run dry",
                     fitting.size());
  list_changes(best.run, best);
  explain(*chosen, hardware, static_cast<int>(all.size()), num_fit, best);
  return best;
}

}  // namespace steppe::plan
