// Record and replay of choices: what one run chose, as numbers, and a router that takes it instead
// of choosing. Scores, weights, losses and gradients are those of the router that replays; only the
// choice is given. That is what reinforcement learning of MoE models asks for, whose texts are
// written by one engine and learned from in another (Rollout Routing Replay, Ma et al. 2025, arXiv
// 2510.11370): the mask is recorded, the weights are computed anew.
//
// An entry of a record [N,K], one for each choice rank of a token:
//   e >= 0      expert e was chosen and sent
//   -1          nothing was chosen here
//   -2 - e      expert e was chosen, so that it counts in a renormalised weight and in the losses,
//               but was not sent: its policy skipped it, or it found no room
#pragma once

#include <cstdint>
#include <string>

#include "tensor/run.h"

namespace moe {

constexpr int32_t kNothingChosen = -1;
constexpr int32_t not_sent(int32_t expert) { return -2 - expert; }
// The expert of an entry, sent or not; kNothingChosen where there is none.
constexpr int32_t chosen_expert(int32_t entry) {
  return entry < kNothingChosen ? -2 - entry : entry;
}

// out, choice, selected, kept [N,K] i32
void record_choices(Tensor out, Tensor choice, Tensor selected, Tensor kept);

// Fails, naming `where` and the token, unless `recorded` is i32 [tokens,slots] and every token's
// experts lie in 0..experts-1, none of them twice.
void check_recorded(Tensor recorded, int64_t tokens, int64_t slots, int64_t experts,
                    const std::string& where, int threads = 1);

// Puts recorded choices, checked, in the place of what the router chose itself, which choice and
// selected hold on entry. A slot without a choice gets an expert that the token has not. agreed[n]
// = how many of the token's recorded experts the router chose too. Returns how many pairs it chose
// in all. choice, selected, kept, recorded [N,K] i32; agreed [N] i32
int64_t replay_choices(Run&, Tensor choice, Tensor selected, Tensor kept, Tensor agreed,
                       Tensor recorded, int64_t experts);

}  // namespace moe
