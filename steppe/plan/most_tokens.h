// How long a supposed sequence may be: a mistyped length must not fill the memory of the machine that plans.
#pragma once

#include <cstdint>

namespace steppe::plan {

// Of a micro-batch of one Ulysses group. Ids, targets and positions of so many, twice over, take 5 GB.
inline constexpr int64_t kMostTokens = int64_t{1} << 26;

}  // namespace steppe::plan
