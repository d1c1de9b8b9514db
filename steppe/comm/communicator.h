// Communication among the ranks of one group. Two implementations: c10d process groups (Gloo, NCCL), and the
// shape-only one of the dry run, which moves nothing and allocates nothing.
//
// One primitive carries all tensor traffic: `exchange`, an all-to-all of tensors given per peer. Gather and
// reduce-scatter are built on it (comm/collectives.h): nothing hidden is allocated, sums are ours, in fp32
// and in rank order, so the bits are the same on every backend.
//
// Every call is collective over the group and must be issued by one thread per rank, in the same order on
// all. Any number of exchanges may be under way; they match in the order of their calls and may be awaited in
// any.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace steppe::comm {

// A transfer under way. The tensors it reads and writes stay alive until wait() returns. wait() may be called
// once or more; it throws RuntimeFailure on a peer's failure or a timeout. Destruction without wait() waits
// too, swallowing errors (the step is unwinding already).
class Pending {
 public:
  Pending() = default;  // done already
  explicit Pending(std::function<void()> wait) : wait_(std::move(wait)) {}
  Pending(Pending&& other) noexcept : wait_(std::exchange(other.wait_, nullptr)) {}
  Pending& operator=(Pending&& other) noexcept;
  ~Pending();
  void wait();
  bool done() const { return !wait_; }

 private:
  std::function<void()> wait_;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }  // within the group
  int size() const { return size_; }

  // sends[p] goes to peer p, receives[p] arrives from peer p; both have size() entries of contiguous tensors,
  // of any dtype, on one device; an undefined or empty tensor stands for nothing (the peer must agree). The
  // rank's own pair is copied locally, unless both are the same memory. Returns before anything has arrived;
  // on a CPU the tensors must not be touched before wait() returned. Costs: Σ numel·itemsize over the other
  // peers on the wire, no allocation on the device. Throws ValueError when a tensor breaks this contract.
  virtual Pending exchange(std::span<const at::Tensor> sends, std::span<const at::Tensor> receives) = 0;

  // All-gather of host integers: `mine` (the same length on every rank) from everyone, in rank order.
  // Blocks. The values are control data of the host, booked to no ledger. The shape-only communicator answers
  // as if every rank had sent `mine`.
  virtual std::vector<int64_t> all_gather_host(std::span<const int64_t> mine) = 0;

  virtual void barrier() = 0;

  // Bytes sent to other ranks since construction: tensors and host integers (a barrier sends 8 per peer).
  int64_t wire_bytes() const { return wire_bytes_; }

 protected:
  Communicator(std::string name, int rank, int size) : name_(std::move(name)), rank_(rank), size_(size) {}
  int64_t wire_bytes_ = 0;

 private:
  std::string name_;
  int rank_;
  int size_;
};

}  // namespace steppe::comm
