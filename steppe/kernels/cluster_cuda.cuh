// Sums over many rows in a fixed order without scratch memory: the blocks of a thread-block cluster share out
// the rows, and the first block adds the others' partial sums from their shared memory, in the order of their
// ranks. Before compute capability 9 there are no clusters: one block does all.
#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime.h>

namespace steppe::kernels::cuda {

// The largest cluster that every such device takes.
inline constexpr int kMostClusterBlocks = 8;

inline int num_cluster_blocks() {
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  return major >= 9 ? kMostClusterBlocks : 1;
}

// Launches grid_x clusters of `blocks` blocks along y.
template <class... Parameters, class... Arguments>
void launch_clusters(void (*kernel)(Parameters...), unsigned grid_x, int blocks, dim3 threads, void* stream,
                     Arguments... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = 1;
  attribute.val.clusterDim.y = static_cast<unsigned>(blocks);
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid_x, static_cast<unsigned>(blocks));
  config.blockDim = threads;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = blocks > 1 ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

// Σ over the cluster's blocks of *mine, a place in shared memory that this thread wrote; the total is for
// block 0 only. Every thread of every block must call it; those that do not want a total give wanted = false.
template <class T>
__device__ T sum_over_cluster(T* mine, bool wanted) {
#if __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  cluster.sync();
  T total = 0;
  if (wanted && cluster.block_rank() == 0) {
    for (unsigned rank = 0; rank < cluster.num_blocks(); ++rank)
      total += *cluster.map_shared_rank(mine, rank);
  }
  cluster.sync();  // no block leaves while its shared memory is being read
  return total;
#else
  return wanted ? *mine : T(0);
#endif
}

}  // namespace steppe::kernels::cuda
