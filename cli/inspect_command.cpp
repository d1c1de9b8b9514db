// steppe inspect CHECKPOINT
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "steppe/base/bytes.h"
#include "steppe/checkpoint/native_folder.h"
#include "steppe/checkpoint/native_reader.h"
#include "steppe/checkpoint/native_verify.h"

namespace steppe::cli {
namespace {

using checkpoint::Manifest;

constexpr int kSound = 0, kDamaged = 1, kBadInput = 2;

std::string states_of(const Manifest& manifest, const checkpoint::LogicalTensor& tensor) {
  const auto& piece = tensor.pieces.front();
  std::string text;
  for (const auto& stored : manifest.files[piece.file].units[piece.unit].states)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(stored.state), name_of(stored.dtype));
  return text;
}

void print_run(const std::string& path, const Manifest& manifest) {
  const auto& run = manifest.run;
  int64_t parameters = 0, bytes = 0;
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const auto& piece : tensor.pieces) parameters += piece.count;
  }
  for (const auto& file : manifest.files) bytes += file.size_bytes;
  fmt::print("{}\nstep {}, {} tokens, save number {} of its folder\n", path, run.step, run.tokens,
             manifest.serial);
  fmt::print("saved by {} {}: ulysses {}, expert {}, vocab {}; {}\n", run.world_size,
             run.world_size == 1 ? "rank" : "ranks", run.ulysses_degree, run.expert_degree, run.vocab_degree,
             run.compute_dtype);
  for (const auto& [key, value] : run.facts) fmt::print("{} = {}\n", key, value);
  fmt::print("{} tensors, {} elements, {} in {} shards\n\n", manifest.tensors.size(), parameters,
             format_bytes(bytes), manifest.files.size());
}

void print_tensors(const Manifest& manifest) {
  size_t width = 0;
  for (const auto& [name, tensor] : manifest.tensors) width = std::max(width, name.size());
  for (const auto& [name, tensor] : manifest.tensors) {
    fmt::print("{:<{}}  [{}]  {} {}  {}\n", name, width, fmt::join(tensor.shape, ", "), tensor.pieces.size(),
               tensor.pieces.size() == 1 ? "piece" : "pieces", states_of(manifest, tensor));
  }
  std::puts("");
}

int inspect(const std::string& path, bool recipe) {
  std::string resolved;
  try {
    resolved = checkpoint::resolve_checkpoint(path);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return kBadInput;
  }
  try {
    const checkpoint::NativeReader reader(resolved);
    const auto& manifest = reader.manifest();
    if (recipe) {
      std::fputs(manifest.run.recipe.c_str(), stdout);
      return kSound;
    }
    print_run(reader.path(), manifest);
    print_tensors(manifest);
    const auto verified = checkpoint::verify(reader.path(), manifest);
    for (const auto& fault : verified.faults) std::fprintf(stderr, "error: %s\n", fault.c_str());
    if (verified.faults.empty())
      fmt::print("verified: {} blocks of {} shards, {}\n", verified.num_blocks, verified.num_files,
                 format_bytes(verified.size_bytes));
    return verified.faults.empty() ? kSound : kDamaged;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return kDamaged;
  }
}

}  // namespace

void add_inspect_command(CLI::App& app, int& status) {
  struct Options {
    std::string path;
    bool recipe = false;
  };
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("inspect", "list what is in a checkpoint, and verify all of it");
  command
      ->add_option("checkpoint", options->path,
                   "a checkpoint, the file \"latest\", or a folder that holds some")
      ->required();
  command->add_flag("--recipe", options->recipe, "print the recipe of its run, and nothing else");
  command->callback([options, &status] { status = inspect(options->path, options->recipe); });
}

}  // namespace steppe::cli
