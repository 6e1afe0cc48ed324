#include "hub/gguf/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <string>

#include "core/error.h"
#include "hub/folder/architectures.h"
#include "hub/folder/config_json.h"
#include "hub/gguf/gguf_keys.h"

namespace moe {
namespace {

constexpr int64_t kMaxBlocks = 4096;  // as config.json has it
constexpr const char* kEps = "attention.layer_norm_epsilon";
constexpr const char* kRmsEps = "attention.layer_norm_rms_epsilon";
constexpr const char *kFactors = "rope_freqs.weight", *kShortFactors = "rope_factors_short.weight",
                     *kLongFactors = "rope_factors_long.weight";
constexpr const char* kFusedAttention = "blk.0.attn_qkv.weight";
constexpr const char* kOwnConfig = "config";  // moe_cpp.config

// The factors of frequencies that a tensor holds, as many as pairs turn.
std::span<const float> stored_factors(const Gguf& file, const char* tensor, int64_t pairs) {
  const Tensor stored = file.get(tensor);
  if (stored.dtype != DType::f32 || stored.numel() != pairs)
    fail("{}: tensor \"{}\" is {}; f32 [{}] is needed", file.path(), tensor, describe(stored),
         pairs);
  return {stored.as<float>(), static_cast<size_t>(pairs)};
}

// Llama 3 files store what its four numbers make of each frequency and not the numbers: they are
// found again by making the factors anew. Beside the factor the original context differs between
// models; every published one has 1 and 4 for the other two, or, Llama 4, 1 and 1.
RopeScaling recognised_llama3(const Gguf& file, const ModelConfig& c) {
  const std::span<const float> factors = stored_factors(file, kFactors, c.head_width / 2);
  if (std::ranges::all_of(factors, [](float x) { return x == 1; })) return {};
  const float largest = *std::ranges::max_element(factors);
  for (const float high : {4.0f, 1.0f})
    for (int64_t original = 16; original <= int64_t{1} << 20; original *= 2) {
      // A short head may have no frequency that is divided by the whole factor.
      for (const float factor : {largest, 2.0f, 4.0f, 8.0f, 16.0f, 32.0f, 64.0f}) {
        RopeScaling scaling{.kind = RopeScaling::Kind::llama3,
                            .factor = factor,
                            .original_context = original,
                            .high_freq_factor = high};
        if (!(factor >= 1)) continue;
        const std::vector<float> made = llama3_factors(scaling, c.rope_theta, c.head_width);
        if (std::equal(made.begin(), made.end(), factors.begin(),
                       [](float a, float b) { return std::fabs(a - b) <= 1e-5f * a; }))
          return scaling;
      }
    }
  fail(
      "{}: tensor \"{}\" divides the rotary frequencies in another way than Llama 3's scaling, "
      "which is not supported",
      file.path(), kFactors);
}

// Of latent attention llama.cpp stores a tenth of what transformers calls "mscale_all_dim", and
// what it multiplies cosines and sines by then comes to 1 (github ggml-org/llama.cpp,
// src/models/deepseek2.cpp).
constexpr const char* kLogMultiplier = "rope.scaling.yarn_log_multiplier";

// Of Granite whether anything turns, of all others nothing that is computed.
constexpr const char* kFinetuned = "rope.scaling.finetuned";

constexpr const char *kFurtherFactor = "rope.scaling.attn_factor",
                     *kWholeFactor = "rope.scaling.yarn_attn_factor",
                     *kOriginalContext = "rope.scaling.original_context_length";

bool nearly_equal(float a, float b) { return std::fabs(a - b) <= 1e-5f * b; }

// What YaRN multiplies cosines and sines by. Converters write the whole of it, which llama.cpp
// finds by itself and does not read; older files of OLMo 3 have it under the other name.
float read_attention_factor(GgufKeys& keys, const GgufArchitecture& row, float factor) {
  const float growth = yarn_growth(factor);
  if (!nearly_equal(keys.number_or(kWholeFactor, 0, growth), growth))
    keys.need_number(
        kWholeFactor, 1,
        fmt::format("llama.cpp takes {} and \"{}\" beside it", growth, kFurtherFactor));
  const float further = keys.number_or(kFurtherFactor, 0, 1);
  return row.window_plain && nearly_equal(further, growth) ? growth : growth * further;
}

void read_yarn(GgufKeys& keys, const GgufArchitecture& row, RopeScaling& scaling) {
  scaling.original_context = keys.size(kOriginalContext, 1);
  scaling.beta_fast = keys.number_or("rope.scaling.yarn_beta_fast", 0, 32);
  scaling.beta_slow = keys.number_or("rope.scaling.yarn_beta_slow", 0, 1);
  scaling.truncate = row.yarn_truncate;
  keys.need_number("rope.scaling.yarn_ext_factor", 1, "the blend is always whole");
  if (row.latent()) {
    for (const char* key : {kWholeFactor, kFurtherFactor})
      keys.need_number(key, 1, "it scales what turns otherwise than what does not");
    scaling.score_mscale = keys.number(kLogMultiplier, FLT_MIN) / 0.1f;
    return;
  }
  if (row.query_growth) {
    keys.number(kLogMultiplier, 0);
    for (const char* key : {kLogMultiplier, kWholeFactor, kFurtherFactor})
      keys.need_number(key, 1, "llama.cpp's versions differ in what another does");
    return;
  }
  scaling.attention_factor = read_attention_factor(keys, row, scaling.factor);
  keys.need_number(kLogMultiplier, 0, "it belongs to other architectures");
}

// Tokens before the first step are those of YaRN's original context, whether frequencies are scaled
// or not (github ggml-org/llama.cpp, src/models/mistral3.cpp).
constexpr const char* kTemperature = "attention.temperature_scale";

void read_temperature(GgufKeys& keys, ModelConfig& c) {
  const float beta = keys.number_or(kTemperature, 0, 0);
  if (beta > 0)
    c.query_growth = {.beta = beta, .context = keys.size_or(kOriginalContext, 1, c.context)};
}

// Which factors count llama.cpp decides by the longest text that there may be, and what turns is
// multiplied by the same in both cases (github ggml-org/llama.cpp src/llama-model.cpp,
// get_rope_factors).
RopeScaling read_factors_by_length(const Gguf& file, GgufKeys& keys, const ModelConfig& c) {
  constexpr const char* kType = "rope.scaling.type";
  if (keys.has(kType) && keys.text(kType) != "longrope" && keys.text(kType) != "none")
    fail(
        "{}: both key \"{}\" and tensor \"{}\" scale the rotary frequencies, which is not "
        "supported",
        keys.where(), keys.name(kType), kLongFactors);
  keys.need_number("rope.scaling.factor", 1, "frequencies are divided by factors of their own");
  RopeScaling scaling{.kind = RopeScaling::Kind::longrope,
                      .original_context = keys.size(kOriginalContext, 1)};
  scaling.attention_factor = scaling.long_attention_factor =
      keys.number_or(kFurtherFactor, FLT_MIN, 1);
  const int64_t pairs = (c.rotary_width > 0 ? c.rotary_width : c.head_width) / 2;
  for (const auto& [tensor, factors] :
       {std::pair{kShortFactors, &scaling.short_factors}, {kLongFactors, &scaling.long_factors}}) {
    const std::span<const float> stored = stored_factors(file, tensor, pairs);
    factors->assign(stored.begin(), stored.end());
  }
  return scaling;
}

RopeScaling read_scaling(const Gguf& file, GgufKeys& keys, const GgufArchitecture& row,
                         const ModelConfig& c) {
  keys.ignore(kFinetuned);
  keys.need_number("rope.scale_linear", 1, "\"rope.scaling.factor\" is the newer name");
  if (row.longrope && (file.contains(kShortFactors) || file.contains(kLongFactors)))
    return read_factors_by_length(file, keys, c);
  if (file.contains(kFactors) && row.llama3_scaling) {
    if (keys.has("rope.scaling.type") && keys.text("rope.scaling.type") != "none")
      fail(
          "{}: both key \"{}\" and tensor \"{}\" scale the rotary frequencies, which is not "
          "supported",
          keys.where(), keys.name("rope.scaling.type"), kFactors);
    return recognised_llama3(file, c);
  }
  RopeScaling scaling;
  const float factor = keys.number_or("rope.scaling.factor", 0, 1);
  // Without a type llama.cpp takes the factor as linear.
  const std::string type = keys.has("rope.scaling.type") ? keys.text("rope.scaling.type")
                           : factor == 1                 ? "none"
                                                         : "linear";
  if (type != "yarn") keys.ignore(kOriginalContext);
  if (type == "none") return scaling;
  if (type != "linear" && type != "yarn")
    fail("{}: key \"{}\" is \"{}\", which is not supported (none, linear and yarn are)",
         keys.where(), keys.name("rope.scaling.type"), printable(type));
  scaling.factor = keys.number("rope.scaling.factor", 1);
  scaling.kind = type == "linear" ? RopeScaling::Kind::linear : RopeScaling::Kind::yarn;
  if (type == "yarn") read_yarn(keys, row, scaling);
  return scaling;
}

constexpr const char *kKeyWidth = "attention.key_length", *kValueWidth = "attention.value_length",
                     *kTurning = "rope.dimension_count";

// A cache that llama.cpp keeps holds latents, so that the usual keys give their widths and the
// heads' stand under names of their own; in older files these are missing, and the usual ones are
// the heads'.
void read_latents(GgufKeys& keys, const GgufArchitecture& row, ModelConfig& c) {
  c.latent.width = keys.size("attention.kv_lora_rank", 1);
  c.latent.query_width = keys.size_or("attention.q_lora_rank", 0, 0);
  c.rotary_width = keys.size(kTurning, 1);
  const bool older = row.older_latents != nullptr && !keys.has("attention.key_length_mla");
  c.head_width = keys.size(older ? kKeyWidth : "attention.key_length_mla", 1);
  c.latent.value_width = keys.size(older ? kValueWidth : "attention.value_length_mla", 1);
  if (row.channel_decays()) {
    read_kimi_layers(keys, row, c);
    if (row.kimi) keys.need_number("attention.q_lora_rank", 0, "queries are made of the token");
    keys.ignore(kValueWidth);  // converters copy there what their config says of no layer
  } else {
    keys.need_number(kKvHeads, static_cast<double>(older ? c.heads : 1),
                     older ? "all heads have keys of their own" : "all heads share the latents");
  }
  c.kv_heads = c.heads;
  if (older) return;
  const std::string why = "the latents and what turns are so wide";
  keys.need_number(kKeyWidth, static_cast<double>(c.latent.width + c.rotary_width), why);
  if (!row.channel_decays())
    keys.need_number(kValueWidth, static_cast<double>(c.latent.width), why);
}

void read_heads(GgufKeys& keys, const GgufArchitecture& row, ModelConfig& c) {
  // github ggml-org/ggml, docs/gguf.md: without these keys every head has keys of its own, and the
  // heads make up the width.
  if (row.conv) read_convolutions(keys, c);
  else if (row.granite4 || row.scan) read_state_layers(keys, row, c);
  else c.kv_heads = keys.size_or(kKvHeads, 1, c.heads);
  if (!keys.has(kKeyWidth) && c.width % c.heads != 0)
    fail("{}: {} heads do not divide the width {}, and there is no key \"{}\"", keys.where(),
         c.heads, c.width, keys.name(kKeyWidth));
  c.head_width = keys.size_or(kKeyWidth, 1, c.width / c.heads);
  keys.need_number(kValueWidth, static_cast<double>(c.head_width), "values are as wide as keys");
  if (row.positions != Positions::rope) return;
  if (row.stands()) return keys.ignore(kTurning);
  if (!row.part_turns)
    return keys.need_number(kTurning, static_cast<double>(c.head_width), "heads are rotated whole");
  const int64_t turning = keys.has(kTurning) ? keys.size(kTurning, 2, c.head_width) : c.head_width;
  c.rotary_width = turning < c.head_width ? turning : 0;
}

// Of state spaces a file need not say the first.
void read_multipliers(GgufKeys& keys, const GgufArchitecture& row, Multipliers& m) {
  m.logits = row.scan ? keys.number_or("logit_scale", 0, 1) : keys.number("logit_scale", 0);
  m.embedding = keys.number_or("embedding_scale", 0, 1);
  m.residual = keys.number_or("residual_scale", 0, 1);
  m.attention = keys.number_or("attention.scale", 0, 0);
}

// Here logits are divided.
constexpr const char* kLogitFactor = "logit_scale";
float turned_over(float x) { return static_cast<float>(1 / static_cast<double>(x)); }

constexpr const char* kSections = "rope.dimension_sections";

// Axes of pictures: time, height, width and a fourth. A text counts along the first three alike and
// stands still along the fourth (github ggml-org/llama.cpp src/llama-graph.cpp).
void read_sections(GgufKeys& keys) {
  if (!keys.has(kSections)) return;
  const std::vector<int64_t>& sections = keys.integers(kSections);
  if (sections.size() > 3 && sections[3] != 0)
    fail("{}: key \"{}\" gives {} to a fourth axis, along which no text moves; only 0 is supported",
         keys.where(), keys.name(kSections), sections[3]);
}

constexpr const char *kWindow = "attention.sliding_window",
                     *kPattern = "attention.sliding_window_pattern";

// Whether llama.cpp sees windows where the file has them, and none where it has none.
void check_windows_by_layers(GgufKeys& keys, const GgufArchitecture& row, const ModelConfig& c) {
  if (row.windows_at == 0 || (c.layers == row.windows_at) == row.windows()) return;
  fail(
      "{}: key \"{}\" {}, but of {} layers: with {} and only then llama.cpp gives a model of this "
      "architecture windows",
      keys.where(), keys.name(kWindow), row.windows() ? "is there" : "is missing", c.layers,
      row.windows_at);
}

// A file may say which layers have a window, by a number or one by one; llama.cpp knows them.
void read_windows(GgufKeys& keys, const GgufArchitecture& row, ModelConfig& c) {
  c.attention_window =
      row.usual_window > 0 ? keys.size_or(kWindow, 1, row.usual_window) : keys.size(kWindow, 1);
  c.window_layers = layers_between(row.window_every, c.layers);
  const std::string known =
      fmt::format("every layer of {} but each {}th has a window", row.title, row.window_every);
  if (!keys.holds<std::vector<bool>>(kPattern))
    return keys.need_number(kPattern, static_cast<double>(row.window_every), known);
  std::vector<int64_t> listed;
  const std::vector<bool>& flags = keys.flags(kPattern);
  for (size_t i = 0; i < flags.size(); ++i)
    if (flags[i]) listed.push_back(static_cast<int64_t>(i));
  if (std::ssize(flags) != c.layers || listed != c.window_layers)
    fail("{}: key \"{}\" lists other layers; {}, as llama.cpp has it", keys.where(),
         keys.name(kPattern), known);
}

// Of files that do not say them they are as llama.cpp has them.
constexpr const char *kGgufScoreCap = "attn_logit_softcapping",
                     *kGgufLogitCap = "final_logit_softcapping";
constexpr float kGgufUsualScoreCap = 50, kGgufUsualLogitCap = 30;

void read_caps(GgufKeys& keys, ModelConfig& c) {
  c.score_cap = keys.number_or(kGgufScoreCap, FLT_MIN, kGgufUsualScoreCap);
  c.logit_cap = keys.number_or(kGgufLogitCap, FLT_MIN, kGgufUsualLogitCap);
}

void read_attention(const Gguf& file, GgufKeys& keys, const GgufArchitecture& row, ModelConfig& c) {
  if (row.listed()) read_listed(file, keys, row, c);
  else c.heads = keys.size("attention.head_count", 1);
  if (row.latent()) read_latents(keys, row, c);
  else if (!row.gemma4 && !row.listed()) read_heads(keys, row, c);
  if (row.indexed) read_gguf_indexers(file, keys, row, c);
  if (keys.has("attention.causal") && !keys.flag("attention.causal"))
    fail("{}: key \"{}\" is false; only decoders are supported", keys.where(),
         keys.name("attention.causal"));
  c.norm_eps = keys.number(row.norm == NormKind::rms ? kRmsEps : kEps, 0);
  // llama.cpp's converter writes both of some configs, and its graphs read the one of their norms.
  if (row.norm == NormKind::layer) keys.ignore(kRmsEps);
  else if (row.halves) keys.ignore(kEps);
  const auto biases = [&](Biases has, const char* name) {
    return has == Biases::any ? file.contains(name) : has == Biases::yes;
  };
  const bool fused = row.fused_attention != nullptr && file.contains(kFusedAttention);
  c.attention_bias =
      biases(row.attention_bias, fused ? "blk.0.attn_qkv.bias" : "blk.0.attn_q.bias");
  c.attention_out_bias = biases(row.attention_out_bias, "blk.0.attn_output.bias");
  c.ffn_bias = biases(row.ffn_bias, "blk.0.ffn_up.bias");
  read_few_keys(file, keys, row, c);
  if (row.may_lack_qk_norm && !file.contains("blk.0.attn_q_norm.weight")) c.qk_norm = QkNorm::none;
  if (!row.mimo) c.attention_sinks = row.sinks;
  if (row.beside) c.scan.norm = file.contains("blk.0.ssm_norm.weight");
  check_windows_by_layers(keys, row, c);
  if (row.unheeded_window) c.attention_window = keys.size_or(kWindow, 0, 0);
  if (row.llama4) read_gguf_llama4(keys, c);
  if (row.window_every > 0) read_windows(keys, row, c);
  if (row.linear) read_linear_sizes(keys, c);
  if (row.lightning) read_gguf_lightning(keys, c);
  if (row.gate) c.attention_gate = true;
  if (row.hy4) read_hy4(keys, c);
  if (row.multipliers) read_multipliers(keys, row, c.multipliers);
  if (row.logit_factor) c.multipliers.logits = turned_over(keys.number(kLogitFactor, FLT_MIN));
  if (row.mup) c.multipliers.embedding = std::sqrt(static_cast<float>(c.width));
  if (row.gemma4) return read_gemma4(file, keys, c);
  if (row.gemma > 0)
    c.multipliers = {.embedding = std::sqrt(static_cast<float>(c.width)),
                     .attention = gemma_score_factor(row, c)};
  if (row.caps) read_caps(keys, c);
  else if (row.gemma > 0) keys.need_number(kGgufLogitCap, 0, "logits are not held back");
  if (row.positions != Positions::rope) return;
  if (row.stands()) {
    keys.ignore(kFinetuned);
    c.rope_theta = keys.number_or("rope.freq_base", 0, c.rope_theta);
    return;
  }
  read_sections(keys);
  for (int64_t i = row.nope_every; i > 0 && i <= c.layers; i += row.nope_every)
    c.nope_layers.push_back(i - 1);
  if (row.granite4 && keys.has(kFinetuned) && !keys.flag(kFinetuned))
    for (int64_t i = 0; i < c.layers; ++i)
      if (c.mixer(i) == Mixer::attention) c.nope_layers.push_back(i);
  c.rope_theta = row.base_unsaid ? keys.number_or("rope.freq_base", 0, 10000)
                                 : keys.number("rope.freq_base", 0);
  c.rope_scaling = read_scaling(file, keys, row, c);
  if (row.query_growth) read_temperature(keys, c);
  if (!row.window_plain && !row.window_local) return;
  const float base = keys.number_or("rope.freq_base_swa", FLT_MIN,
                                    row.window_plain || row.laguna ? c.rope_theta : 10000);
  if (base != c.rope_theta || c.rope_scaling.kind != RopeScaling::Kind::none ||
      c.window_rotary_width > 0)
    c.window_rope_theta = row.window_plain ? c.rope_theta : base;
  if (const std::string why = why_not_listed(row, c); !why.empty())
    fail("{}: {}, which is not supported", keys.where(), why);
}

void add_rope_scaling(std::vector<GgufEntry>& out, const std::string& prefix,
                      const GgufArchitecture& row, const ModelConfig& c) {
  using Type = GgufEntry::Type;
  const auto number = [&](const char* key, float x) {
    out.push_back({prefix + key, Type::f32, static_cast<double>(x)});
  };
  const RopeScaling& s = c.rope_scaling;
  const bool yarn = s.kind == RopeScaling::Kind::yarn;
  if (row.query_growth) number(kTemperature, c.query_growth.beta);
  if (yarn || s.kind == RopeScaling::Kind::linear) {  // Llama 3's is a tensor
    out.push_back(
        {prefix + "rope.scaling.type", Type::string, std::string(yarn ? "yarn" : "linear")});
    number("rope.scaling.factor", s.factor);
  }
  if (s.kind == RopeScaling::Kind::longrope) number(kFurtherFactor, s.attention_factor);
  if (yarn || row.query_growth || s.kind == RopeScaling::Kind::longrope)
    out.push_back({prefix + kOriginalContext, Type::u32,
                   row.query_growth ? c.query_growth.context : s.original_context});
  if (!yarn) return;
  number("rope.scaling.yarn_beta_fast", s.beta_fast);
  number("rope.scaling.yarn_beta_slow", s.beta_slow);
  if (row.query_growth) return number(kLogMultiplier, 1);
  if (row.latent()) return number(kLogMultiplier, 0.1f * s.score_mscale);
  const float further = s.attention_factor / yarn_growth(s.factor);
  if (std::fabs(further - 1) > 1e-6f) number(kFurtherFactor, further);
}

void add_attention(std::vector<GgufEntry>& out, const std::string& prefix,
                   const GgufArchitecture& row, const ModelConfig& c) {
  using Type = GgufEntry::Type;
  const auto size = [&](const char* key, int64_t x) {
    out.push_back({prefix + key, Type::u32, x});
  };
  const auto number = [&](const char* key, float x) {
    out.push_back({prefix + key, Type::f32, static_cast<double>(x)});
  };
  if (row.listed()) add_listed(out, prefix, row, c);
  else size("attention.head_count", c.heads);
  if (row.gemma4) {
    number(kRmsEps, c.norm_eps);
    return add_gemma4(out, prefix, c);
  }
  if (!row.listed()) add_kv_heads(out, prefix, row, c);
  number(row.norm == NormKind::rms ? kRmsEps : kEps, c.norm_eps);
  if (row.halves) number(kEps, c.norm_eps);  // which llama.cpp asks for, though its norms are RMS
  if (row.window_every > 0) size(kWindow, c.attention_window);
  if (row.unheeded_window) size(kWindow, 0);  // older versions of llama.cpp want to be told
  if (row.window_key) size(kPattern, row.window_every);
  add_few_keys(out, prefix, row, c);
  if (row.caps) {
    number(kGgufScoreCap, c.score_cap);
    number(kGgufLogitCap, c.logit_cap);
  }
  if (row.linear) add_linear(out, prefix, c);
  if (row.lightning) add_gguf_lightning(out, prefix, c);
  if (row.multipliers) {
    const Multipliers& m = c.multipliers;
    number("logit_scale", m.logits);
    number("embedding_scale", m.embedding);
    number("residual_scale", m.residual);
    if (m.attention > 0) number("attention.scale", m.attention);
  }
  if (row.logit_factor) number(kLogitFactor, turned_over(c.multipliers.logits));
  if (row.positions != Positions::rope) return;
  if (row.latent()) {
    size("attention.kv_lora_rank", c.latent.width);
    // Without latents of queries llama.cpp needs to be told so where there are not 27 layers.
    size("attention.q_lora_rank", c.latent.query_width);
    size("attention.key_length_mla", c.head_width);
    size("attention.value_length_mla", c.latent.value_width);
    size(kKeyWidth, c.latent.width + c.rotary_width);
    size(kValueWidth, c.latent.width);
    if (row.hy4) add_hy4(out, prefix, c);
  } else {
    size(kKeyWidth, c.head_width);
    size(kValueWidth, c.value_width > 0 ? c.value_width : c.head_width);
  }
  if (row.indexed) add_gguf_indexers(out, prefix, row, c);
  const int64_t turning = c.rotary_width > 0 ? c.rotary_width : c.head_width, pairs = turning / 2;
  size(kTurning, turning);
  if (row.mrope)  // time, height and width, of which a text has the first
    out.push_back({prefix + kSections, Type::i32s,
                   std::vector<int64_t>{(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0}});
  number("rope.freq_base", c.rope_theta);
  if (row.granite4) out.push_back({prefix + kFinetuned, Type::boolean, c.attention_turns()});
  if (row.window_plain || row.window_local)
    number("rope.freq_base_swa", c.window_rope_theta > 0 ? c.window_rope_theta : c.rope_theta);
  add_rope_scaling(out, prefix, row, c);
}

// What the file's tensors are called.
const TensorNames* names_in(const Gguf& file, GgufKeys& keys, const GgufArchitecture& row) {
  if (row.older_latents != nullptr && !keys.has("attention.key_length_mla"))
    return row.older_latents;
  if (row.fused_experts != nullptr && file.contains("blk.0.ffn_gate_up_exps.weight"))
    return row.fused_experts;
  if (row.fused_attention != nullptr && file.contains(kFusedAttention)) return row.fused_attention;
  return row.tensors;
}

// Our own form holds the text of a config.json, read as one.
GgufModelConfig read_own(const Gguf& file, GgufKeys& keys) {
  const std::string& text = keys.text(kOwnConfig);
  keys.refuse_unknown();
  return {
      read_config(text, fmt::format("{}: key \"{}\"", file.path(), keys.name(kOwnConfig))).config,
      &own_gguf_architecture(), own_gguf_architecture().tensors};
}

}  // namespace

std::vector<float> llama3_factors(const RopeScaling& s, float theta, int64_t head_width) {
  std::vector<float> factors;
  const auto original = static_cast<double>(s.original_context);
  for (int64_t c = 0; c < head_width / 2; ++c) {
    const double wavelength =
        2 * std::numbers::pi *
        std::pow(static_cast<double>(theta),
                 2.0 * static_cast<double>(c) / static_cast<double>(head_width));
    double divisor = s.factor;
    if (wavelength <= original / s.high_freq_factor) divisor = 1;
    else if (wavelength <= original / s.low_freq_factor) {
      const double smooth = (original / wavelength - s.low_freq_factor) /
                            (static_cast<double>(s.high_freq_factor) - s.low_freq_factor);
      divisor = 1 / ((1 - smooth) / s.factor + smooth);
    }
    factors.push_back(static_cast<float>(divisor));
  }
  return factors;
}

std::vector<GgufRopeFactors> gguf_rope_factors(const GgufArchitecture& row, const ModelConfig& c) {
  using Kind = RopeScaling::Kind;
  const RopeScaling& s = c.rope_scaling;
  if (row.llama3_scaling && s.kind == Kind::llama3)
    return {{kFactors, llama3_factors(s, c.rope_theta, c.head_width)}};
  if (row.longrope && s.kind == Kind::longrope)
    return {{kShortFactors, s.short_factors}, {kLongFactors, s.long_factors}};
  if (row.gemma4) return {{kFactors, gemma4_factors(c)}};
  return {};
}

GgufModelConfig read_gguf_config(const Gguf& file) {
  const std::string& name = file.text("general.architecture");
  if (file.has("general.type") && file.text("general.type") == "adapter")
    fail(
        "{}: this is an adapter of a model, and no model; name the model and give it beside: "
        "@adapter {}",
        file.path(), file.path());
  GgufKeys keys(file, name);
  if (name == own_gguf_architecture().name) return read_own(file, keys);
  const auto has_any = [&](std::string_view end) {
    return std::ranges::any_of(
        file.tensors(), [&](const NamedTensor& tensor) { return tensor.name.ends_with(end); });
  };
  const int64_t experts = keys.size_or("expert_count", 0, 0);
  const bool routes = experts > 1 || (experts == 1 && has_any(".ffn_gate_inp.weight"));
  const GgufTraits traits = {.routes = routes,
                             .windows = keys.has(kWindow),
                             .gating = keys.size_or(kGgufGating, 0, 0),
                             .selection_bias = has_any(".exp_probs_b.bias")};
  const GgufArchitecture& row = find_gguf_architecture(name, traits, file.path());
  ModelConfig c;
  c.norm = row.norm;
  c.norm_bias = row.norm == NormKind::layer && row.norm_bias;
  c.norm_weights = row.norm_weights;
  c.norm_placement = row.placement;
  c.norm_offset = row.norm_offset;
  c.model_type = row.model_type;
  c.qk_norm_turned = row.norm_turned;
  c.positions = row.positions;
  c.qk_norm = row.qk_norm;
  c.act = row.act;
  c.gated = row.gated;
  c.layers = keys.size("block_count", 1, kMaxBlocks);
  // Layers that predict further tokens are counted among them.
  const int64_t further = keys.size_or("nextn_predict_layers", 0, 0);
  if (further >= c.layers)
    fail("{}: of {} layers {} predict further tokens; none is left", keys.where(), c.layers,
         further);
  c.layers -= further;
  if (row.qk_layer_norms_from > 0 && c.layers >= row.qk_layer_norms_from)
    fail(
        "{}: with {} layers or more queries and keys of {} have LayerNorms (Command R+), which "
        "are not supported",
        keys.where(), row.qk_layer_norms_from, row.title);
  c.width = keys.size("embedding_length", 1);
  c.context = keys.size("context_length", 1);
  c.vocab = file.get("token_embd.weight").rows();
  c.tied = !row.needs_head && !file.contains(kGgufHead);
  keys.ignore("vocab_size");  // the rows of the embedding
  keys.ignore("tensor_data_layout");
  for (const char* key : {"n_deepstack_layers", "deepstack_mapping"})
    keys.ignore(key);  // what they add is of pictures
  read_attention(file, keys, row, c);
  if (routes) read_gguf_experts(file, keys, row, c);
  else read_gguf_dense(keys, row, c);
  keys.refuse_unknown();
  try {
    validate(c);
  } catch (const Error& e) {
    fail("{}: {}", file.path(), e.what());
  }
  return {c, &row, names_in(file, keys, row)};
}

std::vector<GgufEntry> gguf_config_entries(const GgufArchitecture& row, const ModelConfig& c) {
  using Type = GgufEntry::Type;
  const std::string prefix = std::string(row.name) + ".";
  std::vector<GgufEntry> out = {{"general.architecture", Type::string, std::string(row.name)},
                                {"general.type", Type::string, std::string("model")}};
  if (&row == &own_gguf_architecture()) {
    out.push_back({prefix + kOwnConfig, Type::string, config_to_json(c)});
    return out;
  }
  const auto size = [&](std::string_view key, int64_t x) {
    out.push_back({prefix + std::string(key), Type::u32, x});
  };
  size("block_count", c.layers);
  size("context_length", c.context);
  size("embedding_length", c.width);
  size("vocab_size", c.vocab);
  add_attention(out, prefix, row, c);
  if (row.routes()) add_gguf_experts(out, prefix, row, c);
  else add_gguf_dense(out, prefix, row, c);
  return out;
}

}  // namespace moe
