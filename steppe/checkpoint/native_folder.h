// The folder that a run's checkpoints live in: which of them are complete, which is the newest, and how one
// comes into being and goes.
//
//   step_00000040.partial   being written; never taken for a checkpoint
//   step_00000040           complete
//   step_00000040.deleted   on its way out
//   latest                  names the newest, for people and programs
//
// A checkpoint appears under its name by one rename, when everything in it is on the disk.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "steppe/checkpoint/native_manifest.h"

namespace steppe::checkpoint {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kLatestName = "latest";

std::string checkpoint_name(int64_t step);                               // "step_00000040"
std::string partial_path(const std::string& folder, int64_t step);       // where ranks write their shards
std::string last_partial_path(const std::string& folder, int64_t step);  // of a save beside another's
std::string checkpoint_path(const std::string& folder, int64_t step);

struct FoundCheckpoint {
  std::string path;
  int64_t step = 0, serial = 0;
};
struct FolderContents {
  std::vector<FoundCheckpoint> complete;  // oldest first
  std::vector<std::string> faults;        // what looks like a checkpoint and is none: why
};
// Complete: the manifest is whole, and every file that it names is there with its size. Contents are checked
// as they are read. A folder that does not exist has none.
FolderContents look_into(const std::string& folder);

// A checkpoint's folder from what people write: that folder itself, the file `latest`, a folder of
// checkpoints (its newest complete one), or a run's folder. RuntimeFailure or ValueError saying what is
// there instead.
std::string resolve_checkpoint(const std::string& path);

// By rank 0, once all ranks have written their shards into `partial`, one of the paths above: gathers the
// manifest, puts the checkpoint in place and moves `latest`. One of the same step is replaced in one
// exchange. Everything is on the disk on return.
void publish(const std::string& folder, const std::string& partial_folder, const std::string& id,
             const SavedRun& run);

// Removes complete checkpoints but the newest `keep` (0: all are kept) and steps that keep_every divides.
// Returns what could not be removed and why; throws nothing for that.
std::vector<std::string> prune(const std::string& folder, int64_t keep, int64_t keep_every);

// Removes what earlier runs left half-written or half-removed. By one rank, while nobody saves.
void clean(const std::string& folder);
void remove_partial(const std::string& folder, int64_t step) noexcept;

}  // namespace steppe::checkpoint
