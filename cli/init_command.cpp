// steppe init --model DIR --data FILE --gpus N --seq-length S [--hardware H200] [--output FILE]: a commented
// recipe, whose layout and placements `steppe plan --tune` has chosen.
// Exit status: 1: no layout fits, 2: bad input; then nothing is written.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/validators.h"
#include "steppe/base/bytes.h"
#include "steppe/base/error.h"
#include "steppe/plan/search.h"

namespace steppe::cli {
namespace {

constexpr int kDoesNotFit = 1, kBadInput = 2;
constexpr int kMostRanks = 1 << 20;

std::string quoted(const std::string& text) {
  return recipe::to_toml(text);
}

struct Options {
  std::string model, data, hardware = "auto", output;
  int gpus = 1;
  std::int64_t seq_length = 0;
};

// A folder with weights is trained on; a config.json alone starts from random ones.
std::string model_line(const std::string& model) {
  namespace fs = std::filesystem;
  const fs::path path(model);
  const bool is_folder = fs::is_directory(path);
  const auto config = is_folder ? path / "config.json" : path;
  STEPPE_CHECK_VALUE(fs::exists(config), "[init] --model must be a config.json or a folder with one, got {}",
                     model);
  bool has_weights = false;
  if (is_folder) {
    for (const auto& entry : fs::directory_iterator(path)) {
      has_weights = has_weights || entry.path().extension() == ".safetensors";
    }
  }
  return has_weights ? "path = " + quoted(path.string()) : "config = " + quoted(config.string());
}

// `prepare` finds a tokenizer beside weights by itself.
std::string tokenizer_line(const std::string& model) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::exists(fs::path(model) / "tokenizer.json", ignored))
    return model_line(model).starts_with("path") ? "" : fmt::format("tokenizer = {}\n", quoted(model));
  return "# tokenizer = \"bpe:32000\"  # yours to choose: a tokenizer.json or its folder, bpe:SIZE, or "
         "bytes\n";
}

bool is_pattern(const std::string& data) {
  return data.find_first_of("*?[") != std::string::npos;
}

// Prepared files are named after what they are made from, which a pattern is no name for.
std::string data_lines(const std::string& data) {
  return fmt::format("path = {}\n", quoted(data)) + (is_pattern(data) ? "name = \"train\"\n" : "");
}

std::string minimal_recipe(const Options& options) {
  return fmt::format(R"([model]
{}
[optimizer]
lr = 1e-5
[training]
steps = 1000
seq_length = {}
[hardware]
preset = "{}"
)",
                     model_line(options.model), options.seq_length, options.hardware);
}

// "section.key = value" by section, in the order of the keys.
std::map<std::string, std::vector<std::string>> by_section(const std::vector<std::string>& changes) {
  std::map<std::string, std::vector<std::string>> sections;
  for (const auto& change : changes) {
    const auto dot = change.find('.');
    sections[change.substr(0, dot)].push_back(change.substr(dot + 1));
  }
  return sections;
}

std::string section(const std::string& name, const std::vector<std::string>& lines, const char* comment) {
  std::string text = fmt::format("\n[{}]  # {}\n", name, comment);
  for (const auto& line : lines) text += line + "\n";
  return text;
}

std::string recipe_text(const Options& options, const plan::Found& found) {
  const auto sections = by_section(found.changes);
  const auto& plan = found.plan;
  std::string text =
      fmt::format("# For {} ranks on {}: steppe plan THIS --world-size {}\n# It {}; about {:.3g} s a step.\n",
                  options.gpus, plan.hardware.name, options.gpus, plan.verdict, plan.step_seconds);
  for (const auto& reason : found.reasons) text += fmt::format("# {}\n", reason);
  text += fmt::format("\n[model]\n{}\n", model_line(options.model));
  text += section("parallelism", sections.at("parallelism"), "sequences, experts and vocabulary shared out");
  text += section("dispatch", sections.at("dispatch"), "token_budget: tokens of a rank in a chunk");
  text += section("loss", sections.at("loss"), "auto: tiled, or a ring of weights where less travels");
  text += section("activation_checkpoint", sections.at("activation_checkpoint"),
                  "full: layer inputs are kept; selective: attention outputs too; none: everything");
  text +=
      section("offload", sections.at("offload"), "layer inputs in host memory, up to the budget per node");
  auto optimizer = sections.at("optimizer");
  optimizer.insert(optimizer.begin(), "lr = 1e-5                # the peak of the schedule: yours to choose");
  text += section("optimizer", optimizer, "where masters, moments and gradients live");
  text += fmt::format(R"(
[lr_scheduler]
type = "cosine"
warmup_steps = 0.03      # of all steps

[training]
steps = 1000
seq_length = {}

[data]
prepared = "prepared"    # python -m steppe.data prepare THIS
{}
[[data.train]]
{}
[hardware]
preset = "{}"
)",
                      options.seq_length, tokenizer_line(options.model), data_lines(options.data),
                      options.hardware);
  return text;
}

// Never over a file that is there.
void write_new(const std::string& path, const std::string& text) {
  std::FILE* const file = std::fopen(path.c_str(), "wx");
  STEPPE_CHECK_VALUE(file != nullptr || errno != EEXIST,
                     "[init] --output {} exists already: it is left as it is", path);
  STEPPE_CHECK(file != nullptr, "[init] cannot write {}: {}", path, std::strerror(errno));
  const bool is_written =
      std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  int error = errno;
  const bool is_closed = std::fclose(file) == 0;
  if (is_written && is_closed) return;
  if (is_written) error = errno;
  std::remove(path.c_str());  // the next try finds no part of this one
  STEPPE_CHECK(false, "[init] cannot write {}: {}", path, std::strerror(error));
}

void check_output(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  STEPPE_CHECK_VALUE(path.empty() || !fs::exists(path, ignored),
                     "[init] --output {} exists already: it is left as it is", path);
  const auto folder = fs::path(path).parent_path();
  STEPPE_CHECK_VALUE(folder.empty() || fs::is_directory(folder, ignored),
                     "[init] cannot write {}: there is no folder {}", path, folder.string());
}

// What a user may not have meant.
void note_surprises(const Options& options) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  STEPPE_CHECK_VALUE(!options.data.empty(), "[init] --data must name what to train on, got \"\"");
  const bool is_path = !options.data.starts_with("stdlib:") && !is_pattern(options.data);
  if (is_path && !fs::exists(options.data, ignored))
    std::fprintf(stderr, "note: there is no %s here, which the recipe will name\n", options.data.c_str());
  if (fs::is_directory(options.model, ignored) && model_line(options.model).starts_with("config"))
    std::fprintf(stderr, "note: %s holds no .safetensors: the recipe starts from random weights\n",
                 options.model.c_str());
}

int init(const Options& options) {
  try {
    check_output(options.output);
    note_surprises(options);
    auto recipe = recipe::Recipe::parse(minimal_recipe(options), "init.toml", {});
    const auto run = recipe::read_run_config(recipe);
    const auto found = plan::tune(run, {.world_size = options.gpus});
    const auto text = recipe_text(options, found);
    // What is written must be read again.
    auto written = recipe::Recipe::parse(text, "init.toml", {});
    recipe::read_run_config(written);
    if (options.output.empty()) {
      std::printf("%s", text.c_str());
    } else {
      write_new(options.output, text);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return dynamic_cast<const plan::DoesNotFit*>(&error) != nullptr ? kDoesNotFit : kBadInput;
  }
}

CLI::Validator known_hardware() {
  return {[](std::string& name) {
            std::string names;
            for (const auto& preset : plan::hardware_presets()) {
              if (preset.name == name) return std::string();
              names += ", " + preset.name;
            }
            return name == "auto" ? "" : fmt::format("must be auto{}, got {}", names, name);
          },
          /*validator_desc=*/""};
}

}  // namespace

void add_init_command(CLI::App& app, int& status) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("init", "write a recipe for a model, a length and a number of GPUs");
  command->add_option("--model", options->model, "a Hugging Face folder, or a config.json")->required();
  command->add_option("--data", options->data, "what to train on: a file for python -m steppe.data prepare")
      ->required();
  command->add_option("--gpus", options->gpus, "ranks of the run")
      ->required()
      ->check(whole_number_from(1, kMostRanks));
  command->add_option("--seq-length", options->seq_length, "tokens of a packed sequence")
      ->required()
      ->check(whole_number_from(1));
  command->add_option("--hardware", options->hardware, "A100, H100, H200, B200; auto: this machine")
      ->check(known_hardware())
      ->capture_default_str();
  command->add_option("--output", options->output, "a new file for it (default: standard output)");
  command->callback([options, &status] { status = init(*options); });
}

}  // namespace steppe::cli
