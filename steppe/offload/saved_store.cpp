#include "steppe/offload/saved_store.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "steppe/base/error.h"
#include "steppe/memory/scope.h"

namespace steppe::offload {
namespace {

LinkPurpose purpose_of(SavedName name) {
  return name == SavedName::kBoundary ? LinkPurpose::kBoundary : LinkPurpose::kSaved;
}

}  // namespace

SavedStore::SavedStore(int64_t num_layers, CopyStreams streams, SavedArenas arenas)
    : layers_(num_layers), streams_(streams), arenas_(arenas) {}

SavedStore::~SavedStore() {
  if (copies_may_be_under_way()) {
    streams_.to_host.drain();
    streams_.to_device.drain();
  }
  for (auto& layer : layers_) {
    for (size_t name = 0; name < layer.size(); ++name) arena_of(name).give_back(layer[name].range);
  }
}

bool SavedStore::copies_may_be_under_way() const {
  return std::any_of(layers_.begin(), layers_.end(), [](const Layer& layer) {
    return std::any_of(layer.begin(), layer.end(), [](const Slot& slot) { return slot.range.bytes > 0; });
  });
}

void SavedStore::save(int64_t layer, SavedName name, at::Tensor x, Placement placement) {
  auto& slot = layers_[layer][static_cast<size_t>(name)];
  auto& arena = arena_of(static_cast<size_t>(name));
  STEPPE_ASSERT(!slot.device.defined() && slot.range.bytes == 0,
                "[saved_store] layer {} was saved twice without a restore", layer);
  STEPPE_ASSERT(x.is_contiguous(), "[saved_store] layer {} must save contiguous tensors", layer);
  const auto bytes = static_cast<int64_t>(x.nbytes());
  slot.device = std::move(x);
  const bool to_host = placement != Placement::kDevice && bytes > 0 &&
                       (placement == Placement::kHost || arena.has_room_for(bytes));
  if (!to_host) return;
  slot.sizes = slot.device.sizes().vec();
  slot.type = slot.device.scalar_type();
  slot.where = slot.device.device();
  slot.category = memory::current_category();
  slot.range = arena.take(bytes);
  slot.leaving = true;
  streams_.to_host.wait(streams_.compute.record());
  streams_.to_host.copy(arena.data(slot.range),
                        slot.device.is_meta() ? nullptr : slot.device.const_data_ptr(),
                        static_cast<size_t>(bytes), purpose_of(name));
  slot.copied = streams_.to_host.record();
}

void SavedStore::release_left(Layer& layer) {
  for (auto& slot : layer) {
    if (!slot.leaving) continue;
    streams_.compute.wait(slot.copied);
    slot.leaving = false;
    slot.device.reset();
  }
}

void SavedStore::end_forward(int64_t layer) {
  if (layer > 0) release_left(layers_[layer - 1]);
}

void SavedStore::end_forward() {
  for (auto& layer : layers_) release_left(layer);
}

void SavedStore::start_return(Slot& slot, SavedName name) {
  auto& arena = arena_of(static_cast<size_t>(name));
  if (slot.range.bytes == 0 || slot.device.defined()) return;
  const memory::Scope scope(slot.category);
  slot.device = at::empty(slot.sizes, at::TensorOptions().device(slot.where).dtype(slot.type));
  // The room may have been somebody else's in the arithmetic before this point.
  streams_.to_device.wait(streams_.compute.record());
  streams_.to_device.wait(slot.copied);
  streams_.to_device.copy(slot.device.is_meta() ? nullptr : slot.device.mutable_data_ptr(),
                          arena.data(slot.range), slot.device.nbytes(), purpose_of(name));
  slot.copied = streams_.to_device.record();
}

void SavedStore::prefetch(int64_t layer) {
  if (layer < 0) return;
  for (size_t name = 0; name < kNumSavedNames; ++name) {
    start_return(layers_[layer][name], static_cast<SavedName>(name));
  }
}

at::Tensor SavedStore::restore(int64_t layer, SavedName name) {
  auto& slot = layers_[layer][static_cast<size_t>(name)];
  auto& arena = arena_of(static_cast<size_t>(name));
  start_return(slot, name);
  if (slot.range.bytes > 0) {
    streams_.compute.wait(slot.copied);
    slot.leaving = false;
    arena.give_back(std::exchange(slot.range, {}));
    slot.copied = {};
  }
  return std::exchange(slot.device, {});
}

}  // namespace steppe::offload
