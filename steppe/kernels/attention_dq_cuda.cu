// A block owns 64 queries of a head and walks their keys in order, 64 at a time in shared memory: no atomics,
// one order. A warp has 16 of the queries; queries, their gradient and dq stay in its registers. Blocks cut
// the row every 64 tokens wherever documents end, so that short documents share one.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "steppe/kernels/attention_dq_backend.h"
#include "steppe/kernels/cuda_failure.h"
#include "steppe/kernels/element_cuda.cuh"
#include "steppe/kernels/launch_cuda.cuh"
#include "steppe/kernels/tensor_core_cuda.cuh"

namespace steppe::kernels::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kWarpQueries = 16, kQueries = kWarps * kWarpQueries;
constexpr int kPiece = 16;        // keys, or elements of a head, of one product
constexpr int kWordElements = 8;  // of 16 bytes
constexpr float kLog2E = 1.44269504088896f;

using Value = __nv_bfloat16;

__device__ const Value* row_of(const HeadRows& rows, int64_t token, int head) {
  return static_cast<const Value*>(rows.at) + token * rows.token_stride + head * rows.head_stride;
}

__device__ uint32_t pair_of(float low, float high) {
  const Value both[2] = {from_float<Value>(low), from_float<Value>(high)};
  uint32_t pair;
  memcpy(&pair, both, sizeof(pair));
  return pair;
}

// Elements `column` and the next of a row; zeros where there is no such token or element.
struct Pair {
  float low, high;
};
__device__ Pair elements_of(const Value* row, bool exists, int column, int head_dim) {
  return {exists && column < head_dim ? to_float(row[column]) : 0.f,
          exists && column + 1 < head_dim ? to_float(row[column + 1]) : 0.f};
}

// Where the document of `token` begins.
__device__ int first_of_document(const AttentionDq& args, int token) {
  int low = 0, high = args.num_documents;  // bounds[low] ≤ token < bounds[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (args.bounds[middle] <= token)
      low = middle;
    else
      high = middle;
  }
  return args.bounds[low];
}

// 16 bytes of a row, from element `column` on; zeros where there are none.
__device__ uint4 word_of(const Value* row, bool exists, int column, int head_dim, bool aligned) {
  uint4 word{0, 0, 0, 0};
  if (!exists || column >= head_dim) return word;
  if (aligned) return *reinterpret_cast<const uint4*>(row + column);
  Value elements[kWordElements];
  for (int i = 0; i < kWordElements; ++i)
    elements[i] = column + i < head_dim ? row[column + i] : from_float<Value>(0);
  memcpy(&word, elements, sizeof(word));
  return word;
}

// What a lane knows of its two queries, rows lane / 4 and 8 more of the warp's.
struct Queries {
  int token[2], first_key[2];
  float lse_log2[2], dout_out[2];  // dout_out: Σ dout·out
};

// A [16, kDim] of the warp's queries, in the layout of multiply_add; and Σ dout·out where `out` is given.
template <int kDim>
__device__ void load_queries(uint32_t (&a)[kDim / kPiece][4], const AttentionDq& args, const HeadRows& rows,
                             const HeadRows* out, Queries& queries, int head) {
  const int column_of_lane = 2 * (threadIdx.x % 4);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool exists = queries.token[half] < args.tokens;
    const Value* row = row_of(rows, exists ? queries.token[half] : 0, head);
    const Value* out_row = out ? row_of(*out, exists ? queries.token[half] : 0, head) : row;
    float sum = 0;
#pragma unroll
    for (int piece = 0; piece < kDim / kPiece; ++piece) {
#pragma unroll
      for (int right = 0; right < 2; ++right) {
        const int column = piece * kPiece + right * 8 + column_of_lane;
        const Pair x = elements_of(row, exists, column, args.head_dim);
        a[piece][half + 2 * right] = pair_of(x.low, x.high);
        if (out) {
          const Pair y = elements_of(out_row, exists, column, args.head_dim);
          sum += x.low * y.low + x.high * y.high;
        }
      }
    }
    if (!out) continue;
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    queries.dout_out[half] = sum;
  }
}

// 16 keys of kWords words a row in shared memory; `key` is the first one's token. Adds their share of dq.
template <int kDim, int kWords>
__device__ void add_share_of_keys(float (&dq)[kDim / 8][4], const uint32_t (&q)[kDim / kPiece][4],
                                  const uint32_t (&dout)[kDim / kPiece][4], const uint4 (*keys)[kWords],
                                  const uint4 (*values)[kWords], int key, const Queries& queries,
                                  float scale_log2) {
  const int lane = threadIdx.x % kWarp, matrix = lane / 8, row = lane % 8;
  float scores[2][4] = {}, grad_weights[2][4] = {};  // of keys 0 … 7 and 8 … 15
#pragma unroll
  for (int piece = 0; piece < kDim / kPiece; ++piece) {
    const int from = matrix / 2 * 8 + row, word = 2 * piece + matrix % 2;
    uint32_t b[4];
    load_matrices(b, &keys[from][word]);
    multiply_add(scores[0], q[piece], b[0], b[1]);
    multiply_add(scores[1], q[piece], b[2], b[3]);
    load_matrices(b, &values[from][word]);
    multiply_add(grad_weights[0], dout[piece], b[0], b[1]);
    multiply_add(grad_weights[1], dout[piece], b[2], b[3]);
  }
  uint32_t grad_scores[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int half = i % 2, right = i / 2;
    float grad[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int token = key + right * 8 + 2 * (lane % 4) + j;
      const bool seen = token >= queries.first_key[half] && token <= queries.token[half];
      const float weight = exp2f(scores[right][2 * half + j] * scale_log2 - queries.lse_log2[half]);
      grad[j] = seen ? weight * (grad_weights[right][2 * half + j] - queries.dout_out[half]) : 0.f;
    }
    grad_scores[i] = pair_of(grad[0], grad[1]);
  }
#pragma unroll
  for (int piece = 0; piece < kDim / kPiece; ++piece) {
    uint32_t b[4];
    load_transposed(b, &keys[matrix % 2 * 8 + row][2 * piece + matrix / 2]);
    multiply_add(dq[2 * piece], grad_scores, b[0], b[1]);
    multiply_add(dq[2 * piece + 1], grad_scores, b[2], b[3]);
  }
}

template <int kDim>
__global__ void dq_kernel(AttentionDq args, bool aligned) {
  // A word more than a row has: eight rows then lie in different banks.
  constexpr int kKeys = kDim <= 128 ? 64 : 32, kWords = kDim / kWordElements + 1;
  __shared__ uint4 keys[kKeys][kWords];
  __shared__ uint4 values[kKeys][kWords];
  const int head = blockIdx.y, key_head = head / (args.heads / args.key_heads);
  // The last queries first: theirs are the most keys.
  const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kQueries;
  const int end = first_query + kQueries < args.tokens ? first_query + kQueries : args.tokens;
  const int first_of_warp = first_query + static_cast<int>(threadIdx.x) / kWarp * kWarpQueries;
  const int last_of_warp = (first_of_warp + kWarpQueries < end ? first_of_warp + kWarpQueries : end) - 1;
  const int first_key_of_warp = first_of_warp < end ? first_of_document(args, first_of_warp) : 0;

  Queries queries;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = first_of_warp + static_cast<int>(threadIdx.x) % kWarp / 4 + 8 * half;
    const bool exists = token < args.tokens;
    queries.token[half] = token;
    queries.first_key[half] = exists ? first_of_document(args, token) : token;
    queries.lse_log2[half] = exists ? args.lse[int64_t{head} * args.tokens + token] * kLog2E : 0.f;
  }
  uint32_t q[kDim / kPiece][4], dout[kDim / kPiece][4];
  load_queries<kDim>(q, args, args.q, nullptr, queries, head);
  load_queries<kDim>(dout, args, args.dout, &args.out, queries, head);
  float dq[kDim / 8][4] = {};

  for (int key = first_of_document(args, first_query); key < end; key += kKeys) {
    __syncthreads();  // the keys before have been read
    for (int i = threadIdx.x; i < kKeys * (kWords - 1); i += kThreads) {
      const int row = i / (kWords - 1), word = i % (kWords - 1), token = key + row;
      const bool exists = token < end;
      const int64_t from = exists ? token : 0;
      keys[row][word] =
          word_of(row_of(args.k, from, key_head), exists, word * kWordElements, args.head_dim, aligned);
      values[row][word] =
          word_of(row_of(args.v, from, key_head), exists, word * kWordElements, args.head_dim, aligned);
    }
    __syncthreads();
    for (int piece = 0; piece < kKeys; piece += kPiece) {
      if (key + piece > last_of_warp || key + piece + kPiece <= first_key_of_warp) continue;
      add_share_of_keys<kDim, kWords>(dq, q, dout, keys + piece, values + piece, key + piece, queries,
                                      args.scale * kLog2E);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (queries.token[half] >= args.tokens) continue;
    Value* out =
        static_cast<Value*>(args.dq) + (int64_t{queries.token[half]} * args.heads + head) * args.head_dim;
#pragma unroll
    for (int piece = 0; piece < kDim / 8; ++piece) {
      const int column = piece * 8 + 2 * (threadIdx.x % 4);
      if (column < args.head_dim) out[column] = from_float<Value>(dq[piece][2 * half] * args.scale);
      if (column + 1 < args.head_dim)
        out[column + 1] = from_float<Value>(dq[piece][2 * half + 1] * args.scale);
    }
  }
}

bool aligned_words(const HeadRows& rows, int head_dim) {
  const auto bits = reinterpret_cast<uintptr_t>(rows.at) / sizeof(Value) |
                    static_cast<uintptr_t>(rows.token_stride | rows.head_stride | head_dim);
  return bits % kWordElements == 0;
}

}  // namespace

void attention_dq(const AttentionDq& args, void* stream) {
  const bool aligned = aligned_words(args.k, args.head_dim) && aligned_words(args.v, args.head_dim);
  const dim3 blocks(static_cast<unsigned>((args.tokens + kQueries - 1) / kQueries),
                    static_cast<unsigned>(args.heads));
  const auto kernel = args.head_dim <= 64    ? dq_kernel<64>
                      : args.head_dim <= 128 ? dq_kernel<128>
                                             : dq_kernel<kMostHeadDim>;
  launch(kernel, blocks, kThreads, stream, args, aligned);
  check_launch("attention_backward");
}

}  // namespace steppe::kernels::cuda
