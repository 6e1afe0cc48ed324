// Evaluations: which windows or pairs of a held-out text they read, and the loss over these. Of
// preference pairs also what the reference says of them.
#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "core/error.h"
#include "core/words.h"
#include "tensor/on_host.h"
#include "train/batch_of.h"
#include "train/trainer.h"

namespace moe {
namespace {

// The windows that an evaluation reads, or the pairs.
struct EvalWindows {
  EvalWindows(const Corpus& text, const TrainOptions& o) : context(o.context) {
    all = (text.size() - 1) / context;
    mean_tokens = static_cast<double>(context);
    if (text.pairs() > 0) {
      all = pairs.emplace(text, context).count();
      mean_tokens = 0;
      for (int64_t p = 0; p < all; ++p)
        mean_tokens += static_cast<double>(pairs->place(p).tokens());
      mean_tokens /= static_cast<double>(all);
    }
    count =
        o.eval_tokens == 0
            ? all
            : std::clamp<int64_t>(
                  static_cast<int64_t>(static_cast<double>(o.eval_tokens) / mean_tokens), 1, all);
  }
  // Of the w-th that is read: the window or the pair.
  int64_t place(int64_t w) const { return w * all / count; }
  void add(TextBatch& batch, const Corpus& text, int64_t w) const {
    if (pairs) batch.add_pair(text, *pairs, place(w));
    else batch.add_row(text, place(w) * context, context);
  }
  int64_t tokens() const { return std::llround(static_cast<double>(count) * mean_tokens); }

  int64_t context, all = 0, count = 0;
  std::optional<PairIndex> pairs;
  double mean_tokens = 0;  // of one
};

}  // namespace

std::optional<Evaluation> Trainer::evaluate(const Corpus& held_out, const std::atomic<bool>* stop) {
  check_held_out(held_out, options_);
  const EvalWindows windows(held_out, options_);
  double sum = 0;
  int64_t predicted = 0;
  PairSums pairs;
  const comm::Group& group = layout_.all();
  for (int64_t dealt = 0; dealt < windows.count; dealt += group.size * options_.batch) {
    if (group.any(stop != nullptr && *stop)) return std::nullopt;
    const int64_t first = dealt + group.rank * options_.batch,
                  rows = std::clamp<int64_t>(windows.count - first, 0, options_.batch);
    // Whose experts others need reads something in any case.
    if (rows == 0 && !layout_.is_spread()) continue;
    text_.clear();
    for (int64_t b = 0; b < std::max<int64_t>(1, rows); ++b)
      windows.add(text_, held_out, rows == 0 ? 0 : first + b);
    ArenaScope scope(run_.saved);
    const Pass pass{.batch = batch_of(text_), .routing = eval_routing_ ? &*eval_routing_ : nullptr};
    ModelSaved saved;
    Tensor nll = run_.saved.alloc(DType::f32, {pass.batch.tokens()});
    const double loss = evaluation_loss(pass, nll, saved);
    if (rows == 0) continue;
    sum += loss;
    predicted += text_.predicted;
    OnHost host(run_);
    if (windows.pairs)
      pair_losses(pairs, host.read(nll), text_, held_out_reference_, options_.dpo_beta);
  }
  group.sum(std::span(&sum, 1));
  group.sum(std::span(&predicted, 1));
  pairs.each([&](auto& x) { group.sum(std::span(&x, 1)); });
  if (windows.pairs) return Evaluation{pairs.chosen_ce(), pairs.means()};
  return Evaluation{sum / static_cast<double>(predicted), {}};
}

int64_t evaluation_tokens(const Corpus& held_out, const TrainOptions& options) {
  return EvalWindows(held_out, options).tokens();
}

void check_held_out(const Corpus& held_out, const TrainOptions& options) {
  const int64_t context = options.context;
  if (options.pairs != (held_out.pairs() > 0))
    fail("the training text is {}, the held-out text {}; give @eval_data of the same kind",
         options.pairs ? "preference pairs" : "no preference pairs",
         options.pairs ? "is not" : "is");
  if (options.pairs) return static_cast<void>(PairIndex(held_out, context));
  if (held_out.size() <= context)
    fail(
        "the held-out text has {}, at least {} are needed for a context of {}; give more of "
        "it or a smaller @context",
        counted(held_out.size(), "token"), context + 1, context);
  const EvalWindows windows(held_out, options);
  TextBatch text;
  for (int64_t w = 0; w < windows.count; ++w) {
    text.clear();
    windows.add(text, held_out, w);
    if (text.predicted > 0) return;
  }
  fail(
      "none of the {} tokens looked at in the held-out text is to be predicted; give more of it or "
      "another @context",
      windows.tokens());
}

std::vector<int64_t> Trainer::pairs_to_read(bool of_any_steps) const {
  const int64_t all = plan_.pairs()->count(), visits = options_.steps * plan_.rows_per_step();
  std::vector<int64_t> out;
  for (int64_t v = 0; v < all; ++v)
    if (visits >= all || of_any_steps) out.push_back(v);
    else if (v < visits) out.push_back(plan_.pair(0, 0, v));
  return out;
}

bool Trainer::has_reference() const {
  if (!plan_.pairs()) return true;
  const std::vector<int64_t> pairs = pairs_to_read(false);
  return std::all_of(pairs.begin(), pairs.end(), [&](int64_t p) { return reference_.has(p); });
}

void Trainer::expect_reference(const Corpus* held_out) {
  if (!plan_.pairs()) return;
  reference_ = PairReference(plan_.pairs()->count());
  if (held_out) held_out_reference_ = PairReference(PairIndex(*held_out, options_.context).count());
}

void Trainer::take_reference(const Corpus* held_out, const std::atomic<bool>& stop) {
  expect_reference(held_out);
  if (!plan_.pairs()) return;
  // With minutes the number of steps may yet change.
  take_reference(reference_, corpus_, *plan_.pairs(), pairs_to_read(options_.minutes > 0), stop);
  if (!held_out) return;
  const EvalWindows windows(*held_out, options_);
  std::vector<int64_t> wanted;
  for (int64_t w = 0; w < windows.count; ++w) wanted.push_back(windows.place(w));
  take_reference(held_out_reference_, *held_out, *windows.pairs, wanted, stop);
}

// Dealt out as an evaluation is. Without randomness or drops, as `teach`.
void Trainer::take_reference(PairReference& reference, const Corpus& text, const PairIndex& index,
                             const std::vector<int64_t>& wanted, const std::atomic<bool>& stop) {
  Model& model = teacher_ ? *teacher_ : model_;
  const std::optional<RoutingSpec>& routing = teacher_ ? teacher_routing_ : eval_routing_;
  const comm::Group& group = layout_.all();
  const auto count = static_cast<int64_t>(wanted.size());
  std::vector<float> found(2 * wanted.size(), 0);  // [P,2]
  for (int64_t dealt = 0; dealt < count; dealt += group.size * options_.batch) {
    if (group.any(stop))
      throw comm::SharedError(
          "interrupted while the reference's log-probabilities were taken; the run has not begun");
    const int64_t first = dealt + group.rank * options_.batch,
                  pairs = std::clamp<int64_t>(count - first, 0, options_.batch);
    if (pairs == 0 && !layout_.is_spread()) continue;
    text_.clear();
    for (int64_t p = 0; p < std::max<int64_t>(1, pairs); ++p)
      text_.add_pair(text, index, wanted[static_cast<size_t>(pairs == 0 ? 0 : first + p)]);
    ArenaScope scope(run_.saved);
    ModelSaved saved;
    const Tensor nll = run_.saved.alloc(DType::f32, {static_cast<int64_t>(text_.ids.size())});
    model.forward(run_, {.batch = batch_of(text_), .routing = routing ? &*routing : nullptr},
                  saved);
    model.loss_forward(run_, nll, text_.targets, saved);
    OnHost host(run_);
    const Tensor here = host.read(nll);
    for (int64_t p = 0; p < pairs; ++p) {
      const PairLogProbs of = pair_log_probs(here, text_, static_cast<size_t>(p));
      if (!std::isfinite(of.chosen) || !std::isfinite(of.rejected))
        fail("the reference gives preference pair {} a log-probability that is not finite",
             wanted[static_cast<size_t>(first + p)] + 1);
      found[static_cast<size_t>(2 * (first + p))] = of.chosen;
      found[static_cast<size_t>(2 * (first + p) + 1)] = of.rejected;
    }
  }
  group.sum(std::span(found));
  for (size_t i = 0; i < wanted.size(); ++i)
    reference.set(wanted[i], found[2 * i], found[2 * i + 1]);
}

}  // namespace moe
