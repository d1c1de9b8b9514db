// One dataset as numbered sequences of seq_length tokens, any of which can be made on its own.
//
// Packed, the documents of epoch 0 in their order, then those of epoch 1, … form one endless run of tokens;
// sequence k holds tokens [k·seq_length, (k+1)·seq_length) of it, and looks one token ahead for its last
// target. So every token of an epoch is an input exactly once, nothing is dropped at an epoch's end, and the
// epoch follows from the number. Not packed, each document gives one sequence (several if it is over length
// and "split"; those overlap by one token, which is target in one and input in the next), padded at its end;
// documents of fewer than two tokens have nothing to predict and give none.
//
// A validation stream is read once, in file order, and ends; its last packed sequence is padded.
// Not safe from several threads at once: orders are cached. Memory: 4 bytes per document, for two epochs.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "steppe/data/config.h"
#include "steppe/data/document_order.h"
#include "steppe/data/indexed_dataset.h"

namespace steppe::data {

inline constexpr int32_t kIgnoredTarget = -100;
inline constexpr int32_t kPaddingToken = 0;

// All vectors but `document_starts` have seq_length entries.
struct Sequence {
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;    // the token to predict after this one, or kIgnoredTarget
  std::vector<int32_t> positions;  // from the sequence's start, or the document's with reset_position_ids
  // Where attention starts afresh: 0, and with document_mask each document's first token. Padding is then a
  // document of its own.
  std::vector<int32_t> document_starts;
};

// Whether `val_split` holds this document out of training: a seeded hash of its number, so that no list is
// kept and every rank agrees.
bool is_held_out(uint64_t seed, double val_split, uint64_t document);

struct StreamOptions {
  enum class Part { kAll, kTraining, kHeldOut } part = Part::kAll;
  enum class Kind { kEndless, kOnce } kind = Kind::kEndless;
  int64_t vocab_size = 0;  // ids must be below
};

class SequenceStream {
 public:
  // ValueError if the part has no documents to learn from, or if PREFIX.json records a larger vocabulary.
  SequenceStream(std::shared_ptr<const IndexedDataset> dataset, const DataConfig& config,
                 StreamOptions options);

  const IndexedDataset& dataset() const { return *dataset_; }
  // One pass over the part: its length for kOnce, else rounded up, as the next epoch begins within the last.
  int64_t sequences_per_epoch() const { return sequences_per_epoch_; }
  // ValueError naming dataset, document, position, id and vocabulary for an id outside [0, vocab_size).
  Sequence sample(int64_t index);

 private:
  struct Piece {
    uint32_t document;
    int64_t offset;  // tokens of the document before the piece
    int64_t count;
    int64_t start;  // within the window of seq_length + 1 tokens
  };

  std::vector<uint32_t> documents() const;
  int64_t used_tokens(uint32_t document) const;
  int64_t units(uint32_t document) const;
  const DocumentOrder& order(int64_t epoch);
  std::vector<Piece> packed_pieces(int64_t index);
  std::vector<Piece> document_piece(int64_t index);
  void check_ids(const Piece& piece, const int32_t* tokens) const;
  Sequence assemble(const std::vector<Piece>& pieces) const;

  std::shared_ptr<const IndexedDataset> dataset_;
  DataConfig config_;
  StreamOptions options_;
  int64_t units_per_epoch_ = 0;
  int64_t sequences_per_epoch_ = 0;
  struct CachedOrder {
    int64_t epoch;
    std::unique_ptr<DocumentOrder> order;
  };
  std::vector<CachedOrder> orders_;  // at most two: a sequence may begin in one epoch and end in the next
};

}  // namespace steppe::data
