#include "steppe/train/timeline_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "steppe/base/error.h"
#include "steppe/memory/scope.h"

namespace steppe::train {
namespace {

bool contains(const std::vector<int64_t>& values, int64_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  STEPPE_CHECK(!file.fail(), "[timeline] cannot write {}: {}", path.string(), std::strerror(errno));
}

}  // namespace

TimelineFiles::TimelineFiles(const recipe::RunConfig& run, int rank, int world_size)
    : folder_(std::filesystem::path(run.run.folder) / "timeline"), rank_(rank) {
  for (const int64_t named : run.profiler.ranks) {
    STEPPE_CHECK_VALUE(named < world_size,
                       "[timeline] profiler.ranks must be below the {} ranks of the run, got {}", world_size,
                       named);
  }
  if (contains(run.profiler.ranks, rank)) steps_ = run.profiler.steps;
}

void TimelineFiles::begin(int64_t step) {
  if (contains(steps_, step)) recording_.emplace(memory::current_ledger());
}

void TimelineFiles::end(int64_t step) {
  if (!recording_) return;
  const std::string text = recording_->finish(step, rank_);
  recording_.reset();
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  STEPPE_CHECK(!error, "[timeline] cannot make {}: {}", folder_.string(), error.message());
  write_file(folder_ / fmt::format("step_{}_rank_{}.json", step, rank_), text);
}

}  // namespace steppe::train
