#include "steppe/recipe/document.h"

#include <gtest/gtest.h>

#include <limits>

#include "steppe/base/error.h"
#include "steppe/recipe/expect_message.h"

namespace steppe::recipe {
namespace {

constexpr const char* kText = R"(# a comment
[training]
steps = 100
seq_length = 4_096

[optimizer]
betas = [0.9, 0.95]

[[data.train]]
path = "a"
[[data.train]]
path = "b"
weight = 2.5
[profiler]
)";

TEST(Document, FlattensInTheOrderOfTheFileWithPlaces) {
  const Document document = Document::parse(kText, "run.toml");
  ASSERT_EQ(document.entries().size(), 6u);
  EXPECT_EQ(document.entries()[0].key, "training.steps");
  EXPECT_EQ(document.entries()[0].origin, "run.toml:3");
  EXPECT_EQ(document.entries()[1].value, Value(std::int64_t{4096}));
  EXPECT_EQ(document.entries()[2].value, Value(List{0.9, 0.95}));
  EXPECT_EQ(document.entries()[4].key, "data.train[1].path");
  EXPECT_EQ(document.entries()[5].origin, "run.toml:13");
  EXPECT_EQ(document.num_elements("data.train"), 2u);
  EXPECT_EQ(document.num_elements("data.test"), 0u);
  ASSERT_NE(document.find_section("profiler"), nullptr);
  EXPECT_EQ(document.find_section("profiler")->origin, "run.toml:14");
}

TEST(Document, InlineTablesReadLikeSections) {
  const Document document = Document::parse("data.train = [{path = 'a'}, {path = 'b'}]", "run.toml");
  EXPECT_EQ(document.num_elements("data.train"), 2u);
  EXPECT_EQ(document.find("data.train[1].path")->value, Value(std::string("b")));
}

TEST(Document, RefusesWhatNoRecipeHas) {
  expect_message<ValueError>([] { Document::parse("[training]\nsteps = \n", "run.toml"); },
                             {"[recipe] run.toml:2:", "is not TOML"});
  expect_message<ValueError>([] { Document::parse("a = 1\na = 2", "run.toml"); },
                             {"run.toml:2", "is not TOML"});
  expect_message<ValueError>([] { Document::parse("run.started = 2026-01-01", "run.toml"); },
                             {"run.started (run.toml:1) must be text, a number"});
  expect_message<ValueError>([] { Document::parse("a = [[1], [2]]", "run.toml"); },
                             {"a (run.toml:1) must be"});
  expect_message<ValueError>([] { Document::parse("a = [1, {b = 2}]", "run.toml"); },
                             {"a (run.toml:1) must be"});
}

TEST(Document, OverridesAreTomlOrText) {
  Document document = Document::parse(kText, "run.toml");
  document.set("training.steps=7");
  document.set(" optimizer.lr = 3e-4 ");
  document.set("optimizer.betas=[0.8, 0.9]");
  document.set("training.deterministic=false");
  document.set("run.folder=/tmp/a=b#c");
  document.set("run.name=\"two words\"");
  document.set("run.started=2026-01-01");
  document.set("data.train[1].weight=3");
  EXPECT_EQ(document.find("training.steps")->value, Value(std::int64_t{7}));
  EXPECT_EQ(document.find("training.steps")->origin, "--set");
  EXPECT_EQ(document.find("training.seq_length")->origin, "run.toml:4");
  EXPECT_EQ(document.find("optimizer.lr")->value, Value(3e-4));
  EXPECT_EQ(document.find("optimizer.betas")->value, Value(List{0.8, 0.9}));
  EXPECT_EQ(document.find("training.deterministic")->value, Value(false));
  EXPECT_EQ(document.find("run.folder")->value, Value(std::string("/tmp/a=b#c")));
  EXPECT_EQ(document.find("run.name")->value, Value(std::string("two words")));
  EXPECT_EQ(document.find("run.started")->value, Value(std::string("2026-01-01")));
  EXPECT_EQ(document.find("data.train[1].weight")->value, Value(std::int64_t{3}));
  EXPECT_EQ(document.num_elements("data.train"), 2u);
}

TEST(Document, OverridesReplaceWholeSectionsAndArrays) {
  Document document = Document::parse(kText, "run.toml");
  document.set("data.train=[{path=\"c\"}]");
  EXPECT_EQ(document.num_elements("data.train"), 1u);
  EXPECT_EQ(document.find("data.train[0].path")->value, Value(std::string("c")));
  EXPECT_EQ(document.find("data.train[1].weight"), nullptr);
  document.set("model.rope_scaling={rope_type=\"linear\", factor=2}");
  EXPECT_EQ(document.find("model.rope_scaling.factor")->value, Value(std::int64_t{2}));
  // The last override wins.
  document.set("model.rope_scaling={rope_type=\"default\"}");
  EXPECT_EQ(document.find("model.rope_scaling.factor"), nullptr);
}

TEST(Document, RefusesMalformedOverrides) {
  Document document = Document::parse(kText, "run.toml");
  for (const char* bad : {"training.steps", "=3", ".steps=3", "a..b=3", "a b=3", "a.=3"})
    expect_message<ValueError>([&] { document.set(bad); }, {"--set takes KEY=VALUE", bad});
  expect_message<ValueError>([&] { document.set("training.steps="); }, {"training.steps= has no value"});
  expect_message<ValueError>([&] { document.set("optimizer.betas=[0.9"); },
                             {"--set optimizer.betas=[0.9", "not TOML"});
  expect_message<ValueError>([&] { document.set("data.train[2].path=x"); },
                             {"data.train[2].path", "data.train has 2 elements, counted from 0"});
  // A second line is no way to smuggle in another key.
  document.set("run.name=1\ntraining.steps=9");
  EXPECT_EQ(document.find("run.name")->value, Value(std::string("1\ntraining.steps=9")));
  EXPECT_EQ(document.find("training.steps")->value, Value(std::int64_t{100}));
}

TEST(ToToml, ComesBackTheSame) {
  const Value values[] = {true,
                          std::int64_t{-7},
                          std::numeric_limits<std::int64_t>::max(),
                          1.0,
                          1e-8,
                          0.1,
                          1e300,
                          -2.5e22,
                          std::string("quote \" backslash \\ line\n tab\t bell\a ünïcode"),
                          std::string(),
                          List{},
                          List{1.0, 2.5},
                          List{std::string("a"), std::string("b, c")}};
  for (const Value& value : values) {
    const Document document = Document::parse("x.y = " + to_toml(value), "text");
    ASSERT_EQ(document.entries().size(), 1u) << to_toml(value);
    EXPECT_EQ(document.entries()[0].value, value) << to_toml(value);
  }
}

}  // namespace
}  // namespace steppe::recipe
