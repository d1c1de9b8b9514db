// What kind of device `meta` stands for in a dry run, on this thread. Kernels allocate nothing, whatever the
// device, but for attention, each kind in its own way, and the ends of groups that are multiplied at once.
#pragma once

#include <c10/core/DeviceType.h>

namespace steppe::kernels {

c10::DeviceType meta_device();  // kCPU unless one is standing

class MetaStandsFor {
 public:
  explicit MetaStandsFor(c10::DeviceType device);
  ~MetaStandsFor();
  MetaStandsFor(const MetaStandsFor&) = delete;
  MetaStandsFor& operator=(const MetaStandsFor&) = delete;

 private:
  c10::DeviceType previous_;
};

}  // namespace steppe::kernels
