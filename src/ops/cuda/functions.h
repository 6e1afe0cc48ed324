// The ops as a GPU has them; every tensor lies on the device, lists where they like.
#pragma once

#include "ops/ops.h"
#include "ops/routing.h"

namespace moe::ops::cuda {

#define MOE_DECLARE_device(result, name, parameters) result name parameters;
#define MOE_DECLARE_host(result, name, parameters)
#define MOE_OP(where, result, name, parameters, arguments) \
  MOE_DECLARE_##where(result, name, parameters)
#include "ops/op_table.h"
#undef MOE_OP
#undef MOE_DECLARE_device
#undef MOE_DECLARE_host

}  // namespace moe::ops::cuda
