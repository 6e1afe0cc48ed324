// The noise stages. Entry i of a matrix takes draw i of the key, so a draw depends on its place
// alone.
#include "moe/stages/noise.h"

#include "moe/stages/stage_math.h"
#include "tensor/on_host.h"

namespace moe {

void jitter(Run& run, Tensor dst, Tensor x, const InputJitter& stage, RngKey key) {
  const int64_t width = x.cols();
  OnHost host(run);
  x = host.read(x), dst = host.write(dst);
  each_token(run, x.rows(), [&](int64_t n) {
    const float* in = x.row<float>(n);
    float* out = dst.row<float>(n);
    if (key.empty()) std::copy_n(in, width, out);
    else
      for (int64_t d = 0; d < width; ++d)
        out[d] = in[d] * (1 - stage.eps +
                          2 * stage.eps * uniform(key, static_cast<uint64_t>(n * width + d)));
  });
}

void learned_noise_forward_acc(Run& run, Tensor z, Tensor raw, const LearnedNoise& stage,
                               RngKey key) {
  if (key.empty()) return;
  const int64_t experts = z.cols();
  OnHost host(run);
  raw = host.read(raw), z = host.write(z);
  each_token(run, z.rows(), [&](int64_t n) {
    float* out = z.row<float>(n);
    const float* in = raw.row<float>(n);
    for (int64_t e = 0; e < experts; ++e)
      out[e] +=
          (softplus(in[e]) + stage.floor) * normal(key, static_cast<uint64_t>(n * experts + e));
  });
}

void learned_noise_backward(Run& run, Tensor draw, Tensor dz, Tensor dsigma, Tensor raw,
                            const LearnedNoise&, RngKey key) {
  const int64_t experts = dz.cols();
  OnHost host(run);
  dz = host.read(dz), dsigma = host.read(dsigma), raw = host.read(raw), draw = host.write(draw);
  each_token(run, dz.rows(), [&](int64_t n) {
    const float *dy = dz.row<float>(n), *in = raw.row<float>(n);
    const float* direct = dsigma.empty() ? nullptr : dsigma.row<float>(n);
    float* out = draw.row<float>(n);
    for (int64_t e = 0; e < experts; ++e) {
      const float drawn = key.empty() ? 0 : normal(key, static_cast<uint64_t>(n * experts + e));
      out[e] = (dy[e] * drawn + (direct != nullptr ? direct[e] : 0)) * sigmoid(in[e]);
    }
  });
}

void learned_noise_scale(Run& run, Tensor sigma, Tensor raw, const LearnedNoise& stage) {
  const int64_t experts = raw.cols();
  OnHost host(run);
  raw = host.read(raw), sigma = host.write(sigma);
  each_token(run, raw.rows(), [&](int64_t n) {
    const float* in = raw.row<float>(n);
    float* out = sigma.row<float>(n);
    for (int64_t e = 0; e < experts; ++e) out[e] = softplus(in[e]) + stage.floor;
  });
}

}  // namespace moe
