// Writes Python dictionaries, lists, strings and whole numbers in the form of the pickle module (protocol 2),
// as far as PyTorch's memory viewer reads it. Texts and marked values are written once and referred to.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

namespace steppe::report {

class PickleWriter {
 public:
  PickleWriter() { bytes_ = "\x80\x02"; }

  void text(std::string_view value);
  void integer(int64_t value);

  // A dictionary's keys and values come in turn between the two; a list's elements.
  void begin_dict() { bytes_ += "}("; }
  void end_dict() { bytes_ += 'u'; }
  void begin_list() { bytes_ += "]("; }
  // Long lists in pieces of at most a thousand: the viewer passes them as arguments of one call.
  void next_piece() { bytes_ += "e("; }
  void end_list() { bytes_ += 'e'; }

  // Names the value that was just written; refer() writes it again.
  uint32_t remember();
  void refer(uint32_t name);

  std::string finish() && { return std::move(bytes_ += '.'); }

 private:
  template <typename Number>
  void number(Number value);

  std::string bytes_;
  uint32_t num_remembered_ = 0;
  std::unordered_map<std::string, uint32_t> texts_;
};

}  // namespace steppe::report
