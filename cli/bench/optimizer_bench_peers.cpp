#include "cli/bench/optimizer_bench_peers.h"

#include <ATen/ops/empty.h>
#include <omp.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/bench/optimizer_bench_problem.h"
#include "steppe/base/error.h"

namespace steppe::cli {
namespace {

constexpr auto kScript = STEPPE_PEERS_FOLDER "/optimizer_peers.py";

void write(const std::string& path, const at::Tensor& values) {
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(values.const_data_ptr()),
             static_cast<std::streamsize>(values.nbytes()));
  STEPPE_CHECK(file.flush(), "[bench optimizer] cannot write {}", path);
}

}  // namespace

OptimizerPeers::OptimizerPeers(const std::string& python, const at::Tensor& master, const at::Tensor& grad)
    : numel_(master.numel()) {
  STEPPE_CHECK(std::filesystem::exists(kScript), "[bench optimizer] {} is missing: the source tree has moved",
               kScript);
  write(folder_ / "master.bin", master);
  write(folder_ / "grad.bin", grad);
  const optim::AdamWConfig config;
  const nlohmann::json problem = {{"folder", folder_ / ""},
                                  {"params", numel_},
                                  {"threads", omp_get_max_threads()},
                                  {"lr", bench_update(1).lr},
                                  {"betas", {config.beta1, config.beta2}},
                                  {"eps", config.eps},
                                  {"weight_decay", config.weight_decay}};
  process_.emplace(std::vector<std::string>{python, kScript, problem.dump()});
  const auto start = nlohmann::json::parse(process_->answer());
  kinds_ = start.at("kinds").get<std::vector<std::string>>();
  const int threads = start.at("threads");
  STEPPE_CHECK(threads == omp_get_max_threads(), "[bench optimizer] the peers run {} threads, not {}",
               threads, omp_get_max_threads());
}

at::Tensor OptimizerPeers::weights_after(const std::string& kind, int64_t num_steps) {
  process_->ask(fmt::format("weights_after {} {}", num_steps, kind));
  const auto weights = at::empty({numel_}, at::kFloat);
  std::ifstream file(folder_ / "weights.bin", std::ios::binary);
  file.read(static_cast<char*>(weights.mutable_data_ptr()), static_cast<std::streamsize>(weights.nbytes()));
  STEPPE_CHECK(file && file.peek() == EOF, "[bench optimizer] {} does not hold {} values",
               folder_ / "weights.bin", numel_);
  return weights;
}

double OptimizerPeers::seconds(const std::string& kind) {
  return nlohmann::json::parse(process_->ask("time 1 " + kind)).at("seconds");
}

}  // namespace steppe::cli
