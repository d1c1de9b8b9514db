#include "cli/launch/exit_report.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "steppe/base/error.h"

namespace steppe::launch {
namespace {

using nlohmann::json;

constexpr const char* kStateNames[] = {"running", "finished", "stopped", "failed"};

// Closes on every way out.
struct Descriptor {
  int fd;
  explicit Descriptor(int opened) : fd(opened) {}
  Descriptor(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

void write_and_sync(const std::string& path, const std::string& text) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  STEPPE_CHECK(file.fd >= 0, "[launch] cannot create {}: {}", path, std::strerror(errno));
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(file.fd, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    STEPPE_CHECK(wrote > 0, "[launch] cannot write {}: {}", path, std::strerror(errno));
    done += static_cast<std::size_t>(wrote);
  }
  STEPPE_CHECK(::fsync(file.fd) == 0, "[launch] cannot sync {}: {}", path, std::strerror(errno));
}

// Messages carry whatever a peer or a file held; what is not UTF-8 becomes U+FFFD instead of an exception.
std::string dump(const json& value) {
  return value.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

json parse_file(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file, nullptr, /*allow_exceptions=*/false);
}

}  // namespace

void write_atomically(const std::string& path, const std::string& text) {
  const std::size_t slash = path.find_last_of('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  // Threads may write the same file at once: a rank that fails while its watchdog already ends it.
  static std::atomic<int> serial{0};
  const std::string beside = fmt::format("{}.{}.{}.part", path, ::getpid(), serial++);
  try {
    write_and_sync(beside, text);
    STEPPE_CHECK(::rename(beside.c_str(), path.c_str()) == 0, "[launch] cannot rename {} to {}: {}", beside,
                 path, std::strerror(errno));
  } catch (...) {
    ::unlink(beside.c_str());
    throw;
  }
  // Some network file systems cannot sync a folder; the rename has been done all the same.
  const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.fd >= 0) ::fsync(opened.fd);
}

void write_status(const std::string& run_folder, const RunStatus& status) {
  write_atomically(run_folder + "/status.json", dump({{"state", kStateNames[static_cast<int>(status.state)]},
                                                      {"reason", status.reason},
                                                      {"step", status.step}}));
}

RunStatus read_status(const std::string& run_folder) {
  const std::string path = run_folder + "/status.json";
  const json value = parse_file(path);
  STEPPE_CHECK(value.is_object() && value.contains("state") && value["state"].is_string(),
               "[launch] {} must hold an object with a state", path);
  for (int state = 0; state < 4; ++state) {
    if (value["state"] == kStateNames[state]) {
      return {static_cast<RunState>(state), value.value("reason", ""), value.value("step", std::int64_t{0})};
    }
  }
  throw RuntimeFailure(
      fmt::format("[launch] {}: unknown state \"{}\"", path, value["state"].get<std::string>()));
}

bool write_error_file(const std::string& path, const ErrorReport& report) noexcept {
  if (path.empty()) return true;
  try {
    const json value = {{"message",
                         {{"message", report.message},
                          {"extraInfo",
                           {{"py_callstack", report.details.empty() ? report.message : report.details},
                            {"timestamp", std::to_string(report.timestamp > 0 ? report.timestamp
                                                                              : seconds_since_epoch())}}}}}};
    write_atomically(path, dump(value));
    return true;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return false;
  }
}

std::optional<ErrorReport> read_error_file(const std::string& path) {
  const json value = parse_file(path);
  if (!value.is_object() || !value.contains("message")) return std::nullopt;
  const json& message = value["message"];
  if (!message.is_object() || !message.contains("message") || !message["message"].is_string())
    return std::nullopt;
  ErrorReport report;
  report.message = message["message"];
  const json extra = message.value("extraInfo", json::object());
  if (extra.is_object()) {
    report.details = extra.value("py_callstack", "");
    const std::string stamp = extra.value("timestamp", "");
    std::from_chars(stamp.data(), stamp.data() + stamp.size(), report.timestamp);
  }
  return report;
}

std::int64_t seconds_since_epoch() {
  using namespace std::chrono;
  return duration_cast<seconds>(system_clock::now().time_since_epoch()).count();
}

}  // namespace steppe::launch
