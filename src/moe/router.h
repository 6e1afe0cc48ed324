// The router: a list of stages run in order. It turns a token's hidden state into a RoutingPlan and, backwards, the gradient of the combine weights and of the
// auxiliary losses into gradients of its weights and its input. Everything here is f32 whatever the activations are.
#pragma once

#include <span>

#include "moe/plan.h"
#include "moe/stages.h"

namespace moe {

// The stages of one mode. Training and evaluation are two specs of one recipe (moe/recipes.h).
struct RoutingSpec {
  int64_t experts = 0;
  NoiseStage noise;
  ScoreStage score;
  SelectStage select;
  WeighStage weigh;
  CapacityStage capacity;
  BalanceStage balance;

  int64_t top_k() const { return chosen_per_token(select); }
};

// Throws (usage) on what has no meaning: no experts, K outside 1..E, one chosen expert with renormalised weights, a capacity of nothing.
void validate(const RoutingSpec&);

struct RoutingLosses {
  float balance = 0;  // canonical: 1 when perfectly balanced
  float z = 0;
};

struct Router {
  Param weight;  // [E,D]
  Param noise;   // [E,D], present for LearnedNoise

  // Views into run.saved.
  struct Saved {
    Tensor x;        // [N,D] f32, as the router saw it
    Tensor raw;      // [N,E] f32, before softplus; absent without learned noise
    Tensor logits;   // [N,E] f32, with the noise
    Tensor lse;      // [N] f32
    Tensor scores;   // [N,E] f32
    Tensor choice;   // [N,K] i32
    Tensor weights;  // [N,K] f32, before any drop
    Tensor counts;   // [E] i32, before any drop
    RngKey key;
    RoutingLosses losses;
    int64_t dropped = 0;
  };

  // x [N,D] A; the plan lives in run.saved. `key` empty: no noise is drawn.
  RoutingPlan forward(Run&, Tensor x, const RoutingSpec&, RngKey key, Saved&);
  // The same from saved.logits on: everything that does not need parameters.
  static RoutingPlan decide(Run&, const RoutingSpec&, Saved&);
  // dx [N,D] f32 is added to; dweight [R] f32; coef: the factors of the two losses in the total loss
  void backward_acc(Run&, Tensor dx, Tensor dweight, const RoutingPlan&, const RoutingSpec&, RoutingLosses coef, const Saved&);

 private:
  void logits(Run&, Tensor x, const RoutingSpec&, Saved&);
};

}  // namespace moe
