#include "evaluate/speed.h"

#include <algorithm>

#include "core/clock.h"
#include "core/error.h"
#include "core/threads.h"
#include "ops/memory.h"

namespace moe {
namespace {

constexpr int64_t kMost = int64_t{1} << 20;
constexpr int64_t kMostPrompts = 8;  // of warming up
// Read as tokens whose logits are wanted, so that the last layer meets its experts before a token
// is timed.
constexpr int64_t kWarmTokens = 32;

}  // namespace

double median(std::vector<double> x) {
  if (x.empty()) fail("the median of no values was asked for");
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

double median_ratio(const std::vector<double>& slow, const std::vector<double>& fast) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(slow.size(), fast.size()); ++i)
    ratios.push_back(slow[i] / fast[i]);
  return median(std::move(ratios));
}

void validate(const SpeedOptions& o, const char* prompt) {
  const auto in_range = [](const char* name, int64_t value) {
    if (value < 1 || value > kMost) fail_usage("{} is {}; give 1 to {}", field(name), value, kMost);
  };
  in_range(prompt, o.prompt);
  in_range("tokens", o.tokens);
  in_range("repeats", o.repeats);
}

void validate(const SpeedOptions& o, const ModelConfig& config) {
  validate(o);
  if (config.ends_at_context() && o.prompt + o.tokens > config.context)
    fail_usage("@prompt {} and @tokens {} make a text of {}, but {}; lower one of them", o.prompt,
               o.tokens, o.prompt + o.tokens, why_texts_end(config));
}

SpeedUp speed_up(const Speed& before, const Speed& after) {
  return {median_ratio(before.prompt_seconds, after.prompt_seconds),
          median_ratio(before.decode_seconds, after.decode_seconds)};
}

SpeedProbe::SpeedProbe(const Model& model, Session& session, const SpeedOptions& options)
    : model_(model),
      session_(session),
      options_(options),
      speed_{.prompt = options.prompt, .tokens = options.tokens} {
  validate(options, model.config());
}

std::vector<int32_t> SpeedProbe::next_ids() {
  const RngKey key = RngKey::from_seed(options_.seed).fold(static_cast<uint64_t>(drawn_++));
  const auto vocab = static_cast<uint64_t>(model_.config().vocab);
  std::vector<int32_t> ids(static_cast<size_t>(options_.prompt + options_.tokens));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(uniform_index(key, i, vocab));
  return ids;
}

void SpeedProbe::warm_up(const std::function<void()>& on_first) {
  int64_t packed = -1;
  for (int64_t i = 0; i < kMostPrompts && ops::copies_taken(model_.params()) != packed; ++i) {
    packed = ops::copies_taken(model_.params());
    const std::vector<int32_t> ids = next_ids();
    const auto all = std::span<const int32_t>(ids);
    session_.truncate(0);
    session_.prefill(all.first(static_cast<size_t>(options_.prompt)));
    if (i == 0 && on_first) on_first();
    session_.decode(all.subspan(static_cast<size_t>(options_.prompt),
                                static_cast<size_t>(std::min(kWarmTokens, options_.tokens))));
  }
}

void SpeedProbe::measure() {
  const std::vector<int32_t> ids = next_ids();
  const auto all = std::span<const int32_t>(ids);
  session_.truncate(0);
  const auto begin = Clock::now();
  session_.prefill(all.first(static_cast<size_t>(options_.prompt)));
  speed_.prompt_seconds.push_back(seconds_since(begin));
  const int64_t joins = joins_of_this_thread();
  const auto middle = Clock::now();
  for (auto i = static_cast<size_t>(options_.prompt); i < all.size(); ++i)
    session_.decode(all.subspan(i, 1));
  speed_.decode_seconds.push_back(seconds_since(middle));
  speed_.decode_joins = joins_of_this_thread() - joins;
}

void measure_in_turns(std::span<SpeedProbe> probes, int64_t repeats,
                      const std::function<void(int64_t, int64_t)>& progress) {
  for (SpeedProbe& probe : probes) probe.warm_up();
  const int64_t models = std::ssize(probes), total = models * repeats;
  for (int64_t i = 0; i < total; ++i) {
    if (progress) progress(i, total);
    const int64_t round = i / models, turn = i % models;
    probes[static_cast<size_t>(round % 2 == 0 ? turn : models - 1 - turn)].measure();
  }
  if (progress) progress(total, total);
}

}  // namespace moe
