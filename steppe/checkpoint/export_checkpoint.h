// A native checkpoint as a folder that transformers loads: weights, index, config.json with what the run
// trained with, generation_config.json, tokenizer files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "steppe/checkpoint/export_weights.h"

namespace steppe::checkpoint {

struct ExportReport {
  std::string checkpoint;  // its folder
  int64_t step = 0;
  std::string model_type;
  std::string tokenizer;  // where its files were; empty when there were none
  Exported weights;
};

// `checkpoint`: as for resolve_checkpoint (native_folder.h). `overrides` ("checkpoint.export_dtype=float32")
// go on top of the run's recipe. `folder` must be new or empty; it appears complete, or not at all. One
// process, whatever layout wrote the checkpoint; host memory: some blocks. Every block that is read is
// checked. ValueError for expert biases that are not zero, a model that its family cannot say, a tokenizer
// that is not the data's; the reader's and writer's errors.
ExportReport export_checkpoint(const std::string& checkpoint, const std::string& folder,
                               const std::vector<std::string>& overrides);

}  // namespace steppe::checkpoint
