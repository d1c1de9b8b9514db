// Texts over a communicator that carries host integers: what failed, which file was chosen.
#pragma once

#include <string>
#include <vector>

#include "steppe/comm/communicator.h"

namespace steppe::train {

// Every rank's text, in rank order. Two exchanges of host integers.
std::vector<std::string> all_gather_text(comm::Communicator& group, const std::string& text);

}  // namespace steppe::train
