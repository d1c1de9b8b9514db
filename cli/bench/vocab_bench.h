// Every kind of the vocabulary loss on the same input, ranks as threads of this process, each kind checked
// against full logits before it is timed; or on `meta`, for the bytes alone.
#pragma once

#include <ATen/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace steppe::cli {

struct VocabBenchOptions {
  int64_t tokens = 4096;  // of a rank
  int64_t hidden = 256, vocab = 32768;
  int degree = 1;
  c10::ScalarType dtype = c10::kFloat;
  bool dry = false;
  int64_t samples = 10;
  int64_t tile_tokens = 0;         // 0: derived
  std::vector<std::string> kinds;  // empty: all
  std::string peers_python;        // with degree 1: PyTorch's losses beside ours, in this Python
};

// Of one kind; the maximum over ranks.
struct VocabBenchRow {
  std::string kind;
  int64_t vocab_bytes = 0;         // peak of the category
  int64_t peak_bytes = 0;          // of everything: operands and gradients too
  int64_t wire_bytes = 0;          // sent by a rank
  std::optional<double> products;  // how many passes of 2·N·H·V operations; of a peer: not known
  // Medians, nothing in a dry run. The first is of the three products alone, tile by tile.
  std::optional<double> products_time_s, time_s;
};

// Throws RuntimeFailure when a kind's loss or gradients are not those of `full`.
std::vector<VocabBenchRow> bench_vocab(const VocabBenchOptions& options);
const std::vector<std::string>& vocab_bench_kinds();

}  // namespace steppe::cli
