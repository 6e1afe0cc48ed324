// The keys of the families' experts and routers.
#include "hub/folder/architectures.h"
#include "hub/folder/expert_rows.h"
#include "hub/folder/family_parts.h"

namespace moe {
namespace {

constexpr const char *kStep = "decoder_sparse_step", *kDenseLayers = "mlp_only_layers";

template <class Visitor, class Config>
void visit_shared_experts(Visitor& v, Config& c, const FamilyExperts& e) {
  if (e.one_shared_key) v.size(e.one_shared_key, c.shared_experts, 1, 1);
  switch (e.shared) {
    case FamilyShared::none:
    case FamilyShared::alike: return;
    case FamilyShared::gated:
    case FamilyShared::one:
    case FamilyShared::branch: return v.size(e.shared_key, c.shared_width, 1);
    case FamilyShared::one_or_none: return v.size(e.shared_key, c.shared_width, 0);
    case FamilyShared::counted: return v.size(e.shared_key, c.shared_experts, 1);
    case FamilyShared::counted_or_none:
      if (e.shared_needed) v.size(e.shared_key, c.shared_experts, 0);
      else v.size_or(e.shared_key, c.shared_experts, 0, 0);
  }
}

template <class Visitor, class Config>
void visit_expert_sizes(Visitor& v, Config& c, const FamilyExperts& e) {
  if (e.top_k_key) v.size_by(e.top_k_key, e.other_top_k_key, c.routing.top_k, 1);
  v.size(e.width_key, c.expert_width, 1);
  if (e.dense_as_experts) v.size_or(e.dense_width_key, c.dense_width, c.expert_width, 1);
  else if (e.dense_width_key) v.size(e.dense_width_key, c.dense_width, 1);
  visit_shared_experts(v, c, e);
  if (e.layers == MoeLayers::first) v.size(e.dense_first_key, c.dense_first, 0);
  if (e.layers == MoeLayers::first_or_list) v.size_or(e.dense_first_key, c.dense_first, 0, 0);
  if (!e.every_key) return;
  if (e.every_needed) v.size(e.every_key, c.moe_every, 1);
  else v.size_or(e.every_key, c.moe_every, 1, 1);
}

// transformers 5 writes "num_experts" under another name in one of two families that have it.
void read_expert_count(const JsonReader& reader, ModelConfig& c, const Family& f) {
  constexpr const char *kUsual = "num_experts", *kOther = "num_local_experts";
  const std::string_view key = f.experts->count_key;
  const bool other = key == kUsual && reader.has(kOther) && !reader.has(kUsual);
  FieldReader(reader).size(other ? kOther : f.experts->count_key, c.routing.experts, 1);
  // transformers 5.11 wrote it beside the family's own.
  if (f.indexed && reader.get<int64_t>(kUsual, c.routing.experts) != c.routing.experts)
    refuse(reader, kUsual, "\"n_routed_experts\" says another number; make them equal");
}

// Layers i with (i + 1) mod decoder_sparse_step == 0 that are not listed in mlp_only_layers route.
void read_qwen_layers(const JsonReader& reader, ModelConfig& c) {
  const auto step = reader.get_in<int64_t>(kStep, 1, kMaxLayers);
  std::vector<int64_t> dense;
  FieldReader(reader).layer_list(kDenseLayers, dense);
  if (step == 1 && dense.empty()) return;
  for (int64_t i = 0; i < c.layers; ++i)
    if ((i + 1) % step == 0 && std::find(dense.begin(), dense.end(), i) == dense.end())
      c.moe_layers.push_back(i);
  if (c.moe_layers.empty())
    fail(
        "{}: no layer routes by \"decoder_sparse_step\" and \"mlp_only_layers\"; such a model is a "
        "dense one",
        reader.where());
}

void write_qwen_layers(Json& json, const ModelConfig& c) {
  json[kStep] = 1;
  json[kDenseLayers] = Json::array();
  for (int64_t i = 0; i < c.layers; ++i)
    if (!c.is_moe(i)) json[kDenseLayers].push_back(i);
}

// "mlp_layer_types": of each layer "dense" or "sparse".
constexpr const char* kMlpTypes = "mlp_layer_types";

std::vector<std::string> mlp_types(const JsonReader& reader, const ModelConfig& c) {
  auto types = reader.get<std::vector<std::string>>(kMlpTypes);
  if (static_cast<int64_t>(types.size()) != c.layers)
    fail("{}: \"{}\" lists {} layers, \"num_hidden_layers\" is {}", reader.where(), kMlpTypes,
         types.size(), c.layers);
  return types;
}

}  // namespace

// The first configs said how many are dense; where neither stands, as the row has it.
void read_mlp_types(const JsonReader& reader, ModelConfig& c, const FamilyExperts& e) {
  const bool listed = reader.has(kMlpTypes);
  c.dense_first = listed || e.dense_first_otherwise
                      ? reader.get_in<int64_t>(e.dense_first_key, 0, kMaxSize,
                                               e.dense_first_otherwise.value_or(0))
                      : reader.get_in<int64_t>(e.dense_first_key, 0, kMaxSize);
  if (!listed) return;
  if (c.moe_every != 1)
    refuse(reader, "moe_layer_freq", "\"mlp_layer_types\" says which layers route, only 1");
  const std::vector<std::string> types = mlp_types(reader, c);
  c.dense_first = std::find(types.begin(), types.end(), "sparse") - types.begin();
  if (reader.get<int64_t>(e.dense_first_key, c.dense_first) != c.dense_first)
    refuse(reader, e.dense_first_key, "\"mlp_layer_types\" says another number; make them equal");
  for (int64_t i = 0; i < c.layers; ++i)
    if (types[static_cast<size_t>(i)] != (i < c.dense_first ? "dense" : "sparse"))
      fail("{}: \"{}\" has \"{}\" at layer {}; dense layers are supported before all that route",
           reader.where(), kMlpTypes, printable(types[static_cast<size_t>(i)]), i);
}

namespace {

// Where nothing is said all layers route.
void read_any_mlp_types(const JsonReader& reader, ModelConfig& c) {
  if (!reader.has(kMlpTypes)) return;
  const std::vector<std::string> types = mlp_types(reader, c);
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string& type = types[static_cast<size_t>(i)];
    if (type == "sparse") c.moe_layers.push_back(i);
    else if (type != "dense")
      fail("{}: \"{}\" has \"{}\" at layer {}; dense and sparse are known", reader.where(),
           kMlpTypes, printable(type), i);
  }
  if (c.moe_layers.empty())
    fail("{}: no layer routes by \"{}\"; such a model is a dense one", reader.where(), kMlpTypes);
  if (std::ssize(c.moe_layers) == c.layers) c.moe_layers.clear();
}

}  // namespace

// K-EXAONE's first configs say the same by other keys (github NVIDIA/TensorRT-LLM,
// tests/unittest/_torch/modeling/test_modeling_exaone_moe.py).
void check_exaone_layers(const JsonReader& reader, ModelConfig& c) {
  constexpr const char *kOther = "first_last_k_dense_replace", *kListed = "is_moe_layer",
                       *kWhy = "\"mlp_layer_types\" or \"first_k_dense_replace\" says otherwise";
  if (reader.get<int64_t>(kOther, c.dense_first) != c.dense_first) refuse(reader, kOther, kWhy);
  if (!reader.has(kListed)) return;
  Json wanted = Json::array();
  for (int64_t i = 0; i < c.layers; ++i) wanted.push_back(i >= c.dense_first);
  if (reader.value(kListed) != wanted) refuse(reader, kListed, kWhy);
}

namespace {

void write_mlp_types(Json& json, const ModelConfig& c) {
  json[kMlpTypes] = Json::array();
  for (int64_t i = 0; i < c.layers; ++i)
    json[kMlpTypes].push_back(c.is_moe(i) ? "sparse" : "dense");
}

// The recipe that a family's softmax router is, where the config names none.
const char* recipe_of(const FamilyExperts& e, bool renormalise) {
  return renormalise && e.renormalised_recipe ? e.renormalised_recipe : e.recipe;
}

bool renormalises(const RoutingOptions& routing) {
  return routing.norm_topk_prob.value_or(moe::renormalises(routing.recipe));
}

void read_deepseek_router(const JsonReader& reader, ModelConfig& c) {
  if (reader.get<std::string>("scoring_func") != "softmax")
    refuse(reader, "scoring_func", "only \"softmax\" is of this family");
  if (reader.get<double>("routed_scaling_factor", 1) != 1)
    refuse(reader, "routed_scaling_factor", "this family does not scale its weights, only 1");
  if (reader.get<std::string>("topk_method", "greedy") != "greedy")
    refuse(reader, "topk_method", "only \"greedy\" is of this family");
  for (const char* key : {"kv_lora_rank", "q_lora_rank"})
    if (reader.has(key)) refuse(reader, key, "latent attention is not supported");
  c.routing.coef.balance = read_coefficient(
      reader, "aux_loss_alpha", static_cast<double>(std::max<int64_t>(c.moe_layer_count(), 1)));
  if (!c.routing.balance_over && reader.get<bool>("seq_aux"))
    c.routing.balance_over = BalanceOver::sequence;
  stands(reader, "seq_aux");
}

// Which layers route, beside the first of them, and what its code divides weights by at least.
constexpr const char *kErnieStep = "moe_layer_interval", *kErnieLast = "moe_layer_end_index",
                     *kErnieLeast = "moe_norm_min";
constexpr double kErnieNorm = 1e-12;

}  // namespace

void read_ernie_layers(const JsonReader& reader, ModelConfig& c) {
  need_off(reader, "use_bias", "biases of this family are not supported");
  const auto last = reader.get<int64_t>(kErnieLast, -1);
  if (reader.get<int64_t>(kErnieStep, 1) != 1 || (last != -1 && last != c.layers - 1))
    fail(
        "{}: by \"{}\" and \"{}\" dense layers stand behind one that routes; dense layers are "
        "supported before all that route",
        reader.where(), kErnieStep, kErnieLast);
  if (reader.get<double>(kErnieLeast, kErnieNorm) > kErnieNorm)
    refuse(reader, kErnieLeast, "a sum of weights is divided by as it is, only 1e-12 or less");
}

void write_ernie_layers(Json& json, const ModelConfig& c) {
  json["use_bias"] = false;
  json[kErnieStep] = 1;
  json[kErnieLast] = c.layers - 1;
  json[kErnieLeast] = kErnieNorm;
}

namespace {

// A number, or the same one for every layer.
int64_t same_of_all(const JsonReader& reader, const char* key, const ModelConfig& c) {
  if (!reader.value(key).is_array()) return reader.get_in<int64_t>(key, 1, kMaxSize);
  const auto numbers = reader.get<std::vector<int64_t>>(key);
  if (static_cast<int64_t>(numbers.size()) != c.layers)
    fail("{}: \"{}\" lists {} layers, \"num_hidden_layers\" is {}", reader.where(), key,
         numbers.size(), c.layers);
  for (const int64_t n : numbers)
    if (n != numbers[0] || n < 1 || n > kMaxSize)
      refuse(reader, key, "all layers have the same number of this family's experts here");
  return numbers[0];
}

constexpr const char* kHunYuanTopK = "moe_topk";

}  // namespace

// Lists must be the same for all layers.
void read_hunyuan_experts(const JsonReader& reader, ModelConfig& c) {
  reader.value(kHunYuanTopK);
  c.routing.top_k = same_of_all(reader, kHunYuanTopK, c);
  if (reader.has("num_shared_expert") && same_of_all(reader, "num_shared_expert", c) != 1)
    refuse(reader, "num_shared_expert", "only one shared expert is of this family");
  if (reader.has("moe_intermediate_size") &&
      same_of_all(reader, "moe_intermediate_size", c) != c.expert_width)
    refuse(reader, "moe_intermediate_size", "\"intermediate_size\" is another width");
}

void write_hunyuan_experts(Json& json, const ModelConfig& c) {
  FieldWriter(json).size(kHunYuanTopK, c.routing.top_k, 1);
}

namespace {

// What its router counts as near the best, and a jitter of its training that there is none of here.
constexpr const char *kPhiMoeNear = "router_jitter_noise", *kPhiMoeJitter = "input_jitter_noise";
constexpr double kPhiMoeEps = 0.01;

void read_phimoe(const JsonReader& reader, ModelConfig& c) {
  if (reader.get<double>(kPhiMoeNear, kPhiMoeEps) != kPhiMoeEps)
    refuse(reader, kPhiMoeNear, "the recipe sparsemixer counts as near what is within 0.01");
  reader.get<double>(kPhiMoeJitter, 0);
  FieldReader(reader).extra("router_noise", c.routing.noise, true);  // ours: whether training draws
}

void write_phimoe(Json& json, const ModelConfig& c) {
  json[kPhiMoeNear] = kPhiMoeEps;
  json[kPhiMoeJitter] = 0.0;
  FieldWriter(json).extra("router_noise", c.routing.noise, true);
}

// transformers' balance loss is K where ours is 1.
void read_plain_losses(const JsonReader& reader, ModelConfig& c, const Family& f) {
  if (!f.may_lack_balance || reader.has("router_aux_loss_coef"))
    c.routing.coef.balance =
        read_coefficient(reader, "router_aux_loss_coef", static_cast<double>(c.routing.top_k));
  if (!f.phimoe && reader.get<double>("router_jitter_noise", 0) != 0)
    refuse(reader, "router_jitter_noise", "noise on what experts see is not supported, only 0");
}

void write_plain_losses(Json& json, const ModelConfig& c) {
  FieldWriter(json).optional("router_balance_over", c.routing.balance_over, balance_over_names());
  write_coefficient(json, "router_aux_loss_coef", c.routing.coef.balance,
                    static_cast<double>(c.routing.top_k));
  json["output_router_logits"] = false;
}

// Refuses what a key says when it is not the one thing that the family's code does.
void need_word(const JsonReader& reader, const char* key, const char* word) {
  if (reader.get<std::string>(key, word) != word)
    refuse(reader, key, fmt::format("only \"{}\" is of this family", word).c_str());
}

// The second of two names of a key where that stands, else the first.
const char* standing(const JsonReader& reader, const char* key, const char* other) {
  return other && reader.has(other) ? other : key;
}

void read_groups(const JsonReader& reader, ModelConfig& c, const Family& f, bool greedy) {
  const auto groups = [&](const char* key) {
    if (!greedy) return reader.get_in<int64_t>(key, 1, kMaxSize);
    reader.get_in<int64_t>(key, 1, kMaxSize, 1);
    return int64_t{1};
  };
  c.routing.expert_groups =
      groups(standing(reader, f.router->groups_key, f.router->other_groups_key));
  c.routing.groups_kept = groups("topk_group");
}

// Whether a key says that the choice of experts has a bias.
bool says_bias(const FamilyRouter& router) { return router.bias_key && *router.method == 0; }

void read_own_router(const JsonReader& reader, ModelConfig& c, const Family& f) {
  const FamilyRouter& router = *f.router;
  FieldReader fields(reader);
  fields.extra_recipe("recipe", c.routing.recipe, router.recipe);
  fields.optional("router_balance_over", c.routing.balance_over, balance_over_names());
  if (!router.score_flag) need_word(reader, router.score_key, router.score);
  else if (!reader.get<bool>(router.score_key, true))
    refuse(reader, router.score_key,
           fmt::format("only the {} is of this family, only true", router.score).c_str());
  const bool greedy = router.greedy && reader.get<std::string>("topk_method", "greedy") == "greedy";
  if (!greedy && router.groups && *router.method != 0)
    need_word(reader, "topk_method", router.method);
  const char* norm_key = standing(reader, router.norm_key, router.other_norm_key);
  if (reader.get<bool>(norm_key, router.renormalises) != router.renormalises)
    refuse(reader, norm_key,
           router.renormalises ? "this family divides weights by their sum, only true"
                               : "this family does not divide weights by their sum, only false");
  if (says_bias(router) && !reader.get<bool>(router.bias_key, true))
    refuse(reader, router.bias_key, "a router of this family has a selection bias, only true");
  float scale = 1;
  if (router.groups) {
    read_groups(reader, c, f, greedy);
    if (router.scale_or_one) fields.number_or(router.scale_key, scale, 1, 0);
    else fields.number(router.scale_key, scale, 0);
  } else {
    c.routing.expert_groups = c.routing.groups_kept = 1;
    if (router.scale) fields.number(router.scale_key, scale, 0);
    read_plain_losses(reader, c, f);
  }
  const auto& weigh = std::get<ChosenScores>(find_recipe(c.routing.recipe).train.weigh);
  if (scale != weigh.scale) c.routing.routed_scale = scale;
  if (reader.has("aux_loss_alpha"))
    c.routing.coef.balance = read_coefficient(
        reader, "aux_loss_alpha", static_cast<double>(std::max<int64_t>(c.moe_layer_count(), 1)));
  if (!c.routing.balance_over && !reader.get<bool>("seq_aux", true))
    c.routing.balance_over = BalanceOver::micro_batch;
  stands(reader, "seq_aux");
}

void write_own_router(Json& json, const ModelConfig& c, const FamilyRouter& router) {
  FieldWriter fields(json);
  fields.extra_recipe("recipe", c.routing.recipe, router.recipe);
  const RoutingSpec spec = train_spec(c.routing);
  const auto& select = std::get<GroupedTopK>(spec.select);
  const auto& weigh = std::get<ChosenScores>(spec.weigh);
  if (router.score_flag) json[router.score_key] = true;
  else json[router.score_key] = router.score;
  json[router.norm_key] = router.renormalises;
  if (says_bias(router)) json[router.bias_key] = true;
  if (router.groups) {
    if (*router.method != 0)
      json["topk_method"] = router.greedy && select.groups == 1 ? "greedy" : router.method;
    json[router.groups_key] = select.groups;
    json["topk_group"] = select.keep;
    fields.number(router.scale_key, weigh.scale, 0);
  } else {
    if (router.scale) fields.number(router.scale_key, weigh.scale, 0);
    return write_plain_losses(json, c);
  }
  write_coefficient(json, "aux_loss_alpha", c.routing.coef.balance,
                    static_cast<double>(std::max<int64_t>(c.moe_layer_count(), 1)));
  const bool sequence =
      c.routing.balance_over.value_or(BalanceOver::sequence) == BalanceOver::sequence;
  json["seq_aux"] = sequence;
  if (!sequence)
    fields.optional("router_balance_over", c.routing.balance_over, balance_over_names());
}

}  // namespace

// Cohere's (transformers:cohere2_moe/modeling_cohere2_moe.py, Cohere2MoeTopKRouter), where it is no
// softmax of the chosen logits, which is Mixtral's.
std::string sigmoid_stages(bool renormalise) {
  return Json{
      {"losses", {{"balance", {{"counts", "all_choices"}, {"probs", "normalised_scores"}}}}},
      {"score", "sigmoid"},
      {"weigh", {{"type", "scores"}, {"renormalise", renormalise ? "before_drop" : "never"}}}}
      .dump();
}

// Llama 4's (transformers:llama4/modeling_llama4.py, Llama4Router) and Flint's (flint/
// modeling_flint.py, FlintTopKRouter).
std::string chosen_sigmoid_stages(bool renormalise) {
  return Json{{"losses", {{"balance", {{"counts", "all_choices"}, {"probs", "softmax"}}}}},
              {"score", "raw"},
              {"weigh", {{"type", "sigmoids"}, {"renormalise", renormalise}}}}
      .dump();
}

// Kolibri's (transformers:kolibri1/modeling_kolibri1.py, Kolibri1TopKRouter).
std::string biased_sigmoid_stages(bool renormalise) {
  return Json{{"losses", {{"balance", {{"counts", "unbiased_choices"}, {"probs", "softmax"}}}}},
              {"score", "raw"},
              {"select", {{"type", "top_k"}, {"bias", true}}},
              {"weigh", {{"type", "sigmoids"}, {"renormalise", renormalise}}}}
      .dump();
}

namespace {

bool has_own_stages(const RoutingOptions& routing, const FamilyExperts& e) {
  return routing.recipe == kCustom && e.stages &&
         (routing.stages == e.stages(false) ||
          (e.norm != Renormalised::never && routing.stages == e.stages(true)));
}

constexpr const char *kScoreBy = "expert_selection_fn",
                     *kJoinBy = "shared_expert_combination_strategy";

// Whether scores are sigmoids.
bool read_cohere(const JsonReader& reader, ModelConfig& c) {
  const std::vector<std::string> scores = {"softmax", "sigmoid"}, joins = {"sum", "average"};
  if (c.shared_experts > 0) c.shared_average = reader.get_one_of(kJoinBy, joins) == 1;
  else stands(reader, kJoinBy);
  return reader.get_one_of(kScoreBy, scores) == 1;
}

void read_own_stages(const JsonReader& reader, ModelConfig& c, const Family& f) {
  const FamilyExperts& e = *f.experts;
  FieldReader fields(reader);
  if (e.scores_said && !read_cohere(reader, c)) {
    stands(reader, "norm_topk_prob");  // of sigmoids
    fields.extra_recipe("recipe", c.routing.recipe, e.recipe);
  } else {
    c.routing.recipe = kCustom;
    c.routing.stages =
        e.stages(e.norm != Renormalised::never && reader.get<bool>("norm_topk_prob"));
  }
  fields.optional("router_balance_over", c.routing.balance_over, balance_over_names());
  read_plain_losses(reader, c, f);
}

void write_own_stages(Json& json, const ModelConfig& c, const FamilyExperts& e) {
  const bool sigmoid = has_own_stages(c.routing, e);
  if (e.scores_said) {
    json[kJoinBy] = c.shared_average ? "average" : "sum";
    json[kScoreBy] = sigmoid ? "sigmoid" : "softmax";
  }
  if (e.norm != Renormalised::never)
    json["norm_topk_prob"] = !sigmoid || c.routing.stages == e.stages(true);
  if (!sigmoid) FieldWriter(json).extra_recipe("recipe", c.routing.recipe, e.recipe);
  write_plain_losses(json, c);
}

void read_router(const JsonReader& reader, ModelConfig& c, const Family& f) {
  const FamilyExperts& e = *f.experts;
  if (e.why_not) return;
  if (f.router) return read_own_router(reader, c, f);
  if (e.stages) return read_own_stages(reader, c, f);
  const bool renormalise = e.norm == Renormalised::always ||
                           (e.norm == Renormalised::said && reader.get<bool>("norm_topk_prob"));
  FieldReader fields(reader);
  fields.extra_recipe("recipe", c.routing.recipe, recipe_of(e, renormalise));
  fields.optional("router_balance_over", c.routing.balance_over, balance_over_names());
  if (f.phimoe) read_phimoe(reader, c);
  else if (renormalise != moe::renormalises(c.routing.recipe))
    c.routing.norm_topk_prob = renormalise;
  if (e.first_deepseek) return read_deepseek_router(reader, c);
  read_plain_losses(reader, c, f);
}

void write_deepseek_router(Json& json, const ModelConfig& c) {
  const bool sequence = c.routing.balance_over == BalanceOver::sequence;
  if (!sequence)
    FieldWriter(json).optional("router_balance_over", c.routing.balance_over, balance_over_names());
  json["seq_aux"] = sequence;
  json["scoring_func"] = "softmax";
  write_coefficient(json, "aux_loss_alpha", c.routing.coef.balance,
                    static_cast<double>(std::max<int64_t>(c.moe_layer_count(), 1)));
}

void write_router(Json& json, const ModelConfig& c, const Family& f) {
  const FamilyExperts& e = *f.experts;
  if (e.why_not) return;
  if (f.router) return write_own_router(json, c, *f.router);
  if (e.stages) return write_own_stages(json, c, e);
  const bool renormalise = renormalises(c.routing);
  FieldWriter(json).extra_recipe("recipe", c.routing.recipe, recipe_of(e, renormalise));
  if (e.norm == Renormalised::said) json["norm_topk_prob"] = renormalise;
  if (e.first_deepseek) write_deepseek_router(json, c);
  else write_plain_losses(json, c);
}

std::string why_not_softmax(const ModelConfig& c, const FamilyExperts& e) {
  const std::string& recipe = c.routing.recipe;
  if (has_own_stages(c.routing, e)) return "";
  if (e.stages && !e.scores_said)
    return fmt::format("recipe '{}' routes in another way than by sigmoids of chosen logits",
                       recipe);
  if (e.only_recipe)
    return recipe == e.recipe ? ""
                              : fmt::format("recipe '{}' is another than '{}'", recipe, e.recipe);
  if (const std::string reason = why_not_plain_routing(c.routing); !reason.empty()) return reason;
  if (e.norm == Renormalised::never && renormalises(c.routing))
    return "its combine weights are normalised";
  const bool divides = e.norm == Renormalised::always || e.scores_said;
  return divides && !renormalises(c.routing) ? "its combine weights are not normalised" : "";
}

std::string why_not_router(const ModelConfig& c, const Family& f) {
  const FamilyRouter* router = f.router;
  if (!router) return why_not_softmax(c, *f.experts);
  if (c.routing.recipe != router->recipe)
    return fmt::format("recipe '{}' is another than '{}'", c.routing.recipe, router->recipe);
  if (f.experts->several_chosen && c.routing.top_k == 1) return "tokens have one expert";
  const RoutingLosses& coef = c.routing.coef;
  if (coef.device != 0 || coef.communication != 0)
    return "it learns with losses of devices, for which the family has no words";
  if (router->groups) return "";
  const RoutingSpec spec = train_spec(c.routing);
  if (std::get<GroupedTopK>(spec.select).groups != 1) return "its experts are in groups";
  if (!router->scale && std::get<ChosenScores>(spec.weigh).scale != 1)
    return "its combine weights are scaled";
  return "";
}

std::string why_not_shared(const ModelConfig& c, const Family& f) {
  const bool none = c.shared_experts == 0, one = c.shared_experts == 1;
  if (f.llama4 && !c.weigh_inputs) return "weights multiply what its experts make";
  constexpr const char* kPlain = "it has not one shared expert without a gate";
  switch (f.experts->shared) {
    case FamilyShared::none: return none ? "" : "it has shared experts";
    case FamilyShared::gated:
      return !one || !c.shared_gate ? "it has not one shared expert with a gate" : "";
    case FamilyShared::one: return !one || c.shared_gate ? kPlain : "";
    case FamilyShared::one_or_none: return !none && (!one || c.shared_gate) ? kPlain : "";
    case FamilyShared::branch: return one ? "" : "it has not one shared expert";
    case FamilyShared::alike:
      return !one || c.shared_gate || c.shared_width != c.expert_width
                 ? "it has not one shared expert as wide as the others"
                 : "";
    case FamilyShared::counted:
      if (none) return "it has no shared experts";
      [[fallthrough]];
    case FamilyShared::counted_or_none:
      return !none && (c.shared_gate || c.shared_width != c.expert_width)
                 ? "its shared experts are not as wide as the others, or weighted"
                 : "";
  }
  return "";
}

std::string why_not_layers(const ModelConfig& c, const Family& f) {
  if (c.moe_layer_count() == 0) return "no layer routes";
  switch (f.experts->layers) {
    case MoeLayers::mixers: return "";  // the row of what mixes tokens asks for them
    case MoeLayers::all: return c.moe_layer_count() != c.layers ? "some layers are dense" : "";
    case MoeLayers::step:
    case MoeLayers::types:
    case MoeLayers::own: return c.dense_width < 1 ? "its dense layers have no width" : "";
    case MoeLayers::first:
    case MoeLayers::first_or_types:
    case MoeLayers::first_or_list: break;
  }
  if (!c.moe_layers.empty()) return "its MoE layers are listed one by one";
  return !f.experts->every_key && c.moe_every != 1 ? "its MoE layers are not all behind the first"
                                                   : "";
}

void read_shared_experts(ModelConfig& c, const FamilyExperts& e) {
  switch (e.shared) {
    case FamilyShared::none: return;
    case FamilyShared::gated: c.shared_gate = true; break;
    case FamilyShared::branch: c.branch_norms = true; break;
    case FamilyShared::alike: c.shared_width = c.expert_width; break;
    case FamilyShared::one: break;
    case FamilyShared::one_or_none: c.shared_experts = c.shared_width > 0; return;
    case FamilyShared::counted:
    case FamilyShared::counted_or_none:
      c.shared_width = c.shared_experts > 0 ? c.expert_width : 0;
      return;
  }
  c.shared_experts = 1;
}

}  // namespace

std::string llama4_stages() { return chosen_sigmoid_stages(false); }

void read_experts(const JsonReader& reader, ModelConfig& c, const Family& f) {
  const FamilyExperts& e = *f.experts;
  FieldReader fields(reader);
  visit_expert_sizes(fields, c, e);
  read_expert_count(reader, c, f);
  if (!e.dense_width_key) c.dense_width = c.expert_width;  // unused
  switch (e.layers) {
    case MoeLayers::first_or_types:
    case MoeLayers::first_or_list:
      if (!f.dense_windows) read_mlp_types(reader, c, e);
      break;
    case MoeLayers::types: read_any_mlp_types(reader, c); break;
    case MoeLayers::step: read_qwen_layers(reader, c); break;
    default: break;
  }
  read_shared_experts(c, e);
  if (e.read) e.read(reader, c);
  if (e.several_chosen && c.routing.top_k == 1)
    refuse(reader, standing(reader, e.top_k_key, e.other_top_k_key),
           "weights of one expert are not divided in this family");
  read_router(reader, c, f);
}

void write_experts(Json& json, const ModelConfig& c, const Family& f) {
  const FamilyExperts& e = *f.experts;
  FieldWriter fields(json);
  visit_expert_sizes(fields, c, e);
  fields.size(e.count_key, c.routing.experts, 1);
  if (e.layers == MoeLayers::first_or_types) json[e.dense_first_key] = c.dense_first;
  if (e.layers == MoeLayers::first_or_types || e.layers == MoeLayers::types)
    write_mlp_types(json, c);
  if (e.layers == MoeLayers::step) write_qwen_layers(json, c);
  if (e.write) e.write(json, c);
  if (f.phimoe) write_phimoe(json, c);
  write_router(json, c, f);
}

std::string why_not_experts(const ModelConfig& c, const Family& f) {
  if (f.experts->why_not) return f.experts->why_not(c);
  for (const auto why : {why_not_layers, why_not_router, why_not_shared})
    if (const std::string reason = why(c, f); !reason.empty()) return reason;
  return "";
}

}  // namespace moe
