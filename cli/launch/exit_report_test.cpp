#include "cli/launch/exit_report.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "steppe/base/error.h"

namespace steppe::launch {
namespace {

namespace fs = std::filesystem;

class Reports : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("steppe-report-" + std::to_string(::getpid()));
    fs::remove_all(folder_);  // of another process of this number
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  fs::path folder_;
};

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(Reports, StatusComesBack) {
  for (const RunState state :
       {RunState::kRunning, RunState::kFinished, RunState::kStopped, RunState::kFailed}) {
    write_status(folder_.string(), {state, "rank 1: \"no\" \xff", 17});
    const RunStatus status = read_status(folder_.string());
    EXPECT_EQ(status.state, state);
    EXPECT_EQ(status.step, 17);
    EXPECT_EQ(status.reason.find("rank 1: \"no\" "), 0u);
  }
  const auto json = nlohmann::json::parse(contents(path("status.json")));
  EXPECT_EQ(json["state"], "failed");
}

TEST_F(Reports, AReaderNeverSeesAPart) {
  const std::string target = path("status.json");
  const std::string small(10, 'a'), large(1 << 20, 'b');
  write_atomically(target, small);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 0; i < 20; ++i) write_atomically(target, i % 2 ? small : large);
    stop = true;
  });
  do {
    const std::string text = contents(target);
    EXPECT_TRUE(text == small || text == large) << "a part of " << text.size() << " bytes";
  } while (!stop);
  writer.join();
}

TEST_F(Reports, NothingIsLeftBesideTheFile) {
  write_status(folder_.string(), {});
  fs::create_directory(path("taken"));
  // A folder cannot be replaced by a file: the old state stays, and no temporary either.
  EXPECT_THROW(write_atomically(path("taken"), "x"), RuntimeFailure);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 2);
}

TEST_F(Reports, AMissingFolderIsNamed) {
  try {
    write_status(path("nowhere"), {});
    FAIL();
  } catch (const RuntimeFailure& error) {
    EXPECT_NE(std::string(error.what()).find("nowhere/status.json"), std::string::npos) << error.what();
  }
}

TEST_F(Reports, ErrorFileHasTorchrunsForm) {
  ASSERT_TRUE(write_error_file(path("error.json"), {"short", "long\ntrace", 1234}));
  const auto json = nlohmann::json::parse(contents(path("error.json")));
  EXPECT_EQ(json["message"]["message"], "short");
  EXPECT_EQ(json["message"]["extraInfo"]["py_callstack"], "long\ntrace");
  EXPECT_EQ(json["message"]["extraInfo"]["timestamp"], "1234");  // a string: torchrun calls int() on it
  const auto back = read_error_file(path("error.json"));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->message, "short");
  EXPECT_EQ(back->timestamp, 1234);
}

TEST_F(Reports, ErrorFileThatIsNone) {
  EXPECT_FALSE(read_error_file(path("absent")));
  for (const char* text : {"", "{", "[]", "{\"message\": 3}", "{\"message\": {\"extraInfo\": {}}}"}) {
    write_atomically(path("odd"), text);
    EXPECT_FALSE(read_error_file(path("odd"))) << text;
  }
  EXPECT_TRUE(write_error_file("", {"nobody asked", "", 0}));
  EXPECT_FALSE(write_error_file(path("nowhere/error.json"), {"lost", "", 0}));
}

}  // namespace
}  // namespace steppe::launch
