// A report of a run or a plan: one HTML page that needs nothing but a browser. It holds what the input's
// files say and draws it by itself; nothing is fetched.
//
// The input is a run's folder (metrics.jsonl, and where they are there status.json, recipe.toml, plan.json
// and timeline/*.json), what `steppe plan --json` printed, or a timeline alone.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "steppe/report/timeline_file.h"

namespace steppe::report {

struct Sources {
  std::filesystem::path input;
  std::optional<std::filesystem::path> plan;     // beside a run; default: RUN/plan.json, where it is there
  std::vector<std::filesystem::path> timelines;  // beside a run's own
};

struct Report {
  std::string page;                // HTML
  std::vector<std::string> notes;  // what is missing, and what would bring it
  std::optional<TimelineFile>
      timeline;  // with the highest peak on the device, of the input's own if it has some
  std::filesystem::path default_output;  // RUN/report.html, or the input with the ending .html
};

// Throws ValueError where the input is not there or is none of the three; RuntimeFailure where a file is
// damaged.
Report make_report(const Sources& sources);

}  // namespace steppe::report
