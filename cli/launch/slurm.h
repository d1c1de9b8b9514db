// Slurm's compressed lists.
#pragma once

#include <string>
#include <vector>

namespace steppe::launch {

// The first host of a node list: "gpu[003-008,012],login1" -> "gpu003"; brackets may be several
// ("rack[1-2]node[07,09]" -> "rack1node07"). Throws ValueError on an empty or unbalanced list.
std::string first_host(const std::string& nodelist);

// Tasks of each node: "2(x3),1" -> {2, 2, 2, 1}. Throws ValueError when unreadable.
std::vector<int> tasks_per_node(const std::string& list);

}  // namespace steppe::launch
