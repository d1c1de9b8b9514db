#include "steppe/recipe/recipe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "steppe/base/error.h"
#include "steppe/recipe/expect_message.h"
#include "steppe/recipe/unknown_keys.h"

namespace steppe::recipe {
namespace {

Recipe recipe_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return Recipe::parse(text, "run.toml", overrides);
}

TEST(Recipe, ReadsTypedValuesAndDefaults) {
  Recipe recipe = recipe_of(R"([a]
whole = 5
large = 1e6
real = 0.5
word = "text"
yes = true
size = "64GiB"
plain = 4096
reals = [1, 2.5]
words = ["x", "y"]
)");
  EXPECT_EQ(recipe.integer("a.whole", 1), 5);
  EXPECT_EQ(recipe.integer("a.large", 1), 1'000'000);
  EXPECT_EQ(recipe.number("a.real", 1), 0.5);
  EXPECT_EQ(recipe.number("a.whole", 1), 5.0);
  EXPECT_EQ(recipe.text("a.word", ""), "text");
  EXPECT_TRUE(recipe.flag("a.yes", false));
  EXPECT_EQ(recipe.bytes("a.size", 0), std::int64_t{64} << 30);
  EXPECT_EQ(recipe.bytes("a.plain", 0), 4096);
  EXPECT_EQ(recipe.numbers("a.reals", {}), (std::vector<double>{1, 2.5}));
  EXPECT_EQ(recipe.texts("a.words", {}), (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(recipe.integer("b.missing", 9), 9);
  EXPECT_EQ(recipe.integer("b.unset"), std::nullopt);
  EXPECT_EQ(recipe.texts("b.words", {"z"}), std::vector<std::string>{"z"});
  EXPECT_EQ(recipe.choice("b.kind", {{"first", "second"}, {}}), "first");
  EXPECT_EQ(recipe.integer_or("b.auto", "auto"), std::nullopt);
  EXPECT_NO_THROW(recipe.finish());
}

TEST(Recipe, WrongTypesNameKeyValueAndPlace) {
  const std::string text = "[a]\nkey = \"abc\"\nfraction = 1.5\nlist = [1, \"x\"]\n";
  const auto expect = [&text](const auto& read, std::initializer_list<std::string> parts) {
    Recipe recipe = recipe_of(text, {"a.other=[1]"});
    expect_message<ValueError>([&] { read(recipe); }, parts);
  };
  expect([](Recipe& r) { r.integer("a.key"); }, {"a.key = \"abc\" (run.toml:2) must be a whole number"});
  expect([](Recipe& r) { r.integer("a.fraction"); },
         {"a.fraction = 1.5 (run.toml:3) must be a whole number"});
  expect([](Recipe& r) { r.number("a.key"); }, {"a.key = \"abc\" (run.toml:2) must be a number"});
  expect([](Recipe& r) { r.flag("a.key"); }, {"(run.toml:2) must be true or false"});
  expect([](Recipe& r) { r.bytes("a.key"); }, {"(run.toml:2) must be a size such as \"64GiB\""});
  expect([](Recipe& r) { r.text("a.fraction"); }, {"a.fraction = 1.5 (run.toml:3) must be text"});
  expect([](Recipe& r) { r.numbers("a.list", {}); },
         {"a.list = [1, \"x\"] (run.toml:4) must be a list of numbers"});
  expect([](Recipe& r) { r.texts("a.key", {}); }, {"(run.toml:2) must be a list of texts"});
  expect([](Recipe& r) { r.integer_or("a.key", "auto"); }, {"must be a whole number or \"auto\""});
  expect([](Recipe& r) { r.text("a.other"); }, {"a.other = [1] (--set) must be text"});
  expect([](Recipe& r) { r.integer("a"); }, {"a (run.toml:1) must be a value, not a section"});
  expect([](Recipe& r) { r.integer("a.key.below"); }, {"a.key = \"abc\" (run.toml:2) must be a section"});
  expect([](Recipe& r) { r.num_elements("a"); }, {"a (run.toml:1) must be written [[a]]"});
  expect([](Recipe& r) { r.num_elements("a.key"); },
         {"(run.toml:2) must be sections that begin with [[a.key]]"});
}

TEST(Recipe, ChoicesListThemselvesAndThePlace) {
  const Choices choices{{"resident", "other"}, {"cpu"}};
  Recipe typo = recipe_of("[optimizer]\nplacement = \"residant\"");
  expect_message<ValueError>(
      [&] { typo.choice("optimizer.placement", choices); },
      {"optimizer.placement = \"residant\" (run.toml:2) must be one of \"resident\", \"other\""});
  Recipe planned = recipe_of("", {"optimizer.placement=cpu"});
  expect_message<ValueError>([&] { planned.choice("optimizer.placement", choices); },
                             {"optimizer.placement = \"cpu\" (--set) does not exist in this version",
                              "one of \"resident\", \"other\""});
}

TEST(Recipe, OverridesMayGiveNumbersWhereTextIsWanted) {
  Recipe recipe = recipe_of("", {"run.name=007", "run.folder=1e3"});
  EXPECT_EQ(recipe.text("run.name", ""), "007");
  EXPECT_EQ(recipe.text("run.folder", ""), "1e3");
}

TEST(Recipe, CheckNamesDefaultsToo) {
  Recipe recipe = recipe_of("[a]\nx = 1\n");
  recipe.integer("a.x", 0);
  recipe.integer("a.y", 3);
  recipe.integer("a.z");
  EXPECT_NO_THROW(recipe.check(true, "a.x", "must be 2"));
  expect_message<ValueError>([&] { recipe.check(false, "a.x", "must be 2"); },
                             {"[recipe] a.x = 1 (run.toml:2) must be 2"});
  expect_message<ValueError>([&] { recipe.check(false, "a.y", "must be 2"); },
                             {"a.y = 3 (default) must be 2"});
  expect_message<ValueError>([&] { recipe.check(false, "a.z", "must be set"); },
                             {"a.z (run.toml) must be set"});
}

TEST(Recipe, UnreadKeysNameTheKeyThatWasMeant) {
  const auto problems = [](const std::string& text) {
    Recipe recipe = recipe_of(text);
    recipe.integer("training.seq_length");
    recipe.integer("training.steps");
    recipe.number("optimizer.lr");
    recipe.integer("logging.interval");
    recipe.integer("validation.interval");
    for (std::size_t i = 0; i < recipe.num_elements("data.train"); ++i)
      recipe.text(element_key("data.train", i) + ".path");
    try {
      recipe.finish();
    } catch (const ValueError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(problems("training.steps = 3"), "");
  // A slip in the key.
  EXPECT_EQ(problems("[training]\nseq_lenght = 3"),
            "[recipe] `training.seq_lenght` (run.toml:2) is not a key; did you mean `training.seq_length`?");
  EXPECT_NE(problems("[[data.train]]\npth = 'a'").find("`data.train[0].pth` (run.toml:2)"),
            std::string::npos);
  EXPECT_NE(problems("[[data.train]]\npth = 'a'").find("`data.train[].path`?"), std::string::npos);
  // In the section, in its place, in both.
  EXPECT_NE(problems("[optimiser]\nlr = 3").find("did you mean `optimizer.lr`?"), std::string::npos);
  EXPECT_NE(problems("lr = 3").find("did you mean `optimizer.lr`?"), std::string::npos);
  EXPECT_NE(problems("train.seq-length = 3").find("did you mean `training.seq_length`?"), std::string::npos);
  EXPECT_NE(problems("[loging]\nintervall = 3").find("did you mean `logging.interval`?"), std::string::npos);
  // No guess where nothing is near.
  EXPECT_EQ(problems("[training]\nzebra = 1"), "[recipe] `training.zebra` (run.toml:2) is not a key");
  // A section that holds nothing.
  EXPECT_NE(problems("[traning]").find("`traning` (run.toml:1) is not a key; did you mean `training`?"),
            std::string::npos);
  EXPECT_EQ(problems("[training]"), "");
  // Each on its line.
  const std::string both = problems("[training]\nsteps = 1\nx1 = 2\nzebra = 3");
  EXPECT_NE(both.find("training.x1"), std::string::npos);
  EXPECT_NE(both.find("\n[recipe] `training.zebra`"), std::string::npos);
}

TEST(Recipe, OtherToolsNamesAreTranslated) {
  Recipe recipe = recipe_of(R"(learning_rate = 1e-3
[training]
train-iters = 100
per_device_train_batch_size = 4
[zero_optimization.offload_optimizer]
device = "cpu"
[[datasets]]
path = "a"
)");
  recipe.number("optimizer.lr");
  expect_message<ValueError>(
      [&] { recipe.finish(); },
      {"`learning_rate` (run.toml:1): in Steppe `optimizer.lr`",
       "`training.train-iters` (run.toml:3): in Steppe `training.steps`",
       "in Steppe `training.micro_batch_size`", "device` (run.toml:6): in Steppe `optimizer.placement`",
       "`datasets[0].path` (run.toml:8): in Steppe `data.train[].path`"});
}

TEST(Recipe, MissingKeysAreReportedBesideMisspeltOnes) {
  Recipe recipe = recipe_of("[optimizer]\nlearning_rate = 1e-3\n");
  const double lr = recipe.required_number("optimizer.lr", "the peak learning rate");
  EXPECT_NO_THROW(recipe.check(lr > 0, "optimizer.lr", "must be above 0"));
  expect_message<ValueError>([&] { recipe.finish(); },
                             {"`optimizer.learning_rate` (run.toml:2): in Steppe `optimizer.lr`",
                              "`optimizer.lr` (run.toml) is required: the peak learning rate"});
}

TEST(Recipe, ResolvedTomlHoldsWhatWasRead) {
  Recipe recipe = recipe_of("[b]\nsize = \"1.5GiB\"\n[[b.list]]\nx = 1\n[[b.list]]\nx = 2\n");
  recipe.integer("top", 1);
  recipe.integer("a.unset");
  recipe.integer_or("a.threads", "auto");
  recipe.bytes("b.size", 0);
  for (std::size_t i = 0; i < recipe.num_elements("b.list"); ++i)
    recipe.integer(element_key("b.list", i) + ".x");
  recipe.record("a.threads", std::int64_t{4});
  const std::string text = recipe.resolved_toml();
  EXPECT_EQ(
      text.substr(text.find('\n') + 1),
      "top = 1\n\n[a]\nthreads = 4\n\n[b]\nsize = \"1536MiB\"\n\n[[b.list]]\nx = 1\n\n[[b.list]]\nx = 2\n");
}

TEST(Recipe, LoadsFilesAndNamesThemWhenItCannot) {
  const auto path =
      std::filesystem::temp_directory_path() / ("steppe_recipe_" + std::to_string(getpid()) + ".toml");
  std::ofstream(path) << "a.x = 1\n";
  const std::vector<std::string> overrides{"a.y=2"};
  Recipe recipe = Recipe::load(path.string(), overrides);
  std::filesystem::remove(path);
  EXPECT_EQ(recipe.stem(), path.stem().string());
  EXPECT_EQ(recipe.integer("a.x"), 1);
  EXPECT_EQ(recipe.integer("a.y"), 2);
  EXPECT_EQ(recipe.place("a.x"), path.string() + ":1");
  expect_message<ValueError>([&] { Recipe::load(path.string()); },
                             {"cannot read the recipe", path.string(), "No such file"});
  expect_message<ValueError>([&] { Recipe::load(path.parent_path().string()); },
                             {"cannot read the recipe", "folder"});
}

TEST(Aliases, AreNormalizedAndUnique) {
  std::set<std::string_view> seen;
  for (const Alias& alias : aliases()) {
    EXPECT_EQ(alias.theirs.find_first_of("-ABCDEFGHIJKLMNOPQRSTUVWXYZ "), std::string_view::npos)
        << alias.theirs;
    EXPECT_TRUE(seen.insert(alias.theirs).second) << alias.theirs << " is listed twice";
    EXPECT_NE(alias.ours.find('.'), std::string_view::npos) << alias.ours;
  }
}

}  // namespace
}  // namespace steppe::recipe
