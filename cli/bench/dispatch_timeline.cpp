#include "cli/bench/dispatch_timeline.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <fstream>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "steppe/base/error.h"

namespace steppe::cli {
namespace {

double seconds_since(TimelineClock::time_point start) {
  return std::chrono::duration<double>(TimelineClock::now() - start).count();
}

// Spans in order, those that touch made one.
std::vector<Span> joined(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::vector<Span> out;
  for (const auto& span : spans) {
    if (!out.empty() && span.begin <= out.back().end)
      out.back().end = std::max(out.back().end, span.end);
    else
      out.push_back(span);
  }
  return out;
}

double length(const std::vector<Span>& spans) {
  double sum = 0;
  for (const auto& span : spans) sum += span.end - span.begin;
  return sum;
}

// Where this thread's products go.
thread_local std::vector<Span>* products = nullptr;
thread_local TimelineClock::time_point products_start;

struct Begun final : at::ObserverContext {
  double at = 0;
};

bool is_product(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  return name == "aten::mm" || name == "aten::addmm";
}

std::unique_ptr<at::ObserverContext> begin_product(const at::RecordFunction& function) {
  if (products == nullptr || !is_product(function)) return nullptr;
  auto begun = std::make_unique<Begun>();
  begun->at = seconds_since(products_start);
  return begun;
}

void end_product(const at::RecordFunction&, at::ObserverContext* context) {
  if (context == nullptr || products == nullptr) return;
  products->push_back({static_cast<Begun*>(context)->at, seconds_since(products_start)});
}

}  // namespace

double PassTimeline::travelling() const {
  return length(joined(exchanges));
}

double PassTimeline::hidden() const {
  const auto away = joined(exchanges), work = joined(products);
  double sum = 0;
  for (const auto& a : away)
    for (const auto& w : work) sum += std::max(0.0, std::min(a.end, w.end) - std::max(a.begin, w.begin));
  return sum;
}

ProductRecorder::ProductRecorder(TimelineClock::time_point start, std::vector<Span>& spans) {
  products = &spans, products_start = start;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(begin_product, end_product).scopes({at::RecordScope::FUNCTION}));
}

ProductRecorder::~ProductRecorder() {
  at::removeCallback(handle_);
  products = nullptr;
}

comm::Pending RecordingCommunicator::exchange(std::span<const at::Tensor> sends,
                                              std::span<const at::Tensor> receives) {
  const double begin = seconds_since(start_);
  auto inner = std::make_shared<comm::Pending>(inner_.exchange(sends, receives));
  // The caller waits for the thread that waits, so the end is the transfer's own and not the caller's.
  std::shared_future<void> done = std::async(std::launch::async, [this, inner, begin] {
    inner->wait();
    const std::lock_guard lock(mutex_);
    spans_.push_back({begin, seconds_since(start_)});
  });
  return comm::Pending([done] { done.get(); });
}

void write_timeline(const std::string& path, const std::vector<std::vector<PassTimeline>>& of_ranks) {
  auto events = nlohmann::ordered_json::array();
  const auto add = [&](const std::string& name, int rank, int row, const Span& span) {
    events.push_back({{"name", name},
                      {"ph", "X"},
                      {"pid", rank},
                      {"tid", row},
                      {"ts", 1e6 * span.begin},
                      {"dur", 1e6 * (span.end - span.begin)}});
  };
  const char* rows[] = {"pass", "experts", "exchanges"};
  for (const auto& passes : of_ranks)
    for (int row = 0; row < 3; ++row)
      events.push_back({{"name", "thread_name"},
                        {"ph", "M"},
                        {"pid", passes.front().rank},
                        {"tid", row},
                        {"args", {{"name", rows[row]}}}});
  for (const auto& passes : of_ranks)
    for (const auto& pass : passes) {
      add(pass.kind + " " + pass.pass, pass.rank, 0, pass.whole);
      for (const auto& span : joined(pass.products)) add("product", pass.rank, 1, span);
      for (const auto& span : pass.exchanges) add("exchange", pass.rank, 2, span);
    }
  std::ofstream file(path);
  file << nlohmann::ordered_json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump() << "\n";
  STEPPE_CHECK(file.good(), "[bench dispatch] cannot write the timeline {}", path);
}

}  // namespace steppe::cli
