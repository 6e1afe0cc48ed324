// What a model does with a text: continue it, score it, show its logits and its routing.
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "api/call.h"
#include "api/options.h"
#include "core/json.h"
#include "infer/memory_plan.h"
#include "jobs/replies.h"
#include "moe/one_sequence.h"
#include "options/read.h"

namespace moe::api {
namespace {

constexpr const char* kAdvice = "give a shorter text, or load the model with more \"memory\"";

// One forward over one sequence, routed as an evaluation is unless asked otherwise; `then` sees
// what it left before it is released.
template <class F>
void forward_sequence(moe_model& model, std::span<const int32_t> ids,
                      const std::function<void(int64_t, const MoeLayer::Saved&)>* on_routing,
                      F&& then) {
  Model& weights = *model.loaded.model;
  settle(model,
         {.model = &weights, .shape = {.tokens = std::ssize(ids), .dtype = model.run.compute}},
         kAdvice);
  RoutingSpec routing;
  if (weights.config().moe_layer_count() > 0) routing = eval_spec(weights.config().routing);
  const OneSequence sequence(std::ssize(ids));
  ArenaScope scope(model.run.saved);
  ModelSaved saved;
  weights.forward(
      model.run, {.batch = sequence.of(ids), .routing = &routing, .on_routing = on_routing}, saved);
  then(saved);
}

void copy_logprobs(std::span<float> out, const Score& scored) {
  std::fill(out.begin(), out.end(), std::numeric_limits<float>::quiet_NaN());
  for (size_t i = 0; i < scored.logprobs.size(); ++i)
    if (scored.logprobs[i]) out[i] = static_cast<float>(*scored.logprobs[i]);
}

}  // namespace
}  // namespace moe::api

using namespace moe;
using namespace moe::api;

extern "C" {

moe_status moe_generate(moe_model* model, const char* prompt, size_t bytes, const char* options,
                        moe_on_text on_text, void* user, char** json) {
  return guarded([&] {
    if (json != nullptr) *json = nullptr;
    moe_model& m = need(model, "moe_generate: model");
    const std::span<const char> given_prompt = need(prompt, bytes, "moe_generate: prompt");
    const std::string text(given_prompt.begin(), given_prompt.end());
    WriteOptions wanted;
    read_caller_options(fields(wanted), options);
    GenerateOptions& asked = wanted.generate;
    validate(asked);
    check_draft_asked(wanted.draft);
    check_one_guesser(wanted.draft, asked);
    const std::vector<int32_t> ids = m.loaded.tokenizer->encode_text(text);
    Model& weights = *m.loaded.model;
    const int64_t tokens = std::ssize(ids),
                  capacity = text_capacity(weights.config(), tokens, asked.max_tokens,
                                           m.run.device != nullptr);
    std::vector<ForwardUse> uses = {
        session_use(weights, asked.session, m.run.compute, tokens, capacity)};
    const std::unique_ptr<Drafting> draft =
        draft_for(m, wanted.draft, asked.session, m.run.threads, capacity);
    if (draft) uses.push_back(draft->use(tokens));
    settle(m, uses, kAdvice);
    if (draft) asked.guesser = &draft->start();
    Session session = session_for(weights, m.run, ids, asked);
    const Generated out =
        generate(session, *m.loaded.tokenizer, ids, asked, [&](const std::string& piece) {
          return on_text == nullptr || on_text(user, piece.data(), piece.size()) == 0;
        });
    if (json != nullptr) *json = given(one_line_json(generate_reply(text, out)));
  });
}

moe_status moe_score(moe_model* model, const int32_t* ids, size_t count, const char* options,
                     float* logprobs, char** json) {
  return guarded([&] {
    if (json != nullptr) *json = nullptr;
    moe_model& m = need(model, "moe_score: model");
    const std::span<const int32_t> text = need(ids, count, "moe_score: ids");
    ScoreOptions open = open_score_options();
    read_caller_options(fields(open), options);
    const ScorePlan plan = score_plan(open, m.loaded.model->config());
    ScoreOptions asked = plan.options;
    asked.per_token = asked.per_token || logprobs != nullptr;
    scored_windows(static_cast<int64_t>(count), asked);
    settle(m, scored_use(*m.loaded.model, asked, m.run.compute), kAdvice,
           asked.per_token ? static_cast<int64_t>(count) * 20 : 0);
    const Score scored = score(*m.loaded.model, m.run, *m.loaded.tokenizer, text, asked);
    char* reply = json == nullptr ? nullptr : given(score_reply(scored, plan).dump());
    if (logprobs != nullptr) copy_logprobs({logprobs, count}, scored);
    if (json != nullptr) *json = reply;
  });
}

moe_status moe_logits(moe_model* model, const int32_t* ids, size_t count, float* logits) {
  return guarded([&] {
    moe_model& m = need(model, "moe_logits: model");
    const std::span<const int32_t> sequence = need_sequence(ids, count, "moe_logits: ids");
    need(logits, "moe_logits: logits");
    forward_sequence(m, sequence, nullptr, [&](const ModelSaved& saved) {
      m.loaded.model->logits(
          m.run,
          Tensor(logits, DType::f32, {static_cast<int64_t>(count), m.loaded.model->config().vocab}),
          saved.hidden);
    });
  });
}

moe_status moe_routing(moe_model* model, const int32_t* ids, size_t count, int32_t* experts,
                       float* weights) {
  return guarded([&] {
    moe_model& m = need(model, "moe_routing: model");
    const ModelConfig& config = m.loaded.model->config();
    if (config.moe_layer_count() == 0) fail_usage("moe_routing: the model has no MoE layers");
    const std::span<const int32_t> sequence = need_sequence(ids, count, "moe_routing: ids");
    need(experts, "moe_routing: experts");
    need(weights, "moe_routing: weights");
    const auto slots = static_cast<size_t>(eval_spec(config.routing).slots());
    const size_t pairs = count * slots;
    size_t layer = 0;
    const std::function<void(int64_t, const MoeLayer::Saved&)> copy =
        [&](int64_t, const MoeLayer::Saved& saved) {
          int32_t* expert = experts + layer * pairs;
          float* weight = weights + layer * pairs;
          std::fill_n(expert, pairs, -1);
          std::fill_n(weight, pairs, 0.0f);
          each_kept_pair(saved.plan, saved.router, [&](size_t pair, float w) {
            expert[pair] = saved.router.choice.as<int32_t>()[pair];
            weight[pair] = w;
          });
          ++layer;
        };
    forward_sequence(m, sequence, &copy, [](const ModelSaved&) {});
  });
}
}
