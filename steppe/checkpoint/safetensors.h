// Files of named tensors in the safetensors format: 8 bytes of header length, a JSON header, then the
// tensors' bytes end to end, little-endian and row-major.
//
// A file is mapped, not read: pages come in as slices are. Its header is checked in full when it is opened,
// so that every later read is inside the file. Errors are ValueErrors naming file and tensor, but a file that
// cannot be opened or written is a RuntimeFailure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "steppe/base/mapped_file.h"

namespace steppe::checkpoint {

enum class Dtype {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64
};

std::string_view name_of(Dtype dtype);  // as in the format: "BF16"
int64_t size_bytes_of(Dtype dtype);

// The format's type of a C++ type, for the types that read() and tensor_to_write() take.
template <class T>
struct DtypeOf;
template <>
struct DtypeOf<float> : std::integral_constant<Dtype, Dtype::kF32> {};
template <>
struct DtypeOf<double> : std::integral_constant<Dtype, Dtype::kF64> {};
template <>
struct DtypeOf<int32_t> : std::integral_constant<Dtype, Dtype::kI32> {};
template <>
struct DtypeOf<int64_t> : std::integral_constant<Dtype, Dtype::kI64> {};

struct TensorEntry {
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  int64_t numel = 0;
  int64_t begin_byte = 0, end_byte = 0;  // within the file
};

class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::string path);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, TensorEntry, std::less<>>& tensors() const { return tensors_; }
  const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }
  const TensorEntry* find(std::string_view name) const;  // null when there is none
  const TensorEntry& at(std::string_view name) const;

  // Elements [begin, begin + out.size()) of a tensor of F64, F32, BF16 or F16, as fp32.
  void read_floats(std::string_view name, int64_t begin, std::span<float> out) const;

  // All elements of a tensor whose dtype is T's.
  template <class T>
  std::vector<T> read(std::string_view name) const {
    std::vector<T> values(static_cast<size_t>(at(name).numel));
    read_bytes(name, DtypeOf<T>::value, std::as_writable_bytes(std::span(values)));
    return values;
  }

 private:
  void parse_header();
  void check_coverage() const;
  void read_bytes(std::string_view name, Dtype expected, std::span<std::byte> out) const;

  MappedFile file_;
  int64_t data_begin_ = 0;
  std::map<std::string, TensorEntry, std::less<>> tensors_;
  std::map<std::string, std::string, std::less<>> metadata_;
};

struct TensorToWrite {
  std::string name;
  std::vector<int64_t> shape;
  Dtype dtype = Dtype::kF32;
  std::span<const std::byte> bytes;
};

template <class T>
TensorToWrite tensor_to_write(std::string name, std::vector<int64_t> shape, std::span<const T> values) {
  return {std::move(name), std::move(shape), DtypeOf<T>::value, std::as_bytes(values)};
}

// Written beside as PATH.partial, synced, renamed, and the folder synced: `path` is the old file or the whole
// new one.
void write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace steppe::checkpoint
