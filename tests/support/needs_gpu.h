// Tests of the CUDA device are skipped, not passed, where there is none.
#pragma once

#include <gtest/gtest.h>

#include "src/device/compute_device.h"

#define TOPKV_NEEDS_GPU()                                   \
  do {                                                      \
    if (::topkv::gpu_count() == 0) {                        \
      GTEST_SKIP() << "no GPU: " << ::topkv::gpu_reason();  \
    }                                                       \
  } while (false)
