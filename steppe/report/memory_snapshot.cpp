#include "steppe/report/memory_snapshot.h"

#include <map>
#include <utility>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/report/pickle_writer.h"

namespace steppe::report {
namespace {

constexpr int64_t kPieceElements = 1000;

struct Block {
  int64_t address = 0, bytes = 0;
  int32_t category = 0;
  uint32_t frames = 0;  // the pickle's name of its stack
  bool alive = false;
};

// Writes the trace of one domain, and remembers the blocks that make up its segment.
class Device {
 public:
  Device(PickleWriter& out, const TimelineFile& timeline, int32_t domain)
      : out_(out), timeline_(timeline), domain_(domain) {}

  void write_trace() {
    out_.begin_list();
    allocate_start();
    for (size_t i = 0; i < timeline_.events.size(); ++i) {
      const auto& event = timeline_.events[i];
      if (event.domain != domain_) continue;
      const auto& phase = timeline_.phase_of(static_cast<int64_t>(i));
      if (event.bytes > 0) {
        allocate(event.category, event.bytes, phase);
      } else {
        release(event.category, -event.bytes);
      }
    }
    // The viewer colours by category once there is one called "unknown".
    if (used()) {
      begin_entry("snapshot", "unknown");
      end_entry(0, 0);
    }
    out_.end_list();
  }

  void write_segment() {
    int64_t active = 0;
    for (const auto& block : blocks_) active += block.alive ? block.bytes : 0;
    out_.begin_dict();
    put("device", domain_), put("address", kBase), put("total_size", end_ - kBase), put("stream", 0);
    put("allocated_size", active), put("active_size", active), put("requested_size", active);
    out_.text("segment_type"), out_.text("large");
    out_.text("frames"), out_.begin_list(), out_.end_list();
    out_.text("blocks"), out_.begin_list();
    int64_t written = 0;
    for (const auto& block : blocks_) {
      if (++written % kPieceElements == 0) out_.next_piece();
      out_.begin_dict();
      put("address", block.address), put("size", block.bytes), put("requested_size", block.bytes);
      out_.text("state"), out_.text(block.alive ? "active_allocated" : "inactive");
      out_.text("frames"), out_.refer(block.frames);
      out_.end_dict();
    }
    out_.end_list();
    out_.end_dict();
  }

  bool used() const { return !blocks_.empty(); }

 private:
  static constexpr int64_t kBase = int64_t{1} << 32;

  void put(std::string_view key, int64_t value) { out_.text(key), out_.integer(value); }

  // What the step releases of what it found, block by block; the rest of a category as one block.
  void allocate_start() {
    std::map<std::pair<int32_t, int64_t>, int64_t> alive;
    auto rest = timeline_.start[static_cast<size_t>(domain_)];
    for (const auto& event : timeline_.events) {
      if (event.domain != domain_) continue;
      auto& count = alive[{event.category, std::abs(event.bytes)}];
      if (event.bytes > 0) {
        ++count;
      } else if (count > 0) {
        --count;
      } else {
        allocate(event.category, -event.bytes, "before the step");
        rest[static_cast<size_t>(event.category)] += event.bytes;
      }
    }
    for (size_t c = 0; c < rest.size(); ++c) {
      if (rest[c] > 0) allocate(static_cast<int32_t>(c), rest[c], "before the step");
    }
  }

  void allocate(int32_t category, int64_t bytes, const std::string& phase) {
    auto& free = free_[bytes];
    size_t index = blocks_.size();
    if (free.empty()) {
      blocks_.push_back({end_, bytes});
      end_ += bytes;
    } else {
      index = free.back();
      free.pop_back();
    }
    auto& block = blocks_[index];
    block.category = category, block.alive = true;
    alive_[{category, bytes}].push_back(index);
    begin_entry("alloc", timeline_.categories[static_cast<size_t>(category)]);
    block.frames = write_frames(phase, category);
    end_entry(block.address, bytes);
  }

  void release(int32_t category, int64_t bytes) {
    auto& alive = alive_[{category, bytes}];
    STEPPE_ASSERT(!alive.empty(), "[report] a release of {} bytes must match a block", bytes);
    auto& block = blocks_[alive.back()];
    block.alive = false;
    free_[bytes].push_back(alive.back());
    alive.pop_back();
    for (const char* action : {"free_requested", "free_completed"}) {
      begin_entry(action, timeline_.categories[static_cast<size_t>(category)]);
      out_.text("frames"), out_.refer(block.frames);
      end_entry(block.address, bytes);
    }
  }

  void begin_entry(std::string_view action, std::string_view category) {
    if (++num_entries_ % kPieceElements == 0) out_.next_piece();
    out_.begin_dict();
    out_.text("action"), out_.text(action);
    out_.text("category"), out_.text(category);
  }

  void end_entry(int64_t address, int64_t bytes) {
    put("addr", address), put("size", bytes), put("stream", 0), put("time_us", num_entries_);
    out_.end_dict();
  }

  // "frames" of the entry at hand: the phase as the file, the category as the function.
  uint32_t write_frames(const std::string& phase, int32_t category) {
    out_.text("frames");
    const auto [place, fresh] = frames_.try_emplace({phase, category}, 0);
    if (!fresh) {
      out_.refer(place->second);
      return place->second;
    }
    out_.begin_list();
    out_.begin_dict();
    out_.text("filename"), out_.text(phase.empty() ? "step begin" : phase);
    put("line", 0);
    out_.text("name"), out_.text(timeline_.categories[static_cast<size_t>(category)]);
    out_.end_dict();
    out_.end_list();
    return place->second = out_.remember();
  }

  PickleWriter& out_;
  const TimelineFile& timeline_;
  int32_t domain_;
  int64_t end_ = kBase;
  int64_t num_entries_ = 0;
  std::vector<Block> blocks_;                                         // in order of addresses
  std::map<int64_t, std::vector<size_t>> free_;                       // by size
  std::map<std::pair<int32_t, int64_t>, std::vector<size_t>> alive_;  // by category and size
  std::map<std::pair<std::string, int32_t>, uint32_t> frames_;
};

}  // namespace

std::string memory_snapshot(const TimelineFile& timeline) {
  PickleWriter out;
  std::vector<Device> devices;
  for (size_t d = 0; d < timeline.domains.size(); ++d)
    devices.emplace_back(out, timeline, static_cast<int32_t>(d));
  out.begin_dict();
  out.text("device_traces"), out.begin_list();
  for (auto& device : devices) device.write_trace();
  out.end_list();
  out.text("segments"), out.begin_list();
  for (auto& device : devices) {
    if (device.used()) device.write_segment();
  }
  out.end_list();
  out.end_dict();
  return std::move(out).finish();
}

}  // namespace steppe::report
