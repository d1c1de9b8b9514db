#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "steppe/base/bytes.h"
#include "steppe/plan/plan.h"

namespace steppe::plan {
namespace {

using memory::Category;

std::string category(int index) {
  return std::string(memory::category_name(static_cast<Category>(index)));
}

std::string term_line(const Term& term) {
  return fmt::format("  {:>10}  {:<10} {} = {}\n", format_bytes(term.expected),
                     memory::category_name(term.category), term.name, term.formula);
}

std::string terms_text(const Phase& phase) {
  auto terms = phase.terms;
  std::sort(terms.begin(), terms.end(), [](const Term& a, const Term& b) { return a.expected > b.expected; });
  std::string text;
  for (const auto& term : terms) text += term_line(term);
  return text;
}

// With the copy of the asynchronous writer, which the dry run of a step does not meet.
Phase host_of(const Budget& budget) {
  auto host = budget.host;
  if (const int64_t bytes = budget.checkpoint_snapshot; bytes > 0) {
    host.terms.push_back(
        {"checkpoint's copy", "checkpoint.host_budget", memory::Category::kStaging, bytes, bytes});
  }
  return host;
}

std::string contributors(const memory::Peak& peak) {
  std::vector<int> order(memory::kNumCategories);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return peak.by_category[a] > peak.by_category[b]; });
  std::string text;
  for (const int c : order) {
    if (peak.by_category[c] == 0) break;
    text += fmt::format("  {:>10}  {:<10} {:.1f} %\n", format_bytes(peak.by_category[c]), category(c),
                        100.0 * static_cast<double>(peak.by_category[c]) / static_cast<double>(peak.bytes));
  }
  return text;
}

template <class Kind>
nlohmann::ordered_json tally_json(const Tally<Kind>& tally) {
  nlohmann::ordered_json json;
  for (size_t i = 0; i < tally.values().size(); ++i) {
    json[std::string(name(static_cast<Kind>(i)))] = tally.values()[i];
  }
  return json;
}

nlohmann::ordered_json link_json(const LinkTally& tally) {
  nlohmann::ordered_json json;
  for (const auto way : {LinkDirection::kHostToDevice, LinkDirection::kDeviceToHost}) {
    const auto purposes = tally_json(tally[way]);  // items() does not keep it
    for (const auto& [purpose, bytes] : purposes.items()) {
      json[fmt::format("{}_{}", purpose, name(way))] = bytes;
    }
  }
  return json;
}

nlohmann::ordered_json phase_json(const Phase& phase) {
  nlohmann::ordered_json json;
  json["name"] = phase.name;
  json["terms"] = nlohmann::ordered_json::array();
  json["expected_bytes"] = phase.expected(), json["guaranteed_bytes"] = phase.guaranteed();
  for (const auto& term : phase.terms) {
    json["terms"].push_back({{"name", term.name},
                             {"formula", term.formula},
                             {"category", memory::category_name(term.category)},
                             {"expected_bytes", term.expected},
                             {"guaranteed_bytes", term.guaranteed}});
  }
  return json;
}

nlohmann::ordered_json by_category_json(const memory::BytesByCategory& bytes) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (int c = 0; c < memory::kNumCategories; ++c) {
    if (bytes[c] > 0) json[category(c)] = bytes[c];
  }
  return json;
}

}  // namespace

std::string plan_text(const recipe::RunConfig& run, const Plan& plan, const std::string& advice) {
  const auto& peak = plan.rank.device;
  const auto& largest = plan.budget.largest();
  const auto& layout = plan.layout;
  std::string text = fmt::format(
      "{}: {} ranks (ulysses {}, expert {}, vocab {}) on {}\n{} tokens of a sequence, {} of a rank, {} "
      "micro-batches a step; routing profile {}\n\n",
      run.run.name, layout.world_size, layout.ulysses_degree, layout.expert_degree, layout.vocab_degree,
      plan.hardware.name, run.training.seq_length, plan.rank.num_tokens, plan.rank.num_micro_batches,
      run.plan.routing_profile);
  text += fmt::format("{}\n", plan.verdict);
  if (!advice.empty()) text += fmt::format("{}\n", advice);
  for (const auto& remark : plan.remarks) text += fmt::format("note: {}\n", remark);
  if (!plan.kept.empty()) text += plan.kept + "\n";
  text += fmt::format("\ndry run: peak {} on rank {}, in {}\n{}", format_bytes(peak.bytes), plan.rank.rank,
                      peak.mark, contributors(peak));
  text += fmt::format("  {:>10}  context, libraries, communicators\n", format_bytes(plan.reserved_bytes));
  text += fmt::format("host memory per node: {} of {}\n", format_bytes(plan.host_bytes_per_node),
                      format_bytes(plan.hardware.host_memory)) +
          terms_text(host_of(plan.budget));
  text += fmt::format("\nbudget: {} expected, {} guaranteed whatever the router does\npersistent {}\n{}",
                      format_bytes(plan.budget.expected()), format_bytes(plan.budget.guaranteed()),
                      format_bytes(plan.budget.persistent.expected()), terms_text(plan.budget.persistent));
  text += fmt::format("largest phase: {} {}\n{}", largest.name, format_bytes(largest.expected()),
                      terms_text(largest));
  const auto& counters = plan.rank.counters;
  text += fmt::format(
      "\na step: {:.3g} TFLOP, {} over the wire, {} to and {} from the device over the host link, by rank; "
      "about "
      "{:.3g} s\n",
      static_cast<double>(counters.flops.sum()) / 1e12, format_bytes(counters.wire_bytes.sum()),
      format_bytes(counters.link_bytes[LinkDirection::kHostToDevice].sum()),
      format_bytes(counters.link_bytes[LinkDirection::kDeviceToHost].sum()), plan.step_seconds);
  return text;
}

std::string plan_json(const recipe::RunConfig& run, const Plan& plan, const std::vector<std::string>& changes,
                      const std::string& advice) {
  nlohmann::ordered_json json;
  json["run"] = run.run.name;
  if (!changes.empty()) json["changes"] = changes;
  if (!advice.empty()) json["advice"] = advice;
  json["fits"] = plan.fits, json["verdict"] = plan.verdict, json["remarks"] = plan.remarks;
  if (!plan.kept.empty()) json["kept"] = plan.kept;
  json["peak_bytes"] = plan.rank.device.bytes, json["reserved_bytes"] = plan.reserved_bytes;
  json["device_memory"] = plan.hardware.device_memory;
  json["expected_bytes"] = plan.budget.expected(), json["guaranteed_bytes"] = plan.budget.guaranteed();
  json["host_bytes"] = plan.host_bytes_per_node, json["host_memory"] = plan.hardware.host_memory;
  json["rank"] = plan.rank.rank, json["instant"] = plan.rank.device.mark;
  json["by_category"] = by_category_json(plan.rank.device.by_category);
  json["persistent_by_category"] = by_category_json(plan.rank.persistent);
  json["own_peak_by_category"] = by_category_json(plan.rank.own_peak);
  json["terms"] = phase_json(plan.budget.persistent)["terms"];
  json["host_terms"] = phase_json(host_of(plan.budget))["terms"];
  json["largest_phase"] = plan.budget.largest().name;
  for (const auto& phase : plan.budget.phases) json["phases"].push_back(phase_json(phase));
  json["layout"] = {{"world_size", plan.layout.world_size},
                    {"ulysses_degree", plan.layout.ulysses_degree},
                    {"expert_parallel_degree", plan.layout.expert_degree},
                    {"vocab_parallel_degree", plan.layout.vocab_degree}};
  json["hardware"] = plan.hardware.name;
  json["routing_profile"] = run.plan.routing_profile;
  json["seq_length"] = run.training.seq_length, json["tokens_per_rank"] = plan.rank.num_tokens;
  json["micro_batches"] = plan.rank.num_micro_batches;
  json["flops"] = tally_json(plan.rank.counters.flops);
  json["wire_bytes"] = tally_json(plan.rank.counters.wire_bytes);
  json["link_bytes"] = link_json(plan.rank.counters.link_bytes);
  json["step_seconds"] = plan.step_seconds;
  return json.dump(2);
}

}  // namespace steppe::plan
