#include "evaluate/score.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "core/error.h"
#include "core/words.h"
#include "infer/eval_routing.h"

namespace moe {
namespace {

// nll [window]: of each next token; the last entry is 0. A chunk after the first finds the keys and
// values of those before it in the cache.
void window_losses(Model& model, Run& run, std::span<const int32_t> ids, Pass pass, int64_t chunk,
                   std::vector<float>& nll) {
  const auto window = static_cast<int64_t>(ids.size());
  std::vector<int32_t> positions(ids.size()), targets(ids.begin() + 1, ids.end());
  std::iota(positions.begin(), positions.end(), 0);
  targets.push_back(ops::kIgnoreTarget);
  nll.resize(ids.size());
  std::optional<KvCache> cache;
  std::vector<int32_t> slots;
  if (chunk > 0) {
    pass.cache = &cache.emplace(model.config(), run.compute, window, run.saved.device());
    slots = {cache->open(window)};
    cache->extend(slots[0], window);
  } else {
    chunk = window;
  }
  for (int64_t begin = 0; begin < window; begin += chunk) {
    const int64_t count = std::min(chunk, window - begin);
    const auto part = [&](auto& all) {
      return std::span(all).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    };
    const std::vector<int64_t> bounds = {0, count};
    ArenaScope scope(run.saved);
    ModelSaved saved;
    pass.batch = {part(ids), part(positions), bounds, slots};
    model.forward(run, pass, saved);
    model.loss_forward(run, Tensor(part(nll).data(), DType::f32, {count}), part(targets), saved);
  }
}

}  // namespace

int64_t scored_windows(int64_t tokens, const ScoreOptions& options, const ScoredNames& names) {
  if (options.window < 2)
    fail_usage("{} is {}; a window needs at least 2 tokens, one to predict from and one to predict",
               field(names.window.empty() ? "window" : names.window), options.window);
  if (options.windows < 0)
    fail_usage("@windows is {}; it must be 0 (all) or above", options.windows);
  if (options.chunk < 0)
    fail_usage("@chunk is {}; it must be 0 (a window in one piece) or above", options.chunk);
  if (options.chunk > 0 && (options.recorded || options.on_routing))
    fail_usage("routing is recorded and replayed in whole windows; leave @chunk out");
  const int64_t whole = tokens / options.window;
  if (whole == 0) {
    const std::string shorter = names.window.empty() || tokens < 2
                                    ? ""
                                    : message(", or {} {}", field(names.window), tokens);
    fail("{} has {}, less than one window of {}; give a longer text{}", names.text,
         counted(tokens, "token"), options.window, shorter);
  }
  return options.windows > 0 ? std::min(options.windows, whole) : whole;
}

RoutingSpec scored_routing(const ModelConfig& config, const ScoreOptions& options) {
  return evaluation_spec(config, options.routing, options.top_k_experts);
}

Score score(Model& model, Run& run, const Tokenizer& tokenizer, std::span<const int32_t> ids,
            const ScoreOptions& options, const std::function<void(int64_t, int64_t)>& progress) {
  const int64_t windows = scored_windows(static_cast<int64_t>(ids.size()), options);
  const RoutingSpec routing = scored_routing(model.config(), options);
  if (options.chunk > 0 && model.config().moe_layer_count() > 0)
    if (const std::string_view reason = not_causal_because(
            model.config().routing, options.routing.value_or(default_eval(model.config().routing)));
        !reason.empty())
      fail_usage("@chunk reads a text from left to right, which this routing cannot: {}", reason);
  int64_t window = 0;
  std::vector<Tensor> recorded;
  const std::function<void(int64_t, const MoeLayer::Saved&)> listen =
      [&](int64_t layer, const MoeLayer::Saved& saved) {
        options.on_routing(window, layer, saved);
      };
  Pass pass{.routing = &routing, .same_everywhere = true};
  if (options.recorded) pass.recorded = &recorded;
  if (options.on_routing) pass.on_routing = &listen;

  Score result;
  double total = 0;
  std::vector<float> nll;
  for (window = 0; window < windows; ++window) {
    const auto text = ids.subspan(static_cast<size_t>(window * options.window),
                                  static_cast<size_t>(options.window));
    if (options.recorded) recorded = options.recorded(window);
    window_losses(model, run, text, pass, options.chunk, nll);
    double sum = 0;
    for (size_t i = 0; i + 1 < text.size(); ++i) {
      sum += nll[i];
      result.bytes += static_cast<int64_t>(tokenizer.piece(text[i + 1]).size());
    }
    total += sum;
    result.nats_per_token +=
        sum / static_cast<double>(options.window - 1) / static_cast<double>(windows);
    if (options.per_token) {
      result.ids.insert(result.ids.end(), text.begin(), text.end());
      result.logprobs.emplace_back(std::nullopt);
      for (size_t i = 0; i + 1 < text.size(); ++i)
        result.logprobs.emplace_back(-static_cast<double>(nll[i]));
    }
    if (progress) progress(window + 1, windows);
  }
  result.windows = windows;
  result.tokens = windows * (options.window - 1);
  result.perplexity = std::exp(result.nats_per_token);
  result.bits_per_byte =
      total / std::numbers::ln2 / static_cast<double>(std::max<int64_t>(result.bytes, 1));
  return result;
}

ForwardUse scored_use(Model& model, const ScoreOptions& options, DType dtype) {
  const bool chunks = options.chunk > 0 && options.chunk < options.window;
  return {.model = &model,
          .shape = {.tokens = chunks ? options.chunk : options.window,
                    .dtype = dtype,
                    .context = options.window,
                    .loss = true},
          .routing = options.routing,
          .top_k_experts = options.top_k_experts,
          .cache = options.chunk > 0 ? cache_bytes(model.config(), dtype, options.window) : 0};
}

std::vector<ForwardUse> scored_in_turn(const std::vector<Model*>& models,
                                       const ScoreOptions& options, DType dtype) {
  std::vector<ForwardUse> uses;
  for (Model* model : models) {
    uses.push_back(scored_use(*model, options, dtype));
    uses.back().in_turn = uses.size() > 1;
  }
  return uses;
}

}  // namespace moe
