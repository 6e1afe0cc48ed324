// The scalar twin of a router: every stage in plain loops, templated on the number type, so that
// dual numbers give the exact derivative of weights and losses. Written from the formulas of the
// stages' headers and their papers; of src/moe only the data (RoutingSpec) and the counter-based
// random numbers are used, which are part of the definition. `margin` is the smallest distance by
// which any decision was made: a draw below 1e-3 may come out otherwise in f32.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numbers>
#include <numeric>
#include <vector>

#include "moe/router.h"
#include "support/dual.h"
#include "support/jet.h"

namespace moe::test {

template <class T>
using Matrix = std::vector<std::vector<T>>;  // [rows][cols]
using Flags = std::vector<std::vector<bool>>;

namespace twin {

inline size_t index(int64_t i) { return static_cast<size_t>(i); }
inline double real(size_t i) { return static_cast<double>(i); }
inline double real(int64_t i) { return static_cast<double>(i); }

// The decimal number that a user wrote for a factor.
inline double as_written(float factor) { return std::stod(fmt::format("{}", factor)); }

template <class T>
T lse(const std::vector<T>& x) {
  using std::exp, std::log;
  double top = value_of(x[0]);
  for (const T& v : x) top = std::max(top, value_of(v));
  T sum{};
  for (const T& v : x) sum += exp(v - T(top));
  return T(top) + log(sum);
}
template <class T>
std::vector<T> softmax(const std::vector<T>& x) {
  using std::exp;
  std::vector<T> y;
  if (x.empty()) return y;
  const T l = lse(x);
  for (const T& v : x) y.push_back(exp(v - l));
  return y;
}
template <class T>
T sigmoid(T x) {
  using std::exp;
  return T(1.0) / (T(1.0) + exp(-x));
}
template <class T>
T softplus(T x) {
  using std::exp, std::log;
  return log(T(1.0) + exp(x));
}
template <class T>
T sum_of(const std::vector<T>& x) {
  T sum{};
  for (const T& v : x) sum += v;
  return sum;
}
// CV^2 = population variance / (mean^2 + 1e-10)
template <class T>
T cv2(const std::vector<T>& x) {
  const T count(real(x.size())), mean = sum_of(x) / count;
  T variance{};
  for (const T& v : x) variance += (v - mean) * (v - mean);
  return variance / count / (mean * mean + T(1e-10));
}
// 0..n-1 by falling key, equal ones by rising index.
inline std::vector<size_t> falling(const std::vector<double>& key) {
  std::vector<size_t> order(key.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key[a] > key[b]; });
  return order;
}
// y = x W^T, W [out,in]
template <class T>
Matrix<T> product(const Matrix<T>& x, const std::vector<T>& w) {
  Matrix<T> y;
  for (const auto& row : x) {
    y.emplace_back(w.size() / row.size());
    for (size_t i = 0; i < w.size(); ++i) y.back()[i / row.size()] += row[i % row.size()] * w[i];
  }
  return y;
}

}  // namespace twin

// One place of a recorded choice.
struct TwinEntry {
  bool chosen = false;
  size_t expert = 0;
  bool sent = false;
};

// What the router is made of; what its stages do not have is absent.
template <class T>
struct TwinRouterParams {
  // [E,D], [E,D], [E], [E,D]
  const std::vector<T>*weight = nullptr, *up = nullptr, *logit_bias = nullptr, *noise = nullptr;
  const std::vector<T>* scale = nullptr;  // [E]
  std::function<T(T)> act = [](T x) { return x * twin::sigmoid(x); };
};

// What the router reads beside x.
struct TwinRouterInput {
  std::vector<int32_t> ids;
  std::vector<int64_t> bounds, step_counts;
  std::vector<double> bias, threshold;
  RngKey key;
  // [N][K] choices to take instead of the router's own; empty: it chooses
  std::vector<std::vector<TwinEntry>> recorded = {};
};

// each_loss (moe/losses/aux_loss.h) walks these too.
template <class T>
struct TwinLosses {
  T balance{}, z{}, device{}, communication{}, importance{}, load{};
};

template <class T>
struct TwinRoute {
  std::vector<std::vector<size_t>> choice;  // [N][K]
  // [N][K] by the select stage; after the second policy; after capacity
  Flags selected, sent, kept;
  Matrix<T> before_drop, weights;               // [N][K]; `weights` is 0 where not kept
  std::vector<int64_t> counts, balance_counts;  // [E]
  std::vector<double> cutoff;                   // [E], expert choice only
  TwinLosses<T> losses;
  int64_t dropped = 0;
  std::vector<int64_t> agreed;  // [N] recorded choices that the router made too
  double margin = 1e30;
};

template <class T>
class TwinRouter {
 public:
  TwinRouter(const RoutingSpec& spec, const TwinRouterInput& in)
      : spec_(spec),
        in_(in),
        experts_(twin::index(spec.experts)),
        slots_(twin::index(spec.slots())) {}

  // x [N][D]
  TwinRoute<T> from_x(Matrix<T> x, const TwinRouterParams<T>& params) {
    scale_ = params.scale;
    if (const auto* j = std::get_if<InputJitter>(&spec_.noise); j && !in_.key.empty())
      for (size_t n = 0; n < x.size(); ++n)
        for (size_t d = 0; d < x[n].size(); ++d)
          x[n][d] *= T(1.0 - j->eps + 2.0 * j->eps * uniform(in_.key, n * x[n].size() + d));
    const Matrix<T> clean = logits(x, params);
    const auto* learned = std::get_if<LearnedNoise>(&spec_.noise);
    if (!learned || in_.key.empty()) return from_logits(clean, {}, clean);
    Matrix<T> sigma = twin::product(x, *params.noise), noisy = clean;
    for (size_t n = 0; n < x.size(); ++n)
      for (size_t e = 0; e < experts_; ++e) {
        sigma[n][e] = twin::softplus(sigma[n][e]) + T(static_cast<double>(learned->floor));
        noisy[n][e] += sigma[n][e] * T(normal(in_.key, n * experts_ + e));
      }
    return from_logits(clean, sigma, noisy);
  }

  // clean, sigma, noisy [N][E]; sigma may be empty
  TwinRoute<T> from_logits(const Matrix<T>& clean, const Matrix<T>& sigma, const Matrix<T>& noisy) {
    out_ = {};
    tokens_ = needs_logits(spec_.select) ? noisy.size() : in_.ids.size();
    clean_ = &clean;
    sigma_ = &sigma;
    noisy_ = &noisy;
    score();
    select();
    if (!in_.recorded.empty()) replace();
    weigh();
    out_.sent = out_.selected;
    if (needs_logits(spec_.select)) losses();
    if (in_.recorded.empty()) {
      second();
      count_sent();
      place();
    } else {
      count_sent();
      place_as_recorded();
    }
    out_.weights = out_.before_drop;
    const auto* chosen = std::get_if<ChosenScores>(&spec_.weigh);
    for (size_t n = 0; n < tokens_; ++n) {
      T sum{};
      for (size_t i = 0; i < slots_; ++i) {
        if (!out_.kept[n][i]) out_.weights[n][i] = T{};
        sum += out_.weights[n][i];
      }
      if (chosen && chosen->renormalise == ChosenScores::Renormalise::after_drop)
        for (T& w : out_.weights[n]) w /= sum + T(1e-20);
    }
    return out_;
  }

 private:
  Matrix<T> logits(const Matrix<T>& x, const TwinRouterParams<T>& params) {
    Matrix<T> z = twin::product(x, *params.weight);
    if (std::holds_alternative<LinearLogits>(spec_.logits)) {
      for (auto& row : z)
        for (size_t e = 0; e < experts_ && params.logit_bias; ++e)
          row[e] += (*params.logit_bias)[e];
      return z;
    }
    const Matrix<T> up = params.up ? twin::product(x, *params.up) : z;
    for (size_t n = 0; n < z.size(); ++n)
      for (size_t e = 0; e < experts_; ++e) {
        z[n][e] = params.act(z[n][e]) * (params.up ? up[n][e] : T(1.0));
        if (value_of(z[n][e]) < 0) z[n][e] = -z[n][e];
        if (is_fixed(spec_.logits)) z[n][e] = T(value_of(z[n][e]));
      }
    return z;
  }

  void decided_by(double distance) { out_.margin = std::min(out_.margin, std::abs(distance)); }

  std::vector<std::pair<size_t, size_t>> scopes(const Scope& scope) const {
    std::vector<std::pair<size_t, size_t>> list;
    if (scope.kind == Scope::Kind::micro_batch ||
        (scope.kind == Scope::Kind::sequence && in_.bounds.empty()))
      return {{0, tokens_}};
    if (scope.kind == Scope::Kind::sequence)
      for (size_t s = 0; s + 1 < in_.bounds.size(); ++s)
        list.emplace_back(in_.bounds[s], in_.bounds[s + 1]);
    else
      for (size_t begin = 0; begin < tokens_; begin += twin::index(scope.group))
        list.emplace_back(begin, std::min(tokens_, begin + twin::index(scope.group)));
    return list;
  }

  void score() {
    using std::sqrt;
    scores_ = *noisy_;
    for (auto& row : scores_) {
      if (std::holds_alternative<SoftmaxScore>(spec_.score)) row = twin::softmax(row);
      if (std::holds_alternative<SigmoidScore>(spec_.score))
        for (T& s : row) s = twin::sigmoid(s);
      if (std::holds_alternative<SqrtSoftplusScore>(spec_.score))
        for (T& s : row) s = sqrt(twin::softplus(s));
    }
  }

  // ---- select -----------------------------------------------------------------------------------
  void select() {
    out_.selected.assign(tokens_, std::vector<bool>(slots_, true));
    for (size_t n = 0; n < tokens_; ++n) {
      if (const auto* near = std::get_if<NearBestChoice>(&spec_.select);
          near && near->draw && !in_.key.empty()) {
        out_.choice.push_back(drawn_near(n, near->eps));
        continue;
      }
      if (const auto* hash = std::get_if<HashChoice>(&spec_.select)) {
        out_.choice.push_back(hashed(*hash, in_.ids[n]));
        continue;
      }
      std::vector<double> s(experts_);
      for (size_t e = 0; e < experts_; ++e)
        s[e] = value_of(scores_[n][e]) + (selection_bias(spec_.select) ? in_.bias[e] : 0);
      if (const auto* grouped = std::get_if<GroupedTopK>(&spec_.select)) mask_groups(s, *grouped);
      std::vector<size_t> order = twin::falling(s);
      if (!experts_choose(spec_.select))
        for (size_t i = 0; i < slots_ && i + 1 < experts_; ++i)
          if (std::isfinite(s[order[i + 1]])) decided_by(s[order[i]] - s[order[i + 1]]);
      order.resize(slots_);
      if (const auto* top = std::get_if<TopK>(&spec_.select); top && !top->sorted)
        std::sort(order.begin(), order.end());
      out_.choice.push_back(order);
    }
    if (const auto* expert_choice = std::get_if<ExpertChoice>(&spec_.select))
      experts_take(*expert_choice);
    if (std::holds_alternative<ThresholdChoice>(spec_.select))
      for (size_t n = 0; n < tokens_; ++n)
        for (size_t i = 0; i < slots_; ++i) {
          const size_t e = out_.choice[n][i];
          decided_by(value_of(scores_[n][e]) - in_.threshold[e]);
          out_.selected[n][i] = value_of(scores_[n][e]) >= in_.threshold[e];
        }
  }

  // Of the experts left those near the best, and the best one itself, first.
  std::vector<size_t> near_best(size_t n, const std::vector<bool>& left, float eps) {
    std::vector<double> s;
    for (size_t e = 0; e < experts_; ++e)
      s.push_back(left[e] ? value_of(scores_[n][e]) : -INFINITY);
    const std::vector<size_t> order = twin::falling(s);
    const double top = s[order[0]], within = 2 * static_cast<double>(eps);
    std::vector<size_t> near;
    for (size_t e : order) {
      if (!left[e]) continue;
      const double away = (top - s[e]) / std::max(std::abs(s[e]), top);
      if (e != order[0]) decided_by(away - within);
      if (!(away > within)) near.push_back(e);
    }
    return near;
  }

  std::vector<size_t> drawn_near(size_t n, float eps) {
    std::vector<bool> left(experts_, true);
    std::vector<size_t> choice;
    while (choice.size() < slots_) {
      std::vector<size_t> near = near_best(n, left, eps);
      std::sort(near.begin(), near.end());
      std::vector<double> s;
      for (size_t e : near) s.push_back(value_of(scores_[n][e]));
      const std::vector<double> p = twin::softmax(s);
      const double u = uniform(in_.key.fold(3), n * slots_ + choice.size());
      double sum = 0;
      size_t i = 0;
      for (; i + 1 < p.size(); ++i) {
        sum += p[i];
        decided_by(sum - u);
        if (u < sum) break;
      }
      choice.push_back(near[i]);
      left[near[i]] = false;
    }
    return choice;
  }

  std::vector<size_t> hashed(const HashChoice& hash, int32_t id) const {
    std::vector<size_t> p(experts_);
    std::iota(p.begin(), p.end(),
              hash.map == HashChoice::Map::modulo ? static_cast<size_t>(id) : 0);
    for (size_t& e : p) e %= experts_;
    if (hash.map == HashChoice::Map::random) {
      const RngKey key =
          RngKey::from_seed(static_cast<uint64_t>(hash.seed)).fold(static_cast<uint64_t>(id));
      for (size_t i = 0; i < slots_; ++i)
        std::swap(p[i], p[i + uniform_index(key, i, experts_ - i)]);
    }
    p.resize(slots_);
    return p;
  }

  void mask_groups(std::vector<double>& s, const GroupedTopK& g) {
    const size_t groups = twin::index(g.groups), size = experts_ / groups,
                 keep = twin::index(g.keep);
    std::vector<double> value(groups);
    for (size_t i = 0; i < groups; ++i) {
      std::vector<double> members(s.begin() + static_cast<long>(i * size),
                                  s.begin() + static_cast<long>((i + 1) * size));
      std::sort(members.rbegin(), members.rend());
      value[i] = std::accumulate(members.begin(), members.begin() + g.group_top, 0.0);
    }
    const std::vector<size_t> order = twin::falling(value);
    if (keep < groups) decided_by(value[order[keep - 1]] - value[order[keep]]);
    for (size_t i = keep; i < groups; ++i)
      for (size_t e = 0; e < size; ++e) s[order[i] * size + e] = -INFINITY;
  }

  void experts_take(const ExpertChoice& choice) {
    out_.cutoff.assign(experts_, 0);
    Flags taken(tokens_, std::vector<bool>(experts_));
    const auto all = scopes(choice.scope);
    for (auto [begin, end] : all)
      for (size_t e = 0; e < experts_; ++e) {
        const double tokens = twin::real(end - begin);
        const auto take = static_cast<size_t>(
            std::clamp(std::floor(tokens * twin::as_written(choice.factor) / twin::real(experts_)),
                       1.0, tokens));
        std::vector<double> column;
        for (size_t n = begin; n < end; ++n) column.push_back(value_of(scores_[n][e]));
        const std::vector<size_t> order = twin::falling(column);
        for (size_t i = 0; i < take; ++i) taken[begin + order[i]][e] = true;
        if (take < order.size()) decided_by(column[order[take - 1]] - column[order[take]]);
        out_.cutoff[e] += column[order[take - 1]] / twin::real(all.size());
      }
    for (size_t n = 0; n < tokens_; ++n)
      for (size_t i = 0; i < slots_; ++i) out_.selected[n][i] = taken[n][out_.choice[n][i]];
  }

  // ---- replay -----------------------------------------------------------------------------------
  void replace() {
    for (size_t n = 0; n < tokens_; ++n) {
      std::vector<bool> own(experts_);
      for (size_t i = 0; i < slots_; ++i)
        if (out_.selected[n][i]) own[out_.choice[n][i]] = true;
      out_.agreed.push_back(0);
      for (size_t i = 0; i < slots_; ++i) {
        const TwinEntry& entry = in_.recorded[n][i];
        out_.choice[n][i] = entry.expert;
        out_.selected[n][i] = entry.chosen;
        out_.agreed[n] += entry.chosen && own[entry.expert];
      }
    }
  }

  void place_as_recorded() {
    out_.kept = out_.sent;
    for (size_t n = 0; n < tokens_; ++n)
      for (size_t i = 0; i < slots_; ++i) {
        out_.kept[n][i] = in_.recorded[n][i].chosen && in_.recorded[n][i].sent;
        out_.dropped += out_.sent[n][i] && !out_.kept[n][i];
      }
  }

  // ---- weigh ------------------------------------------------------------------------------------
  void weigh() {
    using std::exp;
    out_.before_drop.assign(tokens_, std::vector<T>(slots_));
    for (size_t n = 0; n < tokens_; ++n) {
      std::vector<T> chosen;
      for (size_t i = 0; i < slots_; ++i)
        if (out_.selected[n][i])
          chosen.push_back(std::holds_alternative<UnitWeight>(spec_.weigh)
                               ? T(1.0)
                               : scores_[n][out_.choice[n][i]]);
      if (const auto* stage = std::get_if<ChosenScores>(&spec_.weigh)) {
        const T sum = stage->renormalise == ChosenScores::Renormalise::before_drop
                          ? twin::sum_of(chosen) + T(1e-20)
                          : T(1.0);
        for (T& w : chosen) w = T(static_cast<double>(stage->scale)) * w / sum;
      }
      if (std::holds_alternative<ChosenSoftmax>(spec_.weigh)) chosen = twin::softmax(chosen);
      if (const auto* sigmoids = std::get_if<ChosenSigmoids>(&spec_.weigh)) {
        for (T& w : chosen) w = twin::sigmoid(w);
        const T sum = sigmoids->renormalise ? twin::sum_of(chosen) + T(1e-20) : T(1.0);
        for (T& w : chosen) w /= sum;
      }
      if (std::holds_alternative<OnePlusScaled>(spec_.weigh))
        for (size_t i = 0, next = 0; i < slots_; ++i)
          if (out_.selected[n][i])
            chosen[next] = T(1.0) + (*scale_)[out_.choice[n][i]] * chosen[next], ++next;
      if (std::holds_alternative<ScaledScores>(spec_.weigh)) {
        const T sum = twin::sum_of(chosen) + T(1e-20);
        for (size_t i = 0, next = 0; i < slots_; ++i)
          if (out_.selected[n][i])
            chosen[next] = (*scale_)[out_.choice[n][i]] * chosen[next] / sum, ++next;
      }
      if (const auto* near = std::get_if<NearSoftmax>(&spec_.weigh))
        chosen = weighed_near(n, near->eps);
      for (size_t i = 0, next = 0; i < slots_; ++i)
        if (out_.selected[n][i]) out_.before_drop[n][i] = chosen[next++];
    }
    if (!std::holds_alternative<TokenSoftmax>(spec_.weigh)) return;
    const auto* stage = std::get_if<ExpertChoice>(&spec_.select);
    for (auto [begin, end] : scopes(stage ? stage->scope : Scope{}))
      for (size_t e = 0; e < experts_; ++e) {
        std::vector<T*> column;
        std::vector<T> s;
        for (size_t n = begin; n < end; ++n)
          for (size_t i = 0; i < slots_; ++i)
            if (out_.choice[n][i] == e && out_.selected[n][i]) {
              column.push_back(&out_.before_drop[n][i]);
              s.push_back(scores_[n][e]);
            }
        s = twin::softmax(s);
        for (size_t i = 0; i < s.size(); ++i) *column[i] = s[i];
      }
  }

  // Of the selected choices: the softmax among those near the best. A third of it counts where a
  // draw says so, which the derivative does not see.
  std::vector<T> weighed_near(size_t n, float eps) {
    std::vector<bool> left(experts_, true);
    std::vector<T> weights;
    for (size_t i = 0; i < slots_; ++i) {
      if (!out_.selected[n][i]) continue;
      const size_t e = out_.choice[n][i];
      const std::vector<size_t> near = near_best(n, left, eps);
      std::vector<T> s;
      for (size_t other : near) s.push_back(scores_[n][other]);
      const std::vector<T> p = twin::softmax(s);
      const auto at = static_cast<size_t>(std::find(near.begin(), near.end(), e) - near.begin());
      T w = at < p.size() ? p[at] : T{};
      if (!in_.key.empty() && e != near[0] && uniform(in_.key.fold(4), n * slots_ + i) < 0.75f)
        w += T(value_of(w) * (1.0 / 3 - 1));
      weights.push_back(w);
      left[e] = false;
    }
    return weights;
  }

  // ---- second choice and capacity ---------------------------------------------------------------
  void second() {
    for (size_t n = 0; n < tokens_ && !std::holds_alternative<KeepSecond>(spec_.second); ++n) {
      const double first = value_of(out_.before_drop[n][0]), w = value_of(out_.before_drop[n][1]);
      if (const auto* t = std::get_if<ThresholdSecond>(&spec_.second)) {
        const double least = static_cast<double>(t->least) * (t->relative ? first : 1);
        decided_by(w - least);
        out_.sent[n][1] = w >= least;
      }
      if (const auto* r = std::get_if<RandomSecond>(&spec_.second); r && !in_.key.empty()) {
        const double limit = uniform(in_.key.fold(1), n) * static_cast<double>(r->full);
        decided_by(w - limit);
        out_.sent[n][1] = limit < w;
      }
    }
  }

  void count_sent() {
    out_.counts.assign(experts_, 0);
    for (size_t n = 0; n < tokens_; ++n)
      for (size_t i = 0; i < slots_; ++i) out_.counts[out_.choice[n][i]] += out_.sent[n][i];
  }

  size_t room(const BufferCapacity& b, size_t tokens) const {
    using Rounding = BufferCapacity::Rounding;
    const double wanted = twin::as_written(b.factor) *
                          twin::real((b.count_choices ? slots_ : 1) * tokens) /
                          twin::real(experts_);
    double c = b.rounding == Rounding::round  ? std::nearbyint(wanted)
               : b.rounding == Rounding::ceil ? std::ceil(wanted)
                                              : std::floor(wanted);
    if (b.rounding == Rounding::floor_to_even && std::fmod(c, 2) != 0) c += 1;
    if (b.at_most_tokens) c = std::min(c, twin::real(tokens));
    return static_cast<size_t>(std::max(c, twin::real(b.minimum)));
  }

  void place() {
    using Order = BufferCapacity::Order;
    out_.kept = out_.sent;
    const auto* b = std::get_if<BufferCapacity>(&spec_.capacity);
    if (!b) return;
    for (auto [begin, end] : scopes(b->scope)) {
      const size_t tokens = end - begin;
      std::vector<double> first(tokens);
      for (size_t n = 0; n < tokens; ++n) first[n] = value_of(out_.before_drop[begin + n][0]);
      const std::vector<size_t> by_first = twin::falling(first);
      std::vector<std::pair<size_t, size_t>> pairs;  // (token, choice), in order of placement
      for (size_t i = 0; i < slots_; ++i) {
        std::vector<double> draw(tokens);
        for (size_t n = 0; n < tokens && !in_.key.empty(); ++n)
          draw[n] = -uniform(in_.key.fold(2), i * tokens_ + begin + n);
        const std::vector<size_t> shuffled = twin::falling(draw);
        for (size_t n = 0; n < tokens; ++n)
          pairs.emplace_back(begin + (b->order == Order::random           ? shuffled[n]
                                      : b->order == Order::batch_priority ? by_first[n]
                                                                          : n),
                             i);
      }
      if (b->order == Order::batch_priority)
        for (size_t n = 0; n + 1 < tokens; ++n)
          decided_by(first[by_first[n]] - first[by_first[n + 1]]);
      if (b->order == Order::token_major)
        std::stable_sort(pairs.begin(), pairs.end(),
                         [](auto x, auto y) { return x.first < y.first; });
      const auto weight = [&](auto pair) {
        return value_of(out_.before_drop[pair.first][pair.second]);
      };
      if (b->order == Order::by_weight) {
        std::sort(pairs.begin(), pairs.end());
        std::stable_sort(pairs.begin(), pairs.end(),
                         [&](auto x, auto y) { return weight(x) > weight(y); });
      }
      std::vector<size_t> used(experts_);
      std::vector<double> last(experts_, INFINITY);  // weight that took an expert's last place
      for (auto pair : pairs) {
        const auto [n, i] = pair;
        const size_t e = out_.choice[n][i];
        if (static_cast<int64_t>(e) >= spec_.with_weights()) continue;  // room without end
        if (!out_.sent[n][i] && !(b->skipped_take_room && out_.selected[n][i])) continue;
        if (used[e]++ < room(*b, tokens)) {
          last[e] = weight(pair);
          continue;
        }
        if (b->order == Order::by_weight && used[e] == room(*b, tokens) + 1)
          decided_by(last[e] - weight(pair));
        out_.dropped += out_.sent[n][i];
        out_.kept[n][i] = false;
      }
    }
  }

  // ---- losses -----------------------------------------------------------------------------------
  void losses() {
    for (const auto& row : spec_.losses.z_of_clean ? *clean_ : *noisy_)
      out_.losses.z += twin::lse(row) * twin::lse(row) / T(twin::real(tokens_));
    if (spec_.losses.balance) out_.losses.balance = balance(*spec_.losses.balance);
    if (spec_.losses.device) out_.losses.device = device(*spec_.losses.device, false);
    if (spec_.losses.communication)
      out_.losses.communication = device(*spec_.losses.communication, true);
    if (spec_.losses.importance) {
      std::vector<T> sum(experts_);
      for (size_t n = 0; n < tokens_; ++n)
        for (size_t i = 0; i < slots_; ++i) sum[out_.choice[n][i]] += out_.before_drop[n][i];
      out_.losses.importance = twin::cv2(sum);
    }
    if (spec_.losses.load) out_.losses.load = load();
  }

  std::vector<double> count(BalanceLoss::Counts kind, size_t begin, size_t end) {
    using Counts = BalanceLoss::Counts;
    std::vector<double> c(experts_);
    for (size_t n = begin; n < end; ++n) {
      std::vector<double> s(experts_);
      for (size_t e = 0; e < experts_; ++e) s[e] = value_of(scores_[n][e]);
      const std::vector<size_t> order = twin::falling(s);
      const bool unbiased = kind == Counts::unbiased_choices;
      if (unbiased && slots_ < experts_) decided_by(s[order[slots_ - 1]] - s[order[slots_]]);
      for (size_t i = 0; i < (kind == Counts::first_choice ? 1 : slots_); ++i)
        c[unbiased ? order[i] : out_.choice[n][i]] += unbiased || out_.selected[n][i];
    }
    return c;
  }

  // mean over [begin,end) of what each expert is given
  std::vector<T> given(BalanceLoss::Probs kind, size_t begin, size_t end) const {
    using Probs = BalanceLoss::Probs;
    std::vector<T> p(experts_);
    const T tokens(twin::real(end - begin));
    for (size_t n = begin; n < end; ++n) {
      const T sum = kind == Probs::normalised_scores ? twin::sum_of(scores_[n]) : T(1.0);
      const std::vector<T> of = kind == Probs::softmax ? twin::softmax(scores_[n]) : scores_[n];
      if (kind == Probs::chosen_weights)
        for (size_t i = 0; i < slots_; ++i) p[out_.choice[n][i]] += out_.before_drop[n][i] / tokens;
      else
        for (size_t e = 0; e < experts_; ++e) p[e] += of[e] / sum / tokens;
    }
    return p;
  }

  // What counts are shares of; where a replay left a scope without any, each share is 0.
  static double counted(const std::vector<double>& counts) {
    const double sum = twin::sum_of(counts);
    return sum > 0 ? sum : 1;
  }

  T balance(const BalanceLoss& b) {
    out_.balance_counts.assign(experts_, 0);
    T loss{};
    for (auto [begin, end] : scopes(b.scope)) {
      std::vector<double> c = count(b.counts, begin, end);
      for (size_t e = 0; e < experts_; ++e) {
        out_.balance_counts[e] += static_cast<int64_t>(c[e]);
        if (b.shares == BalanceLoss::Shares::running && !in_.step_counts.empty())
          c[e] += twin::real(in_.step_counts[e]);
        if (b.shares == BalanceLoss::Shares::step && !in_.step_counts.empty())
          c[e] = twin::real(in_.step_counts[e]);
      }
      const std::vector<T> p = given(b.probs, begin, end);
      const double factor =
          twin::real(experts_) / counted(c) * twin::real(end - begin) / twin::real(tokens_);
      for (size_t e = 0; e < experts_; ++e) loss += T(factor * c[e]) * p[e];
    }
    return loss;
  }

  T device(const DeviceLoss& d, bool communication) {
    const size_t size = experts_ / twin::index(d.devices);
    T loss{};
    for (auto [begin, end] : scopes(d.scope)) {
      const std::vector<double> c = count(BalanceLoss::Counts::all_choices, begin, end);
      const std::vector<T> p = given(BalanceLoss::Probs::normalised_scores, begin, end);
      const double tokens = twin::real(end - begin);
      for (size_t device = 0; device * size < experts_; ++device) {
        double f = 0, visitors = 0;
        T probability{};
        for (size_t e = device * size; e < (device + 1) * size; ++e) {
          f += twin::real(experts_) * c[e] / counted(c) / twin::real(size);
          probability += p[e];
        }
        for (size_t n = begin; n < end; ++n) {
          bool visits = false;
          for (size_t i = 0; i < slots_; ++i)
            visits |= out_.selected[n][i] && out_.choice[n][i] / size == device;
          visitors += visits;
        }
        if (communication) f = twin::real(d.devices) / twin::real(d.at_most) * visitors / tokens;
        loss += T(f * tokens / twin::real(tokens_)) * probability;
      }
    }
    return loss;
  }

  // Shazeer's: the chance that e is among the token's k when its noise alone is drawn anew, that
  // is, that it beats the k-th of the others.
  T load() {
    using std::erf;
    std::vector<T> sum(experts_);
    for (size_t n = 0; n < tokens_; ++n) {
      if (sigma_->empty() || slots_ == experts_) {
        for (size_t i = 0; i < slots_; ++i)
          sum[out_.choice[n][i]] += T(out_.selected[n][i] ? 1.0 : 0.0);
        continue;
      }
      const std::vector<T>& z = (*noisy_)[n];
      std::vector<double> key;
      for (const T& v : z) key.push_back(value_of(v));
      const std::vector<size_t> order = twin::falling(key);
      const T kth = z[order[slots_ - 1]], next = z[order[slots_]];
      decided_by(value_of(kth) - value_of(next));
      for (size_t e = 0; e < experts_; ++e) {
        const T against = value_of(z[e]) > value_of(next) ? next : kth;
        sum[e] +=
            T(0.5) *
            (T(1.0) + erf(((*clean_)[n][e] - against) / (*sigma_)[n][e] / T(std::numbers::sqrt2)));
      }
    }
    return twin::cv2(sum);
  }

  RoutingSpec spec_;
  TwinRouterInput in_;
  size_t experts_, slots_, tokens_ = 0;
  const Matrix<T>*clean_ = nullptr, *sigma_ = nullptr, *noisy_ = nullptr;  // [N][E], the caller's
  Matrix<T> scores_;                                                       // [N][E]
  const std::vector<T>* scale_ = nullptr;                                  // [E], the caller's
  TwinRoute<T> out_;
};

}  // namespace moe::test
