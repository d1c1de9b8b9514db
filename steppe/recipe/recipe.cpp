#include "steppe/recipe/recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "steppe/base/error.h"
#include "steppe/recipe/unknown_keys.h"

namespace steppe::recipe {

std::string element_key(std::string_view array, std::size_t index) {
  return fmt::format("{}[{}]", array, index);
}

Recipe Recipe::load(const std::string& path, std::span<const std::string> overrides) {
  std::ifstream file(path, std::ios::binary);
  const int reason = errno;
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  STEPPE_CHECK_VALUE(file && !is_folder, "[recipe] cannot read the recipe {}: {}", path,
                     is_folder ? "it is a folder" : std::strerror(reason));
  std::stringstream text;
  text << file.rdbuf();
  STEPPE_CHECK(file && !file.bad(), "[recipe] cannot read the recipe {}", path);
  return parse(text.str(), path, overrides);
}

Recipe Recipe::parse(std::string_view text, std::string name, std::span<const std::string> overrides) {
  Document document = Document::parse(text, name);
  for (const std::string& assignment : overrides) document.set(assignment);
  return Recipe(std::move(name), std::move(document));
}

std::string Recipe::stem() const {
  return std::filesystem::path(name_).stem().string();
}

bool Recipe::has(std::string_view key) const {
  if (document_.find(key) || document_.find_section(key)) return true;
  const std::string below = std::string(key) + '.';
  return std::any_of(document_.entries().begin(), document_.entries().end(),
                     [&below](const Entry& entry) { return entry.key.starts_with(below); });
}

std::string Recipe::place(std::string_view key) const {
  if (const Entry* entry = document_.find(key)) return entry->origin;
  if (const Section* section = document_.find_section(key)) return section->origin;
  const std::string below = std::string(key) + '.';
  for (const Entry& entry : document_.entries())
    if (entry.key.starts_with(below)) return entry.origin;
  return name_;
}

void Recipe::note(std::string_view key, std::optional<Value> value, std::string origin) {
  const auto found = std::find_if(records_.begin(), records_.end(),
                                  [key](const Record& record) { return record.key == key; });
  if (found == records_.end())
    records_.push_back({std::string(key), std::move(value), std::move(origin)});
  else
    *found = {std::string(key), std::move(value), std::move(origin)};
}

void Recipe::record(std::string_view key, Value value) {
  const auto found = std::find_if(records_.begin(), records_.end(),
                                  [key](const Record& record) { return record.key == key; });
  note(key, std::move(value), found == records_.end() ? "default" : found->origin);
}

void Recipe::check(bool holds, std::string_view key, std::string_view expectation) const {
  if (holds) return;
  for (const Missing& missing : missing_)
    if (missing.key == key) return;
  for (const Record& record : records_)
    if (record.key == key && record.value)
      throw ValueError(
          fmt::format("[recipe] {} = {} ({}) {}", key, to_toml(*record.value), record.origin, expectation));
  throw ValueError(fmt::format("[recipe] {} ({}) {}", key, name_, expectation));
}

void Recipe::finish() const {
  std::vector<std::string> read(arrays_);
  for (const Record& record : records_) read.push_back(record.key);
  std::vector<std::string> problems = unknown_keys(document_, read);
  for (const Missing& missing : missing_)
    problems.push_back(fmt::format("`{}` ({}) is required: {}", missing.key, name_, missing.meaning));
  if (problems.empty()) return;
  throw ValueError(fmt::format("[recipe] {}", fmt::join(problems, "\n[recipe] ")));
}

std::string Recipe::resolved_toml() const {
  struct Group {
    std::string section;
    std::string lines;
  };
  std::vector<Group> groups;
  for (const Record& record : records_) {
    if (!record.value) continue;
    const std::size_t dot = record.key.rfind('.');
    const std::string section = dot == std::string::npos ? "" : record.key.substr(0, dot);
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&section](const Group& group) { return group.section == section; });
    // Keys outside any section come first: after a header they would belong to it.
    if (group == groups.end())
      group = groups.insert(section.empty() ? groups.begin() : groups.end(), {section, ""});
    group->lines += fmt::format("{} = {}\n", record.key.substr(dot == std::string::npos ? 0 : dot + 1),
                                to_toml(*record.value));
  }
  std::string out = fmt::format("# Resolved from {}: everything the run uses, defaults included.\n", name_);
  for (const Group& group : groups) {
    if (group.section.ends_with(']'))
      out += fmt::format("\n[[{}]]\n", group.section.substr(0, group.section.rfind('[')));
    else if (!group.section.empty())
      out += fmt::format("\n[{}]\n", group.section);
    out += group.lines;
  }
  return out;
}

}  // namespace steppe::recipe
