#include "steppe/report/report.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "steppe/base/error.h"
#include "steppe/base/temporary_folder.h"
#include "steppe/report/memory_snapshot.h"
#include "steppe/report/run_history.h"

namespace steppe::report {
namespace {

using Json = nlohmann::json;

constexpr const char* kTimeline =
    R"({"step":2,"rank":0,"start":[[8,0],[0,0]],"categories":["weights","expert"],"domains":["device","host"],)"
    R"("events":[[10,1,0,18],[-10,1,0,8]],"marks":[[0,"layer 0 forward"]]})";
constexpr const char* kPlan =
    R"({"fits":true,"peak_bytes":20,"expected_bytes":22,"by_category":{"weights":8,"expert":12},"terms":[]})";

std::string step_line(int64_t step, double loss, int64_t peak_bytes) {
  return Json{{"step", step},
              {"loss", loss},
              {"peak_bytes", peak_bytes},
              {"peak_by_category", {{"weights", peak_bytes}}}}
             .dump() +
         "\n";
}

class ReportTest : public ::testing::Test {
 protected:
  ReportTest() {
    std::filesystem::create_directories(folder_ / "run/timeline");
    write("run/metrics.jsonl", step_line(1, 3.5, 100) + step_line(2, 3.25, 120));
  }
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  Report report(const std::string& input) { return make_report({folder_ / input, {}, {}}); }
  // What the page carries.
  Json content(const std::string& input) {
    const auto page = report(input).page;
    const std::string begin = R"(<script type="application/json" id="content">)";
    const size_t at = page.find(begin) + begin.size();
    return Json::parse(page.substr(at, page.find("</script>", at) - at));
  }
  Json history(int64_t max_steps) {
    return read_run_history(folder_ / "run/metrics.jsonl", notes_, max_steps);
  }
  template <class Error>
  void expect_refused(const std::string& input, std::initializer_list<std::string> parts) {
    try {
      report(input);
      ADD_FAILURE() << input << " was taken";
    } catch (const Error& error) {
      for (const auto& part : parts)
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }

  TemporaryFolder folder_;
  std::vector<std::string> notes_;
};

TEST_F(ReportTest, ARunsFilesAreInThePage) {
  write("run/timeline/step_2_rank_0.json", kTimeline);
  write("run/status.json", R"({"state":"failed","reason":"</script><b>rank 1","step":2})");
  write("run/recipe.toml", "[model]\n");
  write("run/plan.json", kPlan);
  const auto made = report("run");
  EXPECT_EQ(made.default_output, std::filesystem::path(folder_ / "run/report.html"));
  ASSERT_TRUE(made.timeline.has_value());
  EXPECT_EQ(made.timeline->events.size(), 2u);
  EXPECT_TRUE(made.notes.empty()) << made.notes[0];
  const auto json = content("run");
  EXPECT_EQ(json["title"], "run");
  EXPECT_EQ(json["status"]["reason"], "</script><b>rank 1");
  EXPECT_EQ(json["history"]["columns"]["loss"], (Json{3.5, 3.25}));
  EXPECT_EQ(json["history"]["peak_by_category"]["weights"], (Json{100, 120}));
  EXPECT_EQ(json["plan"]["peak_bytes"], 20);
  EXPECT_EQ(json["timelines"][0]["domains"].size(), 1u);  // nothing on the host
  EXPECT_EQ(json["timelines"][0]["domains"][0]["peak"]["bytes"], 18);
  EXPECT_EQ(json["recipe"], "[model]\n");
}

// A page that works offline names no address but its own data.
TEST_F(ReportTest, ThePageFetchesNothing) {
  const auto page = report("run").page;
  for (const char* word : {"src=", "@import", "url(http", "fetch(", "XMLHttpRequest", "{{"}) {
    EXPECT_EQ(page.find(word), std::string::npos) << word;
  }
  for (size_t at = 0; (at = page.find("http", at)) != std::string::npos; ++at) {
    EXPECT_EQ(page.substr(at, 18), "http://www.w3.org/");
  }
}

// A run that was refused, or has not made its first step.
TEST_F(ReportTest, ARunWithItsPlanAlone) {
  std::filesystem::create_directory(folder_ / "refused");
  write("refused/plan.json", kPlan);
  write("refused/status.json", R"({"state":"failed","reason":"does not fit","step":0})");
  const auto json = content("refused");
  EXPECT_EQ(json["plan"]["peak_bytes"], 20);
  EXPECT_EQ(json["status"]["reason"], "does not fit");
  EXPECT_FALSE(json.contains("history"));
  EXPECT_NE(report("refused").notes.at(0).find("no step"), std::string::npos);
}

TEST_F(ReportTest, APlanAndATimelineMakeReportsToo) {
  write("small.json", kPlan);
  EXPECT_EQ(content("small.json")["plan"]["fits"], true);
  EXPECT_EQ(report("small.json").default_output, std::filesystem::path(folder_ / "small.html"));
  write("steps.json", kTimeline);
  EXPECT_EQ(content("steps.json")["timelines"][0]["step"], 2);
  const auto both = make_report({folder_ / "small.json", {}, {folder_ / "steps.json"}});
  EXPECT_TRUE(both.timeline.has_value());
}

TEST_F(ReportTest, TheHighestTimelineComesFirst) {
  write("run/timeline/step_1_rank_0.json", kTimeline);
  std::string higher = kTimeline;
  higher.replace(higher.find("[10,1,0,18],[-10,1,0,8]"), 23, "[90,1,0,98],[-90,1,0,8]");
  write("run/timeline/step_3_rank_0.json", higher);
  EXPECT_EQ(content("run")["timelines"][0]["name"], "step_3_rank_0");
  EXPECT_EQ(report("run").timeline->events[0].bytes, 90);
  higher.replace(higher.find("[90,1,0,98],[-90,1,0,8]"), 23, "[99,1,0,107],[-99,1,0,8]");
  write("planned.json", higher);
  const auto beside = make_report({folder_ / "run", {}, {folder_ / "planned.json"}});
  EXPECT_EQ(beside.timeline->events[0].bytes, 90);  // a run's own stays first
}

TEST_F(ReportTest, BadInputIsNamed) {
  expect_refused<ValueError>("nowhere", {"nowhere", "is not there"});
  std::filesystem::create_directory(folder_ / "empty");
  expect_refused<ValueError>("empty", {"empty", "metrics.jsonl"});
  write("other.json", R"({"a":1})");
  expect_refused<ValueError>("other.json", {"other.json", "steppe plan --json"});
  write("broken.json", R"({"fits":tr)");
  expect_refused<RuntimeFailure>("broken.json", {"broken.json is no JSON from byte 11 on"});
  write("recipe.toml", "[model]\n");
  expect_refused<ValueError>("recipe.toml", {"recipe.toml holds no JSON object", "steppe plan --json"});
  write("run/status.json", "{");
  expect_refused<RuntimeFailure>("run", {"status.json"});
}

TEST_F(ReportTest, AnUnfinishedLastLineIsLeftOutAndSaid) {
  write("run/metrics.jsonl", step_line(1, 3.5, 100) + R"({"step":2,"lo)");
  EXPECT_EQ(content("run")["history"]["step"], (Json{1}));
  EXPECT_NE(report("run").notes[0].find("unfinished"), std::string::npos);
  write("run/metrics.jsonl", R"({"step":1,"lo)"
                             "\n" +
                                 step_line(2, 3.5, 100));
  expect_refused<RuntimeFailure>("run", {"metrics.jsonl:1"});
}

TEST_F(ReportTest, WhatIsMissingIsSaid) {
  write("run/metrics.jsonl", "{\"step\":1,\"loss\":2}\n");
  const auto notes = report("run").notes;
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_NE(notes[0].find("no figures of memory"), std::string::npos);
  EXPECT_NE(notes[1].find("profiler.steps"), std::string::npos);
  write("run/metrics.jsonl", "");
  EXPECT_NE(report("run").notes[0].find("no step yet"), std::string::npos);
}

TEST_F(ReportTest, ALongRunKeepsItsExtremes) {
  std::string lines;
  for (int step = 1; step <= 5000; ++step) {
    lines += step_line(step, step == 1234 ? 99 : 3 - step * 1e-4, step == 777 ? 1000 : 10);
  }
  write("run/metrics.jsonl", lines);
  const auto columns = history(200)["columns"];
  EXPECT_LE(columns["loss"].size(), 210u);
  EXPECT_EQ(std::count(columns["loss"].begin(), columns["loss"].end(), 99), 1);
  EXPECT_EQ(std::count(columns["peak_bytes"].begin(), columns["peak_bytes"].end(), 1000), 1);
  const auto steps = history(200)["step"];
  EXPECT_EQ(steps.front(), 1);
  EXPECT_EQ(steps.back(), 5000);
  EXPECT_EQ(history(10000)["step"].size(), 5000u);
}

TEST_F(ReportTest, LoadsAreHundredthsOfTheMean) {
  write("run/metrics.jsonl", R"({"step":1,"moe/expert_load":[[1,3],[0,0]]})"
                             "\n"
                             R"({"step":2,"moe/expert_load":[[2,2],[0,6]]})"
                             "\n");
  const auto load = history(100)["load"];
  EXPECT_EQ(load["steps"], (Json{1, 2}));
  EXPECT_EQ(load["values"][0], Json::parse("[[50,150],[0,0]]"));
  EXPECT_EQ(load["values"][1], Json::parse("[[100,100],[0,200]]"));
}

TEST_F(ReportTest, ValidationAndMissingFiguresKeepTheirSteps) {
  write("run/metrics.jsonl", R"({"step":0,"validation":{"wiki":{"loss":4.5,"ppl":90,"tokens":7}}})"
                             "\n"
                             R"({"step":1,"loss":null,"nonfinite":{"loss":"nan"}})"
                             "\n"
                             R"({"step":2,"loss":2})"
                             "\n");
  const auto json = history(100);
  EXPECT_EQ(json["columns"]["loss"], Json::parse("[null,null,2]"));
  EXPECT_EQ(json["validation"]["wiki"]["loss"], (Json{4.5}));
  EXPECT_EQ(json["validation"]["wiki"]["step"], (Json{0}));
}

}  // namespace
}  // namespace steppe::report
