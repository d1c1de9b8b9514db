// TensorBoard event files: a file per run of the program in the folder that `tensorboard --logdir` is shown.
//
// A file is a row of records, each a protobuf Event (tensorboard_event.proto):
//   u64 length | u32 masked CRC-32C of the length | the event | u32 masked CRC-32C of the event
// little endian. A step's scalars are one event, with the kernel when write returns, so a reader never waits.
// Errors: RuntimeFailure naming the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "steppe/train/metrics/append_file.h"
#include "steppe/train/metrics/step_metrics.h"

namespace steppe::metrics {

// A record of the event file that holds the given bytes.
std::string tensorboard_record(std::string_view event);

class TensorboardWriter {
 public:
  // first_step as for JsonlWriter: past 0, readers drop what earlier files in the folder say of it and later.
  TensorboardWriter(const std::filesystem::path& folder, int64_t first_step);

  void write(const StepMetrics& metrics);

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

}  // namespace steppe::metrics
