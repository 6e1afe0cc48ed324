// What the two ways of one Newton-Schulz share: newton_schulz.cpp, with the products of
// find_product(), and newton_schulz_tiles.cpp, with AMX tiles.
#pragma once

#include <algorithm>
#include <span>

#include "ops/cpu/gemm/products.h"

namespace moe::ops {

// n x m, n <= m: a matrix of x [O,I] or [E,O,I], or where it is tall the matrix turned.
struct Sides {
  explicit Sides(const Tensor& x)
      : n(std::min(x.shape[x.rank - 2], x.cols())),
        m(std::max(x.shape[x.rank - 2], x.cols())),
        is_tall(x.shape[x.rank - 2] > x.cols()) {}
  // Multiplications of a step.
  int64_t cost() const { return n * n * (2 * m + n); }

  int64_t n, m;
  bool is_tall;
};

// Who works on a matrix: the calling thread, or all of a run.
struct Workers {
  Run* run;  // null: the calling thread
  Arena& scratch;

  // f(a share of the pieces, scratch) for shares that together are all of them
  template <class F>
  void share(int64_t pieces, F&& f) const {
    const auto some = [&](Span span, Arena& of_thread) {
      const ArenaScope scope(of_thread);
      f(span, of_thread);
    };
    if (run == nullptr) return some({0, pieces}, scratch);
    const int shares = static_cast<int>(std::min<int64_t>(run->threads, pieces));
    parallel_shares(*run, shares, [&](size_t share, Arena& of_thread) {
      some(partition(pieces, static_cast<int>(share), shares), of_thread);
    });
  }
  // f(piece, scratch) for every piece
  template <class F>
  void each(int64_t pieces, F&& f) const {
    share(pieces, [&](Span span, Arena& of_thread) {
      for (int64_t i = span.begin; i < span.end; ++i) {
        const ArenaScope scope(of_thread);
        f(i, of_thread);
      }
    });
  }
};

// The steps of a matrix x [O,I] f32, times `factor`, in place, in bf16 where has_tiles(). Sums of
// blocks of rows are those of all rows, whoever works.
void newton_schulz_in_tiles(const Workers& workers, const Tensor& x, float factor,
                            std::span<const NewtonSchulz> steps);
int64_t newton_schulz_tiles_bytes(const Sides& s);

}  // namespace moe::ops
