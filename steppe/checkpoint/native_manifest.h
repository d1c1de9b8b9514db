// What a native checkpoint holds, in words: manifest.json. For each logical tensor its shape and the pieces
// that make it up, for each shard file its units and where they lie, and the facts of the run that saved it.
//
//   FOLDER/step_00000040/manifest.json           sealed by a CRC-32C of its own (durable_file.h)
//                        rank_0000.safetensors   tensors "UNIT/master", "UNIT/m", "UNIT/v", flat
//                        rank_0000.crc32c        CRC-32C of each 1 MiB block of the shard, 4 bytes each
//   FOLDER/latest                                names the newest; sealed
//
// Logical tensors have Hugging Face's names and shapes; a piece is a run of elements, row-major. So a reader
// at any layout finds what it needs without knowing the layout that wrote it. Nothing in a checkpoint is
// executed.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "steppe/checkpoint/safetensors.h"

namespace steppe::checkpoint {

enum class State : uint8_t { kMaster, kM, kV };  // the fp32 weights and AdamW's moments
inline constexpr std::array kStates = {State::kMaster, State::kM, State::kV};
std::string_view name_of(State state);

struct StoredState {
  State state = State::kMaster;
  Dtype dtype = Dtype::kF32;
  int64_t begin_byte = 0;  // within the file
};

// A rank's part of a weight unit.
struct StoredUnit {
  std::string name;
  int64_t numel = 0;
  std::vector<StoredState> states;
  const StoredState* find(State state) const;  // null when it was not saved
};

struct ShardFile {
  std::string name;  // within the checkpoint's folder
  int64_t size_bytes = 0;
  int64_t header_bytes = 0;       // where tensors begin
  uint32_t checksums_crc32c = 0;  // of the file of checksums
  std::vector<StoredUnit> units;
  std::string checksums_name() const;
  int64_t num_blocks() const;  // of kBlockBytes, the last may be short: a checksum each
};

struct Piece {
  int64_t file = 0, unit = 0;  // indices
  int64_t offset = 0;          // first element within the stored unit
  int64_t begin = 0;           // first element within the logical tensor
  int64_t count = 0;
};

struct LogicalTensor {
  std::vector<int64_t> shape;
  std::vector<Piece> pieces;  // by `begin`; end to end over the whole tensor
};

// What a checkpoint says of its run.
struct SavedRun {
  int64_t step = 0;    // the last that was finished
  int64_t tokens = 0;  // input tokens so far
  int64_t world_size = 1, ulysses_degree = 1, expert_degree = 1, vocab_degree = 1;
  std::string compute_dtype;
  std::map<std::string, std::string> facts;  // what a run that goes on must have in common, by recipe key
  std::string recipe;                        // resolved, TOML
  std::string model_config;                  // the config.json that the run named; may be empty
};

struct Manifest {
  std::string id;      // of this save; each shard carries it
  int64_t serial = 0;  // counts the saves of a folder: the highest is the newest
  SavedRun run;
  std::vector<ShardFile> files;  // by rank
  std::map<std::string, LogicalTensor, std::less<>> tensors;

  const LogicalTensor& at(std::string_view tensor) const;  // ValueError with the nearest name
};

// One rank's part, which rank 0 gathers into the manifest.
struct ShardIndex {
  struct Slice {
    std::string tensor;
    std::vector<int64_t> shape;
    Piece piece;  // its `file` is not set
  };
  std::string id;
  int64_t rank = 0;
  ShardFile file;
  std::vector<Slice> slices;
};

// ValueError where slices overlap, leave a hole, or disagree about a shape.
void add_shard(Manifest& manifest, const ShardIndex& index);
void check_complete(const Manifest& manifest, const std::string& place);

std::string to_text(const Manifest& manifest);
std::string to_text(const ShardIndex& index);
// Errors name the file: RuntimeFailure where it cannot be read, ValueError where it is damaged or of a
// version that this program does not know.
Manifest read_manifest(const std::string& path);
ShardIndex read_shard_index(const std::string& path);

}  // namespace steppe::checkpoint
