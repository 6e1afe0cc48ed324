// Experts that are the neurons of one network against the same experts as a bank of width 1, which
// a plan sends rows to: values, gradients, and what is only read.
#include "moe/neurons.h"

#include <gtest/gtest.h>

#include "moe/layer.h"
#include "moe/recipes/recipes.h"
#include "support/check.h"

namespace moe::neurons_test {
namespace {

using test::draw;
using test::expect_near;
using test::values;

constexpr int64_t kWidth = 24, kNeurons = 40;

// [E,..]: `by_row` of one bank as a bank of E of width 1, whose memory it shares: the rows of gate
// and up are the experts', and those of down their columns.
Param one_each(const Param& bank, bool down) {
  Param p;
  const int64_t rows = down ? kWidth : 1, cols = down ? 1 : kWidth;
  p.value = bank.value.reshape({kNeurons, rows, cols});
  if (!bank.grad.empty()) p.grad = bank.grad.reshape({kNeurons, rows, cols});
  return p;
}

struct Layers {
  Arena memory;
  MoeLayer neurons, bank;
  RoutingOptions options;
  RoutingSpec spec;

  Layers(int64_t k, bool gated, ops::Act act) {
    options = default_options(find_recipe("sketch"), kNeurons, k, 1);
    spec = train_spec(options);
    uint64_t seed = 1;
    const auto param = [&](std::initializer_list<int64_t> shape) {
      return test::draw_param(memory, shape, seed++, 0.3f);
    };
    neurons.by_neuron = true;
    neurons.experts.act = bank.experts.act = act;
    if (gated) neurons.experts.gate = param({1, kNeurons, kWidth});
    neurons.experts.up = param({1, kNeurons, kWidth});
    neurons.experts.down = param({1, kNeurons, kWidth});
    if (gated) bank.experts.gate = copy(neurons.experts.gate, false);
    bank.experts.up = copy(neurons.experts.up, false);
    bank.experts.down = copy(neurons.experts.down, true);
    for (MoeLayer* layer : {&neurons, &bank}) {
      Router& router = layer->router.emplace();
      router.logit.act = act;
      router.logit.weight = test::draw_param(memory, {kNeurons, kWidth}, 50, 0.3f);
      if (gated) router.logit.up = test::draw_param(memory, {kNeurons, kWidth}, 51, 0.3f);
    }
  }

  Param copy(const Param& from, bool down) {
    Param own;
    own.value = memory.copy(from.value);
    own.grad = memory.alloc_zeroed(DType::f32, {1, kNeurons, kWidth});
    return one_each(own, down);
  }
};

struct Made {
  std::vector<double> y, dx, dgate, dup, ddown;
};

// dy is drawn; without `back` the forward alone.
Made run_layer(Layers& all, MoeLayer& layer, int64_t tokens, DType dtype, bool back) {
  moe::Run run(2, dtype);
  Arena memory;
  const Tensor x = draw(memory, dtype, {tokens, kWidth}, 7),
               dy = draw(memory, dtype, {tokens, kWidth}, 8),
               y = memory.alloc(DType::f32, {tokens, kWidth}),
               dx = memory.alloc_zeroed(DType::f32, {tokens, kWidth});
  const std::vector<int32_t> ids(static_cast<size_t>(tokens));
  const std::vector<int64_t> bounds = {0, tokens};
  const Pass pass{.batch = {.ids = ids, .positions = {}, .bounds = bounds},
                  .routing = &all.spec,
                  .keep = back ? Keep::all : Keep::nothing,
                  .wanted = {.counts = true}};
  MoeLayer::Saved saved;
  layer.forward(run, y, x, {}, pass, saved);
  Made made{.y = values(y)};
  if (!back) return made;
  layer.backward(run, dx, {}, dy, x, pass, {}, saved);
  made.dx = values(dx);
  for (Param* p : {&layer.experts.gate, &layer.experts.up, &layer.experts.down})
    if (p->present()) ops::settle_grad(run, *p);
  if (layer.experts.gate.present()) made.dgate = values(layer.experts.gate.grad);
  made.dup = values(layer.experts.up.grad);
  made.ddown = values(layer.experts.down.grad);
  return made;
}

TEST(Neurons, AreABankOfExpertsOfWidthOne) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool gated : {true, false})
      for (const int64_t k : {int64_t{1}, int64_t{17}, kNeurons})
        for (const int64_t tokens : {1, 5, 70}) {
          SCOPED_TRACE(
              fmt::format("{}, gated {}, k {}, {} tokens", name_of(dtype), gated, k, tokens));
          Layers all(k, gated, ops::Act::silu);
          const double near = test::tolerance(dtype);
          const Made want = run_layer(all, all.bank, tokens, dtype, true),
                     got = run_layer(all, all.neurons, tokens, dtype, true),
                     few = run_layer(all, all.neurons, tokens, dtype, false);
          expect_near(got.y, want.y, near, "y");
          expect_near(few.y, want.y, near, "y without backward");
          expect_near(got.dx, want.dx, near, "dx");
          if (gated) expect_near(got.dgate, want.dgate, near, "dgate");
          expect_near(got.dup, want.dup, near, "dup");
          expect_near(got.ddown, want.ddown, near, "ddown");
        }
}

// A token of a sequence that is only read takes all neurons, whatever stands beside it; the others
// take theirs.
TEST(Neurons, OfTokensThatAreOnlyReadAllWork) {
  Layers all(6, true, ops::Act::silu), whole(kNeurons, true, ops::Act::silu);
  const int64_t tokens = 9;
  const std::vector<double> chosen = run_layer(all, all.neurons, tokens, DType::f32, false).y,
                            complete = run_layer(whole, whole.neurons, tokens, DType::f32, false).y;
  moe::Run run(2);
  Arena memory;
  const Tensor x = draw(memory, DType::f32, {tokens, kWidth}, 7),
               y = memory.alloc(DType::f32, {tokens, kWidth});
  const std::vector<int32_t> ids(static_cast<size_t>(tokens));
  const std::vector<int64_t> bounds = {0, 4, 5, 9};
  const bool only_read[] = {true, false, true};
  for (const bool looked_at : {false, true}) {
    int64_t told = 0;
    const std::function<void(int64_t, const MoeLayerSaved&)> look =
        [&](int64_t, const MoeLayerSaved&) { ++told; };
    const Pass pass{.batch = {.ids = ids, .positions = {}, .bounds = bounds},
                    .routing = &all.spec,
                    .wanted = {.counts = true},
                    .only_read = only_read,
                    .on_routing = looked_at ? &look : nullptr};
    MoeLayer::Saved saved;
    all.neurons.forward(run, y, x, {}, pass, saved);
    const std::vector<double> got = values(y);
    for (int64_t n = 0; n < tokens; ++n) {
      const std::vector<double>& want = n == 4 ? chosen : complete;
      const auto row = [n](const std::vector<double>& all_rows) {
        return std::vector<double>(all_rows.begin() + n * kWidth,
                                   all_rows.begin() + (n + 1) * kWidth);
      };
      expect_near(row(got), row(want), test::kTwinF32, fmt::format("token {}", n));
    }
    int64_t pairs = 0;
    for (int64_t e = 0; e < kNeurons; ++e) pairs += saved.router.counts.as<int32_t>()[e];
    EXPECT_EQ(pairs, looked_at ? 9 * 6 : 8 * kNeurons + 6);
  }
}

}  // namespace
}  // namespace moe::neurons_test
