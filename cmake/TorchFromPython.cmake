# Imported targets for the LibTorch inside a Python environment's `torch` wheel.
# Defines torch::cpu (c10, torch_cpu) and, with a CUDA toolkit, torch::cuda.
# `find_package(Torch)` of the wheel insists on a CUDA toolkit; this module needs none:
# it asks the Python where `torch` lies, without importing it.
if(NOT STEPPE_PYTHON)
  message(FATAL_ERROR "STEPPE_PYTHON must name a Python that has torch installed (./dev build sets it)")
endif()
execute_process(
  COMMAND ${STEPPE_PYTHON} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
  OUTPUT_VARIABLE STEPPE_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE _failed)
if(_failed OR NOT EXISTS ${STEPPE_TORCH_DIR}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "no torch found by STEPPE_PYTHON=${STEPPE_PYTHON}")
endif()
get_filename_component(_site ${STEPPE_TORCH_DIR} DIRECTORY)
set(STEPPE_TORCH_RPATH ${STEPPE_TORCH_DIR}/lib ${_site}/nvidia/cu13/lib ${_site}/nvidia/cudnn/lib
    ${_site}/nvidia/nccl/lib ${_site}/nvidia/cusparselt/lib ${_site}/nvidia/nvshmem/lib)

add_library(torch::cpu INTERFACE IMPORTED)
target_include_directories(torch::cpu SYSTEM INTERFACE
  ${STEPPE_TORCH_DIR}/include ${STEPPE_TORCH_DIR}/include/torch/csrc/api/include)
# The wheel's own libgomp has the system's soname; naming it here keeps one OpenMP runtime in the process.
target_link_libraries(torch::cpu INTERFACE
  ${STEPPE_TORCH_DIR}/lib/libtorch_cpu.so ${STEPPE_TORCH_DIR}/lib/libc10.so ${STEPPE_TORCH_DIR}/lib/libgomp.so.1)
target_link_options(torch::cpu INTERFACE "LINKER:--allow-shlib-undefined")

add_library(torch::cuda INTERFACE IMPORTED)
target_link_libraries(torch::cuda INTERFACE torch::cpu
  ${STEPPE_TORCH_DIR}/lib/libtorch_cuda.so ${STEPPE_TORCH_DIR}/lib/libc10_cuda.so)
# Some linkers drop libraries that nobody names a symbol of, but ATen has its CUDA kernels only once this one is loaded.
target_link_options(torch::cuda INTERFACE "LINKER:--no-as-needed")
