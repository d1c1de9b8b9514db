// steppe bench optimizer --params N [--bucket β] [--slots s] [--dtype fp32|bf16] [--host-gradients] [--peers]
// [--json]
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/bench/optimizer_bench.h"
#include "cli/bench/options.h"
#include "cli/commands.h"
#include "steppe/base/bytes.h"
#include "steppe/base/error.h"

namespace steppe::cli {
namespace {

struct Arguments {
  OptimizerBenchOptions bench;
  double params = 4e7, bucket = 1e7;
  std::string dtype = "fp32", moments = "fp32";
  bool peers = false, json = false;
};

// A whole number, which people write as 4e7.
CLI::Validator whole_number_up_to(double most) {
  return {[most](std::string& text) {
            double value = 0;
            const bool whole = CLI::detail::lexical_cast(text, value) && std::trunc(value) == value;
            if (whole && value >= 1 && value <= most) return std::string();
            return fmt::format("must be a whole number from 1 to {:g}, got {}", most, text);
          },
          /*validator_desc=*/""};
}

std::string peers_python() {
  const char* python = std::getenv("STEPPE_PEERS_PYTHON");
  STEPPE_CHECK_VALUE(
      python && *python,
      "[bench optimizer] --peers needs STEPPE_PEERS_PYTHON, the Python of an environment with what "
      "benchmarks/peers/optimizer.lock lists; `./dev bench optimizer_vs_peers` makes one");
  return python;
}

std::string json_line(const OptimizerBenchRow& row, int64_t params) {
  const auto known = [](std::optional<int64_t> bytes) {
    return bytes ? nlohmann::ordered_json(*bytes) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json line;
  line[row.is_peer ? "peer" : "placement"] = row.name;
  line["params"] = params;
  line["time_s"] = row.time_s;
  line["device_bytes"] = known(row.device_bytes);
  line["host_bytes"] = known(row.host_bytes);
  line["staging_bytes"] = known(row.staging_bytes);
  line["link_bytes"] = known(row.link_bytes);
  return line.dump();
}

constexpr auto kTableLine = "{:<20} {:>10} {:>12} {:>10} {:>10} {:>10} {:>10}";

std::string table_line(const OptimizerBenchRow& row, int64_t params) {
  const auto known = [](std::optional<int64_t> bytes) { return bytes ? format_bytes(*bytes) : "-"; };
  return fmt::format(kTableLine, row.name, fmt::format("{:.1f} ms", row.time_s * 1e3),
                     fmt::format("{:.2f} ns", row.time_s * 1e9 / static_cast<double>(params)),
                     known(row.device_bytes), known(row.host_bytes), known(row.staging_bytes),
                     known(row.link_bytes));
}

int bench(Arguments arguments) {
  return run_bench([&] {
    auto& options = arguments.bench;
    options.params = static_cast<int64_t>(arguments.params);
    options.bucket_params = static_cast<int64_t>(arguments.bucket);
    options.dtype = dtype_of(arguments.dtype);
    options.moments = dtype_of(arguments.moments);
    if (arguments.peers) options.peers_python = peers_python();
    const auto header =
        fmt::format(kTableLine, "placement", "time", "/ parameter", "device", "host", "staging", "link");
    print_rows(
        bench_optimizer(options), arguments.json, header,
        [&](const auto& row) { return table_line(row, options.params); },
        [&](const auto& row) { return json_line(row, options.params); });
  });
}

}  // namespace

void add_bench_optimizer_command(CLI::App& bench_command, int& status) {
  auto arguments = std::make_shared<Arguments>();
  auto* command = bench_command.add_subcommand(
      "optimizer", "AdamW with its state on the device, in host memory, and streamed, checked bit for bit");
  auto& options = arguments->bench;
  command->add_option("--params", arguments->params, "parameters of this rank")
      ->check(whole_number_up_to(1e12))
      ->capture_default_str();
  command->add_option("--bucket", arguments->bucket, "parameters of a bucket")
      ->check(whole_number_up_to(1e12))
      ->capture_default_str();
  command->add_option("--slots", options.slots, "buckets on the way at a time")
      ->check(whole_number_from(1))
      ->capture_default_str();
  command->add_option("--dtype", arguments->dtype, "of working weights")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command->add_option("--moments", arguments->moments, "their dtype")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command->add_flag("--host-gradients", options.host_gradients,
                    "gradients of cpu and stream are there already");
  command->add_option("--samples", options.samples, "timed steps of each")
      ->check(whole_number_from(1))
      ->capture_default_str();
  command->add_flag("--peers", arguments->peers, "PyTorch's fused AdamW and DeepSpeedCPUAdam too, in turns");
  command->add_flag("--json", arguments->json, "one JSON line per row");
  command->callback([arguments, &status] { status = bench(*arguments); });
}

}  // namespace steppe::cli
