#include "steppe/checkpoint/tensor_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "steppe/base/error.h"

namespace steppe::checkpoint {
namespace {

using nlohmann::json;

constexpr std::string_view kOneFile = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

// "PREFIX.experts.3.up_proj.weight" in its parts.
struct ExpertName {
  std::string prefix;  // "PREFIX.experts."
  int64_t expert = 0;
  std::string_view projection;
};

std::optional<ExpertName> expert_name(std::string_view tensor) {
  constexpr std::string_view kExperts = ".experts.", kWeight = ".weight";
  const size_t at = tensor.find(kExperts);
  if (at == std::string_view::npos || !tensor.ends_with(kWeight)) return std::nullopt;
  const size_t number = at + kExperts.size();
  ExpertName name{std::string(tensor.substr(0, number)), 0, {}};
  const char* end = tensor.data() + tensor.size() - kWeight.size();
  const auto parsed = std::from_chars(tensor.data() + number, end, name.expert);
  if (parsed.ec != std::errc{} || parsed.ptr == end || *parsed.ptr != '.') return std::nullopt;
  name.projection = std::string_view(parsed.ptr + 1, end);
  return name;
}

}  // namespace

TensorFolder::TensorFolder(const std::string& folder_or_file) : path_(folder_or_file) {
  namespace fs = std::filesystem;
  const fs::path path(folder_or_file);
  if (!fs::is_directory(path)) {
    open_file(folder_or_file);
  } else if (fs::exists(path / kOneFile)) {
    open_file((path / kOneFile).string());
  } else {
    STEPPE_CHECK(fs::exists(path / kIndex), "[checkpoint] {} has neither {} nor {}", folder_or_file, kOneFile,
                 kIndex);
    open_index((path / kIndex).string());
  }
}

void TensorFolder::open_file(const std::string& path) {
  const auto& file = files_.emplace_back(std::make_unique<SafetensorsFile>(path));
  for (const auto& [name, entry] : file->tensors()) {
    const auto [it, added] = file_of_.emplace(name, file.get());
    STEPPE_CHECK_VALUE(added, "[checkpoint] tensor {} is in {} and in {}", name, it->second->path(), path);
  }
}

void TensorFolder::open_index(const std::string& index_path) {
  std::ifstream stream(index_path, std::ios::binary);
  STEPPE_CHECK(stream.good(), "[checkpoint] cannot open {}", index_path);
  const json index = json::parse(stream, nullptr, /*allow_exceptions=*/false);
  STEPPE_CHECK_VALUE(index.is_object() && index.contains("weight_map") && index["weight_map"].is_object(),
                     "[checkpoint] {} must be a JSON object with a weight_map", index_path);
  const auto& map = index["weight_map"];
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : map.items()) {
    // A shard lies beside its index: names that lead elsewhere are not followed.
    STEPPE_CHECK_VALUE(shard.is_string() && shard.get<std::string>().find('/') == std::string::npos,
                       "[checkpoint] {}: the shard of {} must be a file name, got {}", index_path, tensor,
                       shard.dump());
    shards.insert(shard.get<std::string>());
  }
  const auto folder = std::filesystem::path(index_path).parent_path();
  for (const auto& shard : shards) open_file((folder / shard).string());
  for (const auto& [tensor, shard] : map.items()) {
    const auto it = file_of_.find(tensor);
    STEPPE_CHECK_VALUE(it != file_of_.end() &&
                           std::filesystem::path(it->second->path()).filename() == shard.get<std::string>(),
                       "[checkpoint] {} puts tensor {} into {}, which does not have it", index_path, tensor,
                       shard.get<std::string>());
  }
}

std::optional<TensorPlace> TensorFolder::find(const std::string& tensor) const {
  const auto it = file_of_.find(tensor);
  if (it == file_of_.end()) return find_packed(tensor);
  return TensorPlace{it->second, tensor, 0, it->second->at(tensor).shape, 0};
}

std::optional<TensorPlace> TensorFolder::find_packed(const std::string& tensor) const {
  const auto name = expert_name(tensor);
  if (!name) return std::nullopt;
  const bool down = name->projection == "down_proj", up = name->projection == "up_proj";
  if (!down && !up && name->projection != "gate_proj") return std::nullopt;
  const auto packed = name->prefix + (down ? "down_proj" : "gate_up_proj");
  const auto it = file_of_.find(packed);
  if (it == file_of_.end()) return std::nullopt;
  const auto& shape = it->second->at(packed).shape;
  STEPPE_CHECK_VALUE(shape.size() == 3 && (down || shape[1] % 2 == 0),
                     "[checkpoint] {}: tensor {} of shape [{}] must be [experts, {}, columns]",
                     it->second->path(), packed, fmt::join(shape, ", "), down ? "rows" : "2·rows");
  const int64_t rows = down ? shape[1] : shape[1] / 2;
  const int64_t first_row = name->expert * shape[1] + (up ? rows : 0);
  return TensorPlace{it->second, packed, first_row * shape[2], {rows, shape[2]}, shape[0]};
}

std::vector<std::string> TensorFolder::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : file_of_) names.push_back(name);
  return names;
}

void TensorFolder::read(const TensorPlace& place, int64_t begin, std::span<float> out) const {
  place.file->read_floats(place.stored_name, place.offset + begin, out);
}

}  // namespace steppe::checkpoint
