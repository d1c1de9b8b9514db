#include "steppe/recipe/places.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace steppe::recipe {
namespace {

constexpr std::string_view kKeyLetters = "abcdefghijklmnopqrstuvwxyz0123456789_.";

// Runs of a key's letters, without the stop of a sentence.
std::vector<std::string> words_of(std::string_view message) {
  std::vector<std::string> words;
  for (size_t at = 0; (at = message.find_first_of(kKeyLetters, at)) != std::string_view::npos;) {
    const size_t end = std::min(message.find_first_not_of(kKeyLetters, at), message.size());
    auto word = message.substr(at, end - at);
    while (word.ends_with('.')) word.remove_suffix(1);
    words.emplace_back(word);
    at = end;
  }
  return words;
}

}  // namespace

std::string with_places(const Recipe& recipe, const std::string& message) {
  const bool of_model = message.starts_with("[model]");
  std::vector<std::string> places;
  for (const auto& word : words_of(message)) {
    const bool is_whole = word.find('.') != std::string::npos;
    if (!is_whole && !of_model) continue;
    const auto key = is_whole ? word : "model." + word;
    if (!recipe.has(key)) continue;
    const auto place = recipe.place(key);
    if (message.find('(' + place + ')') != std::string::npos) continue;
    auto named = fmt::format("{}: {}", key, place);
    if (std::find(places.begin(), places.end(), named) == places.end()) places.push_back(std::move(named));
  }
  return places.empty() ? message : fmt::format("{} ({})", message, fmt::join(places, "; "));
}

}  // namespace steppe::recipe
