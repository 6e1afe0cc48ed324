// The blocks of keys that queries choose, each head for itself. The best scores of some queries at
// a time are found block of 64 keys by block, by whichever threads, and then the best blocks of
// each head. A score is one chain over the width and the best of a block one over its keys, so that
// neither threads nor other queries change a bit.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention/choose_blocks.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "ops/cpu/attention/blocks-inl.h"
#include "ops/cpu/attention/scored_queries.h"
#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/routing/top_set.h"
#include "ops/memory.h"
#include "ops/op_checks.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// The highest of the first `count` of 64 scores; no number where one of them is none.
inline float BestScore(const float* scores, int64_t count) {
  const DF32 d;
  float best = -std::numeric_limits<float>::infinity();
  const auto take = [&](float x) { best = x > best || x != x ? x : best; };
  if (count < kKeyBlock) {
    for (int64_t j = 0; j < count; ++j) take(scores[j]);
    return best;
  }
  VF32 highest = hn::Set(d, best);
  for (int64_t j = 0; j < kKeyBlock; j += lanes_f32()) {
    const VF32 x = hn::LoadU(d, scores + j);
    highest = hn::IfThenElse(hn::Or(hn::Gt(x, highest), hn::IsNaN(x)), x, highest);
  }
  float lanes[hn::MaxLanes(DF32())];
  hn::StoreU(highest, d, lanes);
  for (int64_t j = 0; j < lanes_f32(); ++j) take(lanes[j]);
  return best;
}

// out [blocks,H]: each head's best score of a query among the keys up to `position` in blocks
// [begin, end) of 64.
void BestOfBlocks(float* out, const Tensor& q, int64_t heads, int64_t row, const KvView& keys,
                  int64_t sequence, int64_t position, int64_t begin, int64_t end, Arena& scratch) {
  const ArenaScope scope(scratch);
  const int64_t width = keys.k.shape[1], padded = padded_width(width);
  float *query = alloc<float>(scratch, heads * padded),
        *products = alloc<float>(scratch, heads * kKeyBlock);
  for (int64_t h = 0; h < heads; ++h)
    load_row(query + h * padded, q, row, h * width, width, padded, 1.0f);
  WithWeight(keys.k.dtype, [&](auto of) HWY_ATTR {
    using T = decltype(of);
    for (int64_t block = begin; block < end; ++block, out += heads) {
      const int64_t at = keys.row(sequence, block * kKeyBlock) * width,
                    count = std::min(kKeyBlock, position + 1 - block * kKeyBlock);
      block_product(heads, kKeyBlock, width, BlockA<float>{query, padded, 1},
                    static_cast<const T*>(keys.k.data) + at, kKeyBlock, products, kKeyBlock,
                    Written());
      for (int64_t h = 0; h < heads; ++h) out[h] = BestScore(products + h * kKeyBlock, count);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(BestOfBlocks);

void score_blocks(Run& run, float* best, const ScoredQueries& some, Tensor q, int64_t heads,
                  const KvView& keys, std::span<const int32_t> positions) {
  score_queries(
      run, some, q.cols() * kKeyBlock,
      [&](int64_t row, int64_t sequence, int64_t at, int64_t begin, int64_t end, Arena& scratch) {
        HWY_DYNAMIC_DISPATCH(BestOfBlocks)
        (best + at * heads, q, heads, row, keys, sequence, positions[static_cast<size_t>(row)],
         begin, end, scratch);
      });
}

// Of one head of one query whose best scores of `small` blocks of 64 are best[0], best[heads], ...:
// false where one is no number.
bool take_blocks(int32_t* list, int64_t choices, const float* best, int64_t heads, int64_t small,
                 int64_t each, int64_t local, Arena& arena) {
  const ArenaScope scope(arena);
  const int64_t count = (small + each - 1) / each, taken = std::min(choices, count);
  auto* scores = static_cast<float*>(arena.alloc_bytes(static_cast<size_t>(count) * sizeof(float)));
  bool whole = true;
  for (int64_t b = 0; b < count; ++b) {
    float highest = -std::numeric_limits<float>::infinity();
    for (int64_t i = b * each; i < std::min(small, (b + 1) * each); ++i) {
      whole &= best[i * heads] == best[i * heads];
      highest = std::max(highest, best[i * heads]);
    }
    scores[b] = b + local < count ? highest : std::numeric_limits<float>::infinity();
  }
  std::fill(list + taken, list + choices, -1);
  const auto room = static_cast<size_t>(top_set_room(count, taken));
  auto* memory = static_cast<int32_t*>(arena.alloc_bytes(room * sizeof(int32_t)));
  return top_set_of(list, scores, count, taken, memory) && whole;
}

void take_best_blocks(Run& run, Tensor kept, const float* best, const ScoredQueries& some,
                      int64_t heads, int64_t each, int64_t local) {
  const int64_t choices = kept.cols() / heads;
  const int64_t broken =
      first_broken(run, some, [&](int64_t n, int64_t block, int64_t small, Arena& arena) {
        bool whole = true;
        for (int64_t h = 0; h < heads; ++h)
          whole &= take_blocks(kept.row<int32_t>(n) + h * choices, choices,
                               best + block * heads + h, heads, small, each, local, arena);
        return whole;
      });
  if (broken >= 0) fail("choose_blocks: query row {} has a score that is not a number", broken);
}

}  // namespace

void choose_blocks(Run& run, Tensor kept, Tensor q, const KvView& keys,
                   std::span<const int32_t> positions, int64_t block, int64_t local) {
  if (positions.empty() && q.empty()) return;
  check_choose_blocks(kept, q, keys, positions, block, local);
  choose_isa();
  const int64_t heads = q.cols() / keys.k.shape[1];
  for_queries(q.rows(), keys.bounds, positions, heads, [&](const ScoredQueries& some) {
    const ArenaScope scope(run.scratch);
    float* best = run.scratch.alloc(DType::f32, {some.blocks() * heads}).as<float>();
    score_blocks(run, best, some, q, heads, keys, positions);
    take_best_blocks(run, kept, best, some, heads, block / kKeyBlock, local);
  });
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
