// One thing per rank that goes round the ring: in round s this rank has that of rank (rank − s) mod P, and
// sends it on to rank + 1. Two buffers, since one is received while another is worked on.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "steppe/comm/communicator.h"
#include "steppe/ops/context.h"

namespace steppe::ops {

struct Travel {
  at::Tensor own;  // [rows, …] here in round 0
  // Rows of each rank's; the other dims, and the dtype.
  std::span<const int64_t> rows_of_rank;
  std::vector<int64_t> width;
  at::ScalarType dtype = at::kFloat;
  // After the last round it is sent home, into `own`. Else it stays where it is.
  bool returns = false;
};

class Traveller {
 public:
  Traveller(const OpContext& context, comm::Communicator& group, Travel travel);

  // What is here in round s, or after the last: round P.
  at::Tensor at_round(int64_t s) const;
  // Begins to send what is here in round s, and to receive what is here next. What is here may be read
  // meanwhile. In the last round only things that return move. Ends with wait(), which must precede the next
  // call.
  void send_on(int64_t s);
  void wait() { moving_.wait(); }

 private:
  int64_t rows_at(int64_t s) const;

  comm::Communicator& group_;
  Travel travel_;
  std::array<at::Tensor, 2> buffers_;
  comm::Pending moving_;
};

}  // namespace steppe::ops
