// What a router makes of its tokens, stage by stage: each stage reads what those before it left and
// leaves its own. A stage is a function of a Routing and the pass (moe/pass.h); a new one needs no
// argument of its own.
#pragma once

#include <vector>

#include "moe/pass.h"
#include "moe/stages/logits.h"

namespace moe {

// One number for each loss: values, or coefficients. A mean over MoE layers in both.
struct RoutingLosses {
  float balance = 0;
  float z = 0;
  float device = 0;
  float communication = 0;
  float importance = 0;
  float load = 0;
};
// f(name, value) for each, in the order above.
template <class Losses, class F>
void each_loss(Losses& l, F&& f) {
  f("balance", l.balance);
  f("z", l.z);
  f("device", l.device);
  f("communication", l.communication);
  f("importance", l.importance);
  f("load", l.load);
}

// As they lie one after another in the order of each_loss().
constexpr int64_t kRoutingLosses = 6;
inline RoutingLosses losses_of(const float* values) {
  RoutingLosses out;
  each_loss(out, [&](const char*, float& loss) { loss = *values++; });
  return out;
}
// One of them.  values [kRoutingLosses] f32 -> [1]
inline Tensor loss_at(const Tensor& values, float RoutingLosses::*which) {
  RoutingLosses all;
  int64_t at = 0, found = 0;
  each_loss(all, [&](const char*, float& loss) {
    if (&loss == &(all.*which)) found = at;
    ++at;
  });
  return Tensor(values.as<float>() + found, DType::f32, {1});
}

// Views into run.saved, of the pass and of the router, alive until backward.
struct Routing {
  int64_t experts = 0;  // E
  int64_t index = 0;    // of the router among the model's
  RngKey key = {};      // of the router's draws; empty: nothing is drawn
  // [E] f32 the router's, for the select stage; absent where it has none
  Tensor bias = {}, threshold = {};
  Tensor scale = {};  // [E] f32 likewise, for the weigh stage

  Tensor x = {};  // [N,D] A, the caller's, or f32 with the jitter in it: as the router saw it
  LogitParams::Saved made = {};
  Tensor raw = {};                // [N,E] f32, before softplus; absent without drawn noise
  Tensor clean = {}, sigma = {};  // [N,E] f32, logits before the noise and its scale; absent unless
                                  // a loss reads them
  Tensor logits = {};             // [N,E] f32, with the noise; absent for hash routing, like scores
  Tensor lse = {};       // [N] f32; absent too where nobody wants the z-loss or its gradient
  Tensor scores = {};    // [N,E] f32
  Tensor choice = {};    // [N,K] i32
  Tensor selected = {};  // [N,K] i32, what the select stage chose, before the second-choice policy
  Tensor cutoff = {};    // [E] f32, where experts choose: of their own choice, whether or not a
                         // recorded one is taken
  std::vector<int64_t> scopes =
      {};  // [S+1] of tokens that experts chose from; empty: all of them together
  // [N] i32, recorded choices that the router made too; absent without a record
  Tensor agreed = {};
  int64_t own = 0;      // pairs the router would have chosen; only counted with a record
  Tensor weights = {};  // [N,K] f32, before any drop
  // [N,K] i32, sent to an expert; `selected` itself where nothing can be held back
  Tensor kept = {};
  int64_t dropped = 0;
  // Where there are zero experts: [N] f32 what those of a token weigh together, [N,K] i32 the kept
  // pairs with the others, which are rows, and [N,K] f32 what kept pairs weigh; absent without.
  Tensor zero = {}, rows = {}, kept_weights = {};
  // Where the pass wants them.
  Tensor counts = {};          // [E] i32, pairs after the second-choice policy, before any drop
  Tensor balance_counts = {};  // [E] i32, what the balance loss counts; absent without one
  Tensor losses = {};          // [kRoutingLosses] f32

  int64_t tokens() const { return choice.rows(); }
  int64_t slots() const { return choice.cols(); }  // K
};

}  // namespace moe
