// steppe export CHECKPOINT FOLDER
#include <CLI/App.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "steppe/base/bytes.h"
#include "steppe/base/error.h"
#include "steppe/checkpoint/export_checkpoint.h"

namespace steppe::cli {
namespace {

struct Options {
  std::string checkpoint, folder;
  std::vector<std::string> overrides;
};

int export_model(const Options& options) {
  try {
    const auto report = checkpoint::export_checkpoint(options.checkpoint, options.folder, options.overrides);
    const auto& weights = report.weights;
    std::printf("%s: %s of step %lld, %lld tensors, %s in %lld %s\n", options.folder.c_str(),
                report.model_type.c_str(), static_cast<long long>(report.step),
                static_cast<long long>(weights.num_tensors), format_bytes(weights.num_bytes).c_str(),
                static_cast<long long>(weights.num_files), weights.num_files == 1 ? "file" : "files");
    if (report.tokenizer.empty()) {
      std::puts("no tokenizer: the run named none, or it is gone; --set data.tokenizer=FOLDER names one");
    } else {
      std::printf("tokenizer of %s\n", report.tokenizer.c_str());
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return dynamic_cast<const ValueError*>(&error) != nullptr ? 2 : 1;
  }
}

}  // namespace

void add_export_command(CLI::App& app, int& status) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("export", "write a checkpoint's model in Hugging Face's form");
  command
      ->add_option("checkpoint", options->checkpoint,
                   "a checkpoint, the file \"latest\", or a folder that holds some")
      ->required();
  command->add_option("folder", options->folder, "a new folder")->required();
  command
      ->add_option("--set", options->overrides,
                   "override a key of the run's recipe: --set checkpoint.export_dtype=float32")
      ->take_all();
  command->callback([options, &status] { status = export_model(*options); });
}

}  // namespace steppe::cli
