// A file that only grows, whole pieces at a time: what is appended is with the kernel when append returns, so
// a crash of the process loses nothing, and a failed append (disk full) leaves no half piece behind. Errors:
// RuntimeFailure naming the path and the cause.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace steppe::metrics {

class AppendFile {
 public:
  // Opens or creates the file, its folders too, and cuts it to keep_bytes, which may not exceed its size.
  explicit AppendFile(std::filesystem::path path, int64_t keep_bytes = 0);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void append(std::string_view piece);

  // Returns once the file is on the disk.
  void sync();

  const std::filesystem::path& path() const { return path_; }

 private:
  [[noreturn]] void fail(const char* action, int error_code) const;

  std::filesystem::path path_;
  int fd_ = -1;
  int64_t size_bytes_ = 0;
};

}  // namespace steppe::metrics
