// The rows of family_mixers.h, of which families.h and dense_families.h make their own. Those of
// several families have the name of the first.
#pragma once

#include "hub/folder/family_mixers.h"

namespace moe {

// Layers of linear attention, or of LFM2's convolution (family_mixers.cpp).
void read_qwen3_next_mixers(const JsonReader&, ModelConfig&);
void write_qwen3_next_mixers(Json&, const ModelConfig&);
void read_kimi_mixers(const JsonReader&, ModelConfig&);
void write_kimi_mixers(Json&, const ModelConfig&);
std::string why_not_kimi_mixers(const ModelConfig&);
void read_olmo_mixers(const JsonReader&, ModelConfig&);
void write_olmo_mixers(Json&, const ModelConfig&);
std::string why_not_olmo_mixers(const ModelConfig&);
void read_lfm2_mixers(const JsonReader&, ModelConfig&);
void write_lfm2_mixers(Json&, const ModelConfig&);
// Of Ling 3.0 (family_ling.cpp) and of LFM3, which tells of windows too (family_lfm3.cpp).
void read_ling3(const JsonReader&, ModelConfig&);
void write_ling3(Json&, const ModelConfig&);
std::string why_not_ling3(const ModelConfig&);
void read_lfm3(const JsonReader&, ModelConfig&);
void write_lfm3(Json&, const ModelConfig&);
// Layers of a state space (family_states.cpp).
void read_granite_states(const JsonReader&, ModelConfig&);
void write_granite_states(Json&, const ModelConfig&);
std::string why_not_granite_states(const ModelConfig&);
void read_bamba_states(const JsonReader&, ModelConfig&);
void write_bamba_states(Json&, const ModelConfig&);
std::string why_not_bamba_states(const ModelConfig&);
void read_falcon_states(const JsonReader&, ModelConfig&);
void write_falcon_states(Json&, const ModelConfig&);
std::string why_not_falcon_states(const ModelConfig&);
// Layers of Jamba, of which one in so many has attention, and one in so many routes
// (family_jamba.cpp).
void read_jamba(const JsonReader&, ModelConfig&);
void write_jamba(Json&, const ModelConfig&);
std::string why_not_jamba(const ModelConfig&);
// Layers of lightning attention, and factors of residuals (family_lightning.cpp).
void read_lightning(const JsonReader&, ModelConfig&);
void write_lightning(Json&, const ModelConfig&);
std::string why_not_lightning(const ModelConfig&);
// Layers that are what mixes tokens alone or an FFN alone (family_halves.cpp).
void read_half_sizes(const JsonReader&, ModelConfig&);
void read_halves(const JsonReader&, ModelConfig&);
void write_halves(Json&, const ModelConfig&);
std::string why_not_halves(const ModelConfig&);

// "layer_types" tells which layers have linear attention, all but each fourth where it is missing.
inline constexpr FamilyMixers kQwen3NextMixers = {
    .kind = Mixer::linear, .read = read_qwen3_next_mixers, .write = write_qwen3_next_mixers};
// Decays and gates are made of few numbers; lists of layers count from 1.
inline constexpr FamilyMixers kKimiMixers = {.kind = Mixer::linear,
                                             .channel_decays = true,
                                             .read = read_kimi_mixers,
                                             .write = write_kimi_mixers,
                                             .why_not = why_not_kimi_mixers};
// They are made of the token, and "layer_group_size" may tell of layers.
inline constexpr FamilyMixers kLing3Mixers = {.kind = Mixer::linear,
                                              .channel_decays = true,
                                              .decay_floor = true,
                                              .read = read_ling3,
                                              .write = write_ling3,
                                              .why_not = why_not_ling3};
// Norms stand before sublayers in layers of linear attention, and elsewhere behind them;
// "linear_allow_neg_eigval" says how much strengths are.
inline constexpr FamilyMixers kOlmoHybridMixers = {.kind = Mixer::linear,
                                                   .known = {.states_pre_norm = true},
                                                   .read = read_olmo_mixers,
                                                   .write = write_olmo_mixers,
                                                   .why_not = why_not_olmo_mixers};
// A list of layers, or in the first configs their numbers, tells of convolutions.
inline constexpr FamilyMixers kLfm2Mixers = {
    .kind = Mixer::conv, .read = read_lfm2_mixers, .write = write_lfm2_mixers};
// The list also tells which of the others have a window.
inline constexpr FamilyMixers kLfm3Mixers = {
    .kind = Mixer::conv, .known = {.proportional = true}, .read = read_lfm3, .write = write_lfm3};
// "layer_types" tells of state spaces, "position_embedding_type" whether attention turns.
inline constexpr FamilyMixers kGraniteHybridMixers = {.kind = Mixer::scan,
                                                      .must = false,
                                                      .read = read_granite_states,
                                                      .write = write_granite_states,
                                                      .why_not = why_not_granite_states};
// All layers have one but those that "attn_layer_indices" lists, of whose heads half turns.
inline constexpr FamilyMixers kBambaMixers = {.kind = Mixer::scan,
                                              .read = read_bamba_states,
                                              .write = write_bamba_states,
                                              .why_not = why_not_bamba_states};
// Attention stands beside one in every layer.
inline constexpr FamilyMixers kFalconH1Mixers = {.kind = Mixer::scan,
                                                 .multipliers = true,
                                                 .known = {.scan_beside = true},
                                                 .read = read_falcon_states,
                                                 .write = write_falcon_states,
                                                 .why_not = why_not_falcon_states};
// Selective scans in all layers but each so manyth, of whose attention nothing turns.
inline constexpr FamilyMixers kJambaMixers = {.kind = Mixer::scan,
                                              .known = {.selective = true},
                                              .read = read_jamba,
                                              .write = write_jamba,
                                              .why_not = why_not_jamba};
// "layer_types" tells of lightning attention, and factors are of residuals, which norms give.
inline constexpr FamilyMixers kLightningMixers = {.kind = Mixer::lightning,
                                                  .must = false,
                                                  .multipliers = true,
                                                  .read = read_lightning,
                                                  .write = write_lightning,
                                                  .why_not = why_not_lightning};
// "hybrid_override_pattern" says of each layer what it is alone.
inline constexpr FamilyMixers kNemotronHMixers = {.kind = Mixer::scan,
                                                  .must = false,
                                                  .known = {.halves = true},
                                                  .read_sizes = read_half_sizes,
                                                  .read = read_halves,
                                                  .write = write_halves,
                                                  .why_not = why_not_halves};

}  // namespace moe
