// The best experts of each token as a set. The K-th largest score is found by bisection: each step
// counts the scores that are not below a bound, and those that cannot be it any more are left
// behind. Then one pass writes what lies above it.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/routing/top_set.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/routing/top_set.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/spans.h"
#include "ops/op_checks.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

using DI32 = I32For<DF32>;
using VI32 = hn::Vec<DI32>;

// Room for whole vectors, four at a time, of every instruction set.
constexpr int64_t kKeyRoom = 64;

// Memory for a token. All have room for kKeyRoom more.
struct TopSetScratch {
  int32_t* keys;        // [E]
  int32_t* candidates;  // [E]
  int32_t* chosen;      // [K]
};

// Below every key there is.
constexpr int32_t kNoKey = -2147483647 - 1;

// Keys rise as scores do, and those of 0 and -0 are the same.
HWY_INLINE VI32 KeysOf(DF32 d, VF32 scores) {
  const DI32 di;
  const VI32 bits = hn::BitCast(di, hn::Add(scores, hn::Zero(d)));
  return hn::Xor(bits, hn::And(hn::ShiftRight<31>(bits), hn::Set(di, 0x7FFFFFFF)));
}

// [low, high): what keys there are. False where a score is not a number.
bool MakeKeys(int32_t* keys, const float* scores, int64_t experts, int64_t* low, int64_t* high) {
  const DF32 d;
  bool whole = true;
  VF32 least = LoadF32N(d, scores, 1), most = least;  // and zeros, which only widen the range
  ForColumns(d, experts, [&](int64_t c, auto part) HWY_ATTR {
    const VF32 s = Load(d, scores + c, part);
    whole &= hn::AllTrue(d, hn::Eq(s, s));
    least = hn::Min(least, s);
    most = hn::Max(most, s);
    Store(hn::BitCast(d, KeysOf(d, s)), d, reinterpret_cast<float*>(keys) + c, part);
  });
  for (int64_t i = 0; i < kKeyRoom; ++i) keys[experts + i] = kNoKey;
  *low = hn::GetLane(KeysOf(d, hn::MinOfLanes(d, least)));
  *high = int64_t{hn::GetLane(KeysOf(d, hn::MaxOfLanes(d, most)))} + 1;
  return whole;
}

// How many of n keys are not below `bound`, which is above kNoKey.
int64_t CountFrom(const int32_t* keys, int64_t n, int32_t bound) {
  const DI32 di;
  const VI32 under = hn::Set(di, bound - 1), one = hn::Set(di, 1);
  const auto lanes = static_cast<int64_t>(hn::Lanes(di));
  const auto from_bound = [&](int64_t i) HWY_ATTR {
    return hn::IfThenElseZero(hn::Gt(hn::LoadU(di, keys + i), under), one);
  };
  // four sums, so that additions do not wait for each other
  VI32 a = hn::Zero(di), b = a, c = a, e = a;
  for (int64_t i = 0; i < n; i += 4 * lanes) {
    a = hn::Add(a, from_bound(i));
    b = hn::Add(b, from_bound(i + lanes));
    c = hn::Add(c, from_bound(i + 2 * lanes));
    e = hn::Add(e, from_bound(i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(di, hn::Add(hn::Add(a, b), hn::Add(c, e))));
}

// out = the numbers where the mask says so, and anything in a vector's room behind them; how many.
template <class M>
HWY_INLINE int64_t Squeeze(int32_t* out, VI32 numbers, M mask) {
  const DI32 di;
#if HWY_TARGET == HWY_AVX3
  hn::StoreU(hn::Compress(numbers, mask), di, out);
  return static_cast<int64_t>(hn::CountTrue(di, mask));
#else
  // GCC puts the tables of Highway's Compress on the stack, in every call of it.
  int32_t all[hn::MaxLanes(DI32())], chosen[hn::MaxLanes(DI32())];
  hn::StoreU(numbers, di, all);
  hn::StoreU(hn::VecFromMask(di, mask), di, chosen);
  int64_t count = 0;
  for (size_t i = 0; i < hn::Lanes(di); ++i) {
    out[count] = all[i];
    count -= chosen[i];
  }
  return count;
#endif
}

// out = those of n keys that lie in [low, high), and kNoKey behind them; how many there are.
int64_t KeepBetween(int32_t* out, const int32_t* keys, int64_t n, int32_t low, int32_t high) {
  const DI32 di;
  const VI32 under = hn::Set(di, low - 1), over = hn::Set(di, high);
  const auto lanes = static_cast<int64_t>(hn::Lanes(di));
  int64_t kept = 0;
  for (int64_t i = 0; i < n; i += lanes) {
    const VI32 v = hn::LoadU(di, keys + i);
    const auto mask = hn::And(hn::Gt(v, under), hn::Lt(v, over));
    kept += Squeeze(out + kept, v, mask);
  }
  for (int64_t i = 0; i < kKeyRoom; ++i) out[kept + i] = kNoKey;
  return kept;
}

// What is taken: keys from `bound` on, and the first `ties` of those right below it.
struct Cut {
  int32_t bound;
  int64_t ties;
};
Cut FindCut(const TopSetScratch& scratch, int64_t experts, int64_t k, int64_t low, int64_t high) {
  constexpr int64_t kFew = 8 * kKeyRoom;
  // Of all keys `above` are not below `high`, fewer than k, and `from_low` not below `low`, at
  // least k; `gone` are not among the n that are still looked at.
  const int32_t* keys = scratch.keys;
  int64_t n = experts, above = 0, from_low = experts, gone = 0;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2,
                  count = gone + CountFrom(keys, n, static_cast<int32_t>(middle));
    if (count == k) return {static_cast<int32_t>(middle), 0};
    if (count > k) low = middle, from_low = count;
    else high = middle, above = count;
    if (n <= kFew || (from_low - above) * 4 > n) continue;
    n = KeepBetween(scratch.candidates, keys, n, static_cast<int32_t>(low),
                    static_cast<int32_t>(high));
    keys = scratch.candidates;
    gone = above;
  }
  return {static_cast<int32_t>(high), k - above};
}

// The places of what is taken, rising.
void WriteChosen(int32_t* chosen, const int32_t* keys, int64_t experts, Cut cut) {
  const DI32 di;
  const VI32 under = hn::Set(di, cut.bound - 1);
  const auto lanes = static_cast<int64_t>(hn::Lanes(di));
  int64_t count = 0;
  for (int64_t i = 0; i < experts; i += lanes) {
    const VI32 v = hn::LoadU(di, keys + i);
    auto mask = hn::Gt(v, under);
    if (cut.ties > 0) {
      const auto tied = hn::Eq(v, under);
      const auto found = static_cast<int64_t>(hn::CountTrue(di, tied));
      if (found > cut.ties) {  // some of these, and none behind them
        for (int64_t e = i; e < i + lanes; ++e)
          if (keys[e] >= cut.bound || (keys[e] == cut.bound - 1 && cut.ties-- > 0))
            chosen[count++] = static_cast<int32_t>(e);
        cut.ties = 0;
        continue;
      }
      cut.ties -= found;
      mask = hn::Or(mask, tied);
    }
    count += Squeeze(chosen + count, hn::Iota(di, static_cast<int32_t>(i)), mask);
  }
}

// As top_set_of() has it.
bool TopSet(int32_t* choice, const float* scores, int64_t experts, int64_t k, int32_t* memory) {
  int32_t* candidates = memory + experts + kKeyRoom;
  const TopSetScratch scratch{memory, candidates, candidates + experts + kKeyRoom};
  int64_t low, high;
  if (!MakeKeys(scratch.keys, scores, experts, &low, &high)) return false;
  WriteChosen(scratch.chosen, scratch.keys, experts, FindCut(scratch, experts, k, low, high));
  std::memcpy(choice, scratch.chosen, static_cast<size_t>(k) * sizeof(int32_t));
  return true;
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(TopSet);

}  // namespace

int64_t top_set_room(int64_t count, int64_t k) {
  return 2 * count + k + 3 * HWY_NAMESPACE::kKeyRoom;
}

bool top_set_of(int32_t* choice, const float* scores, int64_t count, int64_t k, int32_t* memory) {
  return HWY_DYNAMIC_DISPATCH(TopSet)(choice, scores, count, k, memory);
}

void top_set(Run& run, Tensor choice, Tensor s) {
  choose_isa();
  check_top_set(choice, s);
  const int64_t tokens = s.rows(), experts = s.cols(), k = choice.cols();
  // the first token with a score that is not a number, by thread
  std::vector<int64_t> broken(static_cast<size_t>(run.threads), tokens);
  parallel_for(run.threads, tokens, row_grain(experts),
               [&](int64_t begin, int64_t end, int thread) {
                 Arena& arena = run.thread_scratch[static_cast<size_t>(thread)];
                 const ArenaScope scope(arena);
                 const auto numbers = static_cast<size_t>(top_set_room(experts, k));
                 auto* memory = static_cast<int32_t*>(arena.alloc_bytes(numbers * sizeof(int32_t)));
                 for (int64_t n = begin; n < end; ++n) {
                   if (top_set_of(choice.row<int32_t>(n), s.row<float>(n), experts, k, memory))
                     continue;
                   broken[static_cast<size_t>(thread)] = n;
                   break;
                 }
               });
  need_numbers(*std::min_element(broken.begin(), broken.end()), tokens);
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
