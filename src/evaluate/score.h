// How well a model predicts a text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "infer/memory_plan.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace moe {

constexpr int64_t kScoreWindow = 2048;
// Tokens a window where nobody asks for others: kScoreWindow, or the model's context where that is
// shorter.
inline int64_t default_window(const ModelConfig& config) {
  return std::min(kScoreWindow, config.context);
}

struct ScoreOptions {
  int64_t window = kScoreWindow;  // tokens; window - 1 of them are predicted
  int64_t windows = 0;            // at most this many; 0: all
  int64_t chunk = 0;  // a window is read through a cache, so many tokens at a time, as a session
                      // reads; 0: in one piece
  bool per_token = false;
  std::optional<EvalRouting> routing;  // absent: default_eval
  int64_t top_k_experts = 0;           // experts a token takes; 0: the model's own number
  // Asked before a window for the choices that its MoE layers take, [window,K] each
  // (moe/stages/replay.h). Absent: the routers choose.
  std::function<std::vector<Tensor>(int64_t window)> recorded = {};
  // Told what each MoE layer did in a window, while its views are alive.
  std::function<void(int64_t window, int64_t layer, const MoeLayer::Saved&)> on_routing = {};
};

struct Score {
  int64_t tokens = 0;  // predicted
  int64_t windows = 0;
  int64_t bytes = 0;          // of the predicted tokens
  double nats_per_token = 0;  // mean over windows of the mean cross-entropy
  double perplexity = 0;      // exp of it
  double bits_per_byte = 0;
  // With per_token: of all windows, end to end. A window's first token has no prediction.
  std::vector<int32_t> ids;
  std::vector<std::optional<double>> logprobs;
};

// What a message calls a text, and the option that its windows have; empty: there is none.
struct ScoredNames {
  std::string_view text = "the text", window = "window";
};
// How many windows of a text of so many tokens are scored; fails when there is not one.
int64_t scored_windows(int64_t tokens, const ScoreOptions&, const ScoredNames& = {});
// How they are routed; empty for a model that does not route.
RoutingSpec scored_routing(const ModelConfig&, const ScoreOptions&);

// What score() takes of a model.
ForwardUse scored_use(Model&, const ScoreOptions&, DType dtype);
// Of models that are scored one after another.
std::vector<ForwardUse> scored_in_turn(const std::vector<Model*>&, const ScoreOptions&,
                                       DType dtype);

// The text is cut into windows that do not overlap; the remainder is dropped. `progress` is told
// how many windows are done. Fails when there is not one whole window.
Score score(Model&, Run&, const Tokenizer&, std::span<const int32_t> ids, const ScoreOptions&,
            const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace moe
