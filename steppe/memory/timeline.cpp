#include <fmt/format.h>

#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>

#include "steppe/memory/ledger.h"

namespace steppe::memory {
namespace {

template <typename Name>
std::string names_json(int count, Name name) {
  nlohmann::json names = nlohmann::json::array();
  for (int i = 0; i < count; ++i) names.push_back(name(i));
  return names.dump();
}

}  // namespace

// Written by hand where it is long: a step has a million events, each of which would be a tree of nodes.
std::string Timeline::to_json() const {
  std::string text =
      fmt::format(R"({{"categories":{},"domains":{},"events":[)",
                  names_json(kNumCategories, [](int i) { return category_name(static_cast<Category>(i)); }),
                  names_json(kNumDomains, [](int i) { return domain_name(static_cast<Domain>(i)); }));
  auto out = std::back_inserter(text);
  nlohmann::json mark_list = nlohmann::json::array();
  size_t num_written = 0;
  for (const Event& event : events) {
    if (event.mark >= 0) {
      mark_list.push_back({num_written, marks.at(static_cast<size_t>(event.mark))});
      continue;
    }
    fmt::format_to(out, "{}[{},{},{},{}]", num_written == 0 ? "" : ",", event.bytes,
                   static_cast<int>(event.category), static_cast<int>(event.domain), event.live_bytes);
    ++num_written;
  }
  fmt::format_to(out, R"(],"marks":{}}})", mark_list.dump());
  return text;
}

}  // namespace steppe::memory
