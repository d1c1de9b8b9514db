// Collectives built on Communicator::exchange and all_gather_host. All tensors are contiguous. Sizes are
// checked against this rank's arguments before anything is sent (ValueError); that the ranks agree is the
// caller's duty.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "steppe/comm/communicator.h"

namespace steppe::comm {

// full [size()*n] receives every rank's shard [n] in rank order; shard may be full's own slice (no copy
// then). Wire: (size-1)·n elements sent and received. Allocates nothing.
Pending all_gather(Communicator& group, const at::Tensor& full, const at::Tensor& shard);

// As all_gather, with sizes that differ: rows of full [Σ rows[p], …] in rank order, shard [rows[rank()], …].
Pending all_gather_rows(Communicator& group, const at::Tensor& full, const at::Tensor& shard,
                        std::span<const int64_t> rows);

// What a sum over ranks is made of: parts[p] is rank p's full[rank()*n : (rank()+1)*n], there once `arriving`
// was waited for. kernels::add_parts_in_order adds them, in fp32 and rank order, so the bits do not depend on
// the backend. Wire: (size-1)·n elements sent and received. Allocates nothing. `full` [size()*n] must stay
// unchanged until then: this rank's own part is read where it is; `scratch`, of full's shape and dtype,
// receives the others (unused, may be undefined, when size()==1).
struct PartsOfSum {
  std::vector<at::Tensor> parts;
  Pending arriving;
};
PartsOfSum exchange_parts(Communicator& group, const at::Tensor& full, const at::Tensor& scratch);

// in [Σ send_rows, …] ordered by destination; out [Σ receive_rows, …] ordered by source.
Pending all_to_all_rows(Communicator& group, const at::Tensor& out, const at::Tensor& in,
                        std::span<const int64_t> receive_rows, std::span<const int64_t> send_rows);

// Sums in rank order, the same bits on every rank.
double all_reduce_sum(Communicator& group, double value);
std::vector<double> all_reduce_sum(Communicator& group, std::span<const double> values);
std::vector<int64_t> all_reduce_sum(Communicator& group, std::span<const int64_t> values);
int64_t all_reduce_max(Communicator& group, int64_t value);

}  // namespace steppe::comm
