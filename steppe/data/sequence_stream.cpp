#include "steppe/data/sequence_stream.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "steppe/base/error.h"
#include "steppe/data/fixed_random.h"

namespace steppe::data {
namespace {

// Keeps the hash of a document's number apart from the shuffles, which use the same seed.
constexpr uint64_t kHeldOutSalt = 0x76616c5f73706c69ULL;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

bool is_held_out(uint64_t seed, double val_split, uint64_t document) {
  // 53 bits of hash against the fraction: both sides are exact in a double.
  const uint64_t hash = mix(mix(seed ^ kHeldOutSalt) + (document + 1) * kGolden);
  return static_cast<double>(hash >> 11) < val_split * 0x1.0p53;
}

SequenceStream::SequenceStream(std::shared_ptr<const IndexedDataset> dataset, const DataConfig& config,
                               StreamOptions options)
    : dataset_(std::move(dataset)), config_(config), options_(options) {
  check(config_);
  STEPPE_CHECK_VALUE(dataset_->num_documents() <= std::numeric_limits<uint32_t>::max(),
                     "[data] {} must have fewer than 2^32 documents, got {}", dataset_->prefix(),
                     dataset_->num_documents());
  if (const auto recorded = dataset_->recorded_vocab_size()) {
    STEPPE_CHECK_VALUE(*recorded <= options_.vocab_size,
                       "[data] {}.json records a vocabulary of {} tokens, the model's `vocab_size` is {}",
                       dataset_->prefix(), *recorded, options_.vocab_size);
  }
  const bool once = options_.kind == StreamOptions::Kind::kOnce;
  if (once) config_.shuffle = false;
  for (const uint32_t document : documents()) units_per_epoch_ += units(document);
  if (config_.packing) {
    // The last token of a single pass is only ever a target.
    const int64_t inputs = once ? units_per_epoch_ - 1 : units_per_epoch_;
    sequences_per_epoch_ = ceil_div(std::max<int64_t>(inputs, 0), config_.seq_length);
  } else {
    sequences_per_epoch_ = units_per_epoch_;
  }
  STEPPE_CHECK_VALUE(
      sequences_per_epoch_ > 0,
      "[data] {} (\"{}\") leaves nothing to read: {} documents, {} tokens, `data.val_split` {}{}",
      dataset_->prefix(), dataset_->name(), dataset_->num_documents(), dataset_->num_tokens(),
      config_.val_split, config_.over_length == OverLength::kDrop ? ", documents over length dropped" : "");
}

std::vector<uint32_t> SequenceStream::documents() const {
  std::vector<uint32_t> chosen;
  const auto total = static_cast<uint32_t>(dataset_->num_documents());
  chosen.reserve(options_.part == StreamOptions::Part::kHeldOut ? 0 : total);
  for (uint32_t document = 0; document < total; ++document) {
    if (options_.part != StreamOptions::Part::kAll) {
      const bool wanted = options_.part == StreamOptions::Part::kHeldOut;
      if (is_held_out(config_.seed, config_.val_split, document) != wanted) continue;
    }
    if (units(document) > 0) chosen.push_back(document);
  }
  return chosen;
}

int64_t SequenceStream::used_tokens(uint32_t document) const {
  const int64_t length = dataset_->document_length(document);
  const int64_t limit = config_.seq_length + 1;
  if (length <= limit || config_.over_length == OverLength::kSplit) return length;
  return config_.over_length == OverLength::kTruncate ? limit : 0;
}

int64_t SequenceStream::units(uint32_t document) const {
  const int64_t used = used_tokens(document);
  if (config_.packing) return used;
  return used < 2 ? 0 : ceil_div(used - 1, config_.seq_length);
}

const DocumentOrder& SequenceStream::order(int64_t epoch) {
  for (const CachedOrder& cached : orders_) {
    if (cached.epoch == epoch) return *cached.order;
  }
  // Room is made first, so that no more than two orders are ever alive; the one farther from `epoch` goes.
  if (orders_.size() == 2) {
    const bool first = std::abs(orders_[0].epoch - epoch) > std::abs(orders_[1].epoch - epoch);
    orders_.erase(orders_.begin() + (first ? 0 : 1));
  }
  auto built = std::make_unique<DocumentOrder>(
      documents(), [this](uint32_t document) { return units(document); }, config_.shuffle, config_.seed,
      static_cast<uint64_t>(epoch));
  orders_.push_back({epoch, std::move(built)});
  return *orders_.back().order;
}

std::vector<SequenceStream::Piece> SequenceStream::packed_pieces(int64_t index) {
  const int64_t window = config_.seq_length + 1;
  const int64_t first = index * config_.seq_length;
  int64_t epoch = first / units_per_epoch_;
  const auto count_units = [this](uint32_t document) { return units(document); };
  DocumentOrder::Place place = order(epoch).locate(first % units_per_epoch_, count_units);
  std::vector<Piece> pieces;
  for (int64_t filled = 0; filled < window;) {
    if (place.rank == order(epoch).num_documents()) {
      if (options_.kind == StreamOptions::Kind::kOnce) break;
      ++epoch;
      place.rank = 0;
    }
    const uint32_t document = order(epoch).document(place.rank);
    const int64_t count = std::min(used_tokens(document) - place.offset, window - filled);
    pieces.push_back({document, place.offset, count, filled});
    filled += count;
    place = {place.rank + 1, 0};
  }
  return pieces;
}

std::vector<SequenceStream::Piece> SequenceStream::document_piece(int64_t index) {
  const DocumentOrder& documents = order(index / units_per_epoch_);
  const auto place =
      documents.locate(index % units_per_epoch_, [this](uint32_t document) { return units(document); });
  const uint32_t document = documents.document(place.rank);
  const int64_t offset = place.offset * config_.seq_length;
  return {{document, offset, std::min(used_tokens(document) - offset, config_.seq_length + 1), 0}};
}

void SequenceStream::check_ids(const Piece& piece, const int32_t* tokens) const {
  for (int64_t i = 0; i < piece.count; ++i) {
    STEPPE_CHECK_VALUE(
        tokens[i] >= 0 && tokens[i] < options_.vocab_size,
        "[data] token id must be in [0, {}), the model's `vocab_size`, got {}: dataset \"{}\" ({}), "
        "document {}, position {}",
        options_.vocab_size, tokens[i], dataset_->name(), dataset_->prefix(), piece.document,
        piece.offset + i);
  }
}

Sequence SequenceStream::assemble(const std::vector<Piece>& pieces) const {
  const int64_t length = config_.seq_length;
  std::vector<int32_t> window(static_cast<size_t>(length + 1), kPaddingToken);
  std::vector<int32_t> mask(static_cast<size_t>(length + 1), 0);  // padding is no target
  std::vector<char> begins(static_cast<size_t>(length + 1), 0);
  int64_t filled = 0;
  for (const Piece& piece : pieces) {
    dataset_->read(piece.document, piece.offset, piece.count, window.data() + piece.start);
    check_ids(piece, window.data() + piece.start);
    dataset_->read_loss_mask(piece.document, piece.offset, piece.count, mask.data() + piece.start);
    begins[static_cast<size_t>(piece.start)] = 1;
    filled = piece.start + piece.count;
  }
  if (filled < length) begins[static_cast<size_t>(filled)] = 1;

  Sequence sequence;
  sequence.tokens.assign(window.begin(), window.end() - 1);
  sequence.targets.resize(static_cast<size_t>(length));
  sequence.positions.resize(static_cast<size_t>(length));
  int32_t position = 0;
  for (size_t i = 0; i < static_cast<size_t>(length); ++i) {
    if (i == 0 || (begins[i] && config_.document_mask)) {
      sequence.document_starts.push_back(static_cast<int32_t>(i));
    }
    if (begins[i] && config_.reset_position_ids) position = 0;
    sequence.positions[i] = position++;
    const bool crosses = config_.document_mask && begins[i + 1];
    sequence.targets[i] = mask[i + 1] != 0 && !crosses ? window[i + 1] : kIgnoredTarget;
  }
  return sequence;
}

Sequence SequenceStream::sample(int64_t index) {
  const bool endless = options_.kind == StreamOptions::Kind::kEndless;
  STEPPE_ASSERT(index >= 0 && (endless || index < sequences_per_epoch_), "[data] sequence {} of {} in {}",
                index, sequences_per_epoch_, dataset_->name());
  return assemble(config_.packing ? packed_pieces(index) : document_piece(index));
}

}  // namespace steppe::data
