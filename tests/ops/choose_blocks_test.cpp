// The blocks of keys that each head of a query chooses, against a sort of the best of every score;
// wherever the keys lie, alone and among others.
#include <fmt/format.h>

#include <numeric>

#include "core/error.h"
#include "ops/ops.h"
#include "support/files.h"
#include "support/rowwise.h"
#include "support/twins_choice.h"

namespace moe::test::choose_blocks_test {
namespace {

constexpr int64_t kHeads = 3, kWidth = 9, kChoices = 3;

// Whole numbers, whose scores are exact and often equal.
Tensor draw_whole(Arena& arena, DType dtype, int64_t rows, int64_t cols, uint64_t seed) {
  const Tensor t = draw(arena, DType::f32, {rows, cols}, seed);
  for (int64_t i = 0; i < t.numel(); ++i) t.as<float>()[i] = std::nearbyint(t.as<float>()[i]);
  const Tensor out = arena.alloc(dtype, {rows, cols});
  fill(out, values(t));
  return out;
}

// Two sequences: 600 tokens whole, and the last 5 of 390.
struct Texts {
  std::vector<int64_t> bounds = {0, 600, 605};
  std::vector<int32_t> positions;
  std::vector<int64_t> lengths = {600, 390};
  Texts() {
    for (int32_t p = 0; p < 600; ++p) positions.push_back(p);
    for (int32_t p = 385; p < 390; ++p) positions.push_back(p);
  }
};

// Compute, how keys are kept, threads, blocks of 64 in one.
class ChooseBlocks : public testing::TestWithParam<std::tuple<DType, DType, int, int64_t>> {
 protected:
  DType compute = std::get<0>(GetParam()), cached = std::get<1>(GetParam());
  moe::Run run{std::get<2>(GetParam())};
  int64_t block = std::get<3>(GetParam()) * ops::kKeyBlock;
  Arena memory;
};

TEST_P(ChooseBlocks, AreThoseOfASort) {
  const Texts texts;
  const int64_t rows = texts.bounds.back();
  const Tensor q = draw_whole(memory, compute, rows, kHeads * kWidth, 1);
  // the first in the cache's even blocks, the second in its odd ones, both the other way round
  std::vector<std::vector<int32_t>> tables(2);
  for (int32_t i = 0; i < 10; ++i) tables[0].push_back(2 * (9 - i));
  for (int32_t i = 0; i < 7; ++i) tables[1].push_back(2 * (6 - i) + 1);
  const std::vector<int32_t> slots = {0, 1};
  const Tensor cache = memory.alloc(cached, {20, kWidth, ops::kKeyBlock});
  // What lies behind a text's end is nobody's score.
  const Tensor large = memory.alloc(DType::f32, {20 * ops::kKeyBlock, kWidth});
  fill(large, std::vector<double>(static_cast<size_t>(large.numel()), 1e4));
  std::vector<int64_t> all(static_cast<size_t>(large.rows()));
  std::iota(all.begin(), all.end(), 0);
  ops::store_keys(run, cache, large, all);
  const Tensor keys[] = {draw_whole(memory, DType::f32, 600, kWidth, 3),
                         draw_whole(memory, DType::f32, 390, kWidth, 4)};
  for (size_t s = 0; s < 2; ++s) {
    std::vector<int64_t> row;
    for (int64_t p = 0; p < texts.lengths[s]; ++p)
      row.push_back(tables[s][static_cast<size_t>(p / 64)] * 64 + p % 64);
    ops::store_keys(run, cache, keys[s], row);
  }
  const std::vector<double> qs = values(q);
  for (const int64_t local : {1, 2}) {
    const Tensor kept = memory.alloc(DType::i32, {rows, kHeads * kChoices + 8})
                            .slice_cols(5, 5 + kHeads * kChoices);
    ops::choose_blocks(run, kept, q, {cache, {}, texts.bounds, {}, slots, tables}, texts.positions,
                       block, local);
    int beside_the_last = 0;
    for (int64_t n = 0; n < rows; ++n) {
      const size_t s = n < 600 ? 0 : 1;
      const int64_t seen = texts.positions[static_cast<size_t>(n)] + 1;
      for (int64_t h = 0; h < kHeads; ++h) {
        std::vector<int32_t> want =
            twin::best_of(twin::block_scores(qs.data() + (n * kHeads + h) * kWidth, values(keys[s]),
                                             0, seen, kWidth, block, local),
                          kChoices);
        const int32_t last = static_cast<int32_t>((seen - 1) / block);
        EXPECT_EQ(want.back(), last);
        beside_the_last += want.front() + kChoices - 1 < last;
        want.resize(kChoices, -1);
        const int32_t* got = kept.row<int32_t>(n) + h * kChoices;
        ASSERT_EQ(std::vector<int32_t>(got, got + kChoices), want) << n << " " << h;
      }
    }
    EXPECT_GT(beside_the_last, 0);  // so that scores counted
  }
}

INSTANTIATE_TEST_SUITE_P(All, ChooseBlocks,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(DType::f32, DType::bf16, DType::f16),
                                          testing::Values(1, 3), testing::Values(1, 2)));

// 300 queries of sequences of their own, each with 250 keys.
TEST(ChosenBlocks, LawOfRows) {
  Arena memory;
  constexpr int64_t kSeen = 250;
  const Tensor q = draw(memory, DType::f32, {300, kHeads * kWidth}, 1),
               k = draw(memory, DType::f32, {300, kSeen * kWidth}, 3);
  expect_law_of_rows(
      [&](moe::Run& run, std::span<const int32_t> which) {
        const auto rows = static_cast<int64_t>(which.size());
        constexpr int64_t kRoom = 4 * ops::kKeyBlock;  // rows for a sequence's keys
        std::vector<int64_t> bounds = {0}, first_row, row;
        const std::vector<int32_t> positions(which.size(), kSeen - 1);
        for (int64_t i = 0; i < rows; ++i) {
          bounds.push_back(i + 1);
          first_row.push_back(i * kRoom);
          for (int64_t j = 0; j < kSeen; ++j) row.push_back(i * kRoom + j);
        }
        const Tensor kept = run.saved.alloc(DType::i32, {rows, kHeads * 2}),
                     keys = run.saved.alloc(
                         DType::f32, {rows * kRoom / ops::kKeyBlock, kWidth, ops::kKeyBlock});
        ops::store_keys(run, keys, pick(run.saved, k, which).reshape({rows * kSeen, kWidth}), row);
        ops::choose_blocks(run, kept, pick(run.saved, q, which), {keys, {}, bounds, first_row},
                           positions, ops::kKeyBlock, 1);
        return kept;
      },
      "choose_blocks");
}

TEST(ChosenBlocks, SaysWhatDoesNotFit) {
  Arena memory;
  moe::Run run(1);
  const std::vector<int64_t> bounds = {0, 2}, first_row = {0};
  const std::vector<int32_t> positions = {0, 127};
  const Tensor q = draw(memory, DType::f32, {2, 8}, 1), kept = memory.alloc(DType::i32, {2, 6}),
               k = memory.alloc_zeroed(DType::f32, {2, 4, ops::kKeyBlock});
  const auto choose = [&](const Tensor& queries, const Tensor& to, std::span<const int32_t> at,
                          int64_t block = 64, int64_t local = 1) {
    ops::choose_blocks(run, to, queries, {k, {}, bounds, first_row}, at, block, local);
  };
  EXPECT_NO_THROW(choose(q, kept, positions));
  const std::vector<int32_t> beyond = {0, 128};
  EXPECT_FAILS(choose(q, kept, beyond), "query row 1 is at position 128");
  EXPECT_FAILS(choose(q.slice_cols(0, 6), kept, positions), "choose_blocks: needs keys");
  EXPECT_FAILS(choose(q, kept.slice_cols(0, 5), positions), "choose_blocks: needs a row");
  EXPECT_FAILS(choose(q, kept, positions, 96), "blocks are of 96 keys");
  EXPECT_FAILS(choose(q, kept, positions, 64, 4), "4 of 3 are always chosen");
  EXPECT_FAILS(choose(q, kept, positions, 64, 0), "0 of 3 are always chosen");
  EXPECT_FAILS(choose(q, kept, {}), "0 positions for 2 query rows");
  q.row<float>(1)[0] = NAN;
  k.as<float>()[0] = 1;
  EXPECT_FAILS(choose(q, kept, positions), "query row 1 has a score that is not a number");
}

}  // namespace
}  // namespace moe::test::choose_blocks_test
