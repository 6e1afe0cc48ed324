// Select stage: which experts a token takes, or which tokens an expert takes; and the second-choice
// policy, which may send the second expert away again. Everything here is a constant for the
// gradient. Ties: higher score first, then the lower index. A NaN score is an error naming the
// token.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>

#include "moe/routing.h"
#include "moe/stages/scope.h"

namespace moe {

// A bias per expert that is added to the scores for the choice only and moves against the load
// after every optimizer step: b_e += rate * sign(mean(c) - c_e), c the counts of the whole step
// (arXiv 2408.15664; DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
struct SelectionBias {
  template <class V, class S>
  static void fields(V& v, S& s) {
    v("rate", s.rate);
  }
  float rate = 1e-3f;
};

// The k largest scores.
struct TopK {
  static constexpr std::string_view kName = "top_k";
  template <class V, class S>
  static void fields(V& v, S& s) {
    v("bias", s.bias);
    v("sorted", s.sorted);
  }
  int64_t k = 2;  // of the model's options, not of the recipe
  std::optional<SelectionBias> bias;
  // false: a token's experts stand by rising index, not by falling score, which is found much
  // faster where a token takes hundreds
  bool sorted = true;
};
// The k largest scores among the `keep` best of `groups` equal groups of neighbouring experts; a
// group's score is the sum of its `group_top` largest (1: the largest: DeepSeek-V2, arXiv
// 2405.04434, section 2.2.2; 2: DeepSeek-V3). Experts of other groups count as -inf, never as 0.
struct GroupedTopK {
  static constexpr std::string_view kName = "grouped_top_k";
  template <class V, class S>
  static void fields(V& v, S& s) {
    v("groups", s.groups);
    v("keep", s.keep);
    v("group_top", s.group_top);
    v("bias", s.bias);
  }
  int64_t k = 2;
  int64_t groups = 1;
  int64_t keep = 1;
  int64_t group_top = 1;
  std::optional<SelectionBias> bias;
};
// Every expert takes the floor(n * factor / E) tokens of each scope that score highest for it, at
// least one and at most n (Zhou et al. 2022, arXiv 2202.09368, section 3.2; factor = mean number of
// experts a token gets). Not causal: whether a token is taken depends on later ones.
struct ExpertChoice {
  static constexpr std::string_view kName = "expert_choice";
  template <class V, class S>
  static void fields(V& v, S& s) {
    v("factor", s.factor);
    v("scope", s.scope);
  }
  float factor = 2;
  Scope scope;
};
// Every expert takes the tokens whose score reaches its threshold, learned in training as the
// running mean of the lowest score that expert choice took.
struct ThresholdChoice {
  static constexpr std::string_view kName = "threshold";
  template <class V, class S>
  static void fields(V&, S&) {}
};
// The k experts a token id is mapped to, no router at all (Roller et al. 2021, arXiv 2106.04426).
// `modulo`: (id + i) mod E for choice i; `random`: the first k entries of a permutation of the
// experts drawn from (seed, id) by Fisher-Yates: with key = from_seed(seed).fold(id) and p =
// 0..E-1, for i = 0..k-1 p[i] changes places with p[i + uniform_index(key, i, E - i)].
struct HashChoice {
  static constexpr std::string_view kName = "hash";
  enum class Map { modulo, random };
  template <class V, class S>
  static void fields(V& v, S& s) {
    v("map", s.map);
    v("seed", s.seed);
  }
  int64_t k = 1;
  Map map = Map::random;
  int64_t seed = 0;
};
// Choice after choice, drawn by the softmax over the experts whose score is near the best of those
// left (ops::draw_near_best); the best one where nothing is drawn (SparseMixer-2: GRIN, arXiv
// 2409.12136, section 2.2).
struct NearBestChoice {
  static constexpr std::string_view kName = "near_best";
  template <class V, class S>
  static void fields(V& v, S& s) {
    v("eps", s.eps);
    v("draw", s.draw);
  }
  int64_t k = 2;
  float eps = 1e-2f;
  bool draw = true;  // in training
};
using SelectStage =
    std::variant<TopK, GroupedTopK, ExpertChoice, ThresholdChoice, HashChoice, NearBestChoice>;

// K: the most pairs a token can have. Every expert for expert choice and thresholds.
int64_t slots_per_token(const SelectStage&, int64_t experts);
// Sets k where the stage has one.
void set_top_k(SelectStage&, int64_t k);
const SelectionBias* selection_bias(const SelectStage&);  // null: none
// Whether logits are needed at all (not for hash routing).
bool needs_logits(const SelectStage&);
bool experts_choose(const SelectStage&);  // ExpertChoice or ThresholdChoice
// How many of a scope's n tokens an expert takes: floor(n * factor / E), at least one and at most
// n.
int64_t tokens_per_expert(const ExpertChoice&, int64_t tokens, int64_t experts);

// Fills choice: a token's experts in order of falling (biased) score unless the stage says
// otherwise, with K = E every expert once;
// selected: 1 where the pair was chosen (always 1 for TopK, GroupedTopK, HashChoice); and where
// experts choose cutoff, the mean over scopes of the lowest score that each took, and scopes. Reads
// scores (but for HashChoice, which reads the batch's ids), bias, threshold.
void select_forward(Run&, Routing&, const Pass&, const SelectStage&);

// ---- second choice: whether the second of two choices is sent at all ----------------------------
struct KeepSecond {
  static constexpr std::string_view kName = "all";
  template <class V, class S>
  static void fields(V&, S&) {}
};
// Kept where its weight is at least `least` (Mesh TensorFlow compares with the normalised weight),
// or at least `least` times the first's weight when `relative` (ST-MoE's text, arXiv 2202.08906,
// section 4.1: 1/5 of the first's).
struct ThresholdSecond {
  static constexpr std::string_view kName = "threshold";
  template <class V, class S>
  static void fields(V& v, S& s) {
    v("least", s.least);
    v("relative", s.relative);
  }
  float least = 0.2f;
  bool relative = false;
};
// Kept with probability min(1, w2 / full): full = 0.5 is GShard's paper (2 w2 > u, arXiv
// 2006.16668, algorithm 1), 0.2 Mesh TensorFlow's default. Without a key (evaluation) every second
// choice is kept.
struct RandomSecond {
  static constexpr std::string_view kName = "random";
  template <class V, class S>
  static void fields(V& v, S& s) {
    v("full", s.full);
  }
  float full = 0.5f;
};
using SecondStage = std::variant<KeepSecond, ThresholdSecond, RandomSecond>;

// selected[n,1] = 0 where the policy sends the second choice away; K is 2.  selected [N,K] i32; w
// [N,K] f32
void second_forward(Run&, Tensor selected, Tensor w, const SecondStage&, RngKey key);

}  // namespace moe
