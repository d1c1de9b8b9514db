#include "steppe/train/metrics/summary_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include "steppe/base/bytes.h"
#include "steppe/base/error.h"

namespace steppe::metrics {
namespace {

using Row = std::array<std::string, 3>;

Row row(const std::string& name, int64_t bytes, int64_t total) {
  const double share = total > 0 ? 100.0 * static_cast<double>(bytes) / static_cast<double>(total) : 0.0;
  return {name, format_bytes(bytes), total > 0 ? fmt::format("{:.1f}%", share) : "-"};
}

// Names to the left, figures to the right, no blanks at a line's end.
std::string aligned(const std::vector<Row>& rows) {
  std::array<size_t, 3> widths{};
  for (const Row& cells : rows) {
    for (size_t column = 0; column < widths.size(); ++column) {
      widths[column] = std::max(widths[column], cells[column].size());
    }
  }
  std::string text;
  for (const Row& cells : rows) {
    if (!text.empty()) text += '\n';
    text +=
        fmt::format("{:<{}}  {:>{}}  {:>{}}", cells[0], widths[0], cells[1], widths[1], cells[2], widths[2]);
  }
  return text;
}

}  // namespace

std::string peak_table(const std::map<std::string, int64_t>& peak_by_category,
                       std::optional<int64_t> plan_peak_bytes) {
  std::vector<std::pair<std::string, int64_t>> held;
  int64_t total = 0;
  for (const auto& [category, bytes] : peak_by_category) {
    STEPPE_CHECK_VALUE(bytes >= 0, "[peak_table] the size of '{}' must not be negative, got {}", category,
                       bytes);
    if (bytes > 0) held.emplace_back(category, bytes);
    total += bytes;
  }
  // Stable, so that equal sizes stay in the order of their names.
  std::stable_sort(held.begin(), held.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<Row> rows = {{"category", "peak", "share"}};
  for (const auto& [category, bytes] : held) rows.push_back(row(category, bytes, total));
  rows.push_back(row("total", total, total));
  if (plan_peak_bytes) rows.push_back(row("planned", *plan_peak_bytes, total));
  return aligned(rows);
}

std::string validation_lines(int64_t step, const std::vector<ValidationResult>& results) {
  std::vector<std::string> losses, perplexities, tokens;
  size_t name_width = 0, loss_width = 0, ppl_width = 0, tokens_width = 0;
  const auto widen = [](size_t& width, const std::string& cell) { width = std::max(width, cell.size()); };
  for (const ValidationResult& result : results) {
    losses.push_back(fmt::format("{:.4f}", result.loss));
    perplexities.push_back(
        fmt::format(fmt::runtime(result.perplexity() < 1e6 ? "{:.2f}" : "{:.3g}"), result.perplexity()));
    tokens.push_back(fmt::format("{}", result.tokens));
    widen(name_width, result.set);
    widen(loss_width, losses.back());
    widen(ppl_width, perplexities.back());
    widen(tokens_width, tokens.back());
  }
  std::string text;
  for (size_t i = 0; i < results.size(); ++i) {
    if (i > 0) text += '\n';
    text += fmt::format("validation  step {}  {:<{}}  loss {:>{}}  ppl {:>{}}  {:>{}} tokens", step,
                        results[i].set, name_width, losses[i], loss_width, perplexities[i], ppl_width,
                        tokens[i], tokens_width);
  }
  return text;
}

}  // namespace steppe::metrics
