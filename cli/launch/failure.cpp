#include "cli/launch/failure.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <initializer_list>
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
                      {"kind", static_cast<int>(failure.kind)},
                      {"timestamp", failure.timestamp > 0 ? failure.timestamp : seconds_since_epoch()}};
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

Failure decode(const std::string& text) {
  const json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  STEPPE_ASSERT(value.is_object(), "[launch] the store's failure key holds \"{}\"", text);
  return {value.value("rank", -1), value.value("message", ""),
          static_cast<FailureKind>(value.value("kind", 0)), value.value("timestamp", std::int64_t{0})};
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

FailureKind kind_of(const std::exception& error) {
  if (const auto* lost = dynamic_cast<const comm::ConnectionLost*>(&error)) {
    return lost->cause() == comm::LossCause::kLate ? FailureKind::kLatePeer : FailureKind::kConnection;
  }
  const std::string_view text = error.what();
  const auto says = [text](std::initializer_list<std::string_view> phrases) {
    return std::ranges::any_of(phrases, [text](auto words) { return text.find(words) != text.npos; });
  };
  if (says({"Timed out waiting", "Socket Timeout"})) return FailureKind::kLatePeer;
  const bool lost = dynamic_cast<const c10::DistError*>(&error) != nullptr ||
                    says({"Connection closed by peer", "Connection reset by peer", "Connection refused",
                          "Broken pipe", "NCCL", "gloo/transport"});
  return lost ? FailureKind::kConnection : FailureKind::kCause;
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
