// steppe bench vocab --tokens N --hidden H --vocab V --degree P [--dtype fp32|bf16] [--dry] [--json]
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/vocab_bench.h"
#include "steppe/base/bytes.h"

namespace steppe::cli {
namespace {

struct Arguments {
  VocabBenchOptions bench;
  std::string dtype = "fp32";
  bool json = false;
};

std::string json_line(const VocabBenchRow& row) {
  const auto seconds = [](std::optional<double> s) {
    return s ? nlohmann::ordered_json(*s) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json line;
  line["kind"] = row.kind;
  line["vocab_bytes"] = row.vocab_bytes;
  line["peak_bytes"] = row.peak_bytes;
  line["wire_bytes"] = row.wire_bytes;
  line["products"] = row.products;
  line["products_time_s"] = seconds(row.products_time_s);
  line["time_s"] = seconds(row.time_s);
  return line.dump();
}

std::string table_line(const VocabBenchRow& row) {
  const auto seconds = [](std::optional<double> s) {
    return s ? fmt::format("{:.3f} s", *s) : std::string("-");
  };
  return fmt::format("{:<17} {:>10} {:>10} {:>10} {:>9.2f} {:>14} {:>10}", row.kind,
                     format_bytes(row.vocab_bytes), format_bytes(row.peak_bytes),
                     format_bytes(row.wire_bytes), row.products, seconds(row.products_time_s),
                     seconds(row.time_s));
}

int bench(Arguments arguments) {
  arguments.bench.dtype = arguments.dtype == "bf16" ? c10::kBFloat16 : c10::kFloat;
  try {
    const auto rows = bench_vocab(arguments.bench);
    if (!arguments.json) {
      std::printf("%s\n", fmt::format("{:<17} {:>10} {:>10} {:>10} {:>9} {:>14} {:>10}", "kind", "vocab",
                                      "peak", "wire", "products", "three products", "time")
                              .c_str());
    }
    for (const auto& row : rows)
      std::printf("%s\n", (arguments.json ? json_line(row) : table_line(row)).c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

}  // namespace

void add_bench_vocab_command(CLI::App& bench_command, int& status) {
  auto arguments = std::make_shared<Arguments>();
  auto* command = bench_command.add_subcommand(
      "vocab", "every kind of the vocabulary loss on the same input, checked against full logits");
  auto& options = arguments->bench;
  command->add_option("--tokens", options.tokens, "rows of each rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--hidden", options.hidden, "hidden width")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--vocab", options.vocab, "vocabulary entries")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--degree", options.degree,
                   "ranks that share the vocabulary, as threads; with 1, "
                   "OMP_NUM_THREADS says how many threads compute")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command->add_option("--dtype", arguments->dtype, "working precision")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command->add_option("--kind", options.kinds, "only these; repeat for several")
      ->check(CLI::IsMember(vocab_bench_kinds()));
  command->add_option("--tile-tokens", options.tile_tokens, "rows of a rank in a tile (default: derived)")
      ->check(CLI::PositiveNumber);
  command->add_option("--samples", options.samples, "timed runs of each kind")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--dry", options.dry, "bytes only: nothing is computed or held, any size will do");
  command->add_flag("--json", arguments->json, "one JSON line per kind");
  command->callback([arguments, &status] { status = bench(*arguments); });
}

}  // namespace steppe::cli
