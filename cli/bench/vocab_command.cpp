// steppe bench vocab --tokens N --hidden H --vocab V --degree P [--dtype fp32|bf16] [--dry|--peers] [--json]
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/bench/options.h"
#include "cli/bench/vocab_bench.h"
#include "cli/commands.h"
#include "steppe/base/bytes.h"
#include "steppe/base/error.h"

namespace steppe::cli {
namespace {

struct Arguments {
  VocabBenchOptions bench;
  std::string dtype = "fp32";
  bool peers = false, json = false;
};

std::string peers_python() {
  const char* python = std::getenv("STEPPE_PEERS_PYTHON");
  STEPPE_CHECK_VALUE(
      python && *python,
      "[bench vocab] --peers needs STEPPE_PEERS_PYTHON, the Python of an environment with what "
      "benchmarks/peers/vocab_loss.lock lists; `./dev bench vocab_loss_vs_peers` makes one");
  return python;
}

std::string json_line(const VocabBenchRow& row) {
  nlohmann::ordered_json line;
  line["kind"] = row.kind;
  line["vocab_bytes"] = row.vocab_bytes;
  line["peak_bytes"] = row.peak_bytes;
  line["wire_bytes"] = row.wire_bytes;
  line["products"] = known(row.products);
  line["products_time_s"] = known(row.products_time_s);
  line["time_s"] = known(row.time_s);
  return line.dump();
}

constexpr auto kTableLine = "{:<19} {:>10} {:>10} {:>10} {:>9} {:>14} {:>10}";

std::string table_line(const VocabBenchRow& row) {
  const auto seconds = [](std::optional<double> s) {
    return s ? fmt::format("{:.3f} s", *s) : std::string("-");
  };
  return fmt::format(kTableLine, row.kind, format_bytes(row.vocab_bytes), format_bytes(row.peak_bytes),
                     format_bytes(row.wire_bytes), row.products ? fmt::format("{:.2f}", *row.products) : "-",
                     seconds(row.products_time_s), seconds(row.time_s));
}

int bench(Arguments arguments) {
  return run_bench([&] {
    auto& options = arguments.bench;
    const std::pair degree{"--degree", int64_t{options.degree}}, tokens{"--tokens", options.tokens},
        hidden{"--hidden", options.hidden}, vocab{"--vocab", options.vocab};
    check_size("vocab", {degree, tokens, hidden});
    check_size("vocab", {degree, tokens, vocab});
    check_size("vocab", {vocab, hidden});
    options.dtype = dtype_of(arguments.dtype);
    if (arguments.peers) options.peers_python = peers_python();
    const auto header =
        fmt::format(kTableLine, "kind", "vocab", "peak", "wire", "products", "three products", "time");
    print_rows(bench_vocab(options), arguments.json, header, table_line, json_line);
  });
}

}  // namespace

void add_bench_vocab_command(CLI::App& bench_command, int& status) {
  auto arguments = std::make_shared<Arguments>();
  auto* command = bench_command.add_subcommand(
      "vocab", "every kind of the vocabulary loss on the same input, checked against full logits");
  auto& options = arguments->bench;
  add_positive(*command, "--tokens", options.tokens, "rows of each rank");
  add_positive(*command, "--hidden", options.hidden, "hidden width");
  add_positive(*command, "--vocab", options.vocab, "vocabulary entries");
  command
      ->add_option("--degree", options.degree,
                   "ranks that share the vocabulary, as threads; with 1, "
                   "OMP_NUM_THREADS says how many threads compute")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  add_dtype(*command, arguments->dtype);
  command->add_option("--kind", options.kinds, "only these; repeat for several")
      ->check(CLI::IsMember(vocab_bench_kinds()));
  command->add_option("--tile-tokens", options.tile_tokens, "rows of a rank in a tile (default: derived)")
      ->check(whole_number_from(1));
  add_positive(*command, "--samples", options.samples, "timed runs of each kind");
  auto* dry =
      command->add_flag("--dry", options.dry, "bytes only: nothing is computed or held, any size will do");
  command
      ->add_flag("--peers", arguments->peers,
                 "PyTorch's losses and Cut Cross-Entropy too, in turns with ours: with --degree 1, in the "
                 "environment that STEPPE_PEERS_PYTHON names")
      ->excludes(dry);
  command->add_flag("--json", arguments->json, "one JSON line per kind");
  command->callback([arguments, &status] { status = bench(*arguments); });
}

}  // namespace steppe::cli
