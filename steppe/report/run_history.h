// RUN/metrics.jsonl for a page: columns by key over a bounded number of steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace steppe::report {

// {"step": […], "columns": {"loss": […], "moe/load_cv": […], …}, "peak_by_category": {"weights": […], …},
//  "validation": {SET: {"step": […], "loss": […], "ppl": […]}},
//  "load": {"steps": […], "values": [step][layer][expert]}} with null where a step has no such figure. Loads
// are in hundredths of the layer's mean. Of a long run, steps are left out: never the first, the last, that
// of the highest peak, nor the highest or lowest loss of a stretch. `notes` gets what a reader should know:
// an unfinished last line, no figures of memory. Throws RuntimeFailure, naming file and line, where a line is
// no step; ValueError where there is no file.
nlohmann::ordered_json read_run_history(const std::filesystem::path& path, std::vector<std::string>& notes,
                                        int64_t max_steps = 2000);

}  // namespace steppe::report
