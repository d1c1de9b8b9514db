#include "steppe/recipe/unknown_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "steppe/base/nearest.h"

namespace steppe::recipe {
namespace {

// "Data.train[3].Max-Tokens" → "data.train[].max_tokens": how keys are compared.
std::string normalized(std::string_view key) {
  std::string out;
  bool in_index = false;
  for (const char c : key) {
    if (c == ']') in_index = false;
    if (!in_index) out += c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (c == '[') in_index = true;
  }
  return out;
}

std::string_view leaf(std::string_view key) {
  const std::size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? key : key.substr(dot + 1);
}

std::string_view section(std::string_view key) {
  const std::size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? std::string_view{} : key.substr(0, dot);
}

// Of "zero_optimization.offload_optimizer.device" tries all of it, then "offload_optimizer.device", "device".
std::optional<std::string> ours_for(std::string_view key) {
  for (std::string_view rest = key;;) {
    for (const Alias& alias : aliases())
      if (alias.theirs == rest) return std::string(alias.ours);
    const std::size_t dot = rest.find('.');
    if (dot == std::string_view::npos) return std::nullopt;
    rest.remove_prefix(dot + 1);
  }
}

std::optional<std::string> nearest_key(const std::string& key, const std::vector<std::string>& known) {
  // The right key in the wrong section, or in none.
  std::vector<std::string> namesakes;
  for (const std::string& candidate : known)
    if (leaf(candidate) == leaf(key)) namesakes.push_back(candidate);
  if (namesakes.size() == 1) return namesakes.front();

  // A slip in the key, the section being right.
  std::vector<std::string> leaves;
  for (const std::string& candidate : known)
    if (section(candidate) == section(key)) leaves.emplace_back(leaf(candidate));
  if (const auto near = nearest_name(leaf(key), leaves))
    return section(key).empty() ? *near : fmt::format("{}.{}", section(key), *near);

  // A slip in the section, or in both. In a section that exists the key alone counts, judged above: the long
  // name of the section would make any two short keys look alike.
  if (!leaves.empty()) return std::nullopt;
  return nearest_name(key, known);
}

// The wording for an unread key; `known` is normalized.
std::string message(const std::string& key, const std::string& origin,
                    const std::vector<std::string>& known) {
  const std::string theirs = normalized(key);
  const std::string place = fmt::format("`{}` ({})", key, origin);
  if (const auto ours = ours_for(theirs)) return fmt::format("{}: in Steppe `{}`", place, *ours);
  if (const auto near = nearest_key(theirs, known))
    return fmt::format("{} is not a key; did you mean `{}`?", place, *near);
  return place + " is not a key";
}

}  // namespace

std::vector<std::string> unknown_keys(const Document& document, std::span<const std::string> read) {
  std::vector<std::string> known;
  for (const std::string& key : read) known.push_back(normalized(key));

  std::vector<std::string> messages;
  for (const Entry& entry : document.entries()) {
    if (std::find(read.begin(), read.end(), entry.key) != read.end()) continue;
    messages.push_back(message(entry.key, entry.origin, known));
  }
  // Sections that hold nothing at all: those with keys have been judged by them.
  std::vector<std::string> known_sections;
  for (const std::string& key : known)
    if (!section(key).empty()) known_sections.emplace_back(section(key));
  for (const Section& part : document.sections()) {
    const auto inside = [&part](const std::string& key) {
      return key.starts_with(part.key + '.') || key.starts_with(part.key + '[') || key == part.key;
    };
    const bool has_entries = std::any_of(document.entries().begin(), document.entries().end(),
                                         [&inside](const Entry& entry) { return inside(entry.key); });
    if (has_entries || std::any_of(read.begin(), read.end(), inside)) continue;
    messages.push_back(message(part.key, part.origin, known_sections));
  }
  return messages;
}

}  // namespace steppe::recipe
