// What routing did on given texts, and how a run went: the data behind `moe inspect --text`, its
// JSON and its page. Plain values; definitions stand with the code that computes them
// (analyze/data/layer_counts.h) and, one line each, on the page (analyze/data/definitions.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace moe {

// A matrix by rows.
struct Grid {
  int64_t rows = 0, cols = 0;
  std::vector<double> at;  // [rows * cols]
  double operator()(int64_t r, int64_t c) const { return at[static_cast<size_t>(r * cols + c)]; }
  double& operator()(int64_t r, int64_t c) { return at[static_cast<size_t>(r * cols + c)]; }
};

struct DomainText {
  std::string name;
  int64_t tokens = 0;  // that were routed
  double nats_per_token = 0;
};

// A token id and how strongly an expert answers for it.
struct TokenAffinity {
  int32_t id = 0;
  std::string text;         // as it may be shown alone: valid UTF-8, lone bytes written "0xC3"
  int64_t occurrences = 0;  // of the id in the texts
  double share = 0;         // of them that this expert was among the chosen for
};

struct LayerStats {
  int64_t layer = 0;
  std::vector<int64_t> counts;   // [E] chosen pairs, before any drop
  std::vector<double> load;      // [E] share of all chosen pairs; sums to 1
  std::vector<double> mass;      // [E] share of the combine weights that were sent
  double max_vio = 0;            // over all texts: max(count) / mean(count) - 1
  double max_vio_batch = 0;      // mean over the forwards of the same
  double cv2 = 0;                // squared coefficient of variation of the counts
  double load_entropy = 0;       // of load, over ln E: 1 is even
  double effective_experts = 0;  // exp of that entropy before the division
  int64_t dead = 0;              // experts with under a hundredth of the mean load
  double dropped = 0;            // share of the chosen pairs that found no room
  double unrouted = 0;           // share of tokens that no expert took
  // Of the router's probabilities; absent where there are none (hash).
  std::optional<double> router_entropy;  // mean over tokens of the entropy, over ln E
  std::optional<double> margin;  // mean over tokens: the least chosen expert's score minus the best
                                 // one's that was not chosen; absent where experts choose
  std::optional<double> top_score;  // mean over tokens of the largest score
  Grid domain;  // [domains, E] share of the domain's tokens that chose e (OLMoE, equation 7); K / E
                // when even
  // Absent, or empty, where experts are neurons, down to the favourites.
  Grid coactivation;  // [E, E] of the tokens that chose i, the share that chose j too (OLMoE,
                      // equation 6)
  // OLMoE's vocabulary specialisation: mean over ids of the share that the id's most frequent
  // expert has of its occurrences. Of the input's ids, the ids that follow and the ids that the
  // model predicts.
  std::optional<double> vocabulary_input, vocabulary_target, vocabulary_predicted;
  // [E] input ids that go to the expert more than to any other, best first
  std::vector<std::vector<TokenAffinity>> favourites;
  // share of the choices that an earlier checkpoint made too (OLMoE, equation 5)
  std::optional<double> saturation;
};

// A piece of text with what every MoE layer did with each token.
struct SampleText {
  std::string domain;
  // [N] each token as it may be shown, in a row the text itself. A character of several tokens
  // stands with its last one; the others are empty.
  std::vector<std::string> pieces;
  std::vector<double> nll;  // [N] nats, of this token given those before; 0 for the first
  // For each MoE layer in order, [N * slots] in choice order:
  std::vector<std::vector<int32_t>> experts;  // -1: not sent
  std::vector<std::vector<float>> weights;
};

struct RoutingReport {
  std::string model, recipe, tokenizer;
  bool ids_are_bytes = false;  // then words are what people read, not tokens
  std::string routing;         // how the model was routed: "dropless", "as-trained" or "threshold"
  std::string earlier;         // the checkpoint of `saturation`, or empty
  int64_t experts = 0, top_k = 0, slots = 0, layers = 0, vocab = 0, window = 0;
  // Every expert is a neuron, of which a token takes hundreds: no pairs, ids, scores and samples
  // then, and charts show slices of neurons.
  bool by_neuron = false;
  int64_t parameters = 0, active_parameters = 0;
  std::vector<DomainText> domains;
  std::vector<LayerStats> moe_layers;
  std::vector<SampleText> samples;
};

// metrics.jsonl of a run, thinned to what a chart can show.
// Of preference pairs (train/preference.h), means over pairs.
struct PairPoint {
  int64_t step = 0;
  double loss = 0, margin = 0, accuracy = 0;
};
struct HistoryPoint {
  int64_t step = 0, tokens = 0;  // at its last step, of the whole run
  double seconds = 0;            // the same: spent in steps
  double ce = 0;                 // mean over the steps this point stands for; NaN: none
  double grad_norm = 0, lr = 0;
  double tokens_per_second = 0;           // tokens of its steps over their seconds
  std::optional<PairPoint> pairs;         // where the text is preference pairs
  std::vector<double> losses;             // one for each name of TrainingHistory::loss_names
  std::vector<double> max_vio;            // for each MoE layer
  std::vector<double> dropped;            // for each MoE layer
  std::vector<std::vector<double>> load;  // for each MoE layer, [E]
};
struct HistoryAlarm {
  int64_t step = 0;
  std::string kind, text;
};
struct TrainingHistory {
  std::vector<std::string> loss_names;  // "balance", "z", ...: those that were trained on
  std::vector<int64_t> layers;          // the number of each MoE layer
  std::vector<HistoryPoint> points;
  std::vector<std::pair<int64_t, double>> eval_ce;  // step, nats per token
  std::vector<PairPoint> eval_pairs;
  std::vector<HistoryAlarm> alarms;
};

}  // namespace moe
