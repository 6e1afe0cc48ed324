#include "jobs/replies.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/words.h"
#include "infer/eval_routing.h"
#include "model/variants.h"
#include "train/memory.h"
#include "train/metrics.h"
#include "train/trainable.h"

namespace moe {
namespace {

Json variants_json(const ModelConfig& c) {
  Json rows = Json::array();
  for (const Variant& v : fine_grained_variants(c)) {
    const std::string sets = combinations(v.experts, v.top_k);
    rows.push_back({{"name", v.name},
                    {"is_model", v.is_model},
                    {"experts", v.experts},
                    {"top_k", v.top_k},
                    {"expert_width", v.expert_width},
                    {"shared_experts", v.shared_experts},
                    {"parameters", v.params.total()},
                    {"active", v.params.active()},
                    {"router", v.params[Part::router]},
                    {"combinations", sets.empty() ? Json(nullptr) : Json(sets)},
                    {"combinations_log2", log2_combinations(v.experts, v.top_k)}});
  }
  return rows;
}

Json layer_kinds_json(const LayerKinds& kinds) {
  return {{"attention", kinds.attention},     {"linear_attention", kinds.linear},
          {"convolution", kinds.conv},        {"state_space", kinds.scan},
          {"mixer_alone", kinds.mixer_alone}, {"ffn_alone", kinds.ffn_alone}};
}

Json dense_json(const ModelConfig& c) {
  if (c.moe_layer_count() == 0) return nullptr;
  const auto twin = [](const DenseTwin& t) {
    return Json({{"ffn_width", t.ffn_width},
                 {"parameters", t.params.total()},
                 {"flops_per_token", t.flops.forward()}});
  };
  return {{"equal_flops", twin(dense_of_equal_flops(c, c.context))},
          {"equal_parameters", twin(dense_of_equal_params(c, c.context))}};
}

// Choices that an evaluation keeps of a token; 0 without MoE layers.
int64_t slots_of(const ModelConfig& c) {
  return c.moe_layer_count() > 0 ? eval_spec(c.routing).slots() : 0;
}

}  // namespace

Json generate_reply(const std::string& prompt, const Generated& out) {
  return {{"prompt", prompt},     {"text", out.text},         {"prompt_tokens", out.prompt_tokens},
          {"tokens", out.tokens}, {"finish", out.finish},     {"prompt_ids", out.prompt_ids},
          {"ids", out.ids},       {"proposed", out.proposed}, {"accepted", out.accepted}};
}

std::string describe_speed(const Generated& g) {
  const auto rate = [](int64_t tokens, double seconds) {
    return tokens > 0 && seconds > 0
               ? fmt::format(", {:.1f} tokens/s", static_cast<double>(tokens) / seconds)
               : "";
  };
  // The first token is drawn from what reading the prompt left: the model runs for those after it.
  return fmt::format("speed: {} of the prompt read in {:.2f} s{}; {} written in {:.2f} s{}",
                     counted(g.read_tokens, "token"), g.prompt_seconds,
                     rate(g.read_tokens, g.prompt_seconds), counted(g.tokens, "token"),
                     g.decode_seconds, rate(g.tokens - 1, g.decode_seconds));
}

ScorePlan score_plan(const ScoreOptions& asked, const ModelConfig& config) {
  ScorePlan plan{.options = asked};
  if (asked.window == 0) plan.options.window = default_window(config);
  const bool routed = config.moe_layer_count() > 0;
  plan.routing =
      asked.routing.value_or(routed ? default_eval(config.routing) : EvalRouting::dropless);
  if (routed) plan.not_causal_because = not_causal_because(config.routing, plan.routing);
  return plan;
}

Json score_reply(const Score& s, const ScorePlan& plan) {
  Json out = {{"tokens", s.tokens},
              {"windows", s.windows},
              {"window", plan.options.window},
              {"nats_per_token", s.nats_per_token},
              {"perplexity", s.perplexity},
              {"bits_per_byte", s.bits_per_byte},
              {"causal", plan.not_causal_because.empty()},
              {"routing", name_of(plan.routing)}};
  if (plan.options.per_token) {
    out["ids"] = s.ids;
    Json& logprobs = out["logprobs"] = Json::array();
    for (const std::optional<double>& p : s.logprobs)
      logprobs.push_back(p ? Json(*p) : Json(nullptr));
  }
  return out;
}

Json inspect_reply(const ModelConfig& c, const TrainingShape& shape, OptimizerKind optimizer) {
  const ModelCost cost = count_cost(c, c.context);
  const TrainingMemory t = training_memory(c, shape, optimizer);
  const ParamCount& p = cost.params;
  const FlopCount& f = cost.flops;
  const MemoryCount& m = cost.memory;
  return {{"recipe", c.routing.recipe},
          {"layers", c.layers},
          {"moe_layers", c.moe_layer_count()},
          {"layer_kinds", layer_kinds_json(count_layer_kinds(c))},
          {"width", c.width},
          {"experts", c.routing.experts},
          {"zero_experts", c.routing.zero_experts},
          {"shared_average", c.shared_average},
          {"top_k", c.routing.top_k},
          {"slots", slots_of(c)},
          {"vocab", c.vocab},
          {"context", c.context},
          {"variants", variants_json(c)},
          {"dense", dense_json(c)},
          {"parameters",
           {{"total", p.total()},
            {"active", p.active()},
            {"embedding", p[Part::embedding]},
            {"positions", p[Part::positions]},
            {"head", p[Part::lm_head]},
            {"norms", p[Part::norms]},
            {"attention", p[Part::attention]},
            {"dense_ffn", p[Part::dense_ffn]},
            {"experts", p[Part::experts]},
            {"experts_active", p.experts_active},
            {"shared", p[Part::shared]},
            {"router", p[Part::router]}}},
          {"flops_per_token",
           {{"forward", f.forward()},
            {"training", f.training()},
            {"projections", f.projections},
            {"scores", f.scores},
            {"dense_ffn", f.dense_ffn},
            {"experts", f.experts},
            {"shared", f.shared},
            {"router", f.router},
            {"head", f.head}}},
          {"bytes",
           {{"weights_f32", m.weights_f32},
            {"weights_bf16", m.weights_bf16},
            {"kv_per_token_bf16", m.kv_per_token_bf16},
            {"state_f32", m.state_f32},
            {"training",
             {{"batch", shape.batch},
              {"context", shape.context},
              {"dtype", name_of(shape.dtype)},
              {"recompute", shape.recompute},
              {"optimizer", name_of(optimizer)},
              {"total", t.total()},
              {"masters", t.masters},
              {"gradients", t.gradients},
              {"moments", t.moments},
              {"packed", t.copies},
              {"activations", t.activations},
              {"scratch", t.scratch}}}}}};
}

Json train_reply(Training& training, const TrainSummary& summary) {
  const StepResult& last = summary.last;
  Json reply = {{"out", training.out()},   {"step", last.step},
                {"tokens", last.tokens},   {"seconds", last.seconds},
                {"ce", last.ce},           {"interrupted", summary.interrupted},
                {"alarms", summary.alarms}};
  if (last.kl) reply["kl"] = *last.kl;
  if (last.pairs) add_figures(reply, "", *last.pairs);
  Json& trained = reply["trained"] = Json::object();
  for (const TrainedPart& part : trained_parts(training.model(), training.options()))
    trained[std::string(part.name)] = {{"trained", part.trained}, {"total", part.total}};
  for (const HotLayer& hot : training.options().hot)
    reply["hot"].push_back({{"layer", hot.layer}, {"experts", hot.experts}, {"rows", hot.share}});
  if (summary.eval) reply["eval_ce"] = summary.eval->ce;
  if (summary.eval && summary.eval->pairs) add_figures(reply, "eval_", *summary.eval->pairs);
  if (summary.best)
    reply["best"] = {{"step", summary.best->step},
                     {training.options().pairs ? "eval_dpo" : "eval_ce", summary.best->loss}};
  return reply;
}

}  // namespace moe
