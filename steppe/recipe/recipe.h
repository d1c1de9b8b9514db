// The recipe of a run: a TOML file and its --set overrides, read key by key.
//
// Readers ask for each key by its dotted name, with the value that it has when nobody sets it; whatever is
// asked for is recorded with its resolved value. finish() then knows what nobody asked for, which is an
// error, and resolved_toml() writes what the run really uses.
//
// Messages read "[recipe] training.seq_length = 0 (run.toml:12) must be at least 1"; the place is "--set" for
// an override and "default" for what nobody set. All errors are ValueErrors, a file that cannot be opened
// included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "steppe/recipe/document.h"

namespace steppe::recipe {

// The values of a key that names one of several things.
struct Choices {
  std::vector<std::string> built;    // the first is the default
  std::vector<std::string> planned;  // refused as not in this version, rather than as unheard of
};

class Recipe {
 public:
  // Overrides are "a.b=c", applied in order: the last wins.
  static Recipe load(const std::string& path, std::span<const std::string> overrides = {});
  // The same of a text; `name` stands for the file.
  static Recipe parse(std::string_view text, std::string name, std::span<const std::string> overrides = {});

  // As it was given, and without folder and extension: "recipes/demo.toml", "demo".
  const std::string& name() const { return name_; }
  std::string stem() const;

  // Whether somebody set the key, or a key below it; says nothing about defaults, records nothing.
  bool has(std::string_view key) const;
  // Where the key or section was written, "run.toml:12" or "--set"; the file when it was not.
  std::string place(std::string_view key) const;

  // One value. Without a fallback: nothing, when nobody set the key.
  std::optional<std::int64_t> integer(std::string_view key);  // a number without a fraction; 1e6 will do
  std::optional<double> number(std::string_view key);         // finite
  std::optional<std::string> text(std::string_view key);      // may be empty
  std::optional<bool> flag(std::string_view key);
  std::optional<std::int64_t> bytes(std::string_view key);  // "64GiB", or a plain number of bytes
  std::int64_t integer(std::string_view key, std::int64_t fallback);
  double number(std::string_view key, double fallback);
  std::string text(std::string_view key, std::string fallback);
  bool flag(std::string_view key, bool fallback);
  std::int64_t bytes(std::string_view key, std::int64_t fallback);

  // A key without a default. When it is missing, a placeholder (0 or "") comes back, check() lets it pass,
  // and finish() reports it: beside a misspelt key, which is the likelier mistake. `meaning` says what it
  // sets.
  std::int64_t required_integer(std::string_view key, std::string_view meaning);
  double required_number(std::string_view key, std::string_view meaning);
  std::string required_text(std::string_view key, std::string_view meaning);

  // One of the choices, the first when nobody set the key.
  std::string choice(std::string_view key, const Choices& choices);
  // The same, nothing when nobody set the key.
  std::optional<std::string> optional_choice(std::string_view key, const Choices& choices);

  // A whole number, or `word` ("auto", "all"), which is the default and comes back as nothing.
  std::optional<std::int64_t> integer_or(std::string_view key, std::string_view word);
  std::optional<std::int64_t> bytes_or(std::string_view key, std::string_view word);  // a size likewise

  std::vector<double> numbers(std::string_view key, std::vector<double> fallback);
  std::vector<std::string> texts(std::string_view key, std::vector<std::string> fallback);

  // Elements of an array of tables, [[data.train]]; element_key("data.train", 0) is "data.train[0]".
  std::size_t num_elements(std::string_view key);

  // Throws "KEY = VALUE (PLACE) `expectation`" unless `holds`. For keys that have been read.
  void check(bool holds, std::string_view key, std::string_view expectation) const;

  // Replaces the recorded value of a key once its "auto" is resolved, or one derived from others.
  void record(std::string_view key, Value value);

  // ValueError, listing all of them: keys and sections that nothing read, with the key that was probably
  // meant, and required keys that are missing.
  void finish() const;

  // Every key that was read and has a value, by section. Loaded again, it makes the same configuration.
  std::string resolved_toml() const;

 private:
  struct Record {
    std::string key;
    std::optional<Value> value;  // nothing: read, but not set
    std::string origin;
  };
  struct Missing {
    std::string key;
    std::string meaning;
  };

  Recipe(std::string name, Document document) : name_(std::move(name)), document_(std::move(document)) {}

  const Entry* look_up(std::string_view key);
  template <class T, class Convert>
  std::optional<T> read(std::string_view key, std::string_view expectation, const Convert& convert);
  template <class T>
  T read_or(std::string_view key, std::optional<T> value, T fallback);
  template <class T>
  T required(std::string_view key, std::optional<T> value, std::string_view meaning);
  void note(std::string_view key, std::optional<Value> value, std::string origin);

  std::string name_;
  Document document_;
  std::vector<Record> records_;  // in the order of reading
  std::vector<Missing> missing_;
  std::vector<std::string> arrays_;  // arrays of tables that were asked for
};

std::string element_key(std::string_view array, std::size_t index);

}  // namespace steppe::recipe
