// The keys that queries choose, against a sort of every score; wherever the keys lie, alone and
// among others.
#include <fmt/format.h>

#include "core/error.h"
#include "ops/ops.h"
#include "support/files.h"
#include "support/rowwise.h"
#include "support/twins_choice.h"

namespace moe::test::choose_keys_test {
namespace {

constexpr int64_t kHeads = 3, kWidth = 9, kKept = 20;

// Whole numbers, whose scores are exact and often equal.
Tensor draw_whole(Arena& arena, DType dtype, int64_t rows, int64_t cols, uint64_t seed) {
  const Tensor t = draw(arena, DType::f32, {rows, cols}, seed);
  for (int64_t i = 0; i < t.numel(); ++i) t.as<float>()[i] = std::nearbyint(2 * t.as<float>()[i]);
  const Tensor out = arena.alloc(dtype, {rows, cols});
  fill(out, values(t));
  return out;
}

std::vector<int32_t> list_of(const Tensor& kept, int64_t n) {
  std::vector<int32_t> list(kept.row<int32_t>(n), kept.row<int32_t>(n) + kept.cols());
  while (!list.empty() && list.back() == -1) list.pop_back();
  return list;
}

// Two sequences: 150 tokens whole, and the last 5 of 70.
struct Texts {
  std::vector<int64_t> bounds = {0, 150, 155};
  std::vector<int32_t> positions;
  std::vector<int64_t> lengths = {150, 70};
  Texts() {
    for (int32_t p = 0; p < 150; ++p) positions.push_back(p);
    for (int32_t p = 65; p < 70; ++p) positions.push_back(p);
  }
};

class ChooseKeys : public testing::TestWithParam<std::tuple<DType, DType, int>> {
 protected:
  DType compute = std::get<0>(GetParam()), cached = std::get<1>(GetParam());
  moe::Run run{std::get<2>(GetParam())};
  Arena memory;
};

TEST_P(ChooseKeys, IsThatOfASort) {
  const Texts texts;
  const int64_t rows = texts.bounds.back();
  const Tensor q = draw_whole(memory, compute, rows, kHeads * kWidth, 1),
               w = draw_whole(memory, DType::f32, rows, kHeads, 2),
               kept = memory.alloc(DType::i32, {rows, kKept + 8}).slice_cols(5, 5 + kKept);
  // the first in blocks 3, 0 and 2, the second in 1 and 4
  const std::vector<std::vector<int32_t>> tables = {{3, 0, 2}, {1, 4}};
  const std::vector<int32_t> slots = {0, 1};
  const Tensor cache = memory.alloc_zeroed(cached, {5, kWidth, ops::kKeyBlock});
  const Tensor keys[] = {draw_whole(memory, DType::f32, 150, kWidth, 3),
                         draw_whole(memory, DType::f32, 70, kWidth, 4)};
  for (size_t s = 0; s < 2; ++s) {
    std::vector<int64_t> row;
    for (int64_t p = 0; p < texts.lengths[s]; ++p)
      row.push_back(tables[s][static_cast<size_t>(p / 64)] * 64 + p % 64);
    ops::store_keys(run, cache, keys[s], row);
  }
  ops::choose_keys(run, kept, q, w, {cache, {}, texts.bounds, {}, slots, tables}, texts.positions);
  const std::vector<double> qs = values(q), ws = values(w);
  int ties = 0;
  for (int64_t n = 0; n < rows; ++n) {
    const size_t s = n < 150 ? 0 : 1;
    const int64_t seen = texts.positions[static_cast<size_t>(n)] + 1;
    const std::vector<double> scores =
        twin::key_scores(qs.data() + n * kHeads * kWidth, ws.data() + n * kHeads, values(keys[s]),
                         0, seen, kHeads, kWidth);
    const std::vector<int32_t> want = twin::best_of(scores, kKept);
    ASSERT_EQ(list_of(kept, n), want) << n;
    ties += twin::missed_by(scores, want) == 0;
  }
  EXPECT_GT(ties, 0);  // so that their order counted
}

INSTANTIATE_TEST_SUITE_P(All, ChooseKeys,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(DType::f32, DType::bf16, DType::f16),
                                          testing::Values(1, 3)));

// 300 queries of sequences of their own, each with 100 keys.
TEST(ChosenKeys, LawOfRows) {
  Arena memory;
  constexpr int64_t kSeen = 100;
  const Tensor q = draw(memory, DType::f32, {300, kHeads * kWidth}, 1),
               w = draw(memory, DType::f32, {300, kHeads}, 2),
               k = draw(memory, DType::f32, {300, kSeen * kWidth}, 3);
  expect_law_of_rows(
      [&](moe::Run& run, std::span<const int32_t> which) {
        const auto rows = static_cast<int64_t>(which.size());
        constexpr int64_t kRoom = 2 * ops::kKeyBlock;  // rows for a sequence's keys
        std::vector<int64_t> bounds = {0}, first_row, row;
        const std::vector<int32_t> positions(which.size(), kSeen - 1);
        for (int64_t i = 0; i < rows; ++i) {
          bounds.push_back(i + 1);
          first_row.push_back(i * kRoom);
          for (int64_t j = 0; j < kSeen; ++j) row.push_back(i * kRoom + j);
        }
        const Tensor kept = run.saved.alloc(DType::i32, {rows, kKept}),
                     keys = run.saved.alloc(
                         DType::f32, {rows * kRoom / ops::kKeyBlock, kWidth, ops::kKeyBlock});
        ops::store_keys(run, keys, pick(run.saved, k, which).reshape({rows * kSeen, kWidth}), row);
        ops::choose_keys(run, kept, pick(run.saved, q, which), pick(run.saved, w, which),
                         {keys, {}, bounds, first_row}, positions);
        return kept;
      },
      "choose_keys");
}

TEST(ChosenKeys, SaysWhatDoesNotFit) {
  Arena memory;
  moe::Run run(1);
  const std::vector<int64_t> bounds = {0, 2}, first_row = {0};
  const std::vector<int32_t> positions = {0, 63};
  const Tensor q = draw(memory, DType::f32, {2, 8}, 1), w = draw(memory, DType::f32, {2, 2}, 2),
               kept = memory.alloc(DType::i32, {2, 3}),
               k = memory.alloc_zeroed(DType::f32, {1, 4, ops::kKeyBlock});
  const auto choose = [&](const Tensor& queries, const Tensor& keys, std::span<const int32_t> at) {
    ops::choose_keys(run, kept, queries, w, {keys, {}, bounds, first_row}, at);
  };
  EXPECT_NO_THROW(choose(q, k, positions));
  const std::vector<int32_t> beyond = {0, 64};
  EXPECT_FAILS(choose(q, k, beyond), "query row 1 is at position 64");
  EXPECT_FAILS(choose(q.slice_cols(0, 6), k, positions), "choose_keys: needs keys");
  EXPECT_FAILS(choose(q, memory.alloc(DType::f32, {64, 4}), positions), "choose_keys: needs keys");
  EXPECT_FAILS(choose(q, k, {}), "0 positions for 2 query rows");
  q.row<float>(1)[0] = NAN;
  k.as<float>()[0] = 1;
  EXPECT_FAILS(choose(q, k, positions), "query row 1 has a score that is not a number");
}

}  // namespace
}  // namespace moe::test::choose_keys_test
