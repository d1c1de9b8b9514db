// A rank's account of its memory: live bytes by category and domain, the peak and who made it up, and on
// request the timeline of every allocation and release. One ledger per rank; a rank is a process, or a thread
// of a test. Blocks may be released on any thread; the ledger is safe for that, and cheap when uncontended.
//
// Lifetime: every block keeps a pointer to the ledger that booked it. A ledger that is destroyed while blocks
// of its are alive prints who they are and aborts the process: the pointer would dangle. Declare the ledger
// before the tensors, and join threads that may still hold some.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "steppe/memory/category.h"

namespace steppe::memory {

// One line of the timeline: an allocation (bytes > 0), a release (bytes < 0) or a mark (bytes == 0).
struct Event {
  int64_t bytes = 0;
  Category category = Category::kUntagged;
  Domain domain = Domain::kDevice;
  int32_t mark = -1;       // index into Timeline::marks, or -1
  int64_t live_bytes = 0;  // of the domain, after the event
  bool operator==(const Event&) const = default;
};

struct Timeline {
  std::vector<Event> events;
  std::vector<std::string> marks;
  // {"categories": [name, …], "domains": [name, …], "events": [[bytes, category, domain, live], …],
  //  "marks": [[number of events before it, text], …]}; category and domain index the lists of names.
  std::string to_json() const;
};

struct Peak {
  int64_t bytes = 0;
  BytesByCategory by_category{};  // live bytes per category at the instant of the peak; they sum to `bytes`
  std::string mark;               // the last mark before the peak
};

class Ledger {
 public:
  Ledger() = default;
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  void allocated(int64_t bytes, Category category, Domain domain);
  void released(int64_t bytes, Category category, Domain domain);

  int64_t live_bytes(Domain domain = Domain::kDevice) const;
  BytesByCategory live_by_category(Domain domain = Domain::kDevice) const;
  Peak peak(Domain domain = Domain::kDevice) const;
  // The highest each category ever was by itself since the last reset (not at one instant: they do not sum).
  BytesByCategory peak_by_own_category(Domain domain = Domain::kDevice) const;
  int64_t num_allocations() const;
  int64_t num_live_blocks() const;
  // The peak starts again from what is live now.
  void reset_peak();

  // A named instant: layer and pass. Cheap when no timeline is recorded.
  void mark(std::string text);
  // A part of what the last mark named, "chunk 3 of 10"; empty: no part of it. A peak's mark says it, a
  // timeline does not.
  void mark_part(std::string_view text);
  void start_timeline();
  Timeline stop_timeline();

 private:
  struct DomainState {
    int64_t live = 0;
    BytesByCategory live_by{};
    int64_t peak = 0;
    BytesByCategory peak_by{};
    BytesByCategory own_peak{};
    // The peak was reached under the current mark; its text is copied only when another mark follows.
    bool peak_under_current_mark = true;
    std::string peak_mark;
  };
  void record(int64_t bytes, Category category, Domain domain);
  void leave_mark();
  const DomainState& state(Domain domain) const { return domains_[static_cast<int>(domain)]; }

  mutable std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  std::array<DomainState, kNumDomains> domains_;
  std::string current_mark_;        // with its part
  size_t current_mark_length_ = 0;  // without
  int64_t num_allocations_ = 0;
  int64_t num_live_blocks_ = 0;
  bool recording_ = false;
  Timeline timeline_;
};

}  // namespace steppe::memory
