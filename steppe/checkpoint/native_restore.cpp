#include "steppe/checkpoint/native_restore.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/checkpoint/native_shard.h"

namespace steppe::checkpoint {
namespace {

constexpr size_t kListed = 10;
constexpr int64_t kChunk = int64_t{4} << 20;  // elements

std::string listed(const std::vector<std::string>& names) {
  const auto shown = std::span(names).first(std::min(names.size(), kListed));
  const auto more = names.size() > kListed ? fmt::format(", and {} more", names.size() - kListed) : "";
  return fmt::format("{}{}", fmt::join(shown, ", "), more);
}

// A rank has its own experts only: another rank's counts as the model's if its number is below the router's.
bool is_other_ranks_expert(const std::string& name, const std::map<std::string, std::vector<int64_t>>& own) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t at = name.find(kExperts);
  if (at == std::string::npos) return false;
  const auto router = own.find(name.substr(0, at) + ".gate.weight");
  int64_t expert = 0;
  const char* first = name.data() + at + kExperts.size();
  const auto parsed = std::from_chars(first, name.data() + name.size(), expert);
  return router != own.end() && parsed.ec == std::errc{} && expert < router->second.front();
}

void read_into(NativeReader& reader, const StateSlice& slice, State state, const at::Tensor& values) {
  std::vector<float> chunk;
  for (int64_t done = 0; done < slice.count;) {
    const int64_t count = std::min(kChunk, slice.count - done);
    const auto part = values.narrow(0, slice.offset + done, count);
    if (part.is_cpu() && part.scalar_type() == at::kFloat) {
      reader.read(slice.tensor, state, slice.begin + done,
                  {part.mutable_data_ptr<float>(), static_cast<size_t>(count)});
    } else {
      chunk.resize(static_cast<size_t>(count));
      reader.read(slice.tensor, state, slice.begin + done, chunk);
      part.copy_(at::from_blob(chunk.data(), {count}, at::kFloat));
    }
    done += count;
  }
}

}  // namespace

void check_fits(const Manifest& manifest, model::ModelWeights& weights, const std::string& path) {
  std::map<std::string, std::vector<int64_t>> own;
  for (const auto& unit : weights.units()) {
    for (const auto& slice : unit.slices()) own.emplace(slice.tensor, slice.shape);
  }
  for (size_t layer = 0; layer < weights.expert_biases().size(); ++layer) {
    const auto& bias = weights.expert_biases()[layer];
    if (bias.defined()) own[expert_bias_name(static_cast<int64_t>(layer))] = {bias.numel()};
  }
  std::vector<std::string> missing, misshapen, unused;
  for (const auto& [name, shape] : own) {
    const auto found = manifest.tensors.find(name);
    if (found == manifest.tensors.end()) {
      missing.push_back(name);
    } else if (found->second.shape != shape) {
      misshapen.push_back(fmt::format("{} is [{}], not [{}]", name, fmt::join(found->second.shape, ", "),
                                      fmt::join(shape, ", ")));
    }
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    if (!own.contains(name) && !is_other_ranks_expert(name, own)) unused.push_back(name);
  }
  std::string faults;
  if (!missing.empty()) faults += fmt::format("\n  {} missing: {}", missing.size(), listed(missing));
  if (!misshapen.empty())
    faults += fmt::format("\n  {} of another shape: {}", misshapen.size(), listed(misshapen));
  if (!unused.empty()) faults += fmt::format("\n  {} without a use: {}", unused.size(), listed(unused));
  STEPPE_CHECK_VALUE(faults.empty(), "[checkpoint] {} is of another model:{}", path, faults);
}

void restore(NativeReader& reader, model::ModelWeights& weights, Restore what) {
  check_fits(reader.manifest(), weights, reader.path());
  for (auto& unit : weights.units()) {
    for (const auto& own : unit_states(unit)) {
      for (const auto& [state, values] : own.tensors) {
        if (what == Restore::kWeightsOnly && state != State::kMaster) continue;
        for (const auto& slice : own.slices) read_into(reader, slice, state, values);
      }
    }
    set_working_from_master(unit);
  }
  for (size_t layer = 0; layer < weights.expert_biases().size(); ++layer) {
    const auto& bias = weights.expert_biases()[layer];
    if (!bias.defined()) continue;
    read_into(reader, {expert_bias_name(static_cast<int64_t>(layer)), {}, 0, 0, bias.numel()}, State::kMaster,
              bias);
  }
}

}  // namespace steppe::checkpoint
