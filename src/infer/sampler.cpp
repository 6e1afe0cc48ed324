#include "infer/sampler.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace moe {

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
         options_.presence_penalty == 0 && options_.logit_bias.empty();
}

// In the order of their ids.
std::vector<Sampler::Candidate> Sampler::penalised(std::span<const float> logits,
                                                   std::span<const uint64_t> allowed) const {
  std::vector<Candidate> all;
  all.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!allowed.empty() && (i / 64 >= allowed.size() || (allowed[i / 64] >> (i % 64) & 1) == 0))
      continue;
    all.push_back({static_cast<int32_t>(i), logits[i], 0});
  }
  const auto each = [&](int32_t id, const auto& change) {
    const auto place = std::lower_bound(all.begin(), all.end(), id,
                                        [](const Candidate& c, int32_t x) { return c.id < x; });
    if (place != all.end() && place->id == id) change(place->logit);
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
  return all;
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

int32_t Sampler::draw(std::vector<Candidate>& all) const {
  const Candidate most =
      *std::max_element(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
        return a.logit != b.logit ? a.logit < b.logit : a.id > b.id;
      });
  int32_t chosen = most.id;
  if (options_.temperature == 0) return chosen;
  double sum = 0;
  for (Candidate& c : all) sum += c.p = std::exp((c.logit - most.logit) / options_.temperature);
  double left = static_cast<double>(uniform(key_, draws_)) * sum;
  for (const Candidate& c : all) {
    chosen = c.id;
    left -= c.p;
    if (left < 0) break;
  }
  return chosen;
}

int32_t Sampler::next(std::span<const float> logits, std::span<const uint64_t> allowed) {
  for (size_t i = 0; i < logits.size(); ++i)
    if (std::isnan(logits[i]) || logits[i] == INFINITY)
      fail(
          "the logit of token id {} is {} at draw {} of this text: the model's weights are broken; "
          "train it again with a lower @lr or take another one",
          i, logits[i], draws_);
  const auto most = std::max_element(logits.begin(), logits.end());
  if (*most == -INFINITY)
    fail("none of the {} tokens has a logit above -inf at draw {} of this text", logits.size(),
         draws_);
  auto chosen = static_cast<int32_t>(most - logits.begin());
  if (options_.temperature > 0 || !plain() || !allowed.empty()) {
    std::vector<Candidate> all = penalised(logits, allowed);
    if (std::all_of(all.begin(), all.end(),
                    [](const Candidate& c) { return c.logit == -INFINITY; }))
      fail("none of the {} tokens that may come has a logit above -inf at draw {} of this text",
           all.size(), draws_);
    cut(all);
    chosen = draw(all);
  }
  ++draws_;
  ++drawn_[chosen];
  accept(chosen);
  return chosen;
}

}  // namespace moe
