#include "steppe/optim/host_link.h"

#include "steppe/base/error.h"
#include "steppe/kernels/backend.h"

namespace steppe::optim {

namespace {

Stream current_stream(const ops::OpContext& context) {
  if (context.device.is_meta()) return Stream::inert();
  if (!context.device.is_cuda()) return Stream::caller();
  return Stream::borrowed_cuda(context.device.index(), kernels::current_cuda_stream(context.empty({0})));
}

HostLink uncounted_link(const ops::OpContext& context) {
  if (context.device.is_meta()) return make_idle_link(context);
  if (context.device.is_cuda()) {
    const int device = context.device.index();
    return {current_stream(context), Stream::cuda(device), Stream::cuda(device)};
  }
  return {current_stream(context), Stream::worker("to device"), Stream::worker("to host")};
}

}  // namespace

HostLink make_host_link(const ops::OpContext& context) {
  auto link = uncounted_link(context);
  if (context.counters) {
    link.to_device.count_copies_in(&context.counters->link_bytes[LinkDirection::kHostToDevice]);
    link.to_host.count_copies_in(&context.counters->link_bytes[LinkDirection::kDeviceToHost]);
  }
  return link;
}

HostLink make_idle_link(const ops::OpContext& context) {
  return {current_stream(context), Stream::inert(), Stream::inert()};
}

void CopyRun::add(const at::Tensor& to, const at::Tensor& from) {
  STEPPE_ASSERT(to.numel() == from.numel() && to.scalar_type() == from.scalar_type() && to.is_contiguous() &&
                    from.is_contiguous(),
                "[optimizer] copies must be of one dtype and size");
  if (to.is_meta() || from.is_meta()) return stream_.copy(nullptr, nullptr, to.nbytes(), purpose_);
  if (to.numel() == 0) return;
  auto* to_begin = static_cast<std::byte*>(to.data_ptr());
  const auto* from_begin = static_cast<const std::byte*>(from.const_data_ptr());
  if (bytes_ > 0 && (to_ + bytes_ != to_begin || from_ + bytes_ != from_begin)) flush();
  if (bytes_ == 0) {
    to_ = to_begin;
    from_ = from_begin;
  }
  bytes_ += to.nbytes();
}

void CopyRun::flush() {
  stream_.copy(to_, from_, bytes_, purpose_);
  bytes_ = 0;
}

}  // namespace steppe::optim
