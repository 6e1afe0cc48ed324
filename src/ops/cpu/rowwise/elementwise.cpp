// Ops that treat every element alike: cast, scale, add, zero. Dropout and rope have files of their
// own.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rowwise/elementwise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstring>

#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/spans.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

void CastSpan(Tensor y, Tensor x, int64_t row, int64_t col, int64_t count) {
  WithFloat(y.dtype, [&](auto of_y) HWY_ATTR {
    WithFloat(x.dtype, [&](auto of_x) HWY_ATTR {
      auto* to = y.row<decltype(of_y)>(row) + col;
      const auto* from = x.row<decltype(of_x)>(row) + col;
      ForColumns(DF32(), count, [&](int64_t c, auto part) HWY_ATTR {
        Store(Load(DF32(), from + c, part), DF32(), to + c, part);
      });
    });
  });
}

void ScaleSpan(Tensor y, Tensor x, float factor, int64_t row, int64_t col, int64_t count) {
  WithFloat(y.dtype, [&](auto of_y) HWY_ATTR {
    WithFloat(x.dtype, [&](auto of_x) HWY_ATTR {
      auto* to = y.row<decltype(of_y)>(row) + col;
      const auto* from = x.row<decltype(of_x)>(row) + col;
      const VF32 by = hn::Set(DF32(), factor);
      ForColumns(DF32(), count, [&](int64_t c, auto part) HWY_ATTR {
        Store(hn::Mul(by, Load(DF32(), from + c, part)), DF32(), to + c, part);
      });
    });
  });
}

void AddSpan(Tensor y, Tensor a, Tensor b, int64_t row, int64_t col, int64_t count) {
  WithFloat(y.dtype, [&](auto of_y) HWY_ATTR {
    WithFloat(a.dtype, [&](auto of_a) HWY_ATTR {
      WithFloat(b.dtype, [&](auto of_b) HWY_ATTR {
        auto* sum = y.row<decltype(of_y)>(row) + col;
        const auto* left = a.row<decltype(of_a)>(row) + col;
        const auto* right = b.row<decltype(of_b)>(row) + col;
        ForColumns(DF32(), count, [&](int64_t c, auto part) HWY_ATTR {
          Store(hn::Add(Load(DF32(), left + c, part), Load(DF32(), right + c, part)), DF32(),
                sum + c, part);
        });
      });
    });
  });
}

void AddScaledSpan(Tensor y, Tensor x, Tensor z, float a, float b, int64_t row, int64_t col,
                   int64_t count) {
  WithFloat(y.dtype, [&](auto of_y) HWY_ATTR {
    WithFloat(x.dtype, [&](auto of_x) HWY_ATTR {
      WithFloat(z.dtype, [&](auto of_z) HWY_ATTR {
        auto* sum = y.row<decltype(of_y)>(row) + col;
        const auto* left = x.row<decltype(of_x)>(row) + col;
        const auto* right = z.row<decltype(of_z)>(row) + col;
        const VF32 by_a = hn::Set(DF32(), a), by_b = hn::Set(DF32(), b);
        ForColumns(DF32(), count, [&](int64_t c, auto part) HWY_ATTR {
          const VF32 scaled = hn::Mul(by_b, Load(DF32(), right + c, part));
          Store(hn::MulAdd(by_a, Load(DF32(), left + c, part), scaled), DF32(), sum + c, part);
        });
      });
    });
  });
}

void MultiplySpan(Tensor y, Tensor a, Tensor b, int64_t row, int64_t col, int64_t count) {
  WithFloat(y.dtype, [&](auto kind) HWY_ATTR {
    using T = decltype(kind);
    T* product = y.row<T>(row) + col;
    const T *left = a.row<T>(row) + col, *right = b.row<T>(row) + col;
    ForColumns(DF32(), count, [&](int64_t c, auto part) HWY_ATTR {
      Store(hn::Mul(Load(DF32(), left + c, part), Load(DF32(), right + c, part)), DF32(),
            product + c, part);
    });
  });
}

void SoftCapSpan(Tensor y, Tensor x, float cap, int64_t row, int64_t col, int64_t count) {
  const DF32 d;
  float* to = y.row<float>(row) + col;
  const float* from = x.row<float>(row) + col;
  const VF32 by = hn::Set(d, cap), inverse = hn::Set(d, 1 / cap);
  ForColumns(d, count, [&](int64_t c, auto part) HWY_ATTR {
    Store(hn::Mul(by, Tanh(d, hn::Mul(Load(d, from + c, part), inverse))), d, to + c, part);
  });
}

void SoftCapBackwardSpan(Tensor dx, Tensor dy, Tensor y, float cap, int64_t row, int64_t col,
                         int64_t count) {
  WithFloat(dx.dtype, [&](auto kind) HWY_ATTR {
    using T = decltype(kind);
    const DF32 d;
    T* to = dx.row<T>(row) + col;
    const T* grad = dy.row<T>(row) + col;
    const float* value = y.row<float>(row) + col;
    const VF32 inverse = hn::Set(d, 1 / cap), one = hn::Set(d, 1.0f);
    ForColumns(d, count, [&](int64_t c, auto part) HWY_ATTR {
      const VF32 t = hn::Mul(Load(d, value + c, part), inverse);
      Store(hn::Mul(Load(d, grad + c, part), hn::NegMulAdd(t, t, one)), d, to + c, part);
    });
  });
}

void ClipSpan(Tensor y, Tensor x, float limit, int64_t row, int64_t col, int64_t count) {
  WithFloat(y.dtype, [&](auto kind) HWY_ATTR {
    using T = decltype(kind);
    const DF32 d;
    T* to = y.row<T>(row) + col;
    const T* from = x.row<T>(row) + col;
    const VF32 high = hn::Set(d, limit), low = hn::Set(d, -limit);
    ForColumns(d, count, [&](int64_t c, auto part) HWY_ATTR {
      Store(hn::Min(hn::Max(Load(d, from + c, part), low), high), d, to + c, part);
    });
  });
}

void ClipBackwardSpan(Tensor dx, Tensor dy, Tensor x, float limit, int64_t row, int64_t col,
                      int64_t count) {
  WithFloat(dx.dtype, [&](auto kind) HWY_ATTR {
    using T = decltype(kind);
    const DF32 d;
    T* to = dx.row<T>(row) + col;
    const T *grad = dy.row<T>(row) + col, *value = x.row<T>(row) + col;
    const VF32 high = hn::Set(d, limit);
    ForColumns(d, count, [&](int64_t c, auto part) HWY_ATTR {
      const auto kept = hn::Le(hn::Abs(Load(d, value + c, part)), high);
      Store(hn::IfThenElseZero(kept, Load(d, grad + c, part)), d, to + c, part);
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(CastSpan);
HWY_EXPORT(ScaleSpan);
HWY_EXPORT(AddSpan);
HWY_EXPORT(AddScaledSpan);
HWY_EXPORT(MultiplySpan);
HWY_EXPORT(SoftCapSpan);
HWY_EXPORT(SoftCapBackwardSpan);
HWY_EXPORT(ClipSpan);
HWY_EXPORT(ClipBackwardSpan);

}  // namespace

void cast(Run& run, Tensor y, Tensor x) {
  choose_isa();
  need(same_matrix(x, y) && is_float(x) && is_float(y), "cast", "x and y of one shape, f32 or bf16",
       {{"y", y}, {"x", x}});
  if (x.dtype == y.dtype) {  // copied as bytes: even a NaN keeps its bits
    const int64_t width = static_cast<int64_t>(size_of(x.dtype));
    for_spans(run, x, x.dense() && y.dense(), [&](int64_t row, int64_t col, int64_t count) {
      std::memmove(static_cast<char*>(y.data) + row * y.row_bytes + col * width,
                   static_cast<const char*>(x.data) + row * x.row_bytes + col * width,
                   static_cast<size_t>(count * width));
    });
    return;
  }
  for_spans(run, x, x.dense() && y.dense(), [&](int64_t row, int64_t col, int64_t count) {
    HWY_DYNAMIC_DISPATCH(CastSpan)(y, x, row, col, count);
  });
}

void scale(Run& run, Tensor y, Tensor x, float factor) {
  choose_isa();
  need(same_matrix(x, y) && is_float(x) && is_float(y), "scale",
       "x and y of one shape, f32 or bf16", {{"y", y}, {"x", x}});
  for_spans(run, x, x.dense() && y.dense(), [&](int64_t row, int64_t col, int64_t count) {
    HWY_DYNAMIC_DISPATCH(ScaleSpan)(y, x, factor, row, col, count);
  });
}

void soft_cap_forward(Run& run, Tensor y, Tensor x, float cap) {
  choose_isa();
  need(same_matrix(x, y) && x.dtype == DType::f32 && y.dtype == DType::f32 && cap > 0,
       "soft_cap_forward", "x and y of one shape, f32, and a cap above 0", {{"y", y}, {"x", x}});
  for_spans(run, x, x.dense() && y.dense(), [&](int64_t row, int64_t col, int64_t count) {
    HWY_DYNAMIC_DISPATCH(SoftCapSpan)(y, x, cap, row, col, count);
  });
}

void soft_cap_backward(Run& run, Tensor dx, Tensor dy, Tensor y, float cap) {
  choose_isa();
  need(same_matrix(dx, dy) && same_matrix(dx, y) && is_float(dx) && dx.dtype == dy.dtype &&
           y.dtype == DType::f32 && cap > 0,
       "soft_cap_backward", "dx, dy and y of one shape, dx and dy of one dtype, y f32",
       {{"dx", dx}, {"dy", dy}, {"y", y}});
  for_spans(run, dx, dx.dense() && dy.dense() && y.dense(),
            [&](int64_t row, int64_t col, int64_t count) {
              HWY_DYNAMIC_DISPATCH(SoftCapBackwardSpan)(dx, dy, y, cap, row, col, count);
            });
}

void clip_forward(Run& run, Tensor y, Tensor x, float limit) {
  choose_isa();
  need(same_matrix(x, y) && is_float(x) && x.dtype == y.dtype && limit > 0, "clip_forward",
       "x and y of one shape and dtype, f32 or bf16, and a limit above 0", {{"y", y}, {"x", x}});
  for_spans(run, x, x.dense() && y.dense(), [&](int64_t row, int64_t col, int64_t count) {
    HWY_DYNAMIC_DISPATCH(ClipSpan)(y, x, limit, row, col, count);
  });
}

void clip_backward(Run& run, Tensor dx, Tensor dy, Tensor x, float limit) {
  choose_isa();
  need(same_matrix(dx, dy) && same_matrix(dx, x) && is_float(dx) && dx.dtype == dy.dtype &&
           dx.dtype == x.dtype && limit > 0,
       "clip_backward", "dx, dy and x of one shape and dtype, f32 or bf16, and a limit above 0",
       {{"dx", dx}, {"dy", dy}, {"x", x}});
  for_spans(run, dx, dx.dense() && dy.dense() && x.dense(),
            [&](int64_t row, int64_t col, int64_t count) {
              HWY_DYNAMIC_DISPATCH(ClipBackwardSpan)(dx, dy, x, limit, row, col, count);
            });
}

void add(Run& run, Tensor y, Tensor a, Tensor b) {
  choose_isa();
  need(same_matrix(a, b) && same_matrix(a, y) && is_float(a) && is_float(b) && is_float(y), "add",
       "y, a and b of one shape, f32 or bf16", {{"y", y}, {"a", a}, {"b", b}});
  for_spans(run, y, y.dense() && a.dense() && b.dense(),
            [&](int64_t row, int64_t col, int64_t count) {
              HWY_DYNAMIC_DISPATCH(AddSpan)(y, a, b, row, col, count);
            });
}

void add_scaled(Run& run, Tensor y, Tensor x, Tensor z, float a, float b) {
  choose_isa();
  need(same_matrix(x, z) && same_matrix(x, y) && is_float(x) && is_float(z) && is_float(y),
       "add_scaled", "y, x and z of one shape, f32 or bf16", {{"y", y}, {"x", x}, {"z", z}});
  for_spans(run, y, y.dense() && x.dense() && z.dense(),
            [&](int64_t row, int64_t col, int64_t count) {
              HWY_DYNAMIC_DISPATCH(AddScaledSpan)(y, x, z, a, b, row, col, count);
            });
}

void multiply(Run& run, Tensor y, Tensor a, Tensor b) {
  choose_isa();
  need(same_matrix(a, b) && same_matrix(a, y) && is_float(y) && a.dtype == y.dtype &&
           b.dtype == y.dtype,
       "multiply", "y, a and b of one shape and dtype, f32 or bf16",
       {{"y", y}, {"a", a}, {"b", b}});
  for_spans(run, y, y.dense() && a.dense() && b.dense(),
            [&](int64_t row, int64_t col, int64_t count) {
              HWY_DYNAMIC_DISPATCH(MultiplySpan)(y, a, b, row, col, count);
            });
}

void zero(Run& run, Tensor y) {
  need(!y.empty(), "zero", "a tensor", {{"y", y}});
  const int64_t width = static_cast<int64_t>(size_of(y.dtype));
  for_spans(run, y, y.dense(), [&](int64_t row, int64_t col, int64_t count) {
    std::memset(static_cast<char*>(y.data) + row * y.row_bytes + col * width, 0,
                static_cast<size_t>(count * width));
  });
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
