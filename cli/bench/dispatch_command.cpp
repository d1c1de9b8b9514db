// steppe bench dispatch --shape NAME|H,I,E,k --tokens N --expert-degree E_p --profile P --chunks
// K|--token-budget c
//                       [--dry] [--json] [--timeline FILE]
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/bench/dispatch_bench.h"
#include "cli/bench/options.h"
#include "cli/commands.h"
#include "steppe/base/bytes.h"
#include "steppe/base/error.h"

namespace steppe::cli {
namespace {

struct Arguments {
  DispatchBenchOptions bench;
  std::string shape = "512,512,32,4", profile = "balanced", dtype = "fp32", gradients = "fp32";
  std::string membership = "strided";
  int64_t chunks = 0, max_helpers = -1;
  bool json = false;
};

void set_shape(DispatchBenchOptions& options, const std::string& shape) {
  // Hidden, expert width, experts, experts per token.
  const std::string numbers = shape == "gpt-oss-120b" ? "2880,2880,128,4"
                              : shape == "qwen3-30b"  ? "2048,768,128,8"
                                                      : shape;
  int64_t* fields[] = {&options.hidden, &options.intermediate, &options.num_experts, &options.top_k};
  long long values[4];
  int used = 0;
  const bool good = std::sscanf(numbers.c_str(), "%lld,%lld,%lld,%lld%n", values, values + 1, values + 2,
                                values + 3, &used) == 4 &&
                    static_cast<size_t>(used) == numbers.size() && *std::min_element(values, values + 4) > 0;
  STEPPE_CHECK_VALUE(good, "[bench dispatch] --shape must be gpt-oss-120b, qwen3-30b or H,I,E,k, got {}",
                     shape);
  for (int i = 0; i < 4; ++i) *fields[i] = values[i];
}

std::string json_line(const DispatchBenchRow& row) {
  nlohmann::ordered_json line;
  line["kind"] = row.kind, line["pass"] = row.pass;
  line["peak_bytes"] = row.peak_bytes;
  line["dispatch_bytes"] = row.dispatch_bytes, line["expert_bytes"] = row.expert_bytes;
  line["receive_bytes_max"] = row.receive_bytes_max, line["bound_bytes"] = row.bound_bytes;
  line["helpers_max"] = row.helpers_max, line["send_share"] = row.send_share;
  line["units"] = row.units, line["all_to_alls"] = row.all_to_alls;
  line["plan_time_s"] = row.plan_time_s;
  line["time_s"] = row.time_s ? nlohmann::ordered_json(*row.time_s) : nlohmann::ordered_json();
  if (row.travelling_s) line["travelling_s"] = *row.travelling_s, line["hidden_s"] = *row.hidden_s;
  return line.dump();
}

constexpr auto kTableLine =
    "{:<15} {:<9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>8} {:>7} {:>6} {:>12} {:>9} {:>10}";

std::string table_line(const DispatchBenchRow& row) {
  return fmt::format(kTableLine, row.kind, row.pass, format_bytes(row.peak_bytes),
                     format_bytes(row.dispatch_bytes), format_bytes(row.expert_bytes),
                     format_bytes(row.receive_bytes_max), format_bytes(row.bound_bytes), row.helpers_max,
                     fmt::format("{:.2f}%", 100 * row.send_share), fmt::format("{:.2f}", row.units),
                     row.all_to_alls, fmt::format("{:.3f} ms", 1e3 * row.plan_time_s),
                     row.time_s ? fmt::format("{:.3f} s", *row.time_s) : "-");
}

void check_sizes(const DispatchBenchOptions& options) {
  const std::pair degree{"--expert-degree", int64_t{options.expert_degree}},
      tokens{"--tokens", options.tokens}, experts{"experts of --shape", options.num_experts},
      hidden{"its hidden width", options.hidden}, intermediate{"its expert width", options.intermediate},
      top_k{"its experts per token", options.top_k}, tile{"--tile-rows", options.dispatch.tile_rows};
  check_size("dispatch", {{"slots", 4}, degree, tokens, top_k, hidden});
  check_size("dispatch", {{"gate, up and activation", 3}, degree, tokens, top_k, intermediate});
  check_size("dispatch", {{"rows of an expert tile", 2}, tile, hidden});
  check_size("dispatch", {{"gate, up and activation", 3}, tile, intermediate});
  check_size("dispatch", {{"weights and gradients", 6}, experts, hidden, intermediate});
  constexpr int64_t kMostRoutes = std::numeric_limits<int32_t>::max();
  STEPPE_CHECK_VALUE(
      options.tokens <= kMostRoutes / options.top_k,
      "[bench dispatch] --tokens = {} times the {} experts per token must be at most {} routes",
      options.tokens, options.top_k, kMostRoutes);
  const double operations = 22.0 * static_cast<double>(options.tokens * options.top_k) *
                            static_cast<double>(options.expert_degree) * static_cast<double>(options.hidden) *
                            static_cast<double>(options.intermediate);
  STEPPE_CHECK_VALUE(operations <= 0x1p62,
                     "[bench dispatch] the experts must take at most 2^62 operations in all, not {:.3g}",
                     operations);
}

void print(const DispatchBenchRow& row) {
  std::printf("%s %s: rows travelled for %.3f s, %.0f%% of it while experts worked\n", row.kind.c_str(),
              row.pass.c_str(), *row.travelling_s,
              *row.travelling_s > 0 ? 100 * *row.hidden_s / *row.travelling_s : 0);
}

int bench(Arguments arguments) {
  return run_bench([&] {
    auto& options = arguments.bench;
    set_shape(options, arguments.shape);
    check_sizes(options);
    options.profile = ops::RoutingProfile::parse(arguments.profile);
    options.dtype = dtype_of(arguments.dtype);
    options.gradients = dtype_of(arguments.gradients);
    STEPPE_CHECK_VALUE(options.gradients == at::kFloat || options.gradients == options.dtype,
                       "[bench dispatch] --gradients bf16 needs --dtype bf16, got {}", arguments.dtype);
    auto& dispatch = options.dispatch;
    dispatch.membership =
        arguments.membership == "strided" ? ops::Membership::kStrided : ops::Membership::kContiguous;
    if (arguments.max_helpers >= 0) dispatch.plan.least_loaded.max_helpers = arguments.max_helpers;
    if (arguments.chunks > 0) {
      dispatch.max_chunks = arguments.chunks;
      dispatch.token_budget = 1 + (options.tokens - 1) / arguments.chunks;
    }
    const auto rows = bench_dispatch(options);
    const auto header = fmt::format(kTableLine, "kind", "pass", "peak", "dispatch", "expert", "received",
                                    "bound", "helpers", "share", "units", "all-to-alls", "plan", "time");
    print_rows(rows, arguments.json, header, table_line, json_line);
    for (const auto& row : rows)
      if (row.travelling_s && !arguments.json) print(row);
  });
}

}  // namespace

void add_bench_dispatch_command(CLI::App& bench_command, int& status) {
  auto arguments = std::make_shared<Arguments>();
  auto* command = bench_command.add_subcommand(
      "dispatch", "every kind of expert dispatch on the same input, checked against ep and fp64 loops");
  auto& options = arguments->bench;
  auto& dispatch = options.dispatch;
  command->add_option("--shape", arguments->shape, "gpt-oss-120b, qwen3-30b, or H,I,E,k")
      ->capture_default_str();
  command->add_option("--tokens", options.tokens, "of each rank")
      ->check(whole_number_from(1))
      ->capture_default_str();
  command->add_option("--expert-degree", options.expert_degree, "ranks that share the experts, as threads")
      ->check(whole_number_from(1, 256))
      ->capture_default_str();
  command->add_option("--profile", arguments->profile, "r/h, balanced, random, one or stride")
      ->capture_default_str();
  auto* chunks =
      command->add_option("--chunks", arguments->chunks, "of pipelined_llep")->check(whole_number_from(1));
  command->add_option("--token-budget", dispatch.token_budget, "tokens of a rank in a chunk")
      ->check(whole_number_from(1))
      ->excludes(chunks)
      ->capture_default_str();
  command->add_option("--membership", arguments->membership, "of tokens in chunks")
      ->check(CLI::IsMember({"strided", "contiguous"}))
      ->capture_default_str();
  command
      ->add_option("--max-helpers", arguments->max_helpers, "foreign experts of a rank (default: any number)")
      ->check(whole_number_from(0));
  command
      ->add_option("--min-tokens", dispatch.plan.least_loaded.min_rows,
                   "smallest piece of an expert that moves")
      ->check(whole_number_from(1))
      ->capture_default_str();
  command->add_option("--tile-rows", dispatch.tile_rows, "rows of an expert tile (default: derived)")
      ->check(whole_number_from(1));
  add_dtype(*command, arguments->dtype);
  command->add_option("--gradients", arguments->gradients, "of weights: fp32, or bf16 with --dtype bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command->add_option("--kind", options.kinds, "only these; repeat for several")
      ->check(CLI::IsMember(dispatch_bench_kinds()));
  command->add_option("--samples", options.samples, "timed runs of each kind")
      ->check(whole_number_from(1))
      ->capture_default_str();
  command->add_flag("--keep", options.keep,
                    "between the passes, what a run keeps that recomputes nothing (default: recompute)");
  command->add_flag("--dry", options.dry, "bytes only: nothing is computed or held, any size will do");
  command->add_option(
      "--timeline", options.timeline,
      "file for a traced run of every kind: products and exchanges, in Chrome's trace format");
  command->add_flag("--json", arguments->json, "one JSON line per kind and pass");
  command->callback([arguments, &status] { status = bench(*arguments); });
}

}  // namespace steppe::cli
