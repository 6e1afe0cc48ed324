#include "moe/stages.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "core/threads.h"

namespace moe {
namespace {

constexpr int64_t kGrain = 64;  // tokens per thread below which a second thread does not pay
constexpr float kRenormFloor = 1e-20f;

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;  // clang before 17 deduces no aggregates

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// y = softmax(x) over n entries; x may be y.
void softmax(float* y, const float* x, int64_t n) {
  const float top = *std::max_element(x, x + n);
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += y[i] = std::exp(x[i] - top);
  for (int64_t i = 0; i < n; ++i) y[i] /= sum;
}

// dx = y * (dy - <dy, y>), the adjoint of softmax; dx may be dy.
void softmax_backward(float* dx, const float* dy, const float* y, int64_t n) {
  float dot = 0;
  for (int64_t i = 0; i < n; ++i) dot += dy[i] * y[i];
  for (int64_t i = 0; i < n; ++i) dx[i] = y[i] * (dy[i] - dot);
}

template <class F>
void each_token(Run& run, int64_t tokens, F&& f) {
  parallel_for(run.threads, tokens, kGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) f(n);
  });
}

}  // namespace

// ---- noise -------------------------------------------------------------------------------------------------------------------------------------------
void jitter(Run& run, Tensor dst, Tensor x, const InputJitter& stage, RngKey key) {
  const int64_t width = x.cols();
  each_token(run, x.rows(), [&](int64_t n) {
    const float* in = x.row<float>(n);
    float* out = dst.row<float>(n);
    for (int64_t d = 0; d < width; ++d) out[d] = in[d] * (1 - stage.eps + 2 * stage.eps * uniform(key, static_cast<uint64_t>(n * width + d)));
  });
}

void learned_noise_forward_acc(Run& run, Tensor z, Tensor raw, const LearnedNoise& stage, RngKey key) {
  const int64_t experts = z.cols();
  each_token(run, z.rows(), [&](int64_t n) {
    for (int64_t e = 0; e < experts; ++e)
      z.row<float>(n)[e] += (softplus(raw.row<float>(n)[e]) + stage.floor) * normal(key, static_cast<uint64_t>(n * experts + e));
  });
}

void learned_noise_backward(Run& run, Tensor draw, Tensor dz, Tensor raw, const LearnedNoise&, RngKey key) {
  const int64_t experts = dz.cols();
  each_token(run, dz.rows(), [&](int64_t n) {
    for (int64_t e = 0; e < experts; ++e)
      draw.row<float>(n)[e] = dz.row<float>(n)[e] * normal(key, static_cast<uint64_t>(n * experts + e)) * sigmoid(raw.row<float>(n)[e]);
  });
}

// ---- score -------------------------------------------------------------------------------------------------------------------------------------------
void score_forward(Run& run, Tensor s, Tensor z, const ScoreStage& stage) {
  const int64_t experts = z.cols();
  each_token(run, z.rows(), [&](int64_t n) {
    const float* in = z.row<float>(n);
    float* out = s.row<float>(n);
    std::visit(Overloaded{
                   [&](SoftmaxScore) { softmax(out, in, experts); },
                   [&](SigmoidScore) { std::transform(in, in + experts, out, sigmoid); },
                   [&](RawScore) { std::copy_n(in, experts, out); },
               },
               stage);
  });
}

void score_backward(Run& run, Tensor dz, Tensor ds, Tensor s, const ScoreStage& stage) {
  const int64_t experts = s.cols();
  each_token(run, s.rows(), [&](int64_t n) {
    const float *dy = ds.row<float>(n), *y = s.row<float>(n);
    float* dx = dz.row<float>(n);
    std::visit(Overloaded{
                   [&](SoftmaxScore) { softmax_backward(dx, dy, y, experts); },
                   [&](SigmoidScore) {
                     for (int64_t e = 0; e < experts; ++e) dx[e] = dy[e] * y[e] * (1 - y[e]);
                   },
                   [&](RawScore) { std::copy_n(dy, experts, dx); },
               },
               stage);
  });
}

// ---- select ------------------------------------------------------------------------------------------------------------------------------------------
int64_t chosen_per_token(const SelectStage& stage) { return std::get<TopK>(stage).k; }

void select_forward(Run& run, Tensor choice, Tensor s, const SelectStage& stage) {
  const int64_t k = chosen_per_token(stage), experts = s.cols();
  std::vector<int64_t> broken(static_cast<size_t>(run.threads), -1);  // a token with a NaN score, by thread
  parallel_for(run.threads, s.rows(), kGrain, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t n = begin; n < end; ++n) {
      const float* score = s.row<float>(n);
      int32_t* out = choice.row<int32_t>(n);
      int64_t filled = 0;
      for (int64_t e = 0; e < experts; ++e) {
        if (std::isnan(score[e])) broken[static_cast<size_t>(thread)] = n;
        int64_t at = filled;
        while (at > 0 && score[e] > score[out[at - 1]]) --at;  // strictly greater: an equal score stays behind the lower index
        if (at >= k) continue;
        filled = std::min(filled + 1, k);
        for (int64_t i = filled - 1; i > at; --i) out[i] = out[i - 1];
        out[at] = static_cast<int32_t>(e);
      }
    }
  });
  for (int64_t n : broken)
    if (n >= 0)
      fail("the router's score of token {} of {} is not a number: the model diverged before this layer; lower the learning rate or raise --clip's grip", n,
           s.rows());
}

// ---- weigh -------------------------------------------------------------------------------------------------------------------------------------------
bool constant_when_alone(const WeighStage& stage) {
  return std::visit(Overloaded{[](const ChosenScores& c) { return c.renormalise; }, [](ChosenSoftmax) { return true; }}, stage);
}

void weigh_forward(Run& run, Tensor w, Tensor s, Tensor choice, const WeighStage& stage) {
  const int64_t k = choice.cols();
  each_token(run, s.rows(), [&](int64_t n) {
    float* out = w.row<float>(n);
    for (int64_t i = 0; i < k; ++i) out[i] = s.row<float>(n)[choice.row<int32_t>(n)[i]];
    std::visit(Overloaded{
                   [&](const ChosenScores& c) {
                     float sum = kRenormFloor;
                     for (int64_t i = 0; i < k; ++i) sum += out[i];
                     const float factor = c.renormalise ? c.scale / sum : c.scale;
                     for (int64_t i = 0; i < k; ++i) out[i] *= factor;
                   },
                   [&](ChosenSoftmax) { softmax(out, out, k); },
               },
               stage);
  });
}

// Renormalised: w_i = scale s_i / S, so ds_j = (scale dw_j - <dw, w>) / S with S the sum of the chosen scores.
void weigh_backward_acc(Run& run, Tensor ds, Tensor dw, Tensor w, Tensor s, Tensor choice, const WeighStage& stage) {
  const int64_t k = choice.cols();
  each_token(run, s.rows(), [&](int64_t n) {
    const int32_t* chosen = choice.row<int32_t>(n);
    const float *dy = dw.row<float>(n), *y = w.row<float>(n);
    float* out = ds.row<float>(n);
    float dot = 0, sum = kRenormFloor;
    for (int64_t i = 0; i < k; ++i) {
      dot += dy[i] * y[i];
      sum += s.row<float>(n)[chosen[i]];
    }
    for (int64_t i = 0; i < k; ++i)
      out[chosen[i]] += std::visit(Overloaded{
                                       [&](const ChosenScores& c) { return c.renormalise ? (c.scale * dy[i] - dot) / sum : c.scale * dy[i]; },
                                       [&](ChosenSoftmax) { return y[i] * (dy[i] - dot); },
                                   },
                                   stage);
  });
}

// ---- capacity ----------------------------------------------------------------------------------------------------------------------------------------
int64_t expert_capacity(const BufferCapacity& c, int64_t tokens, int64_t experts, int64_t top_k) {
  const double wanted = static_cast<double>(c.factor) * static_cast<double>((c.count_choices ? top_k : 1) * tokens) / static_cast<double>(experts);
  auto slots = static_cast<int64_t>(std::floor(wanted));
  if (c.rounding == BufferCapacity::Rounding::floor_to_even) slots += slots % 2;
  return std::max(slots, c.minimum);
}

int64_t capacity_forward(Tensor kept, Tensor choice, int64_t experts, const CapacityStage& stage) {
  const int64_t tokens = choice.rows(), k = choice.cols();
  const auto* buffer = std::get_if<BufferCapacity>(&stage);
  const int64_t slots = buffer ? expert_capacity(*buffer, tokens, experts, k) : std::numeric_limits<int64_t>::max();
  std::vector<int64_t> used(static_cast<size_t>(experts), 0);
  int64_t dropped = 0;
  const auto place = [&](int64_t n, int64_t i) {
    int64_t& taken = used[static_cast<size_t>(choice.row<int32_t>(n)[i])];
    const bool fits = taken < slots;
    kept.row<int32_t>(n)[i] = fits;
    taken += fits;
    dropped += !fits;
  };
  if (buffer && buffer->order == BufferCapacity::Order::choice_major) {
    for (int64_t i = 0; i < k; ++i)
      for (int64_t n = 0; n < tokens; ++n) place(n, i);
  } else {
    for (int64_t n = 0; n < tokens; ++n)
      for (int64_t i = 0; i < k; ++i) place(n, i);
  }
  return dropped;
}

// ---- balance -----------------------------------------------------------------------------------------------------------------------------------------
void count_choices(Tensor counts, Tensor choice, int64_t choices) {
  std::fill_n(counts.as<int32_t>(), counts.numel(), 0);
  for (int64_t n = 0; n < choice.rows(); ++n)
    for (int64_t i = 0; i < choices; ++i) ++counts.as<int32_t>()[choice.row<int32_t>(n)[i]];
}

namespace {

// E * f_e / N for every expert: the derivative of the loss by one token's probability.
std::vector<double> balance_slopes(Tensor choice, int64_t experts, const BalanceLoss& b) {
  const int64_t counted = b.counts == BalanceLoss::Counts::first_choice ? 1 : choice.cols();
  std::vector<int32_t> counts(static_cast<size_t>(experts));
  count_choices(Tensor(counts.data(), DType::i32, {experts}), choice, counted);
  const auto tokens = static_cast<double>(choice.rows());
  std::vector<double> slopes;
  for (int32_t c : counts) slopes.push_back(static_cast<double>(experts) * c / (tokens * static_cast<double>(counted)) / tokens);
  return slopes;
}

}  // namespace

float balance_forward(Run& run, Tensor s, Tensor w, Tensor choice, const BalanceStage& stage) {
  const auto* b = std::get_if<BalanceLoss>(&stage);
  if (b == nullptr) return 0;
  const std::vector<double> slopes = balance_slopes(choice, s.cols(), *b);
  // Summed token by token in double, then over tokens in order, so that threads change no bit.
  ArenaScope scope(run.scratch);
  auto* of_token = static_cast<double*>(run.scratch.alloc_bytes(static_cast<size_t>(choice.rows()) * sizeof(double)));
  each_token(run, choice.rows(), [&](int64_t n) {
    double sum = 0;
    if (b->probs == BalanceLoss::Probs::scores)
      for (int64_t e = 0; e < s.cols(); ++e) sum += slopes[static_cast<size_t>(e)] * s.row<float>(n)[e];
    else
      for (int64_t i = 0; i < choice.cols(); ++i) sum += slopes[static_cast<size_t>(choice.row<int32_t>(n)[i])] * w.row<float>(n)[i];
    of_token[n] = sum;
  });
  double loss = 0;
  for (int64_t n = 0; n < choice.rows(); ++n) loss += of_token[n];
  return static_cast<float>(loss);
}

void balance_backward_acc(Run& run, Tensor ds, Tensor dw, Tensor choice, int64_t experts, const BalanceStage& stage, float coef) {
  const auto* b = std::get_if<BalanceLoss>(&stage);
  if (b == nullptr || coef == 0) return;
  const std::vector<double> slopes = balance_slopes(choice, experts, *b);
  each_token(run, choice.rows(), [&](int64_t n) {
    if (b->probs == BalanceLoss::Probs::scores)
      for (int64_t e = 0; e < experts; ++e) ds.row<float>(n)[e] += coef * static_cast<float>(slopes[static_cast<size_t>(e)]);
    else
      for (int64_t i = 0; i < choice.cols(); ++i) dw.row<float>(n)[i] += coef * static_cast<float>(slopes[static_cast<size_t>(choice.row<int32_t>(n)[i])]);
  });
}

// ---- z-loss ------------------------------------------------------------------------------------------------------------------------------------------
float z_loss_forward(Run& run, Tensor lse, Tensor z) {
  const int64_t experts = z.cols(), tokens = z.rows();
  float* out = lse.as<float>();
  each_token(run, tokens, [&](int64_t n) {
    const float* x = z.row<float>(n);
    const float top = *std::max_element(x, x + experts);
    float sum = 0;
    for (int64_t e = 0; e < experts; ++e) sum += std::exp(x[e] - top);
    out[n] = top + std::log(sum);
  });
  double loss = 0;
  for (int64_t n = 0; n < tokens; ++n) loss += static_cast<double>(out[n]) * out[n];
  return static_cast<float>(loss / static_cast<double>(tokens));
}

void z_loss_backward_acc(Run& run, Tensor dz, Tensor lse, Tensor z, float coef) {
  if (coef == 0) return;
  const float factor = 2 * coef / static_cast<float>(z.rows());
  each_token(run, z.rows(), [&](int64_t n) {
    const float l = lse.as<float>()[n];
    for (int64_t e = 0; e < z.cols(); ++e) dz.row<float>(n)[e] += factor * l * std::exp(z.row<float>(n)[e] - l);
  });
}

}  // namespace moe
