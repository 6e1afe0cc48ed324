// The memory of a pass, counted from shapes: the same tensors in the same order as the forwards and
// backwards of model/ and moe/ allocate them. The tests hold it against what the arenas really
// hold.
#include <algorithm>

#include "model/cost.h"
#include "model/indexer.h"
#include "model/lm_head_chunks.h"
#include "model/norm_places.h"
#include "model/parameters.h"
#include "moe/exchange.h"
#include "ops/memory.h"

namespace moe {
namespace {

constexpr int64_t kF32 = 4;
constexpr int64_t kThreadScratch = int64_t{2}
                                   << 20;  // blocks of products in another layout, on all threads
constexpr int64_t kForwardThreadScratch = int64_t{512} << 10;  // the same without gradients

// Sizes that every part below needs.
struct Sizes {
  const ModelConfig& c;
  TrainingShape shape;
  int64_t n, a;      // tokens, bytes of an activation
  RoutingSpec spec;  // unused by dense models
  bool goes_back;
  bool by_neuron;  // experts are neurons of one network, whose rows are tokens
  int64_t reach;   // tokens of the longest text

  Sizes(const ModelConfig& config, const TrainingShape& training, const RoutingSpec& routing,
        bool backward = true)
      : c(config),
        shape(training),
        n(training.batch * training.context),
        a(training.dtype == DType::bf16 ? 2 : kF32),
        spec(routing),
        goes_back(backward),
        by_neuron(config.by_neuron()),
        reach(training.context) {}

  // Of a micro-batch: a row's text begins and ends anywhere in a document, so that it has one more
  // sequence than ends of documents.
  int64_t sequences() const {
    const int64_t ends =
        shape.document > 0 ? shape.batch * (shape.context - 1) / shape.document : 0;
    return std::clamp<int64_t>(shape.batch + ends, 1, std::max<int64_t>(n, 1));
  }
  // The sum over the scopes of a micro-batch of of(tokens in it). Sequences count as equally long:
  // what rounds up and least buffers add to each weighs most where none is longer than others.
  template <class F>
  int64_t over(const Scope& scope, F&& of) const {
    if (scope.kind == Scope::Kind::sequence) {
      const int64_t count = sequences(), length = n / count, longer = n % count;
      return longer * of(length + 1) + (count - longer) * of(length);
    }
    const int64_t group = scope.kind == Scope::Kind::group ? scope.group : n, rest = n % group;
    return n / group * of(group) + (rest > 0 ? of(rest) : 0);
  }
  // Pairs of tokens and experts in one MoE layer: what each expert takes where experts choose, else
  // every choice that can find room.
  int64_t pairs() const {
    if (const auto* choice = std::get_if<ExpertChoice>(&spec.select))
      return spec.experts * over(choice->scope, [&](int64_t tokens) {
               return tokens_per_expert(*choice, tokens, spec.experts);
             });
    const int64_t chosen = n * spec.slots();
    const auto* buffer = std::get_if<BufferCapacity>(&spec.capacity);
    if (buffer == nullptr) return chosen;
    return std::min(chosen, spec.with_weights() * over(buffer->scope, [&](int64_t tokens) {
                              return expert_capacity(*buffer, tokens, spec.experts, spec.slots());
                            }));
  }
  // States that the backward of layers that keep one starts from.
  int64_t chunks() const {
    if (!goes_back) return 0;
    return over({Scope::Kind::sequence, 0},
                [](int64_t tokens) { return (tokens + ops::kDeltaChunk - 1) / ops::kDeltaChunk; });
  }
  int64_t rows(bool moe) const { return moe && !by_neuron ? pairs() : n; }
  int64_t ffn_width(bool moe) const {
    if (!moe) return c.dense_width;
    return by_neuron ? c.routing.experts : c.expert_width;
  }
  int64_t shared_width() const { return c.shared_experts * c.shared_width; }
  bool spread(bool moe) const { return moe && shape.spread > 1; }
  // What the experts of a layer work on at a time.
  int64_t pieces(bool moe) const {
    return spread(moe) ? exchange_pieces(c.routing.experts, static_cast<int>(shape.spread)) : 1;
  }
  int64_t statistics() const { return n * kF32 * (c.norm == NormKind::layer ? 2 : 1); }
  int64_t stream() const { return n * c.width * kF32; }
  // All residual streams.
  int64_t streams() const { return stream() * std::max<int64_t>(1, c.hyper.streams); }
  // What a norm gives in f32, beside the same as sublayers see it, where it is the residual.
  int64_t carried() const {
    return c.norm_placement == NormPlacement::carried && a != kF32 ? stream() : 0;
  }
  int64_t weighed() const { return n * c.hyper.weights() * kF32; }  // a token's weights of them
};

// Before and behind the convolution; gates, what the rule gives and its norm; what gates and decays
// are made of; strength and decay before and after, the norm's statistics; the states that backward
// starts from.
int64_t saved_linear(const Sizes& s) {
  const LinearAttention& l = s.c.linear;
  const int64_t chunks = s.chunks();
  return s.n * s.a * (2 * l.channels() + 3 * l.v_width() + 2 * l.gate_width) +
         s.n * kF32 * (3 * l.value_heads + 2 * l.decays()) +
         chunks * l.v_width() * l.key_width * kF32;
}

// Before and behind the convolution; gates, what the heads give, the same gated; steps, the norm's
// statistics; the states that backward starts from.
// Of a selective scan: before and behind the convolution, gates, steps, what the scan gives; what
// steps, B and C are made of and the same normed, statistics; the states.
int64_t saved_scan(const Sizes& s) {
  const StateSpace& of = s.c.scan;
  if (of.selective())
    return s.n * s.a * (5 * of.values() + (of.norm ? 2 : 1) * of.made()) +
           s.n * kF32 * (of.norm ? 3 : 0) + s.chunks() * of.values() * of.states * kF32;
  return s.n * s.a * (2 * of.channels() + 3 * of.values()) +
         s.n * kF32 * (of.heads + (of.norm ? of.groups : 0)) +
         s.chunks() * of.values() * of.states * kF32;
}

// Values, keys and queries before and behind the activation; gates, what the heads give, the same
// normed; the norm's statistics; the states that backward starts from.
int64_t saved_lightning(const Sizes& s) {
  return s.n * s.a * 9 * s.c.q_width() + s.n * kF32 + s.chunks() * s.c.lightning_state() * kF32;
}

// Entries that a batch makes, and how many a token sees at most.
int64_t made_entries(const Sizes& s, const Entries& e) { return e.present() ? s.n / e.tokens : 0; }
int64_t seen_entries(const Sizes& s, const Entries& e) {
  if (!e.present()) return 0;
  return e.chosen() ? std::min(e.top, s.reach / e.tokens) : s.reach / e.tokens;
}

// Of shared latents: queries before and behind their norm, its statistics; what queries are made of
// and what is shared, likewise; what heads give, lse, the same made narrower. Of entries and of
// those of an indexer what they are made of, they before and behind their norm, its statistics; and
// those that a token sees.
int64_t saved_shared(const Sizes& s, const AttentionShape& shape) {
  const LatentAttention& l = shape.latent;
  const Entries& e = shape.entries;
  const int64_t narrow = l.out_groups > 0 ? shape.out_width() : 0,
                all = e.present() ? shape.key_width + e.width : 0;
  return s.n * s.a *
             (2 * shape.q_width() + 2 * (l.query_width + l.width) + shape.o_width() + narrow +
              2 * e.parts() * all) +
         s.n * kF32 * (2 * shape.heads + 2 + seen_entries(s, e)) +
         made_entries(s, e) * (2 * all * s.a + (e.chosen() ? 2 : 1) * kF32);
}

int64_t saved_heads(const Sizes& s, int64_t layer) {
  const ModelConfig& c = s.c;
  const AttentionShape shape = c.attention(layer);
  if (shape.latent.shared) return saved_shared(s, shape);
  const int64_t q = s.n * shape.q_width() * s.a, k = s.n * shape.k_width() * s.a;
  // q, k, v, o; lse
  int64_t bytes =
      q + k + s.n * (shape.v_width() + shape.o_width()) * s.a + s.n * shape.heads * kF32;
  if (shape.value_norm)  // what it sees, unless keys are made of it, and its statistics
    bytes += (shape.values_of_keys ? 0 : s.n * shape.v_width() * s.a) + s.n * shape.kv_heads * kF32;
  bytes += s.n * shape.gates * (shape.own_gates() ? kF32 : s.a);
  if (shape.clip > 0) bytes += q + k + s.n * shape.v_width() * s.a;    // before they were clipped
  if (shape.block > 0) bytes += s.n * kF32 * (shape.index_heads + 1);  // of an indexer's norms
  // before and after the norms, k_rope; statistics, those of an indexer's norm too
  if (const LatentAttention& l = shape.latent; l.present())
    return bytes + s.n * (2 * (l.width + l.query_width) + shape.shared_width) * s.a +
           (l.query_both ? s.n * l.queries_of() * s.a : 0) +
           s.n * kF32 * ((l.query_width > 0 ? 2 : 1) + (shape.index_heads > 0 ? 2 : 0));
  if (shape.qk_norm == QkNorm::none) return bytes;
  const bool head = shape.qk_norm != QkNorm::full;
  // before the norm, and its statistics
  return bytes + q + k + s.n * kF32 * (head ? shape.heads + shape.kv_heads : 2);
}

int64_t saved_attention(const Sizes& s, int64_t layer) {
  const ModelConfig& c = s.c;
  if (!c.mixes(layer)) return 0;
  if (c.is_linear(layer)) return saved_linear(s);
  if (c.mixer(layer) == Mixer::lightning) return saved_lightning(s);
  if (c.mixer(layer) == Mixer::scan)
    return saved_scan(s) + (c.scan_beside ? saved_heads(s, layer) : 0);
  // three projections, gated, convolved
  if (c.mixer(layer) == Mixer::conv) return 5 * s.n * c.width * s.a;
  return saved_heads(s, layer);
}

// Matrices [N,E] that the router keeps for its noise: the scale before softplus, and the logits
// before it and the scale itself where a loss reads them.
int64_t saved_noise(const RoutingSpec& spec) {
  if (!std::holds_alternative<LearnedNoise>(spec.noise)) return 0;
  return 1 + (spec.losses.load || spec.losses.z_of_clean ? 1 : 0) + (spec.losses.load ? 1 : 0);
}

int64_t saved_router(const Sizes& s) {
  // bounds; token, row, pair, weight
  const int64_t plan = s.by_neuron ? 0 : s.n * kF32 + s.rows(true) * 4 * kF32;
  const bool holds_back = std::holds_alternative<BufferCapacity>(s.spec.capacity) ||
                          !std::holds_alternative<KeepSecond>(s.spec.second);
  // choice, selected, weights, kept
  int64_t bytes = plan + s.n * kF32 * (holds_back ? 4 : 3) * s.spec.slots();
  // what zero experts weigh, the pairs with the others, and what pairs weigh behind the drop
  if (s.spec.zero_experts > 0)
    bytes += s.n * kF32 * (1 + (renormalises_after_drop(s.spec.weigh) ? 2 : 1) * s.spec.slots());
  if (!needs_logits(s.spec.select)) return bytes;
  bytes += s.n * kF32 * ((2 + saved_noise(s.spec)) * s.spec.experts + 1);  // logits, scores; lse
  if (std::holds_alternative<InputJitter>(s.spec.noise)) bytes += s.stream();
  if (std::holds_alternative<AnalyticLogits>(s.spec.logits))
    bytes += s.n * kF32 * s.spec.experts * (s.c.gated ? 2 : 1);  // products
  return bytes;
}

int64_t saved_ffn(const Sizes& s, int64_t layer) {
  if (!s.c.has_ffn(layer)) return 0;
  const bool moe = s.c.is_moe(layer);
  const int64_t matrices = s.c.gated ? 2 : 1;  // gate, up
  int64_t bytes = s.rows(moe) * s.ffn_width(moe) * s.a * matrices;
  if (!moe) return bytes;
  bytes += saved_router(s);
  if (s.c.shared_experts > 0)
    bytes += s.n * s.shared_width() * s.a * matrices + (s.c.shared_gate ? s.n * kF32 : 0);
  if (s.c.branch_norms)  // what the router and the experts see, what comes of them and of the
                         // shared
    bytes += 2 * (s.n * s.c.width * s.a + s.stream()) + 4 * s.statistics();
  return bytes;
}

// What a sublayer saw, and what its norms keep; `out_norm`: it has one behind it too.
int64_t saved_sublayer(const Sizes& s, NormPlacement placement, bool out_norm) {
  // what a norm behind it sees
  const bool before = placement == NormPlacement::pre || placement == NormPlacement::carried;
  const int64_t behind = out_norm || !before ? s.stream() : 0;
  return s.n * s.c.width * s.a + (out_norm ? 2 : 1) * s.statistics() + behind;
}

// Gates behind the layer's norms.
int64_t norm_gates(const Sizes& s, int64_t layer) {
  return s.c.norm_gate == 0 ? 0 : s.c.mixes(layer) + (s.c.has_ffn(layer) && s.c.is_moe(layer));
}

int64_t saved_block(const Sizes& s, int64_t layer) {
  if (s.c.hyper.present())  // what is collapsed, seen and given, and weights twice; between them u
    return 2 * (2 * s.stream() + s.n * s.c.width * s.a + s.statistics() + 2 * s.weighed()) +
           s.streams() + saved_attention(s, layer) + saved_ffn(s, layer);
  const NormPlacement placement = s.c.placement(layer);
  if (is_beside(placement))  // what both sublayers see, or each of them
    return (placement == NormPlacement::beside ? 1 : 2) * (s.n * s.c.width * s.a + s.statistics()) +
           saved_attention(s, layer) + saved_ffn(s, layer);
  int64_t bytes = saved_attention(s, layer) + saved_ffn(s, layer);
  if (s.c.mixes(layer)) bytes += saved_sublayer(s, placement, placement == NormPlacement::both);
  if (s.c.has_ffn(layer)) bytes += saved_sublayer(s, placement, has_ffn_out_norm(s.c, layer));
  if (s.c.mixes(layer) && s.c.has_ffn(layer)) bytes += s.stream();  // between the two
  // what gates see, what they are made of, and they before their sigmoids
  return bytes + norm_gates(s, layer) * s.n * (2 * s.c.width + s.c.norm_gate) * s.a;
}

// Rows laid out at once for the gradient of a single matrix: a wave of them
// (ops/cpu/gemm/matmul_dw.cpp).
int64_t scratch_wave(const Sizes& s, int64_t rows, int64_t width) {
  return std::min(rows * width * s.a, std::max(ops::kDwWaveBytes, ops::kDwInnerRows * width * s.a));
}

// The widest moment of an expert bank's backward: gradients of both projections, the hidden rows,
// and the rows laid out for the gradient of a matrix: a wave of those of a single matrix, of a bank
// those of the groups that two threads are at and of one they share.
int64_t scratch_bank(const Sizes& s, int64_t rows, int64_t width, int64_t experts = 1) {
  const int64_t wave = experts == 1
                           ? scratch_wave(s, rows, width)
                           : std::min(rows, 3 * rows / experts) * std::max(width, s.c.width) * s.a;
  return rows * width * (s.c.gated ? 3 : 2) * s.a + wave;
}

// Of each scope that a loss looks at, by expert: its pairs, what a pair counts, in double, and the
// same times a coefficient (moe/losses/balance_loss.cpp, ops/cpu/routing/slopes.cpp).
int64_t scratch_scopes(const Sizes& s) {
  constexpr int64_t kBytes = 16;
  const AuxLosses& losses = s.spec.losses;
  const auto scopes = [&](const auto& loss) {
    return loss ? s.over(loss->scope, [](int64_t) { return int64_t{1}; }) : int64_t{0};
  };
  return kBytes * s.spec.experts *
         std::max({scopes(losses.balance), scopes(losses.device), scopes(losses.communication)});
}

// Backward: the gradients of the logits and of what the noise keeps, and of the weights.
int64_t scratch_router(const Sizes& s) {
  if (!needs_logits(s.spec.select)) return 0;
  const bool jittered = std::holds_alternative<InputJitter>(s.spec.noise);
  const int64_t products = std::holds_alternative<AnalyticLogits>(s.spec.logits)
                               ? 4
                               : 0,  // the score again, its gradient, those of the products
      sigmoids = std::holds_alternative<ChosenSigmoids>(s.spec.weigh)
                     ? 3
                     : 0;  // they again, their gradient and slopes
  return s.n * kF32 *
             ((1 + products + sigmoids + saved_noise(s.spec) + (s.spec.losses.load ? 1 : 0)) *
                  s.spec.experts +
              s.spec.slots()) +
         scratch_scopes(s) + (jittered ? s.stream() : 0);
}

// What experts are given where weights multiply that: rows of a piece, laid out.
int64_t scratch_weighed(const Sizes& s) {
  return s.c.weigh_inputs ? s.rows(true) / s.pieces(true) * s.c.width * s.a : 0;
}

// What zero experts give back, or its gradient.
int64_t scratch_passed(const Sizes& s) {
  return s.spec.zero_experts > 0 ? s.n * s.c.width * s.a : 0;
}

// The gradient of what joins later, as products take it.
int64_t scratch_late(const Sizes& s) { return s.c.shortcut ? s.n * s.c.width * s.a : 0; }

int64_t scratch_ffn(const Sizes& s, int64_t layer) {
  if (!s.c.has_ffn(layer)) return 0;
  if (!s.c.is_moe(layer)) return scratch_bank(s, s.n, s.c.dense_width);
  if (s.by_neuron)  // and what the neurons put out apart from its gradient
    return scratch_bank(s, s.n, s.ffn_width(true)) + s.n * s.ffn_width(true) * s.a;
  const int64_t rows = s.rows(true), pieces = s.pieces(true);
  const int64_t bank = scratch_bank(s, rows / pieces, s.c.expert_width,
                                    std::max<int64_t>(1, s.c.routing.experts / pieces));
  int64_t routed = rows * (kF32 + s.c.width * s.a);  // dweight; drows
  // Where rows travel: what goes to experts and what comes of it, and the same of the way back.
  if (s.spread(true)) routed += 4 * rows * s.c.width * s.a;
  // of branches: of what the router sees and what experts see, and of what they and the shared give
  if (s.c.branch_norms) routed += 2 * (s.stream() + s.n * s.c.width * s.a);
  routed += scratch_weighed(s);
  // of the output's gradient
  const int64_t half = scratch_late(s) + (s.c.shared_average ? s.n * s.c.width * s.a : 0),
                gradients = s.c.shared_experts > 0 ? s.stream() : 0,
                shared = gradients > 0 ? scratch_bank(s, s.n, s.shared_width()) : 0;
  const int64_t router =
      std::max(scratch_passed(s), scratch_router(s)) + (s.spec.zero_experts > 0 ? s.n * kF32 : 0);
  if (s.spread(true))  // the shared ones' gradients are kept until the experts are done
    return half + routed + gradients + std::max({bank, shared, router});
  return half + std::max(routed + std::max(bank, router), gradients + shared);
}

// Gradients of what is saved, but for the second of each pair; of decays of channels also in the
// activations' type; those of the convolution in f32; of a key head's queries and keys, both before
// and behind their norms, on each thread.
int64_t scratch_linear(const Sizes& s) {
  const LinearAttention& l = s.c.linear;
  const int64_t rounded = l.by_channel() && s.a != kF32 ? l.decays() : 0;
  return s.n * s.a * (2 * l.channels() + 3 * l.v_width() + 2 * l.gate_width + rounded) +
         s.n * kF32 * (l.value_heads + l.decays()) +
         std::max(s.n * l.channels() * kF32, scratch_wave(s, s.n, s.c.width));
}

// Gradients of what is saved, but for one of what the heads give and the same normed and gated;
// of each head's decay and skip, or those of the convolution in f32.
// Of a selective scan: of what is gated and of steps, of gates, of what the scan gives and of what
// the convolution sees, of what that gives; of what steps, B and C are made of, before and behind
// the norms; of B and C by blocks of channels, or of the convolution in f32.
int64_t scratch_scan(const Sizes& s) {
  const StateSpace& of = s.c.scan;
  if (of.selective()) {
    const int64_t blocks = (of.values() + ops::kSelectiveBlock - 1) / ops::kSelectiveBlock;
    return s.n * s.a * (4 * of.values() + (of.norm ? 2 : 1) * of.made()) +
           std::max(s.n * kF32 * std::max(of.values(), 2 * of.states * blocks),
                    scratch_wave(s, s.n, std::max(of.values(), s.c.width)));
  }
  return s.n * s.a * (2 * of.channels() + 3 * of.values()) + s.n * kF32 * of.heads +
         std::max(s.n * kF32 * std::max(of.channels(), 2 * of.heads),
                  scratch_wave(s, s.n, s.c.width));
}

// Gradients of what is saved, but for one of what the heads give and the same normed and gated; the
// steps and their gradients, and those of each head's decay and skip.
int64_t scratch_lightning(const Sizes& s) {
  const int64_t of_heads = 2 * s.n * kF32 * s.c.heads;
  return s.n * s.a * 9 * s.c.q_width() + of_heads +
         std::max(of_heads, scratch_wave(s, s.n, s.c.width));
}

// Gradients of what heads gave and of their gates: the first beside what it was made of, of gates
// of heads also in the activations' type.
int64_t scratch_gate(const Sizes& s, const AttentionShape& shape) {
  if (shape.gates == 0) return 0;
  const int64_t rounded = s.a != kF32 ? s.a : 0;
  return s.n * (shape.o_width() * s.a + shape.gates * (shape.own_gates() ? kF32 + rounded : s.a));
}

// Gradients of queries, of what is shared twice and of what heads gave; beside them what heads gave
// turned back, its gradient by parts and that of what is narrower; or those of entries, and of
// queries before their norm and of what they are made of, or of what entries are made of.
int64_t scratch_shared(const Sizes& s, const AttentionShape& shape) {
  const LatentAttention& l = shape.latent;
  const Entries& e = shape.entries;
  const int64_t row = s.n * s.a, wave = scratch_wave(s, s.n, s.c.width),
                out = row * shape.o_width(), entries = made_entries(s, e) * shape.key_width * s.a,
                narrow = l.out_groups > 0 ? row * shape.out_width() + out : 0,
                made = e.present() ? 2 * e.parts() * row * shape.key_width + entries : 0,
                queries =
                    row * (shape.q_width() + l.query_width + std::max(l.query_width, l.width));
  return row * (shape.q_width() + 2 * shape.k_width()) + out +
         std::max(out + narrow + wave, entries + std::max({s.n * shape.heads * kF32, queries + wave,
                                                           queries + made + wave}));
}

int64_t scratch_heads(const Sizes& s, int64_t layer) {
  const AttentionShape shape = s.c.attention(layer);
  if (shape.latent.shared) return scratch_shared(s, shape);
  const int64_t q = s.n * shape.q_width() * s.a,
                others = s.n * (shape.k_width() + shape.v_width() + shape.o_width()) * s.a;
  if (const LatentAttention& l = shape.latent; l.present())
    // dk_rope, dkv, dk_b; dq_b; before a norm
    return q + others + scratch_wave(s, s.n, s.c.width) + scratch_gate(s, shape) +
           s.n * s.a *
               (shape.k_width() - (shape.heads - 1) * shape.shared_width + l.width +
                l.queries_of() + (l.query_both ? l.query_width : 0) +
                (l.factor != 1 || l.query_factor != 1 ? 2 : 1) * std::max(l.width, l.query_width));
  // dq; dk, dv, do; before the norm; x laid out
  const bool normed = shape.qk_norm != QkNorm::none;
  const int64_t turned = normed && shape.norm_turned ? q + s.n * shape.k_width() * s.a : 0;
  const int64_t values = shape.value_norm ? s.n * (shape.k_width() + shape.v_width()) * s.a : 0;
  return q + others + (normed ? q : 0) + turned + values + scratch_wave(s, s.n, s.c.width) +
         scratch_gate(s, shape);
}

// Backward through what is seen of the streams: gradients of the weights, the streams normed and
// the gradient of that; before it of what is given to them, where they mix.
int64_t scratch_streams(const Sizes& s) {
  return std::max(s.weighed() + 2 * s.streams() + s.n * kF32 +
                      scratch_wave(s, s.n, s.c.hyper.streams * s.c.width) * kF32 / s.a,
                  s.c.hyper.mixes ? s.streams() : 0);
}

// The gradient that each of them sees, where what it gives is multiplied; beside one another, what
// comes of attention's.
int64_t scratch_attention(const Sizes& s, int64_t layer) {
  if (!s.c.mixes(layer)) return 0;
  if (s.c.is_linear(layer)) return scratch_linear(s);
  if (s.c.mixer(layer) == Mixer::lightning) return scratch_lightning(s);
  // of the four behind the projection back; slopes, or rows laid out
  if (s.c.mixer(layer) == Mixer::conv)
    return s.n * s.c.width * (4 * s.a) + std::max(s.stream(), scratch_wave(s, s.n, s.c.width));
  const int64_t row = s.n * s.c.width * s.a, of_scan = s.c.multipliers.scan_out != 1 ? row : 0,
                of_heads = s.c.multipliers.attention_out != 1 ? row : 0;
  if (s.c.mixer(layer) != Mixer::scan) return of_heads + scratch_heads(s, layer);
  if (!s.c.scan_beside) return of_scan + scratch_scan(s);
  return of_scan + std::max(scratch_scan(s), s.stream() + of_heads + scratch_heads(s, layer));
}

int64_t scratch_block(const Sizes& s, int64_t layer) {
  if (s.c.hyper.present())  // of what is given and seen, of weights; the first rounded
    return 2 * s.stream() + s.weighed() + (s.a != kF32 ? s.n * s.c.width * s.a : 0) +
           std::max({scratch_ffn(s, layer), scratch_attention(s, layer), scratch_streams(s)});
  // dx, and dsum or what came of the norm, or the other sublayer's dx; dy
  const NormPlacement placement = s.c.placement(layer);
  const bool ffn_out_norm = has_ffn_out_norm(s.c, layer),
             carried = placement == NormPlacement::carried,
             pre = carried || (placement == NormPlacement::pre && !ffn_out_norm),
             output = placement == NormPlacement::output || placement == NormPlacement::both ||
                      ffn_out_norm,
             multiplied = s.c.multipliers.residual != 1 || !s.c.multipliers.plain_sums(),
             own = s.a != kF32 || s.c.dropout > 0 || multiplied || output;
  const int64_t sublayer = s.stream() * (pre ? 1 : 2) + (own ? s.n * s.c.width * s.a : 0);
  const int64_t beside = s.c.branch_norms && s.c.is_moe(layer) ? s.stream() : 0,
                // what comes of a norm, when the sublayers are done
      through = placement == NormPlacement::beside_each ? s.stream() : 0;
  // three gradients as wide as the model, three of what gates are made of
  const int64_t gate = norm_gates(s, layer) == 0 ? 0
                                                 : 3 * s.n * (s.c.width + s.c.norm_gate) * s.a +
                                                       scratch_wave(s, s.n, s.c.width);
  return sublayer + beside +
         std::max({scratch_ffn(s, layer), scratch_attention(s, layer), gate, through});
}

// Of the head's loss: the logits [N,V] that are kept whole, and the numbers of those that are
// looked at at once.
int64_t kept_logits(const Sizes& s) {
  return s.n * s.c.vocab * kF32 <= kKeptLogitBytes ? s.n * s.c.vocab * kF32 : 0;
}
int64_t chunk_of_logits(const Sizes& s) {
  return std::min(s.n, logit_chunk_rows(s.c.vocab)) * s.c.vocab;
}

// Forward, beside what is saved: what a sublayer gives, and the hidden rows on the way to it.
int64_t scratch_sublayers(const Sizes& s, int64_t layer) {
  if (!s.c.has_ffn(layer)) return s.stream();
  const bool moe = s.c.is_moe(layer);
  const int64_t hidden = s.rows(moe) / s.pieces(moe) * s.ffn_width(moe) * s.a;
  if (!moe || s.by_neuron) return s.stream() + hidden;
  const int64_t numbers = s.rows(true) * s.c.width;
  const int64_t within =
      hidden + (s.c.shared_experts > 0 ? s.n * s.shared_width() * s.a : 0) + scratch_weighed(s);
  return s.stream() + numbers * kF32 + (s.spread(true) ? numbers * (s.a + 2 * kF32) : 0) +
         std::max(within, scratch_passed(s));
}

// The same, or the streams normed.
int64_t scratch_forward(const Sizes& s, int64_t layer) {
  return std::max(scratch_sublayers(s, layer),
                  s.c.hyper.present() ? s.streams() + s.n * kF32 : int64_t{0});
}

// Numbers of experts that lie on other processes.
int64_t elsewhere(const ModelConfig& c, int64_t spread) {
  if (spread == 1 || c.moe_layer_count() == 0) return 0;
  const int64_t all = count_params(c)[Part::experts], experts = c.routing.experts,
                here = (experts + spread - 1) / spread;
  return all / experts * (experts - here);
}

// What comes of other processes and is kept for backward.
int64_t saved_exchange(const Sizes& s, bool moe) {
  return s.spread(moe) ? s.rows(true) * (s.c.width * s.a + 2 * kF32) : 0;
}

// Of all matrices that are here. A sketch does not learn: there is no product back.
int64_t copy_bytes(const ModelConfig& c, DType dtype, int64_t spread) {
  int64_t bytes = 0;
  each_param(c, [&](const Param& p, int64_t layers) {
    if (is_sketch(p))
      bytes += layers * ops::forward_copy_bytes(p, dtype, is_multiplied_in_f32(p)).all;
    if (!is_multiplied(c, p) || p.frozen) return;
    Param here;
    here.value = p.value;
    if (p.part == Part::experts && spread > 1)
      here.value.shape[0] = (p.value.shape[0] + spread - 1) / spread;
    bytes += layers * ops::trained_copy_bytes(here, dtype, is_multiplied_in_f32(p));
  });
  return bytes;
}

}  // namespace

TrainingMemory count_training_memory(const ModelConfig& c, const TrainingShape& shape) {
  const ParamCount count = count_params(c);
  const Sizes s(c, shape, c.moe_layer_count() > 0 ? train_spec(c.routing) : RoutingSpec{});
  const int64_t params = count.total() - elsewhere(c, shape.spread), n = s.n;
  TrainingMemory m;
  m.masters = kF32 * (params + count.buffers);
  m.gradients = kF32 * (params - count.frozen);
  m.moments = 2 * m.gradients;
  m.copies = copy_bytes(c, shape.dtype, shape.spread);

  const int64_t logits = kept_logits(s);
  const int64_t end = c.hyper.present() ? s.stream() + 2 * n * c.hyper.streams * kF32 : 0;
  const int64_t late = c.shortcut ? s.stream() : 0;
  m.activations = (c.layers + 1) * s.streams() + end + late + n * c.width * s.a + 2 * n * kF32 +
                  s.statistics() + logits;  // h of every block, hidden, nll, lse
  int64_t widest_scratch = chunk_of_logits(s) * (logits > 0 ? s.a : s.a + kF32), widest_block = 0;
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const int64_t block = saved_block(s, layer) + saved_exchange(s, c.is_moe(layer));
    m.activations += shape.recompute ? 0 : block;
    widest_block = std::max(widest_block, block);
    widest_scratch = std::max(
        {widest_scratch, scratch_block(s, layer), s.carried() + scratch_forward(s, layer)});
  }
  if (shape.recompute) m.activations += widest_block + s.streams();
  if (c.embedding_norm)  // what it sees, its gradient, and its statistics
    widest_scratch = std::max(widest_scratch, 2 * s.stream() + n * kF32);
  if (c.hyper.present())  // of the end: what comes of its norm
    widest_scratch = std::max(widest_scratch, s.stream() + s.weighed() + scratch_streams(s));
  m.scratch = s.streams() + s.stream() + late + widest_scratch + kThreadScratch;
  return m;
}

namespace {

// Of a forward that reads a cache: what queries of latents are, in both orders, what they see, and
// the values; with sinks the sums of their weights.
int64_t scratch_latents(const Sizes& s, int64_t layer) {
  const AttentionShape shape = s.c.attention(layer);
  const int64_t width = shape.latent.width;
  return shape.latent.present() && !shape.latent.shared
             ? s.n * s.a *
                       (shape.cached_key_width() * (shape.heads + 1) +
                        shape.heads * (2 * width + shape.value_width)) +
                   (s.c.attention_sinks ? s.n * shape.heads * kF32 : 0)
             : 0;
}

int64_t rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// The same where blocks are chosen, beside what attention gives: queries before and behind their
// norm too, and each head's best score of 64 keys; or keys and values that no cache has.
int64_t scratch_of_blocks(const Sizes& s, const AttentionShape& shape, int64_t kept,
                          int64_t reach) {
  const int64_t rows = rounded_up(s.n, ops::kKeyBlock), small = reach / ops::kKeyBlock + 1,
                best = std::max(std::min(s.n * small * shape.index_heads, ops::kScoresAtOnce),
                                small * shape.index_heads),
                queries = 2 * s.n * shape.index_heads * shape.index_width * s.a;
  return s.stream() + std::max(rows * (shape.k_width() + shape.v_width()) * s.a,
                               kept + rows * shape.index_width * s.a + queries + kF32 * best);
}

// Of attention that sees some keys of `reach` tokens: an indexer's keys before and behind their
// norm, and as they are kept; then its queries, weights and scores, or copies of what was chosen.
int64_t scratch_sparse(const Sizes& s, int64_t layer, int64_t reach) {
  const AttentionShape shape = s.c.attention(layer);
  if (shape.top == 0) return 0;
  const int64_t kept = s.n * shape.index_width * s.a * 2;
  if (reach <= shape.top) return kept;
  if (shape.block > 0) return scratch_of_blocks(s, shape, kept, reach);
  const int64_t row = kF32 * shape.cached_key_width(),
                copies = std::min(s.n * shape.top * row, std::max(kKeptBytes, shape.top * row));
  if (shape.index_heads == 0) return copies;
  const int64_t scores = std::max(std::min(s.n * reach, ops::kScoresAtOnce), reach);
  return std::max(copies, kept + rounded_up(s.n, ops::kKeyBlock) * shape.index_width * s.a +
                              s.n * shape.index_heads * (shape.index_width * s.a + kF32) +
                              kF32 * rounded_up(scores, ops::kKeyBlock));
}

// An indexer's queries, weights and scores of the entries of a text, and these as they are kept and
// as they are laid out.
int64_t scratch_entries(const Sizes& s, int64_t layer) {
  const Entries e = s.c.attention(layer).entries;
  if (!e.chosen() || s.reach / e.tokens <= e.top) return 0;
  const int64_t all = s.reach / e.tokens + ops::kKeyBlock,
                scores = std::max(std::min(s.n * all, ops::kScoresAtOnce), all);
  return s.n * e.heads * (e.width * s.a + kF32) + all * e.width * (kF32 + s.a) + kF32 * scores;
}

// What heads gave, weighted or normed.
int64_t scratch_gated(const Sizes& s, int64_t layer) {
  const LinearAttention& l = s.c.linear;
  const int64_t taps = l.conv_width * l.channels() * kF32;
  if (s.c.is_linear(layer)) return s.stream() + std::max(s.n * l.v_width() * s.a, taps);
  if (s.c.mixer(layer) == Mixer::lightning)  // or the steps, which are fixed
    return s.stream() + s.n * std::max(s.c.q_width() * s.a, s.c.heads * kF32);
  if (const StateSpace& of = s.c.scan; s.c.mixer(layer) == Mixer::scan)
    return s.stream() +
           std::max({of.norm || of.selective() ? s.n * of.values() * s.a : 0,
                     of.conv_width * of.channels() * kF32, s.c.scan_beside ? s.stream() : 0});
  if (s.c.mixer(layer) == Mixer::conv)
    return s.stream() + std::max(s.n * s.c.width * s.a, s.c.conv_width * s.c.width * kF32);
  if (const AttentionShape shape = s.c.attention(layer); shape.latent.shared) {
    const int64_t narrow = shape.latent.out_groups > 0 ? shape.out_width() : 0;
    return s.stream() + std::max(s.n * s.a * (shape.o_width() + narrow), scratch_entries(s, layer));
  }
  return s.c.attention_gate ? s.stream() + s.n * s.c.attention(layer).o_width() * s.a : 0;
}

}  // namespace

int64_t count_forward_memory(const ModelConfig& c, const ForwardShape& shape,
                             const RoutingSpec& routing) {
  Sizes s(c, {.batch = 1, .context = shape.tokens, .dtype = shape.dtype}, routing, false);
  s.reach = std::max(shape.context, shape.tokens);
  // of every block, hidden
  const int64_t streams =
      2 * s.streams() + s.n * c.width * s.a + s.statistics() + (c.shortcut ? s.stream() : 0);
  int64_t turning[2] = {};  // numbers of a position's cosines and sines, of layers with a window
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const AttentionShape of = c.attention(layer);
    if (of.rotary_width > 0) turning[of.window_turns] = of.rotary_width + 1;
  }
  // queries that grow have a table of their own, where it turns nothing one of whole heads
  const bool still = c.latent.present() || c.query_growth.where_still;
  const int64_t growing = !c.query_growth.present() ? 0
                          : still                   ? c.head_width + 1
                                                    : turning[0],
                turns = s.n * (turning[0] + growing + turning[1]) * kF32;
  const int64_t reach = s.reach,
                choices = c.sparse.block > 0 ? c.sparse.heads * c.sparse.blocks() : c.sparse.top,
                chosen = c.sparse.present() && reach > c.sparse.top ? s.n * choices * 4 : 0;
  int64_t saved = shape.loss ? 2 * s.n * kF32 + kept_logits(s) : 0;  // nll, lse
  saved = std::max(saved, shape.logits * (c.vocab + 2) * kF32);      // and nll, lse
  int64_t scratch = shape.loss && kept_logits(s) == 0 ? chunk_of_logits(s) * kF32 : 0;
  if (c.embedding_norm) scratch = std::max(scratch, s.stream() + s.n * kF32);
  if (c.hyper.present())  // of the end
    saved = std::max(saved, s.stream() + 2 * s.n * c.hyper.streams * kF32);
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    saved = std::max(saved, saved_block(s, layer));
    scratch = std::max(scratch, scratch_forward(s, layer));
    if (c.mixes(layer))
      scratch = std::max({scratch, scratch_latents(s, layer) + scratch_sparse(s, layer, reach),
                          scratch_gated(s, layer)});
  }
  return streams + turns + chosen + saved + s.carried() + scratch + kForwardThreadScratch;
}

}  // namespace moe
