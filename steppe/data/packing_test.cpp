#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>

#include "steppe/base/error.h"
#include "steppe/data/fixed_random.h"
#include "steppe/data/sequence_stream.h"
#include "steppe/data/test_files.h"

namespace steppe::data {
namespace {

constexpr int64_t kVocab = 60'000;
const std::vector<int64_t> kLengths = {5, 0, 1, 17, 2, 0, 64, 1, 3, 9};  // 102 tokens

DataConfig config_of(int64_t seq_length) {
  DataConfig config;
  config.seq_length = seq_length;
  return config;
}

SequenceStream stream_of(const std::string& prefix, const DataConfig& config,
                         StreamOptions::Kind kind = StreamOptions::Kind::kEndless,
                         StreamOptions::Part part = StreamOptions::Part::kTraining) {
  return SequenceStream(std::make_shared<const IndexedDataset>(prefix, "set"), config,
                        {.part = part, .kind = kind, .vocab_size = kVocab});
}

// Inputs of sequences 0, 1, … end to end.
std::vector<int64_t> run_of_tokens(SequenceStream& stream, int64_t count) {
  std::vector<int64_t> run;
  for (int64_t k = 0; static_cast<int64_t>(run.size()) < count; ++k) {
    const Sequence sequence = stream.sample(k);
    run.insert(run.end(), sequence.tokens.begin(), sequence.tokens.end());
  }
  run.resize(static_cast<size_t>(count));
  return run;
}

TEST(Packing, EveryTokenIsReadOncePerEpochInANewOrder) {
  TemporaryFolder folder;
  write_indexed(folder / "set", numbered_documents(kLengths));
  for (int64_t seq_length : {1, 7, 16, 51, 102, 103, 1000}) {
    SequenceStream stream = stream_of(folder / "set", config_of(seq_length));
    EXPECT_EQ(stream.sequences_per_epoch(), (102 + seq_length - 1) / seq_length);
    const std::vector<int64_t> run = run_of_tokens(stream, 3 * 102);
    std::vector<std::vector<int64_t>> epochs;
    for (int e = 0; e < 3; ++e) {
      std::vector<int64_t> epoch(run.begin() + 102 * e, run.begin() + 102 * (e + 1));
      epochs.push_back(epoch);
      std::sort(epoch.begin(), epoch.end());
      for (int64_t i = 0; i < 102; ++i) ASSERT_EQ(epoch[static_cast<size_t>(i)], i + 1);
    }
    EXPECT_NE(epochs[0], epochs[1]);
    EXPECT_NE(epochs[1], epochs[2]);
  }
}

TEST(Packing, TheRunDoesNotDependOnTheSequenceLength) {
  TemporaryFolder folder;
  write_indexed(folder / "set", numbered_documents(kLengths));
  SequenceStream a = stream_of(folder / "set", config_of(7));
  SequenceStream b = stream_of(folder / "set", config_of(250));
  EXPECT_EQ(run_of_tokens(a, 500), run_of_tokens(b, 500));
}

TEST(Packing, WithoutShufflingTheFileOrderIsKept) {
  TemporaryFolder folder;
  write_indexed(folder / "set", numbered_documents(kLengths));
  DataConfig config = config_of(10);
  config.shuffle = false;
  SequenceStream stream = stream_of(folder / "set", config);
  const std::vector<int64_t> run = run_of_tokens(stream, 204);
  for (size_t i = 0; i < run.size(); ++i) ASSERT_EQ(run[i], static_cast<int64_t>(i) % 102 + 1);
}

TEST(Packing, TheSeedDecidesTheOrder) {
  TemporaryFolder folder;
  write_indexed(folder / "set", numbered_documents(kLengths));
  DataConfig config = config_of(16);
  SequenceStream a = stream_of(folder / "set", config);
  SequenceStream b = stream_of(folder / "set", config);
  config.seed = 43;
  SequenceStream c = stream_of(folder / "set", config);
  const auto run = run_of_tokens(a, 102);
  EXPECT_EQ(run, run_of_tokens(b, 102));
  EXPECT_NE(run, run_of_tokens(c, 102));
}

// The order is part of a run's identity: SplitMix64's published first outputs for state 0 pin the generator.
TEST(Packing, TheGeneratorIsFixed) {
  EXPECT_EQ(mix(kGolden), 0xe220a8397b1dcdafULL);
  EXPECT_EQ(mix(2 * kGolden), 0x6e789e6aa1b965f4ULL);
}

TEST(Packing, AnySequenceCanBeMadeAlone) {
  TemporaryFolder folder;
  write_indexed(folder / "set", numbered_documents(kLengths));
  for (bool packing : {true, false}) {
    DataConfig config = config_of(8);
    config.packing = packing;
    SequenceStream straight = stream_of(folder / "set", config);
    std::vector<Sequence> all;
    for (int64_t k = 0; k < 60; ++k) all.push_back(straight.sample(k));
    for (int64_t k : {59, 0, 33, 12, 13, 58}) {
      SequenceStream resumed = stream_of(folder / "set", config);
      const Sequence one = resumed.sample(k);
      EXPECT_EQ(one.tokens, all[static_cast<size_t>(k)].tokens);
      EXPECT_EQ(one.targets, all[static_cast<size_t>(k)].targets);
      EXPECT_EQ(one.positions, all[static_cast<size_t>(k)].positions);
      EXPECT_EQ(one.document_starts, all[static_cast<size_t>(k)].document_starts);
    }
  }
}

TEST(Packing, MasksAndPositionsFollowTheDocuments) {
  TemporaryFolder folder;
  write_indexed(folder / "set", {{11, 12, 13}, {21}, {31, 32, 33, 34}});
  DataConfig config = config_of(6);
  config.shuffle = false;
  const auto first = [&] { return stream_of(folder / "set", config).sample(0); };
  using V = std::vector<int32_t>;

  Sequence s = first();
  EXPECT_EQ(s.tokens, (V{11, 12, 13, 21, 31, 32}));
  EXPECT_EQ(s.targets, (V{12, 13, -100, -100, 32, 33}));
  EXPECT_EQ(s.positions, (V{0, 1, 2, 0, 0, 1}));
  EXPECT_EQ(s.document_starts, (V{0, 3, 4}));

  // The second sequence begins within a document: positions count from there.
  s = stream_of(folder / "set", config).sample(1);
  EXPECT_EQ(s.tokens, (V{33, 34, 11, 12, 13, 21}));
  EXPECT_EQ(s.targets, (V{34, -100, 12, 13, -100, -100}));
  EXPECT_EQ(s.positions, (V{0, 1, 0, 1, 2, 0}));
  EXPECT_EQ(s.document_starts, (V{0, 2, 5}));

  config.document_mask = false;
  s = first();
  EXPECT_EQ(s.targets, (V{12, 13, 21, 31, 32, 33}));
  EXPECT_EQ(s.positions, (V{0, 1, 2, 0, 0, 1}));
  EXPECT_EQ(s.document_starts, (V{0}));

  config.reset_position_ids = false;
  EXPECT_EQ(first().positions, (V{0, 1, 2, 3, 4, 5}));
}

TEST(Packing, LossMaskIsThatOfTheTarget) {
  TemporaryFolder folder;
  IndexFields mask;
  mask.dtype_code = 1;
  write_indexed(folder / "set", {{11, 12, 13, 14}, {21, 22, 23}});
  write_indexed<uint8_t>(folder / "set.loss_mask", {{1, 0, 1, 1}, {0, 1, 0}}, mask);
  DataConfig config = config_of(6);
  config.shuffle = false;
  EXPECT_EQ(stream_of(folder / "set", config).sample(0).targets,
            (std::vector<int32_t>{-100, 13, 14, -100, 22, -100}));
}

// With all documents masked apart, every token but each document's first is a target once an epoch.
TEST(Packing, EveryTokenButTheFirstIsATargetOnce) {
  TemporaryFolder folder;
  const Documents documents = numbered_documents(kLengths);
  write_indexed(folder / "set", documents);
  for (bool packing : {true, false}) {
    DataConfig config = config_of(8);
    config.packing = packing;
    SequenceStream stream =
        stream_of(folder / "set", config, StreamOptions::Kind::kOnce, StreamOptions::Part::kAll);
    std::map<int64_t, int> seen;
    for (int64_t k = 0; k < stream.sequences_per_epoch(); ++k) {
      for (const int32_t target : stream.sample(k).targets) ++seen[target];
    }
    seen.erase(kIgnoredTarget);
    // Packed, a document that a sequence's end cuts loses nothing: the cut token is looked ahead to.
    std::map<int64_t, int> expected;
    for (const auto& document : documents) {
      for (size_t i = 1; i < document.size(); ++i) expected[document[i]] = 1;
    }
    EXPECT_EQ(seen, expected) << "packing " << packing;
  }
}

TEST(Packing, ASinglePassEndsPadded) {
  TemporaryFolder folder;
  write_indexed(folder / "set", {{11, 12, 13}, {21, 22}});
  SequenceStream stream =
      stream_of(folder / "set", config_of(4), StreamOptions::Kind::kOnce, StreamOptions::Part::kAll);
  using V = std::vector<int32_t>;
  ASSERT_EQ(stream.sequences_per_epoch(), 1);
  EXPECT_EQ(stream.sample(0).tokens, (V{11, 12, 13, 21}));
  EXPECT_EQ(stream.sample(0).targets, (V{12, 13, -100, 22}));

  SequenceStream longer =
      stream_of(folder / "set", config_of(7), StreamOptions::Kind::kOnce, StreamOptions::Part::kAll);
  EXPECT_EQ(longer.sample(0).tokens, (V{11, 12, 13, 21, 22, 0, 0}));
  EXPECT_EQ(longer.sample(0).targets, (V{12, 13, -100, 22, -100, -100, -100}));
  EXPECT_EQ(longer.sample(0).document_starts, (V{0, 3, 5}));
}

TEST(Packing, OneDocumentASequence) {
  TemporaryFolder folder;
  write_indexed(folder / "set", {{11, 12, 13}, {}, {21}, {31, 32, 33, 34, 35, 36, 37, 38}});
  DataConfig config = config_of(4);
  config.packing = false;
  config.shuffle = false;
  using V = std::vector<int32_t>;
  SequenceStream split = stream_of(folder / "set", config);
  ASSERT_EQ(split.sequences_per_epoch(), 3);
  EXPECT_EQ(split.sample(0).tokens, (V{11, 12, 13, 0}));
  EXPECT_EQ(split.sample(0).targets, (V{12, 13, -100, -100}));
  EXPECT_EQ(split.sample(1).targets, (V{32, 33, 34, 35}));
  EXPECT_EQ(split.sample(2).tokens, (V{35, 36, 37, 38}));
  EXPECT_EQ(split.sample(2).targets, (V{36, 37, 38, -100}));
  EXPECT_EQ(split.sample(3).tokens, split.sample(0).tokens);

  config.over_length = OverLength::kTruncate;
  SequenceStream truncated = stream_of(folder / "set", config);
  ASSERT_EQ(truncated.sequences_per_epoch(), 2);
  EXPECT_EQ(truncated.sample(1).targets, (V{32, 33, 34, 35}));

  config.over_length = OverLength::kDrop;
  EXPECT_EQ(stream_of(folder / "set", config).sequences_per_epoch(), 1);
}

TEST(Packing, OverLengthDocumentsAreTruncatedOrDropped) {
  TemporaryFolder folder;
  write_indexed(folder / "set", numbered_documents({4, 9, 5, 6}));
  DataConfig config = config_of(4);
  config.shuffle = false;
  config.over_length = OverLength::kTruncate;
  SequenceStream truncated = stream_of(folder / "set", config);
  EXPECT_EQ(run_of_tokens(truncated, 19),
            (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}));
  config.over_length = OverLength::kDrop;
  SequenceStream dropped = stream_of(folder / "set", config);
  EXPECT_EQ(run_of_tokens(dropped, 10), (std::vector<int64_t>{1, 2, 3, 4, 14, 15, 16, 17, 18, 1}));
}

TEST(Packing, HeldOutDocumentsAreNeverTrainedOn) {
  TemporaryFolder folder;
  const std::vector<int64_t> lengths(400, 3);
  write_indexed(folder / "set", numbered_documents(lengths));
  DataConfig config = config_of(30);
  config.val_split = 0.1;
  SequenceStream train = stream_of(folder / "set", config);
  SequenceStream held_out =
      stream_of(folder / "set", config, StreamOptions::Kind::kOnce, StreamOptions::Part::kHeldOut);
  std::map<int64_t, int> trained;
  std::map<int64_t, int> held;
  for (int64_t k = 0; k < train.sequences_per_epoch() + 1; ++k) {
    for (const int32_t token : train.sample(k).tokens) ++trained[token];
  }
  for (int64_t k = 0; k < held_out.sequences_per_epoch(); ++k) {
    const Sequence sequence = held_out.sample(k);
    for (const int32_t token : sequence.tokens) {
      if (token != kPaddingToken) ++held[token];
    }
  }
  for (const auto& [token, count] : held) {
    EXPECT_EQ(count, 1);
    EXPECT_FALSE(trained.contains(token)) << token;
  }
  EXPECT_EQ(held.size() + trained.size(), 1200u);
  // 40 documents expected, binomial with deviation 6.
  EXPECT_NEAR(static_cast<double>(held.size()) / 3, 40, 24);
}

TEST(Packing, NothingToReadIsAnError) {
  TemporaryFolder folder;
  write_indexed(folder / "empty", {{}, {}});
  write_indexed(folder / "long", numbered_documents({9, 9}));
  EXPECT_THROW(stream_of(folder / "empty", config_of(4)), ValueError);
  DataConfig config = config_of(4);
  config.over_length = OverLength::kDrop;
  EXPECT_THROW(stream_of(folder / "long", config), ValueError);
  config = config_of(0);
  EXPECT_THROW(stream_of(folder / "long", config), ValueError);
}

TEST(Packing, IdsBeyondTheVocabularyAreNamed) {
  TemporaryFolder folder;
  write_indexed(folder / "set", {{1, 2, 3}, {4, 60'000, 5}});
  DataConfig config = config_of(6);
  config.shuffle = false;
  SequenceStream stream = stream_of(folder / "set", config);
  try {
    stream.sample(0);
    FAIL() << "id 60000 was let through";
  } catch (const ValueError& error) {
    const std::string message = error.what();
    for (const char* word : {"60000", "document 1", "position 1", "\"set\""}) {
      EXPECT_NE(message.find(word), std::string::npos) << message;
    }
  }
  std::ofstream(folder / "set.json") << R"({"vocab_size": 60001})";
  EXPECT_THROW(stream_of(folder / "set", config), ValueError);
}

}  // namespace
}  // namespace steppe::data
