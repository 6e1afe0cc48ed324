// Forward kernel of attention where keys and values are bf16 and the processor multiplies pairs of bf16 (VDPBF16PS): twice the numbers an instruction that
// attention_forward.cpp's f32 takes. The algorithm and its letters are those of attention_forward.cpp; queries in f32 are rounded to bf16, scores are sums of
// exact products in f32, and the exponentials p are rounded to bf16 before they meet the values, as FlashAttention does in halves. Sums l and lse are of the
// unrounded p.
//
// Lanes are keys, whether one query is asked or many: scores are held [column, key]. Two neighbouring numbers of a key make a pair for q k, two neighbouring
// keys one for p v. Each score is one chain over the pairs of the width and each output one over the pairs of keys, counted from position 0, so the bits of a
// column depend neither on the columns beside it nor on how a text was cut.

#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention/attention_halves.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "ops/cpu/attention/attention_tasks.h"
#include "ops/cpu/gemm/pair_gemm-inl.h"
#include "ops/cpu/quant/block_gemm-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kKeys = kAttentionBlock;

// One task's state. Pairs are words of 32 bits, the first of the two in the lower half.
struct Halves {
  int64_t count;         // columns
  int64_t pairs;         // pairs of a key's numbers
  int64_t value_padded;  // Cv padded to whole vectors
  int32_t* position;     // [count]
  int32_t* first_seen;   // [count]
  uint32_t* q;           // [count, pairs]
  uint32_t* k;           // [pairs, 64] of a block of keys
  uint32_t* k_rows;      // [64, pairs padded] the same before it is turned, where keys lie in rows
  uint32_t* v;           // [32, value_padded] pairs of the block's values, and a vector that the last row may run over into
  float* score;          // [6, 64]
  uint32_t* p;           // [6, 32] pairs of exponentials
  float* highest;        // [count] running maximum m
  float* total;          // [count, 16] running sum l, lane by lane
  float* out;            // [count, value_padded] running o
};

MOE_HALVES Halves load_task(const AttentionCall& call, const AttentionTask& task, Arena& scratch) {
  const int64_t width = call.width();
  Halves x{};
  x.count = task.end - task.begin;
  x.pairs = (width + 1) / 2;
  x.value_padded = padded_width(call.value_width());
  x.position = alloc<int32_t>(scratch, x.count);
  x.first_seen = alloc<int32_t>(scratch, x.count);
  x.q = alloc<uint32_t>(scratch, x.count * x.pairs);
  x.k = alloc<uint32_t>(scratch, padded_width(x.pairs) * kKeys);
  if (!call.kv->keys_transposed()) x.k_rows = alloc<uint32_t>(scratch, kKeys * padded_width(x.pairs));
  x.v = alloc<uint32_t>(scratch, kKeys / 2 * x.value_padded + kLanes);
  x.score = alloc<float>(scratch, kRowsAtOnce * kKeys);
  x.p = alloc<uint32_t>(scratch, kRowsAtOnce * kKeys / 2);
  x.highest = alloc<float>(scratch, x.count);
  x.total = alloc<float>(scratch, x.count * kLanes);
  x.out = alloc<float>(scratch, x.count * x.value_padded);
  for (int64_t j = 0; j < x.count; ++j) {
    const AttentionColumn at = column_at(call, task, j);
    copy_pairs(x.q + j * x.pairs, call.q, at.row, at.head * width, width);
    x.position[j] = call.positions[static_cast<size_t>(at.row)];
    x.first_seen[j] = static_cast<int32_t>(call.first_seen(x.position[j]));
  }
  std::fill_n(x.highest, x.count, -std::numeric_limits<float>::infinity());
  std::fill_n(x.total, x.count * kLanes, 0.0f);
  std::fill_n(x.out, x.count * x.value_padded, 0.0f);
  return x;
}

// Few queries are done with a block before the memory has brought another, and a head's rows lie too far apart for the hardware to foresee: a line of the
// block that is this many further on is fetched to the second level (to the first, which waits for few lines at once, was 12% slower in decode).
constexpr int64_t kBlocksAhead = 2;
// The row where that block begins; past the last one, of key `past`, the block's own, which does nothing.
int64_t row_ahead(const AttentionCall& call, const AttentionTask& task, int64_t block, int64_t past) {
  const int64_t ahead = block + kBlocksAhead * kKeys;
  return call.kv->row(task.sequence, ahead < past ? ahead : block);
}
HWY_INLINE void fetch(const void* line) { _mm_prefetch(static_cast<const char*>(line), _MM_HINT_T1); }

// Keys of one block that some column of a task sees: positions [first, end), counted from the block's first, which lie from row `row` of the view on. `ahead`:
// the row where the block to fetch meanwhile begins.
struct SeenKeys {
  int64_t block, first, end, row, ahead;
};

// The block of keys as x.k. Lanes without a key hold anything.
MOE_HALVES void load_keys(const AttentionCall& call, const AttentionTask& task, const Halves& x, const SeenKeys& seen) {
  const KvView& kv = *call.kv;
  const int64_t width = call.width();
  if (!kv.keys_transposed()) {
    const int64_t ld = padded_width(x.pairs);
    for (int64_t j = seen.first - seen.block; j < seen.end - seen.block; ++j) copy_pairs(x.k_rows + j * ld, kv.k, seen.row + j, task.kv_head * width, width);
    transpose_block(reinterpret_cast<float*>(x.k), kKeys, reinterpret_cast<const float*>(x.k_rows), ld, kKeys, ld);
    return;
  }
  const bf16* panel = static_cast<const bf16*>(kv.k.data) + (seen.row / kKeys * call.kv_heads + task.kv_head) * width * kKeys;
  const int64_t ahead = (seen.ahead - seen.row) / kKeys * call.kv_heads * width * kKeys;
  for (int64_t c = 0; c < width; c += 2, panel += 2 * kKeys)
    for (int64_t j = 0; j < kKeys; j += 2 * kLanes) {
      fetch(panel + ahead + j);
      fetch(panel + ahead + kKeys + j);
      store_pairs(x.k + c / 2 * kKeys + j, _mm512_loadu_si512(panel + j), c + 1 < width ? _mm512_loadu_si512(panel + kKeys + j) : _mm512_setzero_si512());
    }
}

// The values of the same keys as x.v; zero where a pair has no such key.
MOE_HALVES void load_values(const AttentionCall& call, const AttentionTask& task, const Halves& x, const SeenKeys& seen) {
  const KvView& kv = *call.kv;
  const int64_t width = call.value_width();
  const char* head = static_cast<const char*>(kv.v.data) + task.kv_head * width * static_cast<int64_t>(sizeof(bf16));
  const auto numbers = [&](int64_t row) { return reinterpret_cast<const bf16*>(head + row * kv.v.row_bytes); };
  const auto values = [&](int64_t key) { return key < seen.first || key >= seen.end ? nullptr : numbers(seen.row + key - seen.block); };
  for (int64_t key = seen.first & ~int64_t{1}; key < seen.end; key += 2) {
    for (int64_t c = 0; c < width; c += 2 * kLanes) {
      fetch(numbers(seen.ahead + key - seen.block) + c);
      fetch(numbers(seen.ahead + key + 1 - seen.block) + c);
    }
    pair_rows(x.v + (key - seen.block) / 2 * x.value_padded, values(key), values(key + 1), width);
  }
}

// What kRows columns see of a block: [low, high) each, nothing where low >= high; and together.
template <int kRows>
struct Seen {
  int64_t low[kRows], high[kRows], lowest, most;
};

// Softmax of a block for kRows columns: x.score [kRows, kVectors * 16] becomes pairs x.p, and m and l move on; shrink [kRows] is what o is to be multiplied by.
// All maxima come before the first exponential, and nothing branches on them, so that the columns' chains run beside each other.
template <int kRows, int kVectors>
MOE_HALVES HWY_INLINE void softmax_rows(const Halves& x, int64_t column, const Seen<kRows>& seen, float scale, float* shrink) {
  static_assert(kRows <= kLanes);
  constexpr uint64_t kAll = ~uint64_t{0} >> (kKeys - kVectors * kLanes);
  const DF32 d;
  const float infinity = std::numeric_limits<float>::infinity();
  alignas(64) float level[kLanes] = {}, fall[kLanes] = {};
  for (int i = 0; i < kRows; ++i) {
    float* score = x.score + i * kKeys;
    const uint64_t visible = seen.low[i] < seen.high[i] ? ~uint64_t{0} >> (kKeys - seen.high[i] + seen.low[i]) << seen.low[i] : 0;
    __m512 s[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) s[v] = _mm512_mul_ps(_mm512_loadu_ps(score + v * kLanes), _mm512_set1_ps(scale));
    if (visible != kAll) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) s[v] = _mm512_mask_mov_ps(_mm512_set1_ps(-infinity), static_cast<__mmask16>(visible >> v * kLanes), s[v]);
    }
    __m512 most = s[0];
#pragma GCC unroll 4
    for (int v = 1; v < kVectors; ++v) most = _mm512_max_ps(most, s[v]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(score + v * kLanes, s[v]);
    const float before = x.highest[column + i], highest = std::max(before, _mm512_reduce_max_ps(most));
    x.highest[column + i] = highest;
    level[i] = highest == -infinity ? 0.0f : highest;  // where every score is -inf: -inf - -inf must not come about
    fall[i] = before - level[i];
  }
  const __m512 factors = ExpNormal(d, VF32{_mm512_load_ps(fall)}).raw;
  _mm512_storeu_ps(shrink, factors);
  for (int i = 0; i < kRows; ++i) {
    const float* score = x.score + i * kKeys;
    uint32_t* p = x.p + i * kKeys / 2;
    float* total = x.total + (column + i) * kLanes;
    __m512 sum = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const __m512 e = ExpNormal(d, VF32{_mm512_sub_ps(_mm512_loadu_ps(score + v * kLanes), _mm512_set1_ps(level[i]))}).raw;
      sum = _mm512_add_ps(sum, e);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + v * kLanes / 2), (__m256i)_mm512_cvtneps_pbh(e));
    }
    _mm512_storeu_ps(total, _mm512_fmadd_ps(_mm512_loadu_ps(total), _mm512_set1_ps(shrink[i]), sum));
  }
}

// kRows columns from `column` on against kVectors * 16 keys of the block.
template <int kRows, int kVectors>
MOE_HALVES void attend_keys(const AttentionCall& call, const Halves& x, int64_t column, const Seen<kRows>& seen) {
  alignas(64) float shrink[kLanes];
  pair_product<kRows>(kVectors * kLanes, x.pairs, {x.q + column * x.pairs, x.pairs, 1}, x.k, kKeys, x.score, kKeys, Written());
  softmax_rows<kRows, kVectors>(x, column, seen, call.scale, shrink);
  const int64_t begin = seen.lowest / 2, depth = (seen.most + 1) / 2 - begin;
  pair_product<kRows>(x.value_padded, depth, {x.p + begin, kKeys / 2, 1}, x.v + begin * x.value_padded, x.value_padded, x.out + column * x.value_padded,
                      x.value_padded, Scaled{shrink});
}

template <int kRows>
MOE_HALVES void attend(const AttentionCall& call, const Halves& x, int64_t column, int64_t block, int64_t first, int64_t end) {
  Seen<kRows> seen{.lowest = kKeys, .most = 0};
  for (int i = 0; i < kRows; ++i) {
    seen.low[i] = std::max<int64_t>(x.first_seen[column + i], first) - block;
    seen.high[i] = std::min<int64_t>(x.position[column + i] + 1, end) - block;
    if (seen.low[i] >= seen.high[i]) continue;
    seen.lowest = std::min(seen.lowest, seen.low[i]);
    seen.most = std::max(seen.most, seen.high[i]);
  }
  switch (seen.most == 0 ? 0 : (seen.most - 1) / kLanes + 1) {
    case 4: return attend_keys<kRows, 4>(call, x, column, seen);
    case 3: return attend_keys<kRows, 3>(call, x, column, seen);
    case 2: return attend_keys<kRows, 2>(call, x, column, seen);
    case 1: return attend_keys<kRows, 1>(call, x, column, seen);
    default: return;
  }
}

void attend_all(const AttentionCall& call, const Halves& x, int64_t block, int64_t first, int64_t end) {
  int64_t j = 0;
  for (; j + kRowsAtOnce <= x.count; j += kRowsAtOnce) attend<kRowsAtOnce>(call, x, j, block, first, end);
  switch (x.count - j) {
    case 5: return attend<5>(call, x, j, block, first, end);
    case 4: return attend<4>(call, x, j, block, first, end);
    case 3: return attend<3>(call, x, j, block, first, end);
    case 2: return attend<2>(call, x, j, block, first, end);
    case 1: return attend<1>(call, x, j, block, first, end);
    default: return;
  }
}

void forward_task(const AttentionCall& call, const AttentionTask& task, Arena& scratch) {
  const ArenaScope scope(scratch);
  const Halves x = load_task(call, task, scratch);
  const int64_t oldest = *std::min_element(x.first_seen, x.first_seen + x.count), past = *std::max_element(x.position, x.position + x.count) + 1;
  for (int64_t block = oldest / kKeys * kKeys; block < past; block += kKeys) {
    const SeenKeys seen{.block = block,
                        .first = std::max(block, oldest),
                        .end = std::min(block + kKeys, past),
                        .row = call.kv->row(task.sequence, block),
                        .ahead = row_ahead(call, task, block, past)};
    load_keys(call, task, x, seen);
    load_values(call, task, x, seen);
    attend_all(call, x, block, seen.first, seen.end);
  }
  const int64_t value_width = call.value_width();
  const DF32 d;
  for (int64_t j = 0; j < x.count; ++j) {
    const AttentionColumn at = column_at(call, task, j);
    const float total = SumLanesFixed(d, hn::LoadU(d, x.total + j * kLanes));
    store_row(call.o, at.row, at.head * value_width, value_width, x.out + j * x.value_padded, 1.0f / total);
    if (!call.lse.empty()) call.lse.row<float>(at.row)[at.head] = x.highest[j] + std::log(total);
  }
}

void forward_halves(const AttentionCall& call, std::span<const AttentionTask> tasks, Arena& scratch) {
  for (const AttentionTask& task : tasks) forward_task(call, task, scratch);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace moe::ops {

#if HWY_TARGETS & HWY_AVX3
void attention_forward_halves(const AttentionCall& call, std::span<const AttentionTask> tasks, Arena& scratch) { N_AVX3::forward_halves(call, tasks, scratch); }
#else
void attention_forward_halves(const AttentionCall&, std::span<const AttentionTask>, Arena&) { fail("attention of halves is not compiled for this processor"); }
#endif

}  // namespace moe::ops
#endif
