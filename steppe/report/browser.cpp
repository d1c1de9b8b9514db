#include "steppe/report/browser.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "steppe/base/error.h"

extern char** environ;

namespace steppe::report {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// Everything that the browser writes goes into a folder of its own.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = (fs::temp_directory_path() / "steppe-report-XXXXXX").string();
    STEPPE_CHECK(::mkdtemp(pattern.data()) != nullptr, "[report] cannot make a folder {}: {}", pattern,
                 std::strerror(errno));
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  fs::path operator/(const char* name) const { return path_ / name; }

 private:
  fs::path path_;
};

// Starts a program of PATH in a process group of its own; 0 where there is none of that name.
pid_t start(const std::string& program, const std::vector<std::string>& arguments, const fs::path& output) {
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&files, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::posix_spawn_file_actions_adddup2(&files, 1, 2);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, program.c_str(), &files, &attributes, argv.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  STEPPE_CHECK(error == 0 || error == ENOENT, "[report] cannot start {}: {}", program, std::strerror(error));
  return error == 0 ? pid : 0;
}

// The wait status, once it ends by itself; otherwise it and its children are killed.
int wait_for(pid_t pid, const std::string& program) {
  const auto limit = std::chrono::steady_clock::now() + 120s;
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > limit) {
      ::kill(-pid, SIGKILL);
      ::waitpid(pid, &status, 0);
      throw RuntimeFailure(fmt::format("[report] {} took more than two minutes for a picture", program));
    }
    std::this_thread::sleep_for(20ms);
  }
  return status;
}

std::string last_words(const fs::path& output) {
  std::ifstream file(output);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return text.size() > 400 ? text.substr(text.size() - 400) : text;
}

}  // namespace

void write_picture(const std::string& page, const fs::path& png, const PictureOptions& options) {
  const ScratchFolder scratch;
  const auto html = scratch / "report.html", picture = scratch / "picture.png", output = scratch / "output";
  std::ofstream(html, std::ios::binary) << page;
  // No sandbox: root has none, and the page is our own. No shared memory: containers have little.
  const std::vector<std::string> arguments = {
      "--headless",
      "--no-sandbox",
      "--disable-gpu",
      "--disable-dev-shm-usage",
      "--hide-scrollbars",
      "--no-first-run",
      "--force-device-scale-factor=2",
      "--virtual-time-budget=2000",
      fmt::format("--user-data-dir={}", (scratch / "profile").string()),
      fmt::format("--window-size={},{}", options.width, options.height),
      fmt::format("--screenshot={}", picture.string()),
      fmt::format("file://{}#picture{}{}", html.string(), options.dark ? "-dark" : "-light",
                  options.only_changes ? "-changes" : "")};
  const std::vector<std::string> usual = {"chromium", "chromium-browser", "google-chrome",
                                          "google-chrome-stable", "chrome"};
  pid_t pid = 0;
  std::string program;
  for (const auto& name : options.browser ? std::vector<std::string>{*options.browser} : usual) {
    program = name;
    if ((pid = start(name, arguments, output)) != 0) break;
  }
  STEPPE_CHECK(pid != 0,
               "[report] a picture needs Chromium, and {} is not in PATH: install it (Debian: chromium), "
               "name one with "
               "--browser, or open the page and take the picture there",
               options.browser ? *options.browser : fmt::format("none of {}", fmt::join(usual, ", ")));
  const int status = wait_for(pid, program);
  std::error_code error;
  const bool made = fs::file_size(picture, error) > 0 && !error;
  STEPPE_CHECK(status == 0 && made, "[report] {} ended with status {} and {} picture: {}", program, status,
               made ? "a" : "no", last_words(output));
  fs::copy_file(picture, png, fs::copy_options::overwrite_existing, error);
  STEPPE_CHECK(!error, "[report] cannot write {}: {}", png.string(), error.message());
}

}  // namespace steppe::report
