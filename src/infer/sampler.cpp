#include "infer/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "core/error.h"

namespace moe {
namespace {

// f(i) for the tokens that may come, in order.
template <class F>
void for_allowed(size_t vocab, std::span<const uint64_t> allowed, const F& f) {
  if (allowed.empty())
    for (size_t i = 0; i < vocab; ++i) f(i);
  for (size_t word = 0; word < allowed.size(); ++word)
    for (uint64_t bits = allowed[word]; bits != 0; bits &= bits - 1)
      if (const size_t i = word * 64 + static_cast<size_t>(std::countr_zero(bits)); i < vocab) f(i);
}

// The largest number, NaNs left out. Sixteen maxima beside each other are vectors for the compiler:
// a vocabulary is long.
float most_of(std::span<const float> x) {
  constexpr size_t kBeside = 16;
  std::array<float, kBeside> most;
  most.fill(-INFINITY);
  size_t i = 0;
  for (; i + kBeside <= x.size(); i += kBeside)
    for (size_t j = 0; j < kBeside; ++j) most[j] = x[i + j] > most[j] ? x[i + j] : most[j];
  for (; i < x.size(); ++i) most[0] = x[i] > most[0] ? x[i] : most[0];
  return *std::max_element(most.begin(), most.end());
}

void check_logits(std::span<const float> logits, uint64_t draw) {
  int broken = 0;
  for (const float x : logits) broken |= static_cast<int>(!(x < INFINITY));
  if (broken == 0) return;
  for (size_t i = 0; i < logits.size(); ++i)
    if (!(logits[i] < INFINITY))
      fail(
          "the logit of token id {} is {} at draw {} of this text: the model's weights are broken; "
          "train it again with a lower @lr or take another one",
          i, logits[i], draw);
}

// The most likely token of those that may come, the first of equals; -1: none has a chance.
int32_t most_likely(std::span<const float> scores, std::span<const uint64_t> allowed) {
  if (allowed.empty()) {
    // Piece by piece, so that only the one that holds it is searched.
    constexpr size_t kPiece = 1024;
    float most = -INFINITY;
    std::span<const float> best;
    for (size_t at = 0; at < scores.size(); at += kPiece) {
      const auto piece = scores.subspan(at, std::min(kPiece, scores.size() - at));
      const float here = most_of(piece);
      if (here <= most) continue;
      most = here;
      best = piece;
    }
    if (best.empty()) return -1;
    return static_cast<int32_t>(std::find(best.begin(), best.end(), most) - best.begin() +
                                (best.data() - scores.data()));
  }
  int32_t best = -1;
  float most = -INFINITY;
  for_allowed(scores.size(), allowed, [&](size_t i) {
    if (scores[i] <= most) return;
    best = static_cast<int32_t>(i);
    most = scores[i];
  });
  return best;
}

}  // namespace

void validate(const SamplerOptions& o) {
  if (!(o.temperature >= 0) || !std::isfinite(o.temperature))
    fail_usage("@temperature is {}; it must be 0 (most likely token) or above", o.temperature);
  if (o.top_k < 0) fail_usage("@top_k is {}; it must be 0 (off) or above", o.top_k);
  if (!(o.top_p > 0 && o.top_p <= 1))
    fail_usage("@top_p is {}; it must be above 0 and at most 1 (off)", o.top_p);
  if (!(o.min_p >= 0 && o.min_p < 1))
    fail_usage("@min_p is {}; it must be at least 0 (off) and below 1", o.min_p);
  if (!std::isfinite(o.frequency_penalty) || !std::isfinite(o.presence_penalty))
    fail_usage("@frequency_penalty and @presence_penalty must be finite numbers");
  if (o.min_tokens < 0) fail_usage("min_tokens is {}; it must be 0 or above", o.min_tokens);
  if (!(o.repeat_penalty > 0) || !std::isfinite(o.repeat_penalty))
    fail_usage("@repeat_penalty is {}; it must be above 0 (1 is off)", o.repeat_penalty);
}

Sampler::Sampler(const SamplerOptions& options)
    : options_(options), key_(RngKey::from_seed(options.seed)) {
  validate(options);
}

void Sampler::accept(int32_t id) {
  recent_.push_back(id);
  if (static_cast<int64_t>(recent_.size()) > options_.repeat_last) recent_.erase(recent_.begin());
}

bool Sampler::plain() const {
  return options_.repeat_penalty == 1 && options_.frequency_penalty == 0 &&
         options_.presence_penalty == 0 && options_.logit_bias.empty() && !must_go_on();
}

std::span<const float> Sampler::penalised(std::span<const float> logits) {
  if (plain()) return logits;
  changed_.assign(logits.begin(), logits.end());
  const auto each = [&](int32_t id, const auto& change) {
    if (id >= 0 && id < std::ssize(changed_)) change(changed_[static_cast<size_t>(id)]);
  };
  if (options_.repeat_penalty != 1) {
    std::vector<int32_t> seen = recent_;
    std::sort(seen.begin(), seen.end());
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    for (const int32_t id : seen)
      each(id, [&](float& logit) {
        logit = logit > 0 ? logit / options_.repeat_penalty : logit * options_.repeat_penalty;
      });
  }
  if (options_.frequency_penalty != 0 || options_.presence_penalty != 0)
    for (const auto& drawn : drawn_)
      each(drawn.first, [&](float& logit) {
        logit -= static_cast<float>(drawn.second) * options_.frequency_penalty +
                 options_.presence_penalty;
      });
  for (const auto& bias : options_.logit_bias)
    each(bias.first, [&](float& logit) { logit += bias.second; });
  if (must_go_on())
    for (const int32_t id : options_.ends) each(id, [](float& logit) { logit = -INFINITY; });
  return changed_;
}

// Leaves the candidates that top-k, top-p and min-p let through, most likely first; all of them, in
// the order of their ids, where nothing is cut.
void Sampler::cut(std::vector<Candidate>& all) const {
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  const bool by_mass = options_.top_p < 1 || options_.min_p > 0;
  if (options_.top_k > 0 && options_.top_k < std::ssize(all)) {
    std::partial_sort(all.begin(), all.begin() + options_.top_k, all.end(), before);
    all.resize(static_cast<size_t>(options_.top_k));
  } else if (!by_mass) {
    return;
  }
  if (!by_mass) return;
  const float most = std::min_element(all.begin(), all.end(), before)->logit;
  double sum = 0;
  for (Candidate& c : all) sum += c.p = std::exp(c.logit - most);
  // Few of a large vocabulary pass as a rule, so no more are sorted than it takes.
  constexpr int64_t kSortedAtFirst = 256;
  size_t keep = 0, sorted = 0;
  double mass = 0;
  for (;; mass += all[keep++].p) {
    if (keep == all.size()) break;
    if (keep == sorted) {
      const int64_t more = std::min(std::max(kSortedAtFirst, static_cast<int64_t>(3 * sorted)),
                                    std::ssize(all) - static_cast<int64_t>(sorted));
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(sorted);
      std::partial_sort(begin, begin + more, all.end(), before);
      sorted += static_cast<size_t>(more);
    }
    if (keep > 0 && (mass >= options_.top_p * sum || all[keep].p < options_.min_p * all[0].p))
      break;
  }
  all.resize(keep);
}

int32_t Sampler::draw(std::vector<Candidate>& all, float most) const {
  double sum = 0;
  for (Candidate& c : all) sum += c.p = std::exp((c.logit - most) / options_.temperature);
  double left = static_cast<double>(uniform(key_, draws_)) * sum;
  int32_t chosen = 0;
  for (const Candidate& c : all) {
    chosen = c.id;
    left -= c.p;
    if (left < 0) break;
  }
  return chosen;
}

int32_t Sampler::next(std::span<const float> logits, std::span<const uint64_t> allowed) {
  check_logits(logits, draws_);
  const std::span<const float> scores = penalised(logits);
  int32_t chosen = most_likely(scores, allowed);
  if (chosen < 0) {
    int64_t count = 0;
    for_allowed(scores.size(), allowed, [&](size_t) { ++count; });
    fail("none of the {} tokens that may come has a logit above -inf at draw {} of this text",
         count, draws_);
  }
  if (options_.temperature > 0) {
    std::vector<Candidate> all;
    all.reserve(scores.size());
    for_allowed(scores.size(), allowed, [&](size_t i) {
      all.push_back({static_cast<int32_t>(i), scores[i], 0});
    });
    cut(all);
    chosen = draw(all, scores[static_cast<size_t>(chosen)]);
  }
  ++draws_;
  ++drawn_[chosen];
  accept(chosen);
  return chosen;
}

}  // namespace moe
