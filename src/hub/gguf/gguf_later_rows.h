// Rows of the table of architectures (gguf_architectures.h) of families that came later, each of
// which no other family's models are written as; for gguf_architectures.cpp only. They are held to
// llama.cpp as llama_cpp_python 0.3.36 has it.
#pragma once

#include "hub/gguf/gguf_architectures.h"

namespace moe {

inline constexpr GgufArchitecture kLaterGgufRows[] = {
    {.name = "mimo2",
     .title = "MiMo-V2",
     .recipe = "deepseek-v3",
     .tensors = &kGgufTensors,
     .free_head_width = true,
     .fused_attention = &kGgufFusedTensors,
     .part_turns = true,
     .window_local = true,
     .mimo = true,
     .needs_head = true,
     .gating = GgufGating::sigmoid,
     .selection_bias = Biases::yes,
     .renormalises = true,
     .dense_first = true,
     .dense_by_tensors = true,
     .expert_width = "expert_feed_forward_length",
     .model_type = "mimo_v2_flash"},
    {.name = "laguna",
     .title = "Laguna",
     .recipe = "deepseek-v3",
     .tensors = &kGgufAfmoeTensors,
     .qk_norm = QkNorm::head,
     .attention_bias = Biases::any,
     .free_head_width = true,
     .part_turns = true,
     .window_local = true,
     .laguna = true,
     .gate = true,
     .gating = GgufGating::sigmoid,
     .selection_bias = Biases::yes,
     .renormalises = true,
     .weighs_as_said = true,
     .shared = SharedExperts::one,
     .dense_first = true,
     .expert_width = "expert_feed_forward_length",
     .model_type = "laguna"},
    {.name = "laguna",
     .title = "Laguna without windows",
     .recipe = "deepseek-v3",
     .tensors = &kGgufAfmoeTensors,
     .qk_norm = QkNorm::head,
     .attention_bias = Biases::any,
     .free_head_width = true,
     .part_turns = true,
     .laguna = true,
     .gate = true,
     .gating = GgufGating::sigmoid,
     .selection_bias = Biases::yes,
     .renormalises = true,
     .weighs_as_said = true,
     .shared = SharedExperts::one,
     .dense_first = true,
     .expert_width = "expert_feed_forward_length",
     .model_type = "laguna"},
};

}  // namespace moe
