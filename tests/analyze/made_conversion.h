// Reports of conversions for tests, made from a formula: a dense model of L layers carved into E
// routed experts, with a sweep.
#pragma once

#include <cmath>
#include <string>

#include "analyze/data/conversion_report.h"
#include "analyze/made_report.h"

namespace moe::test {

struct MadeConversion {
  int64_t layers = 30, experts = 5, active = 3, sweep = 5;
  bool speeds = true, converted = true, routed = true;
};

inline ConversionReport made_conversion(const MadeConversion& shape = {}) {
  ConversionReport r{.kind = "Carving", .text = "held-out.txt"};
  r.steps = {{"method", "fitted"}, {"calibration", "8 windows of 2048 tokens of valid.txt"}};
  r.before = {"smollm2.gguf", "30 layers with a dense FFN of width 1536",
              "q4_1",         "f32",
              134'515'008,    134'515'008,
              94'000'000,     90'000'000,
              2.7e8};
  r.after = {"out/carved.gguf",
             "30 MoE layers, 3 of 5 experts of width 192 a token",
             "q4_1",
             "f32",
             134'515'200,
             112'000'000,
             94'100'000,
             75'000'000,
             2.25e8};
  Comparison& c = r.figures;
  c = {.windows = 24, .window = 2048, .tokens = 24 * 2047};
  c.before = {2.9248, 18.63, 0.93, 0.424};
  c.after = {3.2581, 26.0, 1.036, 0.391};
  c.loss_error = 0.011;
  c.kl = 0.352, c.kl_median = 0.201, c.kl_high = 2.4, c.kl_most = 9.1, c.same_top = 0.713,
  c.rms_change = 0.12;
  for (int64_t l = 0; l < shape.layers; ++l) {
    c.drift.push_back(0.05 + 0.01 * static_cast<double>(l) + 0.02 * wobble(l));
    if (shape.converted)
      r.layers.push_back({l, shape.active, 0.2 + 0.3 * wobble(l, 1), 0.5 + 0.3 * wobble(l, 2)});
    if (!shape.routed) continue;
    c.after_load.push_back({l, {}});
    for (int64_t e = 0; e < shape.experts; ++e)
      c.after_load.back().counts.push_back(static_cast<int64_t>(10'000 * (0.4 + wobble(l, e))));
  }
  if (shape.speeds) {
    r.before_speed = Speed{512, 128, {0.40, 0.41, 0.42}, {1.20, 1.21, 1.25}};
    r.after_speed = Speed{512, 128, {0.33, 0.34, 0.36}, {1.00, 1.02, 1.01}};
  }
  for (int64_t a = 1; a <= shape.sweep; ++a) {
    const double share = static_cast<double>(a + 3) / static_cast<double>(shape.sweep + 3),
                 up = 1 + 0.9 * (1 - share);
    r.frontier.push_back({.name = std::to_string(a) + " active",
                          .ffn_share = share,
                          .perplexity = 18.8 + 400 * std::pow(1 - share, 3),
                          .kl = 1 - share,
                          .same_top = 0.4 + 0.6 * share,
                          .prompt_rate = 1250 * up,
                          .decode_rate = 105 * up,
                          .speed_up = {up, up},
                          .bytes_per_token = static_cast<int64_t>(9e7 / up),
                          .flops_per_token = 2.7e8 / up,
                          .is_written = a == shape.active});
  }
  if (shape.sweep > 0)
    r.frontier.push_back({.name = "before",
                          .perplexity = 18.63,
                          .prompt_rate = 1250,
                          .decode_rate = 105,
                          .bytes_per_token = 90'000'000,
                          .flops_per_token = 2.7e8,
                          .is_before = true});
  return r;
}

}  // namespace moe::test
