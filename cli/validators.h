// What the command line's options may hold.
#pragma once

#include <fmt/format.h>

#include <CLI/TypeTools.hpp>
#include <CLI/Validators.hpp>
#include <cstdint>
#include <string>

namespace steppe::cli {

// "--ranks: must be a whole number from 1 on, got abc"
inline CLI::Validator whole_number_from(int64_t least) {
  return {[least](std::string& text) {
            int64_t value = 0;
            if (CLI::detail::lexical_cast(text, value) && value >= least) return std::string();
            return fmt::format("must be a whole number from {} on, got {}", least, text);
          },
          /*validator_desc=*/""};  // --help shows type and default
}

}  // namespace steppe::cli
