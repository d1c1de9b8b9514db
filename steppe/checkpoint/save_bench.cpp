// How fast a rank's part of a checkpoint reaches the disk, against `dd` with fsync in turns on the same disk,
// and how long training stands still for it: save_bench FOLDER MIB SAMPLES
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/checkpoint/host_snapshot.h"
#include "steppe/checkpoint/native_folder.h"
#include "steppe/checkpoint/native_reader.h"
#include "steppe/checkpoint/native_shard.h"

namespace steppe::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

template <class Act>
double seconds_of(const Act& act) {
  const auto begin = Clock::now();
  act();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Masters and moments of `mebibytes` in units of 24 MiB.
std::vector<UnitState> make_units(int64_t mebibytes) {
  constexpr int64_t kNumel = int64_t{2} << 20;
  std::vector<UnitState> units;
  for (int64_t u = 0; u < std::max<int64_t>(1, mebibytes / 24); ++u) {
    const auto tensor = fmt::format("tensor {}", u);
    UnitState unit{fmt::format("unit {}", u), kNumel, {{tensor, {kNumel}, 0, 0, kNumel}}, {}};
    for (const State state : kStates) {
      auto values = at::empty({kNumel}, at::kFloat);
      auto* at = values.mutable_data_ptr<float>();
      for (int64_t i = 0; i < kNumel; ++i) at[i] = static_cast<float>(i * 7 + u);
      unit.tensors.push_back({state, std::move(values)});
    }
    units.push_back(std::move(unit));
  }
  return units;
}

int run(const std::string& folder, int64_t mebibytes, int samples) {
  const auto units = make_units(mebibytes);
  HostSnapshot snapshot(HostSnapshot::size_for(units));
  const auto bytes = static_cast<double>(HostSnapshot::size_for(units));
  const auto checkpoints = folder + "/checkpoints", plain = folder + "/plain";
  const auto dd = fmt::format("dd if=/dev/zero of={} bs=1M count={} conv=fsync status=none", plain,
                              static_cast<int64_t>(bytes) >> 20);
  SavedRun saved;
  std::vector<double> save, stall, plain_write;
  for (int sample = -1; sample < samples; ++sample) {  // the first warms up
    std::filesystem::remove_all(checkpoints);
    std::filesystem::remove(plain);
    std::vector<UnitState> copies;
    const double copied = seconds_of([&] { copies = snapshot.take(units); });
    const double written = seconds_of([&] {
      write_shard(partial_path(checkpoints, 0), "bench", 0, copies);
      publish(checkpoints, partial_path(checkpoints, 0), "bench", saved);
    });
    const double by_dd =
        seconds_of([&] { STEPPE_CHECK(std::system(dd.c_str()) == 0, "[save_bench] dd failed"); });
    if (sample < 0) continue;
    save.push_back(written), stall.push_back(copied), plain_write.push_back(by_dd);
  }
  NativeReader reader(checkpoints);
  std::vector<float> back(1 << 20);
  const double read = seconds_of([&] {
    for (const auto& unit : units) reader.read(unit.slices.front().tensor, State::kM, 0, back);
  });
  std::filesystem::remove_all(checkpoints);
  std::filesystem::remove(plain);
  const nlohmann::json line = {
      {"bytes", bytes},
      {"samples", samples},
      {"save_s", median(save)},
      {"dd_s", median(plain_write)},
      {"save_bytes_per_s", bytes / median(save)},
      {"dd_bytes_per_s", bytes / median(plain_write)},
      {"share_of_dd", median(plain_write) / median(save)},
      {"stall_s", median(stall)},
      {"stall_share_of_save", median(stall) / median(save)},
      {"checked_read_bytes_per_s", static_cast<double>(units.size() * back.size() * 4) / read},
      {"all_save_s", save},
      {"all_dd_s", plain_write}};
  std::puts(line.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace steppe::checkpoint

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("save_bench FOLDER MIB SAMPLES\n", stderr);
    return 2;
  }
  try {
    return steppe::checkpoint::run(argv[1], std::atoll(argv[2]), std::atoi(argv[3]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
