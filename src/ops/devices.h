// Which devices this build and this machine have.
#pragma once

#include "core/device_kind.h"
#include "tensor/device.h"

namespace moe::ops {

// The first CUDA device that the system shows (CUDA_VISIBLE_DEVICES chooses). Throws where the
// build has no CUDA (-DMOE_CUDA=ON) or the machine no device.
Device& cuda_device();
// Null: the CPU.
inline Device* device_of(DeviceKind kind) {
  return kind == DeviceKind::cpu ? nullptr : &cuda_device();
}

}  // namespace moe::ops
