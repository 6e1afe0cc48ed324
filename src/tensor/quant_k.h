// One block of 256 numbers of the K formats, for quant.cpp: 8 (q4_k, q5_k) or 16 (q6_k) groups,
// each with a small integer scale, and halves that scale the scales. Layout: github ggml-org/ggml,
// src/ggml-common.h.
#pragma once

#include <cstdint>

namespace moe {

void read_q4_k(float* out, const uint8_t* block);
void read_q5_k(float* out, const uint8_t* block);
void read_q6_k(float* out, const uint8_t* block);
void write_q4_k(uint8_t* block, const float* x);
void write_q5_k(uint8_t* block, const float* x);
void write_q6_k(uint8_t* block, const float* x);

}  // namespace moe
