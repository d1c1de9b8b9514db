#include "steppe/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "steppe/base/error.h"
#include "steppe/base/nearest.h"
#include "steppe/checkpoint/safetensors_dtype.h"

namespace steppe::checkpoint {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;  // as in the reference implementation

std::optional<int64_t> as_size(const json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() < (uint64_t{1} << 62)) return value.get<int64_t>();
  return std::nullopt;
}

std::optional<std::vector<int64_t>> as_sizes(const json& values) {
  if (!values.is_array()) return std::nullopt;
  std::vector<int64_t> sizes;
  for (const auto& value : values) {
    const auto size = as_size(value);
    if (!size) return std::nullopt;
    sizes.push_back(*size);
  }
  return sizes;
}

TensorEntry parse_entry(const std::string& path, const std::string& name, const json& value,
                        int64_t data_begin, int64_t data_bytes) {
  const auto require = [&](bool holds, const char* key, const char* expectation) {
    STEPPE_CHECK_VALUE(holds, "[safetensors] {}: tensor {}: {} = {} must be {}", path, name, key,
                       value.is_object() && value.contains(key) ? value[key].dump() : "(absent)",
                       expectation);
  };
  require(value.is_object(), "entry", "an object");
  TensorEntry entry;
  const auto dtype = value.contains("dtype") && value["dtype"].is_string()
                         ? dtype_named(value["dtype"].get_ref<const std::string&>())
                         : std::nullopt;
  require(dtype.has_value(), "dtype", "one of the format's (F32, BF16, F16, F64, I32, …)");
  entry.dtype = *dtype;
  const auto shape = value.contains("shape") ? as_sizes(value["shape"]) : std::nullopt;
  const auto numel = shape ? numel_of(*shape) : std::nullopt;
  require(numel.has_value(), "shape", "an array of sizes");
  entry.shape = *shape;
  entry.numel = *numel;
  const auto offsets = value.contains("data_offsets") ? as_sizes(value["data_offsets"]) : std::nullopt;
  require(offsets && offsets->size() == 2 && (*offsets)[0] <= (*offsets)[1], "data_offsets",
          "two byte offsets, the second no smaller");
  require((*offsets)[1] <= data_bytes, "data_offsets",
          fmt::format("inside the {} bytes of data", data_bytes).c_str());
  const int64_t bytes = entry.numel * size_bytes_of(entry.dtype);
  require((*offsets)[1] - (*offsets)[0] == bytes, "data_offsets",
          fmt::format("{} bytes apart, as dtype and shape say", bytes).c_str());
  entry.begin_byte = data_begin + (*offsets)[0];
  entry.end_byte = data_begin + (*offsets)[1];
  return entry;
}

template <class Stored, class Convert>
void convert(const unsigned char* bytes, std::span<float> out, Convert to_float) {
  for (size_t i = 0; i < out.size(); ++i) {
    Stored value;  // the file aligns nothing
    std::memcpy(&value, bytes + i * sizeof(Stored), sizeof(Stored));
    out[i] = to_float(value);
  }
}

float from_bfloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Exponent and mantissa land where fp32 has them, 112 powers of two too low; exact for subnormals too.
float from_half(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16, magnitude = bits & 0x7fffU;
  if (magnitude >= 0x7c00U) return std::bit_cast<float>(sign | 0x7f800000U | (magnitude & 0x3ffU) << 13);
  const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::string path) : file_(std::move(path)) {
  parse_header();
  check_coverage();
}

void SafetensorsFile::parse_header() {
  const int64_t size = file_.size_bytes();
  STEPPE_CHECK_VALUE(size >= kLengthBytes,
                     "[safetensors] {} has {} bytes; the header's length alone takes {}", path(), size,
                     kLengthBytes);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file_.bytes(), kLengthBytes);
  const int64_t limit = std::min(size - kLengthBytes, kMaxHeaderBytes);
  STEPPE_CHECK_VALUE(header_bytes <= static_cast<uint64_t>(limit),
                     "[safetensors] {}: a header of {} bytes is announced; there is room for {}", path(),
                     header_bytes, limit);
  data_begin_ = kLengthBytes + static_cast<int64_t>(header_bytes);
  const auto* text = file_.bytes() + kLengthBytes;
  const json header = json::parse(text, text + header_bytes, nullptr, /*allow_exceptions=*/false);
  STEPPE_CHECK_VALUE(header.is_object(), "[safetensors] {}: the header is not a JSON object", path());
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") {
      tensors_.emplace(name, parse_entry(path(), name, value, data_begin_, size - data_begin_));
      continue;
    }
    STEPPE_CHECK_VALUE(value.is_object(), "[safetensors] {}: __metadata__ must be an object", path());
    for (const auto& [key, text_value] : value.items()) {
      STEPPE_CHECK_VALUE(text_value.is_string(), "[safetensors] {}: __metadata__.{} = {} must be a string",
                         path(), key, text_value.dump());
      metadata_.emplace(key, text_value.get<std::string>());
    }
  }
}

// Tensors lie end to end and fill the file: an overlap, a hole or a cut is damage.
void SafetensorsFile::check_coverage() const {
  std::vector<std::pair<int64_t, const std::string*>> order;
  for (const auto& [name, entry] : tensors_) order.emplace_back(entry.begin_byte, &name);
  std::ranges::sort(order, {},
                    [&](const auto& item) { return std::pair(item.first, at(*item.second).end_byte); });
  int64_t expected = data_begin_;
  for (const auto& [begin, name] : order) {
    STEPPE_CHECK_VALUE(begin == expected,
                       "[safetensors] {}: tensor {} begins at byte {} where {} was expected: {}", path(),
                       *name, begin - data_begin_, expected - data_begin_,
                       begin < expected ? "tensors overlap" : "bytes belong to no tensor");
    expected = at(*name).end_byte;
  }
  STEPPE_CHECK_VALUE(expected == file_.size_bytes(),
                     "[safetensors] {} has {} bytes; its header accounts for {}", path(), file_.size_bytes(),
                     expected);
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

const TensorEntry& SafetensorsFile::at(std::string_view name) const {
  const auto* entry = find(name);
  if (entry != nullptr) return *entry;
  std::vector<std::string> names;
  for (const auto& [known, unused] : tensors_) names.push_back(known);
  const auto nearest = nearest_name(name, names);
  throw ValueError(fmt::format("[safetensors] {} has no tensor {}{}", path(), name,
                               nearest ? fmt::format("; it has {}", *nearest) : ""));
}

void SafetensorsFile::read_floats(std::string_view name, int64_t begin, std::span<float> out) const {
  const auto& entry = at(name);
  const auto count = static_cast<int64_t>(out.size());
  STEPPE_CHECK_VALUE(begin >= 0 && begin <= entry.numel && count <= entry.numel - begin,
                     "[safetensors] {}: elements [{}, {}) of tensor {}, which has {}", path(), begin,
                     begin + count, name, entry.numel);
  const auto* bytes = file_.bytes() + entry.begin_byte + begin * size_bytes_of(entry.dtype);
  switch (entry.dtype) {
    case Dtype::kF32:
      if (count > 0) std::memcpy(out.data(), bytes, out.size_bytes());
      return;
    case Dtype::kF64:
      return convert<double>(bytes, out, [](double value) { return static_cast<float>(value); });
    case Dtype::kBF16:
      return convert<uint16_t>(bytes, out, from_bfloat16);
    case Dtype::kF16:
      return convert<uint16_t>(bytes, out, from_half);
    default:
      throw ValueError(fmt::format("[safetensors] {}: tensor {} is {}; F32, BF16, F16 or F64 is needed",
                                   path(), name, name_of(entry.dtype)));
  }
}

void SafetensorsFile::read_bytes(std::string_view name, Dtype expected, std::span<std::byte> out) const {
  const auto& entry = at(name);
  STEPPE_CHECK_VALUE(entry.dtype == expected, "[safetensors] {}: tensor {} is {}, not {}", path(), name,
                     name_of(entry.dtype), name_of(expected));
  if (!out.empty()) std::memcpy(out.data(), file_.bytes() + entry.begin_byte, out.size());
}

}  // namespace steppe::checkpoint
