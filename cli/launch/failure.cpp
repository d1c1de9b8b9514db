#include "cli/launch/failure.h"

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "steppe/base/error.h"
#include "steppe/comm/connection_lost.h"

namespace steppe::launch {
namespace {

using nlohmann::json;

constexpr const char* kFailureKey = "failure";

std::string encode(const Failure& failure) {
  const json value = {{"rank", failure.rank},
                      {"message", failure.message},
                      {"connection", failure.kind == FailureKind::kConnection},
                      {"timestamp", failure.timestamp > 0 ? failure.timestamp : seconds_since_epoch()}};
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

Failure decode(const std::string& text) {
  const json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  STEPPE_ASSERT(value.is_object(), "[launch] the store's failure key holds \"{}\"", text);
  return {value.value("rank", -1), value.value("message", ""),
          value.value("connection", false) ? FailureKind::kConnection : FailureKind::kCause,
          value.value("timestamp", std::int64_t{0})};
}

}  // namespace

Failure report_failure(c10d::Store& store, const Failure& failure) {
  return decode(store.compareSet(kFailureKey, std::string(), encode(failure)));
}

Failure report_failure(c10d::Store& store, int rank, const std::string& message) {
  return report_failure(store, Failure{.rank = rank, .message = message});
}

std::optional<Failure> find_failure(c10d::Store& store) {
  if (!store.check({kFailureKey})) return std::nullopt;
  return decode(store.get_to_str(kFailureKey));
}

bool is_connection_loss(const std::exception& error) {
  if (dynamic_cast<const comm::ConnectionLost*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::DistError*>(&error) != nullptr) return true;
  const std::string_view text = error.what();
  for (const char* words : {"Connection closed by peer", "Connection reset by peer", "Connection refused",
                            "Broken pipe", "Timed out waiting", "NCCL", "Socket Timeout", "gloo/transport"}) {
    if (text.find(words) != std::string_view::npos) return true;
  }
  return false;
}

ErrorReport describe(const std::exception& error) {
  ErrorReport report;
  report.details = error.what();
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  report.message = torch_error != nullptr ? torch_error->what_without_backtrace() : report.details;
  report.timestamp = seconds_since_epoch();
  return report;
}

}  // namespace steppe::launch
