#include "steppe/train/metrics/tensorboard_writer.h"

#include <pb_encode.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/train/metrics/crc32c.h"
#include "steppe/train/metrics/tensorboard_scalars.h"
#include "tensorboard_event.pb.h"

namespace steppe::metrics {
namespace {

using Event = steppe_tensorboard_Event;
using ScalarValue = steppe_tensorboard_ScalarValue;

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Event event_at(int64_t step) {
  Event event = steppe_tensorboard_Event_init_zero;
  event.wall_time = seconds_since_1970();
  event.step = step;
  return event;
}

std::string encode(const Event& event) {
  size_t size = 0;
  STEPPE_ASSERT(pb_get_encoded_size(&size, steppe_tensorboard_Event_fields, &event),
                "[tensorboard] an event cannot be sized");
  std::string bytes(size, '\0');
  pb_ostream_t stream = pb_ostream_from_buffer(reinterpret_cast<pb_byte_t*>(bytes.data()), bytes.size());
  STEPPE_ASSERT(pb_encode(&stream, steppe_tensorboard_Event_fields, &event),
                "[tensorboard] an event cannot be encoded: {}", PB_GET_ERROR(&stream));
  return bytes;
}

// The record must be little endian; so is every machine that Steppe runs on.
static_assert(std::endian::native == std::endian::little);

template <typename Number>
void append_number(std::string& bytes, Number number) {
  char raw[sizeof(Number)];
  std::memcpy(raw, &number, sizeof(Number));
  bytes.append(raw, sizeof(Number));
}

// The readers take files in the order of their names: zero-padded seconds first. Nanoseconds and the process
// keep the files of two quick restarts apart.
std::filesystem::path new_event_file(const std::filesystem::path& folder) {
  const int64_t now_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                             std::chrono::system_clock::now().time_since_epoch())
                             .count();
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) std::strcpy(host.data(), "host");
  return folder / fmt::format("events.out.tfevents.{:010}.{:09}.{}.{}", now_ns / 1'000'000'000,
                              now_ns % 1'000'000'000, host.data(), ::getpid());
}

}  // namespace

std::string tensorboard_record(std::string_view event) {
  std::string record;
  record.reserve(event.size() + 16);
  append_number(record, static_cast<uint64_t>(event.size()));
  append_number(record, masked_crc32c(record));
  record.append(event);
  append_number(record, masked_crc32c(event));
  return record;
}

TensorboardWriter::TensorboardWriter(const std::filesystem::path& folder, int64_t first_step)
    : file_(new_event_file(folder)) {
  char version[] = "brain.Event:2";
  Event head = event_at(0);
  head.which_what = steppe_tensorboard_Event_file_version_tag;
  head.what.file_version = version;
  std::string records = tensorboard_record(encode(head));
  if (first_step > 0) {
    Event start = event_at(first_step);
    start.which_what = steppe_tensorboard_Event_session_log_tag;
    start.what.session_log.status = steppe_tensorboard_SessionLog_Status_START;
    records += tensorboard_record(encode(start));
  }
  file_.append(records);
}

void TensorboardWriter::write(const StepMetrics& metrics) {
  std::vector<Scalar> scalars = tensorboard_scalars(metrics);
  std::vector<ScalarValue> values;
  values.reserve(scalars.size());
  for (Scalar& scalar : scalars) values.push_back({scalar.tag.data(), true, scalar.value});
  Event event = event_at(metrics.step);
  event.which_what = steppe_tensorboard_Event_summary_tag;
  event.what.summary = {static_cast<pb_size_t>(values.size()), values.data()};
  file_.append(tensorboard_record(encode(event)));
}

}  // namespace steppe::metrics
