// How .cu files report a failed launch without including more than this. No Torch or CUDA header.
#pragma once

namespace steppe::kernels::cuda {

// Reads the pending CUDA error of this thread. RuntimeFailure names `place` and the error.
void check_launch(const char* place);

// What every x_cuda_missing.cpp does: RuntimeFailure "[place] a CUDA tensor, but Steppe was built without
// CUDA".
[[noreturn]] void throw_missing(const char* place);

}  // namespace steppe::kernels::cuda
