// A warp's product of bf16 matrices on tensor cores, C [16, 8] += A [16, 16]·B [16, 8], and loads of its
// operands from shared memory: the PTX instructions mma.m16n8k16 and ldmatrix.
//
// Lane l of the warp is in row g = l / 4 and has columns 2t and 2t + 1, t = l % 4, of every 8×8 piece:
//   A   a[0] rows g, columns 2t …     a[1] rows g + 8     a[2] columns 8 + 2t …     a[3] both
//   B   b0 rows (of A's columns) 2t …, column g           b1 rows 8 + 2t …
//   C   c[0], c[1] row g, columns 2t …                    c[2], c[3] row g + 8
#pragma once

#ifdef __CUDACC__
#include <cstdint>

namespace steppe::kernels::cuda {

__device__ inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8×8 matrices; lanes 8i … 8i + 7 name the rows of the i-th, 16 bytes each and so aligned. The lane gets
// of each what lies in row g, columns 2t and 2t + 1.
__device__ inline void load_matrices(uint32_t (&m)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

// The same, of the matrices transposed: rows 2t and 2t + 1, column g.
__device__ inline void load_transposed(uint32_t (&m)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

}  // namespace steppe::kernels::cuda
#else
#include <tensor_core.h>  // of tests/cuda_on_cpu
#endif
