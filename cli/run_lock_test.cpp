#include "cli/run_lock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <optional>
#include <string>

#include "steppe/base/error.h"
#include "steppe/base/temporary_folder.h"

namespace steppe::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kNone{0};

std::string made(std::string folder) {
  std::filesystem::create_directory(folder);
  return folder;
}

TEST(RunLock, ASecondHolderIsRefusedByTheFirstOnesName) {
  const TemporaryFolder parent;
  const auto folder = made(parent / "run");
  std::optional<RunLock> first(std::in_place, folder);
  const auto holder = "process " + std::to_string(::getpid()) + " on ";
  const auto refused = [&](auto take) {
    try {
      take();
      ADD_FAILURE() << "not refused";
    } catch (const RuntimeFailure& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("run.folder = \"" + folder + "\" is in use: " + holder), std::string::npos) << text;
    }
  };
  refused([&] { const RunLock second(folder, kNone); });
  refused([&] { RunLock::check_free(folder, kNone); });
  first.reset();
  RunLock::check_free(folder, kNone);
  const RunLock second(folder, kNone);  // the check held nothing
}

TEST(RunLock, WaitsForAHolderOnItsWayOut) {
  const TemporaryFolder parent;
  const auto folder = made(parent / "run");
  std::optional<RunLock> first(std::in_place, folder);
  auto waiting = std::async(std::launch::async, [&] {
    RunLock::check_free(folder, std::chrono::hours(1));
    const RunLock second(folder, std::chrono::hours(1));
  });
  EXPECT_EQ(waiting.wait_for(milliseconds(200)), std::future_status::timeout) << "the folder is in use";
  first.reset();
  EXPECT_NO_THROW(waiting.get());
}

TEST(RunLock, ACheckMakesNothing) {
  const TemporaryFolder parent;
  const auto folder = made(parent / "run");
  RunLock::check_free(folder, kNone);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  RunLock::check_free(folder + "/gone", kNone);
  EXPECT_FALSE(std::filesystem::exists(folder + "/gone"));
  EXPECT_THROW(RunLock(folder + "/gone", kNone), RuntimeFailure);
}

}  // namespace
}  // namespace steppe::cli
