#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "steppe/base/bytes.h"
#include "steppe/base/counters.h"
#include "steppe/base/error.h"
#include "steppe/base/log.h"
#include "steppe/base/nearest.h"
#include "steppe/base/temporary_folder.h"

namespace steppe {
namespace {

std::string message_of(const std::string& size) {
  try {
    parse_bytes(size);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Bytes, ReadsBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_bytes("64GiB"), std::int64_t{64} << 30);
  EXPECT_EQ(parse_bytes("512MB"), 512'000'000);
  EXPECT_EQ(parse_bytes("0GiB"), 0);
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes(" 1.5 TiB "), (std::int64_t{3} << 40) / 2);
  EXPECT_EQ(parse_bytes("10b"), 10);
  EXPECT_EQ(parse_bytes("2kb"), 2000);
  EXPECT_EQ(parse_bytes("9223372036854775807"), std::numeric_limits<std::int64_t>::max());
}

TEST(Bytes, RefusesWhatIsNotASize) {
  for (const char* bad : {"", "GiB", "-1GiB", "1e9", "1.GiB", ".5GiB", "1.2.3MB", "12 parsecs", "0x10"})
    EXPECT_NE(message_of(bad).find("a size reads like"), std::string::npos) << bad;
  EXPECT_NE(message_of("12 parsecs").find("unknown unit \"parsecs\""), std::string::npos);
  EXPECT_NE(message_of("0.3B").find("whole number of bytes"), std::string::npos);
  for (const char* large : {"9223372036854775808", "8192PiB", "9999999999999999999PiB"})
    EXPECT_NE(message_of(large).find("over 2^63 - 1"), std::string::npos) << large;
  EXPECT_NE(message_of("99999999999999999999").find("too many digits"), std::string::npos);
}

TEST(Bytes, WritesForPeople) {
  EXPECT_EQ(format_bytes(0), "0B");
  EXPECT_EQ(format_bytes(1023), "1023B");
  EXPECT_EQ(format_bytes(1536), "1.50KiB");
  EXPECT_EQ(format_bytes(std::int64_t{512} << 20), "512MiB");
  EXPECT_EQ(format_bytes((std::int64_t{1} << 30) - 1), "1.00GiB");
  EXPECT_EQ(format_bytes((std::int64_t{124} << 30) / 10), "12.4GiB");
  EXPECT_EQ(format_bytes(-1536), "-1.50KiB");
}

TEST(Bytes, WritesExactly) {
  EXPECT_EQ(format_bytes_exactly(std::int64_t{64} << 30), "64GiB");
  for (const std::int64_t size :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{1024}, std::int64_t{5'000'000'000},
        (std::int64_t{1} << 40) + 1, std::numeric_limits<std::int64_t>::max()})
    EXPECT_EQ(parse_bytes(format_bytes_exactly(size)), size);
}

TEST(Nearest, CountsEditsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("seq_lenght", "seq_length"), 1u);
  EXPECT_EQ(edit_distance("ca", "abc"), edit_distance("abc", "ca"));
}

TEST(Nearest, FindsTheClosestWithinReason) {
  const std::vector<std::string> keys{"training.steps", "training.seq_length", "optimizer.lr"};
  EXPECT_EQ(nearest_name("training.seq_lenght", keys), "training.seq_length");
  EXPECT_EQ(nearest_name("optimiser.lr", keys), "optimizer.lr");
  EXPECT_EQ(nearest_name("zzzzzzzzzzzz", keys), std::nullopt);
  EXPECT_EQ(nearest_name("optimiser.lr", keys, 0), std::nullopt);
  EXPECT_EQ(nearest_name("anything", {}), std::nullopt);
}

TEST(Counters, AddSumSubtractReset) {
  Counters counters;
  counters.flops.add(FlopKind::kExpert, 100);
  counters.flops[FlopKind::kDense] += 20;
  counters.wire_bytes.add(WirePurpose::kGradients, 7);
  counters.link_bytes[LinkDirection::kDeviceToHost].add(LinkPurpose::kSaved, 3);
  EXPECT_EQ(counters.flops.sum(), 120);

  const Counters before = counters;
  counters += before;
  EXPECT_EQ(counters.flops[FlopKind::kExpert], 200);
  EXPECT_EQ(counters.wire_bytes[WirePurpose::kGradients], 14);
  EXPECT_EQ(counters.link_bytes.sum(), 6);
  counters -= before;
  EXPECT_EQ(counters, before);
  counters.reset();
  EXPECT_EQ(counters, Counters{});
}

TEST(Counters, EveryKindHasItsOwnName) {
  std::vector<std::string> names;
  const auto collect = [&names](auto kind) {
    using Kind = decltype(kind);
    for (std::size_t i = 0; i < Tally<Kind>::kSize; ++i) names.emplace_back(name(static_cast<Kind>(i)));
  };
  collect(FlopKind::kCount);
  collect(LinkDirection::kCount);
  for (std::size_t i = 0; i < names.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(names[i], names[j]);
  EXPECT_EQ(name(WirePurpose::kSequence), "sequence");
  EXPECT_THROW(name(WirePurpose::kCount), InternalError);
}

class LogTest : public testing::Test {
 protected:
  std::string text_of(int rank) const {
    std::ifstream file(folder_ / fmt::format("rank_{}.log", rank));
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  TemporaryFolder root_;
  std::filesystem::path folder_ = root_ / "logs";
};

TEST_F(LogTest, OnlyRankZeroPrints) {
  testing::internal::CaptureStderr();
  {
    const Log first({.rank = 0, .folder = folder_.string(), .level = LogLevel::kInfo, .color = false});
    const Log second({.rank = 1, .folder = folder_.string(), .level = LogLevel::kInfo, .color = false});
    first.info("step {}", 7);
    first.debug("hidden");
    second.warning("slow {}", "link");
    // Warnings reach the file at once, while the log still lives.
    EXPECT_NE(text_of(1).find("warning: slow link"), std::string::npos);
    first.flush();
  }
  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_NE(printed.find("info: step 7"), std::string::npos);
  EXPECT_EQ(printed.find("slow"), std::string::npos);
  EXPECT_EQ(printed.find("hidden"), std::string::npos);
  EXPECT_EQ(printed.find('\x1b'), std::string::npos);
  EXPECT_NE(text_of(0).find("info: step 7"), std::string::npos);
}

TEST_F(LogTest, RecordsWithoutPrinting) {
  testing::internal::CaptureStderr();
  const Log log({.rank = 0, .folder = folder_.string(), .level = LogLevel::kInfo, .color = false});
  log.record(LogLevel::kError, "told by the parent");
  log.record(LogLevel::kDebug, "hidden");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_NE(text_of(0).find("error: told by the parent"), std::string::npos);
  EXPECT_EQ(text_of(0).find("hidden"), std::string::npos);
  Log::silent().record(LogLevel::kError, "nobody hears");
}

TEST_F(LogTest, ColorIsTheCallersChoice) {
  testing::internal::CaptureStderr();
  Log({.rank = 0, .folder = {}, .level = LogLevel::kInfo, .color = true}).info("{{braces}} stay");
  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_NE(printed.find('\x1b'), std::string::npos);
  EXPECT_NE(printed.find("{braces} stay"), std::string::npos);
}

TEST_F(LogTest, SilentAndUnwritable) {
  testing::internal::CaptureStderr();
  Log::silent().error("nobody hears");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");

  std::filesystem::create_directories(folder_.parent_path());
  std::ofstream(folder_) << "a file where the folder should be";
  try {
    Log({.rank = 0, .folder = folder_.string(), .level = LogLevel::kInfo, .color = false});
    FAIL() << "expected a RuntimeFailure";
  } catch (const RuntimeFailure& failure) {
    EXPECT_NE(std::string(failure.what()).find(folder_.string()), std::string::npos);
  }
  EXPECT_EQ(log_level("warning"), LogLevel::kWarning);
  EXPECT_THROW(log_level("loud"), ValueError);
}

}  // namespace
}  // namespace steppe
