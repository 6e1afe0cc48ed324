// The keys of the families' experts and routers.
#include "hub/folder/architectures.h"
#include "hub/folder/family_parts.h"

namespace moe {
namespace {

constexpr const char *kStep = "decoder_sparse_step", *kDenseLayers = "mlp_only_layers",
                     *kDenseReplace = "first_k_dense_replace";

const char* top_k_key(FamilyExperts experts) {
  return experts == FamilyExperts::ernie    ? "moe_k"
         : experts == FamilyExperts::aria   ? "moe_topk"
         : experts == FamilyExperts::gemma4 ? "top_k_experts"
         : experts == FamilyExperts::kimi   ? "num_experts_per_token"
                                            : "num_experts_per_tok";
}

// Dense layers are as wide as an expert where nothing is said.
template <class Visitor, class Config>
void visit_cohere_sizes(Visitor& v, Config& c) {
  v.size("intermediate_size", c.expert_width, 1);
  v.size_or("prefix_dense_intermediate_size", c.dense_width, c.expert_width, 1);
  v.size("num_shared_experts", c.shared_experts, 0);
}

template <class Visitor, class Config>
void visit_deepseek_sizes(Visitor& v, Config& c, const Family& f) {
  v.size("intermediate_size", c.dense_width, 1);
  v.size("moe_intermediate_size", c.expert_width, 1);
  v.size("n_routed_experts", c.routing.experts, 1);
  if (f.experts == FamilyExperts::glm_lite) return v.size("n_shared_experts", c.shared_experts, 1);
  if (f.router || f.experts == FamilyExperts::deepseek_like) {
    v.size(kDenseReplace, c.dense_first, 0);
    v.size("n_shared_experts", c.shared_experts, 1);
    if (f.experts == FamilyExperts::deepseek) v.size_or("moe_layer_freq", c.moe_every, 1, 1);
  } else {
    v.size_or(kDenseReplace, c.dense_first, 0, 0);  // or a list stands there: read_mlp_types
    v.size_or("n_shared_experts", c.shared_experts, 0, 0);
    v.size("moe_layer_freq", c.moe_every, 1);
  }
}

template <class Visitor, class Config>
void visit_expert_sizes(Visitor& v, Config& c, const Family& f) {
  if (f.experts == FamilyExperts::ling3)
    v.size_by("num_experts_per_tok", "num_experts_per_token", c.routing.top_k, 1);
  else if (f.experts != FamilyExperts::hunyuan) v.size(top_k_key(f.experts), c.routing.top_k, 1);
  switch (f.experts) {
    case FamilyExperts::none: return;
    case FamilyExperts::phimoe:
    case FamilyExperts::mixtral:
      v.size("num_local_experts", c.routing.experts, 1);
      return v.size("intermediate_size", c.expert_width, 1);
    case FamilyExperts::gemma4:  // what stands beside the experts is a shared one
      v.size("intermediate_size", c.shared_width, 1);
      return v.size("moe_intermediate_size", c.expert_width, 1);
    case FamilyExperts::laguna: v.size("intermediate_size", c.dense_width, 1); [[fallthrough]];
    case FamilyExperts::kolibri:
    case FamilyExperts::qwen3_5:
      v.size("shared_expert_intermediate_size", c.shared_width, 1);
      return v.size("moe_intermediate_size", c.expert_width, 1);
    case FamilyExperts::flint:
    case FamilyExperts::qwen2:
    case FamilyExperts::qwen3_next:
      v.size("shared_expert_intermediate_size", c.shared_width, 1);
      [[fallthrough]];
    case FamilyExperts::mellum:
    case FamilyExperts::qwen3:
      v.size("intermediate_size", c.dense_width, 1);
      return v.size("moe_intermediate_size", c.expert_width, 1);
    case FamilyExperts::aria:
      v.size("moe_num_experts", c.routing.experts, 1);
      v.size("moe_num_shared_experts", c.shared_experts, 1);
      [[fallthrough]];
    case FamilyExperts::hunyuan:
    case FamilyExperts::olmo: return v.size("intermediate_size", c.expert_width, 1);
    case FamilyExperts::solar:
      v.size("moe_intermediate_size", c.expert_width, 1);
      v.size("n_routed_experts", c.routing.experts, 1);
      return v.size("n_shared_experts", c.shared_experts, 1);
    case FamilyExperts::lfm2:
      v.size("intermediate_size", c.dense_width, 1);
      v.size("moe_intermediate_size", c.expert_width, 1);
      return v.size("num_dense_layers", c.dense_first, 0);
    case FamilyExperts::ling:
    case FamilyExperts::afmoe:
    case FamilyExperts::exaone:
    case FamilyExperts::hy3:
    case FamilyExperts::kimi:
    case FamilyExperts::ling3:
      v.size("intermediate_size", c.dense_width, 1);
      v.size("moe_intermediate_size", c.expert_width, 1);
      v.size("num_shared_experts", c.shared_experts, 1);
      if (f.experts == FamilyExperts::ling) v.size(kDenseReplace, c.dense_first, 0);
      if (f.experts == FamilyExperts::afmoe) v.size("num_dense_layers", c.dense_first, 0);
      return;
    case FamilyExperts::cohere: return visit_cohere_sizes(v, c);
    case FamilyExperts::mimo:
    case FamilyExperts::nemotron_h:
      v.size("intermediate_size", c.dense_width, 1);
      v.size("moe_intermediate_size", c.expert_width, 1);
      v.size("n_routed_experts", c.routing.experts, 1);
      if (f.experts == FamilyExperts::mimo) return;
      v.size("n_shared_experts", c.shared_experts, 1, 1);
      return v.size("moe_shared_expert_intermediate_size", c.shared_width, 1);
    case FamilyExperts::granite_shared:
      v.size("shared_intermediate_size", c.shared_width, f.states ? 1 : 0);
      [[fallthrough]];
    case FamilyExperts::granite:
    case FamilyExperts::gpt_oss:
      v.size("num_local_experts", c.routing.experts, 1);
      return v.size("intermediate_size", c.expert_width, 1);
    case FamilyExperts::ernie:
      v.size("intermediate_size", c.dense_width, 1);
      v.size("moe_intermediate_size", c.expert_width, 1);
      v.size("moe_num_experts", c.routing.experts, 1);
      v.size("moe_num_shared_experts", c.shared_experts, 0);
      return v.size("moe_layer_start_index", c.dense_first, 0);
    case FamilyExperts::llama4:
      v.size("intermediate_size_mlp", c.dense_width, 1);
      v.size("intermediate_size", c.expert_width, 1);
      return v.size("num_local_experts", c.routing.experts, 1);
    case FamilyExperts::deepseek:
    case FamilyExperts::deepseek_like:
    case FamilyExperts::glm_lite: return visit_deepseek_sizes(v, c, f);
  }
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

// The first configs said how many are dense, and where neither stands the first is, or none of
// Cohere's; of families with indexers, of Ling 3.0 and of the first DeepSeek one of the two has to
// stand.
void read_mlp_types(const JsonReader& reader, ModelConfig& c, const Family& f) {
  const bool listed = reader.has(kMlpTypes), one_stands = f.indexed || f.ling3 || !f.mlp_types();
  c.dense_first = one_stands && !listed
                      ? reader.get_in<int64_t>(kDenseReplace, 0, kMaxSize)
                      : reader.get_in<int64_t>(kDenseReplace, 0, kMaxSize,
                                               f.experts == FamilyExperts::cohere ? 0 : 1);
  if (!listed) return;
  if (c.moe_every != 1)
    refuse(reader, "moe_layer_freq", "\"mlp_layer_types\" says which layers route, only 1");
  const std::vector<std::string> types = mlp_types(reader, c);
  c.dense_first = std::find(types.begin(), types.end(), "sparse") - types.begin();
  if (reader.get<int64_t>(kDenseReplace, c.dense_first) != c.dense_first)
    refuse(reader, kDenseReplace, "\"mlp_layer_types\" says another number; make them equal");
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

// K-EXAONE's first configs say the same by other keys (github NVIDIA/TensorRT-LLM,
// tests/unittest/_torch/modeling/test_modeling_exaone_moe.py).
void read_exaone(const JsonReader& reader, const ModelConfig& c) {
  constexpr const char *kOther = "first_last_k_dense_replace", *kListed = "is_moe_layer",
                       *kWhy = "\"mlp_layer_types\" or \"first_k_dense_replace\" says otherwise";
  if (reader.get<int64_t>(kOther, c.dense_first) != c.dense_first) refuse(reader, kOther, kWhy);
  if (!reader.has(kListed)) return;
  Json wanted = Json::array();
  for (int64_t i = 0; i < c.layers; ++i) wanted.push_back(i >= c.dense_first);
  if (reader.value(kListed) != wanted) refuse(reader, kListed, kWhy);
}

void write_mlp_types(Json& json, const ModelConfig& c) {
  json[kMlpTypes] = Json::array();
  for (int64_t i = 0; i < c.layers; ++i)
    json[kMlpTypes].push_back(c.is_moe(i) ? "sparse" : "dense");
}

// The recipe that a family's softmax router is, where the config names none.
const char* recipe_of(const Family& f, bool renormalise) {
  switch (f.experts) {
    case FamilyExperts::mixtral:
    case FamilyExperts::granite:
    case FamilyExperts::cohere:
    case FamilyExperts::aria:
    case FamilyExperts::hunyuan:
    case FamilyExperts::granite_shared: return "mixtral";
    case FamilyExperts::olmo: return "olmoe";
    case FamilyExperts::gpt_oss: return "gpt-oss";
    case FamilyExperts::ernie: return "ernie-moe";
    case FamilyExperts::gemma4: return "gemma4";
    case FamilyExperts::phimoe: return "sparsemixer";
    case FamilyExperts::qwen3:
    case FamilyExperts::qwen3_next:
    case FamilyExperts::mellum:
    case FamilyExperts::qwen3_5: return renormalise ? "qwen3-moe" : "qwen2-moe";
    case FamilyExperts::deepseek_like:
    case FamilyExperts::deepseek: return renormalise ? "mixtral" : "deepseek-moe";
    default: return "qwen2-moe";
  }
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

void read_ernie(const JsonReader& reader, const ModelConfig& c) {
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

void write_ernie(Json& json, const ModelConfig& c) {
  json["use_bias"] = false;
  json[kErnieStep] = 1;
  json[kErnieLast] = c.layers - 1;
  json[kErnieLeast] = kErnieNorm;
}

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

// Lists must be the same for all layers.
void read_hunyuan(const JsonReader& reader, ModelConfig& c) {
  reader.value("moe_topk");
  c.routing.top_k = same_of_all(reader, "moe_topk", c);
  c.shared_experts = 1;
  c.shared_width = c.expert_width;
  if (reader.has("num_shared_expert") && same_of_all(reader, "num_shared_expert", c) != 1)
    refuse(reader, "num_shared_expert", "only one shared expert is of this family");
  if (reader.has("moe_intermediate_size") &&
      same_of_all(reader, "moe_intermediate_size", c) != c.expert_width)
    refuse(reader, "moe_intermediate_size", "\"intermediate_size\" is another width");
}

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

// Cohere's (transformers:cohere2_moe/modeling_cohere2_moe.py, Cohere2MoeTopKRouter): a softmax of
// the chosen logits, which is Mixtral's, or their sigmoids, divided by their sum or not; and how
// shared experts join.
constexpr const char *kScoreBy = "expert_selection_fn",
                     *kJoinBy = "shared_expert_combination_strategy";

// Kolibri's (transformers:kolibri1/modeling_kolibri1.py, Kolibri1TopKRouter) are sigmoids always,
// of logits that a bias chooses among; Llama 4's (llama4/modeling_llama4.py, Llama4Router) and
// Flint's (flint/modeling_flint.py, FlintTopKRouter) of the largest, Llama 4's divided by nothing.
std::string sigmoid_stages(const Family& f, bool renormalise) {
  if (f.experts == FamilyExperts::cohere)
    return Json{
        {"losses", {{"balance", {{"counts", "all_choices"}, {"probs", "normalised_scores"}}}}},
        {"score", "sigmoid"},
        {"weigh", {{"type", "scores"}, {"renormalise", renormalise ? "before_drop" : "never"}}}}
        .dump();
  if (f.experts == FamilyExperts::llama4 || f.experts == FamilyExperts::flint)
    return Json{
        {"losses", {{"balance", {{"counts", "all_choices"}, {"probs", "softmax"}}}}},
        {"score", "raw"},
        {"weigh",
         {{"type", "sigmoids"}, {"renormalise", f.experts == FamilyExperts::flint && renormalise}}}}
        .dump();
  return Json{{"losses", {{"balance", {{"counts", "unbiased_choices"}, {"probs", "softmax"}}}}},
              {"score", "raw"},
              {"select", {{"type", "top_k"}, {"bias", true}}},
              {"weigh", {{"type", "sigmoids"}, {"renormalise", renormalise}}}}
      .dump();
}

bool scores_by_sigmoid(const RoutingOptions& routing, const Family& f) {
  return routing.recipe == kCustom &&
         (routing.stages == sigmoid_stages(f, true) || routing.stages == sigmoid_stages(f, false));
}

// Whether scores are sigmoids.
bool read_cohere(const JsonReader& reader, ModelConfig& c) {
  const std::vector<std::string> scores = {"softmax", "sigmoid"}, joins = {"sum", "average"};
  if (c.shared_experts > 0) c.shared_average = reader.get_one_of(kJoinBy, joins) == 1;
  else stands(reader, kJoinBy);
  return reader.get_one_of(kScoreBy, scores) == 1;
}

void read_own_stages(const JsonReader& reader, ModelConfig& c, const Family& f) {
  FieldReader fields(reader);
  if (f.experts == FamilyExperts::cohere && !read_cohere(reader, c)) {
    stands(reader, "norm_topk_prob");  // of sigmoids
    fields.extra_recipe("recipe", c.routing.recipe, "mixtral");
  } else {
    c.routing.recipe = kCustom;
    c.routing.stages =
        sigmoid_stages(f, f.experts != FamilyExperts::llama4 && reader.get<bool>("norm_topk_prob"));
  }
  fields.optional("router_balance_over", c.routing.balance_over, balance_over_names());
  read_plain_losses(reader, c, f);
}

void write_own_stages(Json& json, const ModelConfig& c, const Family& f) {
  const bool sigmoid = scores_by_sigmoid(c.routing, f);
  if (f.experts == FamilyExperts::cohere) {
    json[kJoinBy] = c.shared_average ? "average" : "sum";
    json[kScoreBy] = sigmoid ? "sigmoid" : "softmax";
  }
  if (f.experts != FamilyExperts::llama4)
    json["norm_topk_prob"] = !sigmoid || c.routing.stages == sigmoid_stages(f, true);
  if (!sigmoid) FieldWriter(json).extra_recipe("recipe", c.routing.recipe, "mixtral");
  write_plain_losses(json, c);
}

void read_router(const JsonReader& reader, ModelConfig& c, const Family& f) {
  if (f.router) return read_own_router(reader, c, f);
  if (f.own_stages()) return read_own_stages(reader, c, f);
  const bool renormalise = f.always_renormalises() || reader.get<bool>("norm_topk_prob");
  FieldReader fields(reader);
  fields.extra_recipe("recipe", c.routing.recipe, recipe_of(f, renormalise));
  fields.optional("router_balance_over", c.routing.balance_over, balance_over_names());
  if (f.phimoe) read_phimoe(reader, c);
  else if (renormalise != moe::renormalises(c.routing.recipe))
    c.routing.norm_topk_prob = renormalise;
  if (f.experts == FamilyExperts::deepseek) return read_deepseek_router(reader, c);
  read_plain_losses(reader, c, f);
}

void write_router(Json& json, const ModelConfig& c, const Family& f) {
  if (f.router) return write_own_router(json, c, *f.router);
  if (f.own_stages()) return write_own_stages(json, c, f);
  FieldWriter fields(json);
  const bool renormalise = renormalises(c.routing);
  fields.extra_recipe("recipe", c.routing.recipe, recipe_of(f, renormalise));
  if (!f.always_renormalises()) json["norm_topk_prob"] = renormalise;
  if (f.experts != FamilyExperts::deepseek) return write_plain_losses(json, c);
  const bool sequence = c.routing.balance_over == BalanceOver::sequence;
  if (!sequence)
    fields.optional("router_balance_over", c.routing.balance_over, balance_over_names());
  json["seq_aux"] = sequence;
  json["scoring_func"] = "softmax";
  write_coefficient(json, "aux_loss_alpha", c.routing.coef.balance,
                    static_cast<double>(std::max<int64_t>(c.moe_layer_count(), 1)));
}

std::string why_not_router(const ModelConfig& c, const Family& f) {
  const FamilyRouter* router = f.router;
  if (f.own_stages() && scores_by_sigmoid(c.routing, f)) return "";
  if (f.experts == FamilyExperts::kolibri || f.experts == FamilyExperts::llama4 ||
      f.experts == FamilyExperts::flint)
    return fmt::format("recipe '{}' routes in another way than by sigmoids of chosen logits",
                       c.routing.recipe);
  if (f.experts == FamilyExperts::cohere) {
    if (const std::string reason = why_not_plain_routing(c.routing); !reason.empty()) return reason;
    return renormalises(c.routing) ? "" : "its combine weights are not normalised";
  }
  if (!router) {
    if (f.own_recipe())
      return c.routing.recipe == recipe_of(f, true)
                 ? ""
                 : fmt::format("recipe '{}' is another than '{}'", c.routing.recipe,
                               recipe_of(f, true));
    if (const std::string reason = why_not_plain_routing(c.routing); !reason.empty()) return reason;
    return f.always_renormalises() && !renormalises(c.routing)
               ? "its combine weights are not normalised"
               : "";
  }
  if (c.routing.recipe != router->recipe)
    return fmt::format("recipe '{}' is another than '{}'", c.routing.recipe, router->recipe);
  // Its code divides the weights of several experts by their sum, and one weight by nothing.
  if ((f.experts == FamilyExperts::ling || f.ling3) && c.routing.top_k == 1)
    return "tokens have one expert";
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
  const bool none = c.shared_experts == 0;
  switch (f.experts) {
    case FamilyExperts::qwen2:
    case FamilyExperts::qwen3_next:
    case FamilyExperts::qwen3_5:
      return c.shared_experts != 1 || !c.shared_gate ? "it has not one shared expert with a gate"
                                                     : "";
    case FamilyExperts::llama4:
      if (!c.weigh_inputs) return "weights multiply what its experts make";
      [[fallthrough]];
    case FamilyExperts::hunyuan:
      return c.shared_experts != 1 || c.shared_gate || c.shared_width != c.expert_width
                 ? "it has not one shared expert as wide as the others"
                 : "";
    case FamilyExperts::flint:
    case FamilyExperts::laguna:
    case FamilyExperts::kolibri:
      return c.shared_experts != 1 || c.shared_gate ? "it has not one shared expert without a gate"
                                                    : "";
    case FamilyExperts::gemma4: return c.shared_experts != 1 ? "it has not one shared expert" : "";
    case FamilyExperts::nemotron_h:
      return c.shared_experts != 1 || c.shared_gate ? "it has not one shared expert without a gate"
                                                    : "";
    case FamilyExperts::granite_shared:
      if (none && f.states) return "it has no shared expert";
      return !none && (c.shared_experts != 1 || c.shared_gate)
                 ? "it has not one shared expert without a gate"
                 : "";
    case FamilyExperts::deepseek:
    case FamilyExperts::deepseek_like:
    case FamilyExperts::solar:
    case FamilyExperts::glm_lite:
    case FamilyExperts::ernie:
    case FamilyExperts::ling:
    case FamilyExperts::afmoe:
    case FamilyExperts::exaone:
    case FamilyExperts::hy3:
    case FamilyExperts::cohere:
    case FamilyExperts::aria:
    case FamilyExperts::kimi:
    case FamilyExperts::ling3:
      if (none)
        return f.router || f.experts == FamilyExperts::aria ||
                       f.experts == FamilyExperts::deepseek_like
                   ? "it has no shared experts"
                   : "";
      return c.shared_gate || c.shared_width != c.expert_width
                 ? "its shared experts are not as wide as the others, or weighted"
                 : "";
    default: return none ? "" : "it has shared experts";
  }
}

std::string why_not_layers(const ModelConfig& c, const Family& f) {
  if (c.moe_layer_count() == 0) return "no layer routes";
  if (f.qwen() || f.experts == FamilyExperts::llama4)
    return c.dense_width < 1 ? "its dense layers have no width" : "";
  if (f.halves) return "";  // its pattern says of each layer what it is
  if (!f.dense_first()) return c.moe_layer_count() != c.layers ? "some layers are dense" : "";
  if (!c.moe_layers.empty()) return "its MoE layers are listed one by one";
  return f.experts != FamilyExperts::deepseek && c.moe_every != 1
             ? "its MoE layers are not all behind the first"
             : "";
}

}  // namespace

void read_experts(const JsonReader& reader, ModelConfig& c, const Family& f) {
  FieldReader fields(reader);
  visit_expert_sizes(fields, c, f);
  if (!f.dense_windows && (f.mlp_types() || f.first_deepseek())) read_mlp_types(reader, c, f);
  if (f.experts == FamilyExperts::exaone) read_exaone(reader, c);
  if (f.mimo) read_mimo_dense(reader, c);
  if (f.laguna) read_laguna_dense(reader, c);
  constexpr const char* kAgain = "num_experts";  // as transformers 5.11 wrote it beside the other
  if (f.indexed && reader.get<int64_t>(kAgain, c.routing.experts) != c.routing.experts)
    refuse(reader, kAgain, "\"n_routed_experts\" says another number; make them equal");
  const bool has_dense = f.qwen() || f.dense_first() || f.experts == FamilyExperts::llama4;
  if (!has_dense && !f.halves) c.dense_width = c.expert_width;  // unused
  if (f.num_experts()) {
    // transformers 5 writes it under another name in one of the two.
    fields.size(reader.has("num_experts") || !reader.has("num_local_experts") ? "num_experts"
                                                                              : "num_local_experts",
                c.routing.experts, 1);
  }
  if (f.experts == FamilyExperts::mellum) read_any_mlp_types(reader, c);
  else if (f.qwen()) read_qwen_layers(reader, c);
  if (f.gated_shared()) c.shared_experts = 1, c.shared_gate = true;
  if (f.experts == FamilyExperts::kolibri || f.experts == FamilyExperts::flint || f.laguna)
    c.shared_experts = 1;
  if (f.experts == FamilyExperts::gemma4) c.shared_experts = 1, c.branch_norms = true;
  if (f.experts == FamilyExperts::granite_shared) c.shared_experts = c.shared_width > 0;
  if (f.experts == FamilyExperts::ernie) read_ernie(reader, c);
  if (f.experts == FamilyExperts::llama4) read_llama4_experts(reader, c);
  if (f.experts == FamilyExperts::hunyuan) read_hunyuan(reader, c);
  else if (f.counted_shared()) c.shared_width = c.shared_experts > 0 ? c.expert_width : 0;
  if ((f.experts == FamilyExperts::ling || f.ling3) && c.routing.top_k == 1)
    refuse(reader, standing(reader, "num_experts_per_tok", "num_experts_per_token"),
           "weights of one expert are not divided in this family");
  read_router(reader, c, f);
}

void write_experts(Json& json, const ModelConfig& c, const Family& f) {
  FieldWriter fields(json);
  visit_expert_sizes(fields, c, f);
  if (f.num_experts()) fields.size("num_experts", c.routing.experts, 1);
  if (f.mlp_types()) json[kDenseReplace] = c.dense_first;
  if (f.mlp_types() || f.experts == FamilyExperts::mellum) write_mlp_types(json, c);
  else if (f.qwen()) write_qwen_layers(json, c);
  if (f.experts == FamilyExperts::ernie) write_ernie(json, c);
  if (f.experts == FamilyExperts::llama4) write_llama4_experts(json, c);
  if (f.experts == FamilyExperts::hunyuan) fields.size("moe_topk", c.routing.top_k, 1);
  if (f.phimoe) write_phimoe(json, c);
  write_router(json, c, f);
}

std::string why_not_experts(const ModelConfig& c, const Family& f) {
  for (const auto why : {why_not_layers, why_not_router, why_not_shared})
    if (const std::string reason = why(c, f); !reason.empty()) return reason;
  return "";
}

}  // namespace moe
