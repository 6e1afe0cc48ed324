// The keys that say what turns with the positions in the families: how much of a head, in which
// layers, and by which frequencies, of which rope_fields.h has the forms.
#include <optional>

#include "hub/folder/family_parts.h"
#include "hub/folder/rope_fields.h"

namespace moe {
namespace {

constexpr const char* kRotaryDim = "rotary_dim";

// The share of a head that turns where the config says none; empty: it has to.
std::optional<double> share_otherwise(const JsonReader& reader, const Family& f) {
  switch (f.rotary) {
    case FamilyRotary::half: return 0.5;
    case FamilyRotary::quarter: return 0.25;
    case FamilyRotary::said: break;
    default: return 1;
  }
  return reader.has(kRotaryDim) ? std::optional(1.0) : std::nullopt;
}

// Granite's (transformers:granitemoe_swa/modeling_granitemoe_swa.py): of each layer the base, which
// goes before the one that is said of all.
constexpr const char* kBases = "layer_rope_theta";

void read_bases(const JsonReader& reader, ModelConfig& c) {
  if (!reader.has(kBases)) return;
  const auto bases = reader.get<std::vector<double>>(kBases);
  if (static_cast<int64_t>(bases.size()) != c.layers)
    fail("{}: \"{}\" lists {} layers, \"num_hidden_layers\" is {}", reader.where(), kBases,
         bases.size(), c.layers);
  double one = 0;
  for (int64_t i = 0; i < c.layers; ++i) {
    const double base = bases[static_cast<size_t>(i)];
    if (base == 0) {
      c.nope_layers.push_back(i);
      continue;
    }
    if (!(base >= FLT_MIN && base <= FLT_MAX) || (one > 0 && base != one))
      fail("{}: \"{}\" is {} at layer {}; layers that turn have one base here, above 0",
           reader.where(), kBases, base, i);
    one = base;
  }
  if (one > 0) c.rope_theta = static_cast<float>(one);
}

void write_bases(Json& json, const ModelConfig& c) {
  const Json base = json["rope_theta"];
  json[kBases] = Json::array();
  for (int64_t i = 0; i < c.layers; ++i)
    json[kBases].push_back(c.attention(i).rotary_width > 0 ? base : Json(0.0));
}

// OLMo Hybrid's base of rotary angles (transformers:olmo_hybrid/configuration_olmo_hybrid.py),
// which may stand there as null: then nothing turns. Fails where it stands nowhere.
constexpr const char *kRopeBase = "rope_theta", *kRopeObject = "rope_parameters";

bool read_null_base(const JsonReader& reader, ModelConfig& c) {
  bool stands_there = stands(reader, kRopeBase);
  const bool turns = reader.has(kRopeBase);
  if (reader.has(kRopeObject)) {
    const JsonReader rope = reader.object(kRopeObject);
    if (rope.has(kRopeBase)) return false;
    if (stands(rope, kRopeBase)) {
      if (turns) refuse(reader, kRopeBase, "\"rope_parameters\" says null; make them equal");
      stands_there = true;
    }
    rope.has("rope_type");
    if (stands_there && !turns) rope.refuse_unknown();
  }
  if (turns) return false;
  if (!stands_there)
    need_to_stand(reader, kRopeBase, "the base of rotary angles, or null for none");
  if (reader.has("rope_scaling"))
    refuse(reader, "rope_scaling", "nothing turns that it could scale");
  nothing_turns(c);
  return true;
}

void write_null_base(Json& json) {
  json[kRopeBase] = nullptr;
  json[kRopeObject] = {{kRopeBase, nullptr}, {"rope_type", "default"}};
}

// The share that reads back as the width.
double rotary_share(const ModelConfig& c) {
  if (c.latent.present() || c.rotary_width == 0) return 1;
  return share_of_head(c.rotary_width, c.head_width);
}

}  // namespace

double read_rotary(const JsonReader& reader, ModelConfig& c, const Family& f) {
  double share = 1;
  if (f.rotary == FamilyRotary::none) nothing_turns(c);
  const auto turns = static_cast<double>(c.rotary_width);
  if (f.latent_head_dim == LatentHeadDim::whole) return turns / static_cast<double>(c.head_width);
  if (f.latent_head_dim == LatentHeadDim::linear)
    return turns / static_cast<double>(c.linear.key_width);
  if (f.rotary_share() || f.rotary_dim()) {
    share = read_rotary_share(reader, share_otherwise(reader, f));
    c.rotary_width = static_cast<int64_t>(static_cast<double>(c.head_width) * share);
    if (f.rotary_dim() && reader.has(kRotaryDim)) {
      const auto width = reader.get_in<int64_t>(kRotaryDim, 2, c.head_width);
      const bool both = f.rotary == FamilyRotary::said && reader.has("partial_rotary_factor");
      if ((share != 1 || both) && width != c.rotary_width)
        refuse(reader, kRotaryDim, "it does not go with \"partial_rotary_factor\"");
      c.rotary_width = width;
    }
    if (c.rotary_width < 2)
      fail("{}: \"partial_rotary_factor\" is {}; of a head of {} no pair would turn",
           reader.where(), share, c.head_width);
    if (c.rotary_width == c.head_width) c.rotary_width = 0;
  }
  if (f.rotary != FamilyRotary::by_layer) return share;
  constexpr const char *kTurning = "no_rope_layers", *kTurningEach = "no_rope_layer_interval";
  const bool listed = reader.has(kTurning) && !(f.llama4 && reader.value(kTurning).empty());
  const auto interval = listed ? reader.get_in<int64_t>(kTurningEach, 1, kMaxLayers, 1)
                               : reader.get_in<int64_t>(kTurningEach, 1, kMaxLayers);
  std::vector<int64_t> turning;  // of each layer: 1 where it turns
  if (listed) turning = reader.get<std::vector<int64_t>>(kTurning);
  else
    for (int64_t i = 0; i < c.layers; ++i) turning.push_back((i + 1) % interval != 0);
  if (static_cast<int64_t>(turning.size()) < c.layers)
    fail("{}: \"{}\" lists {} layers, \"num_hidden_layers\" is {}", reader.where(), kTurning,
         turning.size(), c.layers);
  for (int64_t i = 0; i < c.layers; ++i)
    if (turning[static_cast<size_t>(i)] == 0) c.nope_layers.push_back(i);
  return share;
}

void read_frequencies(const JsonReader& reader, ModelConfig& c, const Family& f, double share) {
  if (f.window_rope == WindowRope::listed)  // has to stand there
    reader.object("rope_parameters").object("full_attention");
  if (f.query_growth) read_query_growth(reader, c);
  if (f.rotary == FamilyRotary::none ||
      (f.rotary == FamilyRotary::null_base && read_null_base(reader, c)))
    c.rope_scaling = {};
  else if (f.window_rope == WindowRope::same) read_rope(reader, c, share, f.longrope);
  else if (f.window_rope == WindowRope::parts) read_rope_by_parts(reader, c);
  else read_rope_by_layers(reader, c, f.window_rope == WindowRope::local);
  if (f.rotary == FamilyRotary::bases) read_bases(reader, c);
}

void write_rotary(Json& json, const ModelConfig& c, const Family& f) {
  if (f.rotary == FamilyRotary::none) return;
  if (f.rotary == FamilyRotary::null_base && !c.attention_turns()) return write_null_base(json);
  const double share = rotary_share(c);
  if (f.window_rope == WindowRope::same) write_rope(json, c, share);
  else if (f.window_rope == WindowRope::parts) write_rope_by_parts(json, c);
  else write_rope_by_layers(json, c, f.window_rope != WindowRope::listed);
  if (f.longrope) say_by_contexts(json, c.rope_scaling);
  if (f.query_growth) write_query_growth(json, c);
  if (f.rotary_share()) json["partial_rotary_factor"] = share;
  if (f.rotary == FamilyRotary::dim)
    json[kRotaryDim] = c.rotary_width > 0 ? c.rotary_width : c.head_width;
  if (f.rotary == FamilyRotary::bases) write_bases(json, c);
  if (f.rotary != FamilyRotary::by_layer) return;
  std::vector<int64_t> turning(static_cast<size_t>(c.layers), 1);
  for (const int64_t layer : c.nope_layers) turning[static_cast<size_t>(layer)] = 0;
  json["no_rope_layers"] = turning;
}

std::string why_not_rotary(const ModelConfig& c, const Family& f) {
  if (f.query_growth && !c.query_growth.present()) return "its queries do not grow";
  const int64_t scaled = c.rope_scaling.original_context;  // one key says both
  if (f.query_growth && scaled > 0 && scaled != c.query_growth.context)
    return "its queries grow by another context than the one that frequencies are scaled from";
  const bool parts = f.window_rope == WindowRope::parts,
             part = f.rotary_share() || f.rotary_dim() || parts,
             plain = c.window_rope_theta == c.rope_theta ||
                     (c.window_rope_theta == 0 && c.rope_scaling.kind == RopeScaling::Kind::none);
  if (c.window_rope_theta > 0 && f.window_rope == WindowRope::same)
    return "layers with a window turn by other frequencies";
  if (f.window_rope == WindowRope::plain && !plain)
    return "layers with a window turn by frequencies that are no part of this family";
  if ((parts || f.window_rope == WindowRope::listed) && c.attention_window > 0 && !plain &&
      c.window_rope_theta == 0)
    return "layers with a window turn by scaled frequencies";
  if (c.rotary_width > 0 && !part && !f.latent()) return "only a part of each head turns";
  if (f.longrope && !is_by_contexts(c.rope_scaling))
    return "its rotary frequencies are scaled in another way than for long texts";
  if (f.rotary == FamilyRotary::none)
    return c.rope_scaling.kind == RopeScaling::Kind::none ? ""
                                                          : "its rotary frequencies are scaled";
  if (f.rotary == FamilyRotary::windowed ||
      (f.rotary == FamilyRotary::windowed_or_all && c.attention_window > 0))
    return why_not_windowed_turning(c, f);
  return c.nope_layers.empty() || f.may_stand() ? "" : "in some of its layers nothing turns";
}

}  // namespace moe
