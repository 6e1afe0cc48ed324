// The scalar twin of attention whose latents are the one key and value of all heads, with entries
// that stand for several tokens (model/shared_attention.cpp): loops alone, of any number type.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/rope.h"
#include "support/twin_router.h"

namespace moe::test {

template <class T>
class TwinSharedAttention {
 public:
  TwinSharedAttention(const ModelConfig& config,
                      const std::map<std::string, std::vector<T>>& params,
                      const std::vector<int32_t>& positions, const std::vector<int64_t>& bounds)
      : c_(config), p_(params), positions_(positions), bounds_(bounds) {}

  // [N,D], of x [N,D]; `name`: of the layer's attention
  Matrix<T> run(const Matrix<T>& x, const std::string& name, int64_t layer) const {
    const Entries e = c_.entries(layer);
    const LatentAttention& l = c_.latent;
    const bool main = e.tokens == 0;
    const auto rows_normed = [&](Matrix<T> y, const std::string& of) {
      for (auto& row : y) row = normed(row, p(of));
      return y;
    };
    const Matrix<T> from =
        rows_normed(linear(x, p(name + "q_a.weight"), l.query_width), name + "q_a_norm.weight");
    Matrix<T> q = linear(from, p(name + "q_b.weight"), c_.heads * c_.head_width),
              kv = rows_normed(linear(x, p(name + "kv_a.weight"), c_.head_width),
                               name + "kv_a_norm.weight");
    const auto width = static_cast<size_t>(c_.head_width), heads = static_cast<size_t>(c_.heads);
    for (auto& row : q)
      for (size_t h = 0; h < heads; ++h) {
        const auto first = row.begin() + static_cast<long>(h * width);
        const std::vector<T> unit = normed(std::vector<T>(first, first + static_cast<long>(width)),
                                           std::vector<T>(width, T(1.0)));
        std::copy(unit.begin(), unit.end(), first);
      }
    for (size_t n = 0; n < x.size(); ++n) {
      turn(q[n], width, positions_[n], main, false);
      turn(kv[n], width, positions_[n], main, false);
    }
    Matrix<T> o(x.size(), std::vector<T>(heads * width));
    for (size_t s = 0; s + 1 < bounds_.size(); ++s) {
      const auto begin = static_cast<size_t>(bounds_[s]), end = static_cast<size_t>(bounds_[s + 1]);
      Matrix<T> all, keys, queries, weights;
      if (e.tokens > 0) all = entries(x, name + "entries", e, c_.head_width, begin, end);
      if (e.top > 0) {
        keys = entries(x, name + "entry_index", e, e.width, begin, end);
        queries = linear(from, p(name + "index_q.weight"), e.heads * e.width);
        weights = linear(x, p(name + "index_weights.weight"), e.heads);
        for (size_t n = begin; n < end; ++n)
          turn(queries[n], static_cast<size_t>(e.width), positions_[n], false, false);
      }
      for (size_t n = begin; n < end; ++n) {
        std::vector<const std::vector<T>*> seen;
        const auto window = static_cast<size_t>(c_.has_window(layer) ? c_.attention_window : 0);
        for (size_t m = window > 0 && n + 1 > begin + window ? n + 1 - window : begin; m <= n; ++m)
          seen.push_back(&kv[m]);
        if (e.tokens > 0)
          for (const size_t i : seen_entries(keys, e.top > 0 ? queries[n] : std::vector<T>{},
                                             e.top > 0 ? weights[n] : std::vector<T>{},
                                             (n - begin + 1) / static_cast<size_t>(e.tokens), e))
            seen.push_back(&all[i]);
        for (size_t h = 0; h < heads; ++h) {
          std::vector<T> scores;
          for (const std::vector<T>* key : seen) {
            T dot{};
            for (size_t i = 0; i < width; ++i) dot += q[n][h * width + i] * (*key)[i];
            scores.push_back(dot * T(1 / std::sqrt(static_cast<double>(c_.head_width))));
          }
          if (const std::vector<T>* sinks = maybe(name + "sinks")) scores.push_back((*sinks)[h]);
          const std::vector<T> share = twin::softmax(scores);
          for (size_t j = 0; j < seen.size(); ++j)
            for (size_t i = 0; i < width; ++i) o[n][h * width + i] += share[j] * (*seen[j])[i];
        }
        turn(o[n], width, positions_[n], main, true);
      }
    }
    if (const std::vector<T>* o_a = maybe(name + "o_a.weight")) {
      const auto part = heads * width / static_cast<size_t>(l.out_groups);
      Matrix<T> narrow(x.size());
      for (size_t n = 0; n < x.size(); ++n)
        for (int64_t g = 0; g < l.out_groups; ++g) {
          const auto first = o[n].begin() + static_cast<long>(static_cast<size_t>(g) * part);
          const Matrix<T> of = {std::vector<T>(first, first + static_cast<long>(part))};
          const std::vector<T> made = linear(of, *o_a, l.out_width, g)[0];
          narrow[n].insert(narrow[n].end(), made.begin(), made.end());
        }
      o = narrow;
    }
    return linear(o, p(name + "o.weight"), c_.width);
  }

 private:
  const std::vector<T>& p(const std::string& name) const { return p_.at(name); }
  const std::vector<T>* maybe(const std::string& name) const {
    return p_.count(name) ? &p_.at(name) : nullptr;
  }
  // y = x W_e^T with W [.., out, in] at matrix e
  static Matrix<T> linear(const Matrix<T>& x, const std::vector<T>& w, int64_t out, int64_t e = 0) {
    Matrix<T> y(x.size(), std::vector<T>(static_cast<size_t>(out)));
    for (size_t n = 0; n < x.size(); ++n)
      for (size_t o = 0; o < y[n].size(); ++o)
        for (size_t i = 0; i < x[n].size(); ++i)
          y[n][o] += x[n][i] * w[(static_cast<size_t>(e * out) + o) * x[n].size() + i];
    return y;
  }
  std::vector<T> normed(const std::vector<T>& x, const std::vector<T>& weight) const {
    using std::sqrt;
    T squares{};
    for (const T& v : x) squares += v * v;
    const T rms =
        sqrt(squares / T(static_cast<double>(x.size())) + T(static_cast<double>(c_.norm_eps)));
    std::vector<T> y;
    for (size_t i = 0; i < x.size(); ++i) y.push_back(x[i] / rms * weight[i]);
    return y;
  }
  // The first numbers of each head of `width`, turned, or turned back; `main`: by the frequencies
  // of layers without entries.
  void turn(std::vector<T>& row, size_t width, int64_t position, bool main, bool back) const {
    const ops::RopeFrequencies rope =
        main && c_.window_rope_theta > 0
            ? rope_frequencies(c_.rotary_width, c_.window_rope_theta, {})
            : rope_frequencies(c_.rotary_width, c_.rope_theta, c_.rope_scaling);
    const auto half = static_cast<size_t>(c_.rotary_width / 2);
    for (size_t head = 0; head < row.size(); head += width)
      for (size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * rope.frequency[i],
                     cosine = rope.factor * std::cos(angle),
                     sine = rope.factor * std::sin(angle) * (back ? -1 : 1);
        T &a = row[head + i], &b = row[head + i + half];
        const T a0 = a, b0 = b;
        a = a0 * T(cosine) - b0 * T(sine);
        b = b0 * T(cosine) + a0 * T(sine);
      }
  }

  // The entries of tokens [begin, end), each of `e.tokens`, of the last two parts of a projection
  // or of one; turned.
  Matrix<T> entries(const Matrix<T>& x, const std::string& name, const Entries& e, int64_t wide,
                    size_t begin, size_t end) const {
    using std::exp;
    const bool overlap = e.top > 0;
    const auto width = static_cast<size_t>(wide), tokens = static_cast<size_t>(e.tokens);
    const int64_t projected = wide * (overlap ? 2 : 1);
    const Matrix<T> kv = linear(x, p(name + ".kv.weight"), projected),
                    gate = linear(x, p(name + ".gate.weight"), projected);
    const std::vector<T>& bias = p(name + ".bias");
    Matrix<T> made;
    for (size_t first = begin; first + tokens <= end; first += tokens) {
      std::vector<T> entry(width);
      for (size_t i = 0; i < width; ++i) {
        std::vector<T> scores, values;
        const auto take = [&](size_t n, size_t place, size_t at) {
          scores.push_back(gate[n][at] + bias[place * static_cast<size_t>(projected) + at]);
          values.push_back(kv[n][at]);
        };
        for (size_t j = 0; overlap && first > begin && j < tokens; ++j)
          take(first - tokens + j, j, i);
        for (size_t j = 0; j < tokens; ++j) take(first + j, j, i + (overlap ? width : 0));
        const std::vector<T> weights = twin::softmax(scores);
        for (size_t j = 0; j < values.size(); ++j) entry[i] += weights[j] * values[j];
      }
      made.push_back(normed(entry, p(name + ".norm.weight")));
      turn(made.back(), width, static_cast<int64_t>(first - begin), false, false);
    }
    return made;
  }

  // Which of the entries before it a token sees: all, or those that an indexer says.
  std::vector<size_t> seen_entries(const Matrix<T>& keys, const std::vector<T>& query,
                                   const std::vector<T>& weights, size_t count,
                                   const Entries& e) const {
    std::vector<size_t> seen(count);
    for (size_t i = 0; i < count; ++i) seen[i] = i;
    if (e.top == 0 || count <= static_cast<size_t>(e.top)) return seen;
    std::vector<double> score(count);
    const auto width = static_cast<size_t>(e.width);
    for (size_t i = 0; i < count; ++i)
      for (size_t h = 0; h < weights.size(); ++h) {
        double dot = 0;
        for (size_t c = 0; c < width; ++c)
          dot += value_of(query[h * width + c]) * value_of(keys[i][c]);
        score[i] += value_of(weights[h]) * std::max(0.0, dot);
      }
    std::stable_sort(seen.begin(), seen.end(),
                     [&](size_t a, size_t b) { return score[a] > score[b]; });
    seen.resize(static_cast<size_t>(e.top));
    return seen;
  }

  const ModelConfig& c_;
  const std::map<std::string, std::vector<T>>& p_;
  const std::vector<int32_t>& positions_;
  const std::vector<int64_t>& bounds_;
};

}  // namespace moe::test
