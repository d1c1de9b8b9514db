#include "steppe/checkpoint/hugging_face_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>

#include "steppe/base/error.h"
#include "steppe/checkpoint/tensor_folder.h"
#include "steppe/model/family.h"
#include "steppe/model/initialize.h"

namespace steppe::checkpoint {
namespace {

using Shapes = std::map<std::string, std::vector<int64_t>>;

constexpr size_t kListed = 10;

std::string listed(const std::vector<std::string>& names) {
  const auto shown = std::span(names).first(std::min(names.size(), kListed));
  const auto more = names.size() > kListed ? fmt::format(", and {} more", names.size() - kListed) : "";
  return fmt::format("{}{}", fmt::join(shown, ", "), more);
}

Shapes own_tensors(model::ModelWeights& weights) {
  Shapes shapes;
  for (const auto& unit : weights.units()) {
    for (const auto& slice : unit.slices()) shapes.emplace(slice.tensor, slice.shape);
  }
  return shapes;
}

constexpr std::string_view kExperts = ".experts.";

// Of the layer that `expert`, a tensor of one, is in: the router's rows.
int64_t num_experts(const Shapes& own, const std::string& expert) {
  const auto router = own.find(expert.substr(0, expert.find(kExperts)) + ".gate.weight");
  STEPPE_ASSERT(router != own.end(), "[checkpoint] {} has no router beside it", expert);
  return router->second.front();
}

// Tensors of the whole model: a rank's units lack the experts of other ranks.
std::set<std::string> all_tensors(const Shapes& own) {
  std::set<std::string> names;
  for (const auto& [name, shape] : own) {
    names.insert(name);
    const size_t at = name.find(kExperts);
    if (at == std::string::npos) continue;
    const auto ending = name.substr(name.find('.', at + kExperts.size()));
    for (int64_t expert = 0; expert < num_experts(own, name); ++expert) {
      names.insert(fmt::format("{}{}{}", name.substr(0, at + kExperts.size()), expert, ending));
    }
  }
  return names;
}

bool same_values(const TensorFolder& folder, const TensorPlace& a, const TensorPlace& b) {
  if (a.found_shape != b.found_shape) return false;
  const int64_t count = a.file->at(a.stored_name).numel;
  std::vector<float> x, y;
  for (int64_t begin = 0; begin < count; begin += static_cast<int64_t>(x.size())) {
    x.resize(std::min<int64_t>(count - begin, 1 << 20)), y.resize(x.size());
    folder.read(a, begin, x), folder.read(b, begin, y);
    if (x != y) return false;
  }
  return true;
}

// Values that an older file may carry and the model does not need.
bool is_redundant(const TensorFolder& folder, const std::string& name) {
  if (name.ends_with(".rotary_emb.inv_freq")) return true;
  const auto embedding = folder.find("model.embed_tokens.weight");
  return name == "lm_head.weight" && embedding && same_values(folder, *folder.find(name), *embedding);
}

// As the family's files name it, or, where those pack the experts, under our name, which is transformers'.
std::optional<TensorPlace> find(const TensorFolder& folder, const model::Family& family,
                                const std::string& tensor) {
  if (auto place = folder.find(model::stored_name(family, tensor))) return place;
  return folder.find(tensor);
}

bool is_readable(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kBF16 || dtype == Dtype::kF16 || dtype == Dtype::kF64;
}

void check_tensors(const TensorFolder& folder, const model::Family& family, const Shapes& own) {
  std::vector<std::string> missing, unused;
  std::set<std::string> used, quantized, misshapen;
  for (const auto& name : all_tensors(own)) {
    const auto place = find(folder, family, name);
    if (!place) {
      missing.push_back(model::stored_name(family, name));
      continue;
    }
    used.insert(place->stored_name);
    const Dtype dtype = place->file->at(place->stored_name).dtype;
    if (!is_readable(dtype)) quantized.insert(fmt::format("{} is {}", place->stored_name, name_of(dtype)));
    const auto expected = own.find(name);
    if (expected != own.end() && place->found_shape != expected->second) {
      misshapen.insert(fmt::format("{} is [{}], not [{}]", model::stored_name(family, name),
                                   fmt::join(place->found_shape, ", "), fmt::join(expected->second, ", ")));
    }
    const int64_t packed = place->packed_experts;
    if (packed > 0 && packed != num_experts(own, name))
      misshapen.insert(
          fmt::format("{} holds {} experts, not {}", place->stored_name, packed, num_experts(own, name)));
  }
  for (const auto& name : folder.names()) {
    if (!used.contains(name) && !is_redundant(folder, name)) unused.push_back(name);
  }
  std::string faults;
  const auto add = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) faults += fmt::format("\n  {} {}: {}", names.size(), what, listed(names));
  };
  add("missing", missing);
  add("of another shape", {misshapen.begin(), misshapen.end()});
  add("quantized", {quantized.begin(), quantized.end()});
  add("without a use", unused);
  STEPPE_CHECK_VALUE(faults.empty(), "[checkpoint] {} does not fit the model ({}):{}", folder.path(),
                     family.model_type, faults);
}

}  // namespace

void load_hugging_face_weights(model::ModelWeights& weights, const model::ModelConfig& config,
                               const std::string& folder_or_file) {
  const TensorFolder folder(folder_or_file);
  const auto& family = model::family_of(config);
  check_tensors(folder, family, own_tensors(weights));
  const auto source = [&](const model::LogicalSlice& slice, int64_t begin, std::span<float> out) {
    folder.read(*find(folder, family, slice.tensor), begin, out);
  };
  for (auto& unit : weights.units()) model::fill_unit(unit, source);
}

std::vector<float> read_logical(const model::WeightUnit& unit, std::string_view tensor, UnitPart part) {
  STEPPE_CHECK_VALUE(unit.replicas().size() == 1, "[checkpoint] unit {} is spread over {} ranks", unit.name(),
                     unit.replicas().size());
  const auto slice = std::ranges::find(unit.slices(), tensor, &model::LogicalSlice::tensor);
  STEPPE_CHECK_VALUE(slice != unit.slices().end(), "[checkpoint] unit {} has no tensor {}", unit.name(),
                     tensor);
  int64_t numel = 1;
  for (const int64_t size : slice->shape) numel *= size;
  STEPPE_CHECK_VALUE(slice->count == numel, "[checkpoint] unit {} holds {} of the {} elements of {}",
                     unit.name(), slice->count, numel, tensor);
  auto flat = unit.grad();
  int64_t begin_in_flat = slice->unit_begin;
  if (part == UnitPart::kMaster) {
    const auto runs = optim::state_runs(unit.shard().segments);
    const auto run =
        std::ranges::find_if(runs, [&](const auto& r) { return slice->unit_begin < r.begin + r.count; });
    flat = run->weights(unit.shard());
    begin_in_flat -= run->begin;
  }
  const auto values = flat.narrow(0, begin_in_flat, slice->count).to(at::kCPU, at::kFloat);
  const auto* begin = values.const_data_ptr<float>();
  return {begin, begin + values.numel()};
}

}  // namespace steppe::checkpoint
