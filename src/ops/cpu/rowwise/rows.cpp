// Moving rows between tokens and experts: gathering copies rows, combine sums them. Each is the
// other's adjoint. And moving columns to and from where a few of them stand together.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rowwise/rows.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstring>

#include "core/error.h"
#include "ops/cpu/check.h"
#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"

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

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(SumRows);

void need_rows(const char* op, const char* list, std::span<const int32_t> rows, const Tensor& x) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0 || rows[i] >= x.rows())
      fail("{}: {}[{}] = {} is not a row of x {}", op, list, i, rows[i], describe(x));
  }
}

void need_columns(const char* op, std::span<const int64_t> ids, const Tensor& few,
                  const Tensor& all) {
  need(!few.empty() && !all.empty() && few.dtype == all.dtype && few.rows() == all.rows() &&
           few.cols() == static_cast<int64_t>(ids.size()),
       op, "x and y of one dtype and as many rows, with an id for each column",
       {{"few", few}, {"all", all}});
  for (const int64_t id : ids)
    if (id < 0 || id >= all.cols()) fail("{}: {} is no column of {}", op, id, describe(all));
}

void sum(Run& run, Tensor y, Tensor x, std::span<const int32_t> bounds,
         std::span<const int32_t> row, bool accumulate, const char* op) {
  choose_isa();
  need(!y.empty() && !x.empty() && is_float(y) && is_float(x) && x.cols() == y.cols(), op,
       "x and y of one width, f32 or bf16", {{"y", y}, {"x", x}});
  const int64_t rows = y.rows(), listed = static_cast<int64_t>(row.size());
  if (static_cast<int64_t>(bounds.size()) != rows + 1)
    fail("{}: {} bounds for y {}; needs one more than rows", op, bounds.size(), describe(y));
  for (int64_t n = 0; n < rows; ++n) {
    const int32_t from = bounds[static_cast<size_t>(n)], to = bounds[static_cast<size_t>(n) + 1];
    if (from < 0 || to < from || to > listed)
      fail("{}: bounds [{}, {}) of y's row {} do not lie in the list of {} rows", op, from, to, n,
           listed);
  }
  need_rows(op, "row", row, x);
  parallel_for(run.threads, rows, row_grain(x.cols()), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(SumRows)(y, x, bounds.data(), row.data(), accumulate, begin, end);
  });
}

}  // namespace

void gather_rows(Run& run, Tensor y, Tensor x, std::span<const int32_t> token) {
  const char* op = "gather_rows";
  need(!y.empty() && !x.empty() && x.dtype == y.dtype && x.cols() == y.cols() &&
           y.rows() == static_cast<int64_t>(token.size()),
       op, "x and y of one width and dtype, with a token for each row of y", {{"y", y}, {"x", x}});
  need_rows(op, "token", token, x);
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

void put_columns(Run& run, Tensor y, Tensor x, std::span<const int64_t> ids) {
  const char* op = "put_columns";
  need_columns(op, ids, x, y);
  need(y.dtype == DType::f32, op, "f32", {{"y", y}});
  parallel_for(run.threads, y.rows(), row_grain(x.cols()), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      for (size_t t = 0; t < ids.size(); ++t) y.row<float>(r)[ids[t]] = x.row<float>(r)[t];
  });
}

void take_columns(Run& run, Tensor y, Tensor x, std::span<const int64_t> ids) {
  const char* op = "take_columns";
  need_columns(op, ids, y, x);
  need(is_float(x), op, "f32 or bf16", {{"x", x}});
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

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
