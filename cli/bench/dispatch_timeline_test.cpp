#include "cli/bench/dispatch_timeline.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "steppe/base/temporary_folder.h"
#include "steppe/comm/local_communicator.h"

namespace steppe::cli {
namespace {

TEST(DispatchTimeline, HiddenIsWhereExchangesAndProductsMeet) {
  PassTimeline pass;
  pass.exchanges = {{3, 5}, {0, 2}, {1, 2.5}};  // two overlap: 0 … 2.5, 3 … 5
  EXPECT_DOUBLE_EQ(pass.travelling(), 4.5);
  EXPECT_DOUBLE_EQ(pass.hidden(), 0);
  pass.products = {{2, 3.5}, {2.25, 2.75}, {4, 4.25}, {6, 7}};
  EXPECT_DOUBLE_EQ(pass.hidden(), 0.5 + 0.5 + 0.25);
}

TEST(DispatchTimeline, RecordsProductsAndExchangesOfThisThread) {
  const auto start = TimelineClock::now();
  PassTimeline pass{.kind = "ep", .pass = "forward"};
  const auto a = at::ones({4, 4});
  {
    const ProductRecorder recorder(start, pass.products);
    a.mm(a);
    a.add(a);
    at::addmm(a, a, a);
  }
  a.mm(a);
  EXPECT_EQ(pass.products.size(), 2u);
  for (const auto& span : pass.products) EXPECT_LE(span.begin, span.end);

  comm::LocalCommunicator local("one", at::kCPU);
  RecordingCommunicator recording(local, start, pass.exchanges);
  const auto out = at::zeros({4, 4});
  const std::vector<at::Tensor> sends{a}, receives{out};
  recording.exchange(sends, receives).wait();
  EXPECT_TRUE(at::equal(out, a));
  EXPECT_EQ(pass.exchanges.size(), 1u);
}

TEST(DispatchTimeline, TheFileHoldsEverySpanWithItsRank) {
  const TemporaryFolder folder;
  const std::string path = folder / "trace.json";
  PassTimeline pass{.kind = "llep", .pass = "backward", .rank = 1, .whole = {1, 2}};
  pass.products = {{1.25, 1.5}}, pass.exchanges = {{1, 1.25}, {1.5, 2}};
  write_timeline(path, {{pass}});
  std::ifstream file(path);
  const auto trace = nlohmann::json::parse(file);
  std::vector<std::string> names;
  for (const auto& event : trace["traceEvents"]) {
    EXPECT_EQ(event["pid"], 1);
    if (event["ph"] == "X") names.push_back(event["name"]);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"llep backward", "product", "exchange", "exchange"}));
}

}  // namespace
}  // namespace steppe::cli
