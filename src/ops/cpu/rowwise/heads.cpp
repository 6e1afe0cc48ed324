// Heads that have some of their numbers in common: joining copies them into each, splitting sums
// over all. Each is the other's adjoint.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rowwise/heads.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstring>

#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/spans.h"
#include "ops/op_checks.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// y[n, c] = sum_h x[n, h * width + c] in the order of heads, c < y.cols()
void SumHeads(Tensor y, Tensor x, int64_t heads, int64_t width, int64_t begin, int64_t end) {
  const DF32 d;
  WithFloat(y.dtype, [&](auto kind) HWY_ATTR {
    for (int64_t n = begin; n < end; ++n) {
      auto* to = y.row<decltype(kind)>(n);
      const auto* from = x.row<decltype(kind)>(n);
      ForColumns(d, y.cols(), [&](int64_t c, auto part) HWY_ATTR {
        VF32 sum = hn::Zero(d);
        for (int64_t h = 0; h < heads; ++h) sum = hn::Add(sum, Load(d, from + h * width + c, part));
        Store(sum, d, to + c, part);
      });
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(SumHeads);

}  // namespace

void join_heads(Run& run, Tensor y, Tensor shared, Tensor own, int64_t heads) {
  check_heads("join_heads", y, shared, own, heads);
  const auto size = static_cast<int64_t>(size_of(y.dtype));
  const int64_t first = shared.cols() * size, rest = own.cols() / heads * size;
  parallel_for(run.threads, y.rows(), row_grain(y.cols()), [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) {
      auto* to = static_cast<char*>(y.data) + n * y.row_bytes;
      const auto* of_all = static_cast<const char*>(shared.data) + n * shared.row_bytes;
      const auto* of_one = static_cast<const char*>(own.data) + n * own.row_bytes;
      for (int64_t h = 0; h < heads; ++h, to += first + rest, of_one += rest) {
        std::memcpy(to, of_all, static_cast<size_t>(first));
        std::memcpy(to + first, of_one, static_cast<size_t>(rest));
      }
    }
  });
}

void split_heads(Run& run, Tensor dshared, Tensor down, Tensor dy, int64_t heads) {
  choose_isa();
  check_heads("split_heads", dy, dshared, down, heads);
  const auto size = static_cast<int64_t>(size_of(dy.dtype));
  const int64_t first = dshared.cols() * size, rest = down.cols() / heads * size;
  parallel_for(run.threads, dy.rows(), row_grain(dy.cols()), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(SumHeads)(dshared, dy, heads, dy.cols() / heads, begin, end);
    for (int64_t n = begin; n < end; ++n) {
      const auto* from = static_cast<const char*>(dy.data) + n * dy.row_bytes;
      auto* to = static_cast<char*>(down.data) + n * down.row_bytes;
      for (int64_t h = 0; h < heads; ++h, from += first + rest, to += rest)
        std::memcpy(to, from + first, static_cast<size_t>(rest));
    }
  });
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
