#include "steppe/comm/collectives.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <string_view>
#include <utility>

#include "steppe/base/error.h"

namespace steppe::comm {
namespace {

void check_tensor(const Communicator& group, std::string_view function, std::string_view name,
                  const at::Tensor& tensor) {
  STEPPE_CHECK_VALUE(tensor.defined() && tensor.dim() >= 1 && tensor.is_contiguous(),
                     "[comm {}] {}: {} must be a contiguous tensor of one dim or more", group.name(),
                     function, name);
}

// `whole` cut into one piece of rows[p] rows for each rank p.
std::vector<at::Tensor> cut(const Communicator& group, std::string_view function, std::string_view name,
                            const at::Tensor& whole, std::span<const int64_t> rows) {
  check_tensor(group, function, name, whole);
  STEPPE_CHECK_VALUE(rows.size() == static_cast<size_t>(group.size()),
                     "[comm {}] {}: the rows of {} need one entry for each of {} ranks, got {}", group.name(),
                     function, name, group.size(), rows.size());
  const bool negative = std::any_of(rows.begin(), rows.end(), [](int64_t n) { return n < 0; });
  const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  STEPPE_CHECK_VALUE(!negative && whole.size(0) == total,
                     "[comm {}] {}: {}.size(0) must be the sum of its rows per rank, {}, got {}",
                     group.name(), function, name, total, whole.size(0));
  std::vector<at::Tensor> pieces;
  int64_t begin = 0;
  for (const int64_t n : rows) {
    pieces.push_back(whole.narrow(0, begin, n));
    begin += n;
  }
  return pieces;
}

void check_same_rows(const Communicator& group, std::string_view function, const at::Tensor& a,
                     const at::Tensor& b) {
  STEPPE_CHECK_VALUE(a.scalar_type() == b.scalar_type() && a.sizes().slice(1) == b.sizes().slice(1),
                     "[comm {}] {}: both tensors must have rows of one dtype and shape, got {} {} and {} {}",
                     group.name(), function, at::toString(a.scalar_type()), fmt::join(a.sizes(), "×"),
                     at::toString(b.scalar_type()), fmt::join(b.sizes(), "×"));
}

std::vector<double> as_doubles(std::span<const int64_t> bits) {
  std::vector<double> values;
  for (const int64_t value : bits) values.push_back(std::bit_cast<double>(value));
  return values;
}

// everyone: size() lists of one length, one after another.
template <typename T>
std::vector<T> sum_lists(std::span<const T> everyone, size_t length) {
  std::vector<T> sums(length, T{0});
  for (size_t i = 0; i < everyone.size(); ++i) sums[i % length] += everyone[i];
  return sums;
}

}  // namespace

Pending all_gather_rows(Communicator& group, const at::Tensor& full, const at::Tensor& shard,
                        std::span<const int64_t> rows) {
  constexpr std::string_view kName = "all_gather_rows";
  const std::vector<at::Tensor> receives = cut(group, kName, "full", full, rows);
  check_tensor(group, kName, "shard", shard);
  check_same_rows(group, kName, full, shard);
  STEPPE_CHECK_VALUE(shard.size(0) == rows[group.rank()], "[comm {}] {}: shard.size(0) must be {}, got {}",
                     group.name(), kName, rows[group.rank()], shard.size(0));
  const std::vector<at::Tensor> sends(receives.size(), shard);
  return group.exchange(sends, receives);
}

Pending all_gather(Communicator& group, const at::Tensor& full, const at::Tensor& shard) {
  check_tensor(group, "all_gather", "shard", shard);
  const std::vector<int64_t> rows(static_cast<size_t>(group.size()), shard.size(0));
  return all_gather_rows(group, full, shard, rows);
}

Pending all_to_all_rows(Communicator& group, const at::Tensor& out, const at::Tensor& in,
                        std::span<const int64_t> receive_rows, std::span<const int64_t> send_rows) {
  constexpr std::string_view kName = "all_to_all_rows";
  const std::vector<at::Tensor> receives = cut(group, kName, "out", out, receive_rows);
  const std::vector<at::Tensor> sends = cut(group, kName, "in", in, send_rows);
  check_same_rows(group, kName, out, in);
  return group.exchange(sends, receives);
}

PartsOfSum exchange_parts(Communicator& group, const at::Tensor& full, const at::Tensor& scratch) {
  constexpr std::string_view kName = "exchange_parts";
  check_tensor(group, kName, "full", full);
  const std::vector<int64_t> rows(static_cast<size_t>(group.size()), full.size(0) / group.size());
  const std::vector<at::Tensor> sends = cut(group, kName, "full", full, rows);
  if (group.size() == 1) return {sends, Pending()};
  std::vector<at::Tensor> parts = cut(group, kName, "scratch", scratch, rows);
  check_same_rows(group, kName, full, scratch);
  parts[group.rank()] = sends[group.rank()];
  auto arriving = group.exchange(sends, parts);
  return {std::move(parts), std::move(arriving)};
}

std::vector<int64_t> all_reduce_sum(Communicator& group, std::span<const int64_t> values) {
  return sum_lists<int64_t>(group.all_gather_host(values), values.size());
}

std::vector<double> all_reduce_sum(Communicator& group, std::span<const double> values) {
  std::vector<int64_t> bits;
  for (const double value : values) bits.push_back(std::bit_cast<int64_t>(value));
  return sum_lists<double>(as_doubles(group.all_gather_host(bits)), values.size());
}

double all_reduce_sum(Communicator& group, double value) {
  return all_reduce_sum(group, std::span<const double>(&value, 1))[0];
}

int64_t all_reduce_max(Communicator& group, int64_t value) {
  const std::vector<int64_t> everyone = group.all_gather_host({&value, 1});
  return *std::max_element(everyone.begin(), everyone.end());
}

}  // namespace steppe::comm
