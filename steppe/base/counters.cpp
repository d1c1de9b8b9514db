#include "steppe/base/counters.h"

#include "steppe/base/error.h"

namespace steppe {

std::string_view name(FlopKind kind) {
  switch (kind) {
    case FlopKind::kAttention:
      return "attention";
    case FlopKind::kDense:
      return "dense";
    case FlopKind::kRouter:
      return "router";
    case FlopKind::kExpert:
      return "expert";
    case FlopKind::kVocab:
      return "vocab";
    case FlopKind::kOptimizer:
      return "optimizer";
    case FlopKind::kCount:
      break;
  }
  throw InternalError(fmt::format("[counters] no FlopKind {}", static_cast<int>(kind)));
}

std::string_view name(WirePurpose purpose) {
  switch (purpose) {
    case WirePurpose::kWeights:
      return "weights";
    case WirePurpose::kDispatch:
      return "dispatch";
    case WirePurpose::kSequence:
      return "sequence";
    case WirePurpose::kVocab:
      return "vocab";
    case WirePurpose::kGradients:
      return "gradients";
    case WirePurpose::kReplicas:
      return "replicas";
    case WirePurpose::kControl:
      return "control";
    case WirePurpose::kCount:
      break;
  }
  throw InternalError(fmt::format("[counters] no WirePurpose {}", static_cast<int>(purpose)));
}

std::string_view name(LinkDirection direction) {
  switch (direction) {
    case LinkDirection::kHostToDevice:
      return "h2d";
    case LinkDirection::kDeviceToHost:
      return "d2h";
    case LinkDirection::kCount:
      break;
  }
  throw InternalError(fmt::format("[counters] no LinkDirection {}", static_cast<int>(direction)));
}

std::string_view name(LinkPurpose purpose) {
  switch (purpose) {
    case LinkPurpose::kBoundary:
      return "boundary";
    case LinkPurpose::kSaved:
      return "saved";
    case LinkPurpose::kGradients:
      return "gradients";
    case LinkPurpose::kOptimizer:
      return "optimizer";
    case LinkPurpose::kWeights:
      return "weights";
    case LinkPurpose::kControl:
      return "control";
    case LinkPurpose::kCount:
      break;
  }
  throw InternalError(fmt::format("[counters] no LinkPurpose {}", static_cast<int>(purpose)));
}

LinkTally& LinkTally::operator+=(const LinkTally& other) {
  for (std::size_t i = 0; i < ways_.size(); ++i) ways_[i] += other.ways_[i];
  return *this;
}

LinkTally& LinkTally::operator-=(const LinkTally& other) {
  for (std::size_t i = 0; i < ways_.size(); ++i) ways_[i] -= other.ways_[i];
  return *this;
}

void Counters::reset() {
  flops.reset();
  wire_bytes.reset();
  link_bytes.reset();
}

Counters& Counters::operator+=(const Counters& other) {
  flops += other.flops;
  wire_bytes += other.wire_bytes;
  link_bytes += other.link_bytes;
  return *this;
}

Counters& Counters::operator-=(const Counters& other) {
  flops -= other.flops;
  wire_bytes -= other.wire_bytes;
  link_bytes -= other.link_bytes;
  return *this;
}

}  // namespace steppe
