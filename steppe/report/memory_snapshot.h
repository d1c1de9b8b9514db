// A timeline in the form of torch.cuda.memory._dump_snapshot, which PyTorch's memory viewer and
// torch.cuda._memory_viz open. Device 0 is the device, device 1 the host.
//
// A ledger knows sizes and categories, no addresses: blocks get addresses of an allocator that reuses only a
// block of exactly the same size. The peak of the viewer's active memory is the timeline's; the size of the
// segment is an artefact. A block's stack is its phase and its category.
#pragma once

#include <string>

#include "steppe/report/timeline_file.h"

namespace steppe::report {

// The bytes of a pickle of protocol 2, with the opcodes alone that the viewer's own reader knows.
std::string memory_snapshot(const TimelineFile& timeline);

}  // namespace steppe::report
