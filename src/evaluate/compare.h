// One model held against another on the same text: what each predicts, how far their predictions
// are apart, in which layers they part, and what their routers do. Both must have the same
// vocabulary; for all else they may differ, as a dense model and what was made of it do, or a model
// and its quantised twin.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "evaluate/score.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace moe {

struct CompareOptions {
  int64_t window = kScoreWindow;  // as ScoreOptions has them (evaluate/score.h)
  int64_t windows = 0;
};

// What one of the two predicts. The figures are those of score().
struct TextFigures {
  double nats_per_token = 0;
  double perplexity = 0;
  double bits_per_byte = 0;
  double right = 0;  // share of the tokens that were the likeliest
};

// A MoE layer's choices on the text.
struct LayerChoices {
  int64_t layer = 0;
  std::vector<int64_t> counts;  // [E] pairs before any drop
};

// p, q: the next token's probabilities by the model before and after.
struct Comparison {
  int64_t windows = 0, window = 0, tokens = 0;  // tokens: predicted
  TextFigures before, after;
  // Of the mean loss's change, from the spread of the windows' changes: its standard error. Absent
  // with a single window.
  std::optional<double> loss_error;
  // KL(p || q) = sum_v p_v ln(p_v / q_v) over the whole vocabulary, nats: mean, median, 99th
  // percentile and largest of the tokens; NaN, all four, where a token's is not finite.
  double kl = 0, kl_median = 0, kl_high = 0, kl_most = 0;
  double same_top = 0;  // share of places where both find the same token likeliest
  // of the probability of the token that came: root of the mean of (q - p)^2
  double rms_change = 0;
  // [L] how far the state after each layer is from what it was: mean over tokens of |h' - h| / |h|.
  // Empty where the two differ in width or number of layers.
  std::vector<double> drift;
  std::vector<LayerChoices> before_load, after_load;  // of each MoE layer in order
  // [MoE layers] of the experts that tokens chose before, the share that they choose after too.
  // Empty unless both have as many experts in the same layers.
  std::vector<double> same_choices;
};

// A model with the threads, dtype and memory that it runs with, and the experts a token takes (0:
// the model's number).
struct ComparedModel {
  Model& model;
  Run& run;
  int64_t top_k_experts = 0;
};

// Bytes that compare() takes beside what forwards over a window take of each model.
int64_t comparing_bytes(const ModelConfig& before, const ModelConfig& after, int64_t window);

// Fails (usage) when probabilities of the two cannot be held against each other: another size of
// the vocabulary, or other tokens in it.
void check_same_vocabulary(const Model& before, const Tokenizer& before_tokens, const Model& after,
                           const Tokenizer& after_tokens);

// `progress` is told how many windows are done. Fails when there is not one whole window.
Comparison compare(const ComparedModel& before, const ComparedModel& after, const Tokenizer&,
                   std::span<const int32_t> ids, const CompareOptions&,
                   const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace moe
