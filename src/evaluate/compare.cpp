#include "evaluate/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/threads.h"
#include "evaluate/mean.h"
#include "evaluate/score.h"
#include "infer/eval_routing.h"
#include "moe/one_sequence.h"
#include "text/same_tokens.h"

namespace moe {
namespace {

constexpr int64_t kChunkBytes = int64_t{16} << 20;   // of the logits of one model
constexpr int64_t kStateBytes = int64_t{256} << 20;  // of the states that drift is measured on

// One model and what it did with a window.
struct Side {
  Model& model;
  Run& run;
  RoutingSpec routing;
  ModelSaved saved = {};
  std::vector<LayerChoices> load = {};
  std::vector<std::vector<char>> chosen = {};  // [MoE layers][N * E] 1: the token chose the expert
  double total = 0;                            // nats
  TextFigures figures = {};

  Side(const ComparedModel& m)
      : model(m.model),
        run(m.run),
        routing(evaluation_spec(m.model.config(), std::nullopt, m.top_k_experts)) {}
};

void note_choices(Side& side, const MoeLayer::Saved& layer, bool keep_chosen) {
  const Router::Saved& router = layer.router;
  const int64_t experts = side.model.config().routing.scored(), tokens = router.choice.rows(),
                slots = router.choice.cols();
  std::vector<char>& chosen = side.chosen.emplace_back();
  if (!keep_chosen) return;
  chosen.assign(static_cast<size_t>(tokens * experts), 0);
  // kept, not selected: what a second-choice policy held back is no choice. Nothing is dropped in
  // the evaluation that both sides run by.
  for (int64_t n = 0; n < tokens; ++n)
    for (int64_t k = 0; k < slots; ++k)
      if (router.kept.row<int32_t>(n)[k])
        chosen[static_cast<size_t>(n * experts + router.choice.row<int32_t>(n)[k])] = 1;
}

using OnBlock = std::function<void(int64_t layer, const Tensor& h)>;

void forward(Side& side, const Batch& batch, bool keep_chosen, const OnBlock& on_block) {
  side.chosen.clear();
  const std::function<void(int64_t, const MoeLayer::Saved&)> listen =
      [&](int64_t, const MoeLayer::Saved& layer) { note_choices(side, layer, keep_chosen); };
  side.model.forward(side.run,
                     {.batch = batch,
                      .routing = &side.routing,
                      .wanted = {.counts = true},
                      .on_routing = &listen,
                      .on_block = &on_block},
                     side.saved);
  if (side.load.empty())
    for (const LayerRouting& r : side.saved.routing)
      side.load.push_back({r.layer, std::vector<int64_t>(r.counts.size())});
  for (size_t l = 0; l < side.load.size(); ++l)
    for (size_t e = 0; e < side.load[l].counts.size(); ++e)
      side.load[l].counts[e] += side.saved.routing[l].counts[e];
}

// What each pair of predictions gives, by token.
struct TokenFigures {
  std::vector<float> before, after;  // nll
  std::vector<float> kl;
  std::vector<char> before_right, after_right, same;
  explicit TokenFigures(size_t n)
      : before(n), after(n), kl(n), before_right(n), after_right(n), same(n) {}
};

// KL(p || q) with p = softmax(a), q = softmax(b): sum_v p_v ((a_v - lse_a) - (b_v - lse_b)), in
// double. It is not below 0 but for rounding, and no number where one of the two predicts none.
double divergence(const float* p, const float* a, const float* b, double lse_a, double lse_b,
                  int64_t vocab) {
  double sum = 0;
  const double shift = lse_b - lse_a;
  for (int64_t v = 0; v < vocab; ++v) sum += double{p[v]} * ((double{a[v]} - double{b[v]}) + shift);
  return sum < 0 ? 0.0 : sum;
}

// Both heads over a chunk of rows at a time, so that the logits of a large vocabulary need little
// memory. targets [window], the last ignored.
void predict(Side& before, Side& after, std::span<const int32_t> targets, TokenFigures& out) {
  const int64_t rows = std::ssize(targets), vocab = before.model.config().vocab,
                step = std::max<int64_t>(16, kChunkBytes / (vocab * 4) / 16 * 16);
  Run& run = before.run;
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t n = std::min(step, rows - begin);
    ArenaScope scope(run.saved);
    const Tensor a = run.saved.alloc(DType::f32, {n, vocab}),
                 b = run.saved.alloc(DType::f32, {n, vocab}),
                 p = run.saved.alloc(DType::f32, {n, vocab});
    const Tensor lse_a = run.saved.alloc(DType::f32, {n}), lse_b = run.saved.alloc(DType::f32, {n});
    const auto part = [&](std::vector<float>& all) {
      return Tensor(all.data() + begin, DType::f32, {n});
    };
    const auto wanted = targets.subspan(static_cast<size_t>(begin), static_cast<size_t>(n));
    before.model.logits(run, a, before.saved.hidden.slice_rows(begin, begin + n));
    after.model.logits(after.run, b, after.saved.hidden.slice_rows(begin, begin + n));
    ops::cross_entropy_forward(run, part(out.before), lse_a, a, wanted);
    ops::cross_entropy_forward(run, part(out.after), lse_b, b, wanted);
    ops::softmax_forward(run, p, {}, a);
    parallel_for(run.threads, n, 4, [&](int64_t first, int64_t last, int) {
      for (int64_t i = first; i < last; ++i) {
        const float *x = a.row<float>(i), *y = b.row<float>(i);
        const auto at = static_cast<size_t>(begin + i);
        const int64_t top = std::max_element(x, x + vocab) - x,
                      other = std::max_element(y, y + vocab) - y;  // the lowest id of equals
        out.kl[at] = static_cast<float>(
            divergence(p.row<float>(i), x, y, lse_a.as<float>()[i], lse_b.as<float>()[i], vocab));
        out.before_right[at] = top == targets[at];
        out.after_right[at] = other == targets[at];
        out.same[at] = top == other;
      }
    });
  }
}

// The states [N,D] after each layer of the first model, of every `stride`-th token, and how far the
// second one's are from them.
class Drift {
 public:
  Drift(const ModelConfig& before, const ModelConfig& after, int64_t window)
      : width_(before.width) {
    if (before.width != after.width || before.layers != after.layers) return;
    const int64_t bytes = before.layers * window * before.width * 4;
    stride_ = std::max<int64_t>(1, (bytes + kStateBytes - 1) / kStateBytes);
    states_.resize(static_cast<size_t>(before.layers));
    sums_.resize(states_.size());
  }
  bool measured() const { return !states_.empty(); }

  void keep(int64_t layer, const Tensor& h) {
    std::vector<float>& kept = states_[static_cast<size_t>(layer)];
    kept.clear();
    for (int64_t n = 0; n < h.rows(); n += stride_)
      kept.insert(kept.end(), h.row<float>(n), h.row<float>(n) + width_);
  }
  void hold_against(int64_t layer, const Tensor& h) {
    const float* was = states_[static_cast<size_t>(layer)].data();
    for (int64_t n = 0; n < h.rows(); n += stride_, was += width_) {
      double moved = 0, length = 0;
      const float* is = h.row<float>(n);
      for (int64_t d = 0; d < width_; ++d) {
        const double by = double{is[d]} - double{was[d]};
        moved += by * by;
        length += double{was[d]} * double{was[d]};
      }
      sums_[static_cast<size_t>(layer)] += length > 0 ? std::sqrt(moved / length) : 0;
      if (layer == 0) ++tokens_;
    }
  }
  std::vector<double> mean() const {
    std::vector<double> out;
    for (const double sum : sums_)
      out.push_back(sum / static_cast<double>(std::max<int64_t>(1, tokens_)));
    return out;
  }

 private:
  int64_t width_, stride_ = 1, tokens_ = 0;
  std::vector<std::vector<float>> states_;  // [L]
  std::vector<double> sums_;                // [L]
};

bool same_experts(const ModelConfig& a, const ModelConfig& b) {
  if (a.moe_layer_count() == 0 || a.layers != b.layers || a.routing.experts != b.routing.experts ||
      a.routing.zero_experts != b.routing.zero_experts)
    return false;
  for (int64_t l = 0; l < a.layers; ++l)
    if (a.is_moe(l) != b.is_moe(l)) return false;
  return true;
}

// Choices of the first model that the second makes too, and all of the first's, added up by layer.
struct Shared {
  std::vector<int64_t> both, all;
  void add(const Side& before, const Side& after) {
    both.resize(before.chosen.size());
    all.resize(before.chosen.size());
    for (size_t l = 0; l < before.chosen.size(); ++l)
      for (size_t i = 0; i < before.chosen[l].size(); ++i) {
        all[l] += before.chosen[l][i];
        both[l] += before.chosen[l][i] & after.chosen[l][i];
      }
  }
  std::vector<double> shares() const {
    std::vector<double> out;
    for (size_t l = 0; l < all.size(); ++l)
      out.push_back(all[l] > 0 ? static_cast<double>(both[l]) / static_cast<double>(all[l]) : 1);
    return out;
  }
};

double sum_of(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// The figures over all windows, from what each added.
struct Totals {
  std::vector<double> changes;  // of each window's mean loss
  std::vector<float> kl;        // of each predicted token
  int64_t before_right = 0, after_right = 0, same = 0, bytes = 0;
  double squares = 0;

  void add(Side& before, Side& after, const TokenFigures& t, const Tokenizer& tokenizer,
           std::span<const int32_t> ids, int64_t windows) {
    const auto predicted = ids.size() - 1;
    double sums[2] = {};
    for (size_t i = 0; i < predicted; ++i) {
      sums[0] += t.before[i];
      sums[1] += t.after[i];
      const double change = std::exp(-double{t.after[i]}) - std::exp(-double{t.before[i]});
      squares += change * change;
      before_right += t.before_right[i];
      after_right += t.after_right[i];
      same += t.same[i];
      bytes += static_cast<int64_t>(tokenizer.piece(ids[i + 1]).size());
    }
    kl.insert(kl.end(), t.kl.begin(), t.kl.begin() + static_cast<std::ptrdiff_t>(predicted));
    changes.push_back((sums[1] - sums[0]) / static_cast<double>(predicted));
    Side* sides[2] = {&before, &after};
    for (int s = 0; s < 2; ++s) {
      sides[s]->total += sums[s];
      sides[s]->figures.nats_per_token +=
          sums[s] / static_cast<double>(predicted) / static_cast<double>(windows);
    }
  }

  TextFigures finish(const Side& side, int64_t right) const {
    TextFigures f = side.figures;
    f.perplexity = std::exp(f.nats_per_token);
    f.bits_per_byte =
        side.total / std::numbers::ln2 / static_cast<double>(std::max<int64_t>(bytes, 1));
    f.right = static_cast<double>(right) / static_cast<double>(kl.size());
    return f;
  }

  // Of the windows.
  std::optional<double> loss_error() const {
    if (changes.size() < 2) return {};
    return mean_of(changes).error;
  }

  // Values that are no numbers have no order, and a mean without them would hide them.
  void finish_kl(Comparison& c) {
    if (!std::all_of(kl.begin(), kl.end(), [](float x) { return std::isfinite(x); })) {
      c.kl = c.kl_median = c.kl_high = c.kl_most = std::numeric_limits<double>::quiet_NaN();
      return;
    }
    c.kl = sum_of(kl) / static_cast<double>(kl.size());
    std::sort(kl.begin(), kl.end());
    c.kl_median = kl[kl.size() / 2];
    c.kl_high = kl[std::min(kl.size() - 1, kl.size() * 99 / 100)];
    c.kl_most = kl.back();
  }

  void finish(Comparison& c, const Side& before, const Side& after) {
    const auto tokens = static_cast<double>(kl.size());
    c.before = finish(before, before_right);
    c.after = finish(after, after_right);
    c.loss_error = loss_error();
    finish_kl(c);
    c.same_top = static_cast<double>(same) / tokens;
    c.rms_change = std::sqrt(squares / tokens);
  }
};

}  // namespace

void check_same_vocabulary(const Model& before, const Tokenizer& before_tokens, const Model& after,
                           const Tokenizer& after_tokens) {
  if (before.config().vocab != after.config().vocab)
    fail_usage(
        "one model has a vocabulary of {} tokens, the other of {}: their probabilities cannot be "
        "held against each other; moe score gives the bits per byte of "
        "each, which can",
        before.config().vocab, after.config().vocab);
  if (const auto id =
          first_other_token(before_tokens, after_tokens,
                            std::min(before_tokens.vocab_size(), after_tokens.vocab_size())))
    fail_usage(
        "token {} is not the same text in both models: their probabilities cannot be held against "
        "each other; moe score gives the bits per byte of each, which can",
        *id);
}

int64_t comparing_bytes(const ModelConfig& before, const ModelConfig& after, int64_t window) {
  const int64_t logits = 3 * std::min(window * before.vocab * 4, kChunkBytes);
  const int64_t states = before.width == after.width && before.layers == after.layers
                             ? std::min(before.layers * window * before.width * 4, kStateBytes)
                             : 0;
  const int64_t choices = same_experts(before, after)
                              ? 2 * before.moe_layer_count() * window * before.routing.scored()
                              : 0;
  return logits + states + choices;
}

Comparison compare(const ComparedModel& first, const ComparedModel& second,
                   const Tokenizer& tokenizer, std::span<const int32_t> ids,
                   const CompareOptions& options,
                   const std::function<void(int64_t, int64_t)>& progress) {
  if (first.model.config().vocab != second.model.config().vocab)
    fail_usage("vocabularies of {} and {} tokens cannot be held against each other",
               first.model.config().vocab, second.model.config().vocab);
  Comparison c{.windows = scored_windows(std::ssize(ids),
                                         {.window = options.window, .windows = options.windows}),
               .window = options.window};
  c.tokens = c.windows * (c.window - 1);
  Side before(first), after(second);
  const bool alike = same_experts(before.model.config(), after.model.config());
  Drift drift(before.model.config(), after.model.config(), c.window);
  Shared choices;
  Totals totals;
  const OneSequence sequence(c.window);
  const OnBlock keep = [&](int64_t layer, const Tensor& h) {
    if (drift.measured()) drift.keep(layer, h);
  };
  const OnBlock hold_against = [&](int64_t layer, const Tensor& h) {
    if (drift.measured()) drift.hold_against(layer, h);
  };
  for (int64_t w = 0; w < c.windows; ++w) {
    const auto text = ids.subspan(static_cast<size_t>(w * c.window), static_cast<size_t>(c.window));
    std::vector<int32_t> targets(text.begin() + 1, text.end());
    targets.push_back(ops::kIgnoreTarget);
    const Batch batch = sequence.of(text);
    ArenaScope scope(before.run.saved), other(after.run.saved);
    forward(before, batch, alike, keep);
    forward(after, batch, alike, hold_against);
    if (alike) choices.add(before, after);
    TokenFigures tokens(text.size());
    predict(before, after, targets, tokens);
    totals.add(before, after, tokens, tokenizer, text, c.windows);
    if (progress) progress(w + 1, c.windows);
  }
  totals.finish(c, before, after);
  c.drift = drift.mean();
  c.before_load = std::move(before.load);
  c.after_load = std::move(after.load);
  c.same_choices = choices.shares();
  return c;
}

}  // namespace moe
