// What the files of the families' fields share; for them only.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hub/folder/config_fields.h"
#include "hub/folder/family.h"
#include "hub/folder/field_visitors.h"

namespace moe {

// Whether the key stands there, null too.
inline bool stands(const JsonReader& reader, const char* key) {
  if (reader.has(key)) return true;
  const std::vector<std::string> keys = reader.keys();
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

inline void need_to_stand(const JsonReader& reader, const char* key, const char* meaning) {
  if (!stands(reader, key)) fail("{}: \"{}\" is missing; add {}", reader.where(), key, meaning);
}

// What Gemma's embeddings, and those of a model with "mup_enabled", are multiplied by.
inline float root_of_width(const ModelConfig& c) { return std::sqrt(static_cast<float>(c.width)); }

// Below which logits are held; null: they are as they are.
inline constexpr const char* kLogitCap = "final_logit_softcapping";
inline float read_cap(const JsonReader& reader, const char* key) {
  return reader.has(key) ? static_cast<float>(reader.get_in<double>(key, FLT_MIN, FLT_MAX)) : 0;
}
inline void write_cap(Json& json, const char* key, float cap) {
  json[key] = nullptr;
  if (cap > 0) FieldWriter(json).number(key, cap, 0);
}

// Once it is known which layers have attention.
inline void nothing_turns(ModelConfig& c) {
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.mixer(i) == Mixer::attention) c.nope_layers.push_back(i);
}

// For switches that only few models turn on.
inline void need_off(const JsonReader& reader, const char* key, const char* why) {
  if (reader.get<bool>(key, false)) refuse(reader, key, why);
}

// Keys of ours beside the family's, left out at their usual value; other programs carry them along
// unread.
template <class Visitor, class Config>
void visit_extras(Visitor& v, Config& c) {
  v.extra("router_z_loss_coef", c.routing.coef.z, 0, 0);
  v.extra("initializer_cutoff", c.init.cut, 0, 0);
  v.extra("init_scale_residual", c.init.scale_residual, false);
}

// What attention sees where it is sparse, and which layers choose it (family_indexers.cpp).
void read_indexers(const JsonReader&, ModelConfig&, const Family&);
void write_indexers(Json&, const ModelConfig&, const Family&);
std::string why_not_indexers(const ModelConfig&, const Family&);

// Residual streams, and how far routed experts are held (family_streams.cpp).
void read_streams(const JsonReader&, ModelConfig&);
void write_streams(Json&, const ModelConfig&);
std::string why_not_streams(const ModelConfig&, const Family&);

// Which layers have windows (family_windows.cpp). Of a family in which only these turn also which
// layers do, once it is known which have one; and of one whose dense layers have a pattern of their
// own, that pattern.
void read_windows(const JsonReader&, ModelConfig&, const Family&);
void write_windows(Json&, const ModelConfig&, const Family&);
std::string why_not_windows(const ModelConfig&, const Family&);
void read_windowed_turning(const JsonReader&, ModelConfig&, const Family&);
std::string why_not_windowed_turning(const ModelConfig&, const Family&);
void write_dense_pattern(Json&, const ModelConfig&);

// How much of a head turns, in which layers (family_rotary.cpp), and by which frequencies: of these
// the share of a head that turns is a part. Returns that share.
double read_rotary(const JsonReader&, ModelConfig&, const Family&);
void read_frequencies(const JsonReader&, ModelConfig&, const Family&, double share);
void write_rotary(Json&, const ModelConfig&, const Family&);
std::string why_not_rotary(const ModelConfig&, const Family&);

// Whether layers mix tokens as the family's do, with gates and norms as these have them
// (family_mixers.cpp).
std::string why_not_mixers(const ModelConfig&, const Family&);
// Those layers whose type, of each of them listed under `key`, is one of `words`; the others' is
// one of `rest`. Errors name the first of either.
std::vector<int64_t> layers_of_type(const JsonReader&, const ModelConfig&, const char* key,
                                    const std::vector<std::string>& types,
                                    std::span<const char* const> words,
                                    std::span<const char* const> rest);
// Multipliers of the parts of Falcon-H1's layers (family_falcon.cpp).
void read_falcon_factors(const JsonReader&, ModelConfig&);
void write_falcon_factors(Json&, const ModelConfig&);
std::string why_not_falcon_factors(const Multipliers&);
// Multipliers in the words of MiniCPM3 (family_minicpm.cpp).
void read_minicpm(const JsonReader&, ModelConfig&);
void write_minicpm(Json&, const ModelConfig&);
std::string why_not_minicpm(const ModelConfig&);
// Refuses limits of a state space's steps.
void check_step_limits(const JsonReader&);
// Of state spaces whose values are said as a number of times as wide as the model.
std::string why_not_times(const ModelConfig&);

// What sets Gemma's families apart (family_gemma.cpp); of Gemma 4 also what layers without a window
// have, once it is known which these are.
void read_gemma(const JsonReader&, ModelConfig&, const Family&);
void read_gemma4_layers(const JsonReader&, ModelConfig&);
void write_gemma(Json&, const ModelConfig&, const Family&);
std::string why_not_gemma(const ModelConfig&, const Family&);

// What sets Llama 4 apart, once it is known which layers turn (family_llama4.cpp).
void read_llama4(const JsonReader&, ModelConfig&);
void write_llama4(Json&, const ModelConfig&);
// A list of 0 and 1 under `key`, one for each layer (family_mimo.cpp).
std::vector<int64_t> zeros_and_ones(const JsonReader&, const ModelConfig&, const char* key);
// What sets MiMo apart (family_mimo.cpp): its windows, and once these are known the rest of
// attention.
void read_mimo_windows(const JsonReader&, ModelConfig&);
void read_mimo(const JsonReader&, ModelConfig&);
void write_mimo(Json&, const ModelConfig&);
std::string why_not_mimo(const ModelConfig&);

// What sets MiniMax-M3 apart (family_minimax.cpp): which layers choose blocks of keys, and how.
void read_blocks(const JsonReader&, ModelConfig&);
void write_blocks(Json&, const ModelConfig&);

// What sets Laguna apart (family_laguna.cpp): gates and heads, once it is known which layers have a
// window.
void read_laguna(const JsonReader&, ModelConfig&);
void write_laguna(Json&, const ModelConfig&);

// What sets LongCat-Flash apart (family_longcat.cpp): its layers, each two of ours, and the factors
// of its latents.
void read_longcat_layers(const JsonReader&, ModelConfig&);
void read_longcat_latents(ModelConfig&);

// The experts, the layers that have them, and the router (family_experts.cpp).
void read_experts(const JsonReader&, ModelConfig&, const Family&);
// Of those before it only which layers are dense, the first ones.
void read_mlp_types(const JsonReader&, ModelConfig&, const FamilyExperts&);
void write_experts(Json&, const ModelConfig&, const Family&);
std::string why_not_experts(const ModelConfig&, const Family&);

}  // namespace moe
