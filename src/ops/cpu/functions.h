// The ops as the CPU has them.
#pragma once

#include "ops/banks.h"
#include "ops/ops.h"
#include "ops/routing.h"

namespace moe::ops::cpu {

#define MOE_OP(where, result, name, parameters, arguments) result name parameters;
#include "ops/op_table.h"
#undef MOE_OP
void matmul_forward_banks(Run& run, std::span<const BankOperands> banks);

}  // namespace moe::ops::cpu
