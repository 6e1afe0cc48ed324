// The losses of Shazeer et al. 2017 (arXiv 1701.06538, section 4 and appendix A): CV^2 of the
// experts' summed weights, and of the load they may expect. An expert's expected load is the number
// of tokens that would choose it if its own noise alone were drawn again:
//   load_e = sum_n Phi((clean[n,e] - t[n,e]) / sigma[n,e]),
//     t[n,e] = the K-th largest noisy logit among the token's other experts,
// that is the one at rank K+1 where e is above it, the one at rank K otherwise. A threshold is the
// noisy logit of another expert, so gradients reach that too.
#include <numbers>
#include <numeric>

#include "moe/losses/loss_parts.h"
#include "moe/stages/stage_math.h"
#include "ops/routing.h"
#include "tensor/on_host.h"

namespace moe {
namespace {

constexpr double kMeanFloor = 1e-10;
constexpr int64_t kBlockTokens = 64;  // tokens summed together; the same for any number of threads

double mean_of(const std::vector<double>& v) {
  return std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size());
}

// CV^2(v) = var / (mean^2 + floor), var the population's.
double cv2(const std::vector<double>& v) {
  const double mean = mean_of(v);
  double sum = 0;
  for (double x : v) sum += (x - mean) * (x - mean);
  return sum / static_cast<double>(v.size()) / (mean * mean + kMeanFloor);
}

// d CV^2 / d v_e = (2/E) ((v_e - mean) - mean CV^2) / (mean^2 + floor).
std::vector<double> cv2_gradient(const std::vector<double>& v) {
  const double mean = mean_of(v), value = cv2(v),
               factor = 2 / (static_cast<double>(v.size()) * (mean * mean + kMeanFloor));
  std::vector<double> out;
  for (double x : v) out.push_back(factor * (x - mean - mean * value));
  return out;
}

// Summed weights of every expert before any drop.
std::vector<double> importance_of(const Routing& in) {
  std::vector<double> out(static_cast<size_t>(in.experts), 0.0);
  for (int64_t n = 0; n < in.choice.rows(); ++n)
    for (int64_t i = 0; i < in.choice.cols(); ++i)
      if (in.selected.row<int32_t>(n)[i] != 0)
        out[static_cast<size_t>(in.choice.row<int32_t>(n)[i])] +=
            static_cast<double>(in.weights.row<float>(n)[i]);
  return out;
}

// What these losses read of a routing, where the CPU can reach it.
Routing on_host(OnHost& host, const Routing& all) {
  Routing in = all;
  for (Tensor* t : {&in.clean, &in.sigma, &in.logits, &in.choice, &in.selected, &in.weights})
    *t = host.read(*t);
  return in;
}
Run& host_run(Run& run) { return run.device == nullptr ? run : run.on_cpu(); }

bool is_estimated(const Routing& in) { return !in.sigma.empty() && in.slots() < in.experts; }

// The K+1 largest noisy logits of every token: experts [N,K+1] i32 in run.scratch; the caller
// rewinds.
Tensor best_of(Run& run, const Routing& in) {
  Tensor out = run.scratch.alloc(DType::i32, {in.tokens(), in.slots() + 1});
  ops::top_experts(run, out, in.logits, {});
  return out;
}

// Where expert e of token n stands: the expert whose noisy logit it has to reach, and the distance
// in units of its noise.
struct Standing {
  int32_t rival;
  double sigma;
  double distance;
};
Standing standing(const Routing& in, const int32_t* best, int64_t n, int64_t e) {
  const float* noisy = in.logits.row<float>(n);
  const bool above = noisy[e] > noisy[best[in.slots()]];
  const int32_t rival = best[above ? in.slots() : in.slots() - 1];
  const auto sigma = static_cast<double>(in.sigma.row<float>(n)[e]);
  const double gap =
      static_cast<double>((in.clean.empty() ? in.logits : in.clean).row<float>(n)[e]) -
      static_cast<double>(noisy[rival]);
  // Without any noise the step itself is left: reached or not, and no gradient.
  return {rival, sigma, sigma > 0 ? gap / sigma : gap > 0 ? HUGE_VAL : -HUGE_VAL};
}

std::vector<double> load_of(Run& run, const Routing& in) {
  std::vector<double> out(static_cast<size_t>(in.experts), 0.0);
  const int64_t tokens = in.choice.rows(), blocks = (tokens + kBlockTokens - 1) / kBlockTokens;
  if (!is_estimated(in)) {
    for (int64_t n = 0; n < tokens; ++n)
      for (int64_t i = 0; i < in.choice.cols(); ++i)
        out[static_cast<size_t>(in.choice.row<int32_t>(n)[i])] +=
            in.selected.row<int32_t>(n)[i] != 0;
    return out;
  }
  ArenaScope scope(run.scratch);
  const Tensor best = best_of(run, in);
  const auto cells = static_cast<size_t>(blocks * in.experts);
  // [blocks,E]
  auto* partial = static_cast<double*>(run.scratch.alloc_bytes(cells * sizeof(double)));
  std::fill_n(partial, cells, 0.0);
  parallel_for(run.threads, blocks, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin * kBlockTokens; n < std::min(tokens, end * kBlockTokens); ++n)
      for (int64_t e = 0; e < in.experts; ++e)
        partial[n / kBlockTokens * in.experts + e] +=
            std::erfc(-standing(in, best.row<int32_t>(n), n, e).distance / std::numbers::sqrt2) / 2;
  });
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t e = 0; e < in.experts; ++e)
      out[static_cast<size_t>(e)] += partial[b * in.experts + e];
  return out;
}

}  // namespace

void importance_forward(Run& run, Tensor value, const Routing& in) {
  OnHost host(run);
  *host.write(value).as<float>() = static_cast<float>(cv2(importance_of(on_host(host, in))));
}

void importance_backward_acc(Run& run, Tensor dw, const Routing& all, float coef) {
  OnHost host(run);
  const Routing in = on_host(host, all);
  dw = host.write(dw);
  const std::vector<double> slope = cv2_gradient(importance_of(in));
  each_token(run, in.choice.rows(), [&](int64_t n) {
    for (int64_t i = 0; i < in.choice.cols(); ++i)
      if (in.selected.row<int32_t>(n)[i] != 0)
        dw.row<float>(n)[i] +=
            static_cast<float>(coef * slope[static_cast<size_t>(in.choice.row<int32_t>(n)[i])]);
  });
}

void load_forward(Run& run, Tensor value, const Routing& all) {
  OnHost host(run);
  *host.write(value).as<float>() =
      static_cast<float>(cv2(load_of(host_run(run), on_host(host, all))));
}

// With u the distance and phi the normal density: dclean_e = g phi(u) / sigma, dsigma_e = -u
// dclean_e, and the rival's noisy logit gets -dclean_e, g being the gradient of e's load.
void load_backward_acc(Run& any, Tensor dlogits, Tensor dclean, Tensor dsigma, const Routing& all,
                       float coef) {
  OnHost host(any);
  Run& run = host_run(any);
  const Routing in = on_host(host, all);
  dlogits = host.write(dlogits), dclean = host.write(dclean), dsigma = host.write(dsigma);
  if (!is_estimated(in)) return;
  const std::vector<double> slope = cv2_gradient(load_of(run, in));
  ArenaScope scope(run.scratch);
  const Tensor best = best_of(run, in);
  const double norm = std::sqrt(2 * std::numbers::pi);
  each_token(run, in.choice.rows(), [&](int64_t n) {
    const int32_t* top = best.row<int32_t>(n);
    double of_rival[2] = {};  // at rank K+1 and K
    for (int64_t e = 0; e < in.experts; ++e) {
      const Standing at = standing(in, top, n, e);
      if (!(at.sigma > 0)) continue;
      const double d = static_cast<double>(coef) * slope[static_cast<size_t>(e)] *
                       std::exp(-at.distance * at.distance / 2) / (norm * at.sigma);
      dclean.row<float>(n)[e] += static_cast<float>(d);
      dsigma.row<float>(n)[e] += static_cast<float>(-at.distance * d);
      of_rival[at.rival == top[in.slots()] ? 0 : 1] -= d;
    }
    dlogits.row<float>(n)[top[in.slots()]] += static_cast<float>(of_rival[0]);
    dlogits.row<float>(n)[top[in.slots() - 1]] += static_cast<float>(of_rival[1]);
  });
}

}  // namespace moe
