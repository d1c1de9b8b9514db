// The placements against the resident one, bit for bit, on shards of any length, in buckets of any size.
#include "steppe/optim/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <deque>

#include "steppe/base/error.h"
#include "steppe/memory/scope.h"

namespace steppe::optim {
namespace {

using memory::Category, memory::Domain;

constexpr int64_t kSizes[] = {1000, 16, 3, 0, 517, 1};

// Shards with two or three segments each, as units would make them.
struct Problem {
  Problem(const StateOptions& options, at::ScalarType dtype, BucketConfig buckets,
          at::Device device = at::kCPU)
      : context{device, dtype, nullptr},
        state(options, context, trained(), total()),
        link(options.on_host() ? make_host_link(context) : make_idle_link(context)) {
    at::manual_seed(5);
    for (const int64_t n : kSizes) add_shard(n);
    std::vector<const ParameterShard*> pointers;
    for (const auto& shard : shards) pointers.push_back(&shard);
    optimizer.emplace(AdamWConfig{}, buckets, options, context, link, pointers);
  }

  static int64_t total() {
    int64_t sum = 0;
    for (const int64_t n : kSizes) sum += n;
    return sum;
  }

  static int64_t trained() {
    int64_t sum = 0;
    for (const int64_t n : kSizes) sum += frozen_some ? n - (n / 2 - n / 3) : n;
    return sum;
  }

  void add_shard(int64_t n) {
    auto& shard = shards.emplace_back();
    const auto start = at::randn({n});
    {
      const memory::Scope scope(Category::kWeights);
      shard.working = start.to(context.device, context.dtype, false, /*copy=*/true);
    }
    shard.grad = state.take_gradient(n);
    const Treatment frozen{.frozen = true}, slow{.lr_scale = 0.25, .weight_decay = 0.5};
    const int64_t a = n / 3, b = n / 2;
    shard.segments = {
        {0, a, true, {}}, {a, b, false, frozen_some ? frozen : Treatment{}}, {b, n, false, slow}};
    const int64_t trained = place_states(shard.segments);
    shard.m = state.take_m(trained);
    shard.v = state.take_v(trained);
    shard.master =
        state.options().masters_are_working(context.dtype) ? shard.working : state.take_master(trained);
    if (shard.working_is_master()) return;
    for (const auto& run : state_runs(shard.segments)) {
      if (!run.frozen) run.of_state(shard.master).copy_(start.narrow(0, run.begin, run.count));
    }
  }

  void step(int64_t number) {
    at::manual_seed(100 + number);
    for (auto& shard : shards) shard.grad.copy_(at::randn({shard.grad.numel()}) * 0.1);
    optimizer->step({.lr = 1e-2 / static_cast<double>(number), .grad_scale = 0.75, .step = number});
    optimizer->wait_for_state();
    link.compute.synchronize();
  }

  static constexpr bool frozen_some = true;
  ops::OpContext context;
  StateMemory state;
  HostLink link;
  std::deque<ParameterShard> shards;
  std::optional<Optimizer> optimizer;
};

void expect_same_bits(const Problem& a, const Problem& b) {
  const auto same = [](const at::Tensor& x, const at::Tensor& y) { return at::equal(x.cpu(), y.cpu()); };
  for (size_t i = 0; i < a.shards.size(); ++i) {
    for (const auto& run : state_runs(a.shards[i].segments)) {
      EXPECT_TRUE(same(run.weights(a.shards[i]), run.weights(b.shards[i]))) << "masters of shard " << i;
    }
    EXPECT_TRUE(same(a.shards[i].m, b.shards[i].m)) << "m of shard " << i;
    EXPECT_TRUE(same(a.shards[i].v, b.shards[i].v)) << "v of shard " << i;
    EXPECT_TRUE(same(a.shards[i].working, b.shards[i].working)) << "working of shard " << i;
  }
}

// Of moments and gradients, beside working weights of `working`.
std::vector<StateOptions> dtypes_beside(at::ScalarType working) {
  std::vector<StateOptions> all = {{}, {.moments_dtype = at::kBFloat16}};
  if (working == at::kBFloat16) {
    all.push_back({.gradient_dtype = at::kBFloat16});
    all.push_back({.moments_dtype = at::kBFloat16, .gradient_dtype = at::kBFloat16});
  }
  return all;
}

std::vector<StateOptions> host_options(const StateOptions& dtypes) {
  std::vector<StateOptions> all;
  for (const auto placement : {Placement::kCpu, Placement::kStream}) {
    for (const bool host_gradients : {false, true}) {
      all.push_back(dtypes);
      all.back().placement = placement, all.back().host_gradients = host_gradients;
    }
  }
  return all;
}

TEST(Optimizer, PlacementsAgreeToTheBit) {
  constexpr int64_t kSteps = 20;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& dtypes : dtypes_beside(dtype)) {
      Problem resident(dtypes, dtype, {});
      for (int64_t step = 1; step <= kSteps; ++step) resident.step(step);
      for (const auto& options : host_options(dtypes)) {
        for (const BucketConfig buckets :
             {BucketConfig{1'000'000, 2}, {100, 2}, {333, 1}, {97, 3}, {7, 40}}) {
          SCOPED_TRACE(::testing::Message()
                       << dtype << " moments " << options.moments_dtype << " gradients "
                       << options.gradient_dtype << " placement " << static_cast<int>(options.placement)
                       << " host gradients " << options.host_gradients << " bucket " << buckets.bucket_params
                       << " slots " << buckets.slots);
          Problem other(options, dtype, buckets);
          for (int64_t step = 1; step <= kSteps; ++step) other.step(step);
          expect_same_bits(other, resident);
        }
      }
    }
  }
}

TEST(Optimizer, AHundredStepsInEveryPlacement) {
  Problem resident({}, at::kBFloat16, {});
  for (int64_t step = 1; step <= 100; ++step) resident.step(step);
  for (const auto& options : host_options({})) {
    Problem other(options, at::kBFloat16, {211, 2});
    for (int64_t step = 1; step <= 100; ++step) other.step(step);
    expect_same_bits(other, resident);
  }
}

// The written update is the same sequence on both.
TEST(Optimizer, CudaHasTheBitsOfTheCpu) {
  if (!at::globalContext().hasCUDA()) GTEST_SKIP() << "no CUDA device";
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& dtypes : dtypes_beside(dtype)) {
      Problem on_cpu(dtypes, dtype, {});
      for (int64_t step = 1; step <= 20; ++step) on_cpu.step(step);
      auto all = host_options(dtypes);
      all.push_back(dtypes);
      for (const auto& options : all) {
        Problem on_cuda(options, dtype, {333, 2}, at::Device(at::kCUDA, 0));
        for (int64_t step = 1; step <= 20; ++step) on_cuda.step(step);
        expect_same_bits(on_cuda, on_cpu);
      }
    }
  }
}

TEST(Optimizer, FrozenElementsStayAndOthersMove) {
  for (const auto placement : {Placement::kResident, Placement::kCpu, Placement::kStream}) {
    Problem problem({.placement = placement}, at::kBFloat16, {50, 2});
    const auto& shard = problem.shards[0];
    const auto before = shard.master.clone(), working_before = shard.working.clone();
    for (int64_t step = 1; step <= 3; ++step) problem.step(step);
    EXPECT_EQ(at::ne(shard.master, before).sum().item<int64_t>(), shard.master.numel());
    const auto runs = state_runs(shard.segments);
    ASSERT_EQ(runs.size(), 3u);
    for (const auto& run : runs) {
      const auto now = shard.working.narrow(0, run.begin, run.count);
      EXPECT_EQ(at::equal(now, working_before.narrow(0, run.begin, run.count)), run.frozen);
      EXPECT_TRUE(at::equal(now, run.weights(shard).to(now.scalar_type())));  // each has its own master
    }
  }
}

// Decay and rate of a group, against the kernel called by hand.
TEST(Optimizer, SegmentsHaveRatesAndDecaysOfTheirOwn) {
  const Segment matrix{0, 1, true, {}}, vector{0, 1, false, {}},
      group{0, 1, false, {.lr_scale = 0.25, .weight_decay = 0.5}};
  const AdamWConfig config{.weight_decay = 0.1};
  const AdamWUpdate update{.lr = 0.2, .grad_scale = 0.5, .step = 7};
  EXPECT_EQ(kernel_step(config, update, matrix).weight_decay, 0.1);
  EXPECT_EQ(kernel_step(config, update, vector).weight_decay, 0.0);
  EXPECT_EQ(kernel_step(config, update, group).weight_decay, 0.5);
  EXPECT_EQ(kernel_step(config, update, group).lr, 0.05);
  EXPECT_EQ(kernel_step(config, update, matrix).lr, 0.2);
  EXPECT_EQ(kernel_step(config, update, matrix).grad_scale, 0.5);
  EXPECT_EQ(kernel_step(config, update, matrix).step, 7);
}

TEST(Optimizer, SquaresOfFrozenGradientsDoNotCount) {
  const auto grad = at::ones({10});
  const auto sum = [&](const std::vector<Segment>& segments) {
    const auto out = at::zeros({1}, at::kDouble);
    add_trained_sum_of_squares(out, grad, segments);
    return out.item<double>();
  };
  const Treatment frozen{.frozen = true};
  EXPECT_EQ(sum({{0, 4, true, {}}, {4, 10, false, {}}}), 10);
  EXPECT_EQ(sum({{0, 4, true, frozen}, {4, 10, false, {}}}), 6);
  EXPECT_EQ(sum({{0, 4, true, {}}, {4, 7, false, frozen}, {7, 10, true, {}}}), 7);
  EXPECT_EQ(sum({{0, 10, true, frozen}}), 0);
}

// What lives where, and what passes through, to the byte.
TEST(Optimizer, BytesAreTheFormula) {
  const auto aligned = memory::HostArena::aligned;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& dtypes : dtypes_beside(dtype)) {
      for (const auto& options : host_options(dtypes)) {
        for (const BucketConfig buckets : {BucketConfig{1'000'000, 2}, {100, 2}, {100, 3}, {97, 1}}) {
          memory::Ledger ledger;
          const memory::LedgerBinding binding(ledger);
          Problem problem(options, dtype, buckets);
          const bool streams = options.placement == Placement::kStream, fp32 = dtype == at::kFloat;
          const int64_t moment = options.moments_dtype == at::kFloat ? 4 : 2, n = Problem::total();
          const int64_t gradient = options.gradient_dtype == at::kFloat ? 4 : 2;
          int64_t trained = 0;
          for (const auto& shard : problem.shards) {
            for (const auto& s : shard.segments) trained += s.treatment.frozen ? 0 : s.end - s.begin;
          }
          const auto host = ledger.live_by_category(Domain::kHost);
          const auto of = [](const memory::BytesByCategory& bytes, Category category) {
            return bytes[static_cast<size_t>(category)];
          };
          const int64_t beta = std::min(buckets.bucket_params, trained);
          const int64_t slots = std::min(buckets.slots, (trained + beta - 1) / beta);
          EXPECT_EQ(of(host, Category::kOptimizer),
                    2 * aligned(trained * moment) + (streams && fp32 ? 0 : aligned(trained * 4)));
          EXPECT_EQ(of(host, Category::kGrads), options.host_gradients ? aligned(n * gradient) : 0);
          EXPECT_EQ(of(host, Category::kStaging),
                    streams ? 0
                            : slots * ((options.host_gradients ? 0 : aligned(beta * gradient)) +
                                       (fp32 ? 0 : aligned(beta * 2))));
          EXPECT_EQ(problem.optimizer->host_staging_bytes(), of(host, Category::kStaging));
          const auto device = ledger.live_by_category();
          EXPECT_EQ(of(device, Category::kOptimizer), 0);
          EXPECT_EQ(of(device, Category::kGrads), options.host_gradients ? 0 : n * gradient);

          problem.step(1);
          const int64_t staging =
              streams ? slots * beta * ((fp32 ? 0 : 4) + 2 * moment + (options.host_gradients ? gradient : 0))
                      : 0;
          EXPECT_LE(staging, buckets.slots * buckets.bucket_params * 16);
          EXPECT_EQ(problem.optimizer->device_staging_bytes(), staging);
          EXPECT_EQ(of(ledger.peak_by_own_category(), Category::kStaging), staging);
          EXPECT_EQ(of(ledger.live_by_category(), Category::kStaging), 0);
          EXPECT_EQ(ledger.live_by_category(Domain::kHost), host);
        }
      }
    }
  }
}

// A mistake in the middle of a step surfaces, leaves nothing behind, and the next step is whole.
TEST(Optimizer, AnErrorOnTheWayLeavesNothingBehind) {
  for (const auto& options : host_options({})) {
    memory::Ledger ledger;
    const memory::LedgerBinding binding(ledger);
    Problem problem(options, at::kBFloat16, {64, 3});
    const auto before = ledger.live_by_category();
    // The first bucket is fetched by the time its step number is found wanting.
    EXPECT_THROW(problem.optimizer->step({.lr = 1, .grad_scale = 1, .step = 0}), ValueError);
    EXPECT_EQ(ledger.live_by_category(), before);
    Problem resident({}, at::kBFloat16, {});
    problem.step(1);
    resident.step(1);
    expect_same_bits(problem, resident);
  }
}

TEST(Optimizer, SaysWhatItIs) {
  StateOptions options{.placement = Placement::kStream, .host_gradients = true};
  EXPECT_EQ(Problem(options, at::kBFloat16, {500, 2}).optimizer->description(),
            "AdamW stream: 3 buckets of 500 parameters, 2 slots; gradients on the host");
  options.gradient_dtype = at::kBFloat16;
  EXPECT_EQ(Problem(options, at::kBFloat16, {500, 2}).optimizer->description(),
            "AdamW stream: 3 buckets of 500 parameters, 2 slots; bf16 gradients on the host");
  EXPECT_EQ(Problem({}, at::kFloat, {}).optimizer->description(), "");
}

TEST(Optimizer, MistakesAreNamed) {
  const ops::OpContext context{at::kCPU, at::kFloat, nullptr};
  EXPECT_THROW(StateMemory({.host_gradients = true}, context, 8, 8), ValueError);
  EXPECT_THROW(StateMemory({.moments_dtype = at::kHalf}, context, 8, 8), ValueError);
  EXPECT_THROW(StateMemory({.gradient_dtype = at::kBFloat16}, context, 8, 8), ValueError);
  EXPECT_THROW(StateMemory({.gradient_dtype = at::kHalf}, {at::kCPU, at::kBFloat16, nullptr}, 8, 8),
               ValueError);
  HostLink link = make_idle_link(context);
  EXPECT_THROW(Optimizer({}, {.bucket_params = 8, .slots = 0}, {}, context, link, {}), ValueError);
  EXPECT_THROW(Optimizer({}, {.bucket_params = 0}, {.placement = Placement::kStream}, context, link, {}),
               ValueError);
}

}  // namespace
}  // namespace steppe::optim
