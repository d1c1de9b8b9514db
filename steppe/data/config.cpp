#include "steppe/data/config.h"

#include <cmath>
#include <set>

#include "steppe/base/error.h"

namespace steppe::data {

OverLength over_length_from_name(std::string_view name, std::string_view where) {
  if (name == "split") return OverLength::kSplit;
  if (name == "truncate") return OverLength::kTruncate;
  if (name == "drop") return OverLength::kDrop;
  throw ValueError(
      fmt::format("[data] `{}` must be \"split\", \"truncate\" or \"drop\", got \"{}\"", where, name));
}

void check(const DataConfig& config) {
  STEPPE_CHECK_VALUE(config.seq_length >= 1, "[data] `training.seq_length` must be at least 1, got {}",
                     config.seq_length);
  STEPPE_CHECK_VALUE(config.val_split >= 0 && config.val_split < 1,
                     "[data] `data.val_split` must be in [0, 1), got {}", config.val_split);
  for (const DatasetConfig& set : config.train) {
    STEPPE_CHECK_VALUE(std::isfinite(set.weight) && set.weight > 0,
                       "[data] `data.train` weight of \"{}\" must be above 0, got {}", set.name, set.weight);
  }
  for (const auto* sets : {&config.train, &config.validation}) {
    const char* section = sets == &config.train ? "data.train" : "validation.set";
    std::set<std::string> names;
    for (const DatasetConfig& set : *sets) {
      STEPPE_CHECK_VALUE(!set.path.empty(), "[data] `{}` \"{}\" needs a path", section, set.name);
      STEPPE_CHECK_VALUE(names.insert(set.name).second, "[data] `{}` name \"{}\" is used twice", section,
                         set.name);
    }
  }
}

}  // namespace steppe::data
