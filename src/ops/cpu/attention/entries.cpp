// Attention to listed entries beside what was attended to already. With l the logsumexp of a
// query's scores so far and o what they gave, those of the entries join the same softmax:
//   l' = log(e^l + sum_j e^(z_j)),  o' = o e^(l - l') + sum_j e^(z_j - l') e_j.
// attention_backward makes of o' and l' the gradients of what came before; here are those of the
// entries. A query's sums run over its list in order, in blocks; an entry's over the queries.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention/entries.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/attention/entries.h"
#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/spans.h"
#include "ops/op_checks.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

constexpr int64_t kEntryBlock = 64;

inline float* EntryRoom(Arena& arena, int64_t count) {
  return static_cast<float*>(arena.alloc_bytes(static_cast<size_t>(count) * sizeof(float)));
}

template <class T>
void WidenRow(float* to, const T* from, int64_t width) {
  const DF32 d;
  ForColumns(d, width, [&](int64_t c, auto part) HWY_ATTR {
    Store(Load(d, from + c, part), d, to + c, part);
  });
}

template <class A, class B>
HWY_INLINE float RowDot(DF32 d, const A* a, const B* b, int64_t width) {
  return SumColumns(d, width, [&](int64_t c, auto part) HWY_ATTR {
    return hn::Mul(Load(d, a + c, part), Load(d, b + c, part));
  });
}

// to = factor to + by from
template <class B>
HWY_INLINE void AddRow(DF32 d, float* to, float factor, float by, const B* from, int64_t width) {
  const VF32 f = hn::Set(d, factor), b = hn::Set(d, by);
  ForColumns(d, width, [&](int64_t c, auto part) HWY_ATTR {
    Store(hn::MulAdd(b, Load(d, from + c, part), hn::Mul(f, Load(d, to + c, part))), d, to + c,
          part);
  });
}

// The next entries of a list, in f32.
int64_t LoadEntries(float* to, const Tensor& entries, const int32_t* list, int64_t left) {
  const int64_t count = std::min(left, kEntryBlock), width = entries.cols();
  WithWeight(entries.dtype, [&](auto kind) HWY_ATTR {
    using T = decltype(kind);
    for (int64_t j = 0; j < count; ++j)
      WidenRow(to + j * width,
               reinterpret_cast<const T*>(static_cast<const char*>(entries.data) +
                                          list[j] * entries.row_bytes),
               width);
  });
  return count;
}

// One head's sums go on over a block: acc [C], of weights that add up to `total` at e^most.
void JoinBlock(float* acc, float& most, float& total, const float* q, const float* block,
               int64_t count, int64_t width, float scale) {
  const DF32 d;
  HWY_ALIGN float scores[kEntryBlock];
  for (int64_t j = 0; j < count; ++j) scores[j] = scale * RowDot(d, q, block + j * width, width);
  const float highest = std::max(most, MaxColumns(d, scores, count));
  const float before = std::exp(most - highest);
  const VF32 shift = hn::Set(d, highest);
  total = total * before + SumColumns(d, count, [&](int64_t c, auto part) HWY_ATTR {
            const VF32 p = Keep(d, ExpNormal(d, hn::Sub(Load(d, scores + c, part), shift)), part);
            Store(p, d, scores + c, part);
            return p;
          });
  most = highest;
  for (int64_t j = 0; j < count; ++j)
    AddRow(d, acc, j == 0 ? before : 1.0f, scores[j], block + j * width, width);
}

template <class A>
void JoinQuery(const EntryCall& call, int64_t n, Arena& arena) {
  const DF32 d;
  const int64_t width = call.entries.cols(), heads = call.heads, all = heads * width;
  const int32_t* list = call.kept.row<int32_t>(n);
  const int64_t count = call.count(n);
  if (count == 0) return;
  const ArenaScope scope(arena);
  float *q = EntryRoom(arena, all), *acc = EntryRoom(arena, all),
        *block = EntryRoom(arena, kEntryBlock * width), *most = EntryRoom(arena, heads),
        *total = EntryRoom(arena, heads);
  WidenRow(q, call.q.row<A>(n), all);
  WidenRow(acc, call.o.row<A>(n), all);
  float* lse = call.lse.row<float>(n);
  for (int64_t h = 0; h < heads; ++h) most[h] = lse[h], total[h] = 1;
  for (int64_t at = 0; at < count;) {
    const int64_t some = LoadEntries(block, call.entries, list + at, count - at);
    for (int64_t h = 0; h < heads; ++h)
      JoinBlock(acc + h * width, most[h], total[h], q + h * width, block, some, width, call.scale);
    at += some;
  }
  A* to = call.o.row<A>(n);
  for (int64_t h = 0; h < heads; ++h) {
    const VF32 share = hn::Set(d, 1 / total[h]);
    ForColumns(d, width, [&](int64_t c, auto part) HWY_ATTR {
      Store(hn::Mul(share, Load(d, acc + h * width + c, part)), d, to + h * width + c, part);
    });
    lse[h] = most[h] + std::log(total[h]);
  }
}

void JoinQueries(const EntryCall& call, int64_t begin, int64_t end, Arena& arena) {
  WithFloat(call.q.dtype, [&](auto kind) HWY_ATTR {
    for (int64_t n = begin; n < end; ++n) JoinQuery<decltype(kind)>(call, n, arena);
  });
}

// What a query's weight of an entry is, and the gradient of its score.
struct Slope {
  float weight, score;
};
template <class A, class E>
HWY_INLINE Slope SlopeOf(DF32 d, const EntryCall& call, int64_t n, int64_t h, const A* q,
                         const A* grad, const E* entry) {
  const int64_t width = call.entries.cols();
  const float p = std::exp(call.scale * RowDot(d, q, entry, width) - call.lse.row<float>(n)[h]);
  return {p, p * (RowDot(d, grad, entry, width) - call.delta.row<float>(n)[h]) * call.scale};
}

// delta[n,h] = <do, o>, and dq += the part of the entries.
template <class A>
void QueryBackward(const EntryCall& call, int64_t n, Arena& arena) {
  const DF32 d;
  const int64_t width = call.entries.cols(), count = call.count(n);
  const A *q = call.q.row<A>(n), *grad = call.do_.row<A>(n), *o = call.o.row<A>(n);
  const ArenaScope scope(arena);
  float *block = EntryRoom(arena, kEntryBlock * width), *acc = EntryRoom(arena, call.heads * width);
  WidenRow(acc, call.dq.row<A>(n), call.heads * width);
  for (int64_t h = 0; h < call.heads; ++h)
    call.delta.row<float>(n)[h] = RowDot(d, grad + h * width, o + h * width, width);
  for (int64_t at = 0; at < count;) {
    const int64_t some =
        LoadEntries(block, call.entries, call.kept.row<int32_t>(n) + at, count - at);
    for (int64_t h = 0; h < call.heads; ++h)
      for (int64_t j = 0; j < some; ++j) {
        const float* entry = block + j * width;
        const Slope s = SlopeOf(d, call, n, h, q + h * width, grad + h * width, entry);
        AddRow(d, acc + h * width, 1.0f, s.score, entry, width);
      }
    at += some;
  }
  A* to = call.dq.row<A>(n);
  ForColumns(d, call.heads * width, [&](int64_t c, auto part) HWY_ATTR {
    Store(Load(d, acc + c, part), d, to + c, part);
  });
}

void QueriesBackward(const EntryCall& call, int64_t begin, int64_t end, Arena& arena) {
  WithFloat(call.q.dtype, [&](auto kind) HWY_ATTR {
    for (int64_t n = begin; n < end; ++n) QueryBackward<decltype(kind)>(call, n, arena);
  });
}

// de = sum over the queries that see the entry of weight do + dscore q
template <class A>
void EntryBackward(const EntryCall& call, int64_t row, const int32_t* query, int64_t count,
                   Arena& arena) {
  const DF32 d;
  const int64_t width = call.entries.cols();
  const ArenaScope scope(arena);
  float* acc = EntryRoom(arena, width);
  std::fill_n(acc, width, 0.0f);
  const A* entry = call.entries.row<A>(row);
  for (int64_t i = 0; i < count; ++i)
    for (int64_t h = 0; h < call.heads; ++h) {
      const int64_t n = query[i];
      const A *q = call.q.row<A>(n) + h * width, *grad = call.do_.row<A>(n) + h * width;
      const Slope s = SlopeOf(d, call, n, h, q, grad, entry);
      AddRow(d, acc, 1.0f, s.weight, grad, width);
      AddRow(d, acc, 1.0f, s.score, q, width);
    }
  A* to = call.dentries.row<A>(row);
  ForColumns(d, width, [&](int64_t c, auto part) HWY_ATTR {
    Store(Load(d, acc + c, part), d, to + c, part);
  });
}

// query [bounds[row], bounds[row + 1]): those that see entry `row`.
void EntriesBackward(const EntryCall& call, const int32_t* query, const int64_t* bounds,
                     int64_t begin, int64_t end, Arena& arena) {
  WithFloat(call.q.dtype, [&](auto kind) HWY_ATTR {
    for (int64_t row = begin; row < end; ++row)
      EntryBackward<decltype(kind)>(call, row, query + bounds[row], bounds[row + 1] - bounds[row],
                                    arena);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(JoinQueries);
HWY_EXPORT(QueriesBackward);
HWY_EXPORT(EntriesBackward);

constexpr int64_t kEntryGrain = 4;  // queries, or entries, that are worth a thread

void check_entries(const char* op, const Tensor& o, const Tensor& lse, const Tensor& q,
                   const Tensor& entries, const Tensor& kept, int64_t heads) {
  need(heads > 0 && is_float(q) && same_matrix(q, o) && o.dtype == q.dtype && !entries.empty() &&
           (is_float(entries) || entries.dtype == DType::f16) &&
           q.cols() == heads * entries.cols() && lse.dtype == DType::f32 &&
           lse.rows() == q.rows() && lse.cols() == heads && kept.dtype == DType::i32 &&
           kept.rows() == q.rows(),
       op,
       "q and o [N,H*C] f32 or bf16, lse [N,H] f32, entries [T,C] f32, bf16 or f16, kept [N,K] i32",
       {{"o", o}, {"lse", lse}, {"q", q}, {"entries", entries}, {"kept", kept}});
  for (int64_t n = 0; n < kept.rows(); ++n)
    for (int64_t i = 0; i < kept.cols(); ++i)
      need(kept.row<int32_t>(n)[i] >= -1 && kept.row<int32_t>(n)[i] < entries.rows(), op,
           "rows of the entries, and -1 behind them", {{"kept", kept}, {"entries", entries}});
}

}  // namespace

void attend_entries_acc(Run& run, Tensor o, Tensor lse, Tensor q, Tensor entries, Tensor kept,
                        int64_t heads, float scale) {
  check_entries("attend_entries_acc", o, lse, q, entries, kept, heads);
  choose_isa();
  const EntryCall call{
      .o = o, .lse = lse, .q = q, .entries = entries, .kept = kept, .heads = heads, .scale = scale};
  parallel_for(run.threads, q.rows(), kEntryGrain, [&](int64_t begin, int64_t end, int thread) {
    HWY_DYNAMIC_DISPATCH(JoinQueries)
    (call, begin, end, run.thread_scratch[static_cast<size_t>(thread)]);
  });
}

void attend_entries_backward_acc(Run& run, Tensor dq, Tensor dentries, Tensor do_, Tensor q,
                                 Tensor entries, Tensor o, Tensor lse, Tensor kept, int64_t heads,
                                 float scale) {
  const char* op = "attend_entries_backward_acc";
  check_entries(op, o, lse, q, entries, kept, heads);
  need(same_matrix(dq, q) && dq.dtype == q.dtype && same_matrix(do_, o) && do_.dtype == o.dtype &&
           same_matrix(dentries, entries) && entries.dtype == q.dtype && dentries.dtype == q.dtype,
       op, "gradients like what they are of, all of one dtype",
       {{"dq", dq}, {"dentries", dentries}, {"do", do_}, {"q", q}, {"entries", entries}});
  choose_isa();
  const ArenaScope scope(run.scratch);
  const EntryCall call{.o = o,
                       .lse = lse,
                       .q = q,
                       .entries = entries,
                       .kept = kept,
                       .heads = heads,
                       .scale = scale,
                       .dq = dq,
                       .dentries = dentries,
                       .do_ = do_,
                       .delta = run.scratch.alloc(DType::f32, {q.rows(), heads})};
  parallel_for(run.threads, q.rows(), kEntryGrain, [&](int64_t begin, int64_t end, int thread) {
    HWY_DYNAMIC_DISPATCH(QueriesBackward)
    (call, begin, end, run.thread_scratch[static_cast<size_t>(thread)]);
  });
  std::vector<int64_t> bounds(static_cast<size_t>(entries.rows()) + 1);
  const auto each = [&](auto&& f) {
    for (int64_t n = 0; n < q.rows(); ++n)
      for (int64_t i = 0; i < call.count(n); ++i)
        f(n, static_cast<size_t>(kept.row<int32_t>(n)[i]));
  };
  each([&](int64_t, size_t row) { ++bounds[row + 1]; });
  for (size_t i = 1; i < bounds.size(); ++i) bounds[i] += bounds[i - 1];
  std::vector<int64_t> next(bounds.begin(), bounds.end() - 1);
  std::vector<int32_t> query(static_cast<size_t>(bounds.back()));
  each([&](int64_t n, size_t row) {
    query[static_cast<size_t>(next[row]++)] = static_cast<int32_t>(n);
  });
  parallel_for(run.threads, entries.rows(), 1, [&](int64_t begin, int64_t end, int thread) {
    HWY_DYNAMIC_DISPATCH(EntriesBackward)
    (call, query.data(), bounds.data(), begin, end,
     run.thread_scratch[static_cast<size_t>(thread)]);
  });
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
