#include "steppe/comm/communicator.h"

#include <exception>

namespace steppe::comm {
namespace {

void wait_quietly(std::function<void()>& wait) noexcept {
  if (!wait) return;
  try {
    std::exchange(wait, nullptr)();
  } catch (const std::exception&) {
    // Unwinding already: the error that started it is the one to report.
  }
}

}  // namespace

Pending& Pending::operator=(Pending&& other) noexcept {
  if (this != &other) {
    wait_quietly(wait_);
    wait_ = std::exchange(other.wait_, nullptr);
  }
  return *this;
}

Pending::~Pending() {
  wait_quietly(wait_);
}

void Pending::wait() {
  // Forgotten first: a transfer can be awaited only once, even when it fails.
  if (wait_) std::exchange(wait_, nullptr)();
}

}  // namespace steppe::comm
