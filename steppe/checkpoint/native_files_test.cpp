// A checkpoint in its files: whatever is altered, cut, missing or put in from elsewhere is found and named.
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "steppe/base/error.h"
#include "steppe/base/temporary_folder.h"
#include "steppe/checkpoint/durable_file.h"
#include "steppe/checkpoint/native_folder.h"
#include "steppe/checkpoint/native_reader.h"
#include "steppe/checkpoint/native_shard.h"
#include "steppe/checkpoint/native_verify.h"

namespace steppe::checkpoint {
namespace {

namespace fs = std::filesystem;

// Two ranks hold halves of "a" and "b": 2.4 MB of each state, so that blocks end in the midst of tensors.
constexpr int64_t kRows = 300'001, kOwn = 2 * kRows;

at::Tensor values(int64_t first, double factor) {
  return at::arange(first, first + kOwn, at::kFloat).mul_(factor);
}

void save(const std::string& folder, const std::string& id, int64_t step, double factor = 1) {
  for (int64_t rank = 0; rank < 2; ++rank) {
    const std::vector<int64_t> shape = {2, kRows};
    UnitState unit{"unit",
                   kOwn,
                   {{"a", shape, 0, rank * kRows, kRows}, {"b", shape, kRows, rank * kRows, kRows}},
                   {{State::kMaster, values(rank * kOwn, factor)},
                    {State::kM, values(7 + rank * kOwn, factor)},
                    {State::kV, values(9 + rank * kOwn, factor).to(at::kBFloat16)}}};
    write_shard(partial_path(folder, step), id, rank, {std::move(unit)});
  }
  SavedRun run;
  run.step = step;
  run.world_size = 2;
  run.recipe = "[training]\nsteps = 5\n";
  publish(folder, partial_path(folder, run.step), id, run);
}

std::vector<float> read_all(NativeReader& reader, const std::string& tensor, State state) {
  std::vector<float> out(2 * kRows);
  reader.read(tensor, state, 0, out);
  return out;
}

void load_everything(const std::string& path) {
  NativeReader reader(path);
  for (const auto& tensor : {"a", "b"}) {
    for (const State state : kStates) read_all(reader, tensor, state);
  }
}

// The message of the error.
std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

void flip(const fs::path& path, int64_t at) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(at);
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(at);
  file.put(byte);
}

std::vector<fs::path> files_of(const std::string& checkpoint) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(checkpoint)) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

// Every byte of a small file; of a large one both ends, both sides of each block's edge, and some between.
std::vector<int64_t> places_in(const fs::path& path) {
  const auto size = static_cast<int64_t>(fs::file_size(path));
  std::vector<int64_t> places;
  if (size < 4096) {
    for (int64_t at = 0; at < size; ++at) places.push_back(at);
    return places;
  }
  std::mt19937_64 rng(1);
  for (int64_t edge = 0; edge < size; edge += kBlockBytes) {
    places.insert(places.end(), {edge, std::max<int64_t>(0, edge - 1)});
    places.push_back(static_cast<int64_t>(rng() % static_cast<uint64_t>(size)));
  }
  places.insert(places.end(), {8, 50, size - 1});
  return places;
}

TEST(NativeFiles, ReadBackWhatWasWritten) {
  const TemporaryFolder folder;
  const auto checkpoints = folder / "checkpoints";
  save(checkpoints, "id", 3);
  NativeReader reader(checkpoints);
  EXPECT_EQ(reader.path(), checkpoint_path(checkpoints, 3));
  EXPECT_EQ(reader.manifest().run.recipe, "[training]\nsteps = 5\n");
  EXPECT_EQ(read_all(reader, "a", State::kMaster)[kRows - 1], kRows - 1);
  EXPECT_EQ(read_all(reader, "b", State::kMaster)[0], kRows);
  EXPECT_EQ(read_all(reader, "a", State::kM)[kRows], 7 + kOwn);
  EXPECT_EQ(read_all(reader, "b", State::kV)[1], 299008.0F);  // 9 + 300,002 in bf16
  // A part over the seam of two shards.
  std::vector<float> part(2);
  reader.read("a", State::kMaster, kRows - 1, part);
  EXPECT_EQ(part, (std::vector<float>{kRows - 1, kOwn}));
  EXPECT_NE(refusal([&] { reader.read("a", State::kMaster, 2 * kRows - 1, part); }), "");
  EXPECT_NE(refusal([&] { reader.read("aa", State::kMaster, 0, part); }).find("it has a"), std::string::npos);
  const auto verified = verify(reader.path(), reader.manifest());
  EXPECT_TRUE(verified.faults.empty());
  EXPECT_EQ(verified.num_files, 2);
}

TEST(NativeFiles, AFlippedByteAnywhereIsFoundAndNamed) {
  const TemporaryFolder folder;
  const auto checkpoints = folder / "checkpoints";
  save(checkpoints, "id", 3);
  const auto path = checkpoint_path(checkpoints, 3);
  for (const auto& file : files_of(path)) {
    for (const int64_t at : places_in(file)) {
      flip(file, at);
      const auto message = refusal([&] { load_everything(path); });
      EXPECT_NE(message.find(file.string()), std::string::npos) << at << ": " << message;
      flip(file, at);
    }
  }
  const auto latest = fs::path(checkpoints) / kLatestName;
  for (const int64_t at : places_in(latest)) {
    flip(latest, at);
    EXPECT_NE(refusal([&] { NativeReader{latest.string()}; }).find(latest.string()), std::string::npos) << at;
    flip(latest, at);
  }
  load_everything(latest.string());
}

// A rank does not read, nor check, what others need.
TEST(NativeFiles, OnlyTheBlocksThatHoldWhatIsAskedForAreRead) {
  const TemporaryFolder folder;
  const auto checkpoints = folder / "checkpoints";
  save(checkpoints, "id", 3);
  const auto path = checkpoint_path(checkpoints, 3);
  NativeReader whole(path);
  const auto& file = whole.manifest().files.front();
  const auto shard = fs::path(path) / file.name;
  ASSERT_GT(file.size_bytes, 3 * kBlockBytes);
  flip(shard, file.size_bytes - 1);
  NativeReader reader(path);
  std::vector<float> first(16);
  reader.read("a", State::kMaster, 0, first);
  EXPECT_EQ(first[1], 1);
  const auto message = refusal([&] { load_everything(path); });
  EXPECT_NE(message.find(shard.string()), std::string::npos) << message;
  EXPECT_NE(message.find(fmt::format("block {}", (file.size_bytes - 1) / kBlockBytes)), std::string::npos)
      << message;
}

TEST(NativeFiles, AMissingByteOrFileIsFoundAndNamed) {
  const TemporaryFolder folder;
  const auto checkpoints = folder / "checkpoints";
  save(checkpoints, "id", 3);
  const auto path = checkpoint_path(checkpoints, 3);
  for (const auto& file : files_of(path)) {
    const auto whole = folder / "whole";
    fs::copy_file(file, whole, fs::copy_options::overwrite_existing);
    fs::resize_file(file, fs::file_size(file) - 1);
    EXPECT_NE(refusal([&] { load_everything(path); }).find(file.string()), std::string::npos);
    EXPECT_TRUE(look_into(checkpoints).complete.empty()) << file;
    fs::remove(file);
    EXPECT_NE(refusal([&] { load_everything(path); }).find(file.string()), std::string::npos);
    const auto contents = look_into(checkpoints);
    EXPECT_TRUE(contents.complete.empty());
    EXPECT_NE(contents.faults.at(0).find(file.string()), std::string::npos);
    fs::copy_file(whole, file);
  }
  load_everything(path);
}

TEST(NativeFiles, AFileOfAnotherCheckpointIsFoundAndNamed) {
  const TemporaryFolder folder;
  const auto checkpoints = folder / "checkpoints";
  save(checkpoints, "one", 3);
  save(checkpoints, "two", 4, 2);
  const auto path = checkpoint_path(checkpoints, 4);
  for (const auto& file : files_of(path)) {
    const auto own = folder / "own";
    fs::copy_file(file, own, fs::copy_options::overwrite_existing);
    fs::copy_file(fs::path(checkpoint_path(checkpoints, 3)) / file.filename(), file,
                  fs::copy_options::overwrite_existing);
    const auto message = refusal([&] { load_everything(path); });
    const bool shard = file.extension() == ".safetensors";
    EXPECT_NE(message.find(shard ? file.string() : path), std::string::npos) << message;
    if (shard) {
      EXPECT_NE(message.find("of another checkpoint (one, not two)"), std::string::npos) << message;
    }
    fs::copy_file(own, file, fs::copy_options::overwrite_existing);
  }
  load_everything(path);
}

TEST(NativeFolder, TheNewestIsTheOneSavedLast) {
  const TemporaryFolder folder;
  const auto checkpoints = folder / "checkpoints";
  EXPECT_TRUE(look_into(checkpoints).complete.empty());
  save(checkpoints, "one", 8);
  save(checkpoints, "two", 4);  // a run that went back
  EXPECT_EQ(resolve_checkpoint(checkpoints), checkpoint_path(checkpoints, 4));
  EXPECT_EQ(resolve_checkpoint(checkpoints + "/latest"), checkpoint_path(checkpoints, 4));
  save(checkpoints, "three", 8, 3);  // and came by again
  EXPECT_EQ(resolve_checkpoint(checkpoints), checkpoint_path(checkpoints, 8));
  NativeReader reader(checkpoints);
  EXPECT_EQ(reader.manifest().id, "three");
  EXPECT_EQ(read_all(reader, "a", State::kMaster)[2], 6);
  EXPECT_EQ(look_into(checkpoints).complete.size(), 2U);
}

TEST(NativeFolder, LeftoversAreNoCheckpointsAndAreCleanedAway) {
  const TemporaryFolder folder;
  const auto checkpoints = folder / "checkpoints";
  save(checkpoints, "one", 1);
  fs::copy(checkpoint_path(checkpoints, 1), partial_path(checkpoints, 2));
  fs::copy(checkpoint_path(checkpoints, 1), checkpoint_path(checkpoints, 3) + ".deleted");
  fs::create_directory(checkpoint_path(checkpoints, 9));
  fs::create_directory(fs::path(checkpoints) / "notes");
  auto contents = look_into(checkpoints);
  ASSERT_EQ(contents.complete.size(), 1U);
  EXPECT_EQ(contents.complete[0].step, 1);
  ASSERT_EQ(contents.faults.size(), 1U);
  EXPECT_NE(contents.faults[0].find("step_00000009/manifest.json"), std::string::npos);
  clean(checkpoints);
  EXPECT_FALSE(fs::exists(partial_path(checkpoints, 2)));
  EXPECT_FALSE(fs::exists(checkpoint_path(checkpoints, 3) + ".deleted"));
  EXPECT_TRUE(fs::exists(fs::path(checkpoints) / "notes"));
  load_everything(checkpoints);
}

TEST(NativeFolder, KeepsTheNewestAndEveryNth) {
  const TemporaryFolder folder;
  const auto checkpoints = folder / "checkpoints";
  for (const int64_t step : {1, 2, 3, 4, 5, 6}) save(checkpoints, "id", step);
  EXPECT_TRUE(prune(checkpoints, 0, 0).empty());
  EXPECT_EQ(look_into(checkpoints).complete.size(), 6U);
  EXPECT_TRUE(prune(checkpoints, 2, 3).empty());
  std::vector<int64_t> steps;
  for (const auto& found : look_into(checkpoints).complete) steps.push_back(found.step);
  EXPECT_EQ(steps, (std::vector<int64_t>{3, 5, 6}));
}

TEST(NativeFolder, AShardThatIsNotOfThisSaveIsNotPublished) {
  const TemporaryFolder folder;
  const auto checkpoints = folder / "checkpoints";
  save(checkpoints, "one", 1);
  const auto one =
      UnitState{"unit", kOwn, {{"a", {2, kRows}, 0, 0, kRows}}, {{State::kMaster, values(0, 1)}}};
  write_shard(partial_path(checkpoints, 2), "two", 0, {one});
  SavedRun run;
  run.step = 2;
  run.world_size = 2;
  EXPECT_NE(refusal([&] {
              publish(checkpoints, partial_path(checkpoints, run.step), "two", run);
            }).find("rank_0001.json"),
            std::string::npos);
  write_shard(partial_path(checkpoints, 2), "other", 1, {one});
  EXPECT_NE(refusal([&] {
              publish(checkpoints, partial_path(checkpoints, run.step), "two", run);
            }).find("not of this save"),
            std::string::npos);
  write_shard(partial_path(checkpoints, 2), "two", 1, {one});  // the same half twice
  EXPECT_NE(refusal([&] {
              publish(checkpoints, partial_path(checkpoints, run.step), "two", run);
            }).find("of a is in no piece"),
            std::string::npos);
  EXPECT_EQ(resolve_checkpoint(checkpoints), checkpoint_path(checkpoints, 1));
}

TEST(DurableFile, AFailedWriteNamesTheFileAndTheReason) {
  DurableFile full("/dev/full");
  const std::vector<std::byte> bytes(100);
  const auto message = refusal([&] { full.write(bytes); });
  EXPECT_NE(message.find("/dev/full"), std::string::npos) << message;
  EXPECT_NE(message.find("No space left"), std::string::npos) << message;
}

}  // namespace
}  // namespace steppe::checkpoint
