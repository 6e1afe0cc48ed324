// Causal attention: forward and backward against the naive twin, the twin against dual numbers, and
// the law of rows in bits: a query's result is the same whether its prompt comes in one piece, in
// chunks or token by token from a cache, alone or among others, on one thread or several.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "core/error.h"
#include "ops/ops.h"
#include "support/check.h"
#include "support/twins_attention.h"
#include "tensor/quant.h"

namespace moe::test::attention_test {
namespace {

using twin::AttentionRows;
using twin::AttentionShape;
using Rows = std::vector<int64_t>;  // lengths of sequences

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

AttentionShape shape_of(int64_t heads, int64_t kv_heads, int64_t width, int64_t value_width,
                        int64_t window = 0, double cap = 0) {
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  return {heads, kv_heads, width, value_width, scale, window, cap};
}
float cap_of(const AttentionShape& shape) { return static_cast<float>(shape.cap); }

// A test of shapes, of which a GPU refuses those with a cap.
template <class Param>
class OfShapes : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    if (std::get<AttentionShape>(this->GetParam()).cap > 0 && device_of_tests != nullptr)
      GTEST_SKIP() << "a cap is not computed on a GPU";
  }
};

Tensor nan_filled(Arena& arena, DType dtype, int64_t rows, int64_t cols) {
  const Tensor t = arena.alloc(dtype, {rows, cols});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) set(t, r, c, kNaN);
  return t;
}

// A GPU has no threads of ours: there one number of them says what several say.
std::vector<int> numbers_of_threads(std::vector<int> all) {
  if (device_of_tests != nullptr) all.resize(1);
  return all;
}

// Room for keys as a cache keeps them, [rows / 64, G*C, 64]; what no key fills is NaN, which all
// bits set are in every type.
Tensor key_blocks(Arena& arena, DType dtype, int64_t rows, int64_t cols) {
  const Tensor blocks =
      arena.alloc(dtype, {(rows + ops::kKeyBlock - 1) / ops::kKeyBlock, cols, ops::kKeyBlock});
  std::memset(blocks.data, 0xFF, static_cast<size_t>(blocks.bytes()));
  return blocks;
}
void set_key(const Tensor& blocks, int64_t row, int64_t c, float x) {
  set(blocks, row / ops::kKeyBlock * blocks.shape[1] + c, row % ops::kKeyBlock, x);
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

  Case(const Rows& lengths, const AttentionShape& s, DType dtype, uint64_t seed = 1)
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
  void forward(Run& run) {
    ops::attention_forward(run, o, lse, q, view(), rows.positions, shape.heads, shape.kv_heads,
                           static_cast<float>(shape.scale), shape.window, cap_of(shape));
  }
  void backward(Run& run) {
    ops::attention_backward(run, dq, dk, dv, dout, q, view(), o, lse, rows.positions, shape.heads,
                            shape.kv_heads, static_cast<float>(shape.scale), shape.window,
                            cap_of(shape));
  }
};

// ---- against the twin ---------------------------------------------------------------------------

class AttentionTwin : public OfShapes<std::tuple<DType, AttentionShape, Rows>> {};

TEST_P(AttentionTwin, forward_and_backward) {
  const auto& [dtype, shape, lengths] = GetParam();
  Case c(lengths, shape, dtype);
  moe::Run run(2);
  c.forward(run);
  const auto q = values(c.q), k = values(c.k), v = values(c.v);
  const auto want = twin::attention_forward(q, k, v, c.rows, shape);
  expect_near(c.o, want.o, tolerance(dtype), "o");
  expect_near(c.lse, want.lse, kTwinF32, "lse");
  c.backward(run);
  const auto grads = twin::attention_backward(values(c.dout), q, k, v, c.rows, shape);
  // A sequence of one token has no gradient through its softmax.
  if (*std::max_element(lengths.begin(), lengths.end()) > 1) {
    expect_near(c.dq, grads.dq, tolerance(dtype), "dq");
    expect_near(c.dk, grads.dk, tolerance(dtype), "dk");
  }
  expect_near(c.dv, grads.dv, tolerance(dtype), "dv");
}

INSTANTIATE_TEST_SUITE_P(
    shapes, AttentionTwin,
    testing::Combine(
        testing::Values(DType::f32, DType::bf16),
        testing::Values(shape_of(4, 4, 16, 16), shape_of(4, 2, 8, 8), shape_of(4, 1, 64, 64),
                        shape_of(3, 1, 20, 33), shape_of(2, 1, 33, 12), shape_of(2, 2, 128, 128),
                        shape_of(1, 1, 256, 256), shape_of(6, 2, 9, 1), shape_of(70, 1, 8, 8),
                        shape_of(2, 2, 1, 5)),
        testing::Values(Rows{1}, Rows{7}, Rows{64}, Rows{0, 65, 1, 0, 5, 130, 16, 0})));

// Windows of a key, within a block, of a block, over blocks, and longer than the sequence.
INSTANTIATE_TEST_SUITE_P(
    windows, AttentionTwin,
    testing::Combine(testing::Values(DType::f32, DType::bf16),
                     testing::Values(shape_of(4, 2, 16, 8, 2), shape_of(4, 2, 16, 8, 17),
                                     shape_of(4, 1, 16, 8, 64), shape_of(3, 3, 20, 33, 65),
                                     shape_of(2, 1, 33, 12, 100), shape_of(70, 1, 8, 8, 130),
                                     shape_of(2, 2, 8, 8, 1000)),
                     testing::Values(Rows{7}, Rows{64}, Rows{0, 65, 1, 0, 5, 330, 16, 0})));

// Over several stretches of keys, whose sums are joined.
INSTANTIATE_TEST_SUITE_P(stretches, AttentionTwin,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(shape_of(4, 2, 16, 8),
                                                          shape_of(2, 1, 33, 12, 700),
                                                          shape_of(2, 2, 9, 8, 0, 1)),
                                          testing::Values(Rows{1030, 520})));

// Caps that hold scores back much, and one that hardly does.
INSTANTIATE_TEST_SUITE_P(
    caps, AttentionTwin,
    testing::Combine(testing::Values(DType::f32, DType::bf16),
                     testing::Values(shape_of(4, 4, 16, 16, 0, 0.5), shape_of(4, 2, 33, 12, 0, 2),
                                     shape_of(6, 2, 64, 20, 17, 1), shape_of(70, 1, 8, 8, 130, 1.5),
                                     shape_of(2, 1, 128, 128, 0, 50)),
                     testing::Values(Rows{7}, Rows{64}, Rows{0, 65, 1, 0, 5, 330, 16, 0})));

// As wide as latents are.
INSTANTIATE_TEST_SUITE_P(wide, AttentionTwin,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(shape_of(16, 1, 576, 512),
                                                          shape_of(2, 1, 328, 520)),
                                          testing::Values(Rows{70})));

TEST(Attention, a_window_of_one_token_is_its_own_value) {
  const AttentionShape shape = shape_of(4, 2, 8, 16, 1);
  Case c({130}, shape, DType::f32);
  moe::Run run(2);
  c.forward(run);
  for (int64_t n = 0; n < 130; ++n)
    for (int64_t h = 0; h < 4; ++h)
      for (int64_t i = 0; i < 16; ++i)
        ASSERT_EQ(get(c.o, n, h * 16 + i), get(c.v, n, h / 2 * 16 + i));
}

// A window as long as the sequence is none.
TEST(Attention, a_long_window_changes_no_bit) {
  Case a({150, 64}, shape_of(4, 2, 20, 33), DType::f32),
      b({150, 64}, shape_of(4, 2, 20, 33, 150), DType::f32);
  moe::Run run(2);
  for (Case* c : {&a, &b}) {
    c->forward(run);
    c->backward(run);
  }
  for (const auto& [x, y] :
       {std::pair{a.o, b.o}, {a.lse, b.lse}, {a.dq, b.dq}, {a.dk, b.dk}, {a.dv, b.dv}})
    EXPECT_TRUE(same_bits(x, y));
}

TEST(Attention, twin_backward_is_the_derivative) {
  for (const auto& [window, cap] : {std::pair{0, 0.0}, {2, 0.0}, {0, 0.7}, {2, 1.5}}) {
    const AttentionShape shape = shape_of(4, 2, 3, 2, window, cap);
    Case c({3, 1, 0, 4}, shape, DType::f32);
    const auto q = values(c.q), k = values(c.k), v = values(c.v), dout = values(c.dout);
    const auto grads = twin::attention_backward(dout, q, k, v, c.rows, shape);
    const auto to_dual = [](const std::vector<double>& x) {
      return std::vector<Dual<double>>(x.begin(), x.end());
    };
    const auto qd = to_dual(q), kd = to_dual(k), vd = to_dual(v);
    // d<dout, o> / dx[i] for each element of one input.
    const auto derivative = [&](size_t which, size_t size) {
      std::vector<double> out(size);
      for (size_t i = 0; i < size; ++i) {
        auto inputs = std::array{qd, kd, vd};
        inputs[which][i].d = 1;
        const auto o = twin::attention_forward(inputs[0], inputs[1], inputs[2], c.rows, shape).o;
        for (size_t j = 0; j < o.size(); ++j) out[i] += dout[j] * o[j].d;
      }
      return out;
    };
    expect_near(grads.dq, derivative(0, q.size()), kTwinDual, "dq");
    expect_near(grads.dk, derivative(1, k.size()), kTwinDual, "dk");
    expect_near(grads.dv, derivative(2, v.size()), kTwinDual, "dv");
  }
}

// Small integers make the scores exact, so that only the softmax is on trial: differences of
// hundreds, all of it shifted by 10^4.
TEST(Attention, large_scores) {
  const AttentionShape shape{2, 1, 16, 16, 0.5};
  Case c({150}, shape, DType::f32);
  const RngKey key = RngKey::from_seed(5);
  for (int64_t n = 0; n < 150; ++n) {
    for (int64_t i = 0; i < 32; ++i)
      set(c.q, n, i,
          i % 16 == 0
              ? 200.0f
              : static_cast<float>(uniform_index(key, static_cast<uint64_t>(n * 64 + i), 17)) - 8);
    for (int64_t i = 0; i < 16; ++i)
      set(c.k, n, i,
          i == 0
              ? 100.0f
              : static_cast<float>(uniform_index(key, static_cast<uint64_t>(n * 64 + 32 + i), 17)) -
                    8);
  }
  moe::Run run(2);
  c.forward(run);
  c.backward(run);
  const auto q = values(c.q), k = values(c.k), v = values(c.v);
  const auto want = twin::attention_forward(q, k, v, c.rows, shape);
  EXPECT_GT(*std::min_element(want.lse.begin(), want.lse.end()), 9000);
  expect_near(c.o, want.o, kTwinF32, "o");
  expect_near(c.lse, want.lse, kTwinF32, "lse");
  for (const Tensor& t : {c.dq, c.dk, c.dv})
    for (double x : values(t)) ASSERT_TRUE(std::isfinite(x));
}

TEST(Attention, empty_batch_and_absent_lse) {
  moe::Run run(2);
  Case none({0, 0}, shape_of(2, 1, 8, 8), DType::f32);
  EXPECT_NO_THROW(none.forward(run));
  EXPECT_NO_THROW(none.backward(run));
  Case a({70}, shape_of(2, 1, 8, 8), DType::f32), b({70}, shape_of(2, 1, 8, 8), DType::f32);
  a.forward(run);
  b.lse = Tensor();
  b.forward(run);
  EXPECT_TRUE(same_bits(a.o, b.o));
}

// ---- law of rows --------------------------------------------------------------------------------

class AttentionLaw : public OfShapes<std::tuple<DType, AttentionShape>> {};

INSTANTIATE_TEST_SUITE_P(
    shapes, AttentionLaw,
    testing::Combine(testing::Values(DType::f32, DType::bf16),
                     testing::Values(shape_of(2, 2, 64, 64), shape_of(6, 2, 20, 33),
                                     shape_of(5, 1, 16, 8), shape_of(6, 2, 20, 33, 90),
                                     shape_of(16, 2, 16, 8, 5), shape_of(2, 2, 64, 64, 0, 1),
                                     shape_of(6, 2, 20, 33, 90, 1.5))));

// The case's one sequence in chunks from a cache, its keys as rows and transposed. All that no
// query of the chunk sees is NaN: rows before the sequence and keys behind the chunk.
void expect_same_in_chunks(const Case& whole, DType dtype, const AttentionShape& shape,
                           std::initializer_list<int64_t> chunks) {
  const int64_t length = whole.rows.bounds.back();
  moe::Run run(2);
  for (const bool transposed : {false, true})
    for (const int64_t chunk : chunks) {
      const int64_t before = transposed ? 128 : 3, rows = before + length + 70,
                    k_cols = shape.kv_heads * shape.width;
      Arena arena;
      const Tensor keys = transposed ? key_blocks(arena, dtype, rows, k_cols)
                                     : nan_filled(arena, dtype, rows, k_cols);
      const Tensor cached = nan_filled(arena, dtype, rows, shape.kv_heads * shape.value_width);
      const Tensor o = nan_filled(arena, dtype, length, shape.heads * shape.value_width);
      const Tensor lse = nan_filled(arena, DType::f32, length, shape.heads);
      for (int64_t begin = 0; begin < length; begin += chunk) {
        const int64_t end = std::min(begin + chunk, length);
        for (int64_t n = begin; n < end; ++n) {
          for (int64_t c = 0; c < k_cols; ++c)
            if (transposed) set_key(keys, before + n, c, get(whole.k, n, c));
            else set(keys, before + n, c, get(whole.k, n, c));
          for (int64_t c = 0; c < cached.cols(); ++c)
            set(cached, before + n, c, get(whole.v, n, c));
        }
        const Rows bounds{0, end - begin}, first_row{before};
        const auto positions =
            std::span(whole.rows.positions)
                .subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
        ops::attention_forward(run, o.slice_rows(begin, end), lse.slice_rows(begin, end),
                               whole.q.slice_rows(begin, end), {keys, cached, bounds, first_row},
                               positions, shape.heads, shape.kv_heads,
                               static_cast<float>(shape.scale), shape.window, cap_of(shape));
      }
      EXPECT_TRUE(same_bits(o, whole.o))
          << "o in chunks of " << chunk << (transposed ? ", transposed" : "");
      EXPECT_TRUE(same_bits(lse, whole.lse))
          << "lse in chunks of " << chunk << (transposed ? ", transposed" : "");
    }
}

TEST_P(AttentionLaw, chunks_from_a_cache) {
  const auto& [dtype, shape] = GetParam();
  Case whole({300}, shape, dtype);
  moe::Run run(2);
  whole.forward(run);
  expect_same_in_chunks(whole, dtype, shape, {1, 2, 7, 64, 100, 299});
}

// One, two and many columns a task may be summed by different instructions, which treat numbers
// below the normal range alike.
TEST(Attention, few_columns_have_the_bits_of_many) {
  for (const AttentionShape& shape : {shape_of(2, 2, 64, 128), shape_of(3, 3, 33, 20),
                                      shape_of(4, 2, 40, 72, 50), shape_of(2, 2, 64, 64, 0, 2)}) {
    Case whole({150}, shape, DType::bf16);
    int64_t i = 0;
    for (const Tensor& t : {whole.q, whole.k, whole.v})
      for (int64_t n = 0; n < t.rows(); ++n)
        for (int64_t c = 0; c < t.cols(); ++c)
          set(t, n, c, std::ldexp(get(t, n, c), static_cast<int>(++i * 37 % 80) - 78));
    for (int64_t n = 0; n < whole.v.rows(); ++n)
      for (int64_t c = 0; c < whole.v.cols(); c += 3) set(whole.v, n, c, 1e-39f * float(n - 70));
    moe::Run run(2);
    whole.forward(run);
    expect_same_in_chunks(whole, DType::bf16, shape, {1, 2});
  }
}

// Sequences of a batch against each of them alone, and a server's mixed batch: every sequence at
// another position of its own cache.
TEST_P(AttentionLaw, alone_and_in_a_batch) {
  const auto& [dtype, shape] = GetParam();
  const Rows lengths{65, 1, 0, 130, 12, 200};
  Case batch(lengths, shape, dtype);
  moe::Run run(2);
  batch.forward(run);
  std::vector<int64_t> mixed_rows;
  AttentionRows mixed{.bounds = {0}, .first_row = {}, .positions = {}};
  for (size_t s = 0; s < lengths.size(); ++s) {
    const int64_t from = batch.rows.bounds[s], to = batch.rows.bounds[s + 1];
    const Rows bounds{0, to - from}, first_row{0};
    const Tensor o = batch.arena.alloc(dtype, {to - from, batch.o.cols()});
    const Tensor lse = batch.arena.alloc(DType::f32, {to - from, shape.heads});
    ops::attention_forward(
        run, o, lse, batch.q.slice_rows(from, to),
        {batch.k.slice_rows(from, to), batch.v.slice_rows(from, to), bounds, first_row},
        std::span(batch.rows.positions)
            .subspan(static_cast<size_t>(from), static_cast<size_t>(to - from)),
        shape.heads, shape.kv_heads, static_cast<float>(shape.scale), shape.window, cap_of(shape));
    EXPECT_TRUE(same_bits(o, batch.o.slice_rows(from, to))) << "sequence " << s;
    EXPECT_TRUE(same_bits(lse, batch.lse.slice_rows(from, to))) << "sequence " << s;
    for (int64_t n = std::max(from, to - 3 * static_cast<int64_t>(s + 1)); n < to; ++n) {
      mixed_rows.push_back(n);
      mixed.positions.push_back(static_cast<int32_t>(n - from));
    }
    mixed.first_row.push_back(from);
    mixed.bounds.push_back(static_cast<int64_t>(mixed_rows.size()));
  }
  const int64_t count = static_cast<int64_t>(mixed_rows.size());
  const Tensor q = batch.arena.alloc(dtype, {count, batch.q.cols()}),
               o = batch.arena.alloc(dtype, {count, batch.o.cols()});
  for (int64_t i = 0; i < count; ++i)
    for (int64_t c = 0; c < q.cols(); ++c)
      set(q, i, c, get(batch.q, mixed_rows[static_cast<size_t>(i)], c));
  ops::attention_forward(run, o, Tensor(), q, {batch.k, batch.v, mixed.bounds, mixed.first_row},
                         mixed.positions, shape.heads, shape.kv_heads,
                         static_cast<float>(shape.scale), shape.window, cap_of(shape));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t n = mixed_rows[static_cast<size_t>(i)];
    EXPECT_TRUE(same_bits(o.slice_rows(i, i + 1), batch.o.slice_rows(n, n + 1))) << "row " << n;
  }
}

// A server's cache: the last rows of every sequence in one call, keys and values in blocks that lie
// in any order, slots in another order than the batch's.
TEST_P(AttentionLaw, blocks_in_any_order) {
  const auto& [dtype, shape] = GetParam();
  const Rows lengths{65, 1, 130, 12, 200, 64};
  Case batch(lengths, shape, dtype);
  moe::Run run(2);
  batch.forward(run);
  constexpr int64_t kBlocks = 23, kStride = 7;  // blocks of the pool, taken 7 apart
  std::vector<std::vector<int32_t>> tables(lengths.size());
  std::vector<int32_t> slots, positions;
  std::vector<int64_t> rows, bounds = {0};
  int64_t taken = 0;
  for (size_t s = 0; s < lengths.size(); ++s) {
    slots.push_back(static_cast<int32_t>(lengths.size() - 1 - s));
    for (int64_t at = 0; at < lengths[s]; at += ops::kKeyBlock)
      tables[static_cast<size_t>(slots[s])].push_back(
          static_cast<int32_t>(++taken * kStride % kBlocks));
    for (int64_t n = std::max<int64_t>(0, lengths[s] - 3 * static_cast<int64_t>(s) - 1);
         n < lengths[s]; ++n) {
      rows.push_back(batch.rows.bounds[s] + n);
      positions.push_back(static_cast<int32_t>(n));
    }
    bounds.push_back(std::ssize(rows));
  }
  for (const bool transposed : {false, true}) {
    Arena arena;
    const int64_t k_cols = shape.kv_heads * shape.width, all = kBlocks * ops::kKeyBlock,
                  count = std::ssize(rows);
    const Tensor keys =
        transposed ? key_blocks(arena, dtype, all, k_cols) : nan_filled(arena, dtype, all, k_cols);
    const Tensor cached = nan_filled(arena, dtype, all, shape.kv_heads * shape.value_width);
    const Tensor q = arena.alloc(dtype, {count, batch.q.cols()}),
                 o = nan_filled(arena, dtype, count, batch.o.cols());
    const ops::KvView view{keys, cached, bounds, {}, slots, tables};
    for (size_t s = 0; s < lengths.size(); ++s)
      for (int64_t n = 0; n < lengths[s]; ++n) {
        const int64_t from = batch.rows.bounds[s] + n, to = view.row(static_cast<int64_t>(s), n);
        for (int64_t c = 0; c < k_cols; ++c)
          if (transposed) set_key(keys, to, c, get(batch.k, from, c));
          else set(keys, to, c, get(batch.k, from, c));
        for (int64_t c = 0; c < cached.cols(); ++c) set(cached, to, c, get(batch.v, from, c));
      }
    for (int64_t i = 0; i < count; ++i)
      for (int64_t c = 0; c < q.cols(); ++c)
        set(q, i, c, get(batch.q, rows[static_cast<size_t>(i)], c));
    ops::attention_forward(run, o, Tensor(), q, view, positions, shape.heads, shape.kv_heads,
                           static_cast<float>(shape.scale), shape.window, cap_of(shape));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t n = rows[static_cast<size_t>(i)];
      EXPECT_TRUE(same_bits(o.slice_rows(i, i + 1), batch.o.slice_rows(n, n + 1)))
          << "row " << n << (transposed ? ", transposed" : "");
    }
  }
}

TEST_P(AttentionLaw, threads_change_no_bit) {
  const auto& [dtype, shape] = GetParam();
  const Rows lengths{65, 130, 1, 300};
  Case one(lengths, shape, dtype);
  moe::Run alone(1);
  one.forward(alone);
  one.backward(alone);
  for (const int threads : numbers_of_threads({2, 3, 16})) {
    Case many(lengths, shape, dtype);
    moe::Run run(threads);
    many.forward(run);
    many.backward(run);
    EXPECT_TRUE(same_bits(one.o, many.o) && same_bits(one.lse, many.lse))
        << threads << " threads, forward";
    EXPECT_TRUE(same_bits(one.dq, many.dq) && same_bits(one.dk, many.dk) &&
                same_bits(one.dv, many.dv))
        << threads << " threads, backward";
  }
}

// One text that is written: where threads are many its keys are shared out in stretches.
TEST_P(AttentionLaw, keys_in_stretches_on_any_threads) {
  const auto& [dtype, shape] = GetParam();
  constexpr int64_t kLength = 1700;
  Case whole({kLength}, shape, dtype);
  moe::Run two(2);
  whole.forward(two);
  const int64_t k_cols = shape.kv_heads * shape.width;
  Arena arena;
  const Tensor blocks = key_blocks(arena, dtype, kLength, k_cols);
  for (int64_t n = 0; n < kLength; ++n)
    for (int64_t c = 0; c < k_cols; ++c) set_key(blocks, n, c, get(whole.k, n, c));
  const Rows first_row{0};
  for (const int threads : numbers_of_threads({1, 2, 3, 5, 16})) {
    moe::Run run(threads);
    for (const bool transposed : {false, true})
      for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{
               {511, 512}, {512, 513}, {600, 601}, {1023, 1025}, {1535, 1539}, {1699, 1700}}) {
        const Rows bounds{0, end - begin};
        const auto positions =
            std::span(whole.rows.positions)
                .subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
        const Tensor o = nan_filled(arena, dtype, end - begin, whole.o.cols()),
                     lse = nan_filled(arena, DType::f32, end - begin, shape.heads);
        ops::attention_forward(run, o, lse, whole.q.slice_rows(begin, end),
                               {transposed ? blocks : whole.k, whole.v, bounds, first_row},
                               positions, shape.heads, shape.kv_heads,
                               static_cast<float>(shape.scale), shape.window, cap_of(shape));
        EXPECT_TRUE(same_bits(o, whole.o.slice_rows(begin, end)) &&
                    same_bits(lse, whole.lse.slice_rows(begin, end)))
            << "rows from " << begin << ", " << threads << " threads"
            << (transposed ? ", transposed" : "");
      }
  }
}

// The causality probe: what comes later changes no bit of what came before, in the results and in
// the gradients of a loss over the earlier rows.
TEST_P(AttentionLaw, later_tokens_change_nothing) {
  const auto& [dtype, shape] = GetParam();
  constexpr int64_t kLength = 150, kChanged = 77;
  Case a({kLength}, shape, dtype), b({kLength}, shape, dtype);
  for (int64_t n = kChanged; n < kLength; ++n)
    for (const Tensor& t : {b.q, b.k, b.v})
      for (int64_t c = 0; c < t.cols(); ++c) set(t, n, c, 3 - 2 * get(t, n, c));
  moe::Run run(2);
  a.forward(run);
  b.forward(run);
  EXPECT_TRUE(same_bits(a.o.slice_rows(0, kChanged), b.o.slice_rows(0, kChanged)));
  EXPECT_FALSE(same_bits(a.o.slice_rows(kChanged, kLength), b.o.slice_rows(kChanged, kLength)));
  a.backward(run);
  b.backward(run);
  EXPECT_TRUE(same_bits(a.dq.slice_rows(0, kChanged), b.dq.slice_rows(0, kChanged)));
}

// ---- caches of other dtypes ---------------------------------------------------------------------

// The same numbers in another dtype, and what that dtype made of them, in f32.
struct Stored {
  Tensor stored, read;
};
Stored store_as(Arena& arena, const Tensor& x, DType dtype) {
  const int64_t rows = x.rows(), cols = x.cols();
  Stored s{arena.alloc(dtype, {rows, cols}), arena.alloc(DType::f32, {rows, cols})};
  std::vector<float> row(static_cast<size_t>(cols));
  for (int64_t n = 0; n < rows; ++n) {
    for (int64_t c = 0; c < cols; ++c) row[static_cast<size_t>(c)] = get(x, n, c);
    char* at = static_cast<char*>(s.stored.data) + n * s.stored.row_bytes;
    quantise(at, row.data(), dtype, cols);
    dequantise(s.read.row<float>(n), at, dtype, cols);
  }
  return s;
}

// The same, transposed.
Tensor turned(Arena& arena, const Tensor& rows) {
  const Tensor blocks = key_blocks(arena, rows.dtype, rows.rows(), rows.cols());
  const auto size = static_cast<int64_t>(size_of(rows.dtype));
  for (int64_t n = 0; n < rows.rows(); ++n)
    for (int64_t c = 0; c < rows.cols(); ++c)
      std::memcpy(
          static_cast<char*>(blocks.data) +
              ((n / ops::kKeyBlock * rows.cols() + c) * ops::kKeyBlock + n % ops::kKeyBlock) * size,
          static_cast<const char*>(rows.data) + n * rows.row_bytes + c * size,
          static_cast<size_t>(size));
  return blocks;
}

class AttentionCache : public OfShapes<std::tuple<DType, DType, AttentionShape>> {};

INSTANTIATE_TEST_SUITE_P(
    dtypes, AttentionCache,
    testing::Combine(testing::Values(DType::f32, DType::bf16),
                     testing::Values(DType::f32, DType::bf16, DType::f16, DType::q8_0),
                     testing::Values(shape_of(4, 2, 32, 64), shape_of(32, 2, 128, 128),
                                     shape_of(6, 3, 64, 32, 70), shape_of(14, 1, 96, 32),
                                     shape_of(4, 2, 32, 64, 70, 2))));

// Attending what is stored gives the bits of attending what dequantise() reads (of bf16, which may
// be multiplied as such, those of attending it as a batch): from a cache in chunks, and for any
// number of threads.
TEST_P(AttentionCache, reads_what_is_stored) {
  const auto& [dtype, cached, shape] = GetParam();
  constexpr int64_t kLength = 200;
  Case wide({kLength}, shape, dtype);
  const Stored k = store_as(wide.arena, wide.k, cached), v = store_as(wide.arena, wide.v, cached);
  wide.k = cached == DType::bf16 ? k.stored : k.read;
  wide.v = cached == DType::bf16 ? v.stored : v.read;
  moe::Run run(2);
  wide.forward(run);
  std::vector<Tensor> layouts{k.stored};
  if (!is_quantised(cached)) layouts.push_back(turned(wide.arena, k.stored));
  for (const Tensor& keys : layouts)
    for (const int threads : numbers_of_threads({1, 2, 3}))
      for (const int64_t chunk : {1, 9, 64, 200}) {
        moe::Run other(threads);
        const Tensor o = nan_filled(wide.arena, dtype, kLength, wide.o.cols());
        const int64_t from = threads == 2 ? 0 : 150;
        for (int64_t begin = from; begin < kLength; begin += chunk) {
          const int64_t end = std::min(begin + chunk, kLength);
          const Rows bounds{0, end - begin}, first_row{0};
          ops::attention_forward(
              other, o.slice_rows(begin, end), Tensor(), wide.q.slice_rows(begin, end),
              {keys, v.stored, bounds, first_row},
              std::span(wide.rows.positions)
                  .subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
              shape.heads, shape.kv_heads, static_cast<float>(shape.scale), shape.window,
              cap_of(shape));
        }
        EXPECT_TRUE(same_bits(o.slice_rows(from, kLength), wide.o.slice_rows(from, kLength)))
            << threads << " threads, chunks of " << chunk << ", keys " << describe(keys);
      }
  expect_near(
      wide.o,
      twin::attention_forward(values(wide.q), values(k.read), values(v.read), wide.rows, shape).o,
      tolerance(cached == DType::bf16 ? cached : dtype), "o");
}

// Where values lie changes no bit: of one text and of two, a token or many, on any threads.
TEST_P(AttentionCache, values_by_heads) {
  const DType dtype = std::get<0>(GetParam()), cached = std::get<1>(GetParam());
  const AttentionShape shape = std::get<2>(GetParam());
  constexpr int64_t kFirst = 1100, kSecond = 700, kFrom = 1152;  // where the second begins
  Arena arena;
  constexpr int64_t kRows = kFrom + 704;
  const Tensor drawn_k = draw(arena, dtype, {kRows, shape.kv_heads * shape.width}, 1),
               drawn_v = draw(arena, dtype, {kRows, shape.kv_heads * shape.value_width}, 2),
               q = draw(arena, dtype, {2 * kSecond, shape.heads * shape.width}, 3);
  const Tensor k = store_as(arena, drawn_k, cached).stored,
               v = store_as(arena, drawn_v, cached).stored,
               keys = is_quantised(cached) ? k : turned(arena, k),
               values = arena.alloc(cached, {kRows / ops::kKeyBlock, shape.kv_heads, ops::kKeyBlock,
                                             shape.value_width});
  Rows all(kRows);
  std::iota(all.begin(), all.end(), 0);
  moe::Run one(1);
  ops::store_keys(one, values, drawn_v, all);
  const Rows first_row{0, kFrom};
  for (const int64_t queries : {1, 3, 70})
    for (const int64_t texts : {1, 2}) {
      std::vector<int64_t> bounds{0};
      std::vector<int32_t> positions;
      for (int64_t s = 0; s < texts; ++s) {
        const int64_t length = s == 0 ? kFirst : kSecond;
        for (int64_t n = length - queries; n < length; ++n)
          positions.push_back(static_cast<int32_t>(n));
        bounds.push_back(std::ssize(positions));
      }
      const auto attended = [&](const Tensor& from, int threads) {
        moe::Run run(threads);
        const Tensor o = nan_filled(arena, dtype, bounds.back(), shape.heads * shape.value_width);
        ops::attention_forward(
            run, o, Tensor(), q.slice_rows(0, bounds.back()),
            {keys, from, bounds, std::span(first_row).first(static_cast<size_t>(texts))}, positions,
            shape.heads, shape.kv_heads, static_cast<float>(shape.scale), shape.window,
            cap_of(shape));
        return o;
      };
      const Tensor want = attended(v, 1);
      for (const int threads : {1, 2, 3, 16})
        EXPECT_TRUE(same_bits(attended(values, threads), want))
            << texts << " texts, " << queries << " tokens each, " << threads << " threads";
    }
}

// Odd widths of half precision: tails of vectors.
TEST(Attention, half_precision_of_any_width) {
  const AttentionShape shape = shape_of(4, 2, 20, 33);
  Case c({100}, shape, DType::f32);
  const Stored k = store_as(c.arena, c.k, DType::f16), v = store_as(c.arena, c.v, DType::f16);
  c.k = k.stored;
  c.v = v.stored;
  moe::Run run(2);
  c.forward(run);
  expect_near(c.o,
              twin::attention_forward(values(c.q), values(k.read), values(v.read), c.rows, shape).o,
              kTwinF32, "o");
}

TEST(Attention, refuses_heads_that_are_no_whole_blocks) {
  Case c({5}, shape_of(4, 2, 16, 32), DType::f32);
  c.k = c.arena.alloc(DType::q8_0, {5, 32});
  c.v = c.arena.alloc(DType::q8_0, {5, 64});
  moe::Run run(1);
  try {
    c.forward(run);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(
        std::string(error.what()).find("heads of 16 numbers, which are not whole blocks of 32"),
        std::string::npos)
        << error.what();
  }
}

// ---- entry checks -------------------------------------------------------------------------------

template <class Spoil>
void expect_refused(const std::string& word, Spoil&& spoil) {
  for (const bool backward : {false, true}) {
    Case c({5, 6}, shape_of(4, 2, 8, 16), DType::f32);
    moe::Run run(1);
    c.forward(run);
    spoil(c);
    try {
      if (backward) c.backward(run);
      else c.forward(run);
      ADD_FAILURE() << "accepted: " << word << (backward ? " (backward)" : " (forward)");
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }
}

TEST(Attention, refuses_what_does_not_fit) {
  expect_refused("3 key/value heads", [](Case& c) { c.shape.kv_heads = 3; });
  expect_refused("0 query heads", [](Case& c) { c.shape.heads = 0; });
  expect_refused("q f32 [11, 32] cannot be split into 6 heads", [](Case& c) { c.shape.heads = 6; });
  expect_refused("o is f32", [](Case& c) { c.o = c.o.slice_cols(0, 63); });
  expect_refused("k is f32", [](Case& c) { c.k = c.k.slice_cols(0, 8); });
  expect_refused("q is absent", [](Case& c) { c.q = Tensor(); });
  expect_refused("v is bf16", [](Case& c) { c.v = c.arena.alloc(DType::bf16, {11, 32}); });
  expect_refused("k is i32", [](Case& c) { c.k = c.arena.alloc(DType::i32, {11, 16}); });
  expect_refused("lse is f32", [](Case& c) { c.lse = c.lse.slice_rows(0, 10); });
  expect_refused("10 positions", [](Case& c) { c.rows.positions.pop_back(); });
  expect_refused("the bounds go from 0 to 10", [](Case& c) { c.rows.bounds.back() = 10; });
  expect_refused("go backwards", [](Case& c) { c.rows.bounds[1] = 12; });
  expect_refused("bounds for 1 sequences", [](Case& c) { c.rows.first_row.pop_back(); });
  expect_refused("would be row 11", [](Case& c) { c.rows.positions.back() = 6; });
  expect_refused("position -1", [](Case& c) { c.rows.positions[3] = -1; });
  expect_refused("the window is -1", [](Case& c) { c.shape.window = -1; });
  for (const double cap : {-1.0, std::nan(""), HUGE_VAL})
    expect_refused("scores are held below", [&](Case& c) { c.shape.cap = cap; });
  expect_refused("first key in row -5", [](Case& c) { c.rows.first_row[1] = -5; });
}

TEST(Attention, refuses_transposed_keys_that_do_not_fit) {
  const auto refused = [](const std::string& word, auto&& spoil) {
    Case c({5, 6}, shape_of(4, 2, 8, 16), DType::f32);
    c.rows.first_row[1] = 0;
    c.k = key_blocks(c.arena, DType::f32, 11, 16);
    spoil(c);
    moe::Run run(1);
    try {
      c.forward(run);
      ADD_FAILURE() << "accepted: " << word;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  };
  refused("first key in row 5; transposed keys begin in multiples of 64",
          [](Case& c) { c.rows.first_row[1] = 5; });
  refused("k is f32 [1, 8, 64]; expected f32 [1, 16, 64]",
          [](Case& c) { c.k = key_blocks(c.arena, DType::f32, 11, 8); });
  refused("k is f32 [1, 16, 32]; expected f32 [1, 16, 64]", [](Case& c) {
    c.k = c.arena.alloc(DType::f32, {1, 16, 32});
  });
  refused("v is bf16", [](Case& c) { c.v = c.arena.alloc(DType::bf16, {11, 32}); });
}

TEST(Attention, refuses_tables_that_lead_nowhere) {
  const auto refused = [](const std::string& word, std::vector<int32_t> slots,
                          std::vector<std::vector<int32_t>> tables, bool runs_too = false) {
    Case c({5, 70}, shape_of(4, 2, 8, 16), DType::f32);
    Arena arena;
    const Tensor keys = key_blocks(arena, DType::f32, 192, 16),
                 cached = arena.alloc_zeroed(DType::f32, {192, 32});
    moe::Run run(1);
    try {
      ops::attention_forward(
          run, c.o, c.lse, c.q,
          {keys, cached, c.rows.bounds, runs_too ? Rows{0, 64} : Rows{}, slots, tables},
          c.rows.positions, 4, 2, 1);
      ADD_FAILURE() << "accepted: " << word;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  };
  refused("3 bounds for 1 sequences", {0}, {{0}, {1, 2}});
  refused("slot 2 of 2", {0, 2}, {{0}, {1, 2}});
  refused("slot 1 has block 3", {0, 1}, {{0}, {1, 3}});
  refused("slot 0 has block -1", {0, 1}, {{-1}, {1, 2}});
  refused("query row 69 is at position 64, but its slot 1 has room for 64 only", {0, 1},
          {{0}, {1}});
  refused("not both", {0, 1}, {{0}, {1, 2}}, true);
}

TEST(Attention, a_gpu_refuses_a_cap) {
  if (device_of_tests == nullptr) GTEST_SKIP() << "no GPU here";
  expect_refused("leave out the device", [](Case& c) { c.shape.cap = 5; });
}

TEST(Attention, only_a_batch_over_itself_has_gradients) {
  const auto refused = [](auto&& spoil) {
    Case c({5, 6}, shape_of(4, 2, 8, 8), DType::f32);
    moe::Run run(1);
    c.forward(run);
    spoil(c);
    EXPECT_NO_THROW(c.forward(run));
    EXPECT_THROW(c.backward(run), Error);
  };
  refused([](Case& c) { c.rows.first_row[1] = 3; });
  refused([](Case& c) { c.rows.positions[2] = 1; });
}

}  // namespace
}  // namespace moe::test::attention_test
