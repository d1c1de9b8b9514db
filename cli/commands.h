// The commands of the program. Each adds itself to the application; its exit status ends up in `status`.
#pragma once

#include <CLI/App.hpp>

namespace steppe::cli {

void add_train_command(CLI::App& app, int& status);
void add_report_command(CLI::App& app, int& status);
void add_plan_command(CLI::App& app, int& status);
void add_init_command(CLI::App& app, int& status);
void add_inspect_command(CLI::App& app, int& status);
void add_export_command(CLI::App& app, int& status);

// Below `steppe bench`.
void add_bench_dispatch_command(CLI::App& bench, int& status);
void add_bench_vocab_command(CLI::App& bench, int& status);
void add_bench_offload_command(CLI::App& bench, int& status);
void add_bench_optimizer_command(CLI::App& bench, int& status);

}  // namespace steppe::cli
