// Runs CUDA kernels on a CPU, so that their arithmetic, their indices and their barriers can be tested where
// there is no GPU. Every thread of a block is a fiber. A warp runs as far as it gets before the next one
// does. The blocks of a grid run one after the other; those of a cluster at once, each on a thread of its
// own. Every launch takes blocks, warps and lanes in orders of its own: ascending, descending or scattered,
// the same in every run of the program. So a missing barrier changes results, and a kernel whose bits depend
// on who comes first has other bits the next time.
//
// Aborts, saying where, when a block can go no further: threads that wait at different barriers, or a warp
// that a lane has left before the others exchange values.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_size = 1, unsigned y_size = 1, unsigned z_size = 1)
      : x(x_size), y(y_size), z(z_size) {}
  unsigned count() const { return x * y * z; }
};
// Of the running fiber.
inline thread_local constinit dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_on_cpu {

inline constexpr int kWarp = 32;

inline thread_local constinit int lane = 0;
inline thread_local constinit unsigned cluster_rank = 0, cluster_size = 1;

// What the device claims to be: below 9 there are no clusters.
inline int compute_capability = 9;

void expect(bool holds, const char* otherwise);

// body() as every thread of every block.
void run(dim3 grid, dim3 block, dim3 cluster, const std::function<void()>& body);

// `line` tells one barrier from another.
void wait_for_block(unsigned line);
void wait_for_cluster();
// Every lane's value, once all have given one.
const std::array<uint64_t, kWarp>& exchange_in_warp(uint64_t value, unsigned line);
// The place in the shared memory of another block of the cluster.
void* shared_of_block(void* mine, unsigned rank);

}  // namespace cuda_on_cpu
