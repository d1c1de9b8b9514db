// Where masters, moments and gradients live, and the memory they live in. In host memory they lie unit behind
// unit in one plane per kind, so that a bucket which spans units is one copy per kind.
//
//                master                       moments          gradients ²
//   resident     the device ¹                 the device       the device
//   cpu          the host                     the host         the device, or the host
//   stream       the host ¹                   the host         the device, or the host
//   ¹ fp32 working weights double as masters: they stay on the device, and nothing is taken for them
//   ² fp32, or bf16 where working weights are (training.gradient_dtype)
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "steppe/memory/host_arena.h"
#include "steppe/ops/context.h"
#include "steppe/optim/parameter_rules.h"

namespace steppe::optim {

enum class Placement { kResident, kCpu, kStream };

struct StateOptions {
  Placement placement = Placement::kResident;
  bool host_gradients = false;  // not with kResident
  at::ScalarType moments_dtype = at::kFloat;
  at::ScalarType gradient_dtype = at::kFloat;  // of the accumulators
  ParameterRules rules;
  bool pin_memory = true;

  bool masters_are_working(at::ScalarType working) const {
    return working == at::kFloat && placement != Placement::kCpu;
  }
  bool on_host() const { return placement != Placement::kResident; }
  int64_t gradient_itemsize() const { return static_cast<int64_t>(c10::elementSize(gradient_dtype)); }
};

class StateMemory {
 public:
  // Trained elements of all shards of this rank, and all its gradient accumulators. Takes the host's part at
  // once. ValueError: host gradients with resident state, a moments dtype other than fp32 or bf16, a gradient
  // dtype other than fp32 or the working dtype.
  // RuntimeFailure when the host has not got that much.
  StateMemory(const StateOptions& options, const ops::OpContext& context, int64_t state_numel,
              int64_t grad_numel);

  // Zero-filled, in the order of the units; together no more than was announced.
  at::Tensor take_master(int64_t numel) { return take(master_, numel, at::kFloat); }
  at::Tensor take_m(int64_t numel) { return take(m_, numel, options_.moments_dtype); }
  at::Tensor take_v(int64_t numel) { return take(v_, numel, options_.moments_dtype); }
  at::Tensor take_gradient(int64_t numel);

  const StateOptions& options() const { return options_; }
  int64_t host_bytes() const;
  // What could not be had as it was asked for: memory that cannot be pinned.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  struct Plane {
    at::Tensor host;  // undefined: on the device, unit by unit
    int64_t taken = 0;
  };
  at::Tensor take(Plane& plane, int64_t numel, at::ScalarType dtype);
  void lay_out_state(int64_t state_numel);
  void lay_out_gradients(int64_t grad_numel);
  std::unique_ptr<memory::HostArena> make_arena(int64_t bytes, memory::Category category, const char* name);

  StateOptions options_;
  ops::OpContext context_;
  std::vector<std::string> warnings_;
  std::unique_ptr<memory::HostArena> state_arena_, grad_arena_;
  Plane master_, m_, v_, grad_;
};

}  // namespace steppe::optim
