// The main of every test that uses tensors: the tracking allocators must be in place before the first of
// them.
#include <gtest/gtest.h>

#include <cstring>

#include "steppe/memory/tracking_allocator.h"

int main(int argc, char** argv) {
  steppe::memory::AllocatorOptions options;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--return-freed-pages") == 0) options.return_freed_pages = true;
  }
  steppe::memory::install_tracking_allocators(options);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
