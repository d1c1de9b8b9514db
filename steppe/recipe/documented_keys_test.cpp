// docs/recipe.md lists the keys that exist, and no others.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "steppe/recipe/document.h"
#include "steppe/recipe/every_key.h"
#include "steppe/recipe/least_recipe.h"
#include "steppe/recipe/run_config.h"

namespace steppe::recipe {
namespace {

// Keys whose elements or fields the page describes in words.
std::string listed_as(const std::string& key) {
  for (const char* whole : {"data.train", "validation.set", "optimizer.groups", "model.rope_scaling"})
    if (key.starts_with(whole)) return whole;
  return key;
}

// What stands in backticks in the first column of a table.
std::set<std::string> documented_keys() {
  std::ifstream page(std::string(STEPPE_DOCS) + "/recipe.md");
  std::set<std::string> keys;
  const std::regex key("`(?:\\[*)([a-z_]+\\.[a-z_]+)(?:\\]*)`");
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| `")) continue;
    const auto column = line.substr(0, line.find(" | "));
    for (std::sregex_iterator it(column.begin(), column.end(), key), end; it != end; ++it)
      keys.insert((*it)[1]);
  }
  return keys;
}

std::set<std::string> existing_keys() {
  std::set<std::string> keys = {"model.path"};  // excludes model.config
  for (const char* text : {kLeast, kEverything}) {
    Recipe recipe = Recipe::parse(text, "run.toml");
    read_run_config(recipe);
    const auto resolved = Document::parse(recipe.resolved_toml(), "resolved.toml");
    for (const auto& entry : resolved.entries()) keys.insert(listed_as(entry.key));
  }
  return keys;
}

TEST(DocumentedKeys, AreThoseThatExist) {
  const auto documented = documented_keys(), existing = existing_keys();
  EXPECT_GT(existing.size(), 80u);
  for (const auto& key : existing)
    EXPECT_TRUE(documented.contains(key)) << key << " is not in docs/recipe.md";
  for (const auto& key : documented) EXPECT_TRUE(existing.contains(key)) << key << " is in docs/recipe.md";
}

}  // namespace
}  // namespace steppe::recipe
