#include "steppe/memory/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

namespace steppe::memory {
namespace {

// Held for tens of nanoseconds; yields after a while, since ranks of a test outnumber the cores.
class SpinGuard {
 public:
  explicit SpinGuard(std::atomic_flag& flag) : flag_(flag) {
    for (int spins = 0; flag_.test_and_set(std::memory_order_acquire);) {
      if (++spins > 64) std::this_thread::yield();
    }
  }
  ~SpinGuard() { flag_.clear(std::memory_order_release); }
  SpinGuard(const SpinGuard&) = delete;
  SpinGuard& operator=(const SpinGuard&) = delete;

 private:
  std::atomic_flag& flag_;
};

}  // namespace

Ledger::~Ledger() {
  if (num_live_blocks_ == 0) return;
  std::string who;
  for (int domain = 0; domain < kNumDomains; ++domain) {
    for (int category = 0; category < kNumCategories; ++category) {
      const int64_t bytes = domains_[domain].live_by[category];
      if (bytes == 0) continue;
      fmt::format_to(std::back_inserter(who), " {}/{}={} B", domain_name(static_cast<Domain>(domain)),
                     category_name(static_cast<Category>(category)), bytes);
    }
  }
  std::fprintf(stderr, "[memory] a Ledger was destroyed while %lld blocks that it booked are alive:%s\n",
               static_cast<long long>(num_live_blocks_), who.c_str());
  std::abort();
}

void Ledger::record(int64_t bytes, Category category, Domain domain) {
  DomainState& state = domains_[static_cast<int>(domain)];
  const auto index = static_cast<size_t>(category);
  SpinGuard guard(busy_);
  state.live += bytes;
  state.live_by[index] += bytes;
  if (bytes > 0) {
    ++num_allocations_;
    ++num_live_blocks_;
    state.own_peak[index] = std::max(state.own_peak[index], state.live_by[index]);
    if (state.live > state.peak) {
      state.peak = state.live;
      state.peak_by = state.live_by;
      state.peak_under_current_mark = true;
    }
  } else {
    --num_live_blocks_;
  }
  if (recording_) timeline_.events.push_back({bytes, category, domain, -1, state.live});
}

void Ledger::allocated(int64_t bytes, Category category, Domain domain) {
  if (bytes > 0) record(bytes, category, domain);
}

void Ledger::released(int64_t bytes, Category category, Domain domain) {
  if (bytes > 0) record(-bytes, category, domain);
}

int64_t Ledger::live_bytes(Domain domain) const {
  SpinGuard guard(busy_);
  return state(domain).live;
}

BytesByCategory Ledger::live_by_category(Domain domain) const {
  SpinGuard guard(busy_);
  return state(domain).live_by;
}

Peak Ledger::peak(Domain domain) const {
  SpinGuard guard(busy_);
  const DomainState& of = state(domain);
  return {of.peak, of.peak_by, of.peak_under_current_mark ? current_mark_ : of.peak_mark};
}

BytesByCategory Ledger::peak_by_own_category(Domain domain) const {
  SpinGuard guard(busy_);
  return state(domain).own_peak;
}

int64_t Ledger::num_allocations() const {
  SpinGuard guard(busy_);
  return num_allocations_;
}

int64_t Ledger::num_live_blocks() const {
  SpinGuard guard(busy_);
  return num_live_blocks_;
}

void Ledger::reset_peak() {
  SpinGuard guard(busy_);
  for (DomainState& state : domains_) {
    state.peak = state.live;
    state.peak_by = state.own_peak = state.live_by;
    state.peak_under_current_mark = true;
  }
}

void Ledger::leave_mark() {
  for (DomainState& state : domains_) {
    if (!std::exchange(state.peak_under_current_mark, false)) continue;
    state.peak_mark = current_mark_;
  }
}

void Ledger::mark_part(std::string_view text) {
  SpinGuard guard(busy_);
  leave_mark();
  current_mark_.resize(current_mark_length_);
  if (!text.empty()) current_mark_.append(", ").append(text);
}

void Ledger::mark(std::string text) {
  SpinGuard guard(busy_);
  leave_mark();
  if (recording_) {
    timeline_.events.push_back({0, Category::kUntagged, Domain::kDevice,
                                static_cast<int32_t>(timeline_.marks.size()), state(Domain::kDevice).live});
    timeline_.marks.push_back(text);
  }
  current_mark_ = std::move(text);
  current_mark_length_ = current_mark_.size();
}

void Ledger::start_timeline() {
  SpinGuard guard(busy_);
  timeline_ = {};
  recording_ = true;
}

Timeline Ledger::stop_timeline() {
  SpinGuard guard(busy_);
  recording_ = false;
  return std::exchange(timeline_, {});
}

}  // namespace steppe::memory
