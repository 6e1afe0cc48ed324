// How a product with quantised weights is cut into tiles, for the kernels that keep a tile's sums
// at hand: quant_vnni.cpp and quant_avx2.cpp.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/cpu/quant/quant_panels.h"

namespace moe::ops {

// What one call of a tile's kernel does: `rows` rows from `row` on, columns of the groups from
// `group` on, whose panels begin at `panel`.
struct TileTask {
  int64_t row, rows, group;
  const char* panel;
  const char* next;  // fetched meanwhile, `next_step` bytes a block
  int64_t next_step;
};
using TileKernel = void (*)(const QuantTask&, const TileTask&);

// Of one type, by rows - 1. `pair` multiplies two groups at once; without such kernels it has none.
struct TileKernels {
  const TileKernel* one;
  int64_t most;
  const TileKernel* pair = nullptr;
  int64_t most_pair = 0;
};

void multiply_tiles(const QuantTask& task, const TileKernels& kernels);

// What is read behind `step` groups from `group` on: the panels behind them, the first ones where
// further rows begin (`again`), and in the end what the caller reads next.
QuantNext panels_ahead(const QuantTask& task, int64_t group, int64_t step, bool again);

// To the second level of the cache; of what a single row reads itself, `own`, to the first. Inlined
// always: no copy made for a file's instructions may be left to the linker.
[[gnu::always_inline]] inline void fetch(const char* next, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(next + line, 0, 2);
}
template <int64_t kBytes>
[[gnu::always_inline]] inline void fetch(const char* own) {
#pragma GCC unroll 8
  for (int64_t line = 0; line < kBytes; line += 64) __builtin_prefetch(own + line, 0, 3);
}

// f(the type that the panels of `dtype` are laid out as, as a constant).
template <class F>
auto with_panel_type(DType dtype, F&& f) {
  switch (panel_type(dtype)) {
    case DType::q8_0: return f(std::integral_constant<DType, DType::q8_0>());
    case DType::q4_0: return f(std::integral_constant<DType, DType::q4_0>());
    case DType::q4_1: return f(std::integral_constant<DType, DType::q4_1>());
    case DType::q5_0: return f(std::integral_constant<DType, DType::q5_0>());
    case DType::q5_1: return f(std::integral_constant<DType, DType::q5_1>());
    case DType::q4_k: return f(std::integral_constant<DType, DType::q4_k>());
    case DType::q5_k: return f(std::integral_constant<DType, DType::q5_k>());
    case DType::q3_k: return f(std::integral_constant<DType, DType::q3_k>());
    case DType::q2_k: return f(std::integral_constant<DType, DType::q2_k>());
    case DType::q2_0: return f(std::integral_constant<DType, DType::q2_0>());
    case DType::mxfp4: return f(std::integral_constant<DType, DType::mxfp4>());
    case DType::iq4_nl: return f(std::integral_constant<DType, DType::iq4_nl>());
    case DType::iq4_xs: return f(std::integral_constant<DType, DType::iq4_xs>());
    case DType::iq1_m: return f(std::integral_constant<DType, DType::iq1_m>());
    case DType::iq2_xs: return f(std::integral_constant<DType, DType::iq2_xs>());
    case DType::iq3_xxs: return f(std::integral_constant<DType, DType::iq3_xxs>());
    case DType::iq3_s: return f(std::integral_constant<DType, DType::iq3_s>());
    default: return f(std::integral_constant<DType, DType::q6_k>());
  }
}

}  // namespace moe::ops
