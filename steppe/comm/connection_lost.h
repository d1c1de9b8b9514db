// What a rank throws when a peer goes away or does not answer in time: nearly always the consequence of what
// went wrong elsewhere.
#pragma once

#include <cstdint>
#include <string>

#include "steppe/base/error.h"

namespace steppe::comm {

enum class LossCause : uint8_t {
  kGone,  // it died, left, or was never reached
  kLate,  // it lives, for all this rank knows, and did not answer in time
};

class ConnectionLost : public RuntimeFailure {
 public:
  explicit ConnectionLost(const std::string& message, LossCause cause = LossCause::kGone)
      : RuntimeFailure(message), cause_(cause) {}
  LossCause cause() const { return cause_; }

 private:
  LossCause cause_;
};

}  // namespace steppe::comm
