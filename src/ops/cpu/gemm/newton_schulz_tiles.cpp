// Newton-Schulz of a matrix in AMX tiles. All operands lie in the shape of tiles, rounded once from
// the sums that give them, 32 by 32 at a time while those are in the first cache, so that nothing
// is packed before a product. A block of a left operand, turned as words of two bf16, is one of the
// right operand that the turned matrix is, and the other way round. So of M, which has fewer rows
// than columns (wide) or more (tall), three are kept: M as a left operand, as a right one, and M^T
// as its Gram matrix needs it:
//   wide: G = M M^T,  M' = P M    tall: G = M^T M,  M' = M P    P = a + b G + c G^2
// P is symmetric, so that a tall matrix is never turned.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/gemm/newton_schulz_tiles.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "core/error.h"
#include "ops/cpu/bf16-inl.h"
#include "ops/cpu/gemm/newton_schulz.h"
#include "ops/cpu/gemm/tile_product.h"
#include "ops/cpu/transpose-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kSide = kTiledInner;  // of a block, which is two tiles of rows
static_assert(kSide == 2 * kTiledRows);
constexpr int64_t kBlock = kSide * kSide, kBlockBytes = 2 * kBlock, kPairBytes = 4 * kSide;
// Blocks of a right operand, 16 KB, that stay in the first cache while all rows meet them.
constexpr int64_t kSteps = 8;

int64_t blocks_of(int64_t numbers) { return (numbers + kSide - 1) / kSide; }

// A left operand: blocks of 16 rows, in each the tiles of 32 numbers.
struct Left {
  char* data;
  int64_t blocks;  // of 32 numbers

  // Two tiles, of 16 rows each, row_bytes() apart.
  char* at(int64_t row_block, int64_t block) const {
    return data + (2 * row_block * blocks + block) * kTiledBytes;
  }
  int64_t row_bytes() const { return blocks * kTiledBytes; }
};

// A right operand: panels of 32 columns, in each blocks of 16 pairs of numbers.
struct Right {
  char* data;
  int64_t blocks;  // of 32 numbers

  char* at(int64_t block, int64_t panel) const {
    return data + (panel * blocks + block) * kBlockBytes;
  }
};

// What is kept of M [R,C], R and C in blocks of 32: of M^T, the one that its Gram matrix needs.
struct Kept {
  Left left;           // M
  Right right;         // M
  Left turned_left;    // M^T of a tall one
  Right turned_right;  // M^T of a wide one
};

// 32 rows of 32 sums, rounded, as a block of a left operand, or of a right one.  sums [32,32]
MOE_BF16 void round_left(const float* sums, const Left& to, int64_t row_block, int64_t block) {
  for (int64_t i = 0; i < kSide; ++i, sums += kSide) {
    char* row = to.at(row_block, block) + i / kTiledRows * to.row_bytes() + i % kTiledRows * 64;
    _mm512_store_si512(
        row, (__m512i)_mm512_cvtne2ps_pbh(_mm512_load_ps(sums + 16), _mm512_load_ps(sums)));
  }
}
MOE_BF16 void round_right(const float* sums, const Right& to, int64_t block, int64_t panel) {
  char* pair = to.at(block, panel);
  for (int64_t i = 0; i < kSide; i += 2, sums += 2 * kSide, pair += kPairBytes) {
    _mm512_store_si512(pair, round_pairs(_mm512_load_ps(sums), _mm512_load_ps(sums + kSide)));
    _mm512_store_si512(pair + 64,
                       round_pairs(_mm512_load_ps(sums + 16), _mm512_load_ps(sums + kSide + 16)));
  }
}

void turn_words(char* to, int64_t to_stride, const char* from, int64_t from_stride) {
  Transpose16<false>(reinterpret_cast<uint32_t*>(to), to_stride,
                     reinterpret_cast<const uint32_t*>(from), from_stride);
}

// Block (i, j) of M, given as sums: all that is kept of it.
void keep_block(const Kept& m, bool tall, int64_t i, int64_t j, const float* sums) {
  round_left(sums, m.left, i, j);
  round_right(sums, m.right, i, j);
  const char *left = m.left.at(i, j), *right = m.right.at(i, j);
  if (tall) {
    char* turned = m.turned_left.at(j, i);
    turn_words(turned, 16, right, kSide);
    turn_words(turned + m.turned_left.row_bytes(), 16, right + 64, kSide);
  } else {
    char* turned = m.turned_right.at(j, i);
    turn_words(turned, kSide, left, 16);
    turn_words(turned + 64, kSide, left + m.left.row_bytes(), 16);
  }
}

// Block (i, j) of x [O,I] times `factor`, zeros beyond it.
MOE_BF16 void load_block(float* sums, const Tensor& x, int64_t i, int64_t j, float factor) {
  const int64_t rows = std::min(kSide, x.rows() - i * kSide);
  const uint32_t mask = first_lanes(x.cols() - j * kSide);
  const __m512 by = _mm512_set1_ps(factor);
  for (int64_t r = 0; r < kSide; ++r, sums += kSide) {
    const float* from = x.row<float>(i * kSide + std::min(r, rows - 1)) + j * kSide;
    const uint32_t part = r < rows ? mask : 0;
    _mm512_store_ps(sums,
                    _mm512_mul_ps(by, _mm512_maskz_loadu_ps(static_cast<__mmask16>(part), from)));
    _mm512_store_ps(
        sums + 16,
        _mm512_mul_ps(by, _mm512_maskz_loadu_ps(static_cast<__mmask16>(part >> 16), from + 16)));
  }
}

MOE_BF16 void store_block(const Tensor& x, int64_t i, int64_t j, const float* sums) {
  const int64_t rows = std::min(kSide, x.rows() - i * kSide);
  const uint32_t mask = first_lanes(x.cols() - j * kSide);
  for (int64_t r = 0; r < rows; ++r, sums += kSide) {
    float* to = x.row<float>(i * kSide + r) + j * kSide;
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>(mask), _mm512_load_ps(sums));
    _mm512_mask_storeu_ps(to + 16, static_cast<__mmask16>(mask >> 16), _mm512_load_ps(sums + 16));
  }
}

// sums = c sums + b gram, and a more in the diagonal of a block on it.  gram [32,32]
MOE_BF16 void combine_block(float* sums, const float* gram, const NewtonSchulz& of, bool diagonal) {
  const __m512 b = _mm512_set1_ps(of.b), c = _mm512_set1_ps(of.c);
  for (int64_t k = 0; k < kBlock; k += 16)
    _mm512_store_ps(sums + k, _mm512_fmadd_ps(b, _mm512_load_ps(gram + k),
                                              _mm512_mul_ps(c, _mm512_load_ps(sums + k))));
  if (!diagonal) return;
  for (int64_t k = 0; k < kSide; ++k) sums[k * (kSide + 1)] += of.a;
}

// A product of blocks of 32 by 32.
struct BlockProduct {
  Left left;
  Right right;
  int64_t rows, cols;  // in blocks
  float* sums;         // [rows, cols, 32, 32]; null: nobody needs them all
};

// f(i, j, sums) of each block, whose rows are shared among the workers.
template <class F>
void each_block(const Workers& workers, const BlockProduct& p, F&& f) {
  workers.share(p.rows, [&](Span mine, Arena& scratch) {
    const int64_t count = mine.end - mine.begin, blocks = p.left.blocks;
    float* of_panel =
        p.sums != nullptr ? nullptr : scratch.alloc(DType::f32, {count, kBlock}).as<float>();
    const auto sums_at = [&](int64_t i, int64_t j) {
      return p.sums != nullptr ? p.sums + (i * p.cols + j) * kBlock
                               : of_panel + (i - mine.begin) * kBlock;
    };
    const TilesInUse in_use;
    for (int64_t j = 0; j < p.cols; ++j)
      for (int64_t k = 0; k < blocks; k += kSteps)
        for (int64_t i = mine.begin; i < mine.end; ++i) {
          float* sums = sums_at(i, j);
          sum_tiles({.a0 = p.left.at(i, k),
                     .a1 = p.left.at(i, k) + p.left.row_bytes(),
                     .b = p.right.at(k, j),
                     .b_block = kBlockBytes,
                     .b_row = kPairBytes,
                     .steps = std::min(kSteps, blocks - k),
                     .c = reinterpret_cast<char*>(sums),
                     .c_stride = kSide * 4,
                     .first = k == 0});
          if (k + kSteps >= blocks) f(i, j, sums);
        }
  });
}

// Where one matrix is worked on.
struct TiledMatrix {
  TiledMatrix(const Workers& of, const Tensor& matrix, const Sides& s)
      : workers(of),
        x(matrix),
        tall(s.is_tall),
        rows(blocks_of(x.rows())),
        cols(blocks_of(x.cols())),
        n(std::min(rows, cols)),
        gram(of.scratch.alloc(DType::f32, {n * n, kBlock}).as<float>()) {
    m.left = left(rows, cols);
    m.right = right(rows, cols);
    if (tall) m.turned_left = left(cols, rows);
    else m.turned_right = right(cols, rows);
    next = m;
    // What a step reads of M it may not write yet.
    if (tall) next.left = left(rows, cols);
    else next.right = right(rows, cols);
    g_left = left(n, n);
    g_right = right(n, n);
    if (tall) p_right = right(n, n);
    else p_left = left(n, n);
  }

  void load(float factor) {
    workers.share(rows, [&](Span mine, Arena& scratch) {
      auto* sums = scratch.alloc(DType::f32, {kSide, kSide}).as<float>();
      for (int64_t i = mine.begin; i < mine.end; ++i)
        for (int64_t j = 0; j < cols; ++j) {
          load_block(sums, x, i, j, factor);
          keep_block(m, tall, i, j, sums);
        }
    });
  }
  void step(const NewtonSchulz& of, bool last) {
    const Left gram_left = tall ? m.turned_left : m.left;
    const Right gram_right = tall ? m.right : m.turned_right;
    each_block(workers, {gram_left, gram_right, n, n, gram},
               [&](int64_t i, int64_t j, const float* sums) {
                 round_left(sums, g_left, i, j);
                 round_right(sums, g_right, i, j);
               });
    each_block(workers, {g_left, g_right, n, n, nullptr}, [&](int64_t i, int64_t j, float* sums) {
      combine_block(sums, gram + (i * n + j) * kBlock, of, i == j);
      if (tall) round_right(sums, p_right, i, j);
      else round_left(sums, p_left, i, j);
    });
    each_block(workers, {tall ? m.left : p_left, tall ? p_right : m.right, rows, cols, nullptr},
               [&](int64_t i, int64_t j, const float* sums) {
                 if (last) store_block(x, i, j, sums);
                 else keep_block(next, tall, i, j, sums);
               });
    std::swap(m, next);
  }

 private:
  Left left(int64_t row_blocks, int64_t blocks) const {
    return {alloc(row_blocks, blocks), blocks};
  }
  Right right(int64_t blocks, int64_t panels) const { return {alloc(blocks, panels), blocks}; }
  char* alloc(int64_t a, int64_t b) const {
    return static_cast<char*>(
        workers.scratch.alloc_bytes(static_cast<size_t>(a * b * kBlockBytes)));
  }

  const Workers& workers;
  Tensor x;
  bool tall;
  int64_t rows, cols, n;  // of x and of G, in blocks of 32
  float* gram;            // [n, n, 32, 32]
  Kept m{}, next{};       // of one operand each has its own, the others are the same memory
  Left g_left, p_left{};
  Right g_right, p_right{};
};

void steps_in_tiles(const Workers& workers, const Tensor& x, float factor,
                    std::span<const NewtonSchulz> steps) {
  const ArenaScope scope(workers.scratch);
  TiledMatrix matrix(workers, x, Sides(x));
  matrix.load(factor);
  for (size_t i = 0; i < steps.size(); ++i) matrix.step(steps[i], i + 1 == steps.size());
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace moe::ops {

int64_t newton_schulz_tiles_bytes(const Sides& s) {
  const int64_t n = round_up(s.n, kTiledInner), m = round_up(s.m, kTiledInner);
  return 2 * 4 * n * m + (4 + 2 * 3) * n * n + 4 * kTiledInner * m;
}

#if HWY_TARGETS & HWY_AVX3
void newton_schulz_in_tiles(const Workers& workers, const Tensor& x, float factor,
                            std::span<const NewtonSchulz> steps) {
  N_AVX3::steps_in_tiles(workers, x, factor, steps);
}
#else
void newton_schulz_in_tiles(const Workers&, const Tensor&, float, std::span<const NewtonSchulz>) {
  fail("there are no AMX tiles on this processor");
}
#endif

}  // namespace moe::ops
#endif  // HWY_ONCE
