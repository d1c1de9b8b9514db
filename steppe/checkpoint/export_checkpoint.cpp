#include "steppe/checkpoint/export_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string_view>

#include "steppe/base/error.h"
#include "steppe/checkpoint/durable_file.h"
#include "steppe/checkpoint/export_tokenizer.h"
#include "steppe/checkpoint/native_reader.h"
#include "steppe/checkpoint/native_shard.h"
#include "steppe/model/family.h"
#include "steppe/model/hugging_face_config.h"
#include "steppe/recipe/recipe.h"
#include "steppe/recipe/run_config.h"

namespace steppe::checkpoint {
namespace {

namespace fs = std::filesystem;

// "out/" and "out" are one folder, and a link is where it leads: ".partial" goes beside that, not inside.
std::string without_slash(const std::string& path) {
  std::error_code error;
  const auto normal = fs::weakly_canonical(fs::absolute(path), error);
  STEPPE_CHECK_VALUE(!error, "[export] {}: {}", path, error.message());
  return (normal.has_filename() ? normal : normal.parent_path()).string();
}

// Gone again unless it is put in place.
class PartialFolder {
 public:
  explicit PartialFolder(const std::string& path) : path_(without_slash(path)), partial_(path_ + ".partial") {
    std::error_code error;
    const bool is_new = !fs::exists(path_, error) && !fs::is_symlink(path_, error);
    STEPPE_CHECK_VALUE(is_new || (fs::is_directory(path_, error) && fs::is_empty(path_, error)),
                       "[export] {} must be a new or an empty folder", path);
    fs::remove_all(partial_, error);
    fs::create_directories(partial_, error);
    STEPPE_CHECK(!error, "[export] cannot make the folder {}: {}", partial_, error.message());
  }
  ~PartialFolder() {
    std::error_code ignored;
    fs::remove_all(partial_, ignored);
  }
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  const std::string& path() const { return partial_; }

  void write(const std::string& name, std::string_view text) const {
    DurableFile file(partial_ + '/' + name);
    file.write(text);
    file.finish();
  }
  void copy(const fs::path& source) const {
    std::ifstream stream(source, std::ios::binary);
    STEPPE_CHECK(stream.good(), "[export] cannot open {}", source.string());
    write(source.filename().string(), std::string(std::istreambuf_iterator<char>(stream), {}));
  }
  void put_in_place() const {
    sync_folder(partial_);
    checkpoint::put_in_place(partial_, path_);
  }

 private:
  std::string path_, partial_;
};

Dtype dtype_of(const std::string& name) {
  if (name == "float32") return Dtype::kF32;
  return name == "float16" ? Dtype::kF16 : Dtype::kBF16;
}

// Biases have no place in any family of the table: without them the model would choose other experts.
void check_biases(NativeReader& reader, const model::ModelConfig& config, const model::Family& family) {
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const auto& tensors = reader.manifest().tensors;
    const auto found = tensors.find(expert_bias_name(layer));
    if (found == tensors.end()) continue;
    std::vector<float> bias(static_cast<size_t>(config.num_experts));
    reader.read(found->first, State::kMaster, 0, bias);
    STEPPE_CHECK_VALUE(
        std::ranges::all_of(bias, [](float value) { return value == 0; }),
        "[export] {} was trained with expert biases, and those of layer {} are not zero: a {} has "
        "no place for them, and without them tokens would go to other experts",
        reader.path(), layer, family.model_type);
  }
}

void check_tensors(const Manifest& manifest, const model::ModelConfig& config, const std::string& path) {
  std::vector<std::string> faults;
  std::set<std::string> names;
  for (const auto& [name, shape] : logical_tensors(config)) {
    names.insert(name);
    const auto found = manifest.tensors.find(name);
    if (found == manifest.tensors.end()) {
      faults.push_back(name + " is missing");
    } else if (found->second.shape != shape) {
      faults.push_back(fmt::format("{} is [{}], not [{}]", name, fmt::join(found->second.shape, ", "),
                                   fmt::join(shape, ", ")));
    }
  }
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) names.insert(expert_bias_name(layer));
  for (const auto& [name, tensor] : manifest.tensors) {
    if (!names.contains(name)) faults.push_back(name + " has no use");
  }
  constexpr size_t kListed = 10;
  const size_t count = faults.size();
  faults.resize(std::min(count, kListed));
  STEPPE_CHECK_VALUE(count == 0, "[export] {} does not hold the model of its recipe, {} faults: {}", path,
                     count, fmt::join(faults, ", "));
}

void write_generation_config(const PartialFolder& out, const recipe::RunConfig& run,
                             const model::TokenIds& ids) {
  constexpr const char* kName = "generation_config.json";
  std::error_code ignored;
  const auto theirs = fs::path(run.model.path.value_or("")) / kName;
  if (run.model.path && fs::is_regular_file(theirs, ignored)) return out.copy(theirs);
  out.write(kName, model::hugging_face_generation_config(ids));
}

}  // namespace

ExportReport export_checkpoint(const std::string& checkpoint, const std::string& folder,
                               const std::vector<std::string>& overrides) {
  NativeReader reader(checkpoint);
  const auto& saved = reader.manifest().run;
  auto recipe = recipe::Recipe::parse(saved.recipe, reader.path() + "'s recipe", overrides);
  const auto run = recipe::read_run_config(recipe);
  const auto config = model::model_config(run.model, saved.model_config, reader.path() + "'s config.json");
  const auto& family = model::family_of(config);
  model::check_family_has(family, config);
  check_tensors(reader.manifest(), config, reader.path());
  check_biases(reader, config, family);
  const auto tokenizer = find_tokenizer(run);

  const PartialFolder out(folder);
  const auto source = [&](const std::string& tensor, int64_t begin, std::span<float> values) {
    reader.read(tensor, State::kMaster, begin, values);
  };
  ExportReport report{
      reader.path(), saved.step, std::string(family.model_type), tokenizer.folder.string(), {}};
  report.weights = export_weights(out.path(), config, source,
                                  {dtype_of(run.checkpoint.export_dtype), run.checkpoint.max_shard_size});
  const model::TokenIds ids{saved.model_config, tokenizer.eos};
  out.write("config.json", model::hugging_face_config(config, run.checkpoint.export_dtype, ids));
  write_generation_config(out, run, ids);
  for (const auto& name : tokenizer.names) out.copy(tokenizer.folder / name);
  out.put_in_place();
  return report;
}

}  // namespace steppe::checkpoint
