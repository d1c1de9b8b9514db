#include "steppe/checkpoint/native_reader.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/checkpoint/native_folder.h"

namespace steppe::checkpoint {
namespace {

void read_stored(CheckedFile& file, const StoredState& stored, int64_t first, std::span<float> out) {
  const int64_t begin = stored.begin_byte + first * size_bytes_of(stored.dtype);
  if (stored.dtype == Dtype::kF32) {
    file.read(begin, std::as_writable_bytes(out));
    return;
  }
  STEPPE_CHECK_VALUE(stored.dtype == Dtype::kBF16, "[checkpoint] {}: a state of dtype {} must be F32 or BF16",
                     file.path(), name_of(stored.dtype));
  constexpr size_t kChunk = 1 << 16;
  std::vector<uint16_t> halves(std::min(out.size(), kChunk));
  for (size_t at = 0; at < out.size(); at += halves.size()) {
    halves.resize(std::min(halves.size(), out.size() - at));
    file.read(begin + static_cast<int64_t>(at * sizeof(uint16_t)), std::as_writable_bytes(std::span(halves)));
    for (size_t i = 0; i < halves.size(); ++i)
      out[at + i] = std::bit_cast<float>(static_cast<uint32_t>(halves[i]) << 16);
  }
}

}  // namespace

NativeReader::NativeReader(const std::string& path)
    : path_(resolve_checkpoint(path)),
      manifest_(read_manifest((std::filesystem::path(path_) / kManifestName).string())) {}

CheckedFile& NativeReader::file(int64_t index) {
  auto& file = files_[index];
  if (!file) file = std::make_unique<CheckedFile>(path_, manifest_.files[index], manifest_.id, cache_);
  return *file;
}

void NativeReader::read(std::string_view tensor, State state, int64_t begin, std::span<float> out) {
  const auto& pieces = manifest_.at(tensor).pieces;
  const int64_t end = begin + std::ssize(out);
  STEPPE_CHECK_VALUE(begin >= 0 && (out.empty() || end <= pieces.back().begin + pieces.back().count),
                     "[checkpoint] elements [{}, {}) of {} in {}, which has {}", begin, end, tensor, path_,
                     pieces.back().begin + pieces.back().count);
  auto piece = std::ranges::upper_bound(pieces, begin, {}, &Piece::begin);
  if (piece != pieces.begin()) --piece;
  for (; piece != pieces.end() && piece->begin < end; ++piece) {
    const int64_t from = std::max(begin, piece->begin), to = std::min(end, piece->begin + piece->count);
    if (from >= to) continue;
    auto& shard = file(piece->file);
    const auto& unit = shard.description().units[piece->unit];
    const auto* stored = unit.find(state);
    if (stored == nullptr && state != State::kMaster) {  // frozen until now: its moments begin from zero
      std::ranges::fill(out.subspan(from - begin, to - from), 0.0F);
      continue;
    }
    STEPPE_CHECK_VALUE(stored != nullptr, "[checkpoint] {} holds no {} of {}", shard.path(), name_of(state),
                       tensor);
    read_stored(shard, *stored, piece->offset + from - piece->begin, out.subspan(from - begin, to - from));
  }
}

}  // namespace steppe::checkpoint
