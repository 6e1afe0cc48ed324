// What became of a model: the data behind `moe compare`, behind the report of a conversion, and
// behind the frontier of a sweep. Plain values, measured elsewhere (evaluate/compare.h,
// evaluate/speed.h, and by whoever converted).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "evaluate/compare.h"
#include "evaluate/speed.h"

namespace moe {

// What a model is and costs.
struct ModelCard {
  // "out/carved"; "30 layers, each 3 of 5 experts of width 192 and 3 shared"
  std::string name, shape;
  std::string weights;  // the type that most numbers of its matrices have: "q4_1"
  std::string compute;  // the type its activations have: "bf16"
  int64_t parameters = 0, active_parameters = 0;
  int64_t weight_bytes = 0;     // of all weights
  int64_t bytes_per_token = 0;  // of those that writing a token reads
  double flops_per_token = 0;   // of the forward, in sequences as long as a window
};
ModelCard model_card(std::string name, Model&, DType compute, int64_t window,
                     int64_t top_k_experts = 0);

// One layer as the conversion itself measured it, on its calibration text.
struct ConvertedLayer {
  int64_t layer = 0;
  std::optional<int64_t> active;    // routed experts a token takes
  std::optional<double> error;      // ||F'(x) - F(x)|| / ||F(x)||, F' the new FFN, F the old one
  std::optional<double> agreement;  // share of a token's experts that an oracle would take: those
                                    // of the largest sum |hidden|
};

// One conversion of a sweep, one of several models that are held against the same one, or the model
// before.
struct FrontierPoint {
  std::string name;  // "4 active"
  // of the FFN's neurons, the part that works for a token; absent where nobody said it
  std::optional<double> ffn_share = 1;
  double perplexity = 0, kl = 0, same_top = 1;
  double prompt_rate = 0, decode_rate = 0;  // tokens a second
  SpeedUp speed_up;                         // over the model before, measured in turns
  int64_t bytes_per_token = 0;
  double flops_per_token = 0;
  // the model before; the one that this report is about
  bool is_before = false, is_written = false;
};

// A text and what both models predict on it.
struct TextComparison {
  std::string text;
  Comparison figures;
};

struct ConversionReport {
  std::string kind;  // "Comparison", "Carving": what the page calls itself
  std::string text;  // what was read
  // how it was made: a word and what it was
  std::vector<std::pair<std::string, std::string>> steps;
  ModelCard before, after;
  Comparison figures;
  std::vector<TextComparison> others;              // further texts, of which a conversion has none
  std::optional<Speed> before_speed, after_speed;  // both or none
  std::vector<ConvertedLayer> layers;              // those that were converted, in order
  // of a sweep by rising ffn_share, else as they were named; the model before last; empty without
  std::vector<FrontierPoint> frontier;

  // Whether one model was made of the other here, or both were only held against each other.
  bool is_conversion() const { return !steps.empty() || !layers.empty(); }
};

// Of every text in the order in which they were named, for who shows them side by side; views of
// the report. `name`: of a single text as it was named; of several "text 1", with the place it has.
struct TextView {
  std::string name;
  const std::string& text;
  const Comparison& figures;
};
std::vector<TextView> texts_of(const ConversionReport&);

// The place of a report's model, and of the one before, on the frontier.
FrontierPoint frontier_point(const ConversionReport&, std::string name,
                             std::optional<double> ffn_share);
FrontierPoint frontier_start(const ConversionReport&);

}  // namespace moe
