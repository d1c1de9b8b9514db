#include "steppe/memory/category.h"

#include "steppe/base/error.h"

namespace steppe::memory {
namespace {

constexpr std::array<std::string_view, kNumCategories> kCategoryNames = {
    "untagged", "weights",  "gathered", "grads", "optimizer", "boundary", "saved", "residual", "attention",
    "routing",  "dispatch", "expert",   "ffn",   "vocab",     "staging",  "batch", "control",
};
static_assert(!kCategoryNames.back().empty(), "every category has a name");

}  // namespace

std::string_view category_name(Category category) {
  const auto index = static_cast<size_t>(category);
  STEPPE_ASSERT(index < kCategoryNames.size(), "[memory] category {} must be below {}", index,
                kNumCategories);
  return kCategoryNames[index];
}

std::string_view domain_name(Domain domain) {
  return domain == Domain::kDevice ? "device" : "host";
}

}  // namespace steppe::memory
