// What a dry run rests on: every function of the kernel layer allocates on `meta` what it does on a CPU.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>

#include "steppe/kernels/adamw.h"
#include "steppe/kernels/attention.h"
#include "steppe/kernels/clamp.h"
#include "steppe/kernels/embedding.h"
#include "steppe/kernels/grouped_matmul.h"
#include "steppe/kernels/matmul.h"
#include "steppe/kernels/permute.h"
#include "steppe/kernels/pointwise.h"
#include "steppe/kernels/rms_norm.h"
#include "steppe/kernels/rotary.h"
#include "steppe/kernels/router.h"
#include "steppe/kernels/row_bias.h"
#include "steppe/kernels/softmax_rows.h"
#include "steppe/kernels/swiglu.h"
#include "steppe/memory/scope.h"

namespace steppe::testing {
namespace {

constexpr int64_t N = 150, H = 40, I = 24, E = 8, k = 2, V = 33;
constexpr int64_t kScalarBytes = 64;

// Operands on one device.
struct On {
  at::Device device;
  at::ScalarType dtype;

  at::Tensor x(at::IntArrayRef sizes) const { return make(sizes, dtype); }
  at::Tensor fp32(at::IntArrayRef sizes) const { return make(sizes, at::kFloat); }
  at::Tensor ints(at::IntArrayRef sizes) const { return make(sizes, at::kInt); }
  at::Tensor longs(at::IntArrayRef sizes) const { return make(sizes, at::kLong); }
  at::Tensor fp64(at::IntArrayRef sizes) const { return make(sizes, at::kDouble); }

 private:
  at::Tensor make(at::IntArrayRef sizes, at::ScalarType type) const {
    const auto tensor = at::empty(sizes, at::TensorOptions().device(device).dtype(type));
    if (!tensor.is_meta()) tensor.zero_();
    return tensor;
  }
};

// Makes its operands, and returns what runs the kernel on them.
using Prepare = std::function<std::function<void()>(const On&)>;

const std::map<std::string, Prepare>& kernels_under_test() {
  using namespace kernels;
  static const std::vector<float> frequencies(H / 2, 0.5F);
  static const std::vector<int64_t> first_slots = {0, N * k, N * k, N * k, N * k, N * k, N * k, N * k};
  static const std::vector<RowBlock> blocks = {{0, 0, N}};
  static const std::vector<int64_t> bounds = {0, 60, N};
  static const std::map<std::string, Prepare> all = {
      {"matmul",
       [](const On& on) {
         return [out = on.x({N, I}), a = on.x({N, H}), b = on.x({H, I})] { matmul(out, a, b); };
       }},
      {"matmul_add",
       [](const On& on) {
         return [out = on.x({N, I}), a = on.x({N, H}), b = on.x({I, H}).t()] { matmul_add(out, a, b); };
       }},
      {"matmul_accumulate",
       [](const On& on) {
         return [out = on.fp32({I, H}), a = on.x({N, I}).t(), b = on.x({N, H}),
                 scratch = on.dtype == at::kFloat ? at::Tensor() : on.x({I, H})] {
           matmul_accumulate(out, a, b, scratch);
         };
       }},
      {"grouped_matmul",
       [](const On& on) {
         return [out = on.x({N, I}), a = on.x({N, H}), b = on.x({2, H, I}),
                 groups = RowGroups({60, N - 60}, on.x({N}))] { grouped_matmul(out, a, b, groups); };
       }},
      {"grouped_matmul_accumulate",
       [](const On& on) {
         return [out = on.fp32({2, I, H}), a = on.x({N, I}), b = on.x({N, H}),
                 groups = RowGroups({60, N - 60}, on.x({N})),
                 scratch = on.dtype == at::kFloat ? at::Tensor() : on.x({I, H})] {
           grouped_matmul_accumulate(out, a, b, groups, scratch);
         };
       }},
      {"fill_zero",
       [](const On& on) {
         return [x = on.x({N, H})] { fill_zero(x); };
       }},
      {"add",
       [](const On& on) {
         return [out = on.x({N, H}), a = on.x({N, H})] { add(out, a, a); };
       }},
      {"scale",
       [](const On& on) {
         return [x = on.x({N, H})] { scale(x, 0.5); };
       }},
      {"add_to",
       [](const On& on) {
         return [to = on.fp32({N, H}), x = on.x({N, H})] { add_to(to, x); };
       }},
      {"copy_cast",
       [](const On& on) {
         return [to = on.fp32({N, H}), x = on.x({N, H})] { copy_cast(to, x); };
       }},
      {"add_parts_in_order",
       [](const On& on) {
         return [to = on.fp32({N}), parts = std::vector<at::Tensor>{on.x({N}), on.x({N})}] {
           add_parts_in_order(to, parts);
         };
       }},
      {"add_sum_of_squares",
       [](const On& on) {
         return [out = on.fp64({1}), x = on.fp32({N * H})] { add_sum_of_squares(out, x); };
       }},
      {"add_nonfinite_count",
       [](const On& on) {
         return [out = on.longs({1}), x = on.x({N, H})] { add_nonfinite_count(out, x); };
       }},
      {"rms_norm_forward",
       [](const On& on) {
         return [y = on.x({N, H}), inv = on.fp32({N}), x = on.x({N, H}), w = on.x({H})] {
           rms_norm_forward(y, inv, x, w, 1e-6);
         };
       }},
      {"rms_norm_backward",
       [](const On& on) {
         return [dx = on.x({N, H}), dw = on.fp32({H}), dy = on.x({N, H}), x = on.x({N, H}), w = on.x({H}),
                 inv = on.fp32({N})] {
           rms_norm_backward({dx, dw, dy, x, w, inv});
         };
       }},
      {"rotary",
       [](const On& on) {
         return [x = on.x({N, 2, H}), c = on.fp32({N, H / 2}), s = on.fp32({N, H / 2})] {
           rotary(x, c, s, false);
         };
       }},
      {"rotary_tables",
       [](const On& on) {
         return [c = on.fp32({N, H / 2}), s = on.fp32({N, H / 2}), p = on.ints({N})] {
           rotary_tables(c, s, p, frequencies, 1);
         };
       }},
      {"swiglu_forward",
       [](const On& on) {
         return [a = on.x({N, I}), gu = on.x({N, 2 * I}), w = on.fp32({N})] { swiglu_forward(a, gu, w); };
       }},
      {"swiglu_backward_inplace",
       [](const On& on) {
         return [gu = on.x({N, 2 * I}), da = on.x({N, I}), w = on.fp32({N}), dw = on.fp32({N})] {
           swiglu_backward_inplace(gu, da, w, dw);
         };
       }},
      {"adamw",
       [](const On& on) {
         return [p = on.fp32({N * H}), m = on.fp32({N * H}), v = on.fp32({N * H}), g = on.fp32({N * H}),
                 w = on.x({N * H})] {
           adamw({p, m, v, g, w}, {.lr = 1e-3});
         };
       }},
      {"softmax_rows",
       [](const On& on) {
         return [x = on.fp32({N, E})] { softmax_rows(x, x); };
       }},
      {"top_k",
       [](const On& on) {
         return [ids = on.ints({N, k}), s = on.fp32({N, E}), b = on.fp32({E})] { top_k(ids, s, b); };
       }},
      {"gather_scores",
       [](const On& on) {
         return [w = on.fp32({N, k}), s = on.fp32({N, E}), ids = on.ints({N, k})] {
           gather_scores(w, s, ids, true);
         };
       }},
      {"router_backward",
       [](const On& on) {
         return [s = on.fp32({N, E}), dw = on.fp32({N, k}), w = on.fp32({N, k}), ids = on.ints({N, k})] {
           router_backward({s, dw, w, s, ids, true});
         };
       }},
      {"count_routes",
       [](const On& on) {
         return [c = on.longs({E}), ids = on.ints({N, k})] { count_routes(c, ids); };
       }},
      {"sort_routes",
       [](const On& on) {
         return [slot = on.ints({N * k}), route = on.ints({N * k}), ids = on.ints({N, k})] {
           sort_routes(slot, route, ids, first_slots);
         };
       }},
      {"gather_rows_of_routes",
       [](const On& on) {
         return [out = on.x({N * k, H}), x = on.x({N, H}), r = on.ints({N * k})] {
           gather_rows_of_routes(out, x, r, k);
         };
       }},
      {"gather_values",
       [](const On& on) {
         return [out = on.fp32({N}), v = on.fp32({N}), i = on.ints({N})] { gather_values(out, v, i); };
       }},
      {"combine_rows",
       [](const On& on) {
         return [y = on.x({N, H}), r = on.x({N * k, H}), s = on.ints({N * k})] {
           combine_rows(y, r, s, k, true);
         };
       }},
      {"copy_row_blocks",
       [](const On& on) {
         return [out = on.x({N, H}), in = on.x({N, H})] { copy_row_blocks(out, in, blocks); };
       }},
      {"add_row_bias",
       [](const On& on) {
         return [r = on.x({N, H}), b = on.x({H}), w = on.fp32({N})] { add_row_bias(r, b, w); };
       }},
      {"add_column_sums",
       [](const On& on) {
         return [g = on.fp32({H}), r = on.x({N, H}), w = on.fp32({N})] { add_column_sums(g, r, w); };
       }},
      {"add_row_dots",
       [](const On& on) {
         return [o = on.fp32({N}), r = on.x({N, H}), b = on.x({H})] { add_row_dots(o, r, b); };
       }},
      {"embedding_forward",
       [](const On& on) {
         return [out = on.x({N, H}), t = on.x({V, H}), ids = on.ints({N})] {
           embedding_forward(out, t, ids, 0);
         };
       }},
      {"embedding_backward",
       [](const On& on) {
         return [g = on.fp32({V, H}), dy = on.x({N, H}), ids = on.ints({N})] {
           embedding_backward(g, dy, ids, 0);
         };
       }},
      {"soft_cap",
       [](const On& on) {
         return [y = on.x({N, V})] { soft_cap(y, 30); };
       }},
      {"logit_statistics",
       [](const On& on) {
         return [s = on.fp32({N, 3}), y = on.x({N, V}), t = on.ints({N})] { logit_statistics(s, y, t, 0); };
       }},
      {"merge_statistics",
       [](const On& on) {
         return [m = on.fp32({N, 3}), p = on.fp32({2, N, 3})] { merge_statistics(m, p); };
       }},
      {"add_loss",
       [](const On& on) {
         return [l = on.fp64({1}), r = on.fp32({N}), s = on.fp32({N, 3}), t = on.ints({N})] {
           add_loss(l, r, s, t, {});
         };
       }},
      {"logits_to_gradient",
       [](const On& on) {
         return [y = on.x({N, V}), s = on.fp32({N, 3}), t = on.ints({N}), w = on.fp32({N})] {
           logits_to_gradient(y, s, t, w, 0);
         };
       }},
      {"statistics_and_gradient",
       [](const On& on) {
         return [s = on.fp32({N, 3}), y = on.x({N, V}), t = on.ints({N}), w = on.fp32({N})] {
           statistics_and_gradient(s, y, t, w, 0);
         };
       }},
      {"clamp_forward",
       [](const On& on) {
         return [o = on.x({N, H}), x = on.x({N, H})] { clamp_forward(o, x, 1); };
       }},
      {"clamp_backward",
       [](const On& on) {
         return [d = on.x({N, H}), x = on.x({N, H})] { clamp_backward(d, x, 1); };
       }},
      {"attention_forward",
       [](const On& on) {
         return [q = on.x({N, 6, 16}), kv = on.x({N, 2, 16})] { attention_forward(q, kv, kv, bounds, 0.25); };
       }},
      {"attention_backward",
       [](const On& on) {
         return [q = on.x({N, 6, 16}), kv = on.x({N, 2, 16}), lse = on.fp32({6, N})] {
           attention_backward(q, q, kv, kv, {q, lse}, bounds, 0.25);
         };
       }},
  };
  return all;
}

std::vector<int64_t> trace(const Prepare& prepare, const On& on) {
  memory::Ledger ledger;
  const memory::LedgerBinding binding(ledger);
  const auto run = prepare(on);
  ledger.start_timeline();
  run();
  std::vector<int64_t> bytes;
  for (const auto& event : ledger.stop_timeline().events) {
    if (std::abs(event.bytes) >= kScalarBytes) bytes.push_back(event.bytes);
  }
  return bytes;
}

// oneDNN's bf16 products, where the CPU has them, take scratch of their own.
void expect_same_traces(at::ScalarType dtype) {
  at::globalContext().setUserEnabledMkldnn(false);
  at::set_num_threads(2);
  for (const auto& [name, prepare] : kernels_under_test()) {
    EXPECT_EQ(trace(prepare, {at::kCPU, dtype}), trace(prepare, {at::kMeta, dtype})) << name;
  }
}

TEST(KernelLayer, AllocatesOnMetaWhatItDoesOnACpu) {
  expect_same_traces(at::kFloat);
}
TEST(KernelLayer, AllocatesOnMetaWhatItDoesOnACpuInBf16) {
  expect_same_traces(at::kBFloat16);
}

TEST(KernelLayer, OnlyAttentionAllocates) {
  for (const auto& [name, prepare] : kernels_under_test()) {
    if (!name.starts_with("attention")) {
      EXPECT_TRUE(trace(prepare, {at::kMeta, at::kFloat}).empty()) << name;
    }
  }
  EXPECT_GE(trace(kernels_under_test().at("attention_backward"), {at::kMeta, at::kFloat}).size(), 10u);
}

// A kernel's header declares it at the beginning of a line.
TEST(KernelLayer, NoKernelIsLeftOut) {
  const std::regex declaration(R"(^(?:void|AttentionOutput|AttentionGradients) (\w+)\()");
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(STEPPE_KERNELS)) {
    const auto name = entry.path().filename().string();
    if (!name.ends_with(".h") || name.ends_with("_backend.h") || name.ends_with("_cpu.h") ||
        name.ends_with("_test.h") || name == "backend.h" || name == "cuda_failure.h") {
      continue;
    }
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      std::smatch match;
      if (!std::regex_search(line, match, declaration)) continue;
      ++found;
      EXPECT_TRUE(kernels_under_test().contains(match[1]))
          << match[1] << " of " << name << " has no trace here";
    }
  }
  EXPECT_EQ(found, static_cast<int>(kernels_under_test().size()));
}

}  // namespace
}  // namespace steppe::testing
