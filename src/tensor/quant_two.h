// Q2_0, for quant.cpp: two bits a number and a scale for 64 of them (github ggml-org/ggml,
// src/ggml-common.h), x = d (q - 1). Not byte for byte what ggml's quantiser makes: here the scale
// is the one that fits best.
#pragma once

#include <cstdint>

namespace moe {

class BlockRounding;

inline constexpr int kTwoBlock = 64;

void read_q2_0(float* out, const uint8_t* block);
// importance [64] of the numbers' columns, or null.
// A rounding chooses the integers; null: the nearest ones.
void write_q2_0(uint8_t* block, const float* x, const float* importance, BlockRounding*);

}  // namespace moe
