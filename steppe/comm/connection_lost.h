// What a rank throws when a peer goes away or does not answer in time: nearly always the consequence of what
// went wrong elsewhere.
#pragma once

#include "steppe/base/error.h"

namespace steppe::comm {

class ConnectionLost : public RuntimeFailure {
 public:
  using RuntimeFailure::RuntimeFailure;
};

}  // namespace steppe::comm
