// Weights of chosen experts and their adjoints.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/functions.h"
#include "tensor/each_token.h"

namespace moe::ops::cpu {
namespace {

// f(n, slot, expert) for every selected pair of the tokens [begin, end), in token order.
template <class F>
void each_selected(Span tokens, Tensor choice, Tensor selected, F&& f) {
  for (int64_t n = tokens.begin; n < tokens.end; ++n) {
    const int32_t *expert = choice.row<int32_t>(n), *taken = selected.row<int32_t>(n);
    for (int64_t i = 0; i < choice.cols(); ++i)
      if (taken[i] != 0) f(n, i, static_cast<int64_t>(expert[i]));
  }
}

// f(tokens, per_expert [E] of T, memory that f may use as it likes) for each scope; no bounds are
// one scope of all tokens.
template <class T, class F>
void each_scope(Run& run, int64_t tokens, int64_t experts, std::span<const int64_t> bounds, F&& f) {
  const int64_t scopes = bounds.empty() ? 1 : static_cast<int64_t>(bounds.size()) - 1;
  parallel_for(run.threads, scopes, 1, [&](int64_t begin, int64_t end, int thread) {
    Arena& arena = run.thread_scratch[static_cast<size_t>(thread)];
    ArenaScope scratch(arena);
    T* per_expert = static_cast<T*>(arena.alloc_bytes(static_cast<size_t>(experts) * sizeof(T)));
    for (int64_t i = begin; i < end; ++i)
      f(bounds.empty() ? Span{0, tokens}
                       : Span{bounds[static_cast<size_t>(i)], bounds[static_cast<size_t>(i) + 1]},
        per_expert);
  });
}

}  // namespace

void weigh_scores_forward(Run& run, Tensor w, Tensor s, Tensor choice, Tensor selected,
                          bool renormalise, float scale) {
  const int64_t k = choice.cols();
  each_token(run, choice.rows(), [&](int64_t n) {
    const float* score = s.row<float>(n);
    const int32_t *expert = choice.row<int32_t>(n), *taken = selected.row<int32_t>(n);
    float* out = w.row<float>(n);
    float sum = kRenormFloor;
    for (int64_t i = 0; i < k; ++i) sum += out[i] = taken[i] != 0 ? score[expert[i]] : 0;
    // Divided, not multiplied by the reciprocal: the weight of a token's only expert is then
    // exactly the scale.
    const float whole = renormalise ? sum : 1;
    for (int64_t i = 0; i < k; ++i) out[i] = scale * (out[i] / whole);
  });
}

void weigh_scores_backward_acc(Run& run, Tensor ds, Tensor dw, Tensor w, Tensor s, Tensor choice,
                               Tensor selected, bool renormalise, float scale) {
  const int64_t k = choice.cols();
  each_token(run, choice.rows(), [&](int64_t n) {
    const float *dy = dw.row<float>(n), *y = w.row<float>(n), *score = s.row<float>(n);
    const int32_t *expert = choice.row<int32_t>(n), *taken = selected.row<int32_t>(n);
    float dot = 0, sum = 1;
    if (renormalise) {
      sum = kRenormFloor;
      for (int64_t i = 0; i < k; ++i) {
        if (taken[i] == 0) continue;
        dot += dy[i] * y[i];
        sum += score[expert[i]];
      }
    }
    for (int64_t i = 0; i < k; ++i)
      if (taken[i] != 0) ds.row<float>(n)[expert[i]] += (scale * dy[i] - dot) / sum;
  });
}

void weigh_softmax_forward(Run& run, Tensor w, Tensor s, Tensor choice, Tensor selected) {
  const int64_t k = choice.cols();
  each_token(run, choice.rows(), [&](int64_t n) {
    const float* score = s.row<float>(n);
    const int32_t *expert = choice.row<int32_t>(n), *taken = selected.row<int32_t>(n);
    float* out = w.row<float>(n);
    float top = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int64_t i = 0; i < k; ++i)
      if (taken[i] != 0) top = std::max(top, score[expert[i]]);
    for (int64_t i = 0; i < k; ++i)
      sum += out[i] = taken[i] != 0 ? std::exp(score[expert[i]] - top) : 0;
    for (int64_t i = 0; i < k; ++i)
      if (taken[i] != 0) out[i] /= sum;
  });
}

void weigh_softmax_backward_acc(Run& run, Tensor ds, Tensor dw, Tensor w, Tensor choice,
                                Tensor selected) {
  const int64_t k = choice.cols();
  each_token(run, choice.rows(), [&](int64_t n) {
    const float *dy = dw.row<float>(n), *y = w.row<float>(n);
    const int32_t *expert = choice.row<int32_t>(n), *taken = selected.row<int32_t>(n);
    float dot = 0;
    for (int64_t i = 0; i < k; ++i)
      if (taken[i] != 0) dot += dy[i] * y[i];
    for (int64_t i = 0; i < k; ++i)
      if (taken[i] != 0) ds.row<float>(n)[expert[i]] += y[i] * (dy[i] - dot);
  });
}

void weigh_one_forward(Run& run, Tensor w, Tensor selected) {
  each_token(run, w.rows(), [&](int64_t n) {
    for (int64_t i = 0; i < w.cols(); ++i)
      w.row<float>(n)[i] = selected.row<int32_t>(n)[i] != 0 ? 1 : 0;
  });
}

void weigh_one_plus_forward(Run& run, Tensor w, Tensor s, Tensor scale, Tensor choice,
                            Tensor selected) {
  each_token(run, choice.rows(), [&](int64_t n) {
    const int32_t *expert = choice.row<int32_t>(n), *taken = selected.row<int32_t>(n);
    for (int64_t i = 0; i < choice.cols(); ++i)
      w.row<float>(n)[i] =
          taken[i] != 0 ? 1 + scale.as<float>()[expert[i]] * s.row<float>(n)[expert[i]] : 0;
  });
}

void weigh_one_plus_backward_acc(Run& run, Tensor ds, Tensor dw, Tensor scale, Tensor choice,
                                 Tensor selected) {
  each_token(run, choice.rows(), [&](int64_t n) {
    const int32_t *expert = choice.row<int32_t>(n), *taken = selected.row<int32_t>(n);
    for (int64_t i = 0; i < choice.cols(); ++i)
      if (taken[i] != 0)
        ds.row<float>(n)[expert[i]] += dw.row<float>(n)[i] * scale.as<float>()[expert[i]];
  });
}

void weigh_over_tokens_forward(Run& run, Tensor w, Tensor s, Tensor choice, Tensor selected,
                               std::span<const int64_t> bounds) {
  struct Of {
    float top;
    double sum;
  };
  const int64_t experts = s.cols(), k = choice.cols();
  each_scope<Of>(run, choice.rows(), experts, bounds, [&](Span tokens, Of* of) {
    std::fill_n(of, experts, Of{-std::numeric_limits<float>::infinity(), 0});
    for (int64_t n = tokens.begin; n < tokens.end; ++n) std::fill_n(w.row<float>(n), k, 0.0f);
    each_selected(tokens, choice, selected, [&](int64_t n, int64_t, int64_t e) {
      of[e].top = std::max(of[e].top, s.row<float>(n)[e]);
    });
    each_selected(tokens, choice, selected, [&](int64_t n, int64_t i, int64_t e) {
      of[e].sum += w.row<float>(n)[i] = std::exp(s.row<float>(n)[e] - of[e].top);
    });
    each_selected(tokens, choice, selected, [&](int64_t n, int64_t i, int64_t e) {
      w.row<float>(n)[i] /= static_cast<float>(of[e].sum);
    });
  });
}

void weigh_over_tokens_backward_acc(Run& run, Tensor ds, Tensor dw, Tensor w, Tensor choice,
                                    Tensor selected, std::span<const int64_t> bounds) {
  const int64_t experts = ds.cols();
  each_scope<double>(run, choice.rows(), experts, bounds, [&](Span tokens, double* dot) {
    std::fill_n(dot, experts, 0.0);
    each_selected(tokens, choice, selected, [&](int64_t n, int64_t i, int64_t e) {
      dot[e] += static_cast<double>(dw.row<float>(n)[i]) * static_cast<double>(w.row<float>(n)[i]);
    });
    each_selected(tokens, choice, selected, [&](int64_t n, int64_t i, int64_t e) {
      ds.row<float>(n)[e] +=
          w.row<float>(n)[i] * (dw.row<float>(n)[i] - static_cast<float>(dot[e]));
    });
  });
}

void weigh_one_plus_scale_backward(Run& run, Param& scale, Tensor dw, Tensor s, Tensor choice,
                                   Tensor selected) {
  settle_grad(run, scale);
  each_selected({0, choice.rows()}, choice, selected, [&](int64_t n, int64_t i, int64_t e) {
    scale.grad.as<float>()[e] += dw.row<float>(n)[i] * s.row<float>(n)[e];
  });
}

void scale_by_expert_forward(Run& run, Tensor y, Tensor w, Tensor scale, Tensor choice) {
  each_token(run, choice.rows(), [&](int64_t n) {
    for (int64_t i = 0; i < choice.cols(); ++i)
      y.row<float>(n)[i] = w.row<float>(n)[i] * scale.as<float>()[choice.row<int32_t>(n)[i]];
  });
}

void scale_by_expert_backward(Run& run, Param& scale, Tensor dy, Tensor w, Tensor choice,
                              Tensor selected) {
  settle_grad(run, scale);
  each_selected({0, choice.rows()}, choice, selected, [&](int64_t n, int64_t i, int64_t e) {
    scale.grad.as<float>()[e] += dy.row<float>(n)[i] * w.row<float>(n)[i];
  });
}

void weigh_kept_forward(Run& run, Tensor w, Tensor kept) {
  const int64_t k = w.cols();
  each_token(run, w.rows(), [&](int64_t n) {
    float* out = w.row<float>(n);
    const int32_t* stays = kept.row<int32_t>(n);
    float sum = kRenormFloor;
    for (int64_t i = 0; i < k; ++i) sum += stays[i] != 0 ? out[i] : 0;
    for (int64_t i = 0; i < k; ++i) out[i] = stays[i] != 0 ? out[i] / sum : 0;
  });
}

// y_i = w_i / S, S the sum over the kept, so dw_j = (dy_j - <dy, y>) / S.
void weigh_kept_backward(Run& run, Tensor dw, Tensor w, Tensor kept) {
  const int64_t k = w.cols();
  each_token(run, w.rows(), [&](int64_t n) {
    const float* in = w.row<float>(n);
    const int32_t* stays = kept.row<int32_t>(n);
    float* dy = dw.row<float>(n);
    float dot = 0, sum = kRenormFloor;
    for (int64_t i = 0; i < k; ++i) {
      if (stays[i] == 0) continue;
      dot += dy[i] * in[i];
      sum += in[i];
    }
    for (int64_t i = 0; i < k; ++i) dy[i] = stays[i] != 0 ? (dy[i] - dot / sum) / sum : 0;
  });
}

}  // namespace moe::ops::cpu
