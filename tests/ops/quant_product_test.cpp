// Products with quantised weights: against a twin that follows the law of quant_product.h number by
// number (in bits), against products in double of what the blocks mean (the rounding of f32 alone),
// and against the rows as they were (what eight bits cost). Blocks are random bits: every layout is
// used to the full.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "core/rng.h"
#include "ops/cpu/gemm/tile_product.h"
#include "ops/cpu/quant/quant_panels.h"
#include "ops/cpu/quant/quant_product.h"
#include "support/check.h"
#include "tensor/quant.h"

namespace moe::test::quant_product_test {
namespace {

const std::vector<DType> kTypes = {
    DType::q8_0,  DType::q4_0,    DType::q4_1,  DType::q5_0,   DType::q5_1,    DType::q4_k,
    DType::q5_k,  DType::q6_k,    DType::mxfp4, DType::iq4_nl, DType::iq4_xs,  DType::q3_k,
    DType::q2_k,  DType::q2_0,    DType::iq1_s, DType::iq1_m,  DType::iq2_xxs, DType::iq2_xs,
    DType::iq2_s, DType::iq3_xxs, DType::iq3_s, DType::tq1_0,  DType::tq2_0,   DType::q1_0};
bool has_halves(DType dtype) {
  switch (dtype) {
    case DType::q6_k:
    case DType::q3_k:
    case DType::q2_k:
    case DType::iq1_s:
    case DType::iq1_m:
    case DType::iq2_xxs:
    case DType::iq2_xs:
    case DType::iq2_s: return true;
    default: return false;
  }
}

// 32 numbers of a weight: scale * q (+ min), of some types by halves.
struct WeightBlock {
  int q[32];
  float scale[2];
  float min = 0, second_min = 0;
};
struct RowBlock {
  int q[32];
  float scale[2];  // of its halves
};

constexpr int kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

float half_at(const uint8_t* p) { return f16_to_f32(static_cast<uint16_t>(p[0] | p[1] << 8)); }

// Run s of a block whose layout tests/tensor/quant_test.cpp looks at.
WeightBlock weight_run(DType dtype, const uint8_t* p, int s) {
  WeightBlock w{};
  if (is_ternary(dtype)) {
    const TernaryRun run = read_ternary_run(dtype, p, s);
    for (int i = 0; i < 32; ++i) w.q[i] = run.q[i] - 1;
    w.scale[0] = w.scale[1] = f16_to_f32(ternary_scale(dtype, p));
    return w;
  }
  const GridRun run = read_grid_run(dtype, p, s);
  const GridFormat& format = *grid_format(dtype);
  for (int i = 0; i < 32; ++i) w.q[i] = format.table[run.code[i]];
  for (int h = 0; h < 2; ++h)
    w.scale[h] = f16_to_f32(grid_scale(dtype, p)) * format.unit * static_cast<float>(run.scale[h]);
  return w;
}

// Block j of 32 of a row of blocks, read number by number.
WeightBlock weight_block(DType dtype, const uint8_t* row, int64_t j) {
  WeightBlock w{};
  const int64_t per_block = block_of(dtype).elements / 32;
  const uint8_t* p = row + j / per_block * block_of(dtype).bytes;
  const int s = static_cast<int>(j % per_block);
  if (is_ternary(dtype) || grid_format(dtype) != nullptr) return weight_run(dtype, p, s);
  const bool has_min = dtype == DType::q4_1 || dtype == DType::q5_1;
  for (int i = 0; i < 32; ++i) {
    switch (dtype) {
      case DType::q8_0: w.q[i] = static_cast<int8_t>(p[2 + i]); break;
      case DType::q4_0: w.q[i] = (i < 16 ? p[2 + i] & 15 : p[2 + i - 16] >> 4) - 8; break;
      case DType::q4_1: w.q[i] = i < 16 ? p[4 + i] & 15 : p[4 + i - 16] >> 4; break;
      case DType::q5_0:
        w.q[i] =
            ((i < 16 ? p[6 + i] & 15 : p[6 + i - 16] >> 4) | (p[2 + i / 8] >> i % 8 & 1) << 4) - 16;
        break;
      case DType::q5_1:
        w.q[i] = (i < 16 ? p[8 + i] & 15 : p[8 + i - 16] >> 4) | (p[4 + i / 8] >> i % 8 & 1) << 4;
        break;
      case DType::q4_k: w.q[i] = p[16 + s / 2 * 32 + i] >> s % 2 * 4 & 15; break;
      case DType::q5_k:
        w.q[i] = (p[48 + s / 2 * 32 + i] >> s % 2 * 4 & 15) | (p[16 + i] >> s & 1) << 4;
        break;
      case DType::mxfp4: {
        const int b = i < 16 ? p[1 + i] & 15 : p[1 + i - 16] >> 4, exponent = b >> 1 & 3,
                  doubled = exponent == 0 ? b & 1 : (2 | (b & 1)) << (exponent - 1);
        w.q[i] = b & 8 ? -doubled : doubled;
        break;
      }
      case DType::iq4_nl:
      case DType::iq4_xs: {
        const uint8_t* q = dtype == DType::iq4_nl ? p + 2 : p + 8 + 16 * s;
        w.q[i] = kIq4[i < 16 ? q[i] & 15 : q[i - 16] >> 4];
        break;
      }
      case DType::q3_k:
        w.q[i] = (p[32 + s / 4 * 32 + i] >> s % 4 * 2 & 3) - (p[i] >> s & 1 ? 0 : 4);
        break;
      case DType::q2_k: w.q[i] = p[16 + s / 4 * 32 + i] >> s % 4 * 2 & 3; break;
      case DType::q2_0: w.q[i] = (p[2 + 8 * s + i / 4] >> i % 4 * 2 & 3) - 1; break;
      default: {  // q6_k
        const int half = s / 4, quarter = s % 4;
        const int low = p[half * 64 + quarter % 2 * 32 + i] >> quarter / 2 * 4 & 15;
        w.q[i] = (low | (p[128 + half * 32 + i] >> quarter * 2 & 3) << 4) - 32;
      }
    }
  }
  w.scale[0] = w.scale[1] = half_at(p);
  if (has_min) w.min = half_at(p + 2);
  if (dtype == DType::q4_k || dtype == DType::q5_k) {
    const uint8_t* six = p + 4;
    const int scale = s < 4 ? six[s] & 63 : (six[s + 4] & 15) | six[s - 4] >> 6 << 4,
              min = s < 4 ? six[s + 4] & 63 : six[s + 4] >> 4 | six[s] >> 6 << 4;
    w.scale[0] = w.scale[1] = half_at(p) * static_cast<float>(scale);
    w.min = -half_at(p + 2) * static_cast<float>(min);
  }
  if (dtype == DType::mxfp4) w.scale[0] = w.scale[1] = std::ldexp(0.5f, p[0] - 127);
  if (dtype == DType::iq4_xs) {
    const int upper = (p[2] | p[3] << 8) >> 2 * s & 3, lower = p[4 + s / 2] >> s % 2 * 4 & 15;
    w.scale[0] = w.scale[1] = half_at(p) * static_cast<float>((lower | upper << 4) - 32);
  }
  for (int h = 0; h < 2 && dtype == DType::q3_k; ++h) {
    const int g = 2 * s + h, lower = g < 8 ? p[96 + g] & 15 : p[96 + g - 8] >> 4,
              upper = p[96 + 8 + g % 4] >> g / 4 * 2 & 3;
    w.scale[h] = half_at(p + 108) * static_cast<float>((lower | upper << 4) - 32);
  }
  if (dtype == DType::q2_k) {
    for (int h = 0; h < 2; ++h)
      w.scale[h] = half_at(p + 80) * static_cast<float>(p[2 * s + h] & 15);
    w.min = -half_at(p + 82) * static_cast<float>(p[2 * s] >> 4);
    w.second_min = -half_at(p + 82) * static_cast<float>(p[2 * s + 1] >> 4);
  }
  if (dtype == DType::q6_k)
    for (int h = 0; h < 2; ++h)
      w.scale[h] = half_at(p + 208) * static_cast<float>(static_cast<int8_t>(p[192 + 2 * s + h]));
  return w;
}

RowBlock row_block(const float* x) {
  RowBlock b{};
  for (int h = 0; h < 2; ++h) {
    float amax = 0;
    for (int i = 16 * h; i < 16 * h + 16; ++i) amax = std::max(amax, std::abs(x[i]));
    b.scale[h] = amax / 127;
    for (int i = 16 * h; i < 16 * h + 16 && amax > 0; ++i)
      b.q[i] = static_cast<int>(std::nearbyint(x[i] * (127 / amax)));
  }
  return b;
}

// The law, as it is written.
float law(DType dtype, const std::vector<WeightBlock>& w, const std::vector<RowBlock>& x) {
  float acc = 0;
  for (size_t b = 0; b < w.size(); ++b) {
    int sum[2] = {0, 0}, of_x[2] = {0, 0};
    for (int i = 0; i < 32; ++i) sum[i / 16] += w[b].q[i] * x[b].q[i], of_x[i / 16] += x[b].q[i];
    const float first = x[b].scale[0] * static_cast<float>(sum[0]),
                second = x[b].scale[1] * static_cast<float>(sum[1]);
    if (has_halves(dtype))
      acc = std::fma(w[b].scale[1], second, std::fma(w[b].scale[0], first, acc));
    else
      acc =
          std::fma(w[b].scale[0], std::fma(x[b].scale[1], static_cast<float>(sum[1]), first), acc);
    const bool has_min = dtype == DType::q4_1 || dtype == DType::q5_1 || dtype == DType::q4_k ||
                         dtype == DType::q5_k;
    if (dtype == DType::q2_k) {
      acc = std::fma(w[b].min, x[b].scale[0] * static_cast<float>(of_x[0]), acc);
      acc = std::fma(w[b].second_min, x[b].scale[1] * static_cast<float>(of_x[1]), acc);
    }
    if (has_min)
      acc = std::fma(w[b].min,
                     std::fma(x[b].scale[1], static_cast<float>(of_x[1]),
                              x[b].scale[0] * static_cast<float>(of_x[0])),
                     acc);
  }
  return acc;
}

struct Weights {
  DType dtype;
  int64_t out, in, row_bytes;
  std::vector<uint8_t> rows;                // [O, row_bytes], with a gap behind each row
  std::vector<std::vector<WeightBlock>> w;  // [O, I/32]
  Arena memory;
  void* panels;

  // Random bits, or every byte `fill`, with f16 scales of either sign between 0.01 and 0.04 put
  // where scales are.
  Weights(DType type, int64_t o, int64_t i, uint64_t seed, std::optional<uint8_t> fill = {})
      : dtype(type), out(o), in(i), row_bytes(bytes_of(type, i) + 6) {
    const RngKey key = RngKey::from_seed(seed);
    uint64_t drawn = 0;
    rows.resize(static_cast<size_t>(out * row_bytes));
    for (uint8_t& byte : rows)
      byte = fill ? *fill : static_cast<uint8_t>(uniform(key, drawn++) * 256);
    const auto put_half = [&](uint8_t* p) {
      const float sign = uniform(key, drawn++) < 0.2f ? -1.0f : 1.0f;
      const uint16_t h = f32_to_f16(sign * (0.01f + 0.03f * uniform(key, drawn++)));
      p[0] = static_cast<uint8_t>(h & 255), p[1] = static_cast<uint8_t>(h >> 8);
    };
    const bool second = dtype == DType::q4_1 || dtype == DType::q5_1 || dtype == DType::q4_k ||
                        dtype == DType::q5_k;
    w.resize(static_cast<size_t>(out));
    for (int64_t n = 0; n < out; ++n) {
      uint8_t* row = rows.data() + n * row_bytes;
      for (uint8_t* p = row; p < row + bytes_of(dtype, in); p += block_of(dtype).bytes) {
        switch (dtype) {
          case DType::q6_k: put_half(p + 208); break;
          case DType::q3_k: put_half(p + 108); break;
          case DType::q2_k: put_half(p + 80), put_half(p + 82); break;
          case DType::mxfp4: *p = static_cast<uint8_t>(118 + *p % 8); break;
          case DType::tq1_0: put_half(p + 52); break;
          case DType::tq2_0: put_half(p + 64); break;
          case DType::iq1_m: p[55] = (p[55] & 0x8F) | 0x20; break;  // d's highest bits
          default: put_half(p);
        }
        if (second) put_half(p + 2);
      }
      for (int64_t j = 0; j < in / 32; ++j)
        w[static_cast<size_t>(n)].push_back(weight_block(dtype, row, j));
    }
    const size_t size = ops::quant_panels_bytes(dtype, out, in);
    panels = memory.alloc_bytes(size);
    std::memset(panels, 0x5A, size);  // what is not written shows
    const int64_t groups = ops::quant_groups(out);
    for (int64_t g = groups; g-- > 0;)
      ops::quant_pack(panels, dtype, rows.data(), row_bytes, out, in, {g, g + 1});
  }
  // [O,I] in f32, as everyone else reads the blocks.
  std::vector<float> numbers() const {
    std::vector<float> v(static_cast<size_t>(out * in));
    for (int64_t n = 0; n < out; ++n)
      dequantise(v.data() + n * in, rows.data() + n * row_bytes, dtype, in);
    return v;
  }
};

// Rows of every size, some with blocks of zeros; the halves of a block differ in size, now the
// first and now the second the larger.
Tensor draw_rows(Arena& memory, DType dtype, int64_t rows, int64_t in, uint64_t seed) {
  const Tensor x = memory.alloc(dtype, {rows, in});
  const RngKey key = RngKey::from_seed(seed);
  for (int64_t i = 0; i < rows * in; ++i) {
    const int64_t block = i / 32, half = i / 16;
    const float v = block % 7 == 3 ? 0.0f
                                   : (uniform(key, static_cast<uint64_t>(i)) - 0.4f) *
                                         std::exp2(static_cast<float>(half % 9) - 4);
    if (dtype == DType::bf16) x.as<bf16>()[i] = to_bf16(v);
    else x.as<float>()[i] = v;
  }
  return x;
}
std::vector<float> floats(const Tensor& x) {
  std::vector<float> v(static_cast<size_t>(x.numel()));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = x.dtype == DType::bf16 ? to_f32(x.as<bf16>()[i]) : x.as<float>()[i];
  return v;
}
std::vector<std::vector<RowBlock>> row_blocks(const Tensor& x) {
  const std::vector<float> v = floats(x);
  std::vector<std::vector<RowBlock>> blocks(static_cast<size_t>(x.rows()));
  for (int64_t r = 0; r < x.rows(); ++r)
    for (int64_t j = 0; j < x.cols() / 32; ++j)
      blocks[static_cast<size_t>(r)].push_back(row_block(v.data() + r * x.cols() + j * 32));
  return blocks;
}

void* quantised(Arena& memory, const Tensor& x, const int32_t* list = nullptr, int64_t rows = -1) {
  rows = rows < 0 ? x.rows() : rows;
  void* q = memory.alloc_bytes(ops::quant_rows_bytes(rows, x.cols()));
  ops::quant_rows(q, {x.data, x.dtype, x.cols(), list}, x.cols(), {0, rows});
  return q;
}

std::string label(DType dtype, int64_t m, int64_t out, int64_t in) {
  return std::string(name_of(dtype)) + " [" + std::to_string(m) + ", " + std::to_string(in) +
         "] x " + std::to_string(out);
}

struct Size {
  int64_t rows, out, in;
};
// One chunk, several, and one that is cut; columns that fill no group, one group and several.
std::vector<Size> sizes(DType dtype) {
  if (block_of(dtype).elements == 256)
    return {{1, 16, 256}, {3, 1, 512}, {14, 33, 768}, {29, 40, 256}};
  if (block_of(dtype).elements == 128)
    return {{1, 16, 128}, {3, 1, 256}, {14, 33, 384}, {29, 40, 640}};
  if (block_of(dtype).elements == 64)
    return {{1, 16, 64}, {3, 1, 256}, {14, 33, 320}, {29, 40, 576}, {12, 17, 192}};
  return {{1, 16, 32}, {3, 1, 256}, {14, 33, 288}, {29, 40, 544}, {12, 17, 96}};
}

// y = x W^T, every number as the law has it.
void expect_the_law(const Weights& w, const Tensor& x) {
  const auto blocks = row_blocks(x);
  const int64_t rows = x.rows();
  Arena memory;
  const void* q = quantised(memory, x);
  const Tensor y = memory.alloc(DType::f32, {rows, w.out});
  ops::quant_multiply({y.data, y.dtype, w.out, false}, q, nullptr, rows, w.panels, w.dtype, w.out,
                      w.in, {0, ops::quant_groups(w.out)});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t n = 0; n < w.out; ++n) {
      const float want = law(w.dtype, w.w[static_cast<size_t>(n)], blocks[static_cast<size_t>(r)]);
      ASSERT_EQ(std::bit_cast<uint32_t>(y.row<float>(r)[n]), std::bit_cast<uint32_t>(want))
          << label(w.dtype, rows, w.out, w.in) << " row " << r << " column " << n << ": "
          << y.row<float>(r)[n] << ", not " << want;
    }
}

TEST(QuantProduct, FollowsTheLawInBits) {
  for (DType dtype : kTypes)
    for (DType x_dtype : {DType::f32, DType::bf16})
      for (const Size& s : sizes(dtype)) {
        const Weights w(dtype, s.out, s.in, 7);
        Arena memory;
        ASSERT_NO_FATAL_FAILURE(expect_the_law(w, draw_rows(memory, x_dtype, s.rows, s.in, 8)));
      }
}

// Sums of products at the ends of their range, which a kernel that adds in 16 bits must hold: all
// weights the largest or the smallest of their type, all of a row's numbers 127 or -127.
TEST(QuantProduct, HoldsTheLargestSums) {
  constexpr int64_t kOut = 24, kIn = 256;
  for (DType dtype : kTypes)
    for (const uint8_t fill : {0xFF, 0x80, 0x77, 0x00}) {
      const Weights w(dtype, kOut, kIn, 9, fill);
      for (const int64_t rows : {1, 2, 3, 4, 5, 16, 18}) {
        Arena memory;
        const Tensor x = memory.alloc(DType::f32, {rows, kIn});
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t i = 0; i < kIn; ++i) x.row<float>(r)[i] = r % 2 ? -1.0f : 1.0f;
        ASSERT_NO_FATAL_FAILURE(expect_the_law(w, x)) << "bytes of " << int{fill};
      }
    }
}

// f32 sums of 8 or 17 fmas: within 1e-6 of the sum of magnitudes. And what quantising x may cost at
// most: half a step of each number, scale / 2 = amax / 254 of its 16.
TEST(QuantProduct, IsTheProductOfWhatTheBlocksMean) {
  for (DType dtype : kTypes) {
    const int64_t rows = 6, out = 37, in = 512;
    const Weights w(dtype, out, in, 17);
    const std::vector<float> weights = w.numbers();
    Arena memory;
    const Tensor x = draw_rows(memory, DType::f32, rows, in, 18);
    const std::vector<float> v = floats(x);
    const auto blocks = row_blocks(x);
    const Tensor y = memory.alloc(DType::f32, {rows, out});
    ops::quant_multiply({y.data, y.dtype, out, false}, quantised(memory, x), nullptr, rows,
                        w.panels, dtype, out, in, {0, ops::quant_groups(out)});
    double lost = 0;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t n = 0; n < out; ++n) {
        double of_blocks = 0, of_rows = 0, magnitude = 0, bound = 0;
        for (int64_t i = 0; i < in; ++i) {
          const RowBlock& b = blocks[static_cast<size_t>(r)][static_cast<size_t>(i / 32)];
          const double weight = weights[static_cast<size_t>(n * in + i)],
                       scale = b.scale[i / 16 % 2], number = scale * b.q[i % 32];
          of_blocks += weight * number;
          of_rows += weight * v[static_cast<size_t>(r * in + i)];
          magnitude += std::abs(weight * number);
          bound += std::abs(weight) * scale / 2;
        }
        const double got = y.row<float>(r)[n];
        ASSERT_NEAR(got, of_blocks, 1e-6 * magnitude) << label(dtype, rows, out, in);
        ASSERT_LE(std::abs(got - of_rows), bound + 1e-6 * magnitude) << label(dtype, rows, out, in);
        lost = std::max(lost, std::abs(got - of_rows));
      }
    EXPECT_GT(lost, 0) << name_of(dtype);
  }
}

// Each row as it is alone, in whatever company, through a list or not.
TEST(QuantProduct, RowsKeepTheirBits) {
  constexpr int64_t kRows = 300, kOut = 24, kIn = 256;
  for (DType dtype : kTypes) {
    const Weights w(dtype, kOut, kIn, 27);
    Arena memory;
    const Tensor x = draw_rows(memory, DType::f32, kRows, kIn, 28),
                 alone = memory.alloc(DType::f32, {kRows, kOut}),
                 y = memory.alloc(DType::f32, {kRows, kOut});
    const void* q = quantised(memory, x);
    const Span all{0, ops::quant_groups(kOut)};
    for (int32_t r = 0; r < kRows; ++r)
      ops::quant_multiply({alone.row<float>(r), DType::f32, kOut, false}, q, &r, 1, w.panels, dtype,
                          kOut, kIn, all);
    std::vector<int32_t> list(kRows);
    for (int64_t m = 1; m <= kRows; m += m < 40 ? 1 : 13) {
      std::iota(list.begin(), list.end(), 0);
      for (size_t i = 0; i < list.size(); ++i)
        std::swap(list[i], list[(i * 131 + static_cast<size_t>(m)) % list.size()]);
      ops::quant_multiply({y.data, DType::f32, kOut, false}, q, list.data(), m, w.panels, dtype,
                          kOut, kIn, all);
      for (int64_t r = 0; r < m; ++r)
        ASSERT_EQ(
            std::memcmp(y.row<float>(r), alone.row<float>(list[static_cast<size_t>(r)]), kOut * 4),
            0)
            << name_of(dtype) << " " << r << " of " << m;
    }
    ops::quant_multiply({y.data, DType::f32, kOut, false}, q, nullptr, kRows, w.panels, dtype, kOut,
                        kIn, all);
    ASSERT_EQ(std::memcmp(y.data, alone.data, static_cast<size_t>(kRows * kOut * 4)), 0)
        << name_of(dtype);
  }
}

// More rows and inner numbers than stay in a cache, so that rows come in several parts.
TEST(QuantProduct, ManyLongRowsKeepTheirBits) {
  constexpr int64_t kRows = 90, kOut = 20, kIn = 8192;
  const Weights w(DType::q4_k, kOut, kIn, 37);
  Arena memory;
  const Tensor x = draw_rows(memory, DType::f32, kRows, kIn, 38),
               y = memory.alloc(DType::f32, {kRows, kOut});
  const void* q = quantised(memory, x);
  ops::quant_multiply({y.data, DType::f32, kOut, false}, q, nullptr, kRows, w.panels, DType::q4_k,
                      kOut, kIn, {0, 2});
  for (int32_t r = 0; r < kRows; ++r) {
    float one[kOut];
    ops::quant_multiply({one, DType::f32, kOut, false}, q, &r, 1, w.panels, DType::q4_k, kOut, kIn,
                        {0, 2});
    ASSERT_EQ(std::memcmp(one, y.row<float>(r), sizeof one), 0) << r;
  }
}

// Which of the two ways a processor takes is a matter of speed. An odd number of groups and one
// whose columns do not fill it; rows in several parts; stretches of inner numbers that are cut.
TEST(QuantProduct, WeightsUnpackedOnceOrByEachTileGiveTheSameBits) {
  if (!ops::has_vnni()) GTEST_SKIP() << "no AVX-512 with VNNI";
  constexpr int64_t kOut = 44;
  for (DType dtype : kTypes)
    for (const int64_t in : {256, 768, 1280})
      for (const int64_t rows : {24, 31, 200}) {
        const Weights w(dtype, kOut, in, 57);
        Arena memory;
        const Tensor x = draw_rows(memory, DType::f32, rows, in, 58);
        const void* q = quantised(memory, x);
        std::vector<int32_t> list(static_cast<size_t>(rows));
        for (size_t i = 0; i < list.size(); ++i)
          list[i] = static_cast<int32_t>(i * 7 % static_cast<size_t>(rows));
        for (const DType out : {DType::f32, DType::bf16})
          for (const bool gathered : {false, true}) {
            const int32_t* row = gathered ? list.data() : nullptr;
            Tensor y[2];
            for (const bool unpacked : {false, true}) {
              y[unpacked] = memory.alloc(out, {rows, kOut});
              std::memset(y[unpacked].data, 0x3C, y[unpacked].bytes());
              ops::quant_multiply_vnni({{y[unpacked].data, out, kOut, gathered},
                                        static_cast<const ops::QuantRecord*>(q),
                                        row,
                                        rows,
                                        static_cast<const char*>(w.panels),
                                        dtype,
                                        kOut,
                                        in,
                                        {0, ops::quant_groups(kOut)},
                                        {}},
                                       unpacked);
            }
            ASSERT_EQ(std::memcmp(y[0].data, y[1].data, y[0].bytes()), 0)
                << label(dtype, rows, kOut, in);
          }
      }
}

// Groups one by one, groups packed as a matrix of their own, rows with gaps: nothing but the asked
// columns is written.
TEST(QuantProduct, GroupsStandAlone) {
  constexpr int64_t kRows = 5, kOut = 45, kIn = 512, kStride = 50;
  for (DType dtype : kTypes) {
    const Weights w(dtype, kOut, kIn, 47);
    Arena memory;
    const Tensor x = draw_rows(memory, DType::bf16, kRows, kIn, 48);
    const void* q = quantised(memory, x);
    std::vector<float> whole(kRows * kStride, 0.25f), pieces(whole), packed(whole);
    ops::quant_multiply({whole.data(), DType::f32, kStride, false}, q, nullptr, kRows, w.panels,
                        dtype, kOut, kIn, {0, 3});
    for (int64_t g = 0; g < 3; ++g) {
      ops::quant_multiply({pieces.data(), DType::f32, kStride, false}, q, nullptr, kRows, w.panels,
                          dtype, kOut, kIn, {g, g + 1});
      const int64_t columns = std::min<int64_t>(16, kOut - g * 16);
      void* few = memory.alloc_bytes(ops::quant_group_bytes(dtype, kIn));
      ops::quant_pack(few, dtype, w.rows.data() + g * 16 * w.row_bytes, w.row_bytes, columns, kIn,
                      {0, 1});
      ops::quant_multiply({packed.data() + g * 16, DType::f32, kStride, false}, q, nullptr, kRows,
                          few, dtype, columns, kIn, {0, 1});
    }
    EXPECT_EQ(whole, pieces) << name_of(dtype);
    EXPECT_EQ(whole, packed) << name_of(dtype);
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t n = kOut; n < kStride; ++n)
        ASSERT_EQ(whole[static_cast<size_t>(r * kStride + n)], 0.25f) << name_of(dtype);
  }
}

TEST(QuantProduct, AddsAndRoundsOnce) {
  constexpr int64_t kRows = 13, kOut = 21, kIn = 256;
  for (DType dtype : {DType::q8_0, DType::q4_k}) {
    const Weights w(dtype, kOut, kIn, 57);
    Arena memory;
    const Tensor x = draw_rows(memory, DType::f32, kRows, kIn, 58),
                 y = memory.alloc(DType::f32, {kRows, kOut});
    const void* q = quantised(memory, x);
    const auto multiply = [&](const Tensor& out, bool add) {
      ops::quant_multiply({out.data, out.dtype, kOut, add}, q, nullptr, kRows, w.panels, dtype,
                          kOut, kIn, {0, 2});
    };
    multiply(y, false);
    const std::vector<float> product = floats(y);
    for (DType to : {DType::f32, DType::bf16}) {
      const Tensor sum = draw_rows(memory, to, kRows, kOut, 59);
      const std::vector<float> before = floats(sum);
      multiply(sum, true);
      const std::vector<float> after = floats(sum);
      multiply(sum, false);
      const std::vector<float> plain = floats(sum);
      for (size_t i = 0; i < product.size(); ++i) {
        const float want = before[i] + product[i];
        ASSERT_EQ(after[i], to == DType::bf16 ? to_f32(to_bf16(want)) : want);
        ASSERT_EQ(plain[i], to == DType::bf16 ? to_f32(to_bf16(product[i])) : product[i]);
      }
    }
  }
}

// Rows gathered while they are quantised; numbers of the ends of the range; what is not finite
// reaches every output of its row and no other row.
TEST(QuantProduct, RowsOfEveryKind) {
  constexpr int64_t kOut = 16, kIn = 64;
  const Weights w(DType::q8_0, kOut, kIn, 67);
  const std::vector<float> weights = w.numbers();
  Arena memory;
  const Tensor x = draw_rows(memory, DType::f32, 6, kIn, 68),
               y = memory.alloc(DType::f32, {6, kOut}), z = memory.alloc(DType::f32, {6, kOut});
  for (int64_t i = 0; i < kIn; ++i) {
    x.row<float>(1)[i] = 0;
    x.row<float>(2)[i] = i % 2 ? 1e35f : -1e35f;
    x.row<float>(3)[i] = i % 3 ? 1e-38f : -1e-40f;
  }
  x.row<float>(4)[40] = std::numeric_limits<float>::infinity();
  x.row<float>(5)[9] = std::numeric_limits<float>::quiet_NaN();
  const auto multiply = [&](const Tensor& out, const void* q) {
    ops::quant_multiply({out.data, out.dtype, kOut, false}, q, nullptr, 6, w.panels, DType::q8_0,
                        kOut, kIn, {0, 1});
  };
  multiply(y, quantised(memory, x));
  for (int64_t n = 0; n < kOut; ++n) {
    EXPECT_EQ(y.row<float>(1)[n], 0);
    EXPECT_NEAR(y.row<float>(3)[n], 0, 1e-35);
    EXPECT_TRUE(std::isnan(y.row<float>(4)[n]) && std::isnan(y.row<float>(5)[n]));
    double want = 0, magnitude = 0;
    for (int64_t i = 0; i < kIn; ++i)
      want += static_cast<double>(weights[static_cast<size_t>(n * kIn + i)]) * x.row<float>(2)[i],
          magnitude += std::abs(weights[static_cast<size_t>(n * kIn + i)] * 1e35);
    EXPECT_NEAR(y.row<float>(2)[n], want, 1e-6 * magnitude);
  }
  const std::vector<int32_t> list = {5, 0, 3, 0, 2, 1};
  multiply(z, quantised(memory, x, list.data(), 6));
  for (size_t r = 1; r < list.size(); ++r)
    EXPECT_EQ(std::memcmp(z.row<float>(static_cast<int64_t>(r)), y.row<float>(list[r]), kOut * 4),
              0)
        << r;
}

// ---- many rows, in tiles ------------------------------------------------------------------------

// Rows [0, rows) of x times the columns of `groups`.
void multiply_tiles(const ops::QuantOut& out, const Weights& w, const Tensor& x, int64_t rows,
                    Span groups) {
  Arena memory;
  const ops::TilesInUse in_use;
  void* tiles = memory.alloc_bytes(static_cast<size_t>(ops::tiled_bytes(rows, w.in)));
  ops::tile_rows(tiles, {x.data, x.dtype, x.cols()}, rows, w.in);
  ops::quant_multiply_tiles(out, tiles, rows, w.panels, w.dtype, w.out, w.in, groups, {},
                            memory.alloc_bytes(ops::quant_tiles_scratch_bytes()));
}

// A weight as the tiles have it: q * scale (+ min), enlarged and cut.
float cut_weight(DType dtype, const WeightBlock& w, int64_t i) {
  constexpr float kEnlarged = 1 + 11 / 4096.0f;
  const int half = static_cast<int>(i / 16);
  const float min = dtype == DType::q2_k && half == 1 ? w.second_min : w.min;
  const float enlarged =
      std::fma(static_cast<float>(w.q[i]), w.scale[half] * kEnlarged, min * kEnlarged);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(enlarged) & 0xFFFF0000u);
}

// Within the rounding of f32 of what the law says, rows of f32 as their bf16 are; and no weight is
// further from what the file says than the law allows.
TEST(QuantTiles, FollowTheLaw) {
  if (!ops::has_tiles()) GTEST_SKIP() << "no AMX";
  for (DType dtype : kTypes)
    for (Size s : sizes(dtype)) {
      s.rows += 16;
      const Weights w(dtype, s.out, s.in, 77);
      const std::vector<float> numbers = w.numbers();
      Arena memory;
      const Tensor x = draw_rows(memory, DType::f32, s.rows, s.in, 78),
                   halves = memory.alloc(DType::bf16, {s.rows, s.in}),
                   y = memory.alloc(DType::f32, {s.rows, s.out}),
                   of_halves = memory.alloc(DType::f32, {s.rows, s.out});
      for (int64_t i = 0; i < x.numel(); ++i) halves.as<bf16>()[i] = to_bf16(x.as<float>()[i]);
      const Span all{0, ops::quant_groups(s.out)};
      multiply_tiles({y.data, y.dtype, s.out, false}, w, x, s.rows, all);
      multiply_tiles({of_halves.data, y.dtype, s.out, false}, w, halves, s.rows, all);
      ASSERT_EQ(std::memcmp(y.data, of_halves.data, y.bytes()), 0) << name_of(dtype);
      for (int64_t n = 0; n < s.out; ++n) {
        std::vector<double> cut;
        for (int64_t i = 0; i < s.in; ++i) {
          const WeightBlock& block = w.w[static_cast<size_t>(n)][static_cast<size_t>(i / 32)];
          cut.push_back(cut_weight(dtype, block, i % 32));
          const double number = numbers[static_cast<size_t>(n * s.in + i)];
          ASSERT_LE(std::abs(cut.back() - number), 0.7 / 128 * std::abs(number)) << name_of(dtype);
        }
        for (int64_t r = 0; r < s.rows; ++r) {
          double want = 0, magnitude = 0;
          for (int64_t i = 0; i < s.in; ++i) {
            const double product = cut[static_cast<size_t>(i)] * to_f32(halves.row<bf16>(r)[i]);
            want += product, magnitude += std::abs(product);
          }
          ASSERT_NEAR(y.row<float>(r)[n], want, 1e-6 * magnitude)
              << label(dtype, s.rows, s.out, s.in);
        }
      }
    }
}

// A row's bits depend neither on how many there are, beyond what stays in a cache too, nor on which
// columns are asked for; sums are added and rounded once, and nothing else is written.
TEST(QuantTiles, RowsAndGroupsStandAlone) {
  if (!ops::has_tiles()) GTEST_SKIP() << "no AMX";
  constexpr int64_t kRows = 600, kOut = 45, kIn = 768, kStride = 50;
  for (DType dtype : kTypes) {
    const Weights w(dtype, kOut, kIn, 87);
    Arena memory;
    const Tensor x = draw_rows(memory, DType::bf16, kRows, kIn, 88);
    std::vector<float> whole(kRows * kStride, 0.25f), some(whole), sums(whole);
    multiply_tiles({whole.data(), DType::f32, kStride, false}, w, x, kRows, {0, 3});
    multiply_tiles({sums.data(), DType::f32, kStride, true}, w, x, kRows, {0, 3});
    for (const int64_t rows : {1, 16, 17, 31, 32, 47, 257, 599}) {
      std::fill(some.begin(), some.end(), 0.25f);
      for (int64_t g = 0; g < 3; ++g)
        multiply_tiles({some.data(), DType::f32, kStride, false}, w, x, rows, {g, g + 1});
      ASSERT_EQ(std::memcmp(some.data(), whole.data(), static_cast<size_t>(rows * kStride) * 4), 0)
          << name_of(dtype) << ", " << rows << " rows";
      for (size_t i = static_cast<size_t>(rows * kStride); i < some.size(); ++i)
        ASSERT_EQ(some[i], 0.25f) << name_of(dtype);
    }
    std::vector<bf16> rounded(kRows * kStride, to_bf16(0.25f));
    multiply_tiles({rounded.data(), DType::bf16, kStride, false}, w, x, kRows, {0, 3});
    for (size_t i = 0; i < whole.size(); ++i) {
      const bool written = i % kStride < kOut;
      ASSERT_EQ(sums[i], written ? 0.25f + whole[i] : 0.25f) << name_of(dtype);
      ASSERT_EQ(to_f32(rounded[i]), to_f32(to_bf16(whole[i]))) << name_of(dtype);
    }
  }
}

// What is not finite reaches the outputs of its row, or of its column, and no others.
TEST(QuantTiles, WhatIsNotFiniteStaysInItsRowAndColumn) {
  if (!ops::has_tiles()) GTEST_SKIP() << "no AMX";
  constexpr int64_t kRows = 20, kOut = 32, kIn = 64, kBad = 3;
  Weights w(DType::q8_0, kOut, kIn, 97);
  for (const uint16_t scale : {uint16_t{0x7C00}, uint16_t{0x7FFF}, uint16_t{0xFE01}}) {
    std::memcpy(w.rows.data() + kBad * w.row_bytes, &scale, sizeof scale);
    for (int64_t g = 0; g < 2; ++g)
      ops::quant_pack(w.panels, w.dtype, w.rows.data(), w.row_bytes, kOut, kIn, {g, g + 1});
    Arena memory;
    const Tensor x = draw_rows(memory, DType::f32, kRows, kIn, 98),
                 y = memory.alloc(DType::f32, {kRows, kOut});
    x.row<float>(17)[9] = std::numeric_limits<float>::quiet_NaN();
    multiply_tiles({y.data, y.dtype, kOut, false}, w, x, kRows, {0, 2});
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t n = 0; n < kOut; ++n)
        ASSERT_EQ(std::isfinite(y.row<float>(r)[n]), r != 17 && n != kBad) << r << " " << n;
  }
}

// Bits that a number may take in panels: hardly more than in the file, but where scales or points
// of a grid are packed more tightly there.
double most_bits(DType dtype) {
  switch (dtype) {
    case DType::q2_k: return 3.2;
    case DType::q3_k:
    case DType::iq1_s:
    case DType::iq1_m:
    case DType::iq2_xxs:
    case DType::iq2_xs:
    case DType::iq2_s: return 3.7;
    case DType::iq3_xxs:
    case DType::iq3_s: return 4.4;
    case DType::q2_0:
    case DType::tq1_0:
    case DType::tq2_0:
    case DType::q1_0: return 2.55;
    default: return 1.03 * 8 * static_cast<double>(bytes_of(dtype, 256)) / 256;
  }
}

TEST(QuantProduct, PanelsAreAboutAsLargeAsTheFile) {
  constexpr int64_t kOut = 1024, kIn = 2048;
  for (DType dtype : kTypes) {
    const size_t bytes = ops::quant_panels_bytes(dtype, kOut, kIn);
    EXPECT_GE(bytes, static_cast<size_t>(kOut * bytes_of(dtype, kIn))) << name_of(dtype);
    EXPECT_LT(8 * static_cast<double>(bytes) / (kOut * kIn), most_bits(dtype)) << name_of(dtype);
  }
}

}  // namespace
}  // namespace moe::test::quant_product_test
