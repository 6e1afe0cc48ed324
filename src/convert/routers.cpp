// Routers that need no training. CMoE: arXiv 2502.04416, section 3.3, with the rows' norms and the
// absolute value of its code (github JarvisPei/CMoE). MoEfication: github thunlp/MoEfication,
// moefication/ (similarity and learned selection; its activations are those of a ReLU, here
// |hidden| stands for them).
#include <cmath>

#include "convert/carve_steps.h"
#include "convert/least_squares.h"
#include "core/threads.h"

namespace moe {
namespace {

constexpr double kRouterRidge = 1e-2;  // of the mean variance of the inputs

double norm_of(const float* row, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(row[i]) * static_cast<double>(row[i]);
  return std::sqrt(sum);
}

// to[e,:] = from[neurons[e],:] / norm; zeros stay zeros.  f32
void unit_rows(Param& to, Tensor from, std::span<const int32_t> neurons) {
  for (size_t e = 0; e < neurons.size(); ++e) {
    const float* row = from.row<float>(neurons[e]);
    const double norm = norm_of(row, from.cols());
    for (int64_t d = 0; d < from.cols(); ++d)
      to.value.row<float>(static_cast<int64_t>(e))[d] =
          norm > 0 ? static_cast<float>(row[d] / norm) : 0.0f;
  }
  to.touched();
}

double mean_norm(Tensor x) {
  double sum = 0;
  for (int64_t n = 0; n < x.rows(); ++n) {
    double square = 0;
    for (int64_t d = 0; d < x.cols(); ++d) {
      const double v = static_cast<double>(x.dtype == DType::bf16 ? to_f32(x.row<bf16>(n)[d])
                                                                  : x.row<float>(n)[d]);
      square += v * v;
    }
    sum += std::sqrt(square);
  }
  return sum / static_cast<double>(x.rows());
}

}  // namespace

void analytic_router(Carving& c) {
  const std::vector<int32_t> neurons = representatives(c.marks(), c.partition);
  LogitParams& logit = c.carved.router->logit;
  if (c.dense.gate.present()) {
    unit_rows(logit.weight, c.dense.gate.value.at(0), neurons);
    unit_rows(logit.up, c.dense.up.value.at(0), neurons);
  } else {
    unit_rows(logit.weight, c.dense.up.value.at(0), neurons);
  }
}

void similarity_router(Carving& c) {
  const Tensor rows = (c.dense.gate.present() ? c.dense.gate : c.dense.up).value.at(0);
  LogitParams& logit = c.carved.router->logit;
  const double length = mean_norm(c.a.x);
  const auto width = static_cast<size_t>(rows.cols());
  for (int64_t e = 0; e < c.shape.experts; ++e) {
    std::vector<double> mean(width, 0);
    for (int32_t f : c.partition.experts[static_cast<size_t>(e)]) {
      const float* row = rows.row<float>(f);
      const double norm = norm_of(row, rows.cols());
      for (size_t d = 0; d < width && norm > 0; ++d)
        mean[d] += row[d] / norm / static_cast<double>(c.shape.width);
    }
    double square = 0;
    for (size_t d = 0; d < width; ++d) {
      logit.weight.value.row<float>(e)[d] = static_cast<float>(mean[d]);
      square += mean[d] * mean[d];
    }
    logit.bias.value.as<float>()[e] = static_cast<float>(-length * square / 2);
  }
  logit.weight.touched();
  logit.bias.touched();
}

void learned_router(Carving& c) {
  std::vector<float> mass = slice_mass(c.run, c.a, c.partition.expert_of(), c.shape.experts);
  LogitParams& logit = c.carved.router->logit;
  LinearFit(c.run, c.a.x, kRouterRidge)
      .fit(c.run, logit.weight.value, logit.bias.value,
           Tensor(mass.data(), DType::f32, {c.tokens(), c.shape.experts}));
  logit.weight.touched();
  logit.bias.touched();
}

}  // namespace moe
