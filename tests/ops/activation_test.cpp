// The hidden layer of an expert against its twin: every activation, with and without gate and
// weight, backward in the memory of the forward.
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "ops/ops.h"
#include "support/gradient.h"
#include "support/rowwise.h"
#include "support/twins_rowwise.h"

namespace moe::test::activation_test {
namespace {

using ops::Act;

constexpr Act kActs[] = {Act::silu,       Act::gelu,  Act::gelu_tanh, Act::relu,
                         Act::swiglu_oai, Act::relu2, Act::swiglu_10};

std::string describe_case(Act act, DType dtype, int64_t cols, bool gated, bool weighted) {
  const char* names[] = {"silu",       "gelu",    "gelu_tanh", "relu",
                         "swiglu_oai", "sigmoid", "relu2",     "swiglu_10"};
  return label(names[static_cast<int>(act)], {dtype}, cols) + (gated ? ", gated" : "") +
         (weighted ? ", weighted" : "");
}

TEST(FfnAct, TwinBackwardAgreesWithDual) {
  const size_t cols = 5, rows = 3;
  for (Act act : kActs)
    for (bool gated : {false, true})
      for (bool weighted : {false, true}) {
        const std::string what = describe_case(act, DType::f32, 5, gated, weighted);
        const auto up = drawn(rows * cols, 1), dhidden = drawn(rows * cols, 2);
        const auto gate = gated ? drawn(rows * cols, 3) : std::vector<double>(),
                   weight = weighted ? drawn(rows, 4) : std::vector<double>();
        const auto got = twin::ffn_act_backward(dhidden, gate, up, weight, cols, act);
        const auto loss = [&](const DualVector& g, const DualVector& u, const DualVector& w) {
          return inner(twin::ffn_act_forward(g, u, w, cols, act), dhidden);
        };
        expect_near(got.dup,
                    dual_gradient(up,
                                  [&](const DualVector& at) {
                                    return loss(constants(gate), at, constants(weight));
                                  }),
                    kTwinDual, what + " dup");
        if (gated)
          expect_near(got.dgate,
                      dual_gradient(gate,
                                    [&](const DualVector& at) {
                                      return loss(at, constants(up), constants(weight));
                                    }),
                      kTwinDual, what + " dgate");
        if (weighted)
          expect_near(got.dweight,
                      dual_gradient(weight,
                                    [&](const DualVector& at) {
                                      return loss(constants(gate), constants(up), at);
                                    }),
                      kTwinDual, what + " dweight");
      }
}

// Everything one case needs; outputs in memory of their own, or where ops.h lets them lie over the
// inputs.
struct Case {
  Case(Arena& arena, DType dtype, int64_t rows, int64_t cols, bool gated, bool weighted)
      : up(arena, dtype, rows, cols, 1, 2),
        gate(arena, dtype, rows, cols, 2, 2),
        dhidden(arena, dtype, rows, cols, 3) {
    if (weighted) {
      weight = draw(arena, DType::f32, {rows}, 4);
      dweight = arena.alloc(DType::f32, {rows});
    }
    if (gated) gate_view = gate.view;
  }
  bool intact() const { return up.intact() && gate.intact() && dhidden.intact(); }

  Fenced up, gate, dhidden;  // [rows, cols]
  Tensor gate_view;          // [rows, cols] over gate, or absent
  Tensor weight, dweight;    // [rows] or absent
};

TEST(FfnAct, ForwardAndBackwardAgreeWithTwin) {
  for (int64_t cols : kWidths)
    for (Act act : kActs)
      for (DType dtype : kFloats)
        for (bool gated : {false, true})
          for (bool weighted : {false, true}) {
            const std::string what = describe_case(act, dtype, cols, gated, weighted);
            moe::Run run(2);
            Arena arena;
            const int64_t rows = 41;
            const Case in(arena, dtype, rows, cols, gated, weighted);
            const Fenced hidden(arena, dtype, rows, cols), dup(arena, dtype, rows, cols),
                dgate(arena, dtype, rows, cols), again(arena, dtype, rows, cols);
            const auto gate = gated ? values(in.gate_view) : std::vector<double>(),
                       weight = weighted ? values(in.weight) : std::vector<double>();
            ops::ffn_act_forward(run, hidden.view, in.gate_view, in.up.view, in.weight, act);
            expect_near(hidden.view,
                        twin::ffn_act_forward(gate, values(in.up.view), weight,
                                              static_cast<size_t>(cols), act),
                        tolerance(dtype), what + " hidden");
            const auto want =
                twin::ffn_act_backward(values(in.dhidden.view), gate, values(in.up.view), weight,
                                       static_cast<size_t>(cols), act);
            ops::ffn_act_backward(run, gated ? dgate.view : Tensor(), dup.view, again.view,
                                  in.dweight, in.dhidden.view, in.gate_view, in.up.view, in.weight,
                                  act);
            expect_near(dup.view, want.dup, tolerance(dtype), what + " dup");
            if (gated) expect_near(dgate.view, want.dgate, tolerance(dtype), what + " dgate");
            if (weighted)
              expect_near(in.dweight, want.dweight, tolerance(DType::f32), what + " dweight");
            EXPECT_TRUE(same_bits(again.view, hidden.view))
                << what << ": hidden recomputed differs from the forward";
            // The same in place: dgate over gate, dup over up, hidden over dhidden.
            ops::ffn_act_backward(run, in.gate_view, in.up.view, in.dhidden.view, in.dweight,
                                  in.dhidden.view, in.gate_view, in.up.view, in.weight, act);
            EXPECT_TRUE(same_bits(in.up.view, dup.view) && same_bits(in.dhidden.view, hidden.view))
                << what << " in place";
            EXPECT_TRUE(!gated || same_bits(in.gate_view, dgate.view)) << what << " in place";
            EXPECT_TRUE(in.intact() && hidden.intact() && dup.intact() && dgate.intact() &&
                        again.intact())
                << what;
          }
}

TEST(FfnAct, LargeInputsSaturateWithoutNaN) {
  moe::Run run(1);
  Arena arena;
  const std::vector<double> extremes = {-1e30, -1e4, -200, -90, -0.0, 0.0, 90, 200, 1e4, 1e30};
  const Tensor x = arena.alloc(DType::f32, {1, 10}), y = arena.alloc(DType::f32, {1, 10}),
               dx = arena.alloc(DType::f32, {1, 10}), ones = arena.alloc(DType::f32, {1, 10});
  fill(x, extremes);
  fill(ones, std::vector<double>(10, 1));
  for (Act act : kActs) {
    // two are held at 7 and 10, and the other grows as a square
    if (twin::limit_of(act) > 0 || act == Act::relu2) continue;
    ops::ffn_act_forward(run, y, Tensor(), x, Tensor(), act);
    ops::ffn_act_backward(run, Tensor(), dx, arena.alloc(DType::f32, {1, 10}), Tensor(), ones,
                          Tensor(), x, Tensor(), act);
    for (int64_t c = 0; c < 10; ++c) {
      const double want = extremes[static_cast<size_t>(c)] > 0 ? get(x, 0, c) : 0;
      EXPECT_NEAR(get(y, 0, c), want, 1e-6 * want)
          << describe_case(act, DType::f32, 10, false, false) << " of " << get(x, 0, c);
      if (get(x, 0, c) == 0) continue;
      EXPECT_EQ(get(dx, 0, c), want > 0 ? 1 : 0)
          << describe_case(act, DType::f32, 10, false, false) << " slope at " << get(x, 0, c);
    }
    set(x, 0, 3, NAN);
    ops::ffn_act_forward(run, y, Tensor(), x, Tensor(), act);
    EXPECT_TRUE(std::isnan(get(y, 0, 3)));
    fill(x, extremes);
  }
}

TEST(FfnAct, SquareOfReluByHand) {
  moe::Run run(1);
  Arena arena;
  const Tensor x = arena.alloc(DType::f32, {1, 4}), y = arena.alloc(DType::f32, {1, 4}),
               dx = arena.alloc(DType::f32, {1, 4}), ones = arena.alloc(DType::f32, {1, 4});
  fill(x, {-3, 0, 1.5, NAN});
  fill(ones, std::vector<double>(4, 1));
  ops::ffn_act_forward(run, y, Tensor(), x, Tensor(), Act::relu2);
  EXPECT_EQ(get(y, 0, 0), 0);
  EXPECT_EQ(get(y, 0, 1), 0);
  EXPECT_EQ(get(y, 0, 2), 2.25);
  EXPECT_TRUE(std::isnan(get(y, 0, 3)));
  ops::ffn_act_backward(run, Tensor(), dx, y, Tensor(), ones, Tensor(), x, Tensor(), Act::relu2);
  EXPECT_EQ(get(dx, 0, 0), 0);
  EXPECT_EQ(get(dx, 0, 1), 0);
  EXPECT_EQ(get(dx, 0, 2), 3);
}

// Where the gate and what is beside it are held.
void expect_held(Act act) {
  moe::Run run(1);
  Arena arena;
  const double over = twin::limit_of(act) + 0.5;
  const std::vector<double> gates = {-30, -over, -1, 0, over - 1, over, 30, 2, 2, 2},
                            ups = {1, 1, 1, 1, 1, 1, 1, over, -over, 30};
  const auto row = [&](const std::vector<double>& numbers) {
    const Tensor t = arena.alloc(DType::f32, {1, 10});
    fill(t, numbers);
    return t;
  };
  const std::vector<double> ones(10, 1);
  const Tensor gate = row(gates), up = row(ups), dhidden = row(ones), hidden = row(ones),
               dgate = row(ones), dup = row(ones);
  ops::ffn_act_forward(run, hidden, gate, up, Tensor(), act);
  expect_near(hidden, twin::ffn_act_forward(gates, ups, {}, 10, act), kTwinF32, "h");
  EXPECT_EQ(get(hidden, 0, 5), get(hidden, 0, 6));
  EXPECT_EQ(get(hidden, 0, 7), get(hidden, 0, 9));
  ops::ffn_act_backward(run, dgate, dup, hidden, Tensor(), dhidden, gate, up, Tensor(), act);
  const auto want = twin::ffn_act_backward(ones, gates, ups, {}, 10, act);
  expect_near(dgate, want.dgate, kTwinF32, "dgate");
  expect_near(dup, want.dup, kTwinF32, "dup");
  EXPECT_EQ(get(dgate, 0, 5), 0);
  EXPECT_EQ(get(dup, 0, 8), 0);
  set(gate, 0, 2, NAN);
  set(up, 0, 3, NAN);
  ops::ffn_act_forward(run, hidden, gate, up, Tensor(), act);
  EXPECT_TRUE(std::isnan(get(hidden, 0, 2)) && std::isnan(get(hidden, 0, 3)));
}

TEST(FfnAct, IsHeldAtItsLimit) {
  expect_held(Act::swiglu_oai);
  expect_held(Act::swiglu_10);
}

TEST(FfnAct, LawOfRows) {
  for (DType dtype : kFloats)
    for (Act act : {Act::silu, Act::gelu}) {
      Arena arena;
      const int64_t cols = 385;
      const Tensor gates = draw(arena, dtype, {300, cols}, 1),
                   ups = draw(arena, dtype, {300, cols}, 2),
                   grads = draw(arena, dtype, {300, cols}, 3);
      const Tensor weights = draw(arena, DType::f32, {300, 1}, 4);
      expect_law_of_rows(
          [&](moe::Run& run, std::span<const int32_t> which) {
            const Tensor gate = pick(run.saved, gates, which), up = pick(run.saved, ups, which),
                         grad = pick(run.saved, grads, which);
            const Tensor weight = pick(run.saved, weights, which),
                         dweight =
                             run.saved.alloc(DType::f32, {static_cast<int64_t>(which.size()), 1});
            const Tensor hidden = pick(run.saved, ups, which);
            ops::ffn_act_forward(run, hidden, gate, up, weight, act);
            ops::ffn_act_backward(run, gate, up, grad, dweight, grad, gate, up, weight, act);
            return join(run.saved, {hidden, gate, up, dweight});
          },
          describe_case(act, dtype, cols, true, true));
    }
}

TEST(FfnAct, ShapesThatDoNotFitAreNamed) {
  moe::Run run(1);
  Arena arena;
  const Tensor x = draw(arena, DType::f32, {3, 8}, 1), narrow = draw(arena, DType::bf16, {3, 8}, 1),
               weight = draw(arena, DType::f32, {2}, 1);
  EXPECT_THROW(ops::ffn_act_forward(run, narrow, Tensor(), x, Tensor(), Act::silu), Error);
  EXPECT_THROW(ops::ffn_act_forward(run, x, narrow, x, Tensor(), Act::silu), Error);
  EXPECT_THROW(ops::ffn_act_backward(run, x, x, x, Tensor(), x, Tensor(), x, Tensor(), Act::silu),
               Error);
  try {
    ops::ffn_act_forward(run, x, Tensor(), x, weight, Act::silu);
    FAIL() << "a weight of another length was taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("weight f32 [2]"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace moe::test::activation_test
