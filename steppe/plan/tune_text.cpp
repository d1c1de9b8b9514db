#include "steppe/plan/tune_text.h"

#include <fmt/format.h>

#include <optional>

#include "steppe/base/bytes.h"

namespace steppe::plan {
namespace {

const char* place(int64_t degree, const Hardware& hardware) {
  if (degree == 1) return "no exchange";
  return degree <= hardware.ranks_per_node ? "within a node" : "across nodes";
}

// 100M, 10K
std::string count_text(int64_t count) {
  if (count % 1'000'000 == 0) return fmt::format("{}M", count / 1'000'000);
  return count % 1'000 == 0 ? fmt::format("{}K", count / 1'000) : fmt::format("{}", count);
}

// "would need 183GiB of the 129GiB of a device": without one of the means.
std::string would_need(const TuneProblem& problem, const Candidate& chosen, const Means& without) {
  const auto room = problem.room();
  RoutedSizes routed(problem);
  const auto other = make_candidate(problem, chosen.run.parallelism, without, routed);
  const auto& budget = other.budget;
  if (budget.expected() > room.device) {
    return fmt::format("would need {} of the {} a device has for tensors", format_bytes(budget.expected()),
                       format_bytes(room.device));
  }
  if (budget.host.expected() > room.host) {
    return fmt::format("would need {} of the {} of host memory a rank has",
                       format_bytes(budget.host.expected()), format_bytes(room.host));
  }
  const auto tokens = static_cast<double>(tokens_of_step(other.run, problem.world_size));
  return fmt::format("would take {:.3g} s", tokens * other.seconds_a_token);
}

std::string why_placement(const TuneProblem& problem, const Candidate& chosen) {
  Means resident = chosen.means;
  resident.host_state = resident.host_gradients = false;
  return fmt::format(
      "optimizer state on the host: on the device the run {}; the update takes {:.2g} s streamed through the "
      "device, {:.2g} s by the host's cores",
      would_need(problem, chosen, resident), update_seconds(problem, chosen.run, "stream"),
      update_seconds(problem, chosen.run, "cpu"));
}

}  // namespace

std::vector<std::string> changed_keys(const recipe::RunConfig& run) {
  std::vector<std::string> changes;
  const auto set = [&](const char* key, const auto& value) {
    changes.push_back(fmt::format("{} = {}", key, value));
  };
  const auto text = [](const std::string& value) { return "\"" + value + "\""; };
  const auto or_auto = [&](const std::optional<int64_t>& value) {
    return value ? std::to_string(*value) : text("auto");
  };
  set("parallelism.ulysses_degree", run.parallelism.ulysses_degree);
  set("parallelism.expert_parallel_degree", run.parallelism.expert_parallel_degree);
  set("parallelism.vocab_parallel_degree", run.parallelism.vocab_parallel_degree);
  set("dispatch.kind", text(run.dispatch.kind));
  set("dispatch.token_budget", run.dispatch.token_budget);
  set("dispatch.tile_bytes", or_auto(run.dispatch.tile_bytes));
  set("loss.kind", text(run.loss.kind));
  set("loss.tile_tokens", or_auto(run.loss.tile_tokens));
  set("activation_checkpoint.mode", text(run.activation_checkpoint.mode));
  set("activation_checkpoint.mlp_tile_tokens", or_auto(run.activation_checkpoint.mlp_tile_tokens));
  set("offload.activations", text(run.offload.activations));
  if (run.offload.activations != "none") {
    set("offload.host_budget", text(format_bytes_exactly(run.offload.host_budget)));
  }
  set("optimizer.placement", text(run.optimizer.placement));
  set("optimizer.gradients", text(run.optimizer.gradients));
  set("optimizer.bucket_params", run.optimizer.bucket_params);
  return changes;
}

std::vector<std::string> reasons(const TuneProblem& problem, const Candidate& chosen, const Plan& plan,
                                 const Considered& considered) {
  std::vector<std::string> lines;
  const auto& p = chosen.run.parallelism;
  const auto& means = chosen.means;
  const auto without = [&](auto change) {
    Means fewer = means;
    change(fewer);
    return would_need(problem, chosen, fewer);
  };
  lines.push_back(
      fmt::format("{} layouts, {} of them fit; this one takes least time by the model: {:.3g} s a step",
                  considered.layouts, considered.fitting, plan.step_seconds));
  lines.push_back(fmt::format(
      "sequence exchanges {}, dispatch {}, vocabulary {}", place(p.ulysses_degree, problem.hardware),
      place(p.expert_parallel_degree, problem.hardware), place(p.vocab_parallel_degree, problem.hardware)));
  if (means.recomputes) {
    lines.push_back(fmt::format("layers are recomputed: keeping everything, the run {}",
                                without([](Means& m) { m.recomputes = false, m.host_boundaries = false; })));
    lines.push_back(plan.kept.empty() ? "attention is recomputed" : plan.kept);
  } else {
    lines.emplace_back("nothing is recomputed: there is room to keep everything");
  }
  if (means.host_state) {
    lines.push_back(why_placement(problem, chosen));
  } else {
    lines.emplace_back("optimizer state on the device: there is room for it");
  }
  if (means.host_gradients) {
    lines.push_back(fmt::format("gradients on the host: on the device the run {}",
                                without([](Means& m) { m.host_gradients = false; })));
  }
  if (means.host_boundaries) {
    lines.push_back(fmt::format("layer inputs to the host: on the device the run {}",
                                without([](Means& m) { m.host_boundaries = false; })));
  }
  const auto widest = Means{}.token_budget;
  lines.push_back(means.token_budget == widest
                      ? fmt::format("chunks of {} tokens: larger ones save no time", widest)
                      : fmt::format("chunks of {} tokens: with {} the run {}", means.token_budget, widest,
                                    without([&](Means& m) { m.token_budget = widest; })));
  if (chosen.run.optimizer.placement == "stream") {
    lines.push_back(fmt::format("buckets of {} parameters: {}",
                                count_text(chosen.run.optimizer.bucket_params),
                                chosen.run.optimizer.bucket_params == kMostBucketParams
                                    ? "their staging is not what needs most"
                                    : "the staging of larger ones would be what needs most"));
  }
  lines.emplace_back(
      "tiles by rule: experts an eighth of a chunk, feed-forwards 256MiB, logits half a shard's gradient or "
      "32MiB");
  return lines;
}

}  // namespace steppe::plan
