// Moving rows between tokens and experts: gathering copies rows, combine sums them. Each is the
// other's adjoint. Weighing rows that experts are given. And moving columns to and from where a few
// of them stand together, or dropping all but those.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rowwise/rows.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstring>

#include "core/error.h"
#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/spans.h"
#include "ops/op_checks.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// y[n] = (y[n] +) sum_i x[row[i]], i from bounds[n] to bounds[n + 1] in that order
void SumRows(Tensor y, Tensor x, const int32_t* bounds, const int32_t* row, bool accumulate,
             int64_t begin, int64_t end) {
  const DF32 d;
  WithFloat(y.dtype, [&](auto of_y) HWY_ATTR {
    WithFloat(x.dtype, [&](auto of_x) HWY_ATTR {
      for (int64_t n = begin; n < end; ++n) {
        auto* to = y.row<decltype(of_y)>(n);
        ForColumns(d, y.cols(), [&](int64_t c, auto part) HWY_ATTR {
          VF32 sum = hn::Zero(d);
          for (int32_t i = bounds[n]; i < bounds[n + 1]; ++i)
            sum = hn::Add(sum, Load(d, x.row<decltype(of_x)>(row[i]) + c, part));
          Store(accumulate ? hn::Add(Load(d, to + c, part), sum) : sum, d, to + c, part);
        });
      }
    });
  });
}

// y[r] = weight[r] x[from[r]], or of x[r] without a list
void WeighRows(Tensor y, Tensor x, const int32_t* from, const float* weight, int64_t begin,
               int64_t end) {
  const DF32 d;
  WithFloat(y.dtype, [&](auto of_both) HWY_ATTR {
    using T = decltype(of_both);
    for (int64_t r = begin; r < end; ++r) {
      const T* in = x.row<T>(from != nullptr ? from[r] : r);
      T* out = y.row<T>(r);
      const VF32 w = hn::Set(d, weight[r]);
      ForColumns(d, y.cols(), [&](int64_t c, auto part) HWY_ATTR {
        Store(hn::Mul(w, Load(d, in + c, part)), d, out + c, part);
      });
    }
  });
}

// dweight[r] = <dy[r], x[from[r]]>, before dx[r] = weight[r] dy[r] may write over dy
void WeighRowsBackward(Tensor dx, float* dweight, Tensor dy, Tensor x, const int32_t* from,
                       const float* weight, int64_t begin, int64_t end) {
  const DF32 d;
  WithFloat(dy.dtype, [&](auto of_dy) HWY_ATTR {
    WithFloat(x.dtype, [&](auto of_x) HWY_ATTR {
      for (int64_t r = begin; r < end; ++r) {
        const auto* g = dy.row<decltype(of_dy)>(r);
        const auto* in = x.row<decltype(of_x)>(from != nullptr ? from[r] : r);
        auto* out = dx.row<decltype(of_dy)>(r);
        if (dweight != nullptr)
          dweight[r] = SumColumns(d, dy.cols(), [&](int64_t c, auto part) HWY_ATTR {
            return hn::Mul(Load(d, g + c, part), Load(d, in + c, part));
          });
        const VF32 w = hn::Set(d, weight[r]);
        ForColumns(d, dy.cols(), [&](int64_t c, auto part) HWY_ATTR {
          Store(hn::Mul(w, Load(d, g + c, part)), d, out + c, part);
        });
      }
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(SumRows);
HWY_EXPORT(WeighRows);
HWY_EXPORT(WeighRowsBackward);

void sum(Run& run, Tensor y, Tensor x, std::span<const int32_t> bounds,
         std::span<const int32_t> row, bool accumulate, const char* op) {
  choose_isa();
  check_sum_rows(run, op, y, x, bounds, row);
  parallel_for(run.threads, y.rows(), row_grain(x.cols()), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(SumRows)(y, x, bounds.data(), row.data(), accumulate, begin, end);
  });
}

}  // namespace

void gather_rows(Run& run, Tensor y, Tensor x, std::span<const int32_t> token) {
  check_gather_rows(run, y, x, token);
  const size_t bytes = static_cast<size_t>(x.cols()) * size_of(x.dtype);
  parallel_for(run.threads, y.rows(), row_grain(x.cols()), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      std::memcpy(static_cast<char*>(y.data) + r * y.row_bytes,
                  static_cast<const char*>(x.data) + token[static_cast<size_t>(r)] * x.row_bytes,
                  bytes);
    }
  });
}

void sum_rows(Run& run, Tensor y, Tensor x, std::span<const int32_t> bounds,
              std::span<const int32_t> row) {
  sum(run, y, x, bounds, row, false, "sum_rows");
}

void sum_rows_acc(Run& run, Tensor y, Tensor x, std::span<const int32_t> bounds,
                  std::span<const int32_t> row) {
  sum(run, y, x, bounds, row, true, "sum_rows_acc");
}

void weigh_rows_forward(Run& run, Tensor y, GatheredRows x, Tensor weight) {
  choose_isa();
  check_weigh_rows_forward(y, x, weight);
  parallel_for(run.threads, y.rows(), row_grain(y.cols()), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(WeighRows)(y, x.x, x.row.data(), weight.as<float>(), begin, end);
  });
}

void weigh_rows_backward(Run& run, Tensor dx, Tensor dweight, Tensor dy, GatheredRows x,
                         Tensor weight) {
  choose_isa();
  check_weigh_rows_backward(dx, dweight, dy, x, weight);
  float* dw = dweight.empty() ? nullptr : dweight.as<float>();
  parallel_for(run.threads, dy.rows(), row_grain(dy.cols()), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(WeighRowsBackward)
    (dx, dw, dy, x.x, x.row.data(), weight.as<float>(), begin, end);
  });
}

void put_columns(Run& run, Tensor y, Tensor x, std::span<const int64_t> ids) {
  check_put_columns(run, y, x, ids);
  parallel_for(run.threads, y.rows(), row_grain(x.cols()), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      for (size_t t = 0; t < ids.size(); ++t) y.row<float>(r)[ids[t]] = x.row<float>(r)[t];
  });
}

void take_columns(Run& run, Tensor y, Tensor x, std::span<const int64_t> ids) {
  check_take_columns(run, y, x, ids);
  const size_t size = size_of(x.dtype);
  parallel_for(run.threads, x.rows(), row_grain(y.cols()), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      for (size_t t = 0; t < ids.size(); ++t) {
        char* from = static_cast<char*>(x.data) + r * x.row_bytes + ids[t] * size;
        std::memcpy(static_cast<char*>(y.data) + r * y.row_bytes + t * size, from, size);
        std::memset(from, 0, size);
      }
  });
}

void keep_columns(Run& run, Tensor h, Tensor kept) {
  check_keep_columns(h, kept);
  const auto size = static_cast<int64_t>(size_of(h.dtype));
  parallel_for(run.threads, h.rows(), row_grain(h.cols()), [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) {
      char* row = static_cast<char*>(h.data) + n * h.row_bytes;
      const int32_t* list = kept.row<int32_t>(n);
      int64_t from = 0;
      // what lies before each of the kept ones, then what lies behind the last
      for (int64_t i = 0; i <= kept.cols(); ++i) {
        const int64_t to = i < kept.cols() ? list[i] : h.cols();
        if (from < to) std::memset(row + from * size, 0, static_cast<size_t>((to - from) * size));
        from = to + 1;
      }
    }
  });
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
