// A file mapped read-only. Pages come in as they are touched; nothing is copied.
#pragma once

#include <cstdint>
#include <string>

namespace steppe {

class MappedFile {
 public:
  // RuntimeFailure naming the file and the system's reason when it cannot be opened.
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  const unsigned char* bytes() const { return bytes_; }  // null for an empty file
  int64_t size_bytes() const { return size_bytes_; }

 private:
  std::string path_;
  const unsigned char* bytes_ = nullptr;
  int64_t size_bytes_ = 0;
};

}  // namespace steppe
