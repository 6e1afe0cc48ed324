// The best of some scores as a set, for what else on the CPU takes one (ops/cpu/attention).
#pragma once

#include <cstdint>

namespace moe::ops::cpu {

// Numbers of memory that top_set_of wants.
int64_t top_set_room(int64_t count, int64_t k);
// choice [k], rising: the places of the k best of scores [count], of equal ones the lower. False
// where a score is not a number. memory [top_set_room(count, k)]. After choose_isa().
bool top_set_of(int32_t* choice, const float* scores, int64_t count, int64_t k, int32_t* memory);

}  // namespace moe::ops::cpu
