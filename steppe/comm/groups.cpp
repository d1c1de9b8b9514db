#include "steppe/comm/groups.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/comm/gloo_communicator.h"
#include "steppe/comm/local_communicator.h"
#include "steppe/comm/nccl_communicator.h"
#include "steppe/comm/shape_only_communicator.h"
#include "steppe/comm/shared_memory_communicator.h"
#include "steppe/comm/store_gather.h"

namespace steppe::comm {
namespace {

using layout::Axis;
using layout::RankLayout;

// One of a rank's groups.
struct Membership {
  std::string name;
  int rank;                // within the group
  std::vector<int> ranks;  // global
};

Membership along(const RankLayout& layout, std::string name, Axis axis) {
  if (layout.num_groups(axis) > 1) name += fmt::format(".{}", layout.group_index(axis));
  return {std::move(name), layout.index_in_group(axis), layout.group(axis)};
}

Membership across(const RankLayout& layout, std::string name, Axis axis) {
  if (layout.degree(axis) > 1) name += fmt::format(".{}", layout.index_in_group(axis));
  return {std::move(name), layout.group_index(axis), layout.replicas(axis)};
}

// Makes every communicator, in one order on all ranks: two groups that share ranks then connect in the same
// order on these, so no cycle of waiting can arise.
template <typename Make>
Groups make_all(const RankLayout& layout, Make&& make) {
  Groups groups;
  groups.control = make(along(layout, "control", Axis::kWorld));
  groups.weights = make(along(layout, "weights", Axis::kWorld));
  groups.gradients = make(along(layout, "gradients", Axis::kWorld));
  groups.sequence = make(along(layout, "sequence", Axis::kSequence));
  groups.expert = make(along(layout, "expert", Axis::kExpert));
  groups.expert_replicas = make(across(layout, "expert_replicas", Axis::kExpert));
  groups.vocab = make(along(layout, "vocab", Axis::kVocab));
  groups.vocab_replicas = make(across(layout, "vocab_replicas", Axis::kVocab));
  return groups;
}

// Names the network this process sees: the machine since its boot, and the network namespace on it.
std::string network_identity() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  std::array<char, 64> name_space{};
  const ssize_t length = readlink("/proc/self/ns/net", name_space.data(), name_space.size());
  if (boot_id.empty() || length <= 0) return {};
  return boot_id + "/" + std::string(name_space.data(), static_cast<size_t>(length));
}

// Whether all ranks share one network, so that loopback reaches everyone. Collective over the store.
bool agree_on_loopback(const RankLayout& layout, c10d::Store& store, std::chrono::milliseconds timeout) {
  const std::string mine = network_identity();
  try {
    const auto all =
        gather_through_store(store, "network", layout.rank(), layout.world_size(), mine, timeout);
    return !mine.empty() && std::ranges::count(all, mine) == layout.world_size();
  } catch (const std::exception& error) {
    throw RuntimeFailure(
        fmt::format("[comm] rank {} of {}: the ranks did not all reach the store within {} s: {}",
                    layout.rank(), layout.world_size(), timeout.count() / 1000.0, error.what()));
  }
}

// A name space of its own for each call, so that no rank finds the addresses of an earlier one.
c10::intrusive_ptr<c10d::Store> fresh_names(const RankLayout& layout,
                                            const c10::intrusive_ptr<c10d::Store>& store) {
  const int64_t call = store->add(fmt::format("steppe/groups/{}", layout.rank()), 1);
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("steppe/groups/call{}", call), store);
}

}  // namespace

Groups make_groups(const RankLayout& layout, const c10::intrusive_ptr<c10d::Store>& store,
                   std::chrono::milliseconds timeout, bool cuda) {
  const at::DeviceType device = cuda ? at::kCUDA : at::kCPU;
  GlooOptions options{.timeout = timeout};
  bool shared_memory = false;
  c10::intrusive_ptr<c10d::Store> names;
  if (layout.world_size() > 1) {
    STEPPE_CHECK_VALUE(store.defined(), "[comm] {} ranks need a store to meet at, got none",
                       layout.world_size());
    names = fresh_names(layout, store);
    options.loopback = agree_on_loopback(layout, *names, timeout);
    shared_memory =
        options.loopback && ranks_share_memory(layout.rank(), layout.world_size(), *names, timeout);
  }
  return make_all(layout, [&](Membership member) -> std::unique_ptr<Communicator> {
    const bool carries_tensors = member.name != "control";
    if (member.ranks.size() == 1) {
      return std::make_unique<LocalCommunicator>(member.name, carries_tensors ? device : at::kCPU);
    }
    std::unique_ptr<Communicator> host;
    if (shared_memory) {
      host =
          std::make_unique<SharedMemoryCommunicator>(member.name, member.rank, member.ranks, names, timeout);
    } else {
      host = std::make_unique<GlooCommunicator>(member.name, member.rank, member.ranks, names, options);
    }
    if (!cuda || !carries_tensors) return host;
    return make_nccl_communicator(std::move(host), names, timeout);
  });
}

Groups make_shape_only_groups(const RankLayout& layout) {
  return make_all(layout, [](Membership member) -> std::unique_ptr<Communicator> {
    return std::make_unique<ShapeOnlyCommunicator>(member.name, member.rank,
                                                   static_cast<int>(member.ranks.size()));
  });
}

}  // namespace steppe::comm
