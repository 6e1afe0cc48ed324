#include "tensor/quant_grid.h"

#include <bit>

#include "tensor/quant_grids.h"
#include "tensor/quant_parts.h"

namespace moe {
namespace {

// A point's sizes, `kBits` each, and above each its sign, from the lowest bit of `signs` on.
template <int kCount, int kBits>
void put_point(uint8_t* code, uint32_t point, uint32_t signs) {
  for (int i = 0; i < kCount; ++i)
    code[i] =
        static_cast<uint8_t>((point >> kBits * i & ((1 << kBits) - 1)) | (signs >> i & 1) << kBits);
}
// Seven signs of eight: the number of minus signs is even.
uint32_t even_signs(uint32_t seven) {
  return seven | (static_cast<uint32_t>(std::popcount(seven)) & 1) << 7;
}
uint8_t odd(uint32_t scale) { return static_cast<uint8_t>(2 * scale + 1); }

// d [half], for each run indices [4], seven signs of each point and above them a scale [4]
GridRun iq2_xxs_run(const uint8_t* block, int r) {
  const uint8_t* at = block + 2 + 8 * r;
  const uint32_t rest = u32_at(at + 4);
  GridRun run;
  for (int k = 0; k < 4; ++k)
    put_point<8, 2>(run.code + 8 * k, kIq2XxsGrid[at[k]], even_signs(rest >> 7 * k & 127));
  run.scale[0] = run.scale[1] = odd(rest >> 28);
  return run;
}

// d [half], indices of nine bits below seven signs [32 of 2], scales [8]: two nibbles a run
GridRun iq2_xs_run(const uint8_t* block, int r) {
  GridRun run;
  for (int k = 0; k < 4; ++k) {
    const uint32_t both = u16_at(block + 2 + 2 * (4 * r + k));
    put_point<8, 2>(run.code + 8 * k, kIq2XsGrid[both & 511], even_signs(both >> 9));
  }
  for (int half = 0; half < 2; ++half) run.scale[half] = odd(block[66 + r] >> 4 * half & 15);
  return run;
}

// d [half], lower bytes of indices [32], signs [32], their upper two bits [8], scales [8]
GridRun iq2_s_run(const uint8_t* block, int r) {
  GridRun run;
  for (int k = 0; k < 4; ++k) {
    const int upper = block[66 + r] >> 2 * k & 3;
    put_point<8, 2>(run.code + 8 * k, kIq2SGrid[block[2 + 4 * r + k] | upper << 8],
                    block[34 + 4 * r + k]);
  }
  for (int half = 0; half < 2; ++half) run.scale[half] = odd(block[74 + r] >> 4 * half & 15);
  return run;
}

// d [half], indices of four numbers [64], for each run signs and scale [4] as of iq2_xxs
GridRun iq3_xxs_run(const uint8_t* block, int r) {
  const uint32_t rest = u32_at(block + 66 + 4 * r);
  GridRun run;
  for (int k = 0; k < 8; ++k)
    put_point<4, 3>(run.code + 4 * k, kIq3XxsGrid[block[2 + 8 * r + k]],
                    even_signs(rest >> 7 * (k / 2) & 127) >> 4 * (k % 2));
  run.scale[0] = run.scale[1] = odd(rest >> 28);
  return run;
}

// d [half], lower bytes of indices [64], their ninth bits [8], signs [32], scales [4]: a nibble a
// run
GridRun iq3_s_run(const uint8_t* block, int r) {
  GridRun run;
  for (int k = 0; k < 8; ++k) {
    const int ninth = block[66 + r] >> k & 1;
    put_point<4, 3>(run.code + 4 * k, kIq3SGrid[block[2 + 8 * r + k] | ninth << 8],
                    static_cast<uint32_t>(block[74 + 4 * r + k / 2]) >> 4 * (k % 2));
  }
  run.scale[0] = run.scale[1] = odd(block[106 + r / 2] >> 4 * (r % 2) & 15);
  return run;
}

// A point of IQ1, its numbers -1, 0 and 1, each moved the same way by an eighth.
void put_moved(uint8_t* code, uint32_t point, bool down) {
  for (int i = 0; i < 8; ++i)
    code[i] = static_cast<uint8_t>(2 * (point >> 2 * i & 3) + (down ? 0 : 1));
}

// d [half], lower bytes of indices [32], for each run [2] their upper three bits, scale and sign
GridRun iq1_s_run(const uint8_t* block, int r) {
  const uint32_t rest = u16_at(block + 34 + 2 * r);
  GridRun run;
  for (int k = 0; k < 4; ++k)
    put_moved(run.code + 8 * k, kIq1Grid[block[2 + 4 * r + k] | (rest >> 3 * k & 7) << 8],
              (rest & 0x8000) != 0);
  run.scale[0] = run.scale[1] = odd(rest >> 12 & 7);
  return run;
}

// lower bytes of indices [32], nibbles of their upper three bits and a sign [16], scales [8]: three
// bits for each 16 numbers, and four of d above each four of them
GridRun iq1_m_run(const uint8_t* block, int r) {
  GridRun run;
  for (int k = 0; k < 4; ++k) {
    const uint32_t rest = static_cast<uint32_t>(block[32 + 2 * r + k / 2]) >> 4 * (k % 2) & 15;
    put_moved(run.code + 8 * k, kIq1Grid[block[4 * r + k] | (rest & 7) << 8], (rest & 8) != 0);
  }
  for (int half = 0; half < 2; ++half)
    run.scale[half] = odd(u16_at(block + 48 + r / 2 * 2) >> 3 * (2 * (r % 2) + half) & 7);
  return run;
}

}  // namespace

GridRun read_grid_run(DType dtype, const uint8_t* block, int r) {
  switch (dtype) {
    case DType::iq2_xxs: return iq2_xxs_run(block, r);
    case DType::iq2_xs: return iq2_xs_run(block, r);
    case DType::iq2_s: return iq2_s_run(block, r);
    case DType::iq3_xxs: return iq3_xxs_run(block, r);
    case DType::iq3_s: return iq3_s_run(block, r);
    case DType::iq1_s: return iq1_s_run(block, r);
    default: return iq1_m_run(block, r);
  }
}

uint16_t grid_scale(DType dtype, const uint8_t* block) {
  if (dtype != DType::iq1_m) return u16_at(block);
  uint32_t d = 0;
  for (int i = 0; i < 4; ++i) d |= static_cast<uint32_t>(u16_at(block + 48 + 2 * i) >> 12) << 4 * i;
  return static_cast<uint16_t>(d);
}

void read_grid(float* out, DType dtype, const uint8_t* block) {
  const GridFormat& format = *grid_format(dtype);
  const float d = f16_to_f32(grid_scale(dtype, block)) * format.unit;
  for (int r = 0; r < 8; ++r) {
    const GridRun run = read_grid_run(dtype, block, r);
    int8_t v[kBlock];
    for (int i = 0; i < kBlock; ++i) v[i] = format.table[run.code[i]];
    for (int half = 0; half < 2; ++half)
      scale_run<kHalf>(out + kBlock * r + kHalf * half, v + kHalf * half,
                       d * static_cast<float>(run.scale[half]));
  }
}

}  // namespace moe
