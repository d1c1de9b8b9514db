#include "tests/cuda_on_cpu/emulation.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <span>
#include <thread>
#include <vector>

namespace cuda_on_cpu {
namespace {

constexpr unsigned kMostThreads = 1024, kMostClusterBlocks = 8, kMostBlocksAlongY = 65535;
constexpr size_t kStackBytes = 64 << 10;

enum class State { kReady, kAtWarp, kAtBlock, kAtCluster, kDone };

struct Fiber {
  State state = State::kDone;
  unsigned line = 0;   // of the barrier where it waits
  uint64_t given = 0;  // to the lanes of its warp
  dim3 thread;
  bool begun = false;
  ucontext_t context;  // until it has begun
  jmp_buf left;        // afterwards: no signal mask to restore, so a hundred times as fast
  std::unique_ptr<char[]> stack;
};

// A barrier that sleeps at once: there are more blocks than processors.
class Meeting {
 public:
  explicit Meeting(unsigned size) : size_(size) {}
  void wait_for_all() {
    std::unique_lock lock(mutex_);
    const unsigned round = round_;
    if (++arrived_ < size_) return all_.wait(lock, [&] { return round_ != round; });
    arrived_ = 0;
    ++round_;
    all_.notify_all();
  }

 private:
  unsigned size_, arrived_ = 0, round_ = 0;
  std::mutex mutex_;
  std::condition_variable all_;
};

// Each of 0 … size − 1 once: ascending, descending, or by a step that has no factor in common with size.
class Order {
 public:
  Order() = default;
  Order(unsigned size, uint32_t random) : size_(size) {
    const unsigned kind = random % 4;
    if (kind == 0) return;
    step_ = kind == 1 ? size - 1 : random / 4 % size;
    while (std::gcd(step_, size) != 1) ++step_;
    first_ = kind == 1 ? size - 1 : random / 4 / size % size;
  }
  unsigned operator[](unsigned i) const {
    return static_cast<unsigned>((first_ + uint64_t{i} * step_) % size_);
  }

 private:
  unsigned size_ = 1, first_ = 0, step_ = 1;
};

struct Launch {
  dim3 grid, block, cluster;
  const std::function<void()>* body;
  Order clusters, warps, lanes;
  Meeting* blocks = nullptr;  // of a cluster
  std::vector<char*> shared;  // by the block's rank in the cluster, where its thread's variables lie

  // The first block of the i-th cluster to run.
  dim3 cluster_at(unsigned i) const {
    const dim3 clusters_along(grid.x / cluster.x, grid.y / cluster.y, grid.z / cluster.z);
    const unsigned at = clusters[i];
    return dim3(at % clusters_along.x * cluster.x, at / clusters_along.x % clusters_along.y * cluster.y,
                at / clusters_along.x / clusters_along.y * cluster.z);
  }
};

// Thread-local variables lie at one distance from this one on every thread.
thread_local char shared_base;

class Runner {
 public:
  void run_block(const Launch& launch, dim3 at, unsigned rank);
  void leave(State state, unsigned line);
  Fiber& current() { return *current_; }
  const Launch& launch() const { return *launch_; }
  const std::array<uint64_t, kWarp>& values_of_warp() const {
    return values_[static_cast<size_t>(current_ - fibers_.data()) / kWarp];
  }

 private:
  [[noreturn]] static void begin();
  void make_fibers(dim3 block);
  void resume(Fiber& fiber);
  void run_warp(size_t warp);
  void release_block();

  std::vector<Fiber> fibers_;
  std::vector<std::array<uint64_t, kWarp>> values_;
  size_t size_ = 0;
  Fiber* current_ = nullptr;
  const Launch* launch_ = nullptr;
  jmp_buf scheduler_;
};

thread_local Runner runner;

void Runner::begin() {
  while (true) {
    (*runner.launch_->body)();
    runner.leave(State::kDone, 0);
  }
}

void Runner::make_fibers(dim3 block) {
  size_ = block.count();
  if (fibers_.size() < size_) {
    fibers_ = std::vector<Fiber>(size_);
    values_.resize((size_ + kWarp - 1) / kWarp);
    for (Fiber& fiber : fibers_) {
      fiber.stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStackBytes;
      makecontext(&fiber.context, &Runner::begin, 0);
    }
  }
  for (unsigned i = 0; i < size_; ++i) {
    fibers_[i].state = State::kReady;
    fibers_[i].thread = dim3(i % block.x, i / block.x % block.y, i / block.x / block.y);
  }
}

void Runner::resume(Fiber& fiber) {
  current_ = &fiber;
  threadIdx = fiber.thread;
  lane = static_cast<int>(&fiber - fibers_.data()) % kWarp;
  if (_setjmp(scheduler_) != 0) return;
  if (fiber.begun) _longjmp(fiber.left, 1);
  fiber.begun = true;
  setcontext(&fiber.context);
}

void Runner::leave(State state, unsigned line) {
  current_->state = state;
  current_->line = line;
  if (_setjmp(current_->left) == 0) _longjmp(scheduler_, 1);
}

// Runs a warp as far as it gets without the others.
void Runner::run_warp(size_t warp) {
  const size_t first = warp * kWarp, size = std::min<size_t>(kWarp, size_ - first);
  const auto lanes = std::span(fibers_).subspan(first, size);
  while (true) {
    for (unsigned i = 0; i < size; ++i) {
      Fiber& fiber = lanes[size == kWarp ? launch_->lanes[i] : i];
      if (fiber.state == State::kReady) resume(fiber);
    }
    if (std::ranges::any_of(lanes, [](const Fiber& f) { return f.state != State::kAtWarp; })) return;
    expect(size == kWarp, "an exchange between all lanes of a warp that has fewer");
    for (size_t i = 0; i < size; ++i) {
      expect(lanes[i].line == lanes[0].line, "the lanes of a warp wait at different places");
      values_[warp][i] = lanes[i].given;
      lanes[i].state = State::kReady;
    }
  }
}

// Of those that have not returned: they all wait at one barrier.
void Runner::release_block() {
  const auto fibers = std::span(fibers_).first(size_);
  const auto waiting = std::ranges::find_if(fibers, [](const Fiber& f) { return f.state != State::kDone; });
  const State state = waiting->state;
  expect(state != State::kAtWarp, "a warp waits for lanes that have returned or wait elsewhere");
  for (const Fiber& fiber : fibers) {
    expect(fiber.state == State::kDone || (fiber.state == state && fiber.line == waiting->line),
           "the threads of a block wait at different barriers");
  }
  if (state == State::kAtCluster && launch_->blocks != nullptr) launch_->blocks->wait_for_all();
  for (Fiber& fiber : fibers)
    if (fiber.state != State::kDone) fiber.state = State::kReady;
}

void Runner::run_block(const Launch& launch, dim3 at, unsigned rank) {
  launch_ = &launch;
  make_fibers(launch.block);
  blockIdx = at;
  blockDim = launch.block;
  gridDim = launch.grid;
  cluster_rank = rank;
  cluster_size = launch.cluster.count();
  const size_t num_warps = (size_ + kWarp - 1) / kWarp;
  while (true) {
    for (unsigned i = 0; i < num_warps; ++i) run_warp(launch.warps[i]);
    if (std::ranges::all_of(std::span(fibers_).first(size_),
                            [](const Fiber& f) { return f.state == State::kDone; }))
      return;
    release_block();
  }
}

void run_clusters(Launch& launch) {
  const unsigned size = launch.cluster.count();
  Meeting blocks(size);
  launch.blocks = &blocks;
  launch.shared.resize(size);
  const auto run_rank = [&](unsigned rank) {
    launch.shared[rank] = &shared_base;
    const dim3 cluster = launch.cluster,
               inside(rank % cluster.x, rank / cluster.x % cluster.y, rank / cluster.x / cluster.y);
    blocks.wait_for_all();
    for (unsigned i = 0; i < launch.grid.count() / size; ++i) {
      const dim3 first = launch.cluster_at(i);
      runner.run_block(launch, dim3(first.x + inside.x, first.y + inside.y, first.z + inside.z), rank);
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned rank = 0; rank < size; ++rank) threads.emplace_back(run_rank, rank);
}

}  // namespace

void expect(bool holds, const char* otherwise) {
  if (holds) return;
  std::fprintf(stderr, "a CUDA kernel on the CPU: %s (thread %u,%u of block %u,%u)\n", otherwise, threadIdx.x,
               threadIdx.y, blockIdx.x, blockIdx.y);
  std::abort();
}

void run(dim3 grid, dim3 block, dim3 cluster, const std::function<void()>& body) {
  expect(grid.count() > 0 && block.count() > 0, "an empty grid or block");
  expect(block.count() <= kMostThreads, "more threads than a block has");
  expect(std::max(grid.y, grid.z) <= kMostBlocksAlongY, "more blocks than a grid has along y or z");
  expect(cluster.count() <= kMostClusterBlocks, "more blocks than a cluster has");
  expect(grid.x % cluster.x == 0 && grid.y % cluster.y == 0 && grid.z % cluster.z == 0,
         "a grid that its clusters do not divide");
  static std::mt19937 random(1);
  const auto order = [](unsigned size) { return Order(size, static_cast<uint32_t>(random())); };
  Launch launch{grid, block, cluster, &body};
  launch.clusters = order(grid.count() / cluster.count());
  launch.warps = order((block.count() + kWarp - 1) / kWarp);
  launch.lanes = order(kWarp);
  if (cluster.count() > 1) return run_clusters(launch);
  for (unsigned i = 0; i < grid.count(); ++i) runner.run_block(launch, launch.cluster_at(i), 0);
}

void wait_for_block(unsigned line) {
  runner.leave(State::kAtBlock, line);
}

void wait_for_cluster() {
  runner.leave(State::kAtCluster, 0);
}

const std::array<uint64_t, kWarp>& exchange_in_warp(uint64_t value, unsigned line) {
  runner.current().given = value;
  runner.leave(State::kAtWarp, line);
  return runner.values_of_warp();
}

void* shared_of_block(void* mine, unsigned rank) {
  if (runner.launch().blocks == nullptr) return mine;
  return runner.launch().shared[rank] + (static_cast<char*>(mine) - &shared_base);
}

}  // namespace cuda_on_cpu
