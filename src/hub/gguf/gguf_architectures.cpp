#include "hub/gguf/gguf_architectures.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/nearest.h"

namespace moe {
namespace {

// Its config is config.json's, so that only names are said here.
constexpr GgufArchitecture kOwn = {.name = "moe_cpp", .title = "moe.cpp", .tensors = &kGgufTensors};

// In order of preference when a model is written.
constexpr GgufArchitecture kRows[] = {
    {.name = "gpt2",
     .title = "GPT-2",
     .tensors = &kGgufGpt2Tensors,
     .norm = NormKind::layer,
     .positions = Positions::learned,
     .act = ops::Act::gelu_tanh,
     .gated = false,
     .attention_bias = Biases::yes,
     .attention_out_bias = Biases::yes,
     .ffn_bias = Biases::yes},
    {.name = "qwen3",
     .title = "Qwen3",
     .tensors = &kGgufTensors,
     .qk_norm = QkNorm::head,
     .free_head_width = true},
    {.name = "qwen2", .title = "Qwen2", .tensors = &kGgufTensors, .attention_bias = Biases::yes},
    {.name = "llama",
     .title = "Llama",
     .tensors = &kGgufLlamaTensors,
     .attention_bias = Biases::any,
     .attention_out_bias = Biases::any,
     .ffn_bias = Biases::any,
     .free_head_width = true,
     .llama3_scaling = true},
    {.name = "llama",
     .title = "Mixtral",
     .recipe = "mixtral",
     .tensors = &kGgufLlamaTensors,
     .attention_bias = Biases::any,
     .attention_out_bias = Biases::any,
     .free_head_width = true,
     .renormalises = true,
     .llama3_scaling = true},
    {.name = "olmoe",
     .title = "OLMoE",
     .recipe = "olmoe",
     .tensors = &kGgufTensors,
     .qk_norm = QkNorm::full,
     .shares_kv = false,  // the norms of queries and keys are as wide as the model
     .needs_head = true},
    {.name = "qwen2moe",
     .title = "Qwen2-MoE",
     .recipe = "qwen2-moe",
     .tensors = &kGgufTensors,
     .attention_bias = Biases::yes,
     .needs_head = true,
     .shared = SharedExperts::gated,
     .expert_width = "expert_feed_forward_length"},
    {.name = "qwen3moe",
     .title = "Qwen3-MoE",
     .recipe = "qwen3-moe",
     .tensors = &kGgufTensors,
     .qk_norm = QkNorm::head,
     .free_head_width = true,
     .renormalises = true,
     .expert_width = "expert_feed_forward_length"},
    {.name = "deepseek",
     .title = "DeepSeekMoE",
     .recipe = "deepseek-moe",
     .tensors = &kGgufPairedTensors,
     .needs_head = true,
     .shared = SharedExperts::counted,
     .dense_first = true,
     .expert_width = "expert_feed_forward_length"},
};

bool fits(Biases wanted, bool has) {
  return wanted == Biases::any || (wanted == Biases::yes) == has;
}

// How a config's routing evaluates, in llama.cpp's terms; empty reason where it can.
std::string why_not_routing(const ModelConfig& c, bool renormalises) {
  const RoutingSpec train = train_spec(c.routing), spec = eval_spec(c.routing);
  const auto recipe = [&](std::string_view what) {
    return fmt::format("recipe '{}' {}", c.routing.recipe, what);
  };
  const auto* linear = std::get_if<LinearLogits>(&spec.logits);
  if (linear == nullptr || linear->bias) return recipe("does not score by a matrix alone");
  if (std::holds_alternative<LearnedNoise>(train.noise)) return recipe("has weights for its noise");
  const auto* top = std::get_if<TopK>(&spec.select);
  if (top == nullptr || top->bias || selection_bias(train.select))
    return recipe("does not choose the k largest scores");
  if (!std::holds_alternative<KeepSecond>(spec.second) ||
      !std::holds_alternative<Dropless>(spec.capacity))
    return recipe("may drop choices");
  bool divides = std::holds_alternative<RawScore>(spec.score) &&
                 std::holds_alternative<ChosenSoftmax>(spec.weigh);
  if (!divides) {
    const auto* weigh = std::get_if<ChosenScores>(&spec.weigh);
    if (!std::holds_alternative<SoftmaxScore>(spec.score) || weigh == nullptr)
      return recipe("does not weigh by a softmax");
    if (weigh->scale != 1) return recipe(fmt::format("scales its weights by {}", weigh->scale));
    divides = weigh->renormalise != ChosenScores::Renormalise::never;
  }
  if (divides == renormalises) return "";
  return recipe(divides ? "divides the weights of the chosen by their sum"
                        : "does not divide the weights of the chosen by their sum");
}

std::string why_not_layers(const GgufArchitecture& row, const ModelConfig& c) {
  const int64_t dense = row.dense_first ? c.layers - c.moe_layer_count() : 0;
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.is_moe(i) != (row.routes() && i >= dense))
      return fmt::format("layer {} {}", i, c.is_moe(i) ? "routes" : "is dense");
  return "";
}

std::string why_not_shared(const GgufArchitecture& row, const ModelConfig& c) {
  if (row.shared == SharedExperts::none) return c.shared_experts > 0 ? "it has shared experts" : "";
  if (c.shared_experts == 0) return "it has no shared expert";
  if (c.shared_gate != (row.shared == SharedExperts::gated))
    return c.shared_gate ? "its shared experts are weighed" : "its shared experts are not weighed";
  if (row.shared == SharedExperts::counted &&
      c.shared_experts * c.shared_width % c.expert_width != 0)
    return fmt::format("{} shared experts of width {} are not a number of experts of width {}",
                       c.shared_experts, c.shared_width, c.expert_width);
  return "";
}

// The questions, those that tell families apart first.
std::string ask(const GgufArchitecture& row, const ModelConfig& c, int& passed) {
  const std::string why_layers = why_not_layers(row, c);
  const bool routes = c.moe_layer_count() > 0,
             comparable = routes && row.routes() && why_layers.empty();
  const auto needs = [&](bool holds, std::string reason) {
    return holds ? std::string() : std::move(reason);
  };
  const std::string answers[] = {
      needs(row.norm == c.norm,
            row.norm == NormKind::rms ? "its norms are LayerNorms" : "its norms are RMSNorms"),
      needs(row.positions == c.positions, row.positions == Positions::rope
                                              ? "its positions are learned"
                                              : "its positions are rotary"),
      needs(row.routes() == routes,
            routes ? "some of its layers route" : "none of its layers routes"),
      why_layers,
      needs(c.norm_placement == NormPlacement::pre, "its norms come after each sublayer"),
      needs(row.norm == NormKind::rms || c.norm_bias, "its norms have no biases"),
      needs(row.qk_norm == c.qk_norm,
            c.qk_norm == QkNorm::none ? "queries and keys are not normalised"
            : c.qk_norm == QkNorm::head
                ? "queries and keys are normalised for each head"
                : "queries and keys are normalised over all heads together"),
      needs(!c.latent.present(), "its attention is latent"),
      needs(c.rotary_width == 0, "only a part of each head turns"),
      needs(c.nope_layers.empty(), "in some of its layers nothing turns"),
      needs(c.multipliers.none(), "it has multipliers"),
      needs(!c.attention_sinks, "its attention has sinks"),
      needs(c.attention_window == 0 || c.attention_window >= c.context,
            "its attention sees a window of the last tokens only"),
      needs(row.act == c.act, "its activation is another"),
      needs(row.gated == c.gated, c.gated ? "its FFNs have gates" : "its FFNs have no gates"),
      comparable ? why_not_shared(row, c) : "",
      comparable ? why_not_routing(c, row.renormalises) : "",
      needs(fits(row.attention_bias, c.attention_bias),
            c.attention_bias ? "queries, keys and values have biases"
                             : "queries, keys and values have no biases"),
      needs(fits(row.attention_out_bias, c.attention_out_bias),
            c.attention_out_bias ? "the projection after attention has a bias"
                                 : "the projection after attention has no bias"),
      needs(!c.expert_down_bias || c.moe_layer_count() == 0, "its experts have biases"),
      needs(fits(row.ffn_bias, c.ffn_bias),
            c.ffn_bias ? "its FFNs have biases" : "its FFNs have no biases"),
      needs(row.free_head_width || c.q_width() == c.width,
            fmt::format("{} heads of width {} do not make up the width {}", c.heads, c.head_width,
                        c.width)),
      needs(row.shares_kv || c.kv_heads == c.heads, "heads share keys and values"),
      needs(c.rope_scaling.kind != RopeScaling::Kind::llama3 || row.llama3_scaling,
            "its rotary frequencies are scaled as Llama 3's are"),
      needs(c.rope_scaling.kind != RopeScaling::Kind::yarn || c.rope_scaling.truncate,
            "the ends of its YaRN's blend are not rounded"),
  };
  passed = 0;
  for (const std::string& reason : answers) {
    if (!reason.empty()) return reason;
    ++passed;
  }
  return "";
}

}  // namespace

std::span<const GgufArchitecture> gguf_architectures() { return kRows; }

std::string why_not(const GgufArchitecture& row, const ModelConfig& config, int* distance) {
  int passed = 0;
  std::string reason = ask(row, config, passed);
  if (distance != nullptr) *distance = passed;
  return reason;
}

const GgufArchitecture& own_gguf_architecture() { return kOwn; }

GgufForm gguf_form_of(const ModelConfig& config) {
  const GgufArchitecture* nearest_row = nullptr;
  std::string nearest_reason;
  int furthest = -1;
  for (const GgufArchitecture& row : kRows) {
    int passed = 0;
    std::string reason = why_not(row, config, &passed);
    if (reason.empty()) return {&row, ""};
    if (passed <= furthest) continue;
    furthest = passed;
    nearest_row = &row;
    nearest_reason = std::move(reason);
  }
  return {&kOwn,
          fmt::format(
              "none of its architectures supports this model; {} (\"{}\") comes nearest, but {}",
              nearest_row->title, nearest_row->name, nearest_reason)};
}

const GgufArchitecture& find_gguf_architecture(std::string_view name, bool routes,
                                               const std::string& where) {
  std::vector<std::string> known = {std::string(kOwn.name)};
  bool is_known = false;
  for (const GgufArchitecture& row : kRows) {
    if (row.name == name && row.routes() == routes) return row;
    is_known = is_known || row.name == name;
    if (std::ranges::find(known, row.name) == known.end()) known.emplace_back(row.name);
  }
  if (is_known)
    fail("{}: architecture \"{}\" {}", where, printable(name),
         routes ? "has no experts, but \"expert_count\" is given" : "needs \"expert_count\"");
  fail("{}: architecture \"{}\" of key \"general.architecture\" is not supported{}", where,
       printable(name), suggestion(name, known));
}

}  // namespace moe
