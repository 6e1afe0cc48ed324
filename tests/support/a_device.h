// The device of a build that has one.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "ops/devices.h"

namespace moe::test {

// Null where the build or the machine has none.
inline Device* a_device() {
  try {
    return &ops::cuda_device();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("CUDA"), std::string::npos) << e.what();
    return nullptr;
  }
}

}  // namespace moe::test
