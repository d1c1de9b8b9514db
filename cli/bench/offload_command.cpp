// steppe bench offload [--tokens N] [--layers L] [--hidden H] … [--dtype fp32|bf16] [--dry] [--json]
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/bench/offload_bench.h"
#include "cli/bench/options.h"
#include "cli/commands.h"
#include "steppe/base/bytes.h"

namespace steppe::cli {
namespace {

struct Arguments {
  OffloadBenchOptions bench;
  std::string dtype = "fp32";
  bool pageable = false, json = false;
};

std::string json_line(const OffloadBenchRow& row) {
  const auto known = [](const auto& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json line;
  line["placement"] = row.placement;
  line["boundaries_on_host"] = row.boundaries_on_host;
  line["outputs_on_device"] = row.outputs_on_device;
  line["outputs_on_host"] = row.outputs_on_host;
  line["peak_bytes"] = row.peak_bytes;
  line["boundary_bytes"] = row.boundary_bytes;
  line["saved_bytes"] = row.saved_bytes;
  line["host_bytes"] = row.host_bytes;
  line["attention_flops"] = row.attention_flops;
  line["allocator_peak_bytes"] = known(row.allocator_peak_bytes);
  line["time_s"] = known(row.time_s);
  line["against_device"] = known(row.against_device);
  return line.dump();
}

constexpr auto kTableLine = "{:<24} {:>10} {:>10} {:>10} {:>10} {:>10} {:>8}";

std::string table_line(const OffloadBenchRow& row) {
  return fmt::format(kTableLine, row.placement, format_bytes(row.peak_bytes),
                     format_bytes(row.boundary_bytes), format_bytes(row.saved_bytes),
                     format_bytes(row.host_bytes), row.time_s ? fmt::format("{:.3f} s", *row.time_s) : "-",
                     row.against_device ? fmt::format("{:.3f}", *row.against_device) : "-");
}

void check_sizes(const OffloadBenchOptions& options) {
  const std::pair tokens{"--tokens", options.tokens}, layers{"--layers", options.layers},
      hidden{"--hidden", options.hidden}, intermediate{"--intermediate", options.intermediate},
      experts{"--experts", options.experts}, vocab{"--vocab", options.vocab}, top_k{"--top-k", options.top_k},
      head_dim{"--head-dim", options.head_dim};
  check_size("offload", {tokens, layers, hidden});
  check_size("offload", {tokens, layers, {"--heads", options.heads}, head_dim});
  check_size("offload", {tokens, {"--kv-heads", options.kv_heads}, head_dim});
  check_size("offload", {tokens, top_k, hidden});
  check_size("offload", {tokens, top_k, intermediate});
  check_size("offload", {layers, experts, hidden, intermediate});
  check_size("offload", {vocab, hidden});
}

int bench(Arguments arguments) {
  return run_bench([&] {
    auto& options = arguments.bench;
    check_sizes(options);
    options.dtype = dtype_of(arguments.dtype);
    options.pin_memory = !arguments.pageable;
    const auto header =
        fmt::format(kTableLine, "placement", "peak", "boundary", "saved", "host", "time", "ratio");
    print_rows(bench_offload(options), arguments.json, header, table_line, json_line);
  });
}

}  // namespace

void add_bench_offload_command(CLI::App& bench_command, int& status) {
  auto arguments = std::make_shared<Arguments>();
  auto* command = bench_command.add_subcommand(
      "offload",
      "training steps with boundaries and attention outputs on the device, in host memory or recomputed, "
      "checked to agree to the bit");
  auto& options = arguments->bench;
  const auto size = [&](const char* name, int64_t& value, const char* what) {
    add_positive(*command, name, value, what);
  };
  size("--tokens", options.tokens, "tokens of the sequence");
  size("--layers", options.layers, "layers");
  size("--hidden", options.hidden, "hidden width");
  size("--heads", options.heads, "attention heads");
  size("--kv-heads", options.kv_heads, "key-value heads");
  size("--head-dim", options.head_dim, "width of a head");
  size("--experts", options.experts, "experts of a layer");
  size("--top-k", options.top_k, "experts of a token");
  size("--intermediate", options.intermediate, "width of an expert");
  size("--vocab", options.vocab, "vocabulary entries");
  size("--samples", options.samples, "timed steps of each placement");
  add_dtype(*command, arguments->dtype);
  command->add_option("--placement", options.placements, "only these and \"device\"; repeat for several")
      ->check(CLI::IsMember(offload_bench_placements()));
  command->add_flag("--pageable", arguments->pageable, "host memory that is not pinned");
  command->add_flag("--dry", options.dry, "bytes only: nothing is computed or held, any size will do");
  command->add_flag("--json", arguments->json, "one JSON line per placement");
  command->callback([arguments, &status] { status = bench(*arguments); });
}

}  // namespace steppe::cli
