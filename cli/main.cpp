// steppe: the program. One file per command; this one only finds the command.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "cli/commands.h"
#include "steppe/memory/tracking_allocator.h"

int main(int argc, char** argv) {
  steppe::memory::install_tracking_allocators();
  CLI::App app(
      "Steppe trains Mixture-of-Experts language models at long context with every memory peak flat.",
      "steppe");
  app.require_subcommand(1);
  int status = 0;
  steppe::cli::add_train_command(app, status);
  steppe::cli::add_report_command(app, status);
  steppe::cli::add_plan_command(app, status);
  steppe::cli::add_init_command(app, status);
  steppe::cli::add_inspect_command(app, status);
  steppe::cli::add_export_command(app, status);
  auto* bench = app.add_subcommand("bench", "time an operator against what it replaces, on the same input");
  bench->require_subcommand(1);
  steppe::cli::add_bench_dispatch_command(*bench, status);
  steppe::cli::add_bench_vocab_command(*bench, status);
  steppe::cli::add_bench_offload_command(*bench, status);
  steppe::cli::add_bench_optimizer_command(*bench, status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // --help is no mistake; CLI11's own numbers say nothing to a script
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return status;
}
