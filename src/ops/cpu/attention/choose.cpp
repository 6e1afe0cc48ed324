// The keys that queries choose. Scores of some queries at a time are made block of keys by block,
// by whichever threads, and then the best of each are found. A score is one chain over the width
// for each head and one over the heads, so that neither threads nor other queries change a bit.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention/choose.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

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

// out [64] = scores of the keys of a block, kt [C,64].  q [H,C padded]; weight [H]; products [H,64]
template <class T>
void ScoreBlock(float* out, const T* kt, const float* q, const float* weight, int64_t heads,
                int64_t width, float* products) {
  const DF32 d;
  block_product(heads, kKeyBlock, width, BlockA<float>{q, padded_width(width), 1}, kt, kKeyBlock,
                products, kKeyBlock, Written());
  for (int64_t j = 0; j < kKeyBlock; j += lanes_f32()) {
    VF32 sum = hn::Zero(d);
    for (int64_t h = 0; h < heads; ++h) {
      const VF32 product = hn::LoadU(d, products + h * kKeyBlock + j);
      // Not Max, which makes 0 of a NaN on some targets.
      const VF32 positive = hn::IfThenZeroElse(hn::Lt(product, hn::Zero(d)), product);
      sum = hn::MulAdd(hn::Set(d, weight[h]), positive, sum);
    }
    hn::StoreU(sum, d, out + j);
  }
}

// Scores of a query's keys in blocks [begin, end), the first at out[0]. What lies behind its
// position has some, too.
void ScoreKeys(float* out, const Tensor& q, const Tensor& weights, int64_t row, const KvView& keys,
               int64_t sequence, int64_t begin, int64_t end, Arena& scratch) {
  const ArenaScope scope(scratch);
  const int64_t heads = weights.cols(), width = keys.k.shape[1], padded = padded_width(width);
  float *query = alloc<float>(scratch, heads * padded),
        *products = alloc<float>(scratch, heads * kKeyBlock);
  for (int64_t h = 0; h < heads; ++h)
    load_row(query + h * padded, q, row, h * width, width, padded, 1.0f);
  WithWeight(keys.k.dtype, [&](auto of) HWY_ATTR {
    using T = decltype(of);
    for (int64_t block = begin; block < end; ++block, out += kKeyBlock) {
      const int64_t at = keys.row(sequence, block * kKeyBlock) * width;
      ScoreBlock(out, static_cast<const T*>(keys.k.data) + at, query, weights.row<float>(row),
                 heads, width, products);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(ScoreKeys);

void score(Run& run, float* scores, const ScoredQueries& some, Tensor q, Tensor weights,
           const KvView& keys) {
  score_queries(
      run, some, q.cols() * kKeyBlock,
      [&](int64_t row, int64_t sequence, int64_t at, int64_t begin, int64_t end, Arena& scratch) {
        HWY_DYNAMIC_DISPATCH(ScoreKeys)
        (scores + at * kKeyBlock, q, weights, row, keys, sequence, begin, end, scratch);
      });
}

void take_best(Run& run, Tensor kept, const float* scores, const ScoredQueries& some,
               std::span<const int32_t> positions) {
  const int64_t k = kept.cols();
  const int64_t broken =
      first_broken(run, some, [&](int64_t n, int64_t block, int64_t, Arena& arena) {
        const ArenaScope scope(arena);
        const int64_t seen = positions[static_cast<size_t>(n)] + int64_t{1},
                      taken = std::min(k, seen);
        int32_t* list = kept.row<int32_t>(n);
        std::fill(list + taken, list + k, -1);
        const auto room = static_cast<size_t>(top_set_room(seen, taken));
        auto* memory = static_cast<int32_t*>(arena.alloc_bytes(room * sizeof(int32_t)));
        return top_set_of(list, scores + block * kKeyBlock, seen, taken, memory);
      });
  if (broken >= 0) fail("choose_keys: query row {} has a score that is not a number", broken);
}

}  // namespace

void choose_keys(Run& run, Tensor kept, Tensor q, Tensor weights, const KvView& keys,
                 std::span<const int32_t> positions) {
  if (positions.empty() && q.empty()) return;
  check_choose_keys(kept, q, weights, keys, positions);
  choose_isa();
  for_queries(q.rows(), keys.bounds, positions, kKeyBlock, [&](const ScoredQueries& some) {
    const ArenaScope scope(run.scratch);
    float* scores = run.scratch.alloc(DType::f32, {some.blocks() * kKeyBlock}).as<float>();
    score(run, scores, some, q, weights, keys);
    take_best(run, kept, scores, some, positions);
  });
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
