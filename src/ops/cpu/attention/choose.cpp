// The keys that queries choose. Scores of some queries at a time are made block of keys by block,
// by whichever threads, and then the best of each are found. A score is one chain over the width
// for each head and one over the heads, so that neither threads nor other queries change a bit.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention/choose.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/threads.h"
#include "ops/cpu/attention/blocks-inl.h"
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

// Multiply-adds below which another thread costs more than it brings.
constexpr int64_t kChoiceGrain = int64_t{1} << 16;

// Some queries and where their blocks of keys stand among those of all of them.
struct Choosing {
  int64_t first;                         // row
  std::vector<int64_t> sequence, block;  // of each query, and of the one behind the last

  int64_t count() const { return std::ssize(sequence); }
  int64_t blocks() const { return block.back(); }
};

void score(Run& run, float* scores, const Choosing& some, Tensor q, Tensor weights,
           const KvView& keys) {
  const int64_t work = q.cols() * kKeyBlock;
  parallel_for(run.threads, some.blocks(), std::max<int64_t>(1, kChoiceGrain / work),
               [&](int64_t begin, int64_t end, int thread) {
                 auto query = std::upper_bound(some.block.begin(), some.block.end(), begin) - 1;
                 for (int64_t at = begin; at < end; ++query) {
                   const auto i = static_cast<size_t>(query - some.block.begin());
                   const int64_t last = std::min(end, some.block[i + 1]);
                   HWY_DYNAMIC_DISPATCH(ScoreKeys)
                   (scores + at * kKeyBlock, q, weights, some.first + static_cast<int64_t>(i), keys,
                    some.sequence[i], at - some.block[i], last - some.block[i],
                    run.thread_scratch[static_cast<size_t>(thread)]);
                   at = last;
                 }
               });
}

void take_best(Run& run, Tensor kept, const float* scores, const Choosing& some,
               std::span<const int32_t> positions) {
  const int64_t k = kept.cols();
  std::vector<int64_t> broken(static_cast<size_t>(run.threads), kept.rows());
  parallel_for(run.threads, some.count(), 1, [&](int64_t begin, int64_t end, int thread) {
    Arena& arena = run.thread_scratch[static_cast<size_t>(thread)];
    for (int64_t i = begin; i < end; ++i) {
      const ArenaScope scope(arena);
      const int64_t n = some.first + i, seen = positions[static_cast<size_t>(n)] + int64_t{1},
                    taken = std::min(k, seen);
      int32_t* list = kept.row<int32_t>(n);
      std::fill(list + taken, list + k, -1);
      const auto room = static_cast<size_t>(top_set_room(seen, taken));
      auto* memory = static_cast<int32_t*>(arena.alloc_bytes(room * sizeof(int32_t)));
      if (top_set_of(list, scores + some.block[static_cast<size_t>(i)] * kKeyBlock, seen, taken,
                     memory))
        continue;
      broken[static_cast<size_t>(thread)] = n;
      return;
    }
  });
  if (const int64_t n = *std::min_element(broken.begin(), broken.end()); n < kept.rows())
    fail("choose_keys: query row {} has a score that is not a number", n);
}

}  // namespace

void choose_keys(Run& run, Tensor kept, Tensor q, Tensor weights, const KvView& keys,
                 std::span<const int32_t> positions) {
  if (positions.empty() && q.empty()) return;
  check_choose_keys(kept, q, weights, keys, positions);
  choose_isa();
  for (int64_t n = 0, s = 0; n < q.rows();) {
    Choosing some{n, {}, {0}};
    for (; n < q.rows(); ++n) {
      while (n >= keys.bounds[static_cast<size_t>(s) + 1]) ++s;
      const int64_t blocks = positions[static_cast<size_t>(n)] / kKeyBlock + 1;
      if (some.count() > 0 && (some.blocks() + blocks) * kKeyBlock > kScoresAtOnce) break;
      some.sequence.push_back(s);
      some.block.push_back(some.blocks() + blocks);
    }
    const ArenaScope scope(run.scratch);
    float* scores = run.scratch.alloc(DType::f32, {some.blocks() * kKeyBlock}).as<float>();
    score(run, scores, some, q, weights, keys);
    take_best(run, kept, scores, some, positions);
  }
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
