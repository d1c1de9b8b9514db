// What the bench commands have in common: options that mean the same in each, and how rows are printed.
#pragma once

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <cstdio>
#include <exception>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "cli/launch/failure.h"
#include "cli/validators.h"
#include "steppe/base/error.h"

namespace steppe::cli {

inline CLI::Option* add_positive(CLI::App& command, const std::string& name, int64_t& value,
                                 const std::string& what) {
  return command.add_option(name, value, what)->check(whole_number_from(1))->capture_default_str();
}

// --dtype fp32|bf16
inline void add_dtype(CLI::App& command, std::string& dtype) {
  command.add_option("--dtype", dtype, "working precision")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
}

inline c10::ScalarType dtype_of(const std::string& dtype) {
  return dtype == "bf16" ? c10::kBFloat16 : c10::kFloat;
}

// Sizes of one tensor: what has more bytes than a file or a memory can have only overflows later.
inline void check_size(const char* place, std::initializer_list<std::pair<const char*, int64_t>> sizes) {
  double bytes = sizeof(float);
  std::string text;
  for (const auto& [name, size] : sizes) {
    bytes *= static_cast<double>(size);
    text += fmt::format("{}{} = {}", text.empty() ? "" : " times ", name, size);
  }
  STEPPE_CHECK_VALUE(bytes <= 0x1p62, "[bench {}] {} must take at most 2^62 bytes in fp32, not {:.3g}", place,
                     text, bytes);
}

// null where it is not known.
inline nlohmann::ordered_json known(std::optional<double> value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

// Prints `header` and a line of each row, or with `json` the rows alone as JSON lines.
template <class Rows, class TableLine, class JsonLine>
void print_rows(const Rows& rows, bool json, const std::string& header, const TableLine& table_line,
                const JsonLine& json_line) {
  if (!json) std::printf("%s\n", header.c_str());
  for (const auto& row : rows) std::printf("%s\n", (json ? json_line(row) : table_line(row)).c_str());
}

// The command's exit status: 0, or after the message of what `body` threw 2 for bad input and 1 otherwise.
template <class Body>
int run_bench(const Body& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", launch::describe(error).message.c_str());
    return dynamic_cast<const ValueError*>(&error) != nullptr ? 2 : 1;
  }
}

}  // namespace steppe::cli
