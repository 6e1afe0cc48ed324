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

std::vector<Sampler::Candidate> Sampler::penalised(std::span<const float> logits) const {
  std::vector<Candidate> all;
  all.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) all.push_back({static_cast<int32_t>(i), logits[i], 0});
  if (options_.repeat_penalty == 1) return all;
  std::vector<int32_t> seen = recent_;
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  for (int32_t id : seen) {
    if (id < 0 || static_cast<size_t>(id) >= all.size()) continue;
    float& logit = all[static_cast<size_t>(id)].logit;
    logit = logit > 0 ? logit / options_.repeat_penalty : logit * options_.repeat_penalty;
  }
  return all;
}

// Leaves the candidates that top-k, top-p and min-p let through, most likely first.
void Sampler::cut(std::vector<Candidate>& all) const {
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  if (options_.top_k > 0 && options_.top_k < static_cast<int64_t>(all.size())) {
    std::partial_sort(all.begin(), all.begin() + options_.top_k, all.end(), before);
    all.resize(static_cast<size_t>(options_.top_k));
  } else {
    std::sort(all.begin(), all.end(), before);
  }
  double sum = 0;
  for (Candidate& c : all) sum += c.p = std::exp(c.logit - all[0].logit);
  size_t keep = 0;
  double mass = 0;
  while (keep < all.size() &&
         (keep == 0 || (mass < options_.top_p * sum && all[keep].p >= options_.min_p * all[0].p)))
    mass += all[keep++].p;
  all.resize(keep);
}

int32_t Sampler::next(std::span<const float> logits) {
  for (size_t i = 0; i < logits.size(); ++i)
    if (std::isnan(logits[i]) || logits[i] == INFINITY)
      fail(
          "the logit of token id {} is {} at draw {} of this text: the model's weights are broken; "
          "train it again with a lower @lr or take another one",
          i, logits[i], draws_);
  if (std::all_of(logits.begin(), logits.end(), [](float x) { return x == -INFINITY; }))
    fail("none of the {} tokens has a logit above -inf at draw {} of this text", logits.size(),
         draws_);
  std::vector<Candidate> all = penalised(logits);
  cut(all);
  int32_t chosen = all[0].id;
  if (options_.temperature > 0) {
    double sum = 0;
    for (Candidate& c : all) sum += c.p = std::exp((c.logit - all[0].logit) / options_.temperature);
    double left = static_cast<double>(uniform(key_, draws_)) * sum;
    for (const Candidate& c : all) {
      chosen = c.id;
      left -= c.p;
      if (left < 0) break;
    }
  }
  ++draws_;
  accept(chosen);
  return chosen;
}

}  // namespace moe
