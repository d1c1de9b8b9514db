// What the command line's options may hold.
#pragma once

#include <fmt/format.h>

#include <CLI/TypeTools.hpp>
#include <CLI/Validators.hpp>
#include <cstdint>
#include <limits>
#include <string>

namespace steppe::cli {

// "--ranks: must be a whole number from 1 on, got abc"; with `most`: "from 1 to 64".
inline CLI::Validator whole_number_from(int64_t least, int64_t most = std::numeric_limits<int64_t>::max()) {
  return {[least, most](std::string& text) {
            int64_t value = 0;
            // lexical_cast takes octal and hexadecimal, and stops at the largest number.
            const bool whole = CLI::detail::lexical_cast(text, value) && text == std::to_string(value);
            if (whole && value >= least && value <= most) return std::string();
            const bool is_open = most == std::numeric_limits<int64_t>::max();
            return fmt::format("must be a whole number from {} {}, got {}", least,
                               is_open ? "on" : fmt::format("to {}", most), text);
          },
          /*validator_desc=*/""};  // --help shows type and default
}

}  // namespace steppe::cli
