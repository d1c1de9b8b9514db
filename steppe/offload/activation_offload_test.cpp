#include "steppe/offload/activation_offload.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

#include "steppe/base/live_threads.h"
#include "steppe/memory/scope.h"

namespace steppe::offload {
namespace {

using memory::Category;
using memory::Domain;

constexpr int64_t kLayers = 6;

int64_t host_bytes(Category category) {
  return memory::current_ledger().live_by_category(Domain::kHost)[static_cast<size_t>(category)];
}

OffloadConfig config_of(int64_t boundary_bytes, int64_t output_bytes) {
  OffloadConfig config;
  config.boundaries = BoundaryPolicy::kSco;
  config.boundary_host_bytes = boundary_bytes;
  config.attention_outputs.assign(kLayers, OutputPlacement::kHost);
  config.output_host_bytes = output_bytes;
  return config;
}

TEST(ActivationOffload, TakesItsArenasOnceAndGivesThemBack) {
  const ops::OpContext context{at::kCPU, at::kFloat, nullptr};
  std::thread([] {}).join();  // with the first one a sanitizer may start a thread of its own
  const auto threads = num_live_threads();
  {
    const ActivationOffload offload(config_of(1000, 3000), context);
    EXPECT_EQ(host_bytes(Category::kBoundary), 1000);
    EXPECT_EQ(host_bytes(Category::kSaved), 3000);
    EXPECT_EQ(num_live_threads(), threads + 2);
  }
  EXPECT_EQ(memory::current_ledger().live_bytes(Domain::kHost), 0);
  EXPECT_EQ(num_live_threads(), threads);
}

TEST(ActivationOffload, WhereNothingLeavesThereIsNothing) {
  const ops::OpContext context{at::kCPU, at::kFloat, nullptr};
  const auto threads = num_live_threads();
  const ActivationOffload offload({}, context);
  EXPECT_EQ(memory::current_ledger().live_bytes(Domain::kHost), 0);
  EXPECT_EQ(num_live_threads(), threads);
  EXPECT_EQ(offload.boundary_placement(), Placement::kDevice);
  EXPECT_FALSE(offload.keeps_attention_output(3));
}

TEST(ActivationOffload, PlacementsAreThoseOfTheConfiguration) {
  const ops::OpContext context{at::kMeta, at::kFloat, nullptr};
  auto config = config_of(64, 64);
  config.attention_outputs = {OutputPlacement::kRecompute, OutputPlacement::kDevice, OutputPlacement::kHost};
  const ActivationOffload sco(config, context);
  EXPECT_EQ(sco.boundary_placement(), Placement::kHostIfRoom);
  EXPECT_FALSE(sco.keeps_attention_output(0));
  EXPECT_EQ(sco.output_placement(1), Placement::kDevice);
  EXPECT_EQ(sco.output_placement(2), Placement::kHost);
  config.boundaries = BoundaryPolicy::kAll;
  EXPECT_EQ(ActivationOffload(config, context).boundary_placement(), Placement::kHost);
}

// Layers that overwrite their input's memory as soon as it is free, on whichever device there is: a copy that
// was not waited for, on either way, shows in the bits.
void expect_same_bits(at::Device device, int64_t rows) {
  const ops::OpContext context{device, at::kFloat, nullptr};
  const int64_t bytes = rows * 256 * 4;
  ActivationOffload offload(config_of(kLayers * bytes, kLayers * bytes), context);
  const auto layer_input = [&](int64_t layer) {
    return at::full({rows, 256}, static_cast<double>(layer + 1), at::TensorOptions().device(device));
  };
  for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
    auto store = offload.store(kLayers);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      store.save(layer, SavedName::kBoundary, layer_input(layer), offload.boundary_placement());
      store.save(layer, SavedName::kAttentionOutput, layer_input(10 * layer),
                 offload.output_placement(layer));
      store.end_forward(layer);
      layer_input(-1);  // takes the room that was just released
    }
    store.end_forward();
    store.prefetch(kLayers - 1);
    for (int64_t layer = kLayers - 1; layer >= 0; --layer) {
      const auto boundary = store.restore(layer, SavedName::kBoundary);
      const auto output = store.restore(layer, SavedName::kAttentionOutput);
      store.prefetch(layer - 1);
      EXPECT_TRUE(at::equal(boundary, layer_input(layer))) << layer;
      EXPECT_TRUE(at::equal(output, layer_input(10 * layer))) << layer;
    }
  }
}

TEST(ActivationOffload, GivesBackTheSameBitsOnTheCpu) {
  expect_same_bits(at::kCPU, 64);
}

TEST(ActivationOffload, GivesBackTheSameBitsOnCuda) {
  if (!at::globalContext().hasCUDA()) GTEST_SKIP() << "no CUDA device";
  expect_same_bits(at::Device(at::kCUDA, 0), 64);
  expect_same_bits(at::Device(at::kCUDA, 0), 1 << 16);  // 64 MiB: copies take longer than layers
}

}  // namespace
}  // namespace steppe::offload
