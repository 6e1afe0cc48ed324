// Naive causal attention: every score in a row of its own, one softmax over all of them, no blocks.
// Query head h reads key/value head h / (heads / kv_heads). The forward is templated on its number
// type so that Dual<double> differentiates it; the backward is written by hand and checked against
// that.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/dual.h"

namespace moe::test::twin {

struct AttentionShape {
  int64_t heads = 1, kv_heads = 1;
  int64_t width = 1, value_width = 1;  // of one head: queries and keys, values
  double scale = 1;
  int64_t window = 0;  // keys a query sees; 0: all before it
  double cap = 0;      // scores are cap tanh(score / cap); 0: as they are
};

// Which rows belong together. Sequence s owns query rows [bounds[s], bounds[s+1]); its key at
// position p is row first_row[s] + p; query n sees keys 0..positions[n].
struct AttentionRows {
  std::vector<int64_t> bounds, first_row;
  std::vector<int32_t> positions;

  // Whole sequences laid end to end, keys in the same rows as queries.
  static AttentionRows of_lengths(const std::vector<int64_t>& lengths) {
    AttentionRows rows;
    rows.bounds.push_back(0);
    for (int64_t length : lengths) {
      rows.first_row.push_back(rows.bounds.back());
      rows.bounds.push_back(rows.bounds.back() + length);
      for (int64_t p = 0; p < length; ++p) rows.positions.push_back(static_cast<int32_t>(p));
    }
    return rows;
  }
};

template <class T>
struct AttentionOut {
  std::vector<T> o;    // [N, heads * value_width]
  std::vector<T> lse;  // [N, heads]
};

// Calls f(query row n, head h, key/value head g, row of the first key seen, number of keys seen)
// for every query of every head.
template <class F>
void for_each_query(const AttentionRows& rows, const AttentionShape& shape, F&& f) {
  for (size_t s = 0; s + 1 < rows.bounds.size(); ++s)
    for (int64_t n = rows.bounds[s]; n < rows.bounds[s + 1]; ++n)
      for (int64_t h = 0; h < shape.heads; ++h) {
        const int64_t before = int64_t{rows.positions[static_cast<size_t>(n)]} + 1,
                      seen = shape.window > 0 ? std::min(before, shape.window) : before;
        f(n, h, h * shape.kv_heads / shape.heads, rows.first_row[s] + before - seen, seen);
      }
}

// score_j = scale <q, k_j>, with a cap c then c tanh(score_j / c);  lse = log sum_j e^score_j;  o =
// sum_j e^(score_j - lse) v_j.  q [N, heads*width]; k [rows, kv_heads*width]; v [rows,
// kv_heads*value_width]
template <class T>
AttentionOut<T> attention_forward(const std::vector<T>& q, const std::vector<T>& k,
                                  const std::vector<T>& v, const AttentionRows& rows,
                                  const AttentionShape& shape) {
  using std::exp, std::log, std::tanh;
  const int64_t width = shape.width, value_width = shape.value_width;
  const size_t n_rows = rows.positions.size();
  AttentionOut<T> out{std::vector<T>(n_rows * static_cast<size_t>(shape.heads * value_width)),
                      std::vector<T>(n_rows * static_cast<size_t>(shape.heads))};
  for_each_query(rows, shape, [&](int64_t n, int64_t h, int64_t g, int64_t first, int64_t seen) {
    std::vector<T> score(static_cast<size_t>(seen), T(0));
    double highest = -INFINITY;
    for (int64_t j = 0; j < seen; ++j) {
      T& sum = score[static_cast<size_t>(j)];
      for (int64_t c = 0; c < width; ++c)
        sum += q[static_cast<size_t>((n * shape.heads + h) * width + c)] *
               k[static_cast<size_t>(((first + j) * shape.kv_heads + g) * width + c)];
      sum *= T(shape.scale);
      if (shape.cap > 0) sum = T(shape.cap) * tanh(sum / T(shape.cap));
      highest = std::max(highest, value_of(sum));
    }
    T total(0);
    for (T& x : score) total += exp(x - T(highest));
    const T lse = T(highest) + log(total);
    out.lse[static_cast<size_t>(n * shape.heads + h)] = lse;
    for (int64_t j = 0; j < seen; ++j) {
      const T p = exp(score[static_cast<size_t>(j)] - lse);
      for (int64_t c = 0; c < value_width; ++c)
        out.o[static_cast<size_t>((n * shape.heads + h) * value_width + c)] +=
            p * v[static_cast<size_t>(((first + j) * shape.kv_heads + g) * value_width + c)];
    }
  });
  return out;
}

struct AttentionGrads {
  std::vector<double> dq, dk, dv;  // shapes of q, k, v
};

// With p_j = e^(score_j - lse):  dv_j += p_j do;  dp_j = <do, v_j>;  dscore_j = p_j (dp_j - sum_i
// p_i dp_i), with a cap times 1 - (score_j / c)^2;  dq += scale dscore_j k_j;  dk_j += scale
// dscore_j q
inline AttentionGrads attention_backward(const std::vector<double>& dout,
                                         const std::vector<double>& q, const std::vector<double>& k,
                                         const std::vector<double>& v, const AttentionRows& rows,
                                         const AttentionShape& shape) {
  const int64_t width = shape.width, value_width = shape.value_width;
  const std::vector<double> lse = attention_forward(q, k, v, rows, shape).lse;
  AttentionGrads grads{std::vector<double>(q.size()), std::vector<double>(k.size()),
                       std::vector<double>(v.size())};
  for_each_query(rows, shape, [&](int64_t n, int64_t h, int64_t g, int64_t first, int64_t seen) {
    const size_t at_q = static_cast<size_t>((n * shape.heads + h) * width),
                 at_o = static_cast<size_t>((n * shape.heads + h) * value_width);
    const auto at_k = [&](int64_t j) {
      return static_cast<size_t>(((first + j) * shape.kv_heads + g) * width);
    };
    const auto at_v = [&](int64_t j) {
      return static_cast<size_t>(((first + j) * shape.kv_heads + g) * value_width);
    };
    std::vector<double> p(static_cast<size_t>(seen)), dp(p.size()), slope(p.size(), 1);
    double mean = 0;
    for (int64_t j = 0; j < seen; ++j) {
      const size_t i = static_cast<size_t>(j);
      double score = 0;
      for (size_t c = 0; c < static_cast<size_t>(width); ++c) score += q[at_q + c] * k[at_k(j) + c];
      score *= shape.scale;
      if (shape.cap > 0) {
        const double t = std::tanh(score / shape.cap);
        score = shape.cap * t;
        slope[i] = 1 - t * t;
      }
      p[i] = std::exp(score - lse[static_cast<size_t>(n * shape.heads + h)]);
      for (size_t c = 0; c < static_cast<size_t>(value_width); ++c) {
        dp[i] += dout[at_o + c] * v[at_v(j) + c];
        grads.dv[at_v(j) + c] += p[i] * dout[at_o + c];
      }
      mean += p[i] * dp[i];
    }
    for (int64_t j = 0; j < seen; ++j) {
      const size_t i = static_cast<size_t>(j);
      const double dscore = shape.scale * p[i] * (dp[i] - mean) * slope[i];
      for (size_t c = 0; c < static_cast<size_t>(width); ++c) {
        grads.dq[at_q + c] += dscore * k[at_k(j) + c];
        grads.dk[at_k(j) + c] += dscore * q[at_q + c];
      }
    }
  });
  return grads;
}

}  // namespace moe::test::twin
