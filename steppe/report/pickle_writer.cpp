#include "steppe/report/pickle_writer.h"

#include <bit>
#include <cstring>
#include <limits>

namespace steppe::report {

// Numbers are little endian; so is every machine that Steppe runs on.
static_assert(std::endian::native == std::endian::little);

template <typename Number>
void PickleWriter::number(Number value) {
  char raw[sizeof(Number)];
  std::memcpy(raw, &value, sizeof(Number));
  bytes_.append(raw, sizeof(Number));
}

void PickleWriter::text(std::string_view value) {
  const auto [place, fresh] = texts_.try_emplace(std::string(value), num_remembered_);
  if (!fresh) return refer(place->second);
  bytes_ += 'X';
  number(static_cast<uint32_t>(value.size()));
  bytes_ += value;
  remember();
}

void PickleWriter::integer(int64_t value) {
  if (value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max()) {
    bytes_ += 'J';
    number(static_cast<int32_t>(value));
  } else {
    bytes_ += "\x8a\x08";
    number(value);
  }
}

uint32_t PickleWriter::remember() {
  bytes_ += 'r';
  number(num_remembered_);
  return num_remembered_++;
}

void PickleWriter::refer(uint32_t name) {
  bytes_ += 'j';
  number(name);
}

}  // namespace steppe::report
