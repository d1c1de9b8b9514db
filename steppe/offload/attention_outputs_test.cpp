#include "steppe/offload/attention_outputs.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace steppe::offload {
namespace {

using enum OutputPlacement;
using Placements = std::vector<OutputPlacement>;

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

TEST(AttentionOutputs, EqualLayersFillTheDeviceFromTheLastAndTheHostFromTheFirst) {
  const std::vector<OutputCost> layers(5, OutputCost{1000, 100, 128});
  EXPECT_EQ(choose_output_placements(layers, {0, 0}), Placements(5, kRecompute));
  EXPECT_EQ(choose_output_placements(layers, {kUnlimited, 0}), Placements(5, kDevice));
  EXPECT_EQ(choose_output_placements(layers, {0, kUnlimited}), Placements(5, kHost));
  EXPECT_EQ(choose_output_placements(layers, {299, 128}),
            (Placements{kHost, kRecompute, kRecompute, kDevice, kDevice}));
}

TEST(AttentionOutputs, WorkSavedPerByteDecides) {
  // Per byte: 2, 10, 5, nothing, 10.
  const std::vector<OutputCost> layers = {
      {200, 100, 128}, {1000, 100, 128}, {1000, 200, 256}, {0, 10, 64}, {500, 50, 64}};
  EXPECT_EQ(choose_output_placements(layers, {150, 256}),
            (Placements{kRecompute, kDevice, kHost, kRecompute, kDevice}));
  EXPECT_EQ(choose_output_placements(layers, {50, 192}),
            (Placements{kRecompute, kHost, kRecompute, kRecompute, kDevice}));
  // What does not fit is passed over; what saves nothing is not kept.
  EXPECT_EQ(choose_output_placements(layers, {250, 0}),
            (Placements{kDevice, kDevice, kRecompute, kRecompute, kDevice}));
}

TEST(AttentionOutputs, BudgetsHoldAndTheOrderOfWorthToo) {
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    std::vector<OutputCost> layers;
    for (int l = 0; l < 8; ++l) {
      const auto bytes = static_cast<int64_t>(64 * (1 + random() % 5));
      layers.push_back({static_cast<int64_t>(1 + random() % 1000), bytes, bytes});
    }
    const OutputBudgets budgets{static_cast<int64_t>(random() % 1500), static_cast<int64_t>(random() % 1500)};
    const auto placements = choose_output_placements(layers, budgets);
    EXPECT_EQ(placements, choose_output_placements(layers, budgets));
    int64_t device = 0;
    for (size_t l = 0; l < layers.size(); ++l)
      device += placements[l] == kDevice ? layers[l].device_bytes : 0;
    EXPECT_LE(device, budgets.device_bytes);
    EXPECT_LE(host_bytes_of(placements, layers), budgets.host_bytes);
    for (size_t a = 0; a < layers.size(); ++a) {
      for (size_t b = 0; b < layers.size(); ++b) {
        // Nobody of the same size stays behind for one that is worth less.
        if (layers[a].device_bytes != layers[b].device_bytes || layers[a].flops <= layers[b].flops) continue;
        EXPECT_FALSE(placements[a] == kRecompute && placements[b] != kRecompute);
        EXPECT_FALSE(placements[a] == kHost && placements[b] == kDevice);
      }
    }
  }
}

TEST(AttentionOutputs, ThoseThatTravelNeedRoomOnTheDeviceToo) {
  const std::vector<OutputCost> layers(5, OutputCost{1000, 100, 128});
  // Enough for all; for four, or two that stay and any number that travels.
  EXPECT_EQ(choose_within_room(layers, {500, kUnlimited}), Placements(5, kDevice));
  EXPECT_EQ(choose_within_room(layers, {499, kUnlimited}),
            (Placements{kHost, kHost, kHost, kDevice, kDevice}));
  // Two on the host are worth no more than the two that would have to leave for them.
  EXPECT_EQ(choose_within_room(layers, {499, 2 * 128}),
            (Placements{kRecompute, kDevice, kDevice, kDevice, kDevice}));
  EXPECT_EQ(choose_within_room(layers, {200, kUnlimited}), Placements(5, kHost));
  EXPECT_EQ(choose_within_room(layers, {199, kUnlimited}),
            (Placements{kRecompute, kRecompute, kRecompute, kRecompute, kDevice}));
  EXPECT_EQ(choose_within_room(layers, {0, kUnlimited}), Placements(5, kRecompute));
  for (int64_t room = 0; room < 600; room += 50) {
    for (const int64_t host : {0, 128, 400, 1000}) {
      const auto placements = choose_within_room(layers, {room, host});
      EXPECT_LE(device_bytes_of(placements, layers), room);
      EXPECT_LE(host_bytes_of(placements, layers), host);
    }
  }
}

TEST(AttentionOutputs, CostsAreThoseOfOneDocument) {
  const auto cost = attention_output_cost(10, 3, 5, 2);
  EXPECT_EQ(cost.flops, 4 * 55 * 3 * 5);
  EXPECT_EQ(cost.device_bytes, 10 * 3 * 5 * 2 + 10 * 3 * 4);
  EXPECT_EQ(cost.host_bytes, 320 + 128);
  // A million tokens: neither side of the comparison may overflow.
  const auto long_row = attention_output_cost(1 << 20, 64, 128, 2);
  const std::vector<OutputCost> layers(3, long_row);
  EXPECT_EQ(choose_output_placements(layers, {2 * long_row.device_bytes, long_row.host_bytes}),
            (Placements{kHost, kDevice, kDevice}));
}

TEST(AttentionOutputs, SaysWhatItChose) {
  const std::vector<OutputCost> layers(4, OutputCost{1, 1 << 20, 1 << 20});
  EXPECT_EQ(describe(choose_output_placements(layers, {2 << 20, 1 << 20}), layers),
            "attention outputs: 2 of 4 layers on the device (2MiB), 1 in host memory (1MiB), "
            "1 recomputed");
}

}  // namespace
}  // namespace steppe::offload
