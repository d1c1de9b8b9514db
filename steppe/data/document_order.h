// The documents of one epoch in the order in which they are read, and where a unit of the epoch falls among
// them. A unit is whatever the caller counts: a token when documents are packed, a sequence when they are
// not.
//
// Memory: 4 bytes per document and 8 per 64 documents. Building is linear; locating takes a binary search and
// at most 64 steps.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace steppe::data {

class DocumentOrder {
 public:
  // Units of a document; more than 0 for those in the order.
  using Units = std::function<int64_t(uint32_t document)>;

  struct Place {
    int64_t rank;    // of the document in the order
    int64_t offset;  // units of that document before this one
  };

  // Takes the documents over, shuffled by (seed, epoch) if `shuffle`.
  DocumentOrder(std::vector<uint32_t> documents, const Units& units, bool shuffle, uint64_t seed,
                uint64_t epoch);

  int64_t num_documents() const { return static_cast<int64_t>(documents_.size()); }
  int64_t num_units() const { return num_units_; }
  uint32_t document(int64_t rank) const { return documents_[static_cast<size_t>(rank)]; }
  // `unit` in [0, num_units()).
  Place locate(int64_t unit, const Units& units) const;

 private:
  std::vector<uint32_t> documents_;
  std::vector<int64_t> checkpoints_;  // units before each 64th document
  int64_t num_units_ = 0;
};

}  // namespace steppe::data
