// For tests: the least that a recipe must say. Lines 1 to 5, then what the test adds.
#pragma once

namespace steppe::recipe {

inline constexpr const char* kLeast = R"([optimizer]
lr = 3e-4
[training]
steps = 200
seq_length = 2048
)";

}  // namespace steppe::recipe
