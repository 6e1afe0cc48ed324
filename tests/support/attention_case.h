// What the tests of attention share: shapes, batches of drawn queries, keys and values, and room
// for keys and values as a cache keeps them, in which whatever nobody wrote is NaN.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <tuple>
#include <vector>

#include "ops/ops.h"
#include "support/check.h"
#include "support/twins_attention.h"

namespace moe::test::of_attention {

using twin::AttentionRows;
using twin::AttentionShape;
using Lengths = std::vector<int64_t>;  // of sequences

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

inline AttentionShape shape_of(int64_t heads, int64_t kv_heads, int64_t width, int64_t value_width,
                               int64_t window = 0, double cap = 0) {
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  return {heads, kv_heads, width, value_width, scale, window, cap};
}
inline float cap_of(const AttentionShape& shape) { return static_cast<float>(shape.cap); }

// A test of shapes, of which a GPU refuses those with a cap.
template <class Param>
class OfShapes : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    if (std::get<AttentionShape>(this->GetParam()).cap > 0 && device_of_tests != nullptr)
      GTEST_SKIP() << "a cap is not computed on a GPU";
  }
};

inline Tensor nan_filled(Arena& arena, DType dtype, int64_t rows, int64_t cols) {
  const Tensor t = arena.alloc(dtype, {rows, cols});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) set(t, r, c, kNaN);
  return t;
}

// A GPU has no threads of ours: there one number of them says what several say.
inline std::vector<int> numbers_of_threads(std::vector<int> all) {
  if (device_of_tests != nullptr) all.resize(1);
  return all;
}

// Room for keys as a cache keeps them, [rows / 64, G*C, 64]; what no key fills is NaN, which all
// bits set are in every type.
inline Tensor key_blocks(Arena& arena, DType dtype, int64_t rows, int64_t cols) {
  const Tensor blocks =
      arena.alloc(dtype, {(rows + ops::kKeyBlock - 1) / ops::kKeyBlock, cols, ops::kKeyBlock});
  std::memset(blocks.data, 0xFF, static_cast<size_t>(blocks.bytes()));
  return blocks;
}
inline void set_key(const Tensor& blocks, int64_t row, int64_t c, float x) {
  set(blocks, row / ops::kKeyBlock * blocks.shape[1] + c, row % ops::kKeyBlock, x);
}

// o [N,H*Cv], lse [N,H] or absent, q [N,H*C]
inline void attend(Run& run, const Tensor& o, const Tensor& lse, const Tensor& q,
                   const ops::KvView& view, std::span<const int32_t> positions,
                   const AttentionShape& shape) {
  ops::attention_forward(run, o, lse, q, view, positions, shape.heads, shape.kv_heads,
                         static_cast<float>(shape.scale), shape.window, cap_of(shape));
}

// A batch whose q, k and v are columns of one fused matrix, as a projection leaves them; so are the
// gradients.
struct Case {
  AttentionRows rows;
  AttentionShape shape;
  Arena arena;
  Tensor q, k, v;     // [N, H*C], [N, G*C], [N, G*Cv], strided
  Tensor o, lse;      // [N, H*Cv] strided, [N, H]
  Tensor dout;        // [N, H*Cv]
  Tensor dq, dk, dv;  // as q, k, v

  Case(const Lengths& lengths, const AttentionShape& s, DType dtype, uint64_t seed = 1)
      : rows(AttentionRows::of_lengths(lengths)), shape(s) {
    const int64_t n = rows.bounds.back(), q_cols = s.heads * s.width, k_cols = s.kv_heads * s.width,
                  v_cols = s.kv_heads * s.value_width, o_cols = s.heads * s.value_width;
    const Tensor fused = draw(arena, dtype, {n, q_cols + k_cols + v_cols}, seed);
    const Tensor gradient = nan_filled(arena, dtype, n, q_cols + k_cols + v_cols);
    const auto split = [&](const Tensor& from, Tensor& a, Tensor& b, Tensor& c) {
      a = from.slice_cols(0, q_cols);
      b = from.slice_cols(q_cols, q_cols + k_cols);
      c = from.slice_cols(q_cols + k_cols, q_cols + k_cols + v_cols);
    };
    split(fused, q, k, v);
    split(gradient, dq, dk, dv);
    o = nan_filled(arena, dtype, n, o_cols + 3).slice_cols(1, o_cols + 1);
    lse = nan_filled(arena, DType::f32, n, s.heads);
    dout = draw(arena, dtype, {n, o_cols}, seed + 1);
  }

  ops::KvView view() const { return {k, v, rows.bounds, rows.first_row}; }
  // Of the rows from `begin` up to `end`.
  std::span<const int32_t> positions(int64_t begin, int64_t end) const {
    return std::span(rows.positions)
        .subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  }
  void forward(Run& run) { attend(run, o, lse, q, view(), rows.positions, shape); }
  void backward(Run& run) {
    ops::attention_backward(run, dq, dk, dv, dout, q, view(), o, lse, rows.positions, shape.heads,
                            shape.kv_heads, static_cast<float>(shape.scale), shape.window,
                            cap_of(shape));
  }
};

}  // namespace moe::test::of_attention
