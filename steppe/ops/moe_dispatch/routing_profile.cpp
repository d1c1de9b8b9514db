#include "steppe/ops/moe_dispatch/routing_profile.h"

#include <charconv>

#include "steppe/base/error.h"

namespace steppe::ops {
namespace {

// splitmix64 (Steele, Lea, Flood 2014).
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

bool whole_number(std::string_view text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

}  // namespace

RoutingProfile RoutingProfile::parse(std::string_view text) {
  if (text == "balanced") return {Kind::kBalanced};
  if (text == "one") return {Kind::kOne};
  if (text == "stride") return {Kind::kStride};
  if (text == "random") return {Kind::kRandom};
  RoutingProfile hot{Kind::kHot};
  const auto slash = text.find('/');
  const bool good = slash != std::string_view::npos && whole_number(text.substr(0, slash), hot.hot_percent) &&
                    whole_number(text.substr(slash + 1), hot.hot_experts) && hot.hot_percent >= 0 &&
                    hot.hot_percent <= 100 && hot.hot_experts >= 1;
  STEPPE_CHECK_VALUE(
      good,
      "[routing profile] must be balanced, random, one, stride, or r/h (r percent of the tokens on h "
      "hot experts), got \"{}\"",
      text);
  return hot;
}

std::string RoutingProfile::name() const {
  switch (kind) {
    case Kind::kBalanced:
      return "balanced";
    case Kind::kOne:
      return "one";
    case Kind::kStride:
      return "stride";
    case Kind::kRandom:
      return "random";
    case Kind::kHot:
      break;
  }
  return fmt::format("{}/{}", hot_percent, hot_experts);
}

void RoutingProfile::experts_of(const Shape& shape, int64_t token, std::span<int32_t> experts_k) const {
  const auto k = static_cast<int64_t>(experts_k.size()), num_experts = shape.num_experts;
  const bool hot = token < hot_percent * shape.num_tokens / 100;
  for (int64_t j = 0; j < k; ++j) {
    int64_t expert = 0;
    switch (kind) {
      case Kind::kBalanced:
        expert = (token + j) % num_experts;
        break;
      case Kind::kOne:
        break;
      case Kind::kStride:
        expert = (token % shape.period * shape.experts_per_rank + j % shape.experts_per_rank) % num_experts;
        break;
      case Kind::kRandom:
        expert = static_cast<int64_t>(mixed(mixed(shape.seed) + static_cast<uint64_t>(token * k + j)) %
                                      static_cast<uint64_t>(num_experts));
        break;
      case Kind::kHot:
        expert = hot || hot_experts >= num_experts ? j % hot_experts % num_experts
                                                   : hot_experts + (token + j) % (num_experts - hot_experts);
        break;
    }
    experts_k[j] = static_cast<int32_t>(expert);
  }
}

}  // namespace steppe::ops
