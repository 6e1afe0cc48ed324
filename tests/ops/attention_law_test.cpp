// The law of rows of attention, in bits: a query's result is the same whether its prompt comes in
// one piece, in chunks or token by token from a cache, alone or among others, on one thread or
// several.
#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "support/attention_case.h"

namespace moe::test::attention_law_test {
namespace {

using namespace of_attention;

class AttentionLaw : public OfShapes<std::tuple<DType, AttentionShape>> {};

INSTANTIATE_TEST_SUITE_P(
    shapes, AttentionLaw,
    testing::Combine(testing::Values(DType::f32, DType::bf16),
                     testing::Values(shape_of(2, 2, 64, 64), shape_of(6, 2, 20, 33),
                                     shape_of(5, 1, 16, 8), shape_of(7, 1, 24, 72),
                                     shape_of(6, 2, 20, 33, 90), shape_of(16, 2, 16, 8, 5),
                                     shape_of(2, 2, 64, 64, 0, 1),
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
        const std::vector<int64_t> bounds{0, end - begin}, first_row{before};
        attend(run, o.slice_rows(begin, end), lse.slice_rows(begin, end),
               whole.q.slice_rows(begin, end), {keys, cached, bounds, first_row},
               whole.positions(begin, end), shape);
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

// One to four and many columns a task may be summed by different instructions, which treat numbers
// below the normal range alike.
TEST(Attention, few_columns_have_the_bits_of_many) {
  for (const AttentionShape& shape :
       {shape_of(2, 2, 64, 128), shape_of(3, 3, 33, 20), shape_of(4, 2, 40, 72, 50),
        shape_of(2, 2, 64, 64, 0, 2), shape_of(6, 2, 64, 64), shape_of(8, 2, 33, 40, 50)}) {
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

// Scores that climb, by little and by much, and fall: whatever stands for the running maximum has
// to follow within a stretch of keys and from one to the next, in one direction or hardly at all.
TEST(Attention, scores_that_climb) {
  constexpr int64_t kLength = 580;
  for (const auto& [dtype, shape] : {std::pair{DType::f32, shape_of(2, 2, 32, 32)},
                                     {DType::bf16, shape_of(2, 2, 32, 32)},
                                     {DType::bf16, shape_of(4, 1, 64, 48)},
                                     {DType::bf16, shape_of(8, 1, 32, 32, 200)},
                                     {DType::bf16, shape_of(3, 1, 16, 16)}}) {
    Case whole({kLength}, shape, dtype);
    // The first number of a key climbs in steps, to the square; most queries follow it.
    for (int64_t n = 0; n < kLength; ++n) {
      const auto step = static_cast<float>(n < 500 ? n / 70 : 4);
      for (int64_t g = 0; g < shape.kv_heads; ++g) set(whole.k, n, g * shape.width, step * step);
      for (int64_t h = 0; h < shape.heads; ++h)
        set(whole.q, n, h * shape.width, n % 5 == 4 ? -2.0f : 2.0f + static_cast<float>(h));
    }
    moe::Run run(2);
    whole.forward(run);
    const auto want = twin::attention_forward(values(whole.q), values(whole.k), values(whole.v),
                                              whole.rows, shape);
    expect_near(whole.o, want.o, dtype == DType::bf16 ? kTwinBf16 : kTwinF32, "o");
    expect_near(whole.lse, want.lse, kTwinF32, "lse");
    expect_same_in_chunks(whole, dtype, shape, {1, 64});
  }
}

// Sequences of a batch against each of them alone, and a server's mixed batch: every sequence at
// another position of its own cache.
TEST_P(AttentionLaw, alone_and_in_a_batch) {
  const auto& [dtype, shape] = GetParam();
  const Lengths lengths{65, 1, 0, 130, 12, 200};
  Case batch(lengths, shape, dtype);
  moe::Run run(2);
  batch.forward(run);
  std::vector<int64_t> mixed_rows;
  AttentionRows mixed{.bounds = {0}, .first_row = {}, .positions = {}};
  for (size_t s = 0; s < lengths.size(); ++s) {
    const int64_t from = batch.rows.bounds[s], to = batch.rows.bounds[s + 1];
    const std::vector<int64_t> bounds{0, to - from}, first_row{0};
    const Tensor o = batch.arena.alloc(dtype, {to - from, batch.o.cols()});
    const Tensor lse = batch.arena.alloc(DType::f32, {to - from, shape.heads});
    attend(run, o, lse, batch.q.slice_rows(from, to),
           {batch.k.slice_rows(from, to), batch.v.slice_rows(from, to), bounds, first_row},
           batch.positions(from, to), shape);
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
  attend(run, o, Tensor(), q, {batch.k, batch.v, mixed.bounds, mixed.first_row}, mixed.positions,
         shape);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t n = mixed_rows[static_cast<size_t>(i)];
    EXPECT_TRUE(same_bits(o.slice_rows(i, i + 1), batch.o.slice_rows(n, n + 1))) << "row " << n;
  }
}

// A server's cache: the last rows of every sequence in one call, keys and values in blocks that lie
// in any order, slots in another order than the batch's.
TEST_P(AttentionLaw, blocks_in_any_order) {
  const auto& [dtype, shape] = GetParam();
  const Lengths lengths{65, 1, 130, 12, 200, 64};
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
    attend(run, o, Tensor(), q, view, positions, shape);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t n = rows[static_cast<size_t>(i)];
      EXPECT_TRUE(same_bits(o.slice_rows(i, i + 1), batch.o.slice_rows(n, n + 1)))
          << "row " << n << (transposed ? ", transposed" : "");
    }
  }
}

TEST_P(AttentionLaw, threads_change_no_bit) {
  const auto& [dtype, shape] = GetParam();
  const Lengths lengths{65, 130, 1, 300};
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
  const std::vector<int64_t> first_row{0};
  for (const int threads : numbers_of_threads({1, 2, 3, 5, 16})) {
    moe::Run run(threads);
    for (const bool transposed : {false, true})
      for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{
               {511, 512}, {512, 513}, {600, 601}, {1023, 1025}, {1535, 1539}, {1699, 1700}}) {
        const std::vector<int64_t> bounds{0, end - begin};
        const Tensor o = nan_filled(arena, dtype, end - begin, whole.o.cols()),
                     lse = nan_filled(arena, DType::f32, end - begin, shape.heads);
        attend(run, o, lse, whole.q.slice_rows(begin, end),
               {transposed ? blocks : whole.k, whole.v, bounds, first_row},
               whole.positions(begin, end), shape);
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

}  // namespace
}  // namespace moe::test::attention_law_test
