#include "hub/folder/rope_fields.h"

#include <fmt/ranges.h>

#include <charconv>
#include <cmath>

#include "hub/folder/field_visitors.h"

namespace moe {
namespace {

using Kind = RopeScaling::Kind;

constexpr const char *kShare = "partial_rotary_factor",
                     *kFirstContext = "original_max_position_embeddings",
                     *kShortFactor = "short_mscale", *kLongFactor = "long_mscale",
                     *kFactorOfBoth = "attention_factor", *kGrowth = "llama_4_scaling_beta",

                     *kAxes = "mrope_section";

// The place in the list is the Kind.
const std::vector<std::string> kKinds = {"default",      "linear",   "llama3", "yarn",
                                         "proportional", "longrope", "dynamic"};

float number(const JsonReader& reader, const char* key) {
  return static_cast<float>(reader.get_in<double>(key, FLT_MIN, FLT_MAX));
}
// A number that counts as absent when it is 0, as in transformers.
float number_or(const JsonReader& reader, const char* key, float otherwise) {
  const auto x = static_cast<float>(reader.get_in<double>(key, 0, FLT_MAX, 0));
  return x > 0 ? x : otherwise;
}

// Qwen2-VL calls it by the axes of its pictures that nothing is scaled
// (transformers:qwen2_vl/configuration_qwen2_vl.py).
std::string kind_name(const JsonReader& reader, const char* key, const std::string& otherwise) {
  const std::string name = reader.get<std::string>(key, otherwise);
  return name == "mrope" && reader.has(kAxes) ? kKinds[0] : name;
}

Kind kind_of(const JsonReader& reader) {
  const char* key = reader.has("rope_type") ? "rope_type" : "type";
  const std::string name = kind_name(reader, key, kKinds[0]);
  if (reader.has("rope_type") && kind_name(reader, "type", name) != name)
    fail("{}: \"rope_type\" is {}, but \"type\" is {}; make them equal", reader.where(),
         text_of(reader, "rope_type"), text_of(reader, "type"));
  for (size_t i = 0; i < kKinds.size(); ++i)
    if (kKinds[i] == name) return static_cast<Kind>(i);
  fail("{}: \"{}\" is {}; rotary frequencies are read as one of {}", reader.where(), key,
       text_of(reader, key), fmt::join(kKinds, ", "));
}

// transformers:modeling_rope_utils.py, after arXiv 2309.00071 section 3.4: scores grow with the
// logarithm of the factor.
float yarn_attention_factor(const JsonReader& reader, float factor) {
  const auto mscale = [&](double m) {
    return factor <= 1 ? 1.0 : 0.1 * m * std::log(static_cast<double>(factor)) + 1;
  };
  const float over = number_or(reader, "mscale", 0), under = number_or(reader, "mscale_all_dim", 0);
  const double derived = over > 0 && under > 0 ? mscale(over) / mscale(under) : mscale(1);
  if (reader.has("attention_factor")) return number(reader, "attention_factor");
  if (!(derived >= FLT_MIN && derived <= FLT_MAX))
    fail("{}: \"mscale\" is {} and \"mscale_all_dim\" {}, which scores cannot be scaled by",
         reader.where(), over, under);
  return static_cast<float>(derived);
}

// Phi-3's (transformers:modeling_rope_utils.py, _compute_longrope_parameters): the context that was
// trained first stands beside the scaling or in it.
void read_contexts(const JsonReader& reader, const JsonReader& config, RopeScaling& s) {
  s.original_context =
      (config.has(kFirstContext) ? config : reader).get_in<int64_t>(kFirstContext, 2, kMaxSize);
  if (reader.get<int64_t>(kFirstContext, s.original_context) != s.original_context)
    fail("{}: \"{}\" is {}, but {} stands beside it; make them equal", reader.where(),
         kFirstContext, text_of(reader, kFirstContext), s.original_context);
  const auto original = static_cast<double>(s.original_context);
  const double context =
      static_cast<double>(config.get_in<int64_t>("max_position_embeddings", 1, kMaxSize));
  const double factor = reader.get_in<double>("factor", FLT_MIN, FLT_MAX, context / original);
  s.attention_factor =
      reader.has(kFactorOfBoth) ? number(reader, kFactorOfBoth)
      : factor <= 1             ? 1
                    : static_cast<float>(std::sqrt(1 + std::log(factor) / std::log(original)));
  s.long_attention_factor = s.attention_factor;
}

// As Phi-3.5-MoE has it (transformers:phimoe/modeling_phimoe.py), or Phi-3 where a config is given.
void read_longrope(const JsonReader& reader, const JsonReader* config, RopeScaling& s) {
  for (const auto& [key, factors] :
       {std::pair{"short_factor", &s.short_factors}, {"long_factor", &s.long_factors}}) {
    for (const double x : reader.get<std::vector<double>>(key)) {
      if (!(x >= FLT_MIN && x <= FLT_MAX))
        fail("{}: \"{}\" has a factor of {}; each divides a frequency, so it must be above 0",
             reader.where(), key, x);
      factors->push_back(static_cast<float>(x));
    }
  }
  if (config != nullptr) return read_contexts(reader, *config, s);
  s.original_context = reader.get_in<int64_t>(kFirstContext, 1, kMaxSize);
  s.attention_factor = number(reader, kShortFactor);
  s.long_attention_factor = number(reader, kLongFactor);
  // not read by the family's code
  for (const char* key : {kFactorOfBoth, "factor"}) reader.get<double>(key, 1);
}

// `contexts`: the config, where it gives the factor of long texts.
RopeScaling scaling_of(const JsonReader& reader, const JsonReader* contexts = nullptr) {
  RopeScaling s;
  s.kind = kind_of(reader);
  if (s.kind == Kind::none) return s;
  if (s.kind == Kind::proportional) {
    s.factor = static_cast<float>(reader.get_in<double>("factor", FLT_MIN, FLT_MAX, 1));
    s.share = static_cast<float>(reader.get_in<double>(kShare, FLT_MIN, 1, 1));
    return s;
  }
  if (s.kind == Kind::longrope) {
    read_longrope(reader, contexts, s);
    return s;
  }
  s.factor = number(reader, "factor");
  if (s.kind == Kind::linear || s.kind == Kind::dynamic) return s;
  s.original_context = reader.get_in<int64_t>(kFirstContext, 1, kMaxSize);
  if (s.kind == Kind::llama3) {
    s.low_freq_factor = number(reader, "low_freq_factor");
    s.high_freq_factor = number(reader, "high_freq_factor");
    if (s.high_freq_factor < s.low_freq_factor)
      fail("{}: \"high_freq_factor\" is {}, it must be at least \"low_freq_factor\"",
           reader.where(), text_of(reader, "high_freq_factor"));
    return s;
  }
  s.beta_fast = number_or(reader, "beta_fast", s.beta_fast);
  s.beta_slow = number_or(reader, "beta_slow", s.beta_slow);
  s.attention_factor = yarn_attention_factor(reader, s.factor);
  s.truncate = reader.get<bool>("truncate", true);
  s.score_mscale = number_or(reader, "mscale_all_dim", 0);
  return s;
}

void refuse_other_share(const JsonReader& rope, double share) {
  if (rope.get<double>(kShare, share) != share)
    fail("{}: \"{}\" is {}; {}", rope.where(), kShare, text_of(rope, kShare),
         share == 1 ? "heads of this family are rotated whole, only 1"
                    : "it stands elsewhere with another value, make them equal");
  // Of axes of pictures; in a text all of them count the same.
  for (const char* key : {kAxes, "mrope_interleaved"})
    if (rope.has(key)) rope.value(key);
  if (rope.has(kAxes)) rope.has("interleaved");  // these axes are
  rope.refuse_unknown();
}

bool written_before_theta(const JsonReader& reader) {
  const std::string version = reader.get<std::string>("transformers_version", "");
  int major = 0, minor = 0;
  const char* end = version.data() + version.size();
  const auto [dot, error] = std::from_chars(version.data(), end, major);
  if (error != std::errc() || dot == end || *dot != '.' ||
      std::from_chars(dot + 1, end, minor).ec != std::errc())
    return false;
  return major < 4 || (major == 4 && minor < 33);
}

float theta_beside(const JsonReader& reader) {
  if (!reader.has("rope_theta") && written_before_theta(reader)) return 10000;
  return static_cast<float>(reader.get_in<double>("rope_theta", 0, FLT_MAX));
}

RopeScaling scaling_beside(const JsonReader& reader, double share, const JsonReader* contexts) {
  if (!reader.has("rope_scaling")) return {};
  const JsonReader scaling = reader.object("rope_scaling");
  const RopeScaling s = scaling_of(scaling, contexts);
  if (scaling.has("rope_theta") && reader.has("rope_theta") &&
      scaling.get<double>("rope_theta") != reader.get<double>("rope_theta"))
    fail("{}: \"rope_theta\" is {}, but \"rope_scaling\" says {}; make them equal", reader.where(),
         text_of(reader, "rope_theta"), text_of(scaling, "rope_theta"));
  refuse_other_share(scaling,
                     s.kind == Kind::proportional ? scaling.get<double>(kShare, 1) : share);
  return s;
}

}  // namespace

RopeScaling read_rope_scaling(const JsonReader& reader, double share) {
  return scaling_beside(reader, share, nullptr);
}

namespace {

void read_rope_as_written(const JsonReader& reader, ModelConfig& c, double share,
                          const JsonReader* contexts) {
  c.rope_scaling = scaling_beside(reader, share, contexts);
  if (!reader.has("rope_parameters")) {
    c.rope_theta = theta_beside(reader);
    return;
  }
  const JsonReader rope = reader.object("rope_parameters");
  const RopeScaling scaling = scaling_of(rope, contexts);
  if (reader.has("rope_scaling") && rope_scaling_json(scaling) != rope_scaling_json(c.rope_scaling))
    fail("{}: \"rope_scaling\" is {}, but \"rope_parameters\" is {}; make them equal",
         reader.where(), text_of(reader, "rope_scaling"), text_of(reader, "rope_parameters"));
  c.rope_scaling = scaling;
  c.rope_theta = rope.has("rope_theta") || !reader.has("rope_theta")
                     ? static_cast<float>(rope.get_in<double>("rope_theta", 0, FLT_MAX))
                     : theta_beside(reader);
  if (c.query_growth.present())  // the last is not read by the family's code
    for (const char* key : {kGrowth, kFirstContext, "max_position_embeddings"}) rope.has(key);
  refuse_other_share(rope, share);
  if (reader.has("rope_theta") &&
      static_cast<float>(reader.get<double>("rope_theta")) != c.rope_theta)
    fail("{}: \"rope_theta\" is {}, but \"rope_parameters\" says {}; make them equal",
         reader.where(), text_of(reader, "rope_theta"), text_of(rope, "rope_theta"));
}

}  // namespace

void read_query_growth(const JsonReader& reader, ModelConfig& c) {
  const JsonReader rope = reader.object("rope_parameters");
  c.query_growth = {number(rope, kGrowth), rope.get_in<int64_t>(kFirstContext, 1, kMaxSize)};
}

void write_query_growth(Json& json, const ModelConfig& c) {
  json.erase("rope_scaling");  // which transformers would take in place of all that stands here
  FieldWriter fields(json["rope_parameters"]);
  fields.number(kGrowth, c.query_growth.beta, 0);
  fields.size(kFirstContext, c.query_growth.context, 1);
}

double read_rotary_share(const JsonReader& reader, std::optional<double> otherwise) {
  const JsonReader of = !reader.has(kShare) && reader.has("rope_parameters")
                            ? reader.object("rope_parameters")
                            : reader;
  return otherwise ? of.get_in<double>(kShare, 0, 1, *otherwise) : of.get_in<double>(kShare, 0, 1);
}

namespace {

// Hunyuan's: a base that is stretched for all lengths (transformers:hunyuan_v1_moe/
// modeling_hunyuan_v1_moe.py, compute_ntk_alpha_rope_parameters), written as one that is read so.
bool read_stretched_base(const JsonReader& reader, ModelConfig& c) {
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!reader.has(key)) continue;
    const JsonReader rope = reader.object(key);
    if (!rope.has("alpha")) continue;
    const char* kind = rope.has("rope_type") ? "rope_type" : "type";
    const double alpha = rope.get_in<double>("alpha", 1, FLT_MAX),
                 width = static_cast<double>(c.head_width),
                 base = rope.has("rope_theta")
                            ? rope.get_in<double>("rope_theta", FLT_MIN, FLT_MAX)
                            : reader.get_in<double>("rope_theta", FLT_MIN, FLT_MAX);
    if (rope.get<std::string>(kind) != "dynamic" || rope.get<double>("factor", 1) != 1)
      fail("{}: \"alpha\" stands beside another scaling than \"dynamic\" by 1", rope.where());
    for (const char* unused : {"beta_fast", "beta_slow", "mscale", "mscale_all_dim", "type"})
      rope.has(unused);
    rope.refuse_unknown();
    reader.has("rope_theta");
    const double stretched = base * std::pow(alpha, width / (width - 2));
    if (!(stretched >= FLT_MIN && stretched <= FLT_MAX))
      fail("{}: \"alpha\" {} stretches the base {} beyond what a number holds", rope.where(), alpha,
           base);
    c.rope_theta = static_cast<float>(stretched);
    return true;
  }
  return false;
}

}  // namespace

void read_rope(const JsonReader& reader, ModelConfig& c, double share, bool by_contexts) {
  if (c.qk_norm_turned && read_stretched_base(reader, c)) return;
  if (by_contexts) reader.has(kFirstContext);  // written where nothing is scaled too
  read_rope_as_written(reader, c, share, by_contexts ? &reader : nullptr);
  if (!c.latent.present()) c.rope_scaling.score_mscale = 0;
}

namespace {

constexpr const char *kLayersRope = "rope_parameters", *kFullRope = "full_attention",
                     *kWindowRope = "sliding_attention", *kLocalBase = "rope_local_base_freq";

bool says_layers(const JsonReader& reader) {
  if (!reader.has(kLayersRope)) return false;
  const JsonReader rope = reader.object(kLayersRope);
  return rope.has(kFullRope) || rope.has(kWindowRope);
}

}  // namespace

void read_rope_by_layers(const JsonReader& reader, ModelConfig& c, bool local) {
  float window = 0;
  if (says_layers(reader)) {
    const JsonReader rope = reader.object(kLayersRope), full = rope.object(kFullRope),
                     windowed = rope.object(kWindowRope);
    c.rope_scaling = scaling_of(full);
    c.rope_theta = number(full, "rope_theta");
    window = number(windowed, "rope_theta");
    if (kind_of(windowed) != Kind::none)
      fail("{}: \"rope_type\" is {}; layers with a window turn unscaled, only \"default\"",
           windowed.where(), text_of(windowed, "rope_type"));
    const bool part = c.rope_scaling.kind == Kind::proportional;
    refuse_other_share(full, part ? full.get<double>(kShare, 1) : 1);
    refuse_other_share(windowed, 1);
    rope.refuse_unknown();
    for (const auto& [key, base] : {std::pair{"rope_theta", c.rope_theta}, {kLocalBase, window}})
      if (reader.has(key) && static_cast<float>(reader.get<double>(key)) != base)
        fail("{}: \"{}\" is {}, but \"{}\" says {}; make them equal", reader.where(), key,
             text_of(reader, key), kLayersRope, base);
  } else {
    read_rope(reader, c);
    window = local ? static_cast<float>(reader.get_in<double>(kLocalBase, FLT_MIN, FLT_MAX, 10000))
                   : c.rope_theta;
  }
  c.rope_scaling.score_mscale = 0;
  // Where they turn as the others do nothing needs to be said.
  const bool other = window != c.rope_theta || c.rope_scaling.kind != Kind::none;
  c.window_rope_theta = other && c.attention_window > 0 ? window : 0;
}

void write_rope_by_layers(Json& json, const ModelConfig& c, bool beside) {
  const float window = c.window_rope_theta > 0 ? c.window_rope_theta : c.rope_theta;
  Json full = rope_scaling_json(c.rope_scaling), windowed = {{"rope_type", "default"}};
  FieldWriter(full).number("rope_theta", c.rope_theta, 0);
  FieldWriter(windowed).number("rope_theta", window, 0);
  if (beside) {
    json["rope_theta"] = full["rope_theta"];
    json[kLocalBase] = windowed["rope_theta"];
  }
  json[kLayersRope] = {{kFullRope, full}, {kWindowRope, windowed}};
}

namespace {

// What layers of a kind turn by, and how many numbers of a head.
struct RopeOfKind {
  RopeScaling scaling;
  float theta = 0;
  int64_t turning = 0;
};

int64_t turning_of(const JsonReader& reader, const ModelConfig& c) {
  const auto share = reader.get_in<double>(kShare, 0, 1);
  const auto turning = static_cast<int64_t>(static_cast<double>(c.head_width) * share);
  if (turning < 2)
    fail("{}: \"{}\" is {}; of a head of {} no pair would turn", reader.where(), kShare, share,
         c.head_width);
  return turning;
}

RopeOfKind read_kind(const JsonReader& rope, const ModelConfig& c, const char* kind) {
  const JsonReader of = rope.object(kind);
  RopeOfKind read = {.theta = number(of, "rope_theta"), .turning = turning_of(of, c)};
  if (kind_of(of) == Kind::proportional)
    fail("{}: \"rope_type\" is {}; it says a share of a head in another way", of.where(),
         text_of(of, "rope_type"));
  read.scaling = scaling_of(of);
  refuse_other_share(of, of.get<double>(kShare));
  return read;
}

// MiMo's first (huggingface XiaomiMiMo/MiMo-V2-Flash).
constexpr const char* kWindowTheta = "swa_rope_theta";

}  // namespace

void read_rope_by_parts(const JsonReader& reader, ModelConfig& c) {
  RopeOfKind full, windowed;
  if (reader.has(kLayersRope) || !reader.has(kWindowTheta)) {
    const JsonReader rope = reader.object(kLayersRope);
    full = read_kind(rope, c, kFullRope);
    windowed = read_kind(rope, c, kWindowRope);
    rope.has(kFirstContext);  // some write it beside the kinds too
    rope.refuse_unknown();
    for (const auto& [key, base] :
         {std::pair{"rope_theta", full.theta}, {kWindowTheta, windowed.theta}})
      if (reader.has(key) && static_cast<float>(reader.get<double>(key)) != base)
        fail("{}: \"{}\" is {}, but \"{}\" says {}; make them equal", reader.where(), key,
             text_of(reader, key), kLayersRope, base);
    if (reader.has(kShare) && turning_of(reader, c) != full.turning)
      fail("{}: \"{}\" is {}, but \"{}\" says otherwise; make them equal", reader.where(), kShare,
           text_of(reader, kShare), kLayersRope);
    if (windowed.scaling.kind != Kind::none)
      fail("{}: layers with a window turn unscaled, only \"default\"", rope.where());
  } else {
    const int64_t turning = turning_of(reader, c);
    full = {.theta = number(reader, "rope_theta"), .turning = turning};
    windowed = {.theta = number(reader, kWindowTheta), .turning = turning};
  }
  full.scaling.score_mscale = 0;
  c.rope_scaling = full.scaling;
  c.rope_theta = full.theta;
  c.rotary_width = full.turning < c.head_width ? full.turning : 0;
  if (c.attention_window == 0) return;
  const bool parts = windowed.turning != full.turning;
  if (parts) c.window_rotary_width = windowed.turning;
  if (parts || windowed.theta != full.theta || full.scaling.kind != Kind::none)
    c.window_rope_theta = windowed.theta;
}

void read_rope_of_kind(const JsonReader& rope, float& theta, RopeScaling& scaling, double share) {
  scaling = scaling_of(rope);
  scaling.score_mscale = 0;
  if (theta == 0 || rope.has("rope_theta")) theta = number(rope, "rope_theta");
  refuse_other_share(rope, share);
}

double share_of_head(int64_t turning, int64_t head_width) {
  const auto width = static_cast<double>(turning), head = static_cast<double>(head_width);
  const double share = width / head;
  return static_cast<int64_t>(head * share) == turning ? share : std::nextafter(share, 1.0);
}

void write_rope_by_parts(Json& json, const ModelConfig& c) {
  write_rope_by_layers(json, c, false);
  const int64_t full = c.rotary_width > 0 ? c.rotary_width : c.head_width,
                windowed = c.window_rotary_width > 0 ? c.window_rotary_width : full;
  json[kLayersRope][kFullRope][kShare] = share_of_head(full, c.head_width);
  json[kLayersRope][kWindowRope][kShare] = share_of_head(windowed, c.head_width);
}

Json rope_scaling_json(const RopeScaling& s) {
  Json json = {{"rope_type", kKinds.at(static_cast<size_t>(s.kind))}};
  if (s.kind == Kind::none) return json;
  FieldWriter fields(json);
  if (s.kind == Kind::proportional) {
    if (s.factor != 1) fields.number("factor", s.factor, 0);
    fields.number(kShare, s.share, 0);
    return json;
  }
  if (s.kind == Kind::longrope) {
    for (const auto& [key, factors] :
         {std::pair{"short_factor", &s.short_factors}, {"long_factor", &s.long_factors}}) {
      json[key] = Json::array();
      for (const float x : *factors) json[key].push_back(shortest_decimal(x));
    }
    fields.size(kFirstContext, s.original_context, 1);
    fields.number(kShortFactor, s.attention_factor, 0);
    fields.number(kLongFactor, s.long_attention_factor, 0);
    return json;
  }
  fields.number("factor", s.factor, 0);
  if (s.kind == Kind::linear || s.kind == Kind::dynamic) return json;
  fields.size(kFirstContext, s.original_context, 1);
  if (s.kind == Kind::llama3) {
    fields.number("low_freq_factor", s.low_freq_factor, 0);
    fields.number("high_freq_factor", s.high_freq_factor, 0);
    return json;
  }
  fields.number("beta_fast", s.beta_fast, 0);
  fields.number("beta_slow", s.beta_slow, 0);
  fields.number("attention_factor", s.attention_factor, 0);
  fields.flag("truncate", s.truncate);
  if (s.score_mscale > 0) fields.number("mscale_all_dim", s.score_mscale, 0);
  return json;
}

bool is_by_contexts(const RopeScaling& s) {
  return s.kind == Kind::none ||
         (s.kind == Kind::longrope && s.attention_factor == s.long_attention_factor &&
          s.original_context > 1);
}

void say_by_contexts(Json& json, const RopeScaling& s) {
  if (s.kind != Kind::longrope) return;
  json[kFirstContext] = s.original_context;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    json[key][kFactorOfBoth] = json[key][kShortFactor];
    for (const char* of_one : {kShortFactor, kLongFactor}) json[key].erase(of_one);
  }
}

void write_rope(Json& json, const ModelConfig& c, double share) {
  FieldWriter(json).number("rope_theta", c.rope_theta, 0);
  Json rope = rope_scaling_json(c.rope_scaling);
  if (c.rope_scaling.kind != Kind::none) json["rope_scaling"] = rope;
  rope["rope_theta"] = json["rope_theta"];
  if (share != 1) json[kShare] = rope[kShare] = share;
  json["rope_parameters"] = std::move(rope);
}

}  // namespace moe
