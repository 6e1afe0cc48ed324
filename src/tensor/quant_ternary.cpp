#include "tensor/quant_ternary.h"

#include "tensor/quant_parts.h"

namespace moe {
namespace {

// Digit n of a byte in base 3, the first one the highest: the byte is 256/243 of the number,
// rounded up.
uint8_t digit(uint8_t byte, int n) {
  constexpr uint8_t kPower[] = {1, 3, 9, 27, 81};
  return static_cast<uint8_t>(static_cast<uint8_t>(byte * kPower[n]) * 3 >> 8);
}

// Digit i / 32 of byte i % 32 (160 numbers), digit of one of the 16 bytes behind (80), digit of one
// of the four behind those (16), then d
uint8_t tq1_0_at(const uint8_t* block, int i) {
  if (i < 160) return digit(block[i % 32], i / 32);
  if (i < 240) return digit(block[32 + i % 16], (i - 160) / 16);
  return digit(block[48 + i % 4], (i - 240) / 4);
}

// Bits of number i % 32 of four runs in a byte, 64 bytes, then d
uint8_t tq2_0_at(const uint8_t* block, int i) {
  return block[i / 128 * kBlock + i % kBlock] >> 2 * (i / kBlock % 4) & 3;
}
// d, then a bit a number: d where it is set, else -d
uint8_t q1_0_at(const uint8_t* block, int i) {
  return static_cast<uint8_t>((block[2 + i / 8] >> i % 8 & 1) << 1);
}

}  // namespace

TernaryRun read_ternary_run(DType dtype, const uint8_t* block, int r) {
  TernaryRun run;
  const auto read = [&](auto&& at) {
    for (int i = 0; i < kBlock; ++i) run.q[i] = at(block, kBlock * r + i);
  };
  if (dtype == DType::tq1_0) read(tq1_0_at);
  else if (dtype == DType::tq2_0) read(tq2_0_at);
  else read(q1_0_at);
  return run;
}

uint16_t ternary_scale(DType dtype, const uint8_t* block) {
  return u16_at(block + (dtype == DType::tq1_0 ? 52 : dtype == DType::tq2_0 ? 64 : 0));
}

void read_ternary(float* out, DType dtype, const uint8_t* block) {
  const float d = f16_to_f32(ternary_scale(dtype, block));
  for (int r = 0; r < block_of(dtype).elements / kBlock; ++r) {
    const TernaryRun run = read_ternary_run(dtype, block, r);
    int8_t v[kBlock];
    for (int i = 0; i < kBlock; ++i) v[i] = static_cast<int8_t>(run.q[i] - 1);
    scale_run<kBlock>(out + kBlock * r, v, d);
  }
}

}  // namespace moe
