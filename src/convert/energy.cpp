// Our partition and router: by how much of the output each neuron makes, and by what a linear
// router can foresee of it. The energy of neuron i at token t is C[t,i] = w_t (h_ti - mean_t h_i)^2
// ||down_i||^2: what the output loses, in squared length and relative to the token's residual
// stream, when the neuron is left at its mean. Experts should gather neurons that are wanted by the
// same tokens, as far as the router can know: so the router is fitted in the loop. With M[t,e] = 1
// where the fitted router chooses expert e, neuron i keeps sum_t C[t,i] M[t,e] in expert e and
// sum_t C[t,i] in a slice that is always on; the balanced assignment takes the most in all
// (docs/carving.md).
#include <algorithm>
#include <cmath>
#include <numeric>

#include "convert/carve_steps.h"
#include "convert/least_squares.h"
#include "convert/transport.h"
#include "core/order.h"
#include "core/threads.h"

namespace moe {
namespace {

constexpr double kEnergyRidge = 1e-2;  // of the mean variance of the router's inputs
constexpr int64_t kStride = 2;         // every so many tokens are enough to sort neurons
constexpr int kTurns = 12;             // of router and assignment in turns
constexpr int kFirstRounds = 8;        // of the k-means they start from
constexpr int64_t kProfile = 16;       // every so many tokens describe a neuron there

// Every `stride`-th row: a view.
Tensor every(Tensor x, int64_t stride) {
  Tensor out = x;
  out.rank = 2;
  out.shape = {(x.rows() + stride - 1) / stride, x.cols()};
  out.row_bytes = x.row_bytes * stride;
  return out;
}

template <class F>
auto typed(Tensor t, F&& f) {
  return t.dtype == DType::bf16 ? f(bf16{}) : f(float{});
}

// [F] squared length of each neuron's column of `down`.
std::vector<float> down_squares(Tensor down) {
  std::vector<double> sum(static_cast<size_t>(down.cols()), 0);
  for (int64_t d = 0; d < down.rows(); ++d)
    for (int64_t f = 0; f < down.cols(); ++f)
      sum[static_cast<size_t>(f)] +=
          static_cast<double>(down.row<float>(d)[f]) * static_cast<double>(down.row<float>(d)[f]);
  return {sum.begin(), sum.end()};
}

// [F] mean of each neuron over the tokens.
std::vector<float> mean_hidden(Run& run, Tensor hidden) {
  std::vector<float> mean(static_cast<size_t>(hidden.cols()));
  parallel_for(run.threads, hidden.cols(), 64, [&](int64_t begin, int64_t end, int) {
    std::vector<double> sum(static_cast<size_t>(end - begin), 0);
    typed(hidden, [&]<class T>(T) {
      for (int64_t n = 0; n < hidden.rows(); ++n)
        for (int64_t f = begin; f < end; ++f)
          sum[static_cast<size_t>(f - begin)] += static_cast<double>(to_f32(hidden.row<T>(n)[f]));
    });
    for (int64_t f = begin; f < end; ++f)
      mean[static_cast<size_t>(f)] = static_cast<float>(sum[static_cast<size_t>(f - begin)] /
                                                        static_cast<double>(hidden.rows()));
  });
  return mean;
}

// The energies of one layer, a token at a time.
class Energy {
 public:
  explicit Energy(Carving& c)
      : c_(c),
        mean_(mean_hidden(c.run, c.a.hidden)),
        square_(down_squares(c.dense.down.value.at(0))) {}
  void token(int64_t n, float* out) const {
    const float weight = c_.token_weight[static_cast<size_t>(n)];
    typed(c_.a.hidden, [&]<class T>(T) {
      const T* hidden = c_.a.hidden.row<T>(n);
      for (size_t f = 0; f < mean_.size(); ++f) {
        const float gap = to_f32(hidden[f]) - mean_[f];
        out[f] = weight * gap * gap * square_[f];
      }
    });
  }

 private:
  Carving& c_;
  std::vector<float> mean_, square_;
};

// sums[e] = sqrt of the sum over expert e's neurons
void expert_roots(float* sums, const float* energy, std::span<const int32_t> expert_of,
                  int64_t experts) {
  std::fill_n(sums, experts, 0.0f);
  for (size_t f = 0; f < expert_of.size(); ++f)
    if (expert_of[f] >= 0) sums[expert_of[f]] += energy[f];
  for (int64_t e = 0; e < experts; ++e) sums[e] = std::sqrt(sums[e]);
}

// chosen[t,e] = 1 for the `active` largest z[t,e], the lower index first where equal, else 0.  z
// [T,E] f32; chosen [T,E] A
void choose(Run& run, Tensor chosen, Tensor z, int64_t active) {
  parallel_for(run.threads, z.rows(), 64, [&](int64_t begin, int64_t end, int) {
    std::vector<int32_t> order(static_cast<size_t>(z.cols()));
    typed(chosen, [&]<class T>(T) {
      for (int64_t n = begin; n < end; ++n) {
        const float* logits = z.row<float>(n);
        std::iota(order.begin(), order.end(), 0);
        std::partial_sort(order.begin(), order.begin() + active, order.end(),
                          [&](int32_t a, int32_t b) {
                            return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
                          });
        T* row = chosen.row<T>(n);
        for (int64_t e = 0; e < z.cols(); ++e) row[order[static_cast<size_t>(e)]] = T{};
        for (int64_t k = 0; k < active; ++k) {
          if constexpr (std::is_same_v<T, bf16>) row[order[static_cast<size_t>(k)]] = to_bf16(1);
          else row[order[static_cast<size_t>(k)]] = 1;
        }
      }
    });
  });
}

Param matrix_of(Arena& memory, int64_t rows, int64_t cols) {
  Param p;
  p.name = "router";
  p.value = memory.alloc_zeroed(DType::f32, {rows, cols});
  return p;
}

// y = x w^T + bias in f32.  y [N,K]
void apply(Run& run, Tensor y, Tensor x, Param& w, Tensor bias) {
  const std::array<int64_t, 2> all = {0, x.rows()};
  w.touched();
  ops::matmul_forward_f32(run, y, x, w, all);
  Param b;
  b.value = bias;
  ops::bias_forward_acc(run, y, b, {}, all);
}

class Sorter {
 public:
  explicit Sorter(Carving& c)
      : c_(c),
        run_(c.run),
        neurons_(c.shape.neurons),
        experts_(c.shape.experts),
        x_(every(c.a.x, kStride)),
        fit_(c.run, x_, kEnergyRidge),
        total_(static_cast<size_t>(neurons_), 0) {
    energy_ = run_.saved.alloc(c.a.x.dtype, {x_.rows(), neurons_});
    const Energy energy(c);
    parallel_for(run_.threads, x_.rows(), 16, [&](int64_t begin, int64_t end, int) {
      std::vector<float> row(static_cast<size_t>(neurons_));
      for (int64_t t = begin; t < end; ++t) {
        energy.token(t * kStride, row.data());
        typed(energy_, [&]<class T>(T) {
          for (int64_t f = 0; f < neurons_; ++f)
            if constexpr (std::is_same_v<T, bf16>)
              energy_.row<bf16>(t)[f] = to_bf16(row[static_cast<size_t>(f)]);
            else energy_.row<float>(t)[f] = row[static_cast<size_t>(f)];
        });
      }
    });
    typed(energy_, [&]<class T>(T) {
      for (int64_t t = 0; t < x_.rows(); ++t)
        for (int64_t f = 0; f < neurons_; ++f)
          total_[static_cast<size_t>(f)] += static_cast<double>(to_f32(energy_.row<T>(t)[f]));
    });
  }

  // [F] the expert of each neuron, -1: always on.
  std::vector<int32_t> sort() {
    std::vector<int32_t> expert_of = first(), best = expert_of;
    double most = -1;
    for (int round = 0; round <= kTurns; ++round) {
      const std::vector<double> kept = kept_energy(expert_of);
      double sum = 0;
      for (int64_t f = 0; f < neurons_; ++f)
        sum +=
            kept[static_cast<size_t>(f * (experts_ + 1) + sink(expert_of[static_cast<size_t>(f)]))];
      if (sum > most) {
        most = sum;
        best = expert_of;
      }
      if (round < kTurns) expert_of = assigned(kept);
    }
    return best;
  }

 private:
  int64_t sink(int32_t expert) const { return expert < 0 ? experts_ : expert; }

  // The neurons of the largest energy are always on; the others by k-means of how a linear map of
  // the input sees them, over every kProfile-th token.
  std::vector<int32_t> first() {
    const std::vector<int32_t> order = falling_order<int32_t>(total_);
    const std::vector<int32_t> rest(order.begin() + c_.shape.shared * c_.shape.width, order.end());
    std::vector<int32_t> expert_of(static_cast<size_t>(neurons_), -1);
    ArenaScope scope(run_.scratch);
    const Tensor seen = profiles(rest);
    const std::vector<int32_t> cluster = spherical_kmeans(seen, rest);
    for (size_t i = 0; i < rest.size(); ++i) expert_of[static_cast<size_t>(rest[i])] = cluster[i];
    return expert_of;
  }

  // [rest, T/kProfile] f32, rows centred and of length 1; lives in run.scratch
  Tensor profiles(const std::vector<int32_t>& rest) {
    const Tensor tokens = every(c_.a.x, kProfile);
    Param map = matrix_of(run_.scratch, neurons_, x_.cols());
    const Tensor bias = run_.scratch.alloc_zeroed(DType::f32, {neurons_});
    LinearFit(run_, every(x_, 2), kEnergyRidge).fit(run_, map.value, bias, every(energy_, 2));
    const Tensor predicted = run_.scratch.alloc(DType::f32, {tokens.rows(), neurons_});
    apply(run_, predicted, tokens, map, bias);
    const Tensor out = run_.scratch.alloc(DType::f32, {std::ssize(rest), tokens.rows()});
    for (size_t i = 0; i < rest.size(); ++i) {
      float* row = out.row<float>(static_cast<int64_t>(i));
      double mean = 0, square = 0;
      for (int64_t t = 0; t < tokens.rows(); ++t)
        mean += static_cast<double>(predicted.row<float>(t)[rest[i]]) /
                static_cast<double>(tokens.rows());
      for (int64_t t = 0; t < tokens.rows(); ++t)
        square += std::pow(static_cast<double>(predicted.row<float>(t)[rest[i]]) - mean, 2);
      for (int64_t t = 0; t < tokens.rows(); ++t)
        row[t] = square > 0 ? static_cast<float>(
                                  (static_cast<double>(predicted.row<float>(t)[rest[i]]) - mean) /
                                  std::sqrt(square))
                            : 0.0f;
    }
    return out;
  }

  // Seeds far from each other, weighed by the root of their energy; centroids are weighed so too.
  std::vector<int32_t> spherical_kmeans(Tensor rows, const std::vector<int32_t>& rest) {
    const int64_t n = rows.rows(), width = rows.cols();
    std::vector<double> weight(rest.size());
    for (size_t i = 0; i < rest.size(); ++i)
      weight[i] = std::sqrt(total_[static_cast<size_t>(rest[i])]);
    Param centroids = matrix_of(run_.scratch, experts_, width);
    const std::array<int64_t, 2> all = {0, n};
    const Tensor cosine = run_.scratch.alloc(DType::f32, {n, experts_});
    std::vector<double> far(rest.size(), 1);
    for (int64_t e = 0; e < experts_; ++e) {
      size_t seed = 0;
      for (size_t i = 1; i < rest.size(); ++i)
        if (far[i] * weight[i] > far[seed] * weight[seed]) seed = i;
      std::copy_n(rows.row<float>(static_cast<int64_t>(seed)), width,
                  centroids.value.row<float>(e));
      centroids.touched();
      ops::matmul_forward(run_, cosine, rows, centroids, all);
      for (size_t i = 0; i < rest.size(); ++i) {
        const double apart = 1 - static_cast<double>(cosine.row<float>(static_cast<int64_t>(i))[e]);
        far[i] = e == 0 ? apart : std::min(far[i], apart);
      }
    }
    std::vector<int32_t> cluster;
    for (int round = 0; round < kFirstRounds; ++round) {
      centroids.touched();
      ops::matmul_forward(run_, cosine, rows, centroids, all);
      std::vector<double> cost(static_cast<size_t>(n * experts_));
      for (size_t i = 0; i < cost.size(); ++i)
        cost[i] = -static_cast<double>(cosine.as<float>()[i]);
      cluster = assign_balanced(integer_costs(cost), experts_);
      std::vector<double> sums(static_cast<size_t>(experts_ * width), 0);
      for (size_t i = 0; i < rest.size(); ++i)
        for (int64_t d = 0; d < width; ++d)
          sums[static_cast<size_t>(cluster[i] * width + d)] +=
              weight[i] * static_cast<double>(rows.row<float>(static_cast<int64_t>(i))[d]);
      for (int64_t e = 0; e < experts_; ++e) {
        double square = 0;
        for (int64_t d = 0; d < width; ++d)
          square += std::pow(sums[static_cast<size_t>(e * width + d)], 2);
        for (int64_t d = 0; d < width; ++d)
          centroids.value.row<float>(e)[d] =
              square > 0
                  ? static_cast<float>(sums[static_cast<size_t>(e * width + d)] / std::sqrt(square))
                  : 0.0f;
      }
    }
    return cluster;
  }

  // kept[f,e]: the energy that neuron f has at the tokens for which the router fitted to this
  // assignment chooses expert e; the last column: all of it.
  std::vector<double> kept_energy(const std::vector<int32_t>& expert_of) {
    ArenaScope scope(run_.scratch);
    const int64_t tokens = x_.rows();
    const Tensor roots = run_.scratch.alloc(DType::f32, {tokens, experts_});
    parallel_for(run_.threads, tokens, 16, [&](int64_t begin, int64_t end, int) {
      std::vector<float> row(static_cast<size_t>(neurons_));
      for (int64_t t = begin; t < end; ++t) {
        typed(energy_, [&]<class T>(T) {
          for (int64_t f = 0; f < neurons_; ++f)
            row[static_cast<size_t>(f)] = to_f32(energy_.row<T>(t)[f]);
        });
        expert_roots(roots.row<float>(t), row.data(), expert_of, experts_);
      }
    });
    Param router = matrix_of(run_.scratch, experts_, x_.cols());
    const Tensor bias = run_.scratch.alloc_zeroed(DType::f32, {experts_});
    fit_.fit(run_, router.value, bias, roots);
    apply(run_, roots, x_, router, bias);
    const Tensor chosen = run_.scratch.alloc(energy_.dtype, {tokens, experts_});
    choose(run_, chosen, roots, c_.active);
    const Tensor sums = inner_products(run_, run_.scratch, energy_, chosen);  // [F,E]
    std::vector<double> kept(static_cast<size_t>(neurons_ * (experts_ + 1)));
    for (int64_t f = 0; f < neurons_; ++f) {
      for (int64_t e = 0; e < experts_; ++e)
        kept[static_cast<size_t>(f * (experts_ + 1) + e)] =
            static_cast<double>(sums.row<float>(f)[e]);
      kept[static_cast<size_t>(f * (experts_ + 1) + experts_)] = total_[static_cast<size_t>(f)];
    }
    return kept;
  }

  std::vector<int32_t> assigned(const std::vector<double>& kept) const {
    std::vector<double> cost(kept.size());
    std::transform(kept.begin(), kept.end(), cost.begin(), std::negate<>());
    std::vector<int64_t> room(static_cast<size_t>(experts_), c_.shape.width);
    room.push_back(c_.shape.shared * c_.shape.width);
    std::vector<int32_t> out = assign_balanced(integer_costs(cost), room);
    for (int32_t& s : out) s = s == experts_ ? -1 : s;
    return out;
  }

  Carving& c_;
  Run& run_;
  int64_t neurons_, experts_;
  Tensor x_;  // [T,D] every kStride-th token
  LinearFit fit_;
  Tensor energy_;              // [T,F] A
  std::vector<double> total_;  // [F] sum over tokens
};

}  // namespace

void by_energy(Carving& c) {
  ArenaScope scope(c.run.saved);
  const std::vector<int32_t> expert_of = Sorter(c).sort();
  c.partition = {};
  c.partition.experts.resize(static_cast<size_t>(c.shape.experts));
  for (size_t f = 0; f < expert_of.size(); ++f)
    (expert_of[f] < 0 ? c.partition.shared : c.partition.experts[static_cast<size_t>(expert_of[f])])
        .push_back(static_cast<int32_t>(f));
}

void energy_router(Carving& c) {
  const Energy energy(c);
  const std::vector<int32_t> expert_of = c.partition.expert_of();
  ArenaScope scope(c.run.scratch);
  const Tensor roots = c.run.scratch.alloc(DType::f32, {c.tokens(), c.shape.experts});
  parallel_for(c.run.threads, c.tokens(), 16, [&](int64_t begin, int64_t end, int) {
    std::vector<float> row(static_cast<size_t>(c.shape.neurons));
    for (int64_t n = begin; n < end; ++n) {
      energy.token(n, row.data());
      expert_roots(roots.row<float>(n), row.data(), expert_of, c.shape.experts);
    }
  });
  LogitParams& logit = c.carved.router->logit;
  LinearFit(c.run, c.a.x, kEnergyRidge).fit(c.run, logit.weight.value, logit.bias.value, roots);
  logit.weight.touched();
  logit.bias.touched();
}

}  // namespace moe
