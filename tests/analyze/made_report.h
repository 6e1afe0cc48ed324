// Reports of any size for the tests of the page: made from a formula, shaped like real ones
// (experts that prefer domains, a run that settles), every field filled.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "analyze/data/report.h"

namespace moe::test {

struct MadeShape {
  int64_t layers = 4, experts = 8, top_k = 2, slots = 2, domains = 6, samples = 3, tokens = 160,
          points = 400;
};

// In (0, 1), the same for the same arguments.
inline double wobble(int64_t a, int64_t b = 0, int64_t c = 0) {
  const double s = std::sin(12.9898 * static_cast<double>(a) + 78.233 * static_cast<double>(b) +
                            37.719 * static_cast<double>(c) + 0.5) *
                   43758.5453;
  return s - std::floor(s);
}

inline LayerStats made_layer(const MadeShape& shape, int64_t number) {
  const int64_t e_count = shape.experts, d_count = shape.domains;
  LayerStats l{.layer = number};
  l.domain = {d_count, e_count, std::vector<double>(static_cast<size_t>(d_count * e_count))};
  l.load.assign(static_cast<size_t>(e_count), 0);
  for (int64_t d = 0; d < d_count; ++d) {
    double sum = 0;
    for (int64_t e = 0; e < e_count; ++e)
      sum += l.domain(d, e) =
          0.25 + wobble(number, e, d) + (e % d_count == d ? 1.4 * wobble(e, number) : 0);
    for (int64_t e = 0; e < e_count; ++e) {
      l.domain(d, e) = std::min(1.0, l.domain(d, e) * static_cast<double>(shape.top_k) / sum);
      l.load[static_cast<size_t>(e)] += l.domain(d, e) / static_cast<double>(d_count * shape.top_k);
    }
  }
  double most = 0, entropy = 0;
  for (const double share : l.load) {
    l.counts.push_back(std::llround(share * 1e5));
    most = std::max(most, share);
    if (share > 0) entropy -= share * std::log(share);
  }
  l.mass = l.load;
  l.max_vio = most * static_cast<double>(e_count) - 1;
  l.max_vio_batch = l.max_vio * 1.6;
  l.cv2 = 0.05 * wobble(number, 7);
  l.load_entropy = e_count > 1 ? entropy / std::log(static_cast<double>(e_count)) : 1;
  l.effective_experts = std::exp(entropy);
  l.router_entropy = 0.75 - 0.3 * wobble(number, 1);
  l.margin = 0.05 + 0.1 * wobble(number, 2);
  l.top_score = 0.3 + 0.2 * wobble(number, 3);
  l.vocabulary_input = 0.35 + 0.3 * wobble(number, 4);
  l.vocabulary_target = 0.25 + 0.1 * wobble(number, 5);
  l.vocabulary_predicted = 0.3 + 0.1 * wobble(number, 6);
  l.coactivation = {e_count, e_count,
                    std::vector<double>(static_cast<size_t>(e_count * e_count), 1)};
  for (int64_t i = 0; i < e_count; ++i)
    for (int64_t j = 0; j < e_count; ++j)
      if (i != j)
        l.coactivation(i, j) =
            std::min(1.0, static_cast<double>(shape.top_k - 1) / static_cast<double>(e_count - 1) *
                              2 * wobble(i + j, i * j, number));
  l.favourites.resize(static_cast<size_t>(e_count));
  const char* words[] = {
      " the", "ing", "\n", "Register", " if (", "::", "é", "日本", "<b>", "\t\t", " und", "0x"};
  for (int64_t e = 0; e < e_count; ++e)
    for (int32_t i = 0; i < 10; ++i)
      l.favourites[static_cast<size_t>(e)].push_back(
          {i, words[static_cast<size_t>(12 * wobble(e, i, number))], 40 + i, 0.95 - 0.06 * i});
  return l;
}

inline SampleText made_sample(const MadeShape& shape, int64_t number) {
  SampleText s{.domain = "domain " + std::to_string(number)};
  const std::string text =
      "for (const auto& row : rows) {\n  total += row.weight;  // the sum of Gewichte, "
      "naïve\n}\nWählen Sie die Optionen, dann ✓. The engine ";
  std::vector<std::string> pieces;
  for (size_t i = 0; i < text.size();) {
    size_t n = 1 + static_cast<size_t>(3 * wobble(static_cast<int64_t>(i), number));
    while (i + n < text.size() && (text[i + n] & 0xC0) == 0x80) ++n;
    pieces.push_back(text.substr(i, n));
    i += n;
  }
  for (int64_t t = 0; t < shape.tokens; ++t) {
    s.pieces.push_back(pieces[static_cast<size_t>(t) % pieces.size()]);
    s.nll.push_back(t == 0 ? 0 : 4 * wobble(t, number));
  }
  for (int64_t l = 0; l < shape.layers; ++l) {
    s.experts.emplace_back();
    s.weights.emplace_back();
    for (int64_t t = 0; t < shape.tokens; ++t)
      for (int64_t k = 0; k < shape.slots; ++k) {
        const bool sent = k < shape.top_k;
        const auto expert =
            (static_cast<int64_t>(static_cast<double>(shape.experts) * wobble(t, l)) + k) %
            shape.experts;
        s.experts.back().push_back(sent ? static_cast<int32_t>(expert) : -1);
        s.weights.back().push_back(sent ? static_cast<float>(k == 0 ? 0.4 + 0.5 * wobble(t, l, 3)
                                                                    : 0.2 / static_cast<double>(k))
                                        : 0);
      }
  }
  return s;
}

inline RoutingReport made_report(const MadeShape& shape = {}) {
  RoutingReport r{.model = "out/tiny", .recipe = "olmoe", .tokenizer = "bytes"};
  r.experts = shape.experts, r.top_k = shape.top_k, r.slots = shape.slots, r.layers = shape.layers,
  r.vocab = 256, r.window = 256;
  r.parameters = 2'690'000, r.active_parameters = 924'000;
  const char* names[] = {"asciidoc", "cpp", "english", "french", "german", "python"};
  for (int64_t d = 0; d < shape.domains; ++d)
    r.domains.push_back({d < 6 ? names[d] : "a domain of a long name " + std::to_string(d),
                         98'000 + d, 1.1 + 0.4 * wobble(d)});
  for (int64_t l = 0; l < shape.layers; ++l) r.moe_layers.push_back(made_layer(shape, l));
  for (int64_t s = 0; s < shape.samples; ++s) r.samples.push_back(made_sample(shape, s));
  return r;
}

inline TrainingHistory made_history(const MadeShape& shape = {}) {
  TrainingHistory h{.loss_names = {"balance", "z"}};
  for (int64_t l = 0; l < shape.layers; ++l) h.layers.push_back(l);
  for (int64_t i = 0; i < shape.points; ++i) {
    const double done = (static_cast<double>(i) + 1) / static_cast<double>(shape.points);
    HistoryPoint p{.step = 4 * (i + 1), .tokens = 16384 * (i + 1)};
    p.ce = 1.3 + 4.3 * std::exp(-18 * done) + 0.4 * (1 - done) + 0.06 * wobble(i);
    p.grad_norm = 0.4 + 4 * std::exp(-20 * done) + 0.1 * wobble(i, 1);
    p.lr = 3e-3 * std::min(1.0, 20 * done) * (1 - 0.9 * done);
    p.tokens_per_second = 45'000;
    p.losses = {1.01 + 0.2 * std::exp(-10 * done), 1.7 + 2.8 * std::exp(-9 * done)};
    for (int64_t l = 0; l < shape.layers; ++l) {
      std::vector<double> load;
      double sum = 0, most = 0;
      for (int64_t e = 0; e < shape.experts; ++e) {
        load.push_back(1 + (0.3 + 2 * std::exp(-6 * done)) * wobble(e, l) + 0.05 * wobble(i, e, l));
        sum += load.back();
        most = std::max(most, load.back());
      }
      for (double& share : load) share /= sum;
      p.max_vio.push_back(most / sum * static_cast<double>(shape.experts) - 1);
      p.dropped.push_back(0);
      p.load.push_back(load);
    }
    if (i % 40 == 39) h.eval_ce.emplace_back(p.step, p.ce + 0.05);
    h.points.push_back(std::move(p));
  }
  return h;
}

}  // namespace moe::test
