// Tokenized documents in Megatron's indexed format, read in place.
//
// PREFIX.bin holds the tokens, one after another. PREFIX.idx, little-endian:
//   9 bytes  "MMIDIDX\0\0"
//   uint64   version, 1
//   uint8    dtype of a token: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16
//   uint64   number of sequences S
//   uint64   number of document bounds: documents + 1
//   int32[S] tokens of each sequence;  int64[S] its first byte in PREFIX.bin
//   int64[documents + 1] sequence at which each document begins, from 0 to S
//   int8[S]  modes, in multimodal files only; not read
// Beside them, when present: PREFIX.json with `vocab_size`, written by `python -m steppe.data prepare`, and
// PREFIX.loss_mask.{bin,idx}, uint8, with the same lengths: a token whose mask is 0 is no target.
//
// Everything in the index is checked when the files are opened, so that later reads cannot leave the mapping.
// Errors: RuntimeFailure when a file cannot be opened, ValueError when its content is not what it must be;
// both name the file. Reading is const and safe from several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "steppe/base/mapped_file.h"

namespace steppe::data {

class IndexedDataset {
 public:
  // `prefix`: path without .bin or .idx (either suffix is taken off). `name`: for messages.
  IndexedDataset(std::string prefix, std::string name);

  const std::string& name() const { return name_; }
  const std::string& prefix() const { return prefix_; }
  int64_t num_documents() const { return num_documents_; }
  int64_t num_tokens() const { return num_tokens_; }
  bool has_loss_mask() const { return loss_mask_ != nullptr; }
  // `vocab_size` of PREFIX.json.
  std::optional<int64_t> recorded_vocab_size() const { return recorded_vocab_size_; }

  // Tokens of document i.
  int64_t document_length(int64_t document) const;
  // Copies tokens [offset, offset + count) of a document to `tokens`. Ids beyond int32 are a ValueError.
  void read(int64_t document, int64_t offset, int64_t count, int32_t* tokens) const;
  // The same range of the loss mask; all ones without one.
  void read_loss_mask(int64_t document, int64_t offset, int64_t count, int32_t* mask) const;
  std::vector<int32_t> document(int64_t document) const;

 private:
  void parse_header();
  void check_index();
  void check_loss_mask() const;
  void copy_tokens(int64_t first_byte, int64_t count, int32_t* tokens) const;
  int64_t sequence_length(int64_t sequence) const;
  int64_t sequence_pointer(int64_t sequence) const;
  int64_t document_bound(int64_t document) const;

  std::string prefix_;
  std::string name_;
  MappedFile index_;
  MappedFile tokens_;
  int dtype_code_ = 0;
  int64_t token_bytes_ = 0;
  int64_t num_sequences_ = 0;
  int64_t num_documents_ = 0;
  int64_t num_tokens_ = 0;
  // Document i is sequence i, the usual case: its length is one read instead of three.
  bool is_one_sequence_each_ = false;
  // First bytes of the three arrays within the index, which the 34-byte header leaves unaligned.
  int64_t lengths_at_ = 0;
  int64_t pointers_at_ = 0;
  int64_t bounds_at_ = 0;
  std::optional<int64_t> recorded_vocab_size_;
  std::unique_ptr<IndexedDataset> loss_mask_;
};

}  // namespace steppe::data
