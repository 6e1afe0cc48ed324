// Attention over keys and values that a cache keeps in other types than queries have, and in other
// orders.
#include <cstring>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "core/error.h"
#include "support/attention_case.h"
#include "tensor/quant.h"

namespace moe::test::attention_cache_test {
namespace {

using namespace of_attention;

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
          const std::vector<int64_t> bounds{0, end - begin}, first_row{0};
          attend(other, o.slice_rows(begin, end), Tensor(), wide.q.slice_rows(begin, end),
                 {keys, v.stored, bounds, first_row}, wide.positions(begin, end), shape);
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
  std::vector<int64_t> all(kRows);
  std::iota(all.begin(), all.end(), 0);
  moe::Run one(1);
  ops::store_keys(one, values, drawn_v, all);
  const std::vector<int64_t> first_row{0, kFrom};
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
        attend(run, o, Tensor(), q.slice_rows(0, bounds.back()),
               {keys, from, bounds, std::span(first_row).first(static_cast<size_t>(texts))},
               positions, shape);
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

}  // namespace
}  // namespace moe::test::attention_cache_test
