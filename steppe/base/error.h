// Three kinds of failure, told apart by type.
//   ValueError     a caller's mistake: the message names the value, what it must be, and where it came from
//   RuntimeFailure the world's fault: a file, a socket, a peer
//   InternalError  a broken invariant of ours
// Messages begin with the place in brackets: "[moe_dispatch] expert_Nk.size(0) must be N=4096, got 4095".
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace steppe {

struct ValueError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

struct RuntimeFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct InternalError : std::logic_error {
  using std::logic_error::logic_error;
};

}  // namespace steppe

// Each takes a condition, then a fmt format string and its arguments, evaluated only on failure.
#define STEPPE_CHECK_VALUE(condition, ...)                    \
  do {                                                        \
    if (!(condition)) [[unlikely]]                            \
      throw ::steppe::ValueError(::fmt::format(__VA_ARGS__)); \
  } while (false)

#define STEPPE_CHECK(condition, ...)                              \
  do {                                                            \
    if (!(condition)) [[unlikely]]                                \
      throw ::steppe::RuntimeFailure(::fmt::format(__VA_ARGS__)); \
  } while (false)

#define STEPPE_ASSERT(condition, ...)                            \
  do {                                                           \
    if (!(condition)) [[unlikely]]                               \
      throw ::steppe::InternalError(::fmt::format(__VA_ARGS__)); \
  } while (false)
