// Every kind of expert dispatch on the same input, ranks as threads of this process, checked before they are
// timed; or on `meta`, one rank after another, for the bytes alone.
#pragma once

#include <ATen/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "steppe/ops/moe_dispatch/moe_dispatch.h"
#include "steppe/ops/moe_dispatch/routing_profile.h"

namespace steppe::cli {

struct DispatchBenchOptions {
  int64_t hidden = 512, intermediate = 512, num_experts = 32, top_k = 4;
  int64_t tokens = 1024;  // of a rank
  int expert_degree = 4;
  ops::RoutingProfile profile;
  ops::DispatchOptions dispatch;  // of the kinds that chunk or plan
  c10::ScalarType dtype = c10::kFloat;
  c10::ScalarType gradients = c10::kFloat;  // of weights: fp32 or dtype
  bool dry = false;
  bool keep = false;  // between the passes, what a run keeps that recomputes nothing
  int64_t samples = 10;
  std::vector<std::string> kinds;
  std::string timeline;  // file of a traced run of every kind; empty: none
};

// Of one kind and pass; the maximum over ranks.
struct DispatchBenchRow {
  std::string kind, pass;
  int64_t peak_bytes = 0;  // weights, gradients, input and output included; dx is in x's place
  int64_t dispatch_bytes = 0, expert_bytes = 0;  // peaks of the categories
  int64_t receive_bytes_max = 0;                 // rows that a rank gets of one chunk
  int64_t bound_bytes = 0;                       // what the destination slots of a pass can never exceed
  int64_t helpers_max = 0;                       // foreign experts of a rank
  double send_share = 0;         // of a chunk's routes over all sources: the fullest destination's
  double units = 0;              // expert products of R×H×I, over all ranks
  int64_t all_to_alls = 0;       // of activations, per chunk
  double plan_time_s = 0;        // of the plan of all chunks: the fastest of several
  std::optional<double> time_s;  // median
  // Of the traced run, a mean over ranks: while rows travelled, and of that while experts worked.
  std::optional<double> travelling_s, hidden_s;
};

// Throws RuntimeFailure when a kind's results are not those of `ep`, or ep's not those of fp64 loops.
std::vector<DispatchBenchRow> bench_dispatch(const DispatchBenchOptions& options);
const std::vector<std::string>& dispatch_bench_kinds();

}  // namespace steppe::cli
