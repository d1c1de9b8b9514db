// Spelling: the known name nearest to a mistyped one, for error messages.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace steppe {

// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`, bytewise.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The candidate with the least distance to `name`, the first of several; nothing when even that one differs
// in more than `limit` places. Without a limit: a third of the longer name's length, at least 2.
std::optional<std::string> nearest_name(std::string_view name, std::span<const std::string> candidates,
                                        std::optional<std::size_t> limit = std::nullopt);

}  // namespace steppe
