// One block of 256 numbers of the K formats, for quant.cpp: 8 (q4_k, q5_k) or 16 (the others)
// groups, each with a small integer scale, and halves that scale the scales. Layout: github
// ggml-org/ggml, src/ggml-common.h.
#pragma once

#include <cstdint>

namespace moe {

class BlockRounding;

inline constexpr int kSuperBlock = 256;  // numbers of a block

// Six-bit scale of group j of 16 of a block of q3_k, less 32, out of its 12 bytes: the low nibbles
// of the first eight bytes are those of groups 0-7, the high ones those of 8-15; two upper bits
// each stand in the last four.
inline int q3_k_scale(const uint8_t* packed, int j) {
  const int low = j < 8 ? packed[j] & 15 : packed[j - 8] >> 4;
  return (low | (packed[8 + j % 4] >> 2 * (j / 4) & 3) << 4) - 32;
}

void read_q4_k(float* out, const uint8_t* block);
void read_q5_k(float* out, const uint8_t* block);
void read_q6_k(float* out, const uint8_t* block);
void read_q3_k(float* out, const uint8_t* block);
void read_q2_k(float* out, const uint8_t* block);
// importance [256]: of each number's column; null: not known, and the scales are searched for as
// ggml's reference does. A rounding chooses the integers; null: the nearest ones.
void write_q4_k(uint8_t* block, const float* x, const float* importance, BlockRounding*);
void write_q5_k(uint8_t* block, const float* x, const float* importance, BlockRounding*);
void write_q6_k(uint8_t* block, const float* x, const float* importance, BlockRounding*);
void write_q3_k(uint8_t* block, const float* x, const float* importance, BlockRounding*);
void write_q2_k(uint8_t* block, const float* x, const float* importance, BlockRounding*);

}  // namespace moe
