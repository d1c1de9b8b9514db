#include "steppe/report/report.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "steppe/base/error.h"
#include "steppe/report/memory_series.h"
#include "steppe/report/page_parts.h"
#include "steppe/report/run_history.h"

namespace steppe::report {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr size_t kMaxTimelines = 12;  // each adds a few hundred kilobytes to the page

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  STEPPE_CHECK_VALUE(file.is_open(), "[report] cannot read {}", path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

Json read_json(const fs::path& path) {
  auto value = Json::parse(read_text(path), nullptr, /*allow_exceptions=*/false);
  STEPPE_CHECK(value.is_object(), "[report] {} must hold one JSON object; it was cut, or is something else",
               path.string());
  return value;
}

bool is_plan(const Json& value) {
  return value.contains("peak_bytes") && value.contains("fits");
}

Json read_plan(const fs::path& path) {
  auto plan = read_json(path);
  STEPPE_CHECK_VALUE(is_plan(plan),
                     "[report] {} must be what `steppe plan --json` prints, with \"fits\" and \"peak_bytes\"",
                     path.string());
  return plan;
}

Json series_json(const MemorySeries& series) {
  Json blocks = Json::array(), phases = Json::array();
  for (const auto& block : series.peak_blocks) {
    if (blocks.size() == 200) break;
    blocks.push_back({{"category", block.category},
                      {"bytes", block.bytes},
                      {"count", block.count},
                      {"before", block.before_step},
                      {"phase", block.phase}});
  }
  for (const auto& phase : series.phases) phases.push_back({phase.event, phase.text, phase.peak_bytes});
  return {{"domain", series.domain},
          {"categories", series.categories},
          {"events", series.events},
          {"bytes", series.bytes},
          {"num_events", series.num_events},
          {"phases", phases},
          {"peak",
           {{"bytes", series.peak_bytes},
            {"event", series.peak_event},
            {"phase", series.peak_phase},
            {"by_category", series.peak_by_category},
            {"blocks", blocks}}}};
}

// One report in the making.
class Maker {
 public:
  explicit Maker(const Sources& sources) : sources_(sources) {}

  Report make() {
    std::error_code ignored;
    STEPPE_CHECK_VALUE(fs::exists(sources_.input, ignored),
                       "[report] {} is not there: name a run's folder, or a plan's file",
                       sources_.input.string());
    if (fs::is_directory(sources_.input, ignored)) {
      add_run(sources_.input);
      report_.default_output = sources_.input / "report.html";
    } else {
      add_file(sources_.input);
      report_.default_output = fs::path(sources_.input).replace_extension(".html");
    }
    if (sources_.plan) content_["plan"] = read_plan(*sources_.plan);
    num_own_ = timeline_paths_.size();
    timeline_paths_.insert(timeline_paths_.end(), sources_.timelines.begin(), sources_.timelines.end());
    add_timelines();
    content_["notes"] = report_.notes;
    report_.page = page(content_.dump(-1, ' ', false, Json::error_handler_t::replace));
    return std::move(report_);
  }

 private:
  void add_run(const fs::path& folder) {
    const auto metrics = folder / "metrics.jsonl", plan = folder / "plan.json";
    std::error_code ignored;
    const bool has_steps = fs::exists(metrics, ignored), has_plan = fs::exists(plan, ignored);
    STEPPE_CHECK_VALUE(has_steps || has_plan,
                       "[report] {} is not a run's folder: it has neither metrics.jsonl nor plan.json",
                       folder.string());
    const auto whole = fs::absolute(folder).lexically_normal();
    content_["title"] = (whole.has_filename() ? whole : whole.parent_path()).filename().string();
    if (has_steps) {
      content_["history"] = read_run_history(metrics, report_.notes);
    } else {
      report_.notes.emplace_back("The run has made no step: there is its plan alone.");
    }
    if (fs::exists(folder / "status.json", ignored)) content_["status"] = read_json(folder / "status.json");
    if (fs::exists(folder / "recipe.toml", ignored)) content_["recipe"] = read_text(folder / "recipe.toml");
    if (!sources_.plan && has_plan) content_["plan"] = read_plan(plan);
    for (const auto& entry : fs::directory_iterator(folder / "timeline", ignored)) {
      if (entry.path().extension() == ".json") timeline_paths_.push_back(entry.path());
    }
    std::sort(timeline_paths_.begin(), timeline_paths_.end());
    if (has_steps && timeline_paths_.empty() && sources_.timelines.empty()) {
      report_.notes.emplace_back(
          "No step's allocations were recorded: with --set profiler.steps=[2] a run writes them.");
    }
  }

  void add_file(const fs::path& file) {
    content_["title"] = file.stem().string();
    const std::string text = read_text(file);
    const size_t begin = text.find_first_not_of(" \t\r\n");
    STEPPE_CHECK_VALUE(begin != std::string::npos && text[begin] == '{',
                       "[report] {} holds no JSON object: name a run's folder, what `steppe plan --json` "
                       "prints, or a timeline",
                       file.string());
    const auto value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (value.is_object() && is_plan(value)) {
      content_["plan"] = value;
      content_["title"] = value.value("run", file.stem().string());
      if (const auto beside = value.value("timeline", ""); !beside.empty() && sources_.timelines.empty())
        timeline_paths_.push_back(fs::path(beside).is_absolute() ? fs::path(beside)
                                                                 : file.parent_path() / beside);
      return;
    }
    STEPPE_CHECK_VALUE(!value.is_object() || value.contains("events"),
                       "[report] {} is neither what `steppe plan --json` prints nor a timeline",
                       file.string());
    timeline_paths_.push_back(file);
  }

  void add_timelines() {
    struct Entry {
      Json json;
      std::pair<bool, int64_t> rank;  // the input's own before others, higher peaks before lower
    };
    std::vector<Entry> entries;
    std::optional<std::pair<bool, int64_t>> highest;
    for (const auto& path : timeline_paths_) {
      auto timeline = read_timeline(path);
      Json domains = Json::array();
      int64_t peak_bytes = 0;
      for (size_t d = 0; d < timeline.domains.size(); ++d) {
        const auto series = memory_series(timeline, static_cast<int32_t>(d));
        if (d == 0) peak_bytes = series.peak_bytes;
        if (series.peak_bytes > 0) domains.push_back(series_json(series));
      }
      const std::pair rank{entries.size() < num_own_, peak_bytes};
      entries.push_back({{{"name", path.stem().string()},
                          {"step", timeline.step},
                          {"rank", timeline.rank},
                          {"domains", std::move(domains)}},
                         rank});
      if (highest && rank <= *highest) continue;
      highest = rank;
      report_.timeline = std::move(timeline);
    }
    std::stable_sort(entries.begin(), entries.end(),
                     [](const Entry& a, const Entry& b) { return a.rank > b.rank; });
    if (entries.size() > kMaxTimelines) {
      report_.notes.push_back(
          fmt::format("Of {} recorded timelines, the {} with the highest peaks are shown.", entries.size(),
                      kMaxTimelines));
      entries.resize(kMaxTimelines);
    }
    content_["timelines"] = Json::array();
    for (auto& entry : entries) content_["timelines"].push_back(std::move(entry.json));
  }

  // The parts of the page, and the content as JSON in a script element, where "</" would end it.
  static std::string page(std::string content) {
    for (size_t at = 0; (at = content.find("</", at)) != std::string::npos; at += 3)
      content.replace(at, 2, "<\\/");
    std::string page;
    const std::string_view whole = kPageHtml;
    size_t done = 0;
    const auto put = [&](std::string_view place, std::string_view text) {
      const size_t at = whole.find(place, done);
      STEPPE_ASSERT(at != std::string_view::npos, "[report] page.html must hold {}", place);
      page.append(whole.substr(done, at - done)).append(text);
      done = at + place.size();
    };
    put("{{style}}", kPageStyle);
    put("{{content}}", content);
    put("{{script}}", kPageScript);
    return page.append(whole.substr(done));
  }

  const Sources& sources_;
  Report report_;
  Json content_ = Json::object();
  std::vector<fs::path> timeline_paths_;
  size_t num_own_ = 0;  // of them, the first
};

}  // namespace

Report make_report(const Sources& sources) {
  return Maker(sources).make();
}

}  // namespace steppe::report
