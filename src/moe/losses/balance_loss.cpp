// The losses that multiply a share of the load by a probability: over experts, over devices, and
// over the devices a token is sent to. All are
//   sum over tokens n and experts e of slope[scope of n, e] * p[n, e]
// with slopes that are constants for the gradient: (1/N) E f_e for the balance loss, as the mean
// over scopes is weighted by their tokens, and (1/N) f_d for every expert e of device d for the
// others. So the slopes are all that differs.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "moe/losses/loss_parts.h"
#include "moe/stages/stage_math.h"
#include "ops/routing.h"

namespace moe {
namespace {

using Counts = BalanceLoss::Counts;
using Probs = BalanceLoss::Probs;

struct Slopes {
  std::vector<int64_t> bounds;  // scope i is the tokens [bounds[i], bounds[i+1])
  std::vector<double> of;       // [scopes,E]
  int64_t experts;

  Slopes(const Routing& in, const Pass& pass, const Scope& scope)
      : bounds(scope_bounds(scope, pass.batch.bounds, in.tokens())),
        of((bounds.size() - 1) * static_cast<size_t>(in.experts), 0.0),
        experts(in.experts) {}
  size_t scopes() const { return bounds.size() - 1; }
  double* row(size_t scope) { return of.data() + scope * static_cast<size_t>(experts); }
  const double* row(size_t scope) const { return of.data() + scope * static_cast<size_t>(experts); }
  int64_t tokens() const { return bounds.back(); }
};

// f(token, slopes of its scope) on all threads.
template <class F>
void each_token_with(Run& run, const Slopes& slopes, F&& f) {
  parallel_for(run.threads, slopes.tokens(), kGrain, [&](int64_t begin, int64_t end, int) {
    auto scope =
        static_cast<size_t>(std::upper_bound(slopes.bounds.begin(), slopes.bounds.end(), begin) -
                            slopes.bounds.begin()) -
        1;
    for (int64_t n = begin; n < end; ++n) {
      while (n >= slopes.bounds[scope + 1]) ++scope;
      f(n, slopes.row(scope));
    }
  });
}

// Four sums side by side, so that one addition need not wait for the one before.
double dot(const double* a, const float* b, int64_t n) {
  double sum[4] = {};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (int64_t j = 0; j < 4; ++j) sum[j] += a[i + j] * static_cast<double>(b[i + j]);
  for (; i < n; ++i) sum[0] += a[i] * static_cast<double>(b[i]);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}
double sum_of(const float* x, int64_t n) {
  return std::accumulate(x, x + n, static_cast<double>(kRenormFloor));
}

// p = softmax(s) in double, expert by expert.
class Softmax {
 public:
  Softmax(const float* s, int64_t n) : s_(s), top_(*std::max_element(s, s + n)), sum_(0) {
    for (int64_t i = 0; i < n; ++i) sum_ += std::exp(static_cast<double>(s[i]) - top_);
  }
  double operator[](int64_t i) const { return std::exp(static_cast<double>(s_[i]) - top_) / sum_; }

 private:
  const float* s_;
  double top_, sum_;
};

// One token's term.
double weighed(const Routing& in, Probs probs, int64_t n, const double* slope) {
  if (probs == Probs::scores) return dot(slope, in.scores.row<float>(n), in.experts);
  if (probs == Probs::normalised_scores)
    return dot(slope, in.scores.row<float>(n), in.experts) /
           sum_of(in.scores.row<float>(n), in.experts);
  if (probs == Probs::softmax) {
    const Softmax p(in.scores.row<float>(n), in.experts);
    double sum = 0;
    for (int64_t e = 0; e < in.experts; ++e) sum += slope[e] * p[e];
    return sum;
  }
  double sum = 0;
  for (int64_t i = 0; i < in.choice.cols(); ++i)
    if (in.selected.row<int32_t>(n)[i] != 0)
      sum += slope[in.choice.row<int32_t>(n)[i]] * static_cast<double>(in.weights.row<float>(n)[i]);
  return sum;
}

// Token by token in double, then over tokens in order, so that threads change no bit.
float forward(Run& run, const Routing& in, Probs probs, const Slopes& slopes) {
  ArenaScope scope(run.scratch);
  auto* of_token = static_cast<double*>(
      run.scratch.alloc_bytes(static_cast<size_t>(slopes.tokens()) * sizeof(double)));
  each_token_with(run, slopes, [&](int64_t n, const double* slope) {
    of_token[n] = weighed(in, probs, n, slope);
  });
  return static_cast<float>(std::accumulate(of_token, of_token + slopes.tokens(), 0.0));
}

// Normalised, p_e = s_e / S with S = sum s: ds_j = (slope_j - sum_e slope_e p_e) / S; of a softmax
// p_j times that difference.
void backward_acc(Run& run, Tensor ds, Tensor dw, const Routing& in, Probs probs,
                  const Slopes& slopes, double coef) {
  if (probs == Probs::scores) {  // the same for all tokens of a scope
    std::vector<float> steps(slopes.of.size());
    std::transform(slopes.of.begin(), slopes.of.end(), steps.begin(),
                   [&](double slope) { return static_cast<float>(coef * slope); });
    each_token_with(run, slopes, [&](int64_t n, const double* slope) {
      const float* step = steps.data() + (slope - slopes.of.data());
      float* out = ds.row<float>(n);
      for (int64_t e = 0; e < in.experts; ++e) out[e] += step[e];
    });
    return;
  }
  each_token_with(run, slopes, [&](int64_t n, const double* slope) {
    if (probs == Probs::chosen_weights) {
      for (int64_t i = 0; i < in.choice.cols(); ++i)
        if (in.selected.row<int32_t>(n)[i] != 0)
          dw.row<float>(n)[i] += static_cast<float>(coef * slope[in.choice.row<int32_t>(n)[i]]);
      return;
    }
    const double mean = weighed(in, probs, n, slope);
    float* out = ds.row<float>(n);
    if (probs == Probs::softmax) {
      const Softmax p(in.scores.row<float>(n), in.experts);
      for (int64_t e = 0; e < in.experts; ++e)
        out[e] += static_cast<float>(coef * p[e] * (slope[e] - mean));
      return;
    }
    const double factor = coef / sum_of(in.scores.row<float>(n), in.experts);
    for (int64_t e = 0; e < in.experts; ++e)
      out[e] += static_cast<float>(factor * (slope[e] - mean));
  });
}

// The experts of every token whose counts are meant, in the first `cols` columns.
struct Counted {
  Tensor choice, selected;  // [N,K] i32; selected absent: all of them
  int64_t cols;
};
// What is not in the routing lives in run.scratch; the caller rewinds.
Counted counted(Run& run, const Routing& in, Counts counts) {
  if (counts == Counts::first_choice) return {in.choice, in.selected, 1};
  if (counts == Counts::all_choices) return {in.choice, in.selected, in.choice.cols()};
  const Counted best{run.scratch.alloc(DType::i32, {in.tokens(), in.slots()}), {}, in.slots()};
  ops::top_experts(run, best.choice, in.scores, {});
  return best;
}

// Adds the tokens [begin, end).  out [E]
void add_counts(double* out, const Counted& from, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; ++n)
    for (int64_t i = 0; i < from.cols; ++i)
      if (from.selected.empty() || from.selected.row<int32_t>(n)[i] != 0)
        out[from.choice.row<int32_t>(n)[i]] += 1;
}

// Counts to what they are of their sum, times `whole`.
void to_shares(double* counts, int64_t experts, double whole) {
  const double sum = std::accumulate(counts, counts + experts, 0.0);
  for (int64_t e = 0; e < experts; ++e) counts[e] = sum > 0 ? whole * counts[e] / sum : 0;
}

// (E/N) f_e.
Slopes balance_slopes(Run& run, const Routing& in, const Pass& pass, const BalanceLoss& loss) {
  Slopes slopes(in, pass, loss.scope);
  const std::span<const int64_t> other = loss.shares == BalanceLoss::Shares::own
                                             ? std::span<const int64_t>{}
                                             : pass.step_counts_of(in.index);
  const bool counts_own = loss.shares == BalanceLoss::Shares::own ||
                          loss.shares == BalanceLoss::Shares::running || other.empty();
  if (counts_own && slopes.scopes() == 1 && !in.balance_counts.empty()) {
    std::copy_n(in.balance_counts.as<int32_t>(), in.experts, slopes.row(0));
  } else if (counts_own) {
    ArenaScope scope(run.scratch);
    const Counted from = counted(run, in, loss.counts);
    for (size_t s = 0; s < slopes.scopes(); ++s)
      add_counts(slopes.row(s), from, slopes.bounds[s], slopes.bounds[s + 1]);
  }
  for (size_t s = 0; s < slopes.scopes(); ++s) {
    for (size_t e = 0; e < other.size(); ++e) slopes.row(s)[e] += static_cast<double>(other[e]);
    to_shares(slopes.row(s), in.experts,
              static_cast<double>(in.experts) / static_cast<double>(slopes.tokens()));
  }
  return slopes;
}

// (1/N) times the mean of E f_e over the expert's device.
Slopes device_slopes(const Routing& in, const Pass& pass, const DeviceLoss& loss) {
  Slopes slopes(in, pass, loss.scope);
  const int64_t of_device = in.experts / loss.devices;
  for (size_t s = 0; s < slopes.scopes(); ++s) {
    double* row = slopes.row(s);
    add_counts(row, Counted{in.choice, in.selected, in.choice.cols()}, slopes.bounds[s],
               slopes.bounds[s + 1]);
    to_shares(row, in.experts,
              static_cast<double>(in.experts) / static_cast<double>(slopes.tokens()));
    for (double* first = row; first < row + in.experts; first += of_device)
      std::fill_n(first, of_device,
                  std::accumulate(first, first + of_device, 0.0) / static_cast<double>(of_device));
  }
  return slopes;
}

// (1/N) (D/M) times the share of the scope's tokens that have an expert on the expert's device.
Slopes communication_slopes(const Routing& in, const Pass& pass, const DeviceLoss& loss) {
  Slopes slopes(in, pass, loss.scope);
  const int64_t of_device = in.experts / loss.devices;
  // [D] the token counted last; tokens counted
  std::vector<int64_t> last(static_cast<size_t>(loss.devices), -1), sent(last.size());
  for (size_t s = 0; s < slopes.scopes(); ++s) {
    std::fill(sent.begin(), sent.end(), 0);
    for (int64_t n = slopes.bounds[s]; n < slopes.bounds[s + 1]; ++n)
      for (int64_t i = 0; i < in.choice.cols(); ++i) {
        const auto device = static_cast<size_t>(in.choice.row<int32_t>(n)[i] / of_device);
        if (in.selected.row<int32_t>(n)[i] == 0 || last[device] == n) continue;
        last[device] = n;
        ++sent[device];
      }
    const double scope_tokens = static_cast<double>(slopes.bounds[s + 1] - slopes.bounds[s]);
    const double unit =
        static_cast<double>(loss.devices) /
        (static_cast<double>(loss.at_most) * scope_tokens * static_cast<double>(slopes.tokens()));
    for (int64_t e = 0; e < in.experts; ++e)
      slopes.row(s)[e] = unit * static_cast<double>(sent[static_cast<size_t>(e / of_device)]);
  }
  return slopes;
}

}  // namespace

void count_for_balance(Run& run, Tensor counts, const Routing& in, const BalanceLoss& loss) {
  ArenaScope scope(run.scratch);
  const Counted from = counted(run, in, loss.counts);
  ops::count_pairs(run, counts, from.choice, from.selected, from.cols);
}

float balance_forward(Run& run, const Routing& in, const Pass& pass, const BalanceLoss& loss) {
  return forward(run, in, loss.probs, balance_slopes(run, in, pass, loss));
}
void balance_backward_acc(Run& run, Tensor ds, Tensor dw, const Routing& in, const Pass& pass,
                          const BalanceLoss& loss, float coef) {
  backward_acc(run, ds, dw, in, loss.probs, balance_slopes(run, in, pass, loss), coef);
}

float device_forward(Run& run, const Routing& in, const Pass& pass, const DeviceLoss& loss) {
  return forward(run, in, Probs::normalised_scores, device_slopes(in, pass, loss));
}
void device_backward_acc(Run& run, Tensor ds, const Routing& in, const Pass& pass,
                         const DeviceLoss& loss, float coef) {
  backward_acc(run, ds, {}, in, Probs::normalised_scores, device_slopes(in, pass, loss), coef);
}

float communication_forward(Run& run, const Routing& in, const Pass& pass, const DeviceLoss& loss) {
  return forward(run, in, Probs::normalised_scores, communication_slopes(in, pass, loss));
}
void communication_backward_acc(Run& run, Tensor ds, const Routing& in, const Pass& pass,
                                const DeviceLoss& loss, float coef) {
  backward_acc(run, ds, {}, in, Probs::normalised_scores, communication_slopes(in, pass, loss),
               coef);
}

}  // namespace moe
