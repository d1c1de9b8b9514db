// A TOML file as a flat list of keys, each knowing where it was written. Nested tables become dotted keys and
// arrays of tables indexed ones:
//   [data] shuffle = true        data.shuffle
//   [[data.train]] path = "a"    data.train[0].path
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace steppe::recipe {

using Scalar = std::variant<bool, std::int64_t, double, std::string>;
using List = std::vector<Scalar>;
using Value = std::variant<bool, std::int64_t, double, std::string, List>;

// As TOML writes it; reading it back gives the same value and type.
std::string to_toml(const Value& value);

struct Entry {
  std::string key;
  Value value;
  std::string origin;                // "run.toml:12", or "--set"
  std::optional<std::string> typed;  // --set only: the text as typed, for keys that want text
};

struct Section {
  std::string key;
  std::string origin;
};

class Document {
 public:
  // `name` is how messages call the file. ValueError: not TOML (with line and column), or values that no
  // recipe has: dates, lists within lists.
  static Document parse(std::string_view text, std::string_view name);

  // Applies "a.b=c" or "a.b[0].c=d": c is read as TOML, and as text where it is none. An inline table
  // replaces the whole section. ValueError: no "=", no key, no value, or an element past the end of its
  // array.
  void set(std::string_view assignment);

  const Entry* find(std::string_view key) const;            // nullptr: not there
  const Section* find_section(std::string_view key) const;  // nullptr: not there
  // Elements of the array of tables `key`; 0 when it is not there.
  std::size_t num_elements(std::string_view key) const;

  const std::vector<Entry>& entries() const { return entries_; }
  const std::vector<Section>& sections() const { return sections_; }

 private:
  void erase(std::string_view key);

  std::vector<Entry> entries_;
  std::vector<Section> sections_;  // every table, also those without keys of their own
};

}  // namespace steppe::recipe
