// Thread-block clusters of the CUDA toolkit, for a CPU.
#pragma once

#include "tests/cuda_on_cpu/emulation.h"

namespace cooperative_groups {

struct cluster_group {
  void sync() const { cuda_on_cpu::wait_for_cluster(); }
  unsigned block_rank() const { return cuda_on_cpu::cluster_rank; }
  unsigned num_blocks() const { return cuda_on_cpu::cluster_size; }
  template <class T>
  T* map_shared_rank(T* mine, unsigned rank) const {
    return static_cast<T*>(cuda_on_cpu::shared_of_block(mine, rank));
  }
};

inline cluster_group this_cluster() {
  return {};
}

}  // namespace cooperative_groups
