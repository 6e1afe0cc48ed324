// The noise stages against their formulas on dual numbers; draws depend on key and place alone.
#include <algorithm>

#include "moe/stages/noise.h"

#include "support/check.h"
#include "support/gradient.h"

namespace moe::test::noise_test {
namespace {

constexpr int64_t kTokens = 300, kExperts = 8;
const RngKey kKey = RngKey::from_seed(4);

template <class T>
T softplus_twin(T x) {
  using std::exp, std::log;
  return log(T(1.0) + exp(x));
}

TEST(Jitter, MultipliesByUniformFactors) {
  moe::Run run(2);
  const Tensor x = draw(run.saved, DType::f32, {kTokens, 16}, 1),
               y = run.saved.alloc(DType::f32, {kTokens, 16});
  jitter(run, y, x, InputJitter{0.1f}, kKey);
  double least = 2, most = 0, mean = 0;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double factor = y.as<float>()[i] / x.as<float>()[i];
    EXPECT_NEAR(factor, 1 - 0.1 + 2 * 0.1 * uniform(kKey, static_cast<uint64_t>(i)), 1e-6);
    least = std::min(least, factor);
    most = std::max(most, factor);
    mean += factor / static_cast<double>(x.numel());
  }
  EXPECT_GT(least, 0.8999);
  EXPECT_LT(least, 0.901);
  EXPECT_LT(most, 1.1001);
  EXPECT_GT(most, 1.099);
  EXPECT_NEAR(mean, 1, 0.005);
}

TEST(Jitter, IsItsOwnBackwardInPlace) {
  moe::Run run(1);
  const Tensor dy = draw(run.saved, DType::f32, {5, 16}, 2),
               ones = run.saved.alloc(DType::f32, {5, 16}),
               factor = run.saved.alloc(DType::f32, {5, 16});
  const std::vector<double> given = values(dy);
  fill(ones, std::vector<double>(80, 1));
  jitter(run, factor, ones, InputJitter{}, kKey);
  jitter(run, dy, dy, InputJitter{}, kKey);
  for (size_t i = 0; i < 80; ++i)
    EXPECT_FLOAT_EQ(dy.as<float>()[i], static_cast<float>(given[i]) * factor.as<float>()[i]);
}

TEST(Noise, WithoutAKeyNothingIsDrawn) {
  moe::Run run(1);
  const Tensor x = draw(run.saved, DType::f32, {5, 16}, 2),
               y = run.saved.alloc(DType::f32, {5, 16}),
               z = draw(run.saved, DType::f32, {5, 16}, 2);
  jitter(run, y, x, InputJitter{}, {});
  EXPECT_TRUE(same_bits(x, y));
  learned_noise_forward_acc(run, z, x, LearnedNoise{}, {});
  EXPECT_TRUE(same_bits(x, z));
}

TEST(Noise, IsTheSameForAnyThreadsAndNewForAnyKey) {
  moe::Run one(1), two(2);
  const Tensor x = draw(one.saved, DType::f32, {kTokens, kExperts}, 1);
  const auto noisy = [&](moe::Run& run, RngKey key, bool learned) {
    Tensor out = draw(one.saved, DType::f32, {kTokens, kExperts}, 3);
    if (learned) learned_noise_forward_acc(run, out, x, LearnedNoise{0.01f}, key);
    else jitter(run, out, x, InputJitter{0.01f}, key);
    return out;
  };
  for (bool learned : {false, true}) {
    EXPECT_TRUE(same_bits(noisy(one, kKey, learned), noisy(two, kKey, learned)));
    EXPECT_FALSE(same_bits(noisy(one, kKey, learned), noisy(one, RngKey::from_seed(5), learned)));
  }
}

// z' = z + sigma n and <z', r> + <sigma, q>: the second term is what the load loss sends to the
// scale itself.
TEST(LearnedNoise, ForwardScaleAndBackwardMatchTheTwin) {
  const size_t size = static_cast<size_t>(kTokens * kExperts);
  const std::vector<double> r = drawn(size, 6), q = drawn(size, 7);
  for (int threads : {1, 2})
    for (float floor : {0.0f, 0.01f}) {
      moe::Run run(threads);
      const Tensor raw = draw(run.saved, DType::f32, {kTokens, kExperts}, 5, 8),
                   z = draw(run.saved, DType::f32, {kTokens, kExperts}, 8),
                   sigma = run.saved.alloc(DType::f32, {kTokens, kExperts}),
                   dz = run.saved.alloc(DType::f32, {kTokens, kExperts}),
                   dsigma = run.saved.alloc(DType::f32, {kTokens, kExperts}),
                   draw_out = run.saved.alloc(DType::f32, {kTokens, kExperts});
      ASSERT_GT(*std::max_element(raw.as<float>(), raw.as<float>() + size), 20)
          << "the linear branch of softplus is to be tested too";
      const std::vector<double> clean = values(z), at = values(raw);
      fill(dz, r);
      fill(dsigma, q);
      std::vector<double> want_sigma(size), want_z(size), want_draw(size), want_draw_alone(size);
      for (size_t i = 0; i < size; ++i) {
        const double n = normal(kKey, i);
        const Dual<double> s =
            softplus_twin(Dual<double>(at[i], 1)) + Dual<double>(static_cast<double>(floor));
        want_sigma[i] = s.v;
        want_z[i] = clean[i] + s.v * n;
        want_draw_alone[i] = r[i] * n * s.d;
        want_draw[i] = (r[i] * n + q[i]) * s.d;
      }
      const LearnedNoise stage{floor};
      learned_noise_scale(run, sigma, raw, stage);
      expect_near(sigma, want_sigma, kTwinF32, "sigma");
      learned_noise_forward_acc(run, z, raw, stage, kKey);
      expect_near(z, want_z, kTwinF32, "noisy logits");
      learned_noise_backward(run, draw_out, dz, dsigma, raw, stage, kKey);
      expect_near(draw_out, want_draw, kTwinF32, "draw");
      learned_noise_backward(run, draw_out, dz, {}, raw, stage, kKey);
      expect_near(draw_out, want_draw_alone, kTwinF32, "draw without dsigma");
    }
}

}  // namespace
}  // namespace moe::test::noise_test
