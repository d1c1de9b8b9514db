// The commands of the program. Each adds itself to the application; its exit status ends up in `status`.
#pragma once

#include <CLI/App.hpp>

namespace steppe::cli {

void add_train_command(CLI::App& app, int& status);

}  // namespace steppe::cli
