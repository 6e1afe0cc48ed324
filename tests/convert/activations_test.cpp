// The dense walk of one FFN, the marks and the masses against plain loops over the formulas, for
// every kind of FFN.
#include "convert/activations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "support/check.h"

namespace moe::activations_test {
namespace {

constexpr int64_t kTokens = 700, kWidth = 24, kNeurons = 40;

struct Kind {
  const char* name;
  ops::Act act;
  bool gated, bias;
};
const Kind kKinds[] = {{"SwiGLU", ops::Act::silu, true, false},
                       {"GELU with biases", ops::Act::gelu, false, true},
                       {"ReLU", ops::Act::relu, false, false}};

struct Layer {
  Arena memory;
  ExpertBank bank;
  Tensor x;

  Layer(const Kind& kind, DType dtype = DType::f32) {
    bank.act = kind.act;
    if (kind.gated) bank.gate.value = test::draw(memory, DType::f32, {1, kNeurons, kWidth}, 1);
    bank.up.value = test::draw(memory, DType::f32, {1, kNeurons, kWidth}, 2, 0.5f);
    bank.down.value = test::draw(memory, DType::f32, {1, kWidth, kNeurons}, 3);
    if (kind.bias) {
      bank.up_bias.value = test::draw(memory, DType::f32, {1, kNeurons}, 4);
      bank.down_bias.value = test::draw(memory, DType::f32, {1, kWidth}, 5);
    }
    x = test::draw(memory, dtype, {kTokens, kWidth}, 6);
  }
};

double activation(ops::Act act, double z) {
  if (act == ops::Act::relu) return std::max(z, 0.0);
  if (act == ops::Act::gelu) return z / 2 * (1 + std::erf(z / std::sqrt(2.0)));
  return z / (1 + std::exp(-z));
}

double dot(Tensor a, int64_t i, Tensor b, int64_t j) {
  double sum = 0;
  for (int64_t d = 0; d < a.cols(); ++d) sum += test::get(a, i, d) * test::get(b, j, d);
  return sum;
}

double hidden(const Layer& l, int64_t n, int64_t f, bool cosine) {
  const auto scale = [&](const Param& w) {
    return cosine ? std::sqrt(dot(l.x, n, l.x, n) * dot(w.value.at(0), f, w.value.at(0), f)) : 1.0;
  };
  const auto product = [&](const Param& w, const Param& b) {
    return (dot(l.x, n, w.value.at(0), f) + (b.present() ? test::get(b.value, 0, f) : 0.0f)) /
           scale(w);
  };
  const double up = product(l.bank.up, l.bank.up_bias);
  return l.bank.gate.present() ? activation(l.bank.act, product(l.bank.gate, l.bank.gate_bias)) * up
                               : activation(l.bank.act, up);
}

TEST(Activations, MarkTheStrongestNeuronsOfEachToken) {
  for (const Kind& kind : kKinds)
    for (Profile profile : {Profile::raw, Profile::cosine}) {
      SCOPED_TRACE(std::string(kind.name) + (profile == Profile::raw ? ", raw" : ", cosine"));
      Layer layer(kind);
      moe::Run run(2);
      Activations a{.x = layer.x};
      run_dense(run, a, layer.bank);
      const Marks marks = mark_strongest(run, a, layer.bank, profile, 5);
      std::vector<int64_t> rate(kNeurons, 0);
      for (int64_t n = 0; n < kTokens; ++n) {
        std::vector<std::pair<double, int64_t>> all;
        for (int64_t f = 0; f < kNeurons; ++f)
          all.emplace_back(-std::fabs(hidden(layer, n, f, profile == Profile::cosine)), f);
        std::sort(all.begin(), all.end());
        const double cut = -all[4].first, next = -all[5].first;
        int64_t count = 0;
        for (const auto& [minus, f] : all) {
          count += marks.get(f, n);
          rate[static_cast<size_t>(f)] += marks.get(f, n);
          if (-minus > cut * (1 + 1e-4))
            EXPECT_TRUE(marks.get(f, n)) << "token " << n << ", neuron " << f;
          if (-minus < next * (1 - 1e-4))
            EXPECT_FALSE(marks.get(f, n)) << "token " << n << ", neuron " << f;
        }
        EXPECT_EQ(count, 5);
      }
      for (int64_t f = 0; f < kNeurons; ++f) EXPECT_EQ(marks.rate(f), rate[static_cast<size_t>(f)]);
    }
}

TEST(Activations, EqualOnesAreMarkedFromTheLowestIndex) {
  moe::Run run(1);
  Layer layer(kKinds[2]);
  std::fill_n(layer.x.as<float>(), layer.x.numel(), 0.0f);
  Activations a{.x = layer.x};
  run_dense(run, a, layer.bank);
  const Marks marks = mark_strongest(run, a, layer.bank, Profile::cosine, 3);
  for (int64_t f = 0; f < kNeurons; ++f) EXPECT_EQ(marks.rate(f), f < 3 ? kTokens : 0);
}

TEST(Activations, AreTheSameBitsForAnyThreads) {
  Layer layer(kKinds[0], DType::bf16);
  std::vector<std::vector<int64_t>> rates;
  std::vector<std::vector<float>> masses;
  std::vector<int32_t> slice_of(kNeurons);
  for (size_t f = 0; f < kNeurons; ++f) slice_of[f] = static_cast<int32_t>(f % 4) - 1;
  for (int threads : {1, 2, 3}) {
    moe::Run run(threads, DType::bf16);
    Activations a{.x = layer.x};
    run_dense(run, a, layer.bank);
    const Marks marks = mark_strongest(run, a, layer.bank, Profile::cosine, 5);
    rates.emplace_back();
    for (int64_t f = 0; f < kNeurons; ++f) rates.back().push_back(marks.rate(f));
    masses.push_back(slice_mass(run, a, slice_of, 3));
  }
  EXPECT_EQ(rates[0], rates[1]);
  EXPECT_EQ(rates[0], rates[2]);
  EXPECT_EQ(masses[0], masses[1]);
  EXPECT_EQ(masses[0], masses[2]);
}

TEST(Activations, DistanceIsHowManyTokensMarkOnlyOne) {
  Marks marks(2, 130);
  for (int64_t t : {0, 63, 64, 129}) marks.set(0, t);
  for (int64_t t : {0, 65, 129}) marks.set(1, t);
  EXPECT_EQ(marks.rate(0), 4);
  EXPECT_EQ(marks.distance(0, 1), 3);
}

TEST(Activations, MassIsTheSumOfMagnitudesInASlice) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    Layer layer(kind);
    moe::Run run(2);
    Activations a{.x = layer.x};
    run_dense(run, a, layer.bank);
    std::vector<int32_t> slice_of(kNeurons);
    for (size_t f = 0; f < kNeurons; ++f) slice_of[f] = static_cast<int32_t>(f % 4) - 1;
    const std::vector<float> mass = slice_mass(run, a, slice_of, 3);
    for (int64_t n = 0; n < kTokens; n += 37) {
      double want[3] = {0, 0, 0};
      for (int64_t f = 0; f < kNeurons; ++f)
        if (f % 4 > 0) want[f % 4 - 1] += std::fabs(hidden(layer, n, f, false));
      for (int64_t s = 0; s < 3; ++s)
        EXPECT_NEAR(mass[static_cast<size_t>(n * 3 + s)], want[s], 1e-4 * want[s]);
    }
  }
}

}  // namespace
}  // namespace moe::activations_test
