// A program of its own: what import and export take from the operating system beside the rank's units. The
// process's anonymous memory is the rank's; files are mapped, and not anonymous.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <thread>

#include "steppe/base/counters.h"
#include "steppe/base/temporary_folder.h"
#include "steppe/checkpoint/export_weights.h"
#include "steppe/checkpoint/hugging_face_weights.h"
#include "steppe/comm/groups.h"
#include "steppe/layout/layout.h"
#include "steppe/memory/tracking_allocator.h"

namespace steppe::checkpoint {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

model::ModelConfig config() {
  model::ModelConfig c;
  c.num_hidden_layers = 2, c.hidden_size = 512, c.vocab_size = 32768, c.max_position_embeddings = 64;
  c.num_attention_heads = 8, c.num_key_value_heads = 8, c.head_dim = 64;
  c.num_experts = 8, c.num_experts_per_tok = 2, c.moe_intermediate_size = 512;
  return c;
}

// The most anonymous memory that `work` was seen to have beyond what was there before. Sampled: it may miss a
// short peak, but never sees one that was not there.
int64_t extra_anonymous_bytes(const std::function<void()>& work) {
  const int64_t before = memory::resident_anonymous_bytes();
  std::atomic<bool> done = false;
  std::atomic<int64_t> most = before;
  std::thread sampler([&] {
    while (!done) most = std::max<int64_t>(most, memory::resident_anonymous_bytes());
  });
  work();
  done = true;
  sampler.join();
  return most - before;
}

float value_of(const std::string& tensor, int64_t element) {
  return static_cast<float>((std::hash<std::string>{}(tensor) + static_cast<uint64_t>(element)) % 251);
}

TEST(HuggingFaceMemory, IsTheRanksUnitsAndASlice) {
  const TemporaryFolder folder;
  const auto source = [](const std::string& tensor, int64_t begin, std::span<float> out) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = value_of(tensor, begin + static_cast<int64_t>(i));
  };
  Exported exported;
  const int64_t exporting = extra_anonymous_bytes(
      [&] { exported = export_weights(folder / "", config(), source, {.max_shard_bytes = 40'000'000}); });
  const int64_t rows = config().vocab_size * config().hidden_size;  // of the largest tensor
  ASSERT_GT(exported.num_files, 1);
  ASSERT_GT(exported.num_bytes, 90 * kMiB);
  EXPECT_LE(exporting, 2 * rows * 4);
  EXPECT_LE(exporting, 32 * kMiB) << "a block in fp32 and in bf16, and the checksums' and headers' own";

  const layout::RankLayout layout({2, 1, 2, 2}, 1);
  auto groups = comm::make_shape_only_groups(layout);
  Counters counters;
  const ops::OpContext context{at::kCPU, at::kBFloat16, &counters};
  model::ModelWeights weights(config(), layout, groups, context);
  for (auto& unit : weights.units())
    unit.working().fill_(1), unit.shard().master.fill_(1);  // pages are there
  const int64_t importing =
      extra_anonymous_bytes([&] { load_hugging_face_weights(weights, config(), folder / ""); });
  const int64_t slice_bytes = rows / 2 * 4;  // this rank's interval of the vocabulary
  EXPECT_LE(importing, 2 * slice_bytes);
  EXPECT_GE(importing, slice_bytes / 4) << "the sampler saw nothing";
  std::printf("export: %.1f MiB beside a model of %.0f MiB; import: %.1f MiB, largest slice %.0f MiB\n",
              static_cast<double>(exporting) / kMiB, static_cast<double>(exported.num_bytes) / kMiB,
              static_cast<double>(importing) / kMiB, static_cast<double>(slice_bytes) / kMiB);
  const auto& interval = weights.vocab_interval();
  EXPECT_EQ(weights.embedding().working()[0].item<float>(),
            value_of("model.embed_tokens.weight", interval.begin * config().hidden_size));
}

}  // namespace
}  // namespace steppe::checkpoint
