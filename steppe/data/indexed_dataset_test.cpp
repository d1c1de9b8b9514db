#include "steppe/data/indexed_dataset.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "steppe/base/error.h"
#include "steppe/data/test_files.h"

namespace steppe::data {
namespace {

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

template <class Error>
void expect_refused(const std::string& prefix, const std::vector<std::string>& words) {
  EXPECT_THROW(IndexedDataset(prefix, "set"), Error);
  const std::string message = message_of([&] { IndexedDataset(prefix, "set"); });
  for (const std::string& word : words) EXPECT_NE(message.find(word), std::string::npos) << message;
}

template <class Token>
void expect_read_back(int dtype_code, const Documents& documents) {
  TemporaryFolder folder;
  for (int64_t parts : {1, 3}) {
    IndexFields fields;
    fields.dtype_code = static_cast<uint8_t>(dtype_code);
    fields.sequences_per_document = parts;
    write_indexed<Token>(folder / "set", documents, fields);
    const IndexedDataset set(folder / "set", "set");
    ASSERT_EQ(set.num_documents(), static_cast<int64_t>(documents.size()));
    for (size_t d = 0; d < documents.size(); ++d) {
      const auto tokens = set.document(static_cast<int64_t>(d));
      EXPECT_EQ(std::vector<int64_t>(tokens.begin(), tokens.end()), documents[d]) << "code " << dtype_code;
      for (size_t offset = 0; offset < documents[d].size(); ++offset) {
        int32_t token = 0;
        set.read(static_cast<int64_t>(d), static_cast<int64_t>(offset), 1, &token);
        EXPECT_EQ(token, documents[d][offset]);
      }
    }
  }
}

TEST(IndexedDataset, ReadsEveryIntegerType) {
  const Documents small = {{1, 2, 3}, {}, {127}, {0, 5, 6, 7, 8, 9, 10}};
  expect_read_back<uint8_t>(1, small);
  expect_read_back<int8_t>(2, small);
  expect_read_back<int16_t>(3, {{1, 32767}, {4}});
  expect_read_back<int32_t>(4, {{1, 151'000, 2'000'000'000}, {4}});
  expect_read_back<int64_t>(5, {{1, 151'000, 2'000'000'000}, {4}});
  expect_read_back<uint16_t>(8, {{1, 65535}, {4}});
}

TEST(IndexedDataset, ReadsAnEmptySet) {
  TemporaryFolder folder;
  write_indexed(folder / "set", {});
  const IndexedDataset set(folder / "set", "set");
  EXPECT_EQ(set.num_documents(), 0);
  EXPECT_EQ(set.num_tokens(), 0);
}

TEST(IndexedDataset, TakesThePrefixWithASuffix) {
  TemporaryFolder folder;
  write_indexed(folder / "set", {{1, 2}});
  EXPECT_EQ(IndexedDataset(folder / "set.bin", "set").prefix(), folder / "set");
  EXPECT_EQ(IndexedDataset(folder / "set.idx", "set").num_tokens(), 2);
}

TEST(IndexedDataset, MissingFilesAreNamed) {
  TemporaryFolder folder;
  expect_refused<RuntimeFailure>(folder / "none", {folder / "none.idx", "No such file"});
  write_indexed(folder / "set", {{1, 2}});
  std::filesystem::remove(folder / "set.bin");
  expect_refused<RuntimeFailure>(folder / "set", {folder / "set.bin", "No such file"});
}

TEST(IndexedDataset, TruncatedFilesAreRefusedWithBothSizes) {
  TemporaryFolder folder;
  write_indexed(folder / "set", {{1, 2, 3}, {4, 5}});
  std::filesystem::resize_file(folder / "set.bin", 9);
  expect_refused<ValueError>(folder / "set", {folder / "set.bin", "truncated", "10", "9"});

  // 34 bytes of header, 2 lengths, 2 pointers, 3 bounds.
  const int64_t whole = 34 + 2 * 4 + 2 * 8 + 3 * 8;
  for (int64_t size : {int64_t{0}, int64_t{33}, int64_t{40}, whole - 1}) {
    write_indexed(folder / "set", {{1, 2, 3}, {4, 5}});
    ASSERT_EQ(std::filesystem::file_size(folder / "set.idx"), static_cast<uintmax_t>(whole));
    std::filesystem::resize_file(folder / "set.idx", static_cast<uintmax_t>(size));
    expect_refused<ValueError>(folder / "set", {folder / "set.idx", "truncated", std::to_string(size)});
  }
}

TEST(IndexedDataset, WrongFieldsAreRefused) {
  TemporaryFolder folder;
  const auto write = [&](IndexFields fields) {
    write_indexed<uint16_t>(folder / "set", {{1, 2}, {3}}, fields);
  };
  write({.magic = "NOTINDEX!"});
  expect_refused<ValueError>(folder / "set", {"MMIDIDX"});
  write({.version = 2});
  expect_refused<ValueError>(folder / "set", {"version 1", "got 2"});
  for (int code : {0, 6, 7, 9, 255}) {
    write({.dtype_code = static_cast<uint8_t>(code)});
    expect_refused<ValueError>(folder / "set", {"dtype", fmt::format("got {}", code)});
  }
  write({.first_pointer = -2});
  expect_refused<ValueError>(folder / "set", {"first byte of sequence 0", "-2"});
  write({.first_pointer = std::numeric_limits<int64_t>::max() - 64});
  expect_refused<ValueError>(folder / "set", {"truncated"});
  write({.extra_bounds = 1});
  expect_refused<ValueError>(folder / "set", {"truncated"});
  write({.extra_bounds = int64_t{1} << 61});
  expect_refused<ValueError>(folder / "set", {"truncated"});
}

TEST(IndexedDataset, IdsBeyond32BitsAreRefused) {
  TemporaryFolder folder;
  IndexFields fields;
  fields.dtype_code = 5;
  write_indexed<int64_t>(folder / "set", {{1, int64_t{1} << 40}}, fields);
  const IndexedDataset set(folder / "set", "set");
  EXPECT_THROW(set.document(0), ValueError);
}

TEST(IndexedDataset, LossMaskMustHaveTheSameShape) {
  TemporaryFolder folder;
  IndexFields mask;
  mask.dtype_code = 1;
  write_indexed(folder / "set", {{1, 2, 3}, {4}});
  write_indexed<uint8_t>(folder / "set.loss_mask", {{0, 1, 1}, {0}}, mask);
  const IndexedDataset set(folder / "set", "set");
  ASSERT_TRUE(set.has_loss_mask());
  std::vector<int32_t> got(2);
  set.read_loss_mask(0, 0, 2, got.data());
  EXPECT_EQ(got, (std::vector<int32_t>{0, 1}));

  write_indexed<uint8_t>(folder / "set.loss_mask", {{0, 1}, {0}}, mask);
  expect_refused<ValueError>(folder / "set", {"loss_mask", "document 0", "3", "got 2"});
  write_indexed<uint8_t>(folder / "set.loss_mask", {{0, 1, 1}}, mask);
  expect_refused<ValueError>(folder / "set", {"loss_mask", "2 documents", "got 1"});
  write_indexed(folder / "set.loss_mask", {{0, 1, 1}, {0}});
  expect_refused<ValueError>(folder / "set", {"uint8"});
  std::filesystem::remove(folder / "set.loss_mask.bin");
  expect_refused<RuntimeFailure>(folder / "set", {"set.loss_mask.bin"});
}

TEST(IndexedDataset, ReadsTheRecordedVocabulary) {
  TemporaryFolder folder;
  write_indexed(folder / "set", {{1}});
  EXPECT_FALSE(IndexedDataset(folder / "set", "set").recorded_vocab_size().has_value());
  std::ofstream(folder / "set.json") << R"({"vocab_size": 300})";
  EXPECT_EQ(IndexedDataset(folder / "set", "set").recorded_vocab_size(), 300);
  std::ofstream(folder / "set.json") << "{";
  expect_refused<ValueError>(folder / "set", {"set.json"});
}

}  // namespace
}  // namespace steppe::data
