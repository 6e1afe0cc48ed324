// What the tensors of model folders are called, a table for each family.
#pragma once

#include "hub/architectures.h"

namespace moe {

extern const TensorNames kOlmoeTensors, kMoeCppTensors, kLlamaTensors, kMixtralTensors, kDeepSeekTensors, kGpt2Tensors, kNanoMoeTensors;

}  // namespace moe
