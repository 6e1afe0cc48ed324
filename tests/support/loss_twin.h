// The auxiliary losses written again from their papers, on any number type, over a routing made of
// draws (no router needed): what tests/moe/losses/aux_loss_test.cpp holds the library's losses and
// gradients against.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>

#include "moe/losses/aux_loss.h"
#include "support/check.h"
#include "support/dual.h"

namespace moe::test {

// ---- a routing made of draws --------------------------------------------------------------------
struct RoutingShape {
  std::string name;
  std::vector<int64_t> lengths;  // of the sequences
  int64_t experts, k;
  bool sigmoid = false;
  bool idle = false;  // the last expert gets no token
  bool gaps = false;  // pairs that are not selected, as where experts choose
  bool no_noise = false;
  std::vector<int64_t> step_counts = {};
};

struct DrawnRouting {
  RoutingShape shape;
  Arena arena;
  std::vector<int64_t> bounds = {0};
  Routing in;
  Pass pass;
};

inline std::unique_ptr<DrawnRouting> make_routing(const RoutingShape& shape, uint64_t seed) {
  auto r = std::make_unique<DrawnRouting>();
  r->shape = shape;
  for (int64_t length : shape.lengths) r->bounds.push_back(r->bounds.back() + length);
  r->pass.batch.bounds = r->bounds;
  if (!r->shape.step_counts.empty()) r->pass.step_counts = std::span(&r->shape.step_counts, 1);
  const int64_t tokens = r->bounds.back(), experts = shape.experts, k = shape.k;
  Arena& a = r->arena;
  const Tensor noise = draw(a, DType::f32, {tokens, experts}, seed + 1),
               width = draw(a, DType::f32, {tokens, experts}, seed + 2);
  r->in = {.experts = experts,
           .clean = draw(a, DType::f32, {tokens, experts}, seed),
           .sigma = a.alloc(DType::f32, {tokens, experts}),
           .logits = a.alloc(DType::f32, {tokens, experts}),
           .scores = a.alloc(DType::f32, {tokens, experts}),
           .choice = a.alloc(DType::i32, {tokens, k}),
           .selected = a.alloc(DType::i32, {tokens, k}),
           .weights = a.alloc(DType::f32, {tokens, k})};
  for (int64_t n = 0; n < tokens; ++n) {
    float* z = r->in.logits.row<float>(n);
    double sum = 0;
    for (int64_t e = 0; e < experts; ++e) {
      if (shape.idle && e == experts - 1) r->in.clean.row<float>(n)[e] -= 12;
      r->in.sigma.row<float>(n)[e] = 0.3f + std::abs(width.row<float>(n)[e]);
      z[e] = r->in.clean.row<float>(n)[e] + r->in.sigma.row<float>(n)[e] * noise.row<float>(n)[e] *
                                                (shape.idle && e == experts - 1 ? 0.1f : 1.0f);
      sum += std::exp(static_cast<double>(z[e]));
    }
    std::vector<int32_t> order;
    for (int64_t e = 0; e < experts; ++e) {
      const double x = z[e];
      r->in.scores.row<float>(n)[e] =
          static_cast<float>(shape.sigmoid ? 1 / (1 + std::exp(-x)) : std::exp(x) / sum);
      order.push_back(static_cast<int32_t>(e));
    }
    // A bias of the odd experts makes what is chosen another thing than the largest scores.
    const auto rank = [&](int32_t e) {
      return r->in.scores.row<float>(n)[e] +
             (shape.idle && e == experts - 1 ? 0.0f : 0.05f * static_cast<float>(e % 2));
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t x, int32_t y) { return rank(x) > rank(y); });
    for (int64_t i = 0; i < k; ++i) {
      r->in.choice.row<int32_t>(n)[i] = order[static_cast<size_t>(i)];
      r->in.selected.row<int32_t>(n)[i] = !shape.gaps || (n + 2 * i) % 3 != 1;
      r->in.weights.row<float>(n)[i] =
          r->in.selected.row<int32_t>(n)[i]
              ? r->in.scores.row<float>(n)[order[static_cast<size_t>(i)]] * 1.5f
              : 0.0f;
    }
  }
  if (shape.no_noise) r->in.sigma = r->in.clean = {};
  return r;
}

// ---- the formulas, on T -------------------------------------------------------------------------
template <class T>
struct LossTwin {
  const DrawnRouting& r;
  std::vector<T> scores, noisy, clean, sigma, weights;  // as Routing's, flat

  explicit LossTwin(const DrawnRouting& routing) : r(routing) {
    const auto take = [](std::vector<T>& to, const Tensor& from) {
      if (!from.empty())
        for (double x : values(from)) to.push_back(x);
    };
    take(scores, r.in.scores);
    take(noisy, r.in.logits);
    take(clean, r.in.clean);
    take(sigma, r.in.sigma);
    take(weights, r.in.weights);
  }
  int64_t tokens() const { return r.bounds.back(); }
  int64_t experts() const { return r.shape.experts; }
  const T& at(const std::vector<T>& x, int64_t n, int64_t e) const {
    return x[static_cast<size_t>(n * experts() + e)];
  }
  // The pair's weight where token n's expert e is selected, null where not.
  const T* weight(int64_t n, int64_t e) const {
    for (int64_t i = 0; i < r.shape.k; ++i)
      if (r.in.choice.row<int32_t>(n)[i] == e && r.in.selected.row<int32_t>(n)[i])
        return &weights[static_cast<size_t>(n * r.shape.k + i)];
    return nullptr;
  }
  T normalised(int64_t n, int64_t e) const {
    T sum = 0;
    for (int64_t j = 0; j < experts(); ++j) sum += at(scores, n, j);
    return at(scores, n, e) / sum;
  }
  bool is_counted(BalanceLoss::Counts counts, int64_t n, int64_t e) const {
    if (counts == BalanceLoss::Counts::first_choice)
      return r.in.choice.row<int32_t>(n)[0] == e && r.in.selected.row<int32_t>(n)[0];
    if (counts == BalanceLoss::Counts::all_choices) return weight(n, e) != nullptr;
    int64_t better = 0;
    for (int64_t j = 0; j < experts(); ++j)
      better += value_of(at(scores, n, j)) > value_of(at(scores, n, e)) ||
                (j < e && value_of(at(scores, n, j)) == value_of(at(scores, n, e)));
    return better < r.shape.k;
  }
  std::vector<int64_t> scopes(const Scope& scope) const {
    if (scope.kind == Scope::Kind::sequence) return r.bounds;
    std::vector<int64_t> out = {0};
    while (out.back() < tokens())
      out.push_back(scope.kind == Scope::Kind::group ? std::min(out.back() + scope.group, tokens())
                                                     : tokens());
    return out;
  }
  // Mean over scopes of `loss(begin, end)`, weighted by their tokens.
  T over_scopes(const Scope& scope, const std::function<T(int64_t, int64_t)>& loss) const {
    const std::vector<int64_t> bounds = scopes(scope);
    T sum = 0;
    for (size_t s = 0; s + 1 < bounds.size(); ++s)
      sum += T(static_cast<double>(bounds[s + 1] - bounds[s])) * loss(bounds[s], bounds[s + 1]);
    return sum / T(static_cast<double>(tokens()));
  }
  std::vector<double> shares(BalanceLoss::Counts counts, int64_t begin, int64_t end,
                             BalanceLoss::Shares whose) const {
    std::vector<double> c(static_cast<size_t>(experts()));
    double sum = 0;
    for (int64_t e = 0; e < experts(); ++e) {
      const bool known = !r.shape.step_counts.empty();
      if (whose != BalanceLoss::Shares::own && known)
        c[static_cast<size_t>(e)] =
            static_cast<double>(r.shape.step_counts[static_cast<size_t>(e)]);
      if (whose != BalanceLoss::Shares::step || !known)
        for (int64_t n = begin; n < end; ++n) c[static_cast<size_t>(e)] += is_counted(counts, n, e);
      sum += c[static_cast<size_t>(e)];
    }
    for (double& x : c) x = sum > 0 ? x / sum : 0;
    return c;
  }
  T balance(const BalanceLoss& loss) const {
    return over_scopes(loss.scope, [&](int64_t begin, int64_t end) {
      const std::vector<double> f = shares(loss.counts, begin, end, loss.shares);
      T sum = 0;
      for (int64_t e = 0; e < experts(); ++e) {
        T mass = 0;
        for (int64_t n = begin; n < end; ++n) {
          if (loss.probs == BalanceLoss::Probs::scores) mass += at(scores, n, e);
          if (loss.probs == BalanceLoss::Probs::normalised_scores) mass += normalised(n, e);
          if (loss.probs == BalanceLoss::Probs::chosen_weights && weight(n, e))
            mass += *weight(n, e);
        }
        sum += T(f[static_cast<size_t>(e)]) * mass / T(static_cast<double>(end - begin));
      }
      return T(static_cast<double>(experts())) * sum;
    });
  }
  T device(const DeviceLoss& loss, bool communication) const {
    return over_scopes(loss.scope, [&](int64_t begin, int64_t end) {
      const int64_t size = experts() / loss.devices;
      const std::vector<double> f =
          shares(BalanceLoss::Counts::all_choices, begin, end, BalanceLoss::Shares::own);
      const double tokens_here = static_cast<double>(end - begin);
      T sum = 0;
      for (int64_t d = 0; d < loss.devices; ++d) {
        double load = 0, sent = 0;
        T mass = 0;
        for (int64_t e = d * size; e < (d + 1) * size; ++e)
          load += static_cast<double>(experts()) * f[static_cast<size_t>(e)] /
                  static_cast<double>(size);
        for (int64_t n = begin; n < end; ++n) {
          bool here = false;
          for (int64_t e = d * size; e < (d + 1) * size; ++e) {
            here = here || weight(n, e);
            mass += normalised(n, e);
          }
          sent += here;
        }
        const double share = communication
                                 ? static_cast<double>(loss.devices) /
                                       (static_cast<double>(loss.at_most) * tokens_here) * sent
                                 : load;
        sum += T(share) * mass / T(tokens_here);
      }
      return sum;
    });
  }
  T cv2(const std::vector<T>& v) const {
    T mean = 0, variance = 0;
    for (const T& x : v) mean += x / T(static_cast<double>(v.size()));
    for (const T& x : v) variance += (x - mean) * (x - mean) / T(static_cast<double>(v.size()));
    return variance / (mean * mean + T(1e-10));
  }
  T importance() const {
    std::vector<T> v(static_cast<size_t>(experts()), T(0));
    for (int64_t n = 0; n < tokens(); ++n)
      for (int64_t e = 0; e < experts(); ++e)
        if (weight(n, e)) v[static_cast<size_t>(e)] += *weight(n, e);
    return cv2(v);
  }
  // The K-th largest noisy logit of the others is what e has to exceed.
  T load() const {
    using std::erf;
    std::vector<T> v(static_cast<size_t>(experts()), T(0));
    for (int64_t n = 0; n < tokens(); ++n)
      for (int64_t e = 0; e < experts(); ++e) {
        if (sigma.empty() || r.shape.k == experts()) {
          if (weight(n, e)) v[static_cast<size_t>(e)] += T(1);
          continue;
        }
        std::vector<T> others;
        for (int64_t j = 0; j < experts(); ++j)
          if (j != e) others.push_back(at(noisy, n, j));
        std::sort(others.begin(), others.end(), [](const T& x, const T& y) { return x > y; });
        const T u =
            (at(clean, n, e) - others[static_cast<size_t>(r.shape.k - 1)]) / at(sigma, n, e);
        v[static_cast<size_t>(e)] += T(0.5) * (T(1) + erf(u / T(std::sqrt(2.0))));
      }
    return cv2(v);
  }
};

}  // namespace moe::test
