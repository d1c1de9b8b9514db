#include "steppe/report/run_history.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "steppe/base/error.h"

namespace steppe::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxLoads = 400'000;  // experts of all layers and steps that a page carries
constexpr int64_t kMaxLoadSteps = 60;

std::vector<Json> read_lines(const std::filesystem::path& path, std::vector<std::string>& notes) {
  std::ifstream file(path, std::ios::binary);
  STEPPE_CHECK_VALUE(file.is_open(), "[report] cannot read {}", path.string());
  std::vector<Json> rows;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    const bool finished = !file.eof();  // a newline ended it
    auto row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const bool is_step = row.is_object() && row.contains("step") && row["step"].is_number_integer();
    if (!is_step && !finished) {
      notes.push_back(
          fmt::format("The last line of {} is unfinished and was left out.", path.filename().string()));
      break;
    }
    STEPPE_CHECK(is_step, "[report] {}:{} must be one JSON object with a \"step\", got: {}", path.string(),
                 number, line.substr(0, 80));
    rows.push_back(std::move(row));
  }
  return rows;
}

double number(const Json& row, const char* key, double otherwise) {
  const auto found = row.find(key);
  return found != row.end() && found->is_number() ? found->get<double>() : otherwise;
}

// Which rows a page shows, in order.
std::vector<size_t> chosen_rows(const std::vector<Json>& rows, int64_t max_steps) {
  const auto num = static_cast<int64_t>(rows.size());
  std::set<size_t> chosen;
  const int64_t stretch = std::max<int64_t>(1, (2 * num + max_steps - 1) / max_steps);
  const auto by = [&](const char* key, double otherwise) {
    return [&rows, key, otherwise](size_t a, size_t b) {
      return number(rows[a], key, otherwise) < number(rows[b], key, otherwise);
    };
  };
  std::vector<size_t> order(rows.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (int64_t begin = 0; begin < num; begin += stretch) {
    const auto first = order.begin() + begin, last = order.begin() + std::min(num, begin + stretch);
    chosen.insert(*std::min_element(first, last, by("loss", INFINITY)));
    chosen.insert(*std::max_element(first, last, by("loss", -INFINITY)));
  }
  if (num > 0) {
    chosen.insert({0, rows.size() - 1});
    chosen.insert(*std::max_element(order.begin(), order.end(), by("peak_bytes", -1)));
  }
  return {chosen.begin(), chosen.end()};
}

Json hundredths_of_mean(const Json& layers) {
  Json result = Json::array();
  for (const auto& layer : layers) {
    double sum = 0;
    for (const auto& load : layer) sum += load.get<double>();
    const double mean = layer.empty() ? 0 : sum / static_cast<double>(layer.size());
    Json relative = Json::array();
    for (const auto& load : layer)
      relative.push_back(mean > 0 ? std::lround(100 * load.get<double>() / mean) : 0);
    result.push_back(std::move(relative));
  }
  return result;
}

Json expert_loads(const std::vector<Json>& rows, const std::filesystem::path& path) {
  constexpr const char* kKey = "moe/expert_load";
  std::vector<size_t> with;
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].contains(kKey)) with.push_back(r);
  }
  Json loads = {{"steps", Json::array()}, {"values", Json::array()}};
  if (with.empty()) return loads;
  try {
    int64_t experts = 1;
    for (const auto& layer : rows[with.front()][kKey]) experts += std::ssize(layer);
    const auto num = std::ssize(with);
    const int64_t kept = std::clamp<int64_t>(kMaxLoads / experts, 1, std::min(kMaxLoadSteps, num));
    for (int64_t i = 0; i < kept; ++i) {  // the last always, the first where there are two
      const auto& row = rows[with[static_cast<size_t>(kept == 1 ? num - 1 : i * (num - 1) / (kept - 1))]];
      loads["steps"].push_back(row["step"]);
      loads["values"].push_back(hundredths_of_mean(row[kKey]));
    }
  } catch (const nlohmann::json::exception&) {
    throw RuntimeFailure(
        fmt::format("[report] {}: moe/expert_load must be [layer][expert] of counts", path.string()));
  }
  return loads;
}

Json columns_of(const std::vector<Json>& rows, const std::vector<size_t>& chosen) {
  std::set<std::string> keys;
  for (const auto& row : rows) {
    for (const auto& [key, value] : row.items()) {
      if (value.is_number() && key != "step") keys.insert(key);
    }
  }
  Json columns = Json::object();
  for (const auto& key : keys) {
    Json column = Json::array();
    for (const size_t r : chosen) column.push_back(rows[r].value(key, Json()));
    columns[key] = std::move(column);
  }
  return columns;
}

Json categories_of(const std::vector<Json>& rows, const std::vector<size_t>& chosen) {
  constexpr const char* kKey = "peak_by_category";
  std::set<std::string> names;
  for (const auto& row : rows) {
    if (!row.contains(kKey)) continue;
    for (const auto& [name, bytes] : row[kKey].items()) names.insert(name);
  }
  Json categories = Json::object();
  for (const auto& name : names) {
    Json column = Json::array();
    for (const size_t r : chosen) {
      const auto found = rows[r].find(kKey);
      column.push_back(found == rows[r].end() ? Json() : found->value(name, Json(0)));
    }
    categories[name] = std::move(column);
  }
  return categories;
}

Json validation_of(const std::vector<Json>& rows) {
  Json sets = Json::object();
  for (const auto& row : rows) {
    if (!row.contains("validation")) continue;
    for (const auto& [set, result] : row["validation"].items()) {
      auto& of_set = sets[set];
      of_set["step"].push_back(row["step"]);
      for (const char* key : {"loss", "ppl"}) of_set[key].push_back(result.value(key, Json()));
    }
  }
  return sets;
}

}  // namespace

nlohmann::ordered_json read_run_history(const std::filesystem::path& path, std::vector<std::string>& notes,
                                        int64_t max_steps) {
  const auto rows = read_lines(path, notes);
  const auto chosen = chosen_rows(rows, max_steps);
  if (rows.empty()) notes.push_back(fmt::format("{} holds no step yet.", path.filename().string()));
  if (chosen.size() < rows.size()) {
    notes.push_back(fmt::format("Curves show {} of the {} steps in {}: the extremes of each stretch.",
                                chosen.size(), rows.size(), path.filename().string()));
  }
  Json history = Json::object();
  history["step"] = Json::array();
  for (const size_t r : chosen) history["step"].push_back(rows[r]["step"]);
  history["num_steps"] = rows.size();
  history["columns"] = columns_of(rows, chosen);
  history["peak_by_category"] = categories_of(rows, chosen);
  history["validation"] = validation_of(rows);
  history["load"] = expert_loads(rows, path);
  if (!rows.empty() && !history["columns"].contains("peak_bytes")) {
    notes.push_back(fmt::format("{} has no figures of memory (peak_bytes).", path.filename().string()));
  }
  return history;
}

}  // namespace steppe::report
