// Recipe's typed readers of values.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "steppe/base/bytes.h"
#include "steppe/base/error.h"
#include "steppe/recipe/recipe.h"

namespace steppe::recipe {
namespace {

std::optional<std::int64_t> as_integer(const Entry& entry) {
  if (const auto* value = std::get_if<std::int64_t>(&entry.value)) return *value;
  // People write 1e6; beyond 2^53 a double no longer says which whole number was meant.
  const auto* value = std::get_if<double>(&entry.value);
  if (value && std::trunc(*value) == *value && std::abs(*value) <= 9007199254740992.0)
    return static_cast<std::int64_t>(*value);
  return std::nullopt;
}

template <class Item>
std::optional<double> as_number(const Item& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  const auto* number = std::get_if<double>(&value);
  if (number && std::isfinite(*number)) return *number;
  return std::nullopt;
}

std::optional<std::string> as_text(const Entry& entry) {
  if (const auto* value = std::get_if<std::string>(&entry.value)) return *value;
  // --set run.name=7 means the text "7": a shell makes quotes hard to pass.
  if (entry.typed && !std::holds_alternative<List>(entry.value)) return entry.typed;
  return std::nullopt;
}

std::string in_quotes(const std::vector<std::string>& words) {
  std::vector<std::string> quoted;
  for (const std::string& word : words) quoted.push_back(fmt::format("\"{}\"", word));
  return fmt::format("{}", fmt::join(quoted, ", "));
}

[[noreturn]] void fail(const Entry& entry, std::string_view expectation) {
  throw ValueError(
      fmt::format("[recipe] {} = {} ({}) {}", entry.key, to_toml(entry.value), entry.origin, expectation));
}

}  // namespace

// The entry of a key that holds one value; a section in its place, or a value in the place of one of its
// sections, would otherwise read as "not set".
const Entry* Recipe::look_up(std::string_view key) {
  for (std::size_t dot = key.find('.'); dot != std::string_view::npos; dot = key.find('.', dot + 1))
    if (const Entry* parent = document_.find(key.substr(0, dot))) fail(*parent, "must be a section");
  if (const Section* section = document_.find_section(key))
    throw ValueError(fmt::format("[recipe] {} ({}) must be a value, not a section", key, section->origin));
  STEPPE_CHECK_VALUE(document_.num_elements(key) == 0,
                     "[recipe] {} ({}) must be a value, not a list of sections", key, name_);
  return document_.find(key);
}

template <class T, class Convert>
std::optional<T> Recipe::read(std::string_view key, std::string_view expectation, const Convert& convert) {
  const Entry* entry = look_up(key);
  if (!entry) {
    note(key, std::nullopt, name_);
    return std::nullopt;
  }
  const std::optional<T> value = convert(*entry);
  if (!value) fail(*entry, expectation);
  note(key, Value(*value), entry->origin);
  return value;
}

template <class T>
T Recipe::read_or(std::string_view key, std::optional<T> value, T fallback) {
  if (value) return *value;
  note(key, Value(fallback), "default");
  return fallback;
}

template <class T>
T Recipe::required(std::string_view key, std::optional<T> value, std::string_view meaning) {
  if (!value) missing_.push_back({std::string(key), std::string(meaning)});
  return value.value_or(T{});
}

std::optional<std::int64_t> Recipe::integer(std::string_view key) {
  return read<std::int64_t>(key, "must be a whole number", as_integer);
}

std::optional<double> Recipe::number(std::string_view key) {
  return read<double>(key, "must be a number", [](const Entry& entry) { return as_number(entry.value); });
}

std::optional<std::string> Recipe::text(std::string_view key) {
  return read<std::string>(key, "must be text in quotes", as_text);
}

std::optional<bool> Recipe::flag(std::string_view key) {
  return read<bool>(key, "must be true or false", [](const Entry& entry) -> std::optional<bool> {
    if (const auto* value = std::get_if<bool>(&entry.value)) return *value;
    return std::nullopt;
  });
}

std::optional<std::int64_t> Recipe::bytes(std::string_view key) {
  const auto value = read<std::int64_t>(key, "must be a size such as \"64GiB\"",
                                        [](const Entry& entry) -> std::optional<std::int64_t> {
                                          if (const auto plain = as_integer(entry))
                                            return *plain >= 0 ? plain : std::nullopt;
                                          const auto* size = std::get_if<std::string>(&entry.value);
                                          if (!size) return std::nullopt;
                                          try {
                                            return parse_bytes(*size);
                                          } catch (const ValueError&) {
                                            return std::nullopt;
                                          }
                                        });
  if (value) note(key, Value(format_bytes_exactly(*value)), document_.find(key)->origin);
  return value;
}

std::int64_t Recipe::integer(std::string_view key, std::int64_t fallback) {
  return read_or(key, integer(key), fallback);
}

double Recipe::number(std::string_view key, double fallback) {
  return read_or(key, number(key), fallback);
}

std::string Recipe::text(std::string_view key, std::string fallback) {
  return read_or(key, text(key), std::move(fallback));
}

bool Recipe::flag(std::string_view key, bool fallback) {
  return read_or(key, flag(key), fallback);
}

std::int64_t Recipe::bytes(std::string_view key, std::int64_t fallback) {
  const auto value = bytes(key);
  if (!value) note(key, Value(format_bytes_exactly(fallback)), "default");
  return value.value_or(fallback);
}

std::int64_t Recipe::required_integer(std::string_view key, std::string_view meaning) {
  return required(key, integer(key), meaning);
}

double Recipe::required_number(std::string_view key, std::string_view meaning) {
  return required(key, number(key), meaning);
}

std::string Recipe::required_text(std::string_view key, std::string_view meaning) {
  return required(key, text(key), meaning);
}

std::optional<std::string> Recipe::optional_choice(std::string_view key, const Choices& choices) {
  const auto value = text(key);
  if (!value) return std::nullopt;
  const auto among = [&value](const std::vector<std::string>& words) {
    return std::find(words.begin(), words.end(), *value) != words.end();
  };
  const std::string one_of = choices.built.size() > 1 ? "one of " : "";
  check(!among(choices.planned), key,
        fmt::format("does not exist in this version; it must be {}{}", one_of, in_quotes(choices.built)));
  check(among(choices.built), key, fmt::format("must be {}{}", one_of, in_quotes(choices.built)));
  return value;
}

std::string Recipe::choice(std::string_view key, const Choices& choices) {
  return read_or(key, optional_choice(key, choices), choices.built.front());
}

std::optional<std::int64_t> Recipe::integer_or(std::string_view key, std::string_view word) {
  const Entry* entry = look_up(key);
  if (entry && entry->value != Value(std::string(word)))
    return read<std::int64_t>(key, fmt::format("must be a whole number or \"{}\"", word), as_integer);
  note(key, Value(std::string(word)), entry ? entry->origin : "default");
  return std::nullopt;
}

std::optional<std::int64_t> Recipe::bytes_or(std::string_view key, std::string_view word) {
  const Entry* entry = look_up(key);
  if (entry && entry->value != Value(std::string(word))) return bytes(key);
  note(key, Value(std::string(word)), entry ? entry->origin : "default");
  return std::nullopt;
}

std::vector<double> Recipe::numbers(std::string_view key, std::vector<double> fallback) {
  std::vector<double> values = std::move(fallback);
  const Entry* entry = look_up(key);
  if (entry) {
    const List* list = std::get_if<List>(&entry->value);
    if (!list) fail(*entry, "must be a list of numbers");
    values.clear();
    for (const Scalar& item : *list) {
      const auto value = as_number(item);
      if (!value) fail(*entry, "must be a list of numbers");
      values.push_back(*value);
    }
  }
  note(key, Value(List(values.begin(), values.end())), entry ? entry->origin : "default");
  return values;
}

std::vector<std::string> Recipe::texts(std::string_view key, std::vector<std::string> fallback) {
  std::vector<std::string> values = std::move(fallback);
  const Entry* entry = look_up(key);
  if (entry) {
    const List* list = std::get_if<List>(&entry->value);
    if (!list) fail(*entry, "must be a list of texts, as in [\"a\", \"b\"]");
    values.clear();
    for (const Scalar& item : *list) {
      const auto* value = std::get_if<std::string>(&item);
      if (!value) fail(*entry, "must be a list of texts, as in [\"a\", \"b\"]");
      values.push_back(*value);
    }
  }
  note(key, Value(List(values.begin(), values.end())), entry ? entry->origin : "default");
  return values;
}

std::size_t Recipe::num_elements(std::string_view key) {
  arrays_.emplace_back(key);
  if (const Entry* entry = document_.find(key))
    // An empty list is how an inline array without tables reads.
    if (entry->value != Value(List{}))
      fail(*entry, fmt::format("must be sections that begin with [[{}]]", key));
  if (const Section* section = document_.find_section(key))
    throw ValueError(fmt::format("[recipe] {} ({}) must be written [[{}]]: there may be several", key,
                                 section->origin, key));
  return document_.num_elements(key);
}

}  // namespace steppe::recipe
