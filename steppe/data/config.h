// What a run reads, and how documents become sequences. One struct for the whole room; the recipe fills it
// from [[data.train]], [data], [[validation.set]] and training.{seq_length, seed}.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace steppe::data {

// A document is over length when it holds more than seq_length + 1 tokens (its end token included):
// seq_length inputs, each with a target.
enum class OverLength {
  kSplit,     // it goes on in the next sequence
  kTruncate,  // its first seq_length + 1 tokens are used
  kDrop,      // it is left out
};

// "split", "truncate" or "drop"; ValueError otherwise, naming `where` (a recipe key).
OverLength over_length_from_name(std::string_view name, std::string_view where = "data.over_length");

struct DatasetConfig {
  std::string path;   // of PREFIX.bin and PREFIX.idx, without the suffix
  std::string name;   // for messages and metrics
  double weight = 1;  // share of the training sequences, relative to the other datasets'; > 0
};

struct DataConfig {
  std::vector<DatasetConfig> train;       // [[data.train]]
  std::vector<DatasetConfig> validation;  // [[validation.set]]; weights are not used
  int64_t seq_length = 0;                 // tokens of a sequence
  bool packing = true;             // several documents a sequence; false: one, padded with ignored targets
  bool document_mask = true;       // attention and targets end with the document
  bool reset_position_ids = true;  // positions count from the document's start within the sequence
  OverLength over_length = OverLength::kSplit;
  bool shuffle = true;   // a new order of documents each epoch, by seed
  double val_split = 0;  // share of each training dataset's documents held out, in [0, 1)
  uint64_t seed = 42;
};

// ValueError naming the recipe key of the first field that is out of range.
void check(const DataConfig& config);

}  // namespace steppe::data
