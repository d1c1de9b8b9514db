#include "cli/bench/vocab_bench_peers.h"

#include <ATen/ops/empty.h>
#include <omp.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "steppe/base/error.h"

namespace steppe::cli {
namespace {

constexpr auto kScript = STEPPE_PEERS_FOLDER "/vocab_loss_peers.py";

void write(const std::string& path, const at::Tensor& values) {
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(values.const_data_ptr()),
             static_cast<std::streamsize>(values.nbytes()));
  STEPPE_CHECK(file.flush(), "[bench vocab] cannot write {}", path);
}

at::Tensor read(const std::string& path, at::IntArrayRef sizes) {
  auto values = at::empty(sizes, at::kFloat);
  std::ifstream file(path, std::ios::binary);
  file.read(static_cast<char*>(values.mutable_data_ptr()), static_cast<std::streamsize>(values.nbytes()));
  STEPPE_CHECK(file && file.peek() == EOF, "[bench vocab] {} does not hold {} values", path, values.numel());
  return values;
}

}  // namespace

VocabPeers::VocabPeers(const std::string& python, const VocabPeerInput& input) : input_(input) {
  STEPPE_CHECK(std::filesystem::exists(kScript), "[bench vocab] {} is missing: the source tree has moved",
               kScript);
  write(folder_ / "x.bin", input.x_NH.to(at::kFloat));
  write(folder_ / "weight.bin", input.weight_VH.to(at::kFloat));
  write(folder_ / "targets.bin", input.targets_N);
  const bool fp32 = input.x_NH.scalar_type() == at::kFloat;
  process_.emplace(
      std::vector<std::string>{python, "-I", kScript, folder_ / "", std::to_string(input.x_NH.size(0)),
                               std::to_string(input.x_NH.size(1)), std::to_string(input.weight_VH.size(0)),
                               fp32 ? "float32" : "bfloat16", std::to_string(input.tile_tokens),
                               std::to_string(omp_get_max_threads())});
  const auto start = nlohmann::json::parse(process_->answer());
  kinds_ = start.at("kinds").get<std::vector<std::string>>();
  const int threads = start.at("threads");
  STEPPE_CHECK(threads == omp_get_max_threads(), "[bench vocab] the peers run {} threads, not {}", threads,
               omp_get_max_threads());
}

VocabPeerRun VocabPeers::measure(const std::string& kind) {
  const auto answer = nlohmann::json::parse(process_->ask("measure " + kind));
  const int64_t gradients = static_cast<int64_t>(input_.x_NH.nbytes() + input_.weight_VH.nbytes());
  return {answer.at("loss"), read(folder_ / "dx.bin", input_.x_NH.sizes()),
          read(folder_ / "dw.bin", input_.weight_VH.sizes()),
          std::max<int64_t>(0, answer.at("gained_bytes").get<int64_t>() - gradients)};
}

double VocabPeers::seconds(const std::string& kind) {
  return nlohmann::json::parse(process_->ask("time " + kind)).at("seconds");
}

}  // namespace steppe::cli
