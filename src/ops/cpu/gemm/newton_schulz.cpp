// Newton-Schulz of many small matrices: each by one thread, its working memory in that thread's
// cache; one that would keep a thread after the others are done, by all threads, a product cut into
// blocks of rows. The cut is the same either way, and so are the bits. Products are those of
// find_product(); a tall matrix is turned first, so that G = X X^T is the smaller square. In bf16
// with AMX both are otherwise: newton_schulz_tiles.cpp.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/gemm/newton_schulz.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/functions.h"
#include "ops/cpu/gemm/newton_schulz.h"
#include "ops/cpu/gemm/tile_product.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"
#include "ops/memory.h"
#include "ops/op_checks.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

void ScaleNumbers(float* x, float factor, int64_t count) {
  const DF32 d;
  const VF32 by = hn::Set(d, factor);
  ForColumns(d, count, [&](int64_t i, auto part) HWY_ATTR {
    Store(hn::Mul(by, Load(d, x + i, part)), d, x + i, part);
  });
}

// One row of p = b gram + c squares.  [n,n]
void CombineSquares(Tensor p, Tensor gram, Tensor squares, float b, float c, int64_t row) {
  const DF32 d;
  const VF32 by_b = hn::Set(d, b), by_c = hn::Set(d, c);
  const float *of_gram = gram.row<float>(row), *of_squares = squares.row<float>(row);
  WithFloat(p.dtype, [&](auto kind) HWY_ATTR {
    auto* to = p.row<decltype(kind)>(row);
    ForColumns(d, p.cols(), [&](int64_t i, auto part) HWY_ATTR {
      const VF32 square = hn::Mul(by_c, Load(d, of_squares + i, part));
      Store(hn::MulAdd(by_b, Load(d, of_gram + i, part), square), d, to + i, part);
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops {
namespace {

HWY_EXPORT(ScaleNumbers);
HWY_EXPORT(CombineSquares);

constexpr int64_t kRowsAtOnce = 64;  // of a product: two threads share a matrix of 128
// A matrix that takes more beside itself is worked on by all threads.
constexpr int64_t kOfOneThread = int64_t{16} << 20;

int64_t cost_of(List<Tensor> all) {
  int64_t cost = 0;
  for (const Tensor& x : all) cost += x.matrices() * Sides(x).cost();
  return cost;
}

size_t packed_bytes(const Sides& s, DType dtype) {
  return std::max({weights_layout(s.m, s.n, dtype).bytes, weights_layout(s.n, s.n, dtype).bytes,
                   weights_layout(s.n, s.m, dtype).bytes});
}

bool in_tiles(DType dtype) { return dtype == DType::bf16 && has_tiles(); }

// Of one matrix being worked on.
int64_t bytes_beside(const Sides& s, DType dtype) {
  if (in_tiles(dtype)) return newton_schulz_tiles_bytes(s);
  const int64_t number = element_size(dtype);
  return number * (2 * s.n * s.m + s.n * s.n) + 4 * (2 * s.n * s.n + (s.is_tall ? s.n * s.m : 0)) +
         static_cast<int64_t>(packed_bytes(s, dtype));
}

// Whether one thread of so many has a matrix with these sides to itself; `cost`: of all.
bool is_for_one(const Sides& s, DType dtype, int64_t cost, int threads) {
  return s.cost() <= cost / threads && bytes_beside(s, dtype) <= kOfOneThread;
}

// Where one matrix is worked on.
struct Place {
  Place(Arena& scratch, const Sides& s, DType dtype)
      : x(scratch.alloc(dtype, {s.n, s.m})),
        y(scratch.alloc(dtype, {s.n, s.m})),
        left(scratch.alloc(dtype, {s.n, s.n})),
        gram(scratch.alloc(DType::f32, {s.n, s.n})),
        squares(scratch.alloc(DType::f32, {s.n, s.n})),
        turned(s.is_tall ? scratch.alloc(DType::f32, {s.n, s.m}) : Tensor()),
        packed(scratch.alloc_bytes(packed_bytes(s, dtype))) {}

  Tensor x, y;           // [n,m] in the dtype of products
  Tensor left;           // [n,n] in that dtype
  Tensor gram, squares;  // [n,n] f32
  Tensor turned;         // [n,m] f32, what a tall matrix becomes
  void* packed;          // the right operand of a product
};

// f(first row, rows, scratch) of blocks of rows
template <class F>
void each_rows(const Workers& workers, int64_t rows, F&& f) {
  workers.each((rows + kRowsAtOnce - 1) / kRowsAtOnce, [&](int64_t block, Arena& scratch) {
    const int64_t first = block * kRowsAtOnce;
    f(first, std::min(kRowsAtOnce, rows - first), scratch);
  });
}

// right [K,N], or [N,K] where it is given turned, as products take it.
void pack(const Workers& workers, const Place& p, const Tensor& right, bool turned) {
  const DType dtype = p.left.dtype;
  const PackLayout& layout = turned ? weights_layout(right.cols(), right.rows(), dtype)
                                    : weights_layout(right.rows(), right.cols(), dtype);
  workers.each(turned ? column_blocks(layout) : row_blocks(layout), [&](int64_t block, Arena&) {
    if (turned) pack_transposed(p.packed, layout, dtype, source_of(right), block);
    else pack_straight(p.packed, layout, dtype, source_of(right), right.rows(), block);
  });
}

// y [M,N] = left [M,K] times what is packed
void multiply(const Workers& workers, const Place& p, const Tensor& y, const Tensor& left) {
  each_rows(workers, y.rows(), [&](int64_t first, int64_t rows, Arena& scratch) {
    const Product& product =
        find_product({rows, left.cols(), y.cols(), left.dtype, left.dtype, y.dtype, false, 1});
    product.run(y.slice_rows(first, first + rows).data, left.slice_rows(first, first + rows).data,
                p.packed, scratch.alloc_bytes(product.scratch_bytes()));
  });
}

void convert(const Workers& workers, const Tensor& y, const Tensor& x) {
  each_rows(workers, y.rows(), [&](int64_t first, int64_t rows, Arena&) {
    const Tensor to = y.slice_rows(first, first + rows);
    convert_matrix(to.data, to.dtype, to.cols(), source_of(x.slice_rows(first, first + rows)), rows,
                   to.cols(), false);
  });
}

// y [C,R] = x^T, both f32: of an odd number of rows transpose() makes no bf16.
void turn(const Workers& workers, const Tensor& y, const Tensor& x) {
  each_rows(workers, y.rows(), [&](int64_t first, int64_t rows, Arena& scratch) {
    Source source = source_of(x);
    source.data = static_cast<const char*>(source.data) + first * element_size(x.dtype);
    transpose(y.slice_rows(first, first + rows).data, y.dtype, source, x.rows(), rows, x.rows(),
              scratch.alloc_bytes(transpose_scratch_bytes(rows)));
  });
}

// y = a x + b G x + c G^2 x, G = x x^T.  y [n,m]
void step(const Workers& workers, const Place& p, const Tensor& y, const Tensor& x,
          const NewtonSchulz& of) {
  pack(workers, p, x, true);
  multiply(workers, p, p.gram, x);
  pack(workers, p, p.gram, false);
  Tensor gram = p.gram;
  if (p.left.dtype != DType::f32) convert(workers, gram = p.left, p.gram);
  multiply(workers, p, p.squares, gram);
  each_rows(workers, p.left.rows(), [&](int64_t first, int64_t rows, Arena&) {
    for (int64_t i = first; i < first + rows; ++i) {
      HWY_DYNAMIC_DISPATCH(CombineSquares)(p.left, p.gram, p.squares, of.b, of.c, i);
      const float diagonal =
          of.a + of.b * p.gram.row<float>(i)[i] + of.c * p.squares.row<float>(i)[i];
      if (p.left.dtype == DType::f32) p.left.row<float>(i)[i] = diagonal;
      else p.left.row<bf16>(i)[i] = to_bf16(diagonal);
    }
  });
  pack(workers, p, x, false);
  multiply(workers, p, y, p.left);
}

// x [O,I], which times `factor` has length one, in place
void iterate(const Workers& workers, const Tensor& x, float factor, DType dtype,
             std::span<const NewtonSchulz> steps) {
  if (in_tiles(dtype)) return newton_schulz_in_tiles(workers, x, factor, steps);
  const ArenaScope scope(workers.scratch);
  each_rows(workers, x.rows(), [&](int64_t first, int64_t rows, Arena&) {
    HWY_DYNAMIC_DISPATCH(ScaleNumbers)(x.row<float>(first), factor, rows * x.cols());
  });
  const Sides s(x);
  Place p(workers.scratch, s, dtype);
  if (s.is_tall) turn(workers, p.turned, x);
  convert(workers, p.x, s.is_tall ? p.turned : x);
  const Tensor result = s.is_tall ? p.turned : x;
  for (const NewtonSchulz& of : steps.first(steps.size() - 1)) {
    step(workers, p, p.y, p.x, of);
    std::swap(p.x, p.y);
  }
  step(workers, p, result, p.x, steps.back());
  if (s.is_tall) turn(workers, x, p.turned);
}

}  // namespace

int64_t newton_schulz_bytes(List<Tensor> all, DType compute, int threads) {
  const int64_t cost = cost_of(all);
  const DType dtype = compute_dtype(compute);
  int64_t most = 0;
  for (const Tensor& x : all) {
    const Sides s(x);
    most = std::max(most,
                    bytes_beside(s, dtype) * (is_for_one(s, dtype, cost, threads) ? threads : 1));
  }
  return most;
}

void cpu::newton_schulz(Run& run, List<Tensor> all, std::span<const NewtonSchulz> steps) {
  choose_isa();
  check_newton_schulz(all, steps);
  std::vector<Tensor> matrices;
  for (const Tensor& x : all)
    for (int64_t e = 0; x.numel() > 0 && e < x.matrices(); ++e) matrices.push_back(x.matrix(e));
  if (matrices.empty()) return;
  std::vector<double> squares(matrices.size());
  cpu::sums_of_squares(run, squares, std::span<const Tensor>(matrices));
  const DType dtype = compute_dtype(run.compute);
  const int64_t cost = cost_of(all);
  const auto work = [&](size_t i, const Workers& workers) {
    const auto factor = static_cast<float>(1 / (std::sqrt(squares[i]) + kLeastNorm));
    iterate(workers, matrices[i], factor, dtype, steps);
  };
  std::vector<std::vector<size_t>> of_thread(static_cast<size_t>(run.threads));
  std::vector<int64_t> taken(of_thread.size());
  for (size_t i = 0; i < matrices.size(); ++i) {
    const Sides s(matrices[i]);
    if (!is_for_one(s, dtype, cost, run.threads)) {
      work(i, {&run, run.scratch});
      continue;
    }
    const auto least = std::ranges::min_element(taken);
    *least += s.cost();
    of_thread[static_cast<size_t>(least - taken.begin())].push_back(i);
  }
  parallel_shares(run, run.threads, [&](size_t share, Arena& scratch) {
    for (size_t i : of_thread[share]) work(i, {nullptr, scratch});
  });
}

}  // namespace moe::ops
#endif  // HWY_ONCE
