// Rotary embeddings in config.json: "rope_theta" and "rope_scaling" beside each other as
// transformers 4 has them, "rope_parameters" as transformers 5 has them, or both.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "core/json.h"
#include "model/config.h"

namespace moe {

// Fills rope_theta and rope_scaling; its score_mscale only in a model of latent attention. Fails
// where the key that says the base is missing, except in configs of transformers before 4.33, which
// had no such key: the base was 10000 for all of them. Scalings other than those of RopeScaling are
// refused by name. `share` of a head turns; a key that says another share is refused.
// `by_contexts`: what turns by frequencies of two lengths is multiplied by one factor, which the
// contexts give (Phi-3), not by one of each length (Phi-3.5-MoE).
void read_rope(const JsonReader&, ModelConfig&, double share = 1, bool by_contexts = false);
// Queries that grow, in "rope_parameters": to be read before the frequencies, which then take their
// keys as known, and written behind them.
void read_query_growth(const JsonReader&, ModelConfig&);
void write_query_growth(Json&, const ModelConfig&);
// Both forms.
void write_rope(Json&, const ModelConfig&, double share = 1);
// Whether a scaling can be said so, and what was written in the words of that.
bool is_by_contexts(const RopeScaling&);
void say_by_contexts(Json&, const RopeScaling&);

// The same where layers with a window, which the config has by now, turn by frequencies of their
// own: unscaled, with the same base or, `local`, the one of "rope_local_base_freq".
void read_rope_by_layers(const JsonReader&, ModelConfig&, bool local);
// `beside`: also in the two keys by which older configs said the bases.
void write_rope_by_layers(Json&, const ModelConfig&, bool beside);

// The same where either kind of layers says in "rope_parameters" how much of a head turns; the
// first configs of one family said all of it beside each other.
void read_rope_by_parts(const JsonReader&, ModelConfig&);
void write_rope_by_parts(Json&, const ModelConfig&);
// One kind of layers' frequencies; `theta` is what it was where the key is missing, and has to be
// there where that is 0. A key that says another share is refused.
void read_rope_of_kind(const JsonReader&, float& theta, RopeScaling&, double share);
// The share of a head that reads back as the width that turns.
double share_of_head(int64_t turning, int64_t head_width);

// The share of a head that turns, in whichever place it stands; fails where there is none
// otherwise.
double read_rotary_share(const JsonReader&, std::optional<double> otherwise);

// Only "rope_scaling", for files that keep the base elsewhere; none where it is missing.
RopeScaling read_rope_scaling(const JsonReader&, double share = 1);
Json rope_scaling_json(const RopeScaling&);

}  // namespace moe
