#include "steppe/data/indexed_dataset.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "steppe/base/error.h"

namespace steppe::data {
namespace {

static_assert(std::endian::native == std::endian::little, "the indexed format is little-endian");

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr int64_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;
constexpr int kUint8 = 1;
constexpr std::array<int, 9> kTokenBytes = {0, 1, 1, 2, 4, 8, 0, 0, 2};  // 0: no integer type

template <class T>
T load(const unsigned char* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

std::string without_suffix(std::string path) {
  for (std::string_view suffix : {".bin", ".idx"}) {
    if (path.ends_with(suffix)) path.resize(path.size() - suffix.size());
  }
  return path;
}

std::optional<int64_t> read_vocab_size(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  try {
    const auto record = nlohmann::json::parse(file);
    if (!record.contains("vocab_size")) return std::nullopt;
    return record.at("vocab_size").get<int64_t>();
  } catch (const nlohmann::json::exception& error) {
    throw ValueError(
        fmt::format("[data] {} must be a JSON object with an integer `vocab_size`: {}", path, error.what()));
  }
}

template <class T>
void widen(const unsigned char* from, int64_t count, int32_t* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<int32_t>(load<T>(from + i * sizeof(T)));
}

}  // namespace

IndexedDataset::IndexedDataset(std::string prefix, std::string name)
    : prefix_(without_suffix(std::move(prefix))),
      name_(std::move(name)),
      index_(prefix_ + ".idx"),
      tokens_(prefix_ + ".bin") {
  parse_header();
  check_index();
  recorded_vocab_size_ = read_vocab_size(prefix_ + ".json");
  const std::string mask = prefix_ + ".loss_mask";
  // One of the two files alone is a mistake that must not go unnoticed, hence "or".
  if (std::filesystem::exists(mask + ".idx") || std::filesystem::exists(mask + ".bin")) {
    loss_mask_ = std::make_unique<IndexedDataset>(mask, name_ + ".loss_mask");
    check_loss_mask();
  }
}

void IndexedDataset::parse_header() {
  const std::string& file = index_.path();
  STEPPE_CHECK_VALUE(index_.size_bytes() >= kHeaderBytes,
                     "[data] {} is truncated: its header takes {} bytes, the file has {}", file, kHeaderBytes,
                     index_.size_bytes());
  const unsigned char* at = index_.bytes();
  STEPPE_CHECK_VALUE(std::memcmp(at, kMagic.data(), kMagic.size()) == 0,
                     "[data] {} is not an indexed dataset: it must begin with MMIDIDX", file);
  const auto version = load<uint64_t>(at + 9);
  STEPPE_CHECK_VALUE(version == 1, "[data] {} must have version 1, got {}", file, version);
  dtype_code_ = at[17];
  token_bytes_ = dtype_code_ < static_cast<int>(kTokenBytes.size()) ? kTokenBytes[dtype_code_] : 0;
  STEPPE_CHECK_VALUE(token_bytes_ > 0,
                     "[data] {} must have a dtype code of an integer type (1-5 or 8), got {}", file,
                     dtype_code_);
  const auto sequences = load<uint64_t>(at + 18);
  const auto bounds = load<uint64_t>(at + 26);
  // Bounded by the file's size before any arithmetic that a wild count could overflow.
  const auto size = static_cast<uint64_t>(index_.size_bytes());
  STEPPE_CHECK_VALUE(bounds >= 1, "[data] {} must have at least one document bound, got 0", file);
  STEPPE_CHECK_VALUE(
      sequences <= size && bounds <= size,
      "[data] {} is truncated: it announces {} sequences and {} document bounds, but has {} bytes", file,
      sequences, bounds, size);
  num_sequences_ = static_cast<int64_t>(sequences);
  num_documents_ = static_cast<int64_t>(bounds) - 1;
  lengths_at_ = kHeaderBytes;
  pointers_at_ = lengths_at_ + 4 * num_sequences_;
  bounds_at_ = pointers_at_ + 8 * num_sequences_;
  const int64_t expected = bounds_at_ + 8 * (num_documents_ + 1);
  STEPPE_CHECK_VALUE(index_.size_bytes() == expected || index_.size_bytes() == expected + num_sequences_,
                     "[data] {} {}: {} sequences and {} documents take {} bytes, the file has {}", file,
                     index_.size_bytes() < expected ? "is truncated" : "has bytes too many", num_sequences_,
                     num_documents_, expected, index_.size_bytes());
}

void IndexedDataset::check_index() {
  const std::string& file = index_.path();
  int64_t needed = 0;
  for (int64_t i = 0; i < num_sequences_; ++i) {
    const int64_t length = sequence_length(i);
    const int64_t pointer = sequence_pointer(i);
    STEPPE_CHECK_VALUE(length >= 0, "[data] {}: length of sequence {} must not be negative, got {}", file, i,
                       length);
    STEPPE_CHECK_VALUE(pointer >= 0 && pointer <= std::numeric_limits<int64_t>::max() - length * token_bytes_,
                       "[data] {}: first byte of sequence {} must lie in the .bin file, got {}", file, i,
                       pointer);
    if (length > 0) needed = std::max(needed, pointer + length * token_bytes_);
    num_tokens_ += length;
  }
  STEPPE_CHECK_VALUE(needed <= tokens_.size_bytes(),
                     "[data] {} is truncated: {} expects {} bytes, the file has {}", tokens_.path(), file,
                     needed, tokens_.size_bytes());
  STEPPE_CHECK_VALUE(document_bound(0) == 0, "[data] {}: the first document must begin at sequence 0, got {}",
                     file, document_bound(0));
  is_one_sequence_each_ = num_documents_ == num_sequences_;
  for (int64_t i = 0; i < num_documents_; ++i) {
    is_one_sequence_each_ = is_one_sequence_each_ && document_bound(i) == i;
    STEPPE_CHECK_VALUE(document_bound(i) <= document_bound(i + 1),
                       "[data] {}: document bounds must not decrease, got {} after {} at document {}", file,
                       document_bound(i + 1), document_bound(i), i);
  }
  STEPPE_CHECK_VALUE(document_bound(num_documents_) == num_sequences_,
                     "[data] {}: the last document must end at sequence {}, got {}", file, num_sequences_,
                     document_bound(num_documents_));
}

void IndexedDataset::check_loss_mask() const {
  const IndexedDataset& mask = *loss_mask_;
  STEPPE_CHECK_VALUE(mask.dtype_code_ == kUint8, "[data] {} must hold uint8 (dtype code 1), got code {}",
                     mask.index_.path(), mask.dtype_code_);
  STEPPE_CHECK_VALUE(mask.num_documents_ == num_documents_,
                     "[data] {} must have {} documents as {} has, got {}", mask.index_.path(), num_documents_,
                     index_.path(), mask.num_documents_);
  for (int64_t i = 0; i < num_documents_; ++i) {
    STEPPE_CHECK_VALUE(mask.document_length(i) == document_length(i),
                       "[data] {}: document {} must have {} entries as in {}, got {}", mask.index_.path(), i,
                       document_length(i), index_.path(), mask.document_length(i));
  }
}

int64_t IndexedDataset::sequence_length(int64_t sequence) const {
  return load<int32_t>(index_.bytes() + lengths_at_ + 4 * sequence);
}

int64_t IndexedDataset::sequence_pointer(int64_t sequence) const {
  return load<int64_t>(index_.bytes() + pointers_at_ + 8 * sequence);
}

int64_t IndexedDataset::document_bound(int64_t document) const {
  return load<int64_t>(index_.bytes() + bounds_at_ + 8 * document);
}

int64_t IndexedDataset::document_length(int64_t document) const {
  STEPPE_ASSERT(document >= 0 && document < num_documents_, "[data] document {} of {} in {}", document,
                num_documents_, name_);
  if (is_one_sequence_each_) return sequence_length(document);
  int64_t length = 0;
  for (int64_t s = document_bound(document); s < document_bound(document + 1); ++s)
    length += sequence_length(s);
  return length;
}

void IndexedDataset::copy_tokens(int64_t first_byte, int64_t count, int32_t* tokens) const {
  const unsigned char* from = tokens_.bytes() + first_byte;
  switch (dtype_code_) {
    case 1:
      return widen<uint8_t>(from, count, tokens);
    case 2:
      return widen<int8_t>(from, count, tokens);
    case 3:
      return widen<int16_t>(from, count, tokens);
    case 4:
      return widen<int32_t>(from, count, tokens);
    case 8:
      return widen<uint16_t>(from, count, tokens);
    default:
      break;
  }
  for (int64_t i = 0; i < count; ++i) {
    const auto id = load<int64_t>(from + 8 * i);
    STEPPE_CHECK_VALUE(std::in_range<int32_t>(id), "[data] {}: token ids must fit 32 bits, got {} at byte {}",
                       tokens_.path(), id, first_byte + 8 * i);
    tokens[i] = static_cast<int32_t>(id);
  }
}

void IndexedDataset::read(int64_t document, int64_t offset, int64_t count, int32_t* tokens) const {
  STEPPE_ASSERT(offset >= 0 && count >= 0 && offset + count <= document_length(document),
                "[data] tokens [{}, {}) of document {} of {}, which has {}", offset, offset + count, document,
                name_, document_length(document));
  for (int64_t s = document_bound(document); count > 0; ++s) {
    const int64_t length = sequence_length(s);
    if (offset < length) {
      const int64_t taken = std::min(count, length - offset);
      copy_tokens(sequence_pointer(s) + offset * token_bytes_, taken, tokens);
      tokens += taken;
      count -= taken;
      offset = 0;
    } else {
      offset -= length;
    }
  }
}

void IndexedDataset::read_loss_mask(int64_t document, int64_t offset, int64_t count, int32_t* mask) const {
  if (loss_mask_) return loss_mask_->read(document, offset, count, mask);
  std::fill_n(mask, count, 1);
}

std::vector<int32_t> IndexedDataset::document(int64_t document) const {
  std::vector<int32_t> tokens(static_cast<size_t>(document_length(document)));
  read(document, 0, static_cast<int64_t>(tokens.size()), tokens.data());
  return tokens;
}

}  // namespace steppe::data
