#include "steppe/checkpoint/native_manifest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "steppe/base/error.h"
#include "steppe/base/nearest.h"
#include "steppe/checkpoint/durable_file.h"
#include "steppe/checkpoint/safetensors_dtype.h"

namespace steppe::checkpoint {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;
constexpr std::string_view kFormat = "steppe checkpoint";

State state_named(const std::string& name) {
  for (const State state : kStates) {
    if (name_of(state) == name) return state;
  }
  throw ValueError(fmt::format("there is no state {}", name));
}

json to_json(const ShardFile& file) {
  json units = json::array();
  for (const auto& unit : file.units) {
    json states = json::object();
    for (const auto& stored : unit.states)
      states[std::string(name_of(stored.state))] = {name_of(stored.dtype), stored.begin_byte};
    units.push_back({{"name", unit.name}, {"numel", unit.numel}, {"states", std::move(states)}});
  }
  return {{"name", file.name},
          {"size_bytes", file.size_bytes},
          {"header_bytes", file.header_bytes},
          {"checksums_crc32c", file.checksums_crc32c},
          {"units", std::move(units)}};
}

ShardFile file_from(const json& value) {
  ShardFile file;
  value.at("name").get_to(file.name);
  // A shard lies beside its manifest: names that lead elsewhere are not followed.
  STEPPE_CHECK_VALUE(file.name.find('/') == std::string::npos, "the shard {} must be a file name", file.name);
  value.at("size_bytes").get_to(file.size_bytes);
  value.at("header_bytes").get_to(file.header_bytes);
  value.at("checksums_crc32c").get_to(file.checksums_crc32c);
  for (const auto& each : value.at("units")) {
    StoredUnit unit{each.at("name"), each.at("numel"), {}};
    for (const auto& [name, place] : each.at("states").items()) {
      const auto dtype = dtype_named(place.at(0).get<std::string>());
      STEPPE_CHECK_VALUE(dtype.has_value(), "unit {} has no dtype", unit.name);
      const StoredState stored{state_named(name), *dtype, place.at(1)};
      STEPPE_CHECK_VALUE(stored.begin_byte >= file.header_bytes &&
                             unit.numel * size_bytes_of(stored.dtype) <= file.size_bytes - stored.begin_byte,
                         "unit {} is not inside {}", unit.name, file.name);
      unit.states.push_back(stored);
    }
    file.units.push_back(std::move(unit));
  }
  return file;
}

json to_json(const Piece& piece) {
  return {piece.file, piece.unit, piece.offset, piece.begin, piece.count};
}

Piece piece_from(const json& value) {
  return {value.at(0), value.at(1), value.at(2), value.at(3), value.at(4)};
}

json to_json(const SavedRun& run) {
  return {{"step", run.step},
          {"tokens", run.tokens},
          {"world_size", run.world_size},
          {"ulysses_degree", run.ulysses_degree},
          {"expert_parallel_degree", run.expert_degree},
          {"vocab_parallel_degree", run.vocab_degree},
          {"compute_dtype", run.compute_dtype},
          {"facts", run.facts},
          {"recipe", run.recipe},
          {"model_config", run.model_config}};
}

SavedRun run_from(const json& value) {
  return {value.at("step"),
          value.at("tokens"),
          value.at("world_size"),
          value.at("ulysses_degree"),
          value.at("expert_parallel_degree"),
          value.at("vocab_parallel_degree"),
          value.at("compute_dtype"),
          value.at("facts"),
          value.at("recipe"),
          value.at("model_config")};
}

// The checked text of a file as JSON, taken apart by `read`; what it misses or finds of another kind is an
// error that names the file.
template <class Read>
auto read_json(const std::string& path, const Read& read) {
  const auto text = read_sealed(path);
  try {
    return read(json::parse(text));
  } catch (const json::exception& error) {
    throw ValueError(fmt::format("[checkpoint] {} is not what this version writes: {}", path, error.what()));
  } catch (const ValueError& error) {
    throw ValueError(fmt::format("[checkpoint] {}: {}", path, error.what()));
  }
}

}  // namespace

std::string_view name_of(State state) {
  return state == State::kMaster ? "master" : state == State::kM ? "m" : "v";
}

const StoredState* StoredUnit::find(State state) const {
  const auto it = std::ranges::find(states, state, &StoredState::state);
  return it == states.end() ? nullptr : &*it;
}

std::string ShardFile::checksums_name() const {
  return name.substr(0, name.rfind('.')) + ".crc32c";
}

int64_t ShardFile::num_blocks() const {
  return (size_bytes + kBlockBytes - 1) / kBlockBytes;
}

const LogicalTensor& Manifest::at(std::string_view tensor) const {
  const auto it = tensors.find(tensor);
  if (it != tensors.end()) return it->second;
  std::vector<std::string> names;
  for (const auto& [name, unused] : tensors) names.push_back(name);
  const auto nearest = nearest_name(tensor, names);
  throw ValueError(fmt::format("[checkpoint] step {} has no tensor {}{}", run.step, tensor,
                               nearest ? fmt::format("; it has {}", *nearest) : ""));
}

void add_shard(Manifest& manifest, const ShardIndex& index) {
  const auto file = static_cast<int64_t>(manifest.files.size());
  manifest.files.push_back(index.file);
  for (const auto& slice : index.slices) {
    auto& tensor = manifest.tensors[slice.tensor];
    if (tensor.pieces.empty()) tensor.shape = slice.shape;
    STEPPE_CHECK_VALUE(tensor.shape == slice.shape,
                       "[checkpoint] {} has the shape [{}] on rank {}, [{}] before", slice.tensor,
                       fmt::join(slice.shape, ", "), index.rank, fmt::join(tensor.shape, ", "));
    tensor.pieces.push_back(slice.piece);
    tensor.pieces.back().file = file;
  }
}

void check_complete(const Manifest& manifest, const std::string& place) {
  for (const auto& [name, tensor] : manifest.tensors) {
    int64_t end = 0;
    for (const auto& piece : tensor.pieces) {
      STEPPE_CHECK_VALUE(piece.begin == end && piece.count > 0,
                         "[checkpoint] {}: element {} of {} is in no piece, or in two", place,
                         std::min(end, piece.begin), name);
      end += piece.count;
      const bool known = piece.file >= 0 && piece.file < std::ssize(manifest.files) && piece.unit >= 0 &&
                         piece.unit < std::ssize(manifest.files[piece.file].units) && piece.offset >= 0 &&
                         piece.count <= manifest.files[piece.file].units[piece.unit].numel - piece.offset;
      STEPPE_CHECK_VALUE(known, "[checkpoint] {}: a piece of {} is in no stored unit", place, name);
    }
    STEPPE_CHECK_VALUE(numel_of(tensor.shape) == end, "[checkpoint] {}: {} of shape [{}] has {} elements",
                       place, name, fmt::join(tensor.shape, ", "), end);
  }
}

std::string to_text(const Manifest& manifest) {
  json files = json::array(), tensors = json::object();
  for (const auto& file : manifest.files) files.push_back(to_json(file));
  for (const auto& [name, tensor] : manifest.tensors) {
    json pieces = json::array();
    for (const auto& piece : tensor.pieces) pieces.push_back(to_json(piece));
    tensors[name] = {{"shape", tensor.shape}, {"pieces", std::move(pieces)}};
  }
  const json object = {{"format", kFormat},
                       {"version", kVersion},
                       {"id", manifest.id},
                       {"serial", manifest.serial},
                       {"run", to_json(manifest.run)},
                       {"files", std::move(files)},
                       {"tensors", std::move(tensors)}};
  return sealed(object.dump());
}

std::string to_text(const ShardIndex& index) {
  json slices = json::array();
  for (const auto& slice : index.slices)
    slices.push_back({{"tensor", slice.tensor}, {"shape", slice.shape}, {"piece", to_json(slice.piece)}});
  const json object = {
      {"id", index.id}, {"rank", index.rank}, {"file", to_json(index.file)}, {"slices", std::move(slices)}};
  return sealed(object.dump());
}

Manifest read_manifest(const std::string& path) {
  auto manifest = read_json(path, [](const json& object) {
    STEPPE_CHECK_VALUE(object.at("format") == kFormat, "this is no checkpoint's manifest");
    STEPPE_CHECK_VALUE(object.at("version") == kVersion, "it is of version {}; this program knows {}",
                       object.at("version").dump(), kVersion);
    Manifest result;
    object.at("id").get_to(result.id);
    object.at("serial").get_to(result.serial);
    result.run = run_from(object.at("run"));
    for (const auto& file : object.at("files")) result.files.push_back(file_from(file));
    for (const auto& [name, value] : object.at("tensors").items()) {
      LogicalTensor tensor{value.at("shape"), {}};
      for (const auto& piece : value.at("pieces")) tensor.pieces.push_back(piece_from(piece));
      result.tensors.emplace(name, std::move(tensor));
    }
    return result;
  });
  check_complete(manifest, path);
  return manifest;
}

ShardIndex read_shard_index(const std::string& path) {
  return read_json(path, [](const json& object) {
    ShardIndex index{object.at("id"), object.at("rank"), file_from(object.at("file")), {}};
    for (const auto& slice : object.at("slices"))
      index.slices.push_back({slice.at("tensor"), slice.at("shape"), piece_from(slice.at("piece"))});
    return index;
  });
}

}  // namespace steppe::checkpoint
