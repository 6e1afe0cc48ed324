// Counting by configuration: a walk over the list of parameters, whose matrices cost arithmetic.
// Checked against published totals and against what Model builds.
#include "model/cost.h"

#include "model/model.h"

namespace moe {
namespace {

struct Numbers {
  PartCounts parts, matrices;
  int64_t frozen = 0, frozen_matrices = 0;
  int64_t buffers = 0, sketch = 0;  // of the buffers those of sketches, which are matrices
  int64_t sketch_bytes = 0;
};

bool is_multiplied(const Param& p) { return p.is_matrix() || is_sketch(p); }

Numbers numbers_of(const ModelConfig& c) {
  Numbers sums;
  each_param(c, [&](const Param& p, int64_t layers) {
    const int64_t n = layers * p.value.numel();
    (p.is_buffer() ? sums.buffers : sums.parts[p.part]) += n;
    if (p.frozen) sums.frozen += n;
    if (p.frozen && p.is_matrix()) sums.frozen_matrices += n;
    if (is_multiplied(p)) sums.matrices[p.part] += n;
    if (!is_sketch(p)) return;
    sums.sketch += n;
    sums.sketch_bytes += bytes_of(c.width % kSketchBlock == 0 ? sketch_type(c, p) : DType::f32, n);
  });
  return sums;
}

// What a token meets of so many numbers of routed experts: those of K of E; where some of its
// choices are zero experts on average, their load being even.
int64_t active(const ModelConfig& c, int64_t experts, int64_t top_k) {
  if (experts == 0) return 0;
  if (c.routing.zero_experts == 0) return experts / c.routing.experts * top_k;
  return experts * top_k / c.routing.scored();
}

// Keys that a token of a sequence of S sees on average: S/2, where it sees at most W < S the first
// W tokens W/2 and the others W.
double average_keys(int64_t most, int64_t context) {
  const auto s = static_cast<double>(context), w = static_cast<double>(most);
  if (most == 0 || most >= context) return s / 2;
  return w * (s - w / 2) / s;
}

// The same where a token sees those of its chunk of W tokens: of a whole chunk W/2.
double average_keys_of_chunk(int64_t chunk, int64_t context) {
  const int64_t whole = context / chunk, rest = context % chunk;
  return static_cast<double>(whole * chunk * chunk + rest * rest) / 2 /
         static_cast<double>(context);
}

// Of the entries that a token sees on average, and of an indexer of them, scores and what is made
// by them.
double flops_of_entries(const AttentionShape& shape, int64_t context) {
  const Entries& e = shape.entries;
  if (!e.present()) return 0;
  const auto tokens = static_cast<double>(e.tokens);
  const double seen = average_keys(e.top * e.tokens, context) / tokens;
  return 2 * static_cast<double>(shape.q_width() + shape.o_width()) * seen +
         2 * static_cast<double>(e.heads * e.width) * average_keys(0, context) / tokens;
}

double products(int64_t numbers) { return 2 * static_cast<double>(numbers); }

// attention 2 H (C + Cv) times the keys seen, or 6 H C Cv of linear attention, 4 H C C of lightning
// attention, 4 H P C of a state space, 4 I C where its values are heads of their own
double scores_of(const ModelConfig& c, int64_t layer, int64_t context) {
  // counted by its weights
  if (!c.mixes(layer) || c.mixer(layer) == Mixer::conv) return 0;
  if (c.is_linear(layer))  // S^T k, k d^T and S^T q of each head
    return 6 * static_cast<double>(c.linear.v_width() * c.linear.key_width);
  double scores = 0;
  if (c.mixer(layer) == Mixer::lightning)  // v k^T and S q of each head
    scores += 4 * static_cast<double>(c.lightning_state());
  if (c.mixer(layer) == Mixer::scan)  // x B^T and S C of each head
    scores += 4 * static_cast<double>(c.scan.values() * c.scan.states);
  if (!c.attends(layer)) return scores;
  const AttentionShape shape = c.attention(layer);
  scores += 2 * static_cast<double>(shape.q_width() + shape.o_width()) *
            (shape.chunk > 0 ? average_keys_of_chunk(shape.chunk, context)
                             : average_keys(shape.top > 0 ? shape.top : shape.window, context));
  scores += flops_of_entries(shape, context);
  if (context > shape.top)
    scores +=
        2 * static_cast<double>(shape.index_heads * shape.index_width) * average_keys(0, context);
  return scores;
}

// forward = 2 (active numbers of matrices that are multiplied) + the scores of each layer; norms,
// activations and the embedding's lookup are not counted.
FlopCount flops_of(const ModelConfig& c, const PartCounts& matrices, int64_t context,
                   int64_t top_k) {
  double scores = 0;
  for (int64_t layer = 0; layer < c.layers; ++layer) scores += scores_of(c, layer, context);
  // matrices among the norms weigh residual streams, or are of gates behind norms
  return {.projections = products(matrices[Part::attention] + matrices[Part::norms]),
          .scores = scores,
          .dense_ffn = products(matrices[Part::dense_ffn]),
          .experts = products(active(c, matrices[Part::experts], top_k)),
          .shared = products(matrices[Part::shared]),
          .router = products(matrices[Part::router]),
          .head = products(c.vocab * c.width)};
}

// Of a token whose hidden state behind the last block nobody reads, what that block does not do:
// all but the keys and values.
double spared_flops(const Model& model, int64_t context, int64_t top_k) {
  if (!model.spares_last_block()) return 0;
  const ModelConfig& c = model.config();
  int64_t numbers = 0;
  for (const Param* p : model.params()) {
    const bool of_keys = p->kind == ParamKind::k || p->kind == ParamKind::v ||
                         p->kind == ParamKind::kv_a || p->kind == ParamKind::k_rope;
    if (p->layer != c.layers - 1 || !is_multiplied(*p) || of_keys) continue;
    const int64_t n = p->whole().numel();
    numbers += p->part == Part::experts ? active(c, n, top_k) : n;
  }
  return products(numbers) + scores_of(c, c.layers - 1, context);
}

}  // namespace

LayerKinds count_layer_kinds(const ModelConfig& c) {
  LayerKinds kinds;
  for (int64_t i = 0; i < c.layers; ++i) {
    switch (c.mixer(i)) {
      case Mixer::attention: ++kinds.attention; break;
      case Mixer::linear:
      case Mixer::lightning: ++kinds.linear; break;
      case Mixer::conv: ++kinds.conv; break;
      case Mixer::scan: ++kinds.scan; break;
      case Mixer::none: ++kinds.ffn_alone; break;
    }
    kinds.mixer_alone += !c.has_ffn(i);
  }
  return kinds;
}

int64_t experts_taken(const ModelConfig& c, int64_t top_k_experts) {
  return top_k_experts > 0 ? top_k_experts : c.routing.top_k;
}

ParamCount count_params(const ModelConfig& c, int64_t top_k_experts) {
  const Numbers sums = numbers_of(c);
  return {.parts = sums.parts,
          .experts_active = active(c, sums.parts[Part::experts], experts_taken(c, top_k_experts)),
          .frozen = sums.frozen,
          .buffers = sums.buffers,
          .sketch = sums.sketch,
          .sketch_bytes = sums.sketch_bytes};
}

FlopCount count_flops(const ModelConfig& c, int64_t context, int64_t top_k_experts) {
  return flops_of(c, numbers_of(c).matrices, context, experts_taken(c, top_k_experts));
}

double prompt_flops(const Model& model, int64_t tokens, int64_t top_k_experts) {
  const ModelConfig& c = model.config();
  const FlopCount all = count_flops(c, tokens, top_k_experts);
  const auto n = static_cast<double>(tokens);
  return n * (all.forward() - all.head) + all.head -
         (n - 1) * spared_flops(model, tokens, experts_taken(c, top_k_experts));
}

TrainedNumbers trained_numbers(const Model& model) {
  TrainedNumbers numbers;
  for (const Param* p : model.params()) {
    if (!p->is_matrix()) continue;
    if (!p->grad.empty()) numbers.own[p->part] += p->whole().numel();
    if (p->term == nullptr) continue;
    const LowRankTerm& term = *p->term;
    int64_t pairs = 1;  // that the halves hold once
    if (p->value.rank == 3 && term.a->value.rank == 2)
      pairs = term.experts.empty() ? p->value.shape[0] : static_cast<int64_t>(term.experts.size());
    numbers.terms[p->part] += pairs * (term.a->value.numel() + term.b->value.numel());
  }
  return numbers;
}

// 3 attention + 2 products of all matrices + those of the trained ones (dW) + 3 of the terms
double training_flops(const ModelConfig& c, const TrainedNumbers& trained, int64_t context,
                      int64_t tokens, int64_t expert_rows) {
  const Numbers numbers = numbers_of(c);
  const int64_t experts = c.routing.experts * c.moe_layer_count();
  const auto of_tokens = static_cast<double>(tokens);
  const auto products = [&](const PartCounts& n) {
    const int64_t met = n[Part::attention] + n[Part::norms] + n[Part::dense_ffn] + n[Part::shared] +
                        n[Part::router] + n[c.tied ? Part::embedding : Part::lm_head];
    const double rows = experts == 0 ? 0
                                     : static_cast<double>(expert_rows) *
                                           static_cast<double>(n[Part::experts]) /
                                           static_cast<double>(experts);
    return 2 * (of_tokens * static_cast<double>(met) + rows);
  };
  // What chooses is not even asked in texts as short as are trained on.
  const double no_way_back =
      2 * of_tokens * static_cast<double>(numbers.sketch + 2 * numbers.frozen_matrices);
  return 3 * of_tokens * flops_of(c, numbers.matrices, context, c.routing.top_k).scores +
         2 * products(numbers.matrices) - no_way_back + products(trained.own) +
         3 * products(trained.terms);
}

MemoryCount count_memory(const ModelConfig& c) {
  const ParamCount params = count_params(c);
  const int64_t n = params.total(),
                buffers = 4 * (params.buffers - params.sketch) + params.sketch_bytes;
  int64_t cached = 0;  // numbers
  for (int64_t i = 0; i < c.layers; ++i) {
    if (!c.attends(i)) continue;
    const AttentionShape shape = c.attention(i);
    cached += shape.cached_width();
    if (const Entries& e = shape.entries; e.present())  // of a token its share
      cached += (shape.key_width + e.width + e.tokens - 1) / e.tokens;
  }
  return {4 * n + buffers, 2 * n + buffers, 2 * cached, 4 * c.state_numbers()};
}

ModelCost count_cost(const ModelConfig& config, int64_t context) {
  return {count_params(config), count_flops(config, context), count_memory(config)};
}

// gradients: 8 Q (P - 1) / P + 8 X / S (1 - S / P); rows: ((3 a + 4) D + 8) N K L (S - 1) / S a
// micro-batch, and with recomputing a D + 4 D more
ExchangeCount count_exchange(const ModelConfig& c, const TrainingShape& shape, int64_t processes,
                             int64_t rounds) {
  constexpr double kF32 = 4;
  const ParamCount count = count_params(c);
  const auto p = static_cast<double>(processes), spread = static_cast<double>(shape.spread),
             experts = static_cast<double>(count[Part::experts]),
             others = static_cast<double>(count.total() - count.frozen) - experts,
             a = static_cast<double>(size_of(shape.dtype)), width = static_cast<double>(c.width);
  ExchangeCount sent;
  sent.gradients = 2 * kF32 * (others * (p - 1) / p + experts / spread * (1 - spread / p));
  const double row = (3 * a + kF32 + (shape.recompute ? a + kF32 : 0)) * width + 2 * kF32;
  sent.rows = row *
              static_cast<double>(shape.batch * shape.context * c.routing.top_k *
                                  c.moe_layer_count() * rounds) *
              static_cast<double>(c.routing.experts) / static_cast<double>(c.routing.scored()) *
              (spread - 1) / spread;
  return sent;
}

}  // namespace moe
