#include "steppe/train/trainer.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <optional>

#include "steppe/base/bytes.h"
#include "steppe/base/error.h"
#include "steppe/data/batch_source.h"
#include "steppe/kernels/matmul.h"
#include "steppe/kernels/pointwise.h"
#include "steppe/memory/scope.h"
#include "steppe/train/assembly.h"
#include "steppe/train/checkpointing.h"
#include "steppe/train/configure.h"
#include "steppe/train/last_save.h"
#include "steppe/train/metrics/moe_health.h"
#include "steppe/train/reporter.h"
#include "steppe/train/resume.h"
#include "steppe/train/starting_weights.h"
#include "steppe/train/timeline_files.h"

namespace steppe::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

at::Device compute_device(int local_rank) {
  if (!at::globalContext().hasCUDA()) return at::kCPU;
  // A launcher may show each rank a device of its own, and no other.
  const int count = at::accelerator::deviceCount(), index = count == 1 ? 0 : local_rank;
  STEPPE_CHECK_VALUE(index < count,
                     "[train] local rank {} needs a CUDA device of its own, of which {} are here", local_rank,
                     count);
  return {at::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

// cuBLAS takes its workspace at the first product, 32 MiB on Hopper. It is taken here, so that no peak of a
// step has it: the plan counts it among the libraries.
void take_library_workspace(const ops::OpContext& context) {
  if (!context.device.is_cuda()) return;
  static auto* const libraries = new memory::Ledger;  // must outlive the workspace
  const memory::LedgerBinding binding(*libraries);
  const auto x = context.empty({16, 16});
  kernels::fill_zero(x);
  kernels::matmul(context.empty({16, 16}), x, x);
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// 35.4K, 12.5M, 667.0B
std::string count_text(int64_t count) {
  const auto value = static_cast<double>(count);
  if (value >= 1e9) return fmt::format("{:.1f}B", value / 1e9);
  return value >= 1e6 ? fmt::format("{:.1f}M", value / 1e6) : fmt::format("{:.1f}K", value / 1e3);
}

// Scaling stretches the length that it names; some config.json files say the stretched one themselves.
void warn_of_length(int64_t seq_length, const model::ModelConfig& model, const Log& log) {
  const auto& scaling = model.rope_scaling;
  const int64_t original = scaling.original_max_position_embeddings > 0
                               ? scaling.original_max_position_embeddings
                               : model.max_position_embeddings;
  const auto stretched = scaling.kind == model::RopeKind::kDefault
                             ? 0
                             : static_cast<int64_t>(scaling.factor * static_cast<double>(original));
  const int64_t positions = std::max(model.max_position_embeddings, stretched);
  if (seq_length <= positions) return;
  log.warning(
      "training.seq_length = {} is beyond model.max_position_embeddings = {}{}: raise it for a new model; "
      "for a trained one model.rope_scaling stretches positions",
      seq_length, model.max_position_embeddings,
      stretched > 0 ? fmt::format(" and the {} positions of model.rope_scaling", stretched) : "");
}

}  // namespace

// Everything of a run on this rank, in the order it must live.
struct Trainer::State : RankShape {
  const recipe::RunConfig& run;
  Process process;
  const Log& log;
  TimelineFiles timelines;
  data::BatchSource data;
  c10::OptionalDeviceGuard device_guard;
  Assembly rank;
  optim::ScheduleConfig schedule;
  checkpoint::SavedRun saved;
  Position start;
  Reporter reporter;
  Checkpointing checkpointing;
  LastSave last_save;
  int64_t tokens = start.tokens;
  Clock::time_point begin = Clock::now();
  int64_t current_step = 0;
  const char* current_work = "set-up";

  State(const recipe::RunConfig& given_run, Process given_process, const Log& given_log)
      : RankShape(given_run, given_process.rank, given_process.world_size),
        run(given_run),
        process(std::move(given_process)),
        log(given_log),
        timelines(run, process.rank, process.world_size),
        data(data_config(run), batch_shape(run, layout_config), layout.group_index(layout::Axis::kSequence),
             model.vocab_size),
        device_guard(compute_device(process.local_rank)),
        rank(run, *this, compute_device(process.local_rank),
             comm::make_groups(layout, process.store, milliseconds(run.comm.timeout),
                               compute_device(process.local_rank).is_cuda()),
             /*routing=*/nullptr, process.attention_output_bytes),
        schedule(train::schedule_config(run)),
        saved(saved_run(run, process.resolved_recipe, layout_config,
                        {batch_shape(run, layout_config), data.sequences_per_epoch()})),
        start(resume(run, saved, *rank.groups.control, rank.weights, log)),
        reporter(run, log, process.rank == 0, process.color, start.step, process.planned),
        checkpointing({run, process, log, rank.weights, *rank.groups.control, saved,
                       [this] { return rank.step.state_events(); }, [this] { reporter.sync(); }},
                      start.step),
        last_save(run, process, log, checkpointing, start.step, start.tokens) {
    take_library_workspace(rank.context);
    rank.step.on_phase([this] { process.progress(current_step, current_work); });
  }

  void announce() const;
  void begins(int64_t number, const char* work);
  metrics::StepMetrics train_step(int64_t number);
  std::optional<std::vector<metrics::ValidationResult>> validate(int64_t number);
  int agreed_stop_signal();
  void add_memory(metrics::StepMetrics& metrics);
};

void Trainer::State::begins(int64_t number, const char* work) {
  current_step = number, current_work = work;
  process.progress(number, work);
}

void Trainer::State::announce() const {
  const auto batch = batch_shape(run, layout_config);
  log.info("{}: {} parameters ({} active), {} layers, {} experts, top {}", run.run.name,
           count_text(model.num_parameters()), count_text(model.num_active_parameters()),
           model.num_hidden_layers, model.num_experts, model.num_experts_per_tok);
  log.info(
      "{} {} on {}: ulysses {}, expert {}, vocab {}; {} sequences of {} tokens a step, {} micro-batches; {}",
      process.world_size, process.world_size == 1 ? "rank" : "ranks",
      rank.context.device.is_cuda() ? "CUDA" : "CPU", layout_config.ulysses_degree,
      layout_config.expert_degree, layout_config.vocab_degree, batch.global_batch_size,
      run.training.seq_length, data.num_micro_batches(), run.model.compute_dtype);
  if (run.training.epochs) {
    log.info("training.epochs = {}: {} steps; an epoch is {} sequences", *run.training.epochs,
             run.training.steps, data.sequences_per_epoch());
  }
  if (start.step >= run.training.steps)
    log.info("step {} of {} is done: nothing is left to do", start.step, run.training.steps);
  warn_of_length(run.training.seq_length, model, log);
  const auto& offload = rank.step.offload();
  if (!offload.config().description.empty()) log.info("{}", offload.config().description);
  for (const auto& warning : offload.warnings()) log.warning("{}", warning);
  const auto& optimizer = rank.step.optimizer();
  const auto& state = rank.weights.state_memory();
  if (!optimizer.description().empty()) {
    log.info("{}; {} in host memory", optimizer.description(), format_bytes(state.host_bytes()));
  }
  for (const auto& warning : state.warnings()) log.warning("{}", warning);
  for (const auto& warning : optimizer.warnings()) log.warning("{}", warning);
}

metrics::StepMetrics Trainer::State::train_step(int64_t number) {
  const auto step_begin = Clock::now();
  memory::current_ledger().reset_peak();
  timelines.begin(number);
  const auto batch = data.read(number - 1);
  const double waited = seconds_since(step_begin);
  const double lr = optim::learning_rate(schedule, number - 1);
  auto result = [&] {
    const LastSave::Computing computing(last_save);
    return rank.step.accumulate(batch);
  }();
  checkpointing.before_update();
  rank.step.update(result, lr, number);
  timelines.end(number);
  if (!result.applied) log.warning("step {} skipped: not finite, first seen in {}", number, result.nonfinite);

  metrics::StepMetrics m;
  m.step = number;
  m.loss = result.loss;
  m.grad_norm = result.grad_norm;
  m.lr = lr;
  m.tokens = tokens += result.num_tokens;
  m.target_tokens = result.num_targets;
  m.num_ranks = process.world_size;
  m.step_s = seconds_since(step_begin);
  m.data_wait_s = waited;
  m.tokens_per_s = static_cast<double>(result.num_tokens) / m.step_s;
  m.tflops = m.tokens_per_s * model.flops_per_token(run.training.seq_length) / 1e12;
  m.time_left_s = seconds_since(begin) / static_cast<double>(number - start.step) *
                  static_cast<double>(run.training.steps - number);
  if (const double stall = checkpointing.take_stall_seconds(); stall > 0)
    m.operator_figures["checkpoint/stall_s"] = stall;
  if (run.router.aux_loss_coeff > 0) m.operator_figures["moe/aux_loss"] = result.balance_loss;
  if (run.router.z_loss_coeff > 0) m.operator_figures["moe/z_loss"] = result.router_z_loss;
  metrics::ExpertLoad load;
  for (const auto& layer : result.expert_load) {
    if (!layer.empty()) load.push_back(layer);
  }
  if (!load.empty()) {
    m.moe = metrics::moe_health(load);
    if (run.logging.moe == "detailed") m.expert_load = load;
  }
  if (run.router.load_balancing == "expert_bias") {
    std::vector<std::vector<float>> biases;
    for (const auto& bias : rank.weights.expert_biases()) {
      if (!bias.defined()) continue;
      const auto host = bias.to(at::kCPU);
      biases.emplace_back(host.const_data_ptr<float>(), host.const_data_ptr<float>() + host.numel());
    }
    m.bias_max_abs = metrics::bias_max_abs(biases);
  }
  return m;
}

int Trainer::State::agreed_stop_signal() {
  const int64_t mine = process.stop_signal();
  return static_cast<int>(std::ranges::max(rank.groups.control->all_gather_host({&mine, 1})));
}

// Nothing when a signal asks the run to stop: a validation may take longer than checkpoint.grace.
std::optional<std::vector<metrics::ValidationResult>> Trainer::State::validate(int64_t number) {
  std::vector<metrics::ValidationResult> results;
  for (size_t set = 0; set < data.num_validation_sets(); ++set) {
    const int64_t steps = std::min(data.num_validation_steps(set), run.validation.steps.value_or(INT64_MAX));
    metrics::ValidationResult result{data.validation_name(set), 0, 0};
    double sum = 0;
    for (int64_t s = 0; s < steps; ++s) {
      begins(number, "validation");
      if (agreed_stop_signal() != 0) {
        log.info("the validation after step {} is dropped: the run is asked to stop", number);
        return std::nullopt;
      }
      const auto evaluated = rank.step.evaluate(data.validation_microbatches(set, s));
      sum += evaluated.loss_sum;
      result.tokens += evaluated.num_targets;
    }
    result.loss = result.tokens > 0 ? sum / static_cast<double>(result.tokens) : 0;
    results.push_back(std::move(result));
  }
  return results;
}

// The peak of the fullest rank, and who made it up.
void Trainer::State::add_memory(metrics::StepMetrics& m) {
  const auto peak = memory::current_ledger().peak();
  std::vector<int64_t> mine = {peak.bytes, memory::current_ledger().peak(memory::Domain::kHost).bytes};
  mine.insert(mine.end(), peak.by_category.begin(), peak.by_category.end());
  const auto all = rank.groups.control->all_gather_host(mine);
  const auto* fullest = all.data();
  for (size_t r = 0; r < all.size(); r += mine.size()) {
    if (all[r] > fullest[0]) fullest = all.data() + r;
  }
  m.peak_bytes = fullest[0];
  m.peak_rank = static_cast<int>((fullest - all.data()) / static_cast<int64_t>(mine.size()));
  m.host_bytes = fullest[1];
  for (int c = 0; c < memory::kNumCategories; ++c) {
    if (fullest[2 + c] > 0) {
      m.peak_by_category[std::string(memory::category_name(static_cast<memory::Category>(c)))] =
          fullest[2 + c];
    }
  }
}

Trainer::Trainer(const recipe::RunConfig& run, Process process, const Log& log)
    : state_(std::make_unique<State>(run, std::move(process), log)) {
  if (!state_->start.restored) set_starting_weights(run, state_->model, state_->rank.weights, log);
}

Trainer::~Trainer() = default;

Outcome Trainer::run() {
  auto& s = *state_;
  s.announce();
  s.begin = Clock::now();
  Outcome outcome{s.start.step};
  s.process.finished_step(s.start.step);
  // Reading a large model takes a while.
  outcome.stop_signal = s.agreed_stop_signal();
  if (outcome.stop_signal != 0) return outcome;
  if (s.start.step == 0 && s.run.validation.at_start && s.data.num_validation_sets() > 0) {
    metrics::StepMetrics start;
    start.num_ranks = s.process.world_size;
    auto validation = s.validate(0);
    if (!validation) {  // nothing has been trained, and nothing is to be saved
      outcome.stop_signal = s.agreed_stop_signal();
      return outcome;
    }
    start.validation = std::move(*validation);
    s.add_memory(start);
    s.reporter.step(start);
    s.begin = Clock::now();
  }
  for (int64_t number = s.start.step + 1; number <= s.run.training.steps; ++number) {
    s.begins(number, "step");
    auto metrics = s.train_step(number);
    s.add_memory(metrics);
    if (number == s.start.step + 1 && s.process.planned)
      metrics.plan_peak_bytes = s.process.planned->peak_bytes;
    outcome.step = number;
    const bool last = number == s.run.training.steps;
    if ((s.run.validation.interval > 0 && number % s.run.validation.interval == 0) || last) {
      metrics.validation = s.validate(number).value_or(std::vector<metrics::ValidationResult>{});
    }
    s.reporter.step(metrics);
    s.process.finished_step(number);
    s.last_save.finished(number, s.tokens, s.rank.step.state_events());
    outcome.stop_signal = s.checkpointing.after_step(number, s.tokens, last);
    if (outcome.stop_signal != 0) break;
  }
  s.reporter.finish();
  return outcome;
}

}  // namespace steppe::train
