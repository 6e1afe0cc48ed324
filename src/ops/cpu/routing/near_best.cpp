// SparseMixer's choices and their weights, token by token.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/functions.h"
#include "tensor/each_token.h"

namespace moe::ops::cpu {
namespace {

// The experts of one token at a time; the memory is the thread's, taken once for all its tokens.
class NearBest {
 public:
  NearBest(Arena& arena, int64_t experts, float eps)
      : experts_(experts),
        eps_(eps),
        left_(static_cast<bool*>(arena.alloc_bytes(static_cast<size_t>(experts) * sizeof(bool)))),
        p_(static_cast<float*>(arena.alloc_bytes(static_cast<size_t>(experts) * sizeof(float)))),
        numbers_(
            static_cast<float*>(arena.alloc_bytes(static_cast<size_t>(experts) * sizeof(float)))) {}

  // s [E] of the next token, of which every expert is left
  void begin(const float* s) {
    s_ = s;
    std::fill_n(left_, experts_, true);
  }
  void take(int64_t e) { left_[e] = false; }
  // Makes p [E] of the experts left, at least one; returns the best of them.
  int64_t look() {
    int64_t best = -1;
    for (int64_t e = 0; e < experts_; ++e)
      if (left_[e] && (best < 0 || s_[e] > s_[best])) best = e;
    const float top = s_[best];
    float sum = 0;
    for (int64_t e = 0; e < experts_; ++e) {
      const bool far = (top - s_[e]) / std::max(std::abs(s_[e]), top) > 2 * eps_;
      sum += p_[e] = left_[e] && !far ? std::exp(s_[e] - top) : 0;
    }
    for (int64_t e = 0; e < experts_; ++e) p_[e] /= sum;
    return best;
  }
  const float* p() const { return p_; }
  float* numbers() { return numbers_; }  // [E], the caller's to use
  // The expert at which the sum of p exceeds u, 0 <= u < 1.
  int64_t drawn(float u) const {
    float sum = 0;
    int64_t last = 0;
    for (int64_t e = 0; e < experts_; ++e) {
      if (!left_[e] || p_[e] == 0) continue;  // p is no number where a score was infinite
      sum += p_[e];
      last = e;
      if (u < sum) break;
    }
    return last;
  }

 private:
  int64_t experts_;
  float eps_;
  const float* s_ = nullptr;
  bool* left_;
  float *p_, *numbers_;
};

// f(n, NearBest& of token n) for every token.
template <class F>
void each_token_near(Run& run, Tensor s, float eps, F&& f) {
  parallel_for(run.threads, s.rows(), kGrain, [&](int64_t begin, int64_t end, int thread) {
    Arena& arena = run.thread_scratch[static_cast<size_t>(thread)];
    const ArenaScope scope(arena);
    NearBest near(arena, s.cols(), eps);
    for (int64_t n = begin; n < end; ++n) {
      near.begin(s.row<float>(n));
      f(n, near);
    }
  });
}

}  // namespace

void draw_near_best(Run& run, Tensor choice, Tensor s, float eps, RngKey key) {
  const int64_t k = choice.cols();
  each_token_near(run, s, eps, [&](int64_t n, NearBest& near) {
    for (int64_t i = 0; i < k; ++i) {
      near.look();
      const int64_t e = near.drawn(uniform(key, static_cast<uint64_t>(n * k + i)));
      choice.row<int32_t>(n)[i] = static_cast<int32_t>(e);
      near.take(e);
    }
  });
}

void weigh_near_best_forward(Run& run, Tensor w, Tensor s, Tensor choice, Tensor selected,
                             float eps, RngKey key) {
  const int64_t k = choice.cols();
  each_token_near(run, s, eps, [&](int64_t n, NearBest& near) {
    for (int64_t i = 0; i < k; ++i) {
      w.row<float>(n)[i] = 0;
      if (selected.row<int32_t>(n)[i] == 0) continue;
      const int64_t e = choice.row<int32_t>(n)[i], best = near.look();
      const bool weaker =
          !key.empty() && e != best && uniform(key, static_cast<uint64_t>(n * k + i)) < 0.75f;
      w.row<float>(n)[i] = near.p()[e] / (weaker ? 3.0f : 1.0f);
      near.take(e);
    }
  });
}

void weigh_near_best_backward_acc(Run& run, Tensor ds, Tensor dw, Tensor s, Tensor choice,
                                  Tensor selected, float eps) {
  const int64_t k = choice.cols();
  each_token_near(run, s, eps, [&](int64_t n, NearBest& near) {
    float *out = ds.row<float>(n), *sum = near.numbers();
    std::fill_n(sum, s.cols(), 0.0f);
    for (int64_t i = 0; i < k; ++i) {
      if (selected.row<int32_t>(n)[i] == 0) continue;
      const int64_t e = choice.row<int32_t>(n)[i];
      near.look();
      const float by = dw.row<float>(n)[i] * near.p()[e];
      for (int64_t j = 0; j < s.cols(); ++j) sum[j] -= by * near.p()[j];
      sum[e] += by;
      near.take(e);
    }
    for (int64_t j = 0; j < s.cols(); ++j) out[j] += sum[j];
  });
}

}  // namespace moe::ops::cpu
