// What of a GGUF's keys tells of layers that have something else in place of attention, most of
// which have no key/value heads.
#include <algorithm>

#include "hub/gguf/gguf_keys.h"

namespace moe {
namespace {

// llama.cpp calls sizes of linear attention as those of Mamba; of its state spaces the inner size
// is that of all heads' values, and the rank of time steps the number of heads.
constexpr const char *kConv = "ssm.conv_kernel", *kInner = "ssm.inner_size",
                     *kState = "ssm.state_size", *kValueHeads = "ssm.time_step_rank",
                     *kKeyHeads = "ssm.group_count", *kFullEvery = "full_attention_interval",
                     *kRecurrent = "attention.recurrent_layers", *kKdaWidth = "kda.head_dim",
                     *kKdaBounded = "kda.safe_gate", *kKdaFloor = "kda.gate_lower_bound",
                     *kConvTokens = "shortconv.l_cache", *kFfnWidths = "feed_forward_length";
constexpr const char *kLingSections = "rope.dimension_sections", *kOfResiduals = "residual_scale";

// The number that is of all layers but those that have 0, and these.
struct SameOrNone {
  int64_t number = 1;
  std::vector<int64_t> without;
};
SameOrNone same_or_none(GgufKeys& keys, const char* key, const ModelConfig& c) {
  const std::vector<int64_t>& all = listed_by_layers(keys.integers(key), keys, key);
  SameOrNone found;
  found.number = std::max<int64_t>(1, *std::max_element(all.begin(), all.begin() + c.layers));
  for (int64_t i = 0; i < c.layers; ++i) {
    const int64_t n = all[static_cast<size_t>(i)];
    if (n == 0) found.without.push_back(i);
    else if (n != found.number)
      fail("{}: key \"{}\" has {} at layer {} and {} elsewhere; layers are alike here",
           keys.where(), keys.name(key), n, i, found.number);
  }
  return found;
}

// Layers without key/value heads, which have something else in place of attention.
std::vector<int64_t> layers_without_heads(GgufKeys& keys, ModelConfig& c) {
  const SameOrNone heads = same_or_none(keys, kKvHeads, c);
  c.kv_heads = heads.number;
  return heads.without;
}

// The layers with linear attention, which newer files list; in others all but each `usual`th, where
// they do not say another number.
std::vector<int64_t> linear_layers(GgufKeys& keys, const ModelConfig& c, int64_t usual) {
  const int64_t every = keys.size_or(kFullEvery, 2, usual);
  if (!keys.has(kRecurrent)) return layers_between(every, c.layers);
  const std::vector<bool>& flags = listed_by_layers(keys.flags(kRecurrent), keys, kRecurrent);
  std::vector<int64_t> layers;
  for (int64_t i = 0; i < c.layers; ++i)
    if (flags[static_cast<size_t>(i)]) layers.push_back(i);
  return layers;
}

// Each layer is one sublayer: of those without heads an FFN where it has a width, else a state
// space (github ggml-org/llama.cpp src/models/nemotron-h.cpp).
void read_half_layers(GgufKeys& keys, const GgufArchitecture& row, ModelConfig& c) {
  const SameOrNone widths = same_or_none(keys, kFfnWidths, c);
  c.dense_width = c.expert_width = widths.number;
  const auto mixes = [&](int64_t i) { return std::ranges::binary_search(widths.without, i); };
  for (int64_t i = 0; i < c.layers; ++i) {
    const bool attends = !std::ranges::binary_search(c.scan_layers, i);
    if (attends && !mixes(i))
      fail(
          "{}: by keys \"{}\" and \"{}\" layer {} has attention and an FFN; in a model of this "
          "architecture a layer has one of both",
          keys.where(), keys.name(kKvHeads), keys.name(kFfnWidths), i);
    (mixes(i) ? c.mixer_only_layers : c.ffn_only_layers).push_back(i);
    if (attends) c.nope_layers.push_back(i);
  }
  std::erase_if(c.scan_layers, [&](int64_t i) { return !mixes(i); });
  if (!row.routes()) return;
  c.moe_layers = c.ffn_only_layers;
  if (c.moe_layers.empty())
    fail("{}: by key \"{}\" no layer has an FFN; in a model of this architecture some have experts",
         keys.where(), keys.name(kFfnWidths));
}

// llama.cpp asserts the floor, scales nothing but what turns by YaRN, and turns halves where the
// axes of pictures are said (github ggml-org/llama.cpp src/models/bailingmoe3.cpp).
void read_ling_parts(GgufKeys& keys, ModelConfig& c) {
  if (keys.has(kKdaBounded) && !keys.flag(kKdaBounded))
    fail("{}: key \"{}\" is false; decays have a floor here", keys.where(), keys.name(kKdaBounded));
  c.linear.decay_floor = keys.number(kKdaFloor, -FLT_MAX);
  if (c.linear.decay_floor >= 0)
    fail("{}: key \"{}\" is {}; it must be below 0", keys.where(), keys.name(kKdaFloor),
         c.linear.decay_floor);
  c.attention_gate = c.head_gates = true;
  refuse_latent_yarn(keys);
  if (keys.has(kLingSections))
    fail("{}: key \"{}\" stands in files of models of pictures, which are not supported",
         keys.where(), keys.name(kLingSections));
  for (const char* key : {"swiglu_clamp_exp", "swiglu_clamp_shexp"}) {
    if (!keys.holds<std::vector<double>>(key)) keys.need_number(key, 0, "no expert is held");
    else if (std::ranges::any_of(keys.numbers(key), [](double x) { return x != 0; }))
      fail("{}: key \"{}\" lists limits of experts, which are not supported", keys.where(),
           keys.name(key));
  }
}

}  // namespace

std::vector<int64_t> layers_between(int64_t every, int64_t n) {
  std::vector<int64_t> layers;
  for (int64_t i = 0; i < n; ++i)
    if ((i + 1) % every != 0) layers.push_back(i);
  return layers;
}

// One size is that of keys, values and gates, and there are as many heads as in the other layers.
void read_kimi_layers(GgufKeys& keys, const GgufArchitecture& row, ModelConfig& c) {
  const std::vector<int64_t>& heads = listed_by_layers(keys.integers(kKvHeads), keys, kKvHeads);
  for (int64_t i = 0; i < c.layers; ++i) {
    const int64_t n = heads[static_cast<size_t>(i)];
    if (n != 0 && n != 1)
      fail("{}: key \"{}\" has {} at layer {}; all heads share the latents, so only 1 is supported",
           keys.where(), keys.name(kKvHeads), n, i);
    if (n == 0) c.linear_layers.push_back(i);
    else if (row.kimi) c.nope_layers.push_back(i);
  }
  const int64_t width = keys.size(kKdaWidth, 1);
  c.linear = {.key_heads = c.heads,
              .value_heads = c.heads,
              .key_width = width,
              .value_width = width,
              .conv_width = keys.size(kConv, 2),
              .gate_width = row.kimi ? width : 0,
              .channel_decays = row.ling3};
  if (row.ling3) read_ling_parts(keys, c);
}

// Where there are no key/value heads a convolution is.
void read_convolutions(GgufKeys& keys, ModelConfig& c) {
  c.conv_layers = layers_without_heads(keys, c);
  c.conv_width = c.conv_layers.empty() ? 0 : keys.size(kConvTokens, 2);
}

void read_linear_sizes(GgufKeys& keys, ModelConfig& c) {
  c.linear = {.key_heads = keys.size(kKeyHeads, 1),
              .value_heads = keys.size(kValueHeads, 1),
              .key_width = keys.size(kState, 1),
              .conv_width = keys.size(kConv, 2)};
  c.linear.value_width = c.linear.key_width;
  keys.size(kInner, 1);
  keys.need_number(kInner, static_cast<double>(c.linear.v_width()),
                   "it is that of all value heads, and they are as wide as those of keys");
  c.linear_layers = linear_layers(keys, c, 4);
  c.attention_gate = true;
}

// llama.cpp divides by the number of layers but one, and its graph asks for no other numbers
// (github ggml-org/llama.cpp src/models/minimax-01.cpp).
void read_gguf_lightning(GgufKeys& keys, ModelConfig& c) {
  c.lightning_layers = linear_layers(keys, c, 8);
  const float kept = keys.number(kOfResiduals, FLT_MIN);
  Multipliers& m = c.multipliers;
  for (Multipliers::Sum* sum : {&m.attention_sum, &m.lightning_sum, &m.ffn_sum}) sum->kept = kept;
}

void add_gguf_lightning(std::vector<GgufEntry>& out, const std::string& prefix,
                        const ModelConfig& c) {
  std::vector<bool> flags;
  for (int64_t i = 0; i < c.layers; ++i) flags.push_back(c.mixer(i) == Mixer::lightning);
  out.push_back({prefix + kRecurrent, GgufEntry::Type::booleans, flags});
  out.push_back({prefix + kOfResiduals, GgufEntry::Type::f32,
                 static_cast<double>(c.multipliers.attention_sum.kept)});
}

std::string why_not_gguf_lightning(const GgufArchitecture& row, const ModelConfig& c) {
  if (row.lightning == c.lightning_layers.empty())
    return row.lightning ? "none of its layers has lightning attention"
                         : "some of its layers have lightning attention";
  if (!row.lightning) return "";
  const Multipliers& m = c.multipliers;
  const Multipliers::Sum one = {.kept = m.attention_sum.kept, .added = 1};
  if (m.attention_sum != one || m.lightning_sum != one || m.ffn_sum != one)
    return "its residuals, and what is added to them, have several factors";
  if (c.lightning_norm_eps != ModelConfig().lightning_norm_eps)
    return "the norm in its lightning attention has another epsilon than 1e-6";
  return c.layers == 1 ? "it has one layer" : "";
}

// Of a selective scan the rank is what it is called (github ggml-org/llama.cpp
// src/models/jamba.cpp).
StateSpace read_selective(GgufKeys& keys) {
  return {.heads = keys.size(kInner, 1),
          .groups = 1,
          .width = 1,
          .states = keys.size(kState, 1),
          .conv_width = keys.size(kConv, 2),
          .conv_bias = true,
          .step_rank = keys.size(kValueHeads, 1)};
}

// Where there are no key/value heads a state space is, or an FFN alone; or all layers have both.
// One number is that of all layers.
void read_state_layers(GgufKeys& keys, const GgufArchitecture& row, ModelConfig& c) {
  if (keys.holds<std::vector<int64_t>>(kKvHeads)) c.scan_layers = layers_without_heads(keys, c);
  else c.kv_heads = keys.size_or(kKvHeads, 1, c.heads);
  if (row.halves) read_half_layers(keys, row, c);
  for (int64_t i = 0; row.selective && i < c.layers; ++i)
    if (!std::ranges::binary_search(c.scan_layers, i)) c.nope_layers.push_back(i);
  if (!c.scan_layers.empty() && (!row.scan || row.beside))
    fail("{}: by key \"{}\" layer {} has no attention; in a model of this architecture all have",
         keys.where(), keys.name(kKvHeads), c.scan_layers[0]);
  if (row.beside) {
    for (int64_t i = 0; i < c.layers; ++i) c.scan_layers.push_back(i);
    c.scan_beside = true;
  }
  if (c.scan_layers.empty()) {
    for (const char* key : {kConv, kInner, kState, kValueHeads, kKeyHeads}) keys.ignore(key);
    return;
  }
  if (row.selective) {
    c.scan = read_selective(keys);
    return;
  }
  c.scan = {.heads = keys.size(kValueHeads, 1),
            .groups = keys.size(kKeyHeads, 1),
            .states = keys.size(kState, 1),
            .conv_width = keys.size(kConv, 2),
            .conv_bias = true};  // which llama.cpp's graph adds without asking
  const int64_t values = keys.size(kInner, 1);
  if (values % c.scan.heads != 0)
    fail("{}: key \"{}\" is {}, which \"{}\", {} heads, does not divide", keys.where(),
         keys.name(kInner), values, keys.name(kValueHeads), c.scan.heads);
  c.scan.width = values / c.scan.heads;
}

// llama.cpp asserts the width, and of Granite the groups (github ggml-org/llama.cpp
// src/models/granite-hybrid.cpp, jamba.cpp, mamba-base.cpp).
std::string why_not_state_sizes(const GgufArchitecture& row, const ModelConfig& c) {
  const StateSpace& s = c.scan;
  if (!s.conv_bias) return "the convolution of its state spaces has no bias";
  if (row.selective && !s.norm)
    return "what steps of its state spaces are made of is not normalised";
  if (!row.granite4 && !row.selective) return "";
  if (s.values() != 2 * c.width) return "its state spaces are not twice as wide as the model";
  return s.groups > 2 ? fmt::format("heads of its state spaces are in {} groups", s.groups) : "";
}

void add_kv_heads(std::vector<GgufEntry>& out, const std::string& prefix,
                  const GgufArchitecture& row, const ModelConfig& c) {
  using Type = GgufEntry::Type;
  const auto size = [&](const char* key, int64_t x) {
    out.push_back({prefix + key, Type::u32, x});
  };
  const bool plain = !row.conv && !row.channel_decays() && !row.scan;
  if (plain || row.beside) size(kKvHeads, row.latent() ? 1 : c.kv_heads);
  if (plain) return;
  std::vector<int64_t> heads;
  for (int64_t i = 0; i < c.layers; ++i)
    heads.push_back(c.mixer(i) != Mixer::attention ? 0 : row.latent() ? 1 : c.kv_heads);
  if (!row.beside) out.push_back({prefix + kKvHeads, Type::u32s, heads});
  if (row.halves) {
    std::vector<int64_t> widths;
    for (int64_t i = 0; i < c.layers; ++i)
      widths.push_back(!c.has_ffn(i) ? 0 : row.routes() ? c.expert_width : c.dense_width);
    out.push_back({prefix + kFfnWidths, Type::u32s, widths});
  }
  if (row.scan) {
    size(kConv, c.scan.conv_width);
    size(kInner, c.scan.values());
    size(kState, c.scan.states);
    size(kValueHeads, row.selective ? c.scan.step_rank : c.scan.heads);
    if (!row.selective) size(kKeyHeads, c.scan.groups);
    return;
  }
  size(row.conv ? kConvTokens : kConv, row.conv ? c.conv_width : c.linear.conv_width);
  if (row.channel_decays()) size(kKdaWidth, c.linear.key_width);
  if (!row.ling3) return;
  out.push_back({prefix + kKdaBounded, Type::boolean, true});
  out.push_back({prefix + kKdaFloor, Type::f32, static_cast<double>(c.linear.decay_floor)});
}

void add_linear(std::vector<GgufEntry>& out, const std::string& prefix, const ModelConfig& c) {
  for (const auto& [key, x] : {std::pair{kConv, c.linear.conv_width},
                               {kInner, c.linear.v_width()},
                               {kState, c.linear.key_width},
                               {kValueHeads, c.linear.value_heads},
                               {kKeyHeads, c.linear.key_heads},
                               {kFullEvery, full_attention_every(c)}})
    out.push_back({prefix + key, GgufEntry::Type::u32, x});
}

}  // namespace moe
