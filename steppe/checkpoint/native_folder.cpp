#include "steppe/checkpoint/native_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "steppe/base/error.h"
#include "steppe/checkpoint/durable_file.h"

namespace steppe::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step_", kPartial = ".partial", kLast = "_last", kDeleted = ".deleted";

bool is_checkpoint_name(std::string_view name) {
  return name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
         std::ranges::all_of(name.substr(kPrefix.size()), [](char c) { return c >= '0' && c <= '9'; });
}

std::vector<fs::path> entries_of(const std::string& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    entries.push_back(it->path());
  STEPPE_CHECK(!error || error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory,
               "[checkpoint] cannot read the folder {}: {}", folder, error.message());
  std::ranges::sort(entries);
  return entries;
}

void check_size(const fs::path& path, int64_t expected) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  STEPPE_CHECK_VALUE(!error, "[checkpoint] {}: {}", path.string(), error.message());
  STEPPE_CHECK_VALUE(static_cast<int64_t>(size) == expected,
                     "[checkpoint] {} has {} bytes; the manifest says {}", path.string(), size, expected);
}

// ValueError naming the first file that is missing or of another size.
void check_files(const fs::path& checkpoint, const Manifest& manifest) {
  for (const auto& file : manifest.files) {
    check_size(checkpoint / file.name, file.size_bytes);
    check_size(checkpoint / file.checksums_name(),
               file.num_blocks() * static_cast<int64_t>(sizeof(uint32_t)));
  }
}

std::string target_of_latest(const fs::path& latest) {
  const auto text = read_sealed(latest.string());
  const auto object = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool names_one = object.is_object() && object.contains("checkpoint") &&
                         object["checkpoint"].is_string() &&
                         is_checkpoint_name(object["checkpoint"].get<std::string>());
  STEPPE_CHECK_VALUE(names_one, "[checkpoint] {} names no checkpoint", latest.string());
  return (latest.parent_path() / object["checkpoint"].get<std::string>()).string();
}

bool holds_manifest(const fs::path& path) {
  std::error_code error;
  return fs::exists(path / kManifestName, error);
}

}  // namespace

std::string checkpoint_name(int64_t step) {
  return fmt::format("{}{:08}", kPrefix, step);
}

std::string checkpoint_path(const std::string& folder, int64_t step) {
  return (fs::path(folder) / checkpoint_name(step)).string();
}

std::string partial_path(const std::string& folder, int64_t step) {
  return checkpoint_path(folder, step).append(kPartial);
}

std::string last_partial_path(const std::string& folder, int64_t step) {
  return checkpoint_path(folder, step).append(kLast).append(kPartial);
}

FolderContents look_into(const std::string& folder) {
  FolderContents contents;
  for (const auto& entry : entries_of(folder)) {
    if (!is_checkpoint_name(entry.filename().string())) continue;
    try {
      const auto manifest = read_manifest((entry / kManifestName).string());
      check_files(entry, manifest);
      contents.complete.push_back({entry.string(), manifest.run.step, manifest.serial});
    } catch (const std::exception& error) {
      contents.faults.emplace_back(error.what());
    }
  }
  std::ranges::sort(contents.complete, {}, &FoundCheckpoint::serial);
  return contents;
}

std::string resolve_checkpoint(const std::string& path) {
  std::error_code error;
  const fs::path given(path);
  if (fs::is_regular_file(given, error)) {
    STEPPE_CHECK_VALUE(given.filename() == kLatestName || given.filename() == kManifestName,
                       "[checkpoint] {} must be a checkpoint's folder, or the file \"latest\" beside it",
                       path);
    return given.filename() == kLatestName ? target_of_latest(given) : given.parent_path().string();
  }
  STEPPE_CHECK_VALUE(fs::is_directory(given, error), "[checkpoint] there is no {}", path);
  if (holds_manifest(given)) return path;
  STEPPE_CHECK_VALUE(!is_checkpoint_name(given.filename().string()),
                     "[checkpoint] {} is missing: no checkpoint", (given / kManifestName).string());
  for (const auto& folder : {given, given / "checkpoints"}) {
    const auto contents = look_into(folder.string());
    if (!contents.complete.empty()) return contents.complete.back().path;
    STEPPE_CHECK_VALUE(contents.faults.empty(), "[checkpoint] no checkpoint in {} is complete: {}",
                       folder.string(), contents.faults.front());
  }
  throw ValueError(
      fmt::format("[checkpoint] {} holds no checkpoint: no {} there, nor below step_…", path, kManifestName));
}

void publish(const std::string& folder, const std::string& partial_folder, const std::string& id,
             const SavedRun& run) {
  const fs::path partial = partial_folder;
  Manifest manifest{id, 1, run, {}, {}};
  const auto before = look_into(folder);
  if (!before.complete.empty()) manifest.serial = before.complete.back().serial + 1;
  std::vector<fs::path> ours = {partial / kManifestName};
  for (int64_t rank = 0; rank < run.world_size; ++rank) {
    const auto path = (partial / fmt::format("rank_{:04}.json", rank)).string();
    const auto index = read_shard_index(path);
    STEPPE_CHECK(
        index.id == id && index.rank == rank,
        "[checkpoint] {} is not of this save: checkpoint.folder must be one that all ranks share, and no "
        "other job writes to",
        path);
    add_shard(manifest, index);
    ours.push_back(partial / index.file.name);
    ours.push_back(partial / index.file.checksums_name());
  }
  for (auto& [name, tensor] : manifest.tensors) std::ranges::sort(tensor.pieces, {}, &Piece::begin);
  check_complete(manifest, partial.string());
  check_files(partial, manifest);
  for (const auto& entry : entries_of(partial.string())) {
    if (std::ranges::find(ours, entry) == ours.end()) fs::remove_all(entry);
  }
  DurableFile file(ours.front().string());
  file.write(to_text(manifest));
  file.finish();
  sync_folder(partial.string());
  put_in_place(partial.string(), checkpoint_path(folder, run.step));
  sync_folder(folder);
  replace_durably((fs::path(folder) / kLatestName).string(),
                  sealed(nlohmann::json{{"checkpoint", checkpoint_name(run.step)}}.dump()));
}

std::vector<std::string> prune(const std::string& folder, int64_t keep, int64_t keep_every) {
  std::vector<std::string> failures;
  if (keep == 0) return failures;
  const auto contents = look_into(folder);
  const auto& complete = contents.complete;
  for (int64_t i = 0; i + keep < std::ssize(complete); ++i) {
    const auto& old = complete[i];
    if (keep_every > 0 && old.step % keep_every == 0) continue;
    const std::string deleted = old.path + std::string(kDeleted);
    std::error_code error;
    fs::remove_all(deleted, error);
    fs::rename(old.path, deleted, error);  // half removed, it is no checkpoint
    if (!error) fs::remove_all(deleted, error);
    if (error) failures.push_back(fmt::format("{}: {}", old.path, error.message()));
  }
  return failures;
}

void clean(const std::string& folder) {
  for (const auto& entry : entries_of(folder)) {
    const auto name = entry.filename().string();
    auto stem = entry.stem().string();
    const auto ending = entry.extension().string();
    if (stem.ends_with(kLast)) stem.resize(stem.size() - kLast.size());
    const bool left_over =
        (is_checkpoint_name(stem) || stem == kLatestName) && (ending == kPartial || ending == kDeleted);
    std::error_code ignored;  // what cannot be removed is in nobody's way
    if (left_over) fs::remove_all(entry, ignored);
  }
}

void remove_partial(const std::string& folder, int64_t step) noexcept {
  std::error_code ignored;
  fs::remove_all(partial_path(folder, step), ignored);
}

}  // namespace steppe::checkpoint
