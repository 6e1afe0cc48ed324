// The scalar twin of a whole model: loops, no vectors of vectors cleverness, templated on the number type. With T = Dual<double> one run gives the exact
// derivative of the loss along one parameter, so every gradient of the engine is checked against it entry by entry. Independent of src/moe and src/model
// but for ModelConfig, RoutingSpec (data) and the counter-based random numbers, which are part of the definition.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <string>
#include <vector>

#include "model/config.h"
#include "support/dual.h"

namespace moe::test {

template <class T>
using Matrix = std::vector<std::vector<T>>;  // [rows][cols]

struct TwinInput {
  std::vector<int32_t> ids, positions, targets;
  std::vector<int64_t> bounds;
  RngKey key;  // of the step; empty: no randomness
};

template <class T>
struct TwinOutput {
  T loss{};  // mean CE + coefficients * mean over MoE layers
  double ce = 0, balance = 0, z = 0;
  int64_t dropped = 0;
  double smallest_margin = 1e30;  // between the k-th and the next score
  Matrix<T> logits;
};

template <class T>
class TwinModel {
 public:
  TwinModel(const ModelConfig& config, const RoutingSpec& routing, std::map<std::string, std::vector<T>> params)
      : c_(config), routing_(routing), p_(std::move(params)) {}

  TwinOutput<T> run(const TwinInput& in, double balance_coef, double z_coef) {
    using std::exp, std::log;
    out_ = {};
    in_ = &in;
    Matrix<T> h = rows(in.ids, p("embed.weight"));
    if (c_.positions == Positions::learned) h = add(h, rows(in.positions, p("positions.weight")));
    h = drop(h, fold(1u << 20));
    T balance{}, z{};
    for (int64_t layer = 0; layer < c_.layers; ++layer) h = block(h, layer, balance, z);
    if (c_.norm_placement == NormPlacement::pre) h = norm(h, "final_norm");
    out_.logits = linear(h, p(c_.tied ? "embed.weight" : "head.weight"), c_.vocab, 0, nullptr);
    T ce{};
    for (size_t n = 0; n < h.size(); ++n) ce += lse(out_.logits[n]) - out_.logits[n][static_cast<size_t>(in.targets[n])];
    ce /= T(static_cast<double>(h.size()));
    const double moe_layers = std::max<double>(1, static_cast<double>(c_.moe_layer_count()));
    out_.ce = value_of(ce);
    out_.balance = value_of(balance) / moe_layers;
    out_.z = value_of(z) / moe_layers;
    out_.loss = ce + T(balance_coef / moe_layers) * balance + T(z_coef / moe_layers) * z;
    return out_;
  }

 private:
  const std::vector<T>& p(const std::string& name) const { return p_.at(name); }
  const std::vector<T>* maybe(const std::string& name) const { return p_.count(name) ? &p_.at(name) : nullptr; }
  RngKey fold(uint64_t part) const { return in_->key.empty() ? RngKey{} : in_->key.fold(part); }

  static T lse(const std::vector<T>& x) {
    using std::exp, std::log;
    double top = value_of(x[0]);
    for (const T& v : x) top = std::max(top, value_of(v));
    T sum{};
    for (const T& v : x) sum += exp(v - T(top));
    return T(top) + log(sum);
  }
  static std::vector<T> softmax(const std::vector<T>& x) {
    using std::exp;
    const T l = lse(x);
    std::vector<T> y;
    for (const T& v : x) y.push_back(exp(v - l));
    return y;
  }
  static T sigmoid(T x) {
    using std::exp;
    return T(1.0) / (T(1.0) + exp(-x));
  }
  static Matrix<T> add(Matrix<T> a, const Matrix<T>& b) {
    for (size_t n = 0; n < a.size(); ++n)
      for (size_t d = 0; d < a[n].size(); ++d) a[n][d] += b[n][d];
    return a;
  }
  Matrix<T> rows(const std::vector<int32_t>& ids, const std::vector<T>& table) const {
    const auto d = static_cast<size_t>(c_.width);
    Matrix<T> y;
    for (int32_t id : ids)
      y.emplace_back(table.begin() + static_cast<long>(static_cast<size_t>(id) * d), table.begin() + static_cast<long>((static_cast<size_t>(id) + 1) * d));
    return y;
  }
  // y = x W_e^T (+ b_e) with W [.., out, in] at expert e
  static Matrix<T> linear(const Matrix<T>& x, const std::vector<T>& w, int64_t out, int64_t e, const std::vector<T>* bias) {
    Matrix<T> y(x.size(), std::vector<T>(static_cast<size_t>(out)));
    for (size_t n = 0; n < x.size(); ++n)
      for (size_t o = 0; o < static_cast<size_t>(out); ++o) {
        const size_t in = x[n].size(), row = static_cast<size_t>(e * out) + o;
        T sum = bias ? (*bias)[row] : T{};
        for (size_t i = 0; i < in; ++i) sum += x[n][i] * w[row * in + i];
        y[n][o] = sum;
      }
    return y;
  }
  std::vector<T> norm_row(const std::vector<T>& x, const std::vector<T>& weight, const std::vector<T>* bias, NormKind kind) const {
    using std::sqrt;
    const T count = T(static_cast<double>(x.size()));
    T mean{}, square{};
    if (kind == NormKind::layer) {
      for (const T& v : x) mean += v;
      mean /= count;
    }
    for (const T& v : x) square += (v - mean) * (v - mean);
    const T scale = T(1.0) / sqrt(square / count + T(static_cast<double>(c_.norm_eps)));
    std::vector<T> y;
    for (size_t d = 0; d < x.size(); ++d) y.push_back((x[d] - mean) * scale * weight[d] + (bias ? (*bias)[d] : T{}));
    return y;
  }
  Matrix<T> norm(const Matrix<T>& x, const std::string& name) const {
    Matrix<T> y;
    for (const auto& row : x) y.push_back(norm_row(row, p(name + ".weight"), maybe(name + ".bias"), c_.norm));
    return y;
  }
  // The engine's definition: entry i = r * D + c is kept where word i mod 4 of philox at counter i / 4, as a number in [0, 1), is at least p.
  Matrix<T> drop(Matrix<T> x, RngKey key) const {
    if (c_.dropout == 0 || key.empty()) return x;
    for (size_t n = 0; n < x.size(); ++n)
      for (size_t d = 0; d < x[n].size(); ++d) {
        const size_t i = n * x[n].size() + d;
        const double u = static_cast<double>(philox(key, i / 4)[i % 4] >> 8) * 0x1p-24;
        x[n][d] *= T(u >= static_cast<double>(c_.dropout) ? 1.0 / (1.0 - static_cast<double>(c_.dropout)) : 0.0);
      }
    return x;
  }

  Matrix<T> block(const Matrix<T>& h, int64_t layer, T& balance, T& z) {
    const std::string name = "layers." + std::to_string(layer) + ".";
    const bool pre = c_.norm_placement == NormPlacement::pre;
    const RngKey key = fold(static_cast<uint64_t>(layer));
    const auto site = [&](uint64_t s) { return key.empty() ? RngKey{} : key.fold(s); };
    Matrix<T> u = add(h, drop(attention(pre ? norm(h, name + "norm1") : h, name + "attn."), site(0)));
    if (!pre) u = norm(u, name + "norm1");
    Matrix<T> y = add(u, drop(ffn(pre ? norm(u, name + "norm2") : u, name + "ffn.", layer, site(2), balance, z), site(1)));
    return pre ? y : norm(y, name + "norm2");
  }

  // Queries or keys of all heads, normalised and rotated.
  Matrix<T> project(const Matrix<T>& x, const std::string& name, const char* which, int64_t out, bool norm_and_rotate) const {
    Matrix<T> y = linear(x, p(name + which + ".weight"), out, 0, maybe(name + which + ".bias"));
    if (!norm_and_rotate) return y;
    const auto width = static_cast<size_t>(c_.head_width);
    if (c_.qk_norm != QkNorm::none) {
      const std::vector<T>& weight = p(name + which + "_norm.weight");
      for (auto& row : y)
        for (size_t begin = 0; begin < row.size(); begin += weight.size()) {
          const auto part = norm_row(std::vector<T>(row.begin() + static_cast<long>(begin), row.begin() + static_cast<long>(begin + weight.size())), weight,
                                     nullptr, NormKind::rms);
          std::copy(part.begin(), part.end(), row.begin() + static_cast<long>(begin));
        }
    }
    if (c_.positions != Positions::rope) return y;
    for (size_t n = 0; n < y.size(); ++n)
      for (size_t head = 0; head < y[n].size(); head += width)
        for (size_t i = 0; i < width / 2; ++i) {
          const double angle = in_->positions[n] * std::pow(static_cast<double>(c_.rope_theta), -2.0 * static_cast<double>(i) / static_cast<double>(width));
          T &a = y[n][head + i], &b = y[n][head + i + width / 2];
          const T a0 = a, b0 = b;
          a = a0 * T(std::cos(angle)) - b0 * T(std::sin(angle));
          b = b0 * T(std::cos(angle)) + a0 * T(std::sin(angle));
        }
    return y;
  }

  Matrix<T> attention(const Matrix<T>& x, const std::string& name) const {
    const Matrix<T> q = project(x, name, "q", c_.q_width(), true), k = project(x, name, "k", c_.kv_width(), true),
                    v = project(x, name, "v", c_.kv_width(), false);
    const auto width = static_cast<size_t>(c_.head_width);
    const auto group = static_cast<size_t>(c_.heads / c_.kv_heads);
    Matrix<T> o(x.size(), std::vector<T>(static_cast<size_t>(c_.q_width())));
    for (size_t s = 0; s + 1 < in_->bounds.size(); ++s)
      for (auto n = static_cast<size_t>(in_->bounds[s]); n < static_cast<size_t>(in_->bounds[s + 1]); ++n)
        for (size_t head = 0; head < static_cast<size_t>(c_.heads); ++head) {
          const size_t begin = static_cast<size_t>(in_->bounds[s]), kv = head / group * width;
          std::vector<T> scores;
          for (size_t m = begin; m <= n; ++m) {
            T dot{};
            for (size_t i = 0; i < width; ++i) dot += q[n][head * width + i] * k[m][kv + i];
            scores.push_back(dot / T(std::sqrt(static_cast<double>(width))));
          }
          const std::vector<T> weights = softmax(scores);
          for (size_t m = begin; m <= n; ++m)
            for (size_t i = 0; i < width; ++i) o[n][head * width + i] += weights[m - begin] * v[m][kv + i];
        }
    return linear(o, p(name + "o.weight"), c_.width, 0, maybe(name + "o.bias"));
  }

  T activate(T x) const {
    using std::erf, std::tanh;
    switch (c_.act) {
      case ops::Act::silu: return x * sigmoid(x);
      case ops::Act::gelu: return T(0.5) * x * (T(1.0) + erf(x / T(std::numbers::sqrt2)));
      case ops::Act::gelu_tanh: return T(0.5) * x * (T(1.0) + tanh(T(std::sqrt(2 / std::numbers::pi)) * (x + T(0.044715) * x * x * x)));
      case ops::Act::relu: return value_of(x) > 0 ? x : T{};
    }
    return x;
  }
  std::vector<T> expert(const std::vector<T>& x, const std::string& name, int64_t e, int64_t width) const {
    const Matrix<T> in = {x};
    Matrix<T> hidden = linear(in, p(name + "up.weight"), width, e, maybe(name + "up.bias"));
    if (c_.gated) {
      const Matrix<T> gate = linear(in, p(name + "gate.weight"), width, e, maybe(name + "gate.bias"));
      for (size_t f = 0; f < hidden[0].size(); ++f) hidden[0][f] *= activate(gate[0][f]);
    } else {
      for (T& v : hidden[0]) v = activate(v);
    }
    return linear(hidden, p(name + "down.weight"), c_.width, e, maybe(name + "down.bias"))[0];
  }

  Matrix<T> ffn(const Matrix<T>& x, const std::string& name, int64_t layer, RngKey key, T& balance, T& z) {
    Matrix<T> y(x.size(), std::vector<T>(static_cast<size_t>(c_.width)));
    const auto add_to = [&](size_t n, T weight, const std::vector<T>& what) {
      for (size_t d = 0; d < what.size(); ++d) y[n][d] += weight * what[d];
    };
    if (!c_.is_moe(layer)) {
      for (size_t n = 0; n < x.size(); ++n) add_to(n, T(1.0), expert(x[n], name + "experts.", 0, c_.dense_width));
      return y;
    }
    std::vector<std::vector<int64_t>> choice;
    Matrix<T> weights;
    route(x, name, key, choice, weights, balance, z);
    const std::vector<std::vector<bool>> kept = keep(choice);
    for (size_t n = 0; n < x.size(); ++n)
      for (size_t i = 0; i < choice[n].size(); ++i)
        if (kept[n][i]) add_to(n, weights[n][i], expert(x[n], name + "experts.", choice[n][i], c_.expert_width));
    if (c_.shared_experts == 0) return y;
    for (size_t n = 0; n < x.size(); ++n) {
      const T weight = c_.shared_gate ? sigmoid(linear({x[n]}, p(name + "shared_gate.weight"), 1, 0, nullptr)[0][0]) : T(1.0);
      add_to(n, weight, expert(x[n], name + "shared.", 0, c_.shared_experts * c_.shared_width));
    }
    return y;
  }

  void route(Matrix<T> x, const std::string& name, RngKey key, std::vector<std::vector<int64_t>>& choice, Matrix<T>& weights, T& balance, T& z) {
    using std::exp, std::log;
    const int64_t experts = routing_.experts, k = routing_.top_k();
    if (const auto* jitter = std::get_if<InputJitter>(&routing_.noise); jitter && !key.empty())
      for (size_t n = 0; n < x.size(); ++n)
        for (size_t d = 0; d < x[n].size(); ++d) x[n][d] *= T(1.0 - jitter->eps + 2.0 * jitter->eps * uniform(key, n * x[n].size() + d));
    Matrix<T> logits = linear(x, p(name + "router.weight"), experts, 0, nullptr);
    if (const auto* noise = std::get_if<LearnedNoise>(&routing_.noise); noise && !key.empty()) {
      const Matrix<T> raw = linear(x, p(name + "router.noise.weight"), experts, 0, nullptr);
      for (size_t n = 0; n < x.size(); ++n)
        for (size_t e = 0; e < static_cast<size_t>(experts); ++e)
          logits[n][e] += (log(T(1.0) + exp(raw[n][e])) + T(static_cast<double>(noise->floor))) * T(normal(key, n * static_cast<size_t>(experts) + e));
    }
    Matrix<T> scores, probs(x.size(), std::vector<T>(static_cast<size_t>(experts)));
    const auto* loss = std::get_if<BalanceLoss>(&routing_.balance);
    std::vector<double> share(static_cast<size_t>(experts));
    for (size_t n = 0; n < x.size(); ++n) {
      const T l = lse(logits[n]);
      z += l * l / T(static_cast<double>(x.size()));
      scores.push_back(logits[n]);
      if (std::holds_alternative<SoftmaxScore>(routing_.score)) scores[n] = softmax(logits[n]);
      if (std::holds_alternative<SigmoidScore>(routing_.score))
        for (T& s : scores[n]) s = sigmoid(s);
      choose(scores[n], k, choice, weights);
      if (!loss) continue;
      const bool chosen_only = loss->probs == BalanceLoss::Probs::chosen_weights;
      if (!chosen_only) probs[n] = scores[n];
      const size_t counted = loss->counts == BalanceLoss::Counts::first_choice ? 1 : static_cast<size_t>(k);
      for (size_t i = 0; i < static_cast<size_t>(k); ++i) {
        const auto e = static_cast<size_t>(choice[n][i]);
        if (chosen_only) probs[n][e] = weights[n][i];
        if (i < counted) share[e] += 1.0 / static_cast<double>(counted * x.size());
      }
    }
    if (!loss) return;
    for (size_t n = 0; n < x.size(); ++n)
      for (size_t e = 0; e < static_cast<size_t>(experts); ++e)
        balance += T(static_cast<double>(experts) * share[e] / static_cast<double>(x.size())) * probs[n][e];
  }

  void choose(const std::vector<T>& scores, int64_t k, std::vector<std::vector<int64_t>>& choice, Matrix<T>& weights) {
    using std::exp;
    std::vector<int64_t> order(scores.size());
    for (size_t e = 0; e < order.size(); ++e) order[e] = static_cast<int64_t>(e);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return value_of(scores[static_cast<size_t>(a)]) > value_of(scores[static_cast<size_t>(b)]); });
    if (static_cast<size_t>(k) < order.size())
      out_.smallest_margin = std::min(out_.smallest_margin, value_of(scores[static_cast<size_t>(order[static_cast<size_t>(k) - 1])]) -
                                                                value_of(scores[static_cast<size_t>(order[static_cast<size_t>(k)])]));
    order.resize(static_cast<size_t>(k));
    std::vector<T> w;
    T sum{};
    for (int64_t e : order) {
      w.push_back(scores[static_cast<size_t>(e)]);
      sum += w.back();
    }
    if (const auto* stage = std::get_if<ChosenScores>(&routing_.weigh)) {
      for (T& v : w) v = T(static_cast<double>(stage->scale)) * (stage->renormalise ? v / sum : v);
    } else {
      w = softmax(w);
    }
    choice.push_back(order);
    weights.push_back(w);
  }

  std::vector<std::vector<bool>> keep(const std::vector<std::vector<int64_t>>& choice) {
    const size_t tokens = choice.size(), k = choice[0].size();
    std::vector<std::vector<bool>> kept(tokens, std::vector<bool>(k, true));
    const auto* buffer = std::get_if<BufferCapacity>(&routing_.capacity);
    if (!buffer) return kept;
    auto slots = static_cast<int64_t>(std::floor(static_cast<double>(buffer->factor) * static_cast<double>((buffer->count_choices ? k : 1) * tokens) /
                                                 static_cast<double>(routing_.experts)));
    if (buffer->rounding == BufferCapacity::Rounding::floor_to_even && slots % 2) ++slots;
    slots = std::max(slots, buffer->minimum);
    std::vector<std::pair<size_t, size_t>> order;  // (token, rank) in order of placement
    for (size_t a = 0; a < tokens * k; ++a) order.emplace_back(a / k, a % k);
    if (buffer->order == BufferCapacity::Order::choice_major) std::stable_sort(order.begin(), order.end(), [](auto a, auto b) { return a.second < b.second; });
    std::map<int64_t, int64_t> used;
    for (auto [n, i] : order) {
      kept[n][i] = used[choice[n][i]]++ < slots;
      out_.dropped += !kept[n][i];
    }
    return kept;
  }

  ModelConfig c_;
  RoutingSpec routing_;
  std::map<std::string, std::vector<T>> p_;
  const TwinInput* in_ = nullptr;
  TwinOutput<T> out_;
};

}  // namespace moe::test
