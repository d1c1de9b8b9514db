#include "steppe/ops/embedding/vocab_embedding.h"

#include <numeric>

#include "steppe/base/error.h"
#include "steppe/comm/collectives.h"
#include "steppe/kernels/embedding.h"
#include "steppe/kernels/permute.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/host_copy.h"

namespace steppe::ops {

std::vector<int64_t> tokens_by_owner(std::span<const int32_t> tokens, int64_t vocab_size, int64_t degree) {
  std::vector<int64_t> counts(degree, 0);
  for (const int32_t token : tokens) ++counts[layout::even_owner(vocab_size, degree, token)];
  return counts;
}

EmbeddingRoute exchange_ids(const OpContext& context, comm::Communicator& group, int64_t vocab_size,
                            std::span<const int32_t> tokens, std::span<const int64_t> receive_rows) {
  const memory::Scope scope(memory::Category::kBatch);
  EmbeddingRoute route;
  const int64_t degree = group.size(), n = static_cast<int64_t>(tokens.size());
  route.receive_rows.assign(receive_rows.begin(), receive_rows.end());
  if (degree == 1) {
    route.send_rows = {n};
    route.ids_received_R = upload(context, tokens);
    return route;
  }
  route.send_rows = tokens_by_owner(tokens, vocab_size, degree);
  std::vector<int64_t> next(degree);
  std::exclusive_scan(route.send_rows.begin(), route.send_rows.end(), next.begin(), int64_t{0});
  std::vector<int32_t> ids(n), token_of_slot(n), slot_of_token(n);
  for (int64_t t = 0; t < n; ++t) {
    const int64_t slot = next[layout::even_owner(vocab_size, degree, tokens[t])]++;
    ids[slot] = tokens[t], token_of_slot[slot] = static_cast<int32_t>(t),
    slot_of_token[t] = static_cast<int32_t>(slot);
  }
  route.token_of_slot_N = upload(context, token_of_slot);
  route.slot_of_token_N = upload(context, slot_of_token);
  const int64_t received = std::accumulate(receive_rows.begin(), receive_rows.end(), int64_t{0});
  route.ids_received_R = context.empty({received}, at::kInt);
  const auto sent = upload(context, ids);
  comm::all_to_all_rows(group, route.ids_received_R, sent, route.receive_rows, route.send_rows).wait();
  return route;
}

void embedding_forward(const OpContext& context, comm::Communicator& group, const at::Tensor& out_NH,
                       const at::Tensor& table_vH, int64_t first_row, const EmbeddingRoute& route) {
  if (group.size() == 1) return kernels::embedding_forward(out_NH, table_vH, route.ids_received_R, first_row);
  const memory::Scope scope(memory::Category::kVocab);
  const auto looked_up = context.empty({route.ids_received_R.size(0), table_vH.size(1)});
  kernels::embedding_forward(looked_up, table_vH, route.ids_received_R, first_row);
  const auto returned = context.empty(out_NH.sizes());
  comm::all_to_all_rows(group, returned, looked_up, route.send_rows, route.receive_rows).wait();
  kernels::gather_rows_of_routes(out_NH, returned, route.slot_of_token_N, 1);
}

void embedding_backward(const OpContext& context, comm::Communicator& group, const at::Tensor& grad_table_vH,
                        const at::Tensor& dy_NH, int64_t first_row, const EmbeddingRoute& route) {
  if (group.size() == 1)
    return kernels::embedding_backward(grad_table_vH, dy_NH, route.ids_received_R, first_row);
  const memory::Scope scope(memory::Category::kVocab);
  const auto ordered = context.empty(dy_NH.sizes());
  kernels::gather_rows_of_routes(ordered, dy_NH, route.token_of_slot_N, 1);
  const auto received = context.empty({route.ids_received_R.size(0), dy_NH.size(1)});
  comm::all_to_all_rows(group, received, ordered, route.receive_rows, route.send_rows).wait();
  kernels::embedding_backward(grad_table_vH, received, route.ids_received_R, first_row);
}

}  // namespace steppe::ops
