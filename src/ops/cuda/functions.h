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

// matmul_forward() of (gate, up) or of up alone, and where `hidden` is not empty ffn_act_forward()
// of what they make.
void matmul_act_forward(Run&, Tensor hidden, List<Operand> operands, GatheredRows x,
                        std::span<const int64_t> offsets, Tensor weight, Act act);

}  // namespace moe::ops::cuda
