// The scalar twin of a whole model: loops, no vectors of vectors cleverness, templated on the
// number type. With T = Dual<double> one run gives the exact derivative of the loss along one
// parameter, so every gradient of the engine is checked against it entry by entry. Independent of
// src/moe and src/model but for ModelConfig, RoutingSpec (data) and the counter-based random
// numbers, which are part of the definition.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/norm_places.h"
#include "model/rope.h"
#include "support/twin_act.h"
#include "support/twin_gates.h"
#include "support/twin_linear.h"
#include "support/twin_router.h"
#include "support/twin_shared_attention.h"
#include "support/twin_xielu.h"

namespace moe::test {

struct TwinInput {
  std::vector<int32_t> ids, positions, targets;  // a target below 0 is not predicted
  std::vector<int64_t> bounds;
  RngKey key;                                     // of the step; empty: no randomness
  std::vector<std::vector<int64_t>> step_counts;  // [E] for each MoE layer; empty: none known
  // [N][K] for each MoE layer; empty: the routers choose
  std::vector<std::vector<std::vector<TwinEntry>>> recorded = {};
};

template <class T>
struct TwinOutput {
  T loss{};  // mean CE + coefficients * mean over MoE layers
  double ce = 0;
  RoutingLosses losses;  // means over MoE layers
  int64_t dropped = 0;
  double smallest_margin = 1e30;     // TwinRoute::margin
  std::vector<TwinRoute<T>> routes;  // MoE layers in order
  Matrix<T> logits;
};

template <class T>
class TwinModel {
 public:
  // `params` must outlive the twin.
  TwinModel(const ModelConfig& config, const RoutingSpec& routing,
            const std::map<std::string, std::vector<T>>& params)
      : c_(config), routing_(routing), p_(params) {}

  TwinOutput<T> run(const TwinInput& in, const RoutingLosses& coef) {
    out_ = {};
    in_ = &in;
    Matrix<T> h = scaled(rows(in.ids, p("embed.weight")), c_.multipliers.embedding);
    if (c_.positions == Positions::learned) h = add(h, rows(in.positions, p("positions.weight")));
    if (c_.embedding_norm) divide_by_rms(h, static_cast<size_t>(c_.width));
    h = drop(h, fold(1u << 20));
    if (c_.hyper.present()) h = repeated(h);
    for (int64_t layer = 0; layer < c_.layers; ++layer) h = block(h, layer);
    if (c_.hyper.present()) h = collapsed(h, weights_of_streams(h, "end_streams"));
    if (has_final_norm(c_)) h = norm(h, "final_norm");
    h = scaled(h, 1 / c_.multipliers.logits);
    out_.logits =
        linear(h, p(c_.tied ? "embed.weight" : "head.weight"), c_.vocab, 0, maybe("head.bias"));
    if (c_.logit_cap > 0)
      for (auto& row : out_.logits)
        for (T& v : row) v = capped(v, c_.logit_cap);
    T ce{};
    int64_t predicted = 0;
    for (size_t n = 0; n < h.size(); ++n) {
      if (in.targets[n] < 0) continue;
      ce += twin::lse(out_.logits[n]) - out_.logits[n][static_cast<size_t>(in.targets[n])];
      ++predicted;
    }
    ce /= T(static_cast<double>(predicted));
    out_.ce = value_of(ce);
    out_.loss = ce;
    add_losses(coef);
    return out_;
  }

 private:
  const std::vector<T>& p(const std::string& name) const { return p_.at(name); }
  const std::vector<T>* maybe(const std::string& name) const {
    return p_.count(name) ? &p_.at(name) : nullptr;
  }
  static T capped(T x, float below) {
    using std::tanh;
    const T cap(static_cast<double>(below));
    return cap * tanh(x / cap);
  }
  RngKey fold(uint64_t part) const { return in_->key.empty() ? RngKey{} : in_->key.fold(part); }

  static Matrix<T> add(Matrix<T> a, const Matrix<T>& b) {
    for (size_t n = 0; n < a.size(); ++n)
      for (size_t d = 0; d < a[n].size(); ++d) a[n][d] += b[n][d];
    return a;
  }
  Matrix<T> rows(const std::vector<int32_t>& ids, const std::vector<T>& table) const {
    const auto d = static_cast<size_t>(c_.width);
    Matrix<T> y;
    for (int32_t id : ids)
      y.emplace_back(table.begin() + static_cast<long>(static_cast<size_t>(id) * d),
                     table.begin() + static_cast<long>((static_cast<size_t>(id) + 1) * d));
    return y;
  }
  // y = x W_e^T (+ b_e) with W [.., out, in] at expert e
  static Matrix<T> linear(const Matrix<T>& x, const std::vector<T>& w, int64_t out, int64_t e,
                          const std::vector<T>* bias) {
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
  std::vector<T> norm_row(const std::vector<T>& x, const std::vector<T>& weight,
                          const std::vector<T>* bias, NormKind kind, bool counts_from_one,
                          float own_eps = 0) const {
    using std::sqrt;
    const float eps = own_eps > 0 ? own_eps : c_.norm_eps;
    const T count = T(static_cast<double>(x.size()));
    T mean{}, square{};
    if (kind == NormKind::layer) {
      for (const T& v : x) mean += v;
      mean /= count;
    }
    for (const T& v : x) square += (v - mean) * (v - mean);
    const T scale = T(1.0) / sqrt(square / count + T(static_cast<double>(eps)));
    std::vector<T> y;
    for (size_t d = 0; d < x.size(); ++d)
      y.push_back((x[d] - mean) * scale * (weight[d] + T(counts_from_one ? 1.0 : 0.0)) +
                  (bias ? (*bias)[d] : T{}));
    return y;
  }
  Matrix<T> norm(const Matrix<T>& x, const std::string& name) const {
    Matrix<T> y;
    const std::vector<T> weight = norm_weight(name, static_cast<size_t>(c_.width));
    for (const auto& row : x)
      y.push_back(norm_row(row, weight, maybe(name + ".bias"), c_.norm, c_.norm_offset));
    return y;
  }
  // What a norm before a sublayer gives, times the sigmoids of a gate that is made of it, where
  // there is one: `gate` is what its two matrices are called.
  Matrix<T> gated_norm(const Matrix<T>& x, const std::string& name, const char* gate) const {
    Matrix<T> y = norm(x, name);
    const std::string of = name + "." + gate;
    const std::vector<T>*down = maybe(of + "_gate_down.weight"),
          *up = maybe(of + "_gate_up.weight");
    if (down == nullptr) return y;
    Matrix<T> low = linear(y, *down, c_.norm_gate, 0, nullptr);
    for (auto& row : low)
      for (T& v : row) v = v * twin::sigmoid(v);
    const Matrix<T> z = linear(low, *up, c_.width, 0, nullptr);
    for (size_t n = 0; n < y.size(); ++n)
      for (size_t d = 0; d < y[n].size(); ++d) y[n][d] *= twin::sigmoid(z[n][d]);
    return y;
  }
  // Of norms without weights: ones.
  std::vector<T> norm_weight(const std::string& name, size_t width) const {
    return c_.norm_weights ? p(name + ".weight") : std::vector<T>(width, T(1.0));
  }
  // The engine's definition: entry i = r * D + c is kept where word i mod 4 of philox at counter i
  // / 4, as a number in [0, 1), is at least p.
  Matrix<T> drop(Matrix<T> x, RngKey key) const {
    if (c_.dropout == 0 || key.empty()) return x;
    for (size_t n = 0; n < x.size(); ++n)
      for (size_t d = 0; d < x[n].size(); ++d) {
        const size_t i = n * x[n].size() + d;
        const double u = static_cast<double>(philox(key, i / 4)[i % 4] >> 8) * 0x1p-24;
        x[n][d] *=
            T(u >= static_cast<double>(c_.dropout) ? 1.0 / (1.0 - static_cast<double>(c_.dropout))
                                                   : 0.0);
      }
    return x;
  }

  static Matrix<T> scaled(Matrix<T> x, float by) {
    for (auto& row : x)
      for (T& v : row) v *= T(static_cast<double>(by));
    return x;
  }

  Matrix<T> block(const Matrix<T>& h, int64_t layer) {
    const std::string name = "layers." + std::to_string(layer) + ".";
    const bool both = c_.norm_placement == NormPlacement::both,
               apart = c_.states_pre_norm && c_.mixer(layer) == Mixer::attention,
               pre = both || c_.norm_placement == NormPlacement::pre ||
                     (c_.states_pre_norm && !apart),
               post = c_.norm_placement == NormPlacement::post;
    const RngKey key = fold(static_cast<uint64_t>(layer));
    const auto site = [&](uint64_t s) { return key.empty() ? RngKey{} : key.fold(s); };
    const auto layer_scaled = [&](const Matrix<T>& out) {
      const std::vector<T>* scale = maybe(name + "layer_scale");
      return scale ? scaled(out, static_cast<float>(value_of((*scale)[0]))) : out;
    };
    if (c_.hyper.present()) {
      const Matrix<T> u = between_streams(h, name + "streams1", site(0), [&](const Matrix<T>& x) {
        return mixed(norm(x, name + "norm1"), name, layer);
      });
      return between_streams(u, name + "streams2", site(1), [&](const Matrix<T>& x) {
        return ffn(norm(x, name + "norm2"), x, name + "ffn.", layer, site(2));
      });
    }
    if (is_beside(c_.norm_placement)) {
      const auto added = [&](const Matrix<T>& y, uint64_t s) {
        return scaled(drop(y, site(s)), c_.multipliers.residual);
      };
      const bool each = c_.norm_placement == NormPlacement::beside_each;
      const Matrix<T> x = norm(h, name + "norm1"), seen = each ? norm(h, name + "norm2") : x,
                      with_attention = add(h, added(mixed(x, name, layer), 0));
      return layer_scaled(
          add(with_attention, added(ffn(seen, h, name + "ffn.", layer, site(2)), 1)));
    }
    if (c_.norm_placement == NormPlacement::carried) {
      const auto sum = [&](const Matrix<T>& x, const Matrix<T>& y, Multipliers::Sum by,
                           uint64_t s) {
        return add(scaled(x, by.kept), scaled(drop(y, site(s)), by.added));
      };
      Matrix<T> u = h;
      if (c_.mixes(layer)) {
        const Matrix<T> x = norm(h, name + "norm1");
        u = sum(x, mixed(x, name, layer),
                c_.mixer(layer) == Mixer::lightning ? c_.multipliers.lightning_sum
                                                    : c_.multipliers.attention_sum,
                0);
      }
      if (!c_.has_ffn(layer)) return layer_scaled(u);
      const Matrix<T> x = norm(u, name + "norm2");
      return layer_scaled(
          sum(x, ffn(x, u, name + "ffn.", layer, site(2)), c_.multipliers.ffn_sum, 1));
    }
    const auto joined = [&](const Matrix<T>& x, const Matrix<T>& y, const char* of, bool own,
                            uint64_t s) {
      const std::string behind = name + of + (own ? "_out" : "");
      const Matrix<T> sum =
          add(x, scaled(drop(!own && (pre || post) ? y : norm(y, behind), site(s)),
                        c_.multipliers.residual));
      return post ? norm(sum, name + of) : sum;
    };
    const Matrix<T> u =
        c_.mixes(layer)
            ? joined(h, mixed(pre ? gated_norm(h, name + "norm1", "mix") : h, name, layer), "norm1",
                     both || apart, 0)
            : h;
    if (!c_.has_ffn(layer)) return layer_scaled(u);
    const Matrix<T> out = joined(
        u, ffn(pre ? gated_norm(u, name + "norm2", "ffn") : u, u, name + "ffn.", layer, site(2)),
        "norm2", apart || has_ffn_out_norm(c_, layer), 1);
    if (c_.shortcut && !c_.is_moe(layer) && layer > 0 && c_.is_moe(layer - 1))
      return add(out, late_);
    return layer_scaled(out);
  }

  // Each stream of a token begins with what the embedding gave.
  Matrix<T> repeated(const Matrix<T>& h) const {
    Matrix<T> all(h.size());
    for (size_t n = 0; n < h.size(); ++n)
      for (int64_t s = 0; s < c_.hyper.streams; ++s)
        all[n].insert(all[n].end(), h[n].begin(), h[n].end());
    return all;
  }
  // Of each token pre, post and comb, as many as there are scales.
  Matrix<T> weights_of_streams(const Matrix<T>& h, const std::string& name) const {
    using std::exp;
    const std::vector<T>&base = p(name + ".base"), &scale = p(name + ".scale");
    const auto streams = static_cast<size_t>(c_.hyper.streams);
    const T eps(static_cast<double>(c_.hyper.eps));
    Matrix<T> normed = h;
    divide_by_rms(normed, h[0].size());
    Matrix<T> w =
        linear(normed, p(name + ".weight"), static_cast<int64_t>(base.size()), 0, nullptr);
    for (auto& row : w) {
      for (size_t i = 0; i < row.size(); ++i)
        row[i] = scale[std::min(i / streams, size_t{2})] * row[i] + base[i];
      for (size_t i = 0; i < std::min(row.size(), 2 * streams); ++i)
        row[i] = i < streams ? twin::sigmoid(row[i]) + eps
                             : T(static_cast<double>(c_.hyper.magnitude)) * twin::sigmoid(row[i]) +
                                   (c_.hyper.mixes ? T{} : eps);
      if (row.size() == 2 * streams || row.size() == streams) continue;
      const auto at = [&](size_t j, size_t k) -> T& { return row[(2 + j) * streams + k]; };
      for (size_t j = 0; j < streams; ++j) {
        T sum{};
        for (size_t k = 0; k < streams; ++k) sum += at(j, k) = exp(at(j, k));
        for (size_t k = 0; k < streams; ++k) at(j, k) = at(j, k) / sum + eps;
      }
      for (int64_t step = 1; step < 2 * c_.hyper.rounds; ++step)
        for (size_t i = 0; i < streams; ++i) {
          T sum = eps;
          for (size_t k = 0; k < streams; ++k) sum += step % 2 == 1 ? at(k, i) : at(i, k);
          for (size_t k = 0; k < streams; ++k) (step % 2 == 1 ? at(k, i) : at(i, k)) /= sum;
        }
    }
    return w;
  }
  Matrix<T> collapsed(const Matrix<T>& h, const Matrix<T>& w) const {
    const auto d = static_cast<size_t>(c_.width);
    Matrix<T> x(h.size(), std::vector<T>(d));
    for (size_t n = 0; n < h.size(); ++n)
      for (size_t i = 0; i < h[n].size(); ++i) x[n][i % d] += w[n][i / d] * h[n][i];
    return x;
  }
  // A sublayer between streams; `of`: what it makes of what it sees.
  template <class F>
  Matrix<T> between_streams(const Matrix<T>& h, const std::string& name, RngKey key, F&& of) const {
    const auto d = static_cast<size_t>(c_.width), streams = static_cast<size_t>(c_.hyper.streams);
    const Matrix<T> w = weights_of_streams(h, name), y = drop(of(collapsed(h, w)), key);
    Matrix<T> out = h;
    for (size_t n = 0; n < h.size(); ++n)
      for (size_t i = 0; i < h[n].size(); ++i) {
        const size_t k = i / d;
        if (c_.hyper.mixes) {
          out[n][i] = T{};
          for (size_t j = 0; j < streams; ++j)
            out[n][i] += w[n][(2 + j) * streams + k] * h[n][j * d + i % d];
        }
        out[n][i] += w[n][streams + k] * y[n][i % d];
      }
    return out;
  }

  // Queries or keys of all heads, normalised, the first `turning` numbers of a head rotated;
  // values.
  Matrix<T> project(const Matrix<T>& x, const std::string& name, const char* which, int64_t out,
                    bool norm_and_rotate, int64_t turning, bool in_window = false) const {
    Matrix<T> y = linear(x, p(name + which + ".weight"), out, 0, maybe(name + which + ".bias"));
    if (!norm_and_rotate) return y;
    const auto width = static_cast<size_t>(head_width(in_window));
    const bool normed = c_.qk_norm != QkNorm::bare || turning > 0;
    if (normed && !c_.qk_norm_turned) normalise(y, name + which + "_norm", width);
    clip(y);
    turn(y, turning, in_window);
    if (which[0] == 'q' && !(c_.query_growth.where_still && turning > 0)) grow(y);
    if (normed && c_.qk_norm_turned) normalise(y, name + which + "_norm", width);
    return y;
  }

  void clip(Matrix<T>& y) const {
    const auto limit = static_cast<double>(c_.qkv_clip);
    for (auto& row : y)
      for (T& x : row)
        if (limit > 0 && std::abs(value_of(x)) > limit) x = T(value_of(x) > 0 ? limit : -limit);
  }

  // `width`: of a head.
  void normalise(Matrix<T>& y, const std::string& name, size_t width) const {
    if (c_.qk_norm == QkNorm::none) return;
    const std::vector<T> weight = c_.qk_norm == QkNorm::bare
                                      ? std::vector<T>(width, T(c_.norm_offset ? 0.0 : 1.0))
                                      : norm_weight(name, width);
    for (auto& row : y)
      for (size_t begin = 0; begin < row.size(); begin += weight.size()) {
        const auto part =
            norm_row(std::vector<T>(row.begin() + static_cast<long>(begin),
                                    row.begin() + static_cast<long>(begin + weight.size())),
                     weight, nullptr, NormKind::rms, c_.norm_offset);
        std::copy(part.begin(), part.end(), row.begin() + static_cast<long>(begin));
      }
  }

  void turn(Matrix<T>& y, int64_t turning, bool in_window) const {
    if (turning == 0) return;
    const auto width = static_cast<size_t>(head_width(in_window));
    const bool own = in_window && c_.window_rope_theta > 0;  // `turning` is theirs too
    const ops::RopeFrequencies rope =
        own ? rope_frequencies(turning, c_.window_rope_theta, {})
            : rope_frequencies(turning, c_.rope_theta, c_.rope_scaling);
    const auto half = static_cast<size_t>(turning / 2);
    for (size_t n = 0; n < y.size(); ++n)
      for (size_t head = 0; head < y[n].size(); head += width)
        for (size_t i = 0; i < half; ++i) {
          const double angle = in_->positions[n] * rope.frequency[i];
          T &a = y[n][head + i], &b = y[n][head + i + half];
          const T a0 = a, b0 = b;
          a = a0 * T(rope.factor * std::cos(angle)) - b0 * T(rope.factor * std::sin(angle));
          b = b0 * T(rope.factor * std::cos(angle)) + a0 * T(rope.factor * std::sin(angle));
        }
  }

  // Queries times 1 + beta ln(1 + floor(position / context)), from 1 on where those of layers in
  // which nothing turns grow alone.
  void grow(Matrix<T>& q) const {
    const QueryGrowth& g = c_.query_growth;
    if (g.context == 0) return;
    for (size_t n = 0; n < q.size(); ++n) {
      const double at = in_->positions[n] + (g.where_still ? 1 : 0),
                   steps = std::floor(at / static_cast<double>(g.context));
      for (T& x : q[n]) x *= T(1 + static_cast<double>(g.beta) * std::log(1 + steps));
    }
  }

  int64_t head_width(bool in_window) const {
    return !in_window && c_.full.head_width > 0 ? c_.full.head_width : c_.head_width;
  }
  // Rows of `width`, one or several of which lie in a row of v, divided by their root mean square.
  void divide_by_rms(Matrix<T>& v, size_t width) const {
    for (auto& row : v)
      for (size_t begin = 0; begin < row.size(); begin += width) {
        const std::vector<T> head(row.begin() + static_cast<long>(begin),
                                  row.begin() + static_cast<long>(begin + width));
        const auto part =
            norm_row(head, std::vector<T>(width, T(1.0)), nullptr, NormKind::rms, false);
        std::copy(part.begin(), part.end(), row.begin() + static_cast<long>(begin));
      }
  }

  Matrix<T> attention(const Matrix<T>& x, const std::string& name, int64_t layer) const {
    const bool nope = std::count(c_.nope_layers.begin(), c_.nope_layers.end(), layer) > 0;
    const bool in_window = c_.has_window(layer);
    const int64_t heads = !in_window && c_.full.heads > 0 ? c_.full.heads : c_.heads,
                  wide = head_width(in_window), q_width = heads * wide,
                  said = in_window && c_.window_rotary_width > 0 ? c_.window_rotary_width
                                                                 : c_.rotary_width,
                  part = said > 0 ? said : wide,
                  turning = nope || c_.positions != Positions::rope ? 0 : part,
                  kv_heads = !in_window && c_.full.kv_heads > 0 ? c_.full.kv_heads : c_.kv_heads,
                  kv_width = kv_heads * wide,
                  value_wide = c_.value_width > 0 ? c_.value_width : wide;
    const Matrix<T> q = project(x, name, "q", q_width, true, turning, in_window),
                    k = project(x, name, "k", kv_width, true, turning, in_window);
    const bool of_keys = !in_window && c_.full.values_of_keys;
    Matrix<T> v = project(x, name, of_keys ? "k" : "v", kv_heads * value_wide, false, 0);
    const double scale = c_.multipliers.attention > 0
                             ? static_cast<double>(c_.multipliers.attention)
                             : 1 / std::sqrt(static_cast<double>(wide));
    const auto width = static_cast<size_t>(wide), value_width = static_cast<size_t>(value_wide);
    if (c_.value_norm) divide_by_rms(v, value_width);
    clip(v);
    v = scaled(v, c_.value_factor);
    const auto group = static_cast<size_t>(heads / kv_heads);
    Matrix<T> o(x.size(), std::vector<T>(static_cast<size_t>(heads * value_wide)));
    for (size_t s = 0; s + 1 < in_->bounds.size(); ++s)
      for (auto n = static_cast<size_t>(in_->bounds[s]);
           n < static_cast<size_t>(in_->bounds[s + 1]); ++n)
        for (size_t head = 0; head < static_cast<size_t>(heads); ++head) {
          const size_t whole = static_cast<size_t>(in_->bounds[s]),
                       window = c_.has_window(layer) ? static_cast<size_t>(c_.attention_window) : 0;
          const size_t slid = window > 0 && n + 1 > whole + window ? n + 1 - window : whole,
                       begin = window > 0 && c_.window_chunks
                                   ? whole + (n - whole) / window * window
                                   : slid,
                       shared = head / group, kv = shared * width;
          std::vector<T> scores;
          for (size_t m = begin; m <= n; ++m) {
            T dot{};
            for (size_t i = 0; i < width; ++i) dot += q[n][head * width + i] * k[m][kv + i];
            const T score = dot * T(scale);
            scores.push_back(c_.score_cap > 0 ? capped(score, c_.score_cap) : score);
          }
          if (const std::vector<T>* sinks = maybe(name + "sinks")) scores.push_back((*sinks)[head]);
          const std::vector<T> weights = twin::softmax(scores);
          for (size_t m = begin; m <= n; ++m)
            for (size_t i = 0; i < value_width; ++i)
              o[n][head * value_width + i] += weights[m - begin] * v[m][shared * value_width + i];
        }
    if (const std::vector<T>* gate = maybe(name + "o_gate.weight")) {
      const Matrix<T> z = linear(x, *gate, c_.head_gates ? heads : heads * value_wide, 0, nullptr);
      for (size_t n = 0; n < o.size(); ++n) o[n] = twin::head_gates(o[n], z[n], c_.gate_softplus);
    }
    return linear(o, p(name + "o.weight"), c_.width, 0, maybe(name + "o.bias"));
  }

  Matrix<T> mixed(const Matrix<T>& x, const std::string& name, int64_t layer) const {
    const auto attended = [&] {
      if (c_.latent.shared)
        return TwinSharedAttention<T>(c_, p_, in_->positions, in_->bounds)
            .run(x, name + "attn.", layer);
      return scaled(attention(x, name + "attn.", layer), c_.multipliers.attention_out);
    };
    switch (c_.mixer(layer)) {
      case Mixer::linear: return linear_attention(x, name + "linear.");
      case Mixer::conv: return gated_conv(x, name + "conv.");
      case Mixer::lightning: return lightning(x, name + "lightning.", layer);
      case Mixer::scan: {
        if (c_.scan.step_rank > 0) return selective_scan(x, name + "scan.");
        const Matrix<T> y = scaled(state_space(x, name + "scan."), c_.multipliers.scan_out);
        return c_.scan_beside ? add(y, attended()) : y;
      }
      default: return attended();
    }
  }

  Matrix<T> gated_conv(const Matrix<T>& x, const std::string& name) const {
    const auto made = [&](const char* what) {
      return linear(x, p(name + what + ".weight"), c_.width, 0, nullptr);
    };
    const auto times = [](Matrix<T> a, const Matrix<T>& b) {
      for (size_t n = 0; n < a.size(); ++n)
        for (size_t i = 0; i < a[n].size(); ++i) a[n][i] *= b[n][i];
      return a;
    };
    const Matrix<T> inner =
        twin::short_conv(times(made("b"), made("x")), p(name + "conv.weight"), in_->bounds, false);
    return linear(times(made("c"), inner), p(name + "o.weight"), c_.width, 0, nullptr);
  }

  Matrix<T> linear_attention(const Matrix<T>& x, const std::string& name) const {
    using std::exp, std::log;
    const LinearAttention& l = c_.linear;
    const auto made = [&](const char* what, int64_t width) {
      return linear(x, p(name + what + ".weight"), width, 0, nullptr);
    };
    // Of what decays and gates are made, where they are not made of the token.
    const auto through = [&](const char* in, const char* out, int64_t width) {
      return linear(made(in, l.gate_width), p(name + out + ".weight"), width, 0, nullptr);
    };
    const bool by_channel = l.gate_width > 0 || l.channel_decays, of_few = l.gate_width > 0;
    const int64_t decays = l.value_heads * l.key_width;
    Matrix<T> qkv = made("q", l.k_width()),
              decay = of_few       ? through("a_in", "a_out", decays)
                      : by_channel ? made("a_out", decays)
                                   : made("a", l.value_heads),
              strength = made("b", l.value_heads);
    const Matrix<T> k = made("k", l.k_width()), v = made("v", l.v_width()),
                    z = of_few ? through("z_in", "z", l.v_width()) : made("z", l.v_width());
    const size_t channels = by_channel ? static_cast<size_t>(l.key_width) : 1;
    for (size_t n = 0; n < x.size(); ++n) {
      for (const Matrix<T>* more : {&k, &v})
        qkv[n].insert(qkv[n].end(), (*more)[n].begin(), (*more)[n].end());
      for (size_t h = 0; h < decay[n].size(); ++h) {
        const T a = decay[n][h] + p(name + "dt_bias")[h],
                rate = exp(p(name + "a_log")[h / channels]);
        decay[n][h] = l.decay_floor < 0
                          ? T(static_cast<double>(l.decay_floor)) * twin::sigmoid(rate * a)
                          : -rate * log(T(1.0) + exp(a));
      }
      for (T& b : strength[n]) b = twin::sigmoid(b) * T(l.negative ? 2.0 : 1.0);
    }
    Matrix<T> o = twin::delta_rule(
        twin::short_conv(qkv, p(name + "conv.weight"), in_->bounds), decay, strength,
        {l.key_heads, l.value_heads, l.key_width, l.value_width, by_channel}, in_->bounds);
    const auto width = static_cast<size_t>(l.value_width);
    for (size_t n = 0; n < o.size(); ++n)
      for (size_t begin = 0; begin < o[n].size(); begin += width) {
        const auto first = o[n].begin() + static_cast<long>(begin);
        const std::vector<T> y =
            norm_row(std::vector<T>(first, first + static_cast<long>(width)),
                     p(name + "norm.weight"), nullptr, NormKind::rms, false, l.norm_eps);
        for (size_t i = 0; i < width; ++i)
          o[n][begin + i] =
              y[i] * (by_channel ? T(1.0) : z[n][begin + i]) * twin::sigmoid(z[n][begin + i]);
      }
    return linear(o, p(name + "o.weight"), c_.width, 0, nullptr);
  }

  Matrix<T> lightning(const Matrix<T>& x, const std::string& name, int64_t layer) const {
    const auto made = [&](const char* what) {
      return linear(x, p(name + what + ".weight"), c_.heads * c_.head_width, 0, nullptr);
    };
    const auto activated = [&](Matrix<T> rows) {
      for (auto& row : rows)
        for (T& v : row) v = activate(v);
      return rows;
    };
    Matrix<T> a = twin::lightning(activated(made("q")), activated(made("k")), activated(made("v")),
                                  c_.heads, layer, c_.layers, in_->bounds);
    const Matrix<T> z = made("z");
    for (size_t n = 0; n < a.size(); ++n) {
      a[n] = norm_row(a[n], p(name + "norm.weight"), nullptr, NormKind::rms, false,
                      c_.lightning_norm_eps);
      for (size_t i = 0; i < a[n].size(); ++i) a[n][i] *= twin::sigmoid(z[n][i]);
    }
    return linear(a, p(name + "o.weight"), c_.width, 0, nullptr);
  }

  Matrix<T> state_space(const Matrix<T>& x, const std::string& name) const {
    const StateSpace& s = c_.scan;
    const std::array<float, 5>& factors = c_.multipliers.scan_in;
    const auto made = [&](const char* what, int64_t width, float factor) {
      return scaled(linear(x, p(name + what + ".weight"), width, 0, nullptr), factor);
    };
    const std::vector<T>* bias = maybe(name + "conv.bias");
    Matrix<T> xbc = made("xbc", s.channels(), 1);
    for (auto& row : xbc)
      for (size_t i = 0; i < row.size(); ++i) {
        const auto at = static_cast<int64_t>(i), beyond = at - s.values();
        const size_t part = beyond < 0 ? 1 : beyond < s.groups * s.states ? 2 : 3;
        row[i] *= T(static_cast<double>(factors[part]));
      }
    const Matrix<T> seen = twin::short_conv(xbc, p(name + "conv.weight"), in_->bounds, true,
                                            bias ? *bias : std::vector<T>{}),
                    z = made("z", s.values(), factors[0]);
    Matrix<T> y = twin::state_space(seen, made("dt", s.heads, factors[4]), p(name + "a_log"),
                                    p(name + "dt_bias"), p(name + "skip"),
                                    {s.heads, s.groups, s.width, s.states}, in_->bounds);
    const std::vector<T>* const weights = maybe(name + "norm.weight");
    const int64_t width = s.values() / s.groups;
    for (size_t n = 0; n < y.size(); ++n) {
      for (size_t i = 0; i < y[n].size(); ++i) y[n][i] *= z[n][i] * twin::sigmoid(z[n][i]);
      if (weights == nullptr) continue;
      const std::vector<T>& weight = *weights;
      for (int64_t begin = 0; begin < s.values(); begin += width) {
        const auto of = [&](const std::vector<T>& all) {
          return std::vector<T>(all.begin() + begin, all.begin() + begin + width);
        };
        const std::vector<T> normed = norm_row(of(y[n]), of(weight), nullptr, NormKind::rms, false);
        std::copy(normed.begin(), normed.end(), y[n].begin() + begin);
      }
    }
    return linear(y, p(name + "o.weight"), c_.width, 0, nullptr);
  }

  Matrix<T> selective_scan(const Matrix<T>& x, const std::string& name) const {
    const int64_t values = c_.scan.heads;
    const auto rank = static_cast<size_t>(c_.scan.step_rank),
               states = static_cast<size_t>(c_.scan.states);
    const auto made = [&](const Matrix<T>& of, const char* what, size_t width) {
      return linear(of, p(name + what + ".weight"), static_cast<int64_t>(width), 0, nullptr);
    };
    const std::vector<T>* bias = maybe(name + "conv.bias");
    const Matrix<T> seen =
        twin::short_conv(made(x, "x", static_cast<size_t>(values)), p(name + "conv.weight"),
                         in_->bounds, true, bias ? *bias : std::vector<T>{});
    Matrix<T> step, bc;
    for (const std::vector<T>& all : made(seen, "made", rank + 2 * states)) {
      const auto part = [&](size_t begin, size_t width, const char* norm) {
        const auto first = all.begin() + static_cast<long>(begin);
        const std::vector<T> of(first, first + static_cast<long>(width));
        const std::vector<T>* weight = maybe(name + norm + ".weight");
        return weight ? norm_row(of, *weight, nullptr, NormKind::rms, false) : of;
      };
      step.push_back(part(0, rank, "step_norm"));
      bc.push_back(part(rank, states, "b_norm"));
      const std::vector<T> c = part(rank + states, states, "c_norm");
      bc.back().insert(bc.back().end(), c.begin(), c.end());
    }
    Matrix<T> y =
        twin::selective_scan(seen, made(step, "step", static_cast<size_t>(values)), bc,
                             p(name + "a_log"), p(name + "dt_bias"), p(name + "skip"), in_->bounds);
    const Matrix<T> z = made(x, "z", static_cast<size_t>(values));
    for (size_t n = 0; n < y.size(); ++n)
      for (size_t i = 0; i < y[n].size(); ++i) y[n][i] *= z[n][i] * twin::sigmoid(z[n][i]);
    return linear(y, p(name + "o.weight"), c_.width, 0, nullptr);
  }

  T activate(T x) const { return twin::activate(x, c_.act); }
  T xielu(T x, const std::string& name) const {
    const auto number = [&](const char* which) { return p(name + which)[0]; };
    return twin::xielu(x, number("alpha_p"), number("alpha_n"), value_of(number("beta")),
                       value_of(number("eps")));
  }
  std::vector<T> expert(const std::vector<T>& x, const std::string& name, int64_t e, int64_t width,
                        bool routed = false) const {
    const ops::Act act = routed && c_.experts_held ? ops::Act::swiglu_10 : c_.act;
    const Matrix<T> in = {x};
    Matrix<T> hidden = linear(in, p(name + "up.weight"), width, e, maybe(name + "up.bias"));
    if (c_.gated) {
      const Matrix<T> gate =
          linear(in, p(name + "gate.weight"), width, e, maybe(name + "gate.bias"));
      for (size_t f = 0; f < hidden[0].size(); ++f)
        hidden[0][f] =
            twin::activate(gate[0][f] * T(static_cast<double>(c_.multipliers.ffn_gate)), act) *
            twin::beside(hidden[0][f], act);
    } else {
      for (T& v : hidden[0]) v = c_.xielu ? xielu(v, name) : activate(v);
    }
    return linear(hidden, p(name + "down.weight"), c_.width, e, maybe(name + "down.bias"))[0];
  }

  Matrix<T> ffn(const Matrix<T>& x, const Matrix<T>& u, const std::string& name, int64_t layer,
                RngKey key) {
    Matrix<T> y(x.size(), std::vector<T>(static_cast<size_t>(c_.width)));
    const auto add_to = [&](size_t n, T weight, const std::vector<T>& what) {
      for (size_t d = 0; d < what.size(); ++d) y[n][d] += weight * what[d];
    };
    if (!c_.is_moe(layer)) {
      for (size_t n = 0; n < x.size(); ++n)
        add_to(n, T(static_cast<double>(c_.multipliers.ffn_down)),
               expert(x[n], name + "experts.", 0, c_.dense_width));
      return y;
    }
    const bool own = c_.branch_norms;
    const Matrix<T> seen = own ? norm(u, name + "experts.norm") : x;
    const TwinRoute<T>& to = route(
        own ? scaled(norm(u, name + "router.norm"), 1 / std::sqrt(static_cast<float>(c_.width)))
            : x,
        name, key);
    for (size_t n = 0; n < x.size(); ++n)
      for (size_t i = 0; i < to.choice[n].size(); ++i)
        if (to.kept[n][i]) {
          std::vector<T> given = seen[n];
          for (T& v : given)
            if (c_.weigh_inputs) v *= to.weights[n][i];
          const auto e = static_cast<int64_t>(to.choice[n][i]);
          add_to(n, c_.weigh_inputs ? T(1.0) : to.weights[n][i],
                 e >= c_.routing.experts  // a zero one
                     ? given
                     : expert(given, name + "experts.", e, c_.expert_width, true));
        }
    if (own) y = norm(y, name + "experts.norm_out");
    if (c_.shortcut) {
      late_ = y;
      y.assign(x.size(), std::vector<T>(static_cast<size_t>(c_.width)));
    }
    if (c_.shared_experts == 0) return y;
    if (own) {
      Matrix<T> beside;
      for (size_t n = 0; n < x.size(); ++n)
        beside.push_back(expert(x[n], name + "shared.", 0, c_.shared_experts * c_.shared_width));
      return add(y, norm(beside, name + "shared.norm_out"));
    }
    for (size_t n = 0; n < x.size(); ++n) {
      const T weight =
          c_.shared_gate
              ? twin::sigmoid(linear({x[n]}, p(name + "shared_gate.weight"), 1, 0, nullptr)[0][0])
              : T(1.0);
      add_to(n, weight, expert(x[n], name + "shared.", 0, c_.shared_experts * c_.shared_width));
    }
    return c_.shared_average ? scaled(y, 0.5f) : y;
  }

  const TwinRoute<T>& route(const Matrix<T>& x, const std::string& name, RngKey key) {
    const auto numbers = [&](const char* what) {
      std::vector<double> out;
      if (const auto* found = maybe(name + what))
        for (const T& v : *found) out.push_back(value_of(v));
      return out;
    };
    TwinRouterInput in{
        in_->ids, in_->bounds, {}, numbers("router.bias"), numbers("router.threshold"), key};
    if (!in_->step_counts.empty()) in.step_counts = in_->step_counts.at(out_.routes.size());
    if (!in_->recorded.empty()) in.recorded = in_->recorded.at(out_.routes.size());
    if (const std::vector<T>* table = maybe(name + "router.table")) {
      const auto slots = static_cast<size_t>(routing_.slots());
      in.recorded.clear();
      for (const int32_t id : in_->ids) {
        auto& row = in.recorded.emplace_back();
        for (size_t i = 0; i < slots; ++i)
          row.push_back(
              {true, static_cast<size_t>(value_of((*table)[static_cast<size_t>(id) * slots + i])),
               true});
      }
      in.bias.assign(static_cast<size_t>(routing_.experts), 0);
    }
    TwinRouter<T> router(routing_, in);
    const TwinRouterParams<T> params{
        maybe(name + "router.weight"),     maybe(name + "router.up.weight"),
        maybe(name + "router.logit_bias"), maybe(name + "router.noise.weight"),
        maybe(name + "router.scale"),      [this](T v) { return activate(v); }};
    out_.routes.push_back(params.weight ? router.from_x(x, params)
                                        : router.from_logits({}, {}, {}));
    out_.dropped += out_.routes.back().dropped;
    out_.smallest_margin = std::min(out_.smallest_margin, out_.routes.back().margin);
    return out_.routes.back();
  }

  void add_losses(const RoutingLosses& coef) {
    const auto layers = static_cast<double>(out_.routes.size());
    for (TwinRoute<T>& route : out_.routes) {
      std::vector<T> values;
      each_loss(route.losses, [&](const char*, T& value) { values.push_back(value / T(layers)); });
      size_t i = 0, j = 0;
      each_loss(out_.losses, [&](const char*, float& mean) {
        mean += static_cast<float>(value_of(values[i++]));
      });
      each_loss(coef, [&](const char*, const float& c) {
        out_.loss += T(static_cast<double>(c)) * values[j++];
      });
    }
  }

  ModelConfig c_;
  RoutingSpec routing_;
  const std::map<std::string, std::vector<T>>& p_;
  const TwinInput* in_ = nullptr;
  Matrix<T> late_;  // what routed experts gave, where it joins behind the next layer
  TwinOutput<T> out_;
};

}  // namespace moe::test
