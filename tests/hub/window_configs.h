// Small configs of families whose layers with a window have parts of their own, or of which some
// choose blocks of keys, for configs.h.
#pragma once

#include <string>
#include <vector>

#include "model/config.h"

namespace moe::test {

// Layer 1 has no window, and so no sinks.
template <class Add>
void add_mimo(Add&& add) {
  const auto mimo = [](ModelConfig& c) {
    c.layers = 3;
    c.expert_width = c.head_width = 6;
    c.rotary_width = 2;
    c.attention_sinks = c.window_sinks = true;
  };
  for (const bool parts : {false, true})
    add("mimo_v2_flash", "deepseek-v3", [&](ModelConfig& c) {
      mimo(c);
      c.dense_first = 1;
      c.kv_heads = 4;
      c.full = {.kv_heads = 2};
      c.value_width = 3;
      c.value_factor = 0.707f;
      c.attention_window = 5;
      c.window_layers = {0, 2};
      c.window_rope_theta = 500;
      if (!parts) return;
      c.attention_bias = true;
      c.window_rotary_width = 6;
      c.rope_scaling = {.kind = RopeScaling::Kind::yarn,
                        .factor = 4,
                        .original_context = 8,
                        .attention_factor = 1.25f};
    });
  add("mimo_v2_flash", "deepseek-v3", mimo);  // without windows
}

// Those of Llama's kind in which some layers have a window.
template <class Add>
void add_plain_windows(Add&& add) {
  for (const bool windows : {true, false})
    add("ministral", "dense", [&](ModelConfig& c) {
      c.layers = 3;
      c.head_width = 6;
      if (!windows) return;
      c.attention_window = 5;
      c.window_layers = {0, 2};
    });
  for (const bool windows : {true, false})
    add("cwm", "dense", [&](ModelConfig& c) {
      c.layers = 3;
      c.head_width = 6;
      if (!windows) return;
      c.attention_window = 5;
      c.window_layers = {1, 2};
      c.rope_scaling = {.kind = RopeScaling::Kind::llama3, .factor = 8, .original_context = 8};
    });
}

template <class Add>
void add_laguna(Add&& add) {
  for (const bool windows : {true, false})
    add("laguna", "deepseek-v3", [&](ModelConfig& c) {
      c.layers = 3;
      c.dense_first = 1;
      c.expert_width = c.head_width = 6;
      c.shared_experts = 1;
      c.shared_width = 10;
      c.qk_norm = QkNorm::head;
      c.attention_gate = c.gate_softplus = true;
      c.rotary_width = 2;
      c.rope_scaling = {.kind = RopeScaling::Kind::yarn,
                        .factor = 4,
                        .original_context = 8,
                        .attention_factor = 1.25f};
      if (!windows) {
        c.attention_bias = c.attention_out_bias = true;
        return;
      }
      c.head_gates = true;
      c.attention_window = 5;
      c.window_layers = {1};
      c.window_rope_theta = 500;
      c.window_rotary_width = 6;
      c.full = {.heads = 2};
    });
}

// Layer 0 is dense and sees all tokens; or layer 1 is and does, or none is sparse. `all` ends with
// what `add` added last.
template <class Add, class List>
void add_minimax_m3(Add&& add, List& all) {
  for (const int kind : {0, 1, 2}) {
    add("minimax_m3_vl_text", "deepseek-v3", [&](ModelConfig& c) {
      c.layers = 3;
      if (kind == 1) c.moe_layers = {0, 2};
      else c.dense_first = 1;
      c.expert_width = c.head_width = 6;
      c.shared_experts = 1;
      c.shared_width = kind == 1 ? 10 : 6;
      c.qk_norm = QkNorm::head;
      c.norm_offset = true;
      c.act = ops::Act::swiglu_oai;
      c.rotary_width = 4;
      if (kind == 2) return;
      c.sparse = {.top = 128,
                  .heads = c.kv_heads,
                  .width = 4,
                  .block = 64,
                  .local = 1 + kind,
                  .whole_layers = {kind}};
    });
    all.back().config.routing.routed_scale = 2;
  }
}

// Its router is stages of a config's own. `all` ends with what `add` added last.
template <class Add, class List>
void add_flint(Add&& add, List& all) {
  for (const bool renormalise : {true, false}) {
    add("flint", "mixtral", [&](ModelConfig& c) {
      c.layers = 3;
      c.moe_layers = {1, 2};
      c.expert_width = c.head_width = 6;
      c.shared_experts = 1;
      c.shared_width = 10;
      c.qk_norm = QkNorm::head;
      c.attention_sinks = true;
      c.attention_bias = c.attention_out_bias = !renormalise;
      c.attention_window = 5;
      c.window_layers = {1};
      c.nope_layers = {0, 2};
    });
    RoutingOptions& routing = all.back().config.routing;
    routing.recipe = kCustom;
    routing.stages =
        std::string(R"({"losses":{"balance":{"counts":"all_choices","probs":"softmax"}},)") +
        R"("score":"raw","weigh":{"renormalise":)" + (renormalise ? "true" : "false") +
        R"(,"type":"sigmoids"}})";
  }
}

}  // namespace moe::test
