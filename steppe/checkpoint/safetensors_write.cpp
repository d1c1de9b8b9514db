#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "steppe/base/error.h"
#include "steppe/checkpoint/safetensors.h"
#include "steppe/checkpoint/safetensors_dtype.h"

namespace steppe::checkpoint {
namespace {

// A file under construction; gone again unless it is put in place.
class PartialFile {
 public:
  explicit PartialFile(const std::string& path) : path_(path), partial_(path + ".partial") {
    file_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    require(file_ >= 0, "create");
  }
  ~PartialFile() {
    if (file_ >= 0) ::close(file_), ::unlink(partial_.c_str());
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(file_, bytes.data(), std::min<size_t>(bytes.size(), size_t{1} << 30));
      if (written < 0 && errno == EINTR) continue;
      require(written > 0, "write");
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
  }

  void put_in_place() {
    require(::fsync(file_) == 0, "sync");
    require(::rename(partial_.c_str(), path_.c_str()) == 0, "rename");
    ::close(std::exchange(file_, -1));
    auto folder = std::filesystem::path(path_).parent_path();
    if (folder.empty()) folder = ".";
    const int opened = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool synced = opened >= 0 && ::fsync(opened) == 0;
    const int reason = errno;
    if (opened >= 0) ::close(opened);
    STEPPE_CHECK(synced, "[safetensors] cannot sync the folder of {}: {}", path_, std::strerror(reason));
  }

 private:
  void require(bool done, const char* what) const {
    STEPPE_CHECK(done, "[safetensors] cannot {} {}: {}", what, partial_, std::strerror(errno));
  }

  std::string path_, partial_;
  int file_ = -1;
};

void check(const std::string& path, std::span<const TensorToWrite> tensors) {
  std::set<std::string_view> names;
  for (const auto& tensor : tensors) {
    STEPPE_CHECK_VALUE(tensor.name != "__metadata__" && names.insert(tensor.name).second,
                       "[safetensors] {}: the name {} is taken", path, tensor.name);
    const auto numel = numel_of(tensor.shape);
    STEPPE_CHECK_VALUE(
        numel && *numel * size_bytes_of(tensor.dtype) == static_cast<int64_t>(tensor.bytes.size()),
        "[safetensors] {}: tensor {} has {} bytes, its shape asks for {} elements of {}", path, tensor.name,
        tensor.bytes.size(), numel.value_or(-1), name_of(tensor.dtype));
  }
}

}  // namespace

void write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata) {
  check(path, tensors);
  // Wide elements first: with a header padded to 8 bytes, each tensor is aligned to its element.
  std::vector<const TensorToWrite*> order;
  for (const auto& tensor : tensors) order.push_back(&tensor);
  std::ranges::sort(order, {}, [](const TensorToWrite* tensor) {
    return std::pair<int64_t, std::string_view>(-size_bytes_of(tensor->dtype), tensor->name);
  });

  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  size_t at = 0;
  for (const auto* tensor : order) {
    header[tensor->name] = {{"dtype", name_of(tensor->dtype)},
                            {"shape", tensor->shape},
                            {"data_offsets", {at, at + tensor->bytes.size()}}};
    at += tensor->bytes.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();

  PartialFile file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(std::as_bytes(std::span(text)));
  for (const auto* tensor : order) file.write(tensor->bytes);
  file.put_in_place();
}

}  // namespace steppe::checkpoint
