// steppe report RUN|PLAN|TIMELINE [--plan FILE] [--timeline FILE …] [--output FILE] [--png FILE] [--snapshot
// FILE]
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "cli/commands.h"
#include "steppe/base/error.h"
#include "steppe/report/browser.h"
#include "steppe/report/memory_snapshot.h"
#include "steppe/report/report.h"

namespace steppe::cli {
namespace {

constexpr int kBadInput = 2;

struct Options {
  std::string input;
  std::optional<std::string> plan, output, png, snapshot;
  std::vector<std::string> timelines;
  report::PictureOptions picture;
};

void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  STEPPE_CHECK(!file.fail(), "[report] cannot write {}: {}", path.string(), std::strerror(errno));
}

int write_report(const Options& options) {
  try {
    report::Sources sources{
        options.input, options.plan, {options.timelines.begin(), options.timelines.end()}};
    const auto made = report::make_report(sources);
    STEPPE_CHECK_VALUE(made.timeline || !options.snapshot,
                       "[report] --snapshot needs a recorded timeline, and {} has none", options.input);
    const auto output = options.output ? std::filesystem::path(*options.output) : made.default_output;
    write_file(output, made.page);
    std::printf("%s\n", output.c_str());
    for (const auto& note : made.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
    if (options.snapshot) {
      write_file(*options.snapshot, report::memory_snapshot(*made.timeline));
      std::printf("%s\n", options.snapshot->c_str());
    }
    if (options.png) {
      report::write_picture(made.page, *options.png, options.picture);
      std::printf("%s\n", options.png->c_str());
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return dynamic_cast<const ValueError*>(&error) != nullptr ? kBadInput : 1;
  }
}

}  // namespace

void add_report_command(CLI::App& app, int& status) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("report", "one self-contained HTML page about a run or a plan");
  command
      ->add_option("input", options->input,
                   "a run's folder, what `steppe plan --json` printed, or a timeline")
      ->required();
  command->add_option("--plan", options->plan, "the plan to hold a run against (default: RUN/plan.json)");
  command->add_option("--timeline", options->timelines, "a recorded step beside the run's own")->take_all();
  command->add_option("--output", options->output,
                      "default: RUN/report.html, or the input's name with .html");
  command->add_option("--png", options->png, "the memory chart as a picture; needs Chromium");
  command->add_flag("--dark", options->picture.dark, "the picture on a dark ground");
  command->add_flag("--only-changes", options->picture.only_changes,
                    "the picture without what never changes");
  command->add_option("--browser", options->picture.browser, "the Chromium that draws the picture");
  command->add_option("--snapshot", options->snapshot,
                      "the timeline with the highest peak, for PyTorch's memory viewer");
  command->callback([options, &status] { status = write_report(*options); });
}

}  // namespace steppe::cli
