// The streams of a step: its own arithmetic, and one for each direction between host and device. Owned by the
// step, passed to what copies.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <exception>

#include "steppe/base/stream.h"
#include "steppe/ops/context.h"

namespace steppe::optim {

struct HostLink {
  Stream compute;    // the caller's
  Stream to_device;  // host → device
  Stream to_host;    // device → host
};

// Threads on the CPU, streams on CUDA, nothing on `meta`. `compute` is what is current on the calling thread.
// Copies are counted in context.counters, on `meta` too.
HostLink make_host_link(const ops::OpContext& context);
// For a step that copies nothing: `compute` alone.
HostLink make_idle_link(const ops::OpContext& context);

// An exception must not release what a stream still copies to or from: on its way out the streams run empty.
class DrainOnError {
 public:
  explicit DrainOnError(HostLink& link) : link_(link), exceptions_(std::uncaught_exceptions()) {}
  ~DrainOnError() {
    if (std::uncaught_exceptions() == exceptions_) return;
    link_.to_device.drain();
    link_.to_host.drain();
  }
  DrainOnError(const DrainOnError&) = delete;
  DrainOnError& operator=(const DrainOnError&) = delete;

 private:
  HostLink& link_;
  int exceptions_;
};

// Copies on one stream, for one purpose, between pieces of tensors. Those that lie behind one another on both
// sides become one.
// flush() gives the stream the last of them.
class CopyRun {
 public:
  CopyRun(Stream& stream, LinkPurpose purpose) : stream_(stream), purpose_(purpose) {}

  // Contiguous tensors of one dtype and number of elements.
  void add(const at::Tensor& to, const at::Tensor& from);
  void flush();

 private:
  Stream& stream_;
  LinkPurpose purpose_;
  std::byte* to_ = nullptr;
  const std::byte* from_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace steppe::optim
