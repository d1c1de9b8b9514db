#include "steppe/checkpoint/export_tokenizer.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "steppe/base/error.h"

namespace steppe::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenizer = "tokenizer.json";
constexpr std::array kNames = {kTokenizer,
                               "tokenizer_config.json",
                               "special_tokens_map.json",
                               "added_tokens.json",
                               "vocab.json",
                               "merges.txt",
                               "vocab.txt",
                               "tokenizer.model",
                               "chat_template.jinja"};

std::string bytes_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  STEPPE_CHECK(stream.good(), "[export] cannot open {}", path.string());
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Where the tokenizer came from; empty when it was made with the data.
fs::path original_folder(const recipe::RunConfig& run) {
  const auto& named = run.data.tokenizer ? run.data.tokenizer : run.model.path;
  if (!named || *named == "bytes" || named->starts_with("bpe:")) return {};
  const fs::path path(*named);
  return path.filename() == kTokenizer ? path.parent_path() : path;
}

std::optional<int64_t> prepared_eos(const recipe::RunConfig& run) {
  if (!run.data.prepared || run.data.train.empty()) return std::nullopt;
  std::ifstream stream(fs::path(*run.data.prepared) / (run.data.train.front().name + ".json"));
  const auto record = nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object() || !record.contains("eos_id") || !record["eos_id"].is_number_integer())
    return std::nullopt;
  return record["eos_id"].get<int64_t>();
}

}  // namespace

TokenizerFiles find_tokenizer(const recipe::RunConfig& run) {
  TokenizerFiles files;
  files.eos = prepared_eos(run);
  const auto original = original_folder(run);
  const auto prepared = fs::path(run.data.prepared.value_or(""));
  std::error_code ignored;
  const bool has_original = !original.empty() && fs::is_regular_file(original / kTokenizer, ignored);
  const bool has_prepared = !prepared.empty() && fs::is_regular_file(prepared / kTokenizer, ignored);
  STEPPE_CHECK_VALUE(
      !has_original || !has_prepared || bytes_of(original / kTokenizer) == bytes_of(prepared / kTokenizer),
      "[export] {} is not the tokenizer that the data was prepared with, {}: name the right one with --set "
      "data.tokenizer=FOLDER",
      (original / kTokenizer).string(), (prepared / kTokenizer).string());
  if (!has_original && !has_prepared) return files;
  files.folder = has_original ? original : prepared;
  for (const char* name : kNames) {
    if (fs::is_regular_file(files.folder / name, ignored)) files.names.emplace_back(name);
  }
  return files;
}

}  // namespace steppe::checkpoint
