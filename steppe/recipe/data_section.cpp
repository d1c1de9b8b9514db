#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "steppe/recipe/sections.h"

namespace steppe::recipe {
namespace {

constexpr std::string_view kTrain = "data.train";
constexpr std::string_view kValidation = "validation.set";

// The name of a source that nobody named: "corpus/code.jsonl.gz" → "code", "stdlib:" → "stdlib".
std::string default_name(const std::string& path) {
  std::filesystem::path parts(path);
  if (!parts.has_filename()) parts = parts.parent_path();  // "folder/"
  const std::string file = parts.filename().string();
  return file.substr(0, std::min(file.find_first_of(".:", 1), file.size()));
}

// Names become file names and metric tags.
bool is_source_name(const std::string& name) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  return !name.empty() && name.front() != '.' && name.find_first_not_of(kLetters) == std::string::npos;
}

struct NamedPath {
  std::string path;
  std::string name;
};

NamedPath read_named_path(Recipe& recipe, const std::string& element, std::vector<std::string>& names) {
  NamedPath source;
  source.path = recipe.required_text(element + ".path", "what to read");
  recipe.check(!source.path.empty(), element + ".path", "must not be empty");
  source.name = recipe.text(element + ".name", default_name(source.path));
  // Without a path there is no default name to judge; finish() reports the path.
  if (source.path.empty()) return source;
  recipe.check(is_source_name(source.name), element + ".name",
               "must be made of letters, digits, \"_\", \"-\" and \".\": it names files");
  recipe.check(std::find(names.begin(), names.end(), source.name) == names.end(), element + ".name",
               "is the name of an earlier one too: names must differ");
  names.push_back(source.name);
  return source;
}

}  // namespace

DataSection read_data_section(Recipe& recipe) {
  DataSection data;
  data.prepared = recipe.text("data.prepared");
  recipe.check(!data.prepared || !data.prepared->empty(), "data.prepared", "must be the path of a folder");
  data.tokenizer = recipe.text("data.tokenizer");
  recipe.check(!data.tokenizer || !data.tokenizer->empty(), "data.tokenizer",
               "must be a tokenizer.json, its folder, \"bpe:SIZE\" or \"bytes\"");
  data.eos = recipe.text("data.eos", data.eos);
  data.packing = recipe.flag("data.packing", data.packing);
  data.document_mask = recipe.flag("data.document_mask", data.document_mask);
  data.reset_position_ids = recipe.flag("data.reset_position_ids", data.reset_position_ids);
  data.over_length = recipe.choice("data.over_length", {{"split", "truncate", "drop"}, {}});
  data.shuffle = recipe.flag("data.shuffle", data.shuffle);
  data.val_split = recipe.number("data.val_split", data.val_split);
  recipe.check(data.val_split >= 0 && data.val_split < 1, "data.val_split", "must be from 0 to below 1");

  std::vector<std::string> names;
  const std::size_t num_sources = recipe.num_elements(kTrain);
  for (std::size_t i = 0; i < num_sources; ++i) {
    const std::string element = element_key(kTrain, i);
    const NamedPath source = read_named_path(recipe, element, names);
    TrainingSource& train = data.train.emplace_back();
    train.path = source.path;
    train.name = source.name;
    train.weight = recipe.number(element + ".weight", train.weight);
    recipe.check(train.weight > 0, element + ".weight", "must be above 0");
    train.type = recipe.text(element + ".type", train.type);
  }
  return data;
}

ValidationSection read_validation_section(Recipe& recipe) {
  ValidationSection validation;
  validation.interval = integer_at_least(recipe, "validation.interval", 0, validation.interval);
  validation.steps = recipe.integer_or("validation.steps", "all");
  recipe.check(validation.steps.value_or(1) >= 1, "validation.steps", "must be at least 1, or \"all\"");
  validation.at_start = recipe.flag("validation.at_start", validation.at_start);

  std::vector<std::string> names;
  const std::size_t num_sets = recipe.num_elements(kValidation);
  for (std::size_t i = 0; i < num_sets; ++i) {
    const NamedPath source = read_named_path(recipe, element_key(kValidation, i), names);
    validation.sets.push_back({source.path, source.name});
  }
  return validation;
}

}  // namespace steppe::recipe
