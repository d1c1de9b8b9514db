#include "steppe/memory/tracking_allocator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "steppe/memory/scope.h"

namespace steppe::memory {
namespace {

at::TensorOptions options(at::Device device) {
  return at::TensorOptions().dtype(at::kFloat).device(device);
}

class OnDevice : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  at::Tensor make(at::IntArrayRef sizes) const { return at::empty(sizes, options(GetParam())); }
  Ledger ledger;
  LedgerBinding binding{ledger};
};
INSTANTIATE_TEST_SUITE_P(Allocator, OnDevice, ::testing::Values(at::kCPU, at::kMeta),
                         [](const auto& info) { return info.param == at::kCPU ? "cpu" : "meta"; });

TEST_P(OnDevice, BooksRequestedBytesByInnermostScope) {
  const at::Tensor untagged = make({3});
  at::Tensor expert, grads;
  {
    Scope outer(Category::kExpert);
    expert = make({5, 7});
    {
      Scope inner(Category::kGrads);
      EXPECT_EQ(current_category(), Category::kGrads);
      grads = make({11});
    }
    EXPECT_EQ(current_category(), Category::kExpert);
  }
  EXPECT_EQ(current_category(), Category::kUntagged);
  BytesByCategory expected{};
  expected[static_cast<int>(Category::kUntagged)] = 12;
  expected[static_cast<int>(Category::kExpert)] = 140;
  expected[static_cast<int>(Category::kGrads)] = 44;
  EXPECT_EQ(ledger.live_by_category(), expected);
  expert.reset();  // released outside its scope: still the expert's bytes
  expected[static_cast<int>(Category::kExpert)] = 0;
  EXPECT_EQ(ledger.live_by_category(), expected);
  EXPECT_EQ(ledger.peak().bytes, 12 + 140 + 44);
  EXPECT_EQ(ledger.live_bytes(Domain::kHost), 0);
}

TEST_P(OnDevice, ZeroSizesAreNotBooked) {
  const at::Tensor none = make({0, 5});
  EXPECT_EQ(ledger.num_allocations(), 0);
  EXPECT_EQ(none.storage().data(), nullptr);
  EXPECT_EQ(none.storage().device().type(), GetParam());
}

TEST_P(OnDevice, ViewsShareAndClonesDoNot) {
  const at::Tensor base = make({8, 8});
  const at::Tensor view = base.narrow(0, 2, 3).t();
  EXPECT_EQ(ledger.num_allocations(), 1);
  const at::Tensor copy = base.clone();
  EXPECT_EQ(ledger.live_bytes(), 2 * 256);
}

TEST_P(OnDevice, MovedStorageStaysBookedOnce) {
  at::Tensor tensor = make({16});
  c10::Storage storage = tensor.storage();
  tensor.reset();
  EXPECT_EQ(ledger.live_bytes(), 64);
  c10::Storage moved = std::move(storage);
  EXPECT_EQ(ledger.live_bytes(), 64);
  moved = {};
  EXPECT_EQ(ledger.live_bytes(), 0);
}

TEST_P(OnDevice, ReleasedByAnotherThreadOfAnotherLedger) {
  Ledger other;
  at::Tensor tensor = make({100});
  std::thread([&] {
    LedgerBinding others(other);
    const at::Tensor own = make({10});
    tensor.reset();
    EXPECT_EQ(other.live_bytes(), 40);
  }).join();
  EXPECT_EQ(ledger.live_bytes(), 0);
  EXPECT_EQ(other.live_bytes(), 0);
  EXPECT_EQ(other.num_allocations(), 1);
}

TEST_P(OnDevice, BindingsNestAndThreadsStartUnbound) {
  EXPECT_EQ(&current_ledger(), &ledger);
  {
    Ledger inner;
    LedgerBinding nested(inner);
    EXPECT_EQ(&current_ledger(), &inner);
  }
  EXPECT_EQ(&current_ledger(), &ledger);
  std::thread([] { EXPECT_EQ(&current_ledger(), &process_ledger()); }).join();
}

TEST_P(OnDevice, RanksAsThreadsKeepTheirOwnAccounts) {
  constexpr int kRanks = 6;
  std::vector<std::unique_ptr<Ledger>> ledgers;
  for (int r = 0; r < kRanks; ++r) ledgers.push_back(std::make_unique<Ledger>());
  std::vector<std::vector<at::Tensor>> kept(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      LedgerBinding bound(*ledgers[r]);
      Scope scope(Category::kDispatch);
      for (int i = 0; i < 2000; ++i) {
        at::Tensor tensor = make({1 + i % (r + 3)});
        if (i % 50 == 0) kept[r].push_back(std::move(tensor));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (int r = 0; r < kRanks; ++r) {
    int64_t expected = 0;
    for (const auto& tensor : kept[r]) expected += tensor.numel() * 4;
    EXPECT_EQ(ledgers[r]->live_bytes(), expected);
    EXPECT_EQ(ledgers[r]->num_allocations(), 2000);
    // Released by this thread, booked to the ranks.
    kept[r].clear();
    EXPECT_EQ(ledgers[r]->live_bytes(), 0);
  }
  EXPECT_EQ(ledger.num_allocations(), 0);
}

TEST(CpuAllocator, DataIsAlignedAndWritable) {
  for (const int64_t n : {1, 3, 63, 64, 65, 1000, 4096, 100'003, 3'000'001}) {
    const at::Tensor tensor = at::empty({n}, at::kByte);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 64, 0u) << n;
    std::memset(tensor.data_ptr(), 0x5a, static_cast<size_t>(n));
    EXPECT_EQ(tensor.sum().item<int64_t>(), 0x5a * n);
  }
}

TEST(CpuAllocator, ResizeMovesTheBooking) {
  Ledger ledger;
  LedgerBinding binding(ledger);
  at::Tensor tensor = at::ones({4});
  tensor.resize_({1000});
  EXPECT_EQ(ledger.live_bytes(), 4000);
  EXPECT_EQ(tensor.narrow(0, 0, 4).sum().item<float>(), 4.f);
  tensor.resize_({2});  // keeps its storage
  EXPECT_EQ(ledger.live_bytes(), 4000);
}

TEST(CpuAllocator, ForeignMemoryIsNotBooked) {
  std::vector<float> foreign(100, 2.f);
  Ledger ledger;
  LedgerBinding binding(ledger);
  const at::Tensor tensor = at::from_blob(foreign.data(), {100});
  EXPECT_EQ(ledger.num_allocations(), 0);
  EXPECT_EQ(tensor[99].item<float>(), 2.f);
}

TEST(CpuAllocator, RawInterfaceAndCopyOnWrite) {
  Ledger ledger;
  LedgerBinding binding(ledger);
  c10::Allocator* allocator = c10::GetAllocator(at::kCPU);
  void* raw = allocator->raw_allocate(77);
  EXPECT_EQ(ledger.live_bytes(), 77);
  allocator->raw_deallocate(raw);
  EXPECT_EQ(ledger.live_bytes(), 0);

  const at::Tensor original = at::ones({32});
  at::Tensor lazy = at::_lazy_clone(original);
  EXPECT_EQ(ledger.live_bytes(), 128);
  lazy.add_(1);  // materializes
  EXPECT_EQ(ledger.live_bytes(), 256);
  EXPECT_EQ(original.sum().item<float>(), 32.f);
  EXPECT_EQ(lazy.sum().item<float>(), 64.f);
}

TEST(CpuAllocator, OutOfMemoryNamesTheCategory) {
  Ledger ledger;
  LedgerBinding binding(ledger);
  Scope scope(Category::kVocab);
  try {
    at::empty({int64_t{1} << 60}, at::kByte);
    FAIL() << "must throw";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("category vocab"), std::string::npos) << error.what();
  }
  EXPECT_EQ(ledger.live_bytes(), 0);
}

// A small hand-written layer, forward and backward, as the step is written: kernels that return on meta.
void layer_forward_backward(at::DeviceType device, int64_t rows, Ledger& ledger) {
  const auto mm = [](const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
    if (!out.is_meta()) at::mm_out(const_cast<at::Tensor&>(out), a, b);
  };
  const auto take = [&](at::IntArrayRef sizes) { return at::empty(sizes, options(device)); };
  std::optional<Scope> weights_scope(Category::kWeights);
  const at::Tensor w_HF = take({48, 96});
  if (!w_HF.is_meta()) at::fill_(const_cast<at::Tensor&>(w_HF), 0.01);
  weights_scope.reset();
  ledger.mark("forward");
  Scope residual(Category::kResidual);
  at::Tensor x_NH = take({rows, 48});
  if (!x_NH.is_meta()) x_NH.fill_(1);
  at::Tensor y_NF;
  {
    Scope scope(Category::kExpert);
    for (int chunk = 0; chunk < 4; ++chunk) {
      y_NF = take({rows, 96});  // the previous one is released after this allocation
      mm(y_NF, x_NH, w_HF);
    }
  }
  ledger.mark("backward");
  Scope grads(Category::kGrads);
  const at::Tensor dw_HF = take({48, 96});
  mm(dw_HF, x_NH.t(), y_NF);
  x_NH = take({rows, 48});
  mm(x_NH, y_NF, w_HF.t());
}

TEST(Timeline, TheSameOnCpuAndMeta) {
  for (const int64_t rows : {0, 1, 37}) {
    Timeline timelines[2];
    int64_t peaks[2];
    for (const int i : {0, 1}) {
      Ledger ledger;
      LedgerBinding binding(ledger);
      ledger.start_timeline();
      layer_forward_backward(i == 0 ? at::kCPU : at::kMeta, rows, ledger);
      timelines[i] = ledger.stop_timeline();
      peaks[i] = ledger.peak().bytes;
      EXPECT_EQ(ledger.live_bytes(), 0);
    }
    EXPECT_EQ(timelines[0].events, timelines[1].events);
    EXPECT_EQ(timelines[0].marks, timelines[1].marks);
    EXPECT_EQ(peaks[0], peaks[1]);
    EXPECT_EQ(timelines[0].events.size(), rows == 0 ? 6u : 18u);
  }
}

}  // namespace
}  // namespace steppe::memory
