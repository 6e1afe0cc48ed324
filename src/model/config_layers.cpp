// What a model's numbers come to in each of its layers and in all of them.
#include <cmath>

#include "core/error.h"
#include "model/config.h"
#include "model/rope.h"

namespace moe {
namespace {

// Of the last tokens, as many as an entry is made of, what is weighed and what weighs it, of the
// entries and of those of an indexer.
int64_t entry_state(const Entries& e, int64_t width) {
  return e.parts() * e.tokens * 2 * e.parts() * (width + e.width);
}

}  // namespace

bool ModelConfig::has_ffn(int64_t layer) const { return !lists(mixer_only_layers, layer); }

bool ModelConfig::is_moe(int64_t layer) const {
  if (!find_recipe(routing.recipe).has_router() || !has_ffn(layer)) return false;
  if (!moe_layers.empty()) return lists(moe_layers, layer);
  return layer >= dense_first && layer % moe_every == 0;
}

bool ModelConfig::has_table(int64_t layer) const {
  return is_moe(layer) && lists(table_layers, layer);
}

bool ModelConfig::has_window(int64_t layer) const {
  return attention_window > 0 && (window_layers.empty() || lists(window_layers, layer));
}

Entries ModelConfig::entries(int64_t layer) const {
  if (lists(heavy_layers, layer)) return heavy;
  return lists(light_layers, layer) ? light : Entries{};
}

Mixer ModelConfig::mixer(int64_t layer) const {
  if (lists(linear_layers, layer)) return Mixer::linear;
  if (lists(scan_layers, layer)) return Mixer::scan;
  if (lists(lightning_layers, layer)) return Mixer::lightning;
  if (lists(ffn_only_layers, layer)) return Mixer::none;
  return lists(conv_layers, layer) ? Mixer::conv : Mixer::attention;
}

NormPlacement ModelConfig::placement(int64_t layer) const {
  const bool before = states_pre_norm && mixer(layer) != Mixer::attention;
  return before ? NormPlacement::pre : norm_placement;
}

bool ModelConfig::attention_turns() const {
  for (int64_t i = 0; i < layers; ++i)
    if (attends(i)) return attention(i).rotary_width > 0;
  return true;
}

int64_t ModelConfig::state_numbers(int64_t layer) const {
  switch (mixer(layer)) {
    case Mixer::attention: return entry_state(entries(layer), head_width);
    case Mixer::none: return 0;
    case Mixer::linear: return linear.state();
    case Mixer::conv: return (conv_width - 1) * width;
    case Mixer::scan: return scan.state();
    case Mixer::lightning: return lightning_state();
  }
  return 0;
}

int64_t ModelConfig::state_numbers() const {
  int64_t sum = 0;
  for (int64_t i = 0; i < layers; ++i) sum += state_numbers(i);
  return sum;
}

// Without latents heads are as wide in values as in keys, where nothing else is said. What layers
// with a window do not share is decided by has_window.
AttentionShape ModelConfig::attention(int64_t layer) const {
  const bool turns = positions == Positions::rope && !lists(nope_layers, layer);
  const FullAttention own = has_window(layer) ? FullAttention{} : full;
  const int64_t own_width = own.head_width > 0 ? own.head_width : head_width,
                part = window_rotary_width > 0 && has_window(layer) ? window_rotary_width
                                                                    : rotary_width;
  const bool chosen = sparse.present() && !lists(sparse.whole_layers, layer),
             indexed = chosen && !lists(sparse.followers, layer);
  float factor = latent.present() ? score_factor(rope_scaling) : 1;
  if (multipliers.attention > 0)
    factor *= multipliers.attention * std::sqrt(static_cast<float>(own_width));
  const int64_t values = latent.present()  ? latent.value_width
                         : value_width > 0 ? value_width
                                           : own_width;
  const bool normed = qk_norm != QkNorm::bare || turns;
  const int64_t own_heads = own.heads > 0 ? own.heads : heads;
  return {.heads = own_heads,
          .kv_heads = own.kv_heads > 0 ? own.kv_heads : kv_heads,
          .key_width = own_width,
          .value_width = values,
          .rotary_width = !turns     ? 0
                          : part > 0 ? part
                                     : own_width,
          .window = has_window(layer) && !window_chunks ? attention_window : 0,
          .chunk = has_window(layer) && window_chunks ? attention_window : 0,
          .values_of_keys = own.values_of_keys,
          .value_norm = value_norm,
          .value_factor = value_factor,
          .sinks = attention_sinks && (!window_sinks || has_window(layer)),
          .qk_norm = normed ? qk_norm : QkNorm::none,
          .norm_turned = qk_norm_turned,
          .window_turns = window_rope_theta > 0 && has_window(layer) && !entries(layer).present(),
          .queries_grow = query_growth.present() && !(query_growth.where_still && turns),
          .clip = qkv_clip,
          .score_factor = factor,
          .score_cap = score_cap,
          .gates = !attention_gate ? 0
                   : head_gates    ? own_heads
                                   : own_heads * values,
          .head_gates = head_gates,
          .gate_softplus = gate_softplus,
          .latent = latent,
          .shared_width = latent.present() && !latent.shared ? rotary_width : 0,
          .top = chosen ? sparse.top : 0,
          .index_heads = indexed ? sparse.heads : 0,
          .index_width = indexed ? sparse.width : 0,
          .block = chosen ? sparse.block : 0,
          .local = chosen && sparse.block > 0 ? sparse.local : 0,
          .entries = entries(layer)};
}

int64_t ModelConfig::moe_layer_count() const {
  int64_t count = 0;
  for (int64_t i = 0; i < layers; ++i) count += is_moe(i);
  return count;
}

int64_t ModelConfig::dense_layer_count() const {
  int64_t count = 0;
  for (int64_t i = 0; i < layers; ++i) count += has_ffn(i) && !is_moe(i);
  return count;
}

int64_t ModelConfig::sublayers() const {
  int64_t count = 0;
  for (int64_t i = 0; i < layers; ++i) count += mixes(i) + has_ffn(i);
  return count;
}

bool ModelConfig::by_neuron() const {
  return expert_width == 1 && shared_experts == 0 && !branch_norms && !ffn_bias &&
         !expert_down_bias && !weigh_inputs && table_layers.empty() && moe_layer_count() > 0 &&
         takes_a_set(train_spec(routing));
}

std::string why_texts_end(const ModelConfig& c, std::string_view who) {
  if (!c.ends_at_context())
    return fmt::format(
        "beyond {} tokens the attention of {} is sparse, which a GPU does not do here",
        c.sparse.top, who);
  if (c.positions != Positions::learned)
    return fmt::format(
        "beyond {} tokens the rotary frequencies of {} change with the length of the text, which "
        "is not done here",
        c.context, who);
  return fmt::format("{} has learned positions for {} tokens only", who, c.context);
}

}  // namespace moe
