// The keys of experts and of FFNs without any: how many, how wide, which layers have them, and how
// they are chosen and weighed.
#include <algorithm>
#include <string>

#include "hub/folder/architectures.h"
#include "hub/gguf/gguf_keys.h"

namespace moe {
namespace {

constexpr const char *kScale = "expert_weights_scale", *kNorm = "expert_weights_norm",
                     *kGroups = "expert_group_count", *kGroupsKept = "expert_group_used_count",
                     *kSharedWidth = "expert_shared_feed_forward_length",
                     *kDenseFirst = "leading_dense_block_count";

// Where the recipe has a factor and groups; a factor of 0 stands for none.
void read_weighing(GgufKeys& keys, ModelConfig& c) {
  const float scale = keys.number_or(kScale, 0, 0);
  c.routing.routed_scale = scale == 0 ? 1 : scale;
  const int64_t groups = std::max<int64_t>(1, keys.size_or(kGroups, 0, 1));
  c.routing.expert_groups = groups;
  c.routing.groups_kept =
      groups > 1 || keys.has(kGroupsKept) ? keys.size(kGroupsKept, groups > 1 ? 1 : 0, groups) : 1;
}

// What llama.cpp's graph of an architecture does whatever the file says.
void need_usual_weighing(GgufKeys& keys, const GgufArchitecture& row) {
  keys.need_number(kScale, 1, "llama.cpp's versions differ in whether they apply it");
  keys.need_number(kGroups, 1, "experts are chosen among all");
  keys.need_number(kGroupsKept, 1, "experts are chosen among all");
  if (keys.has(kNorm) && keys.flag(kNorm) != row.renormalises)
    fail("{}: key \"{}\" is {}, but llama.cpp's graph of {} does the other", keys.where(),
         keys.name(kNorm), !row.renormalises, row.title);
}

// Where they are counted, each as wide as a routed one.
int64_t said_shared_width(const GgufArchitecture& row, const ModelConfig& c) {
  return row.shared_width == SharedWidth::each ? c.expert_width : c.shared_experts * c.shared_width;
}

// Dense layers before those that route.
int64_t read_dense_first(const Gguf& file, GgufKeys& keys, const GgufArchitecture& row,
                         const ModelConfig& c) {
  if (!row.dense_by_tensors)
    return row.weighs_as_said && !keys.has(kDenseFirst) ? 0 : keys.size(kDenseFirst, 0, c.layers);
  keys.ignore(kDenseFirst);
  int64_t layer = 0;
  while (layer < c.layers && !file.contains(fmt::format("blk.{}.ffn_gate_inp.weight", layer)))
    ++layer;
  return layer;
}

std::vector<int64_t> layers_with_routers(const Gguf& file, const ModelConfig& c) {
  std::vector<int64_t> layers;
  for (int64_t i = 0; i < c.layers; ++i)
    if (file.contains(fmt::format("blk.{}.ffn_gate_inp.weight", i))) layers.push_back(i);
  return layers;
}

}  // namespace

void read_gguf_experts(const Gguf& file, GgufKeys& keys, const GgufArchitecture& row,
                       ModelConfig& c) {
  const int64_t experts = keys.size("expert_count", 1),
                used = keys.size("expert_used_count", 1, experts);
  c.expert_width = keys.size(row.expert_width, 1);
  if (row.dense_first) c.dense_first = read_dense_first(file, keys, row, c);
  if (row.routers_tell) c.moe_layers = layers_with_routers(file, c);
  c.dense_width =
      c.dense_first > 0 || row.llama4 ? keys.size("feed_forward_length", 1) : c.expert_width;
  keys.ignore("feed_forward_length");
  keys.need_number("expert_feed_forward_length", static_cast<double>(c.expert_width),
                   "experts are as wide as \"feed_forward_length\"");
  if (row.shared == SharedExperts::counted) {
    c.shared_experts = keys.size("expert_shared_count", 1);
    c.shared_width = c.expert_width;
    if (row.shared_width != SharedWidth::unsaid)
      keys.need_number(kSharedWidth, static_cast<double>(said_shared_width(row, c)),
                       "shared experts are as wide as the others");
  } else if (row.shared == SharedExperts::beside) {
    c.shared_experts = 1;
    c.shared_width = keys.size("feed_forward_length", 1);
    c.branch_norms = true;
  } else if (row.shared == SharedExperts::gated) {
    c.shared_experts = 1;
    c.shared_width = keys.size(kSharedWidth, 1);
    c.shared_gate = true;
  } else if (row.shared == SharedExperts::sized || row.shared == SharedExperts::one) {
    c.shared_width = row.shared == SharedExperts::one ? keys.size(kSharedWidth, 1)
                                                      : keys.size_or(kSharedWidth, 0, 0);
    c.shared_experts = c.shared_width > 0 ? 1 : 0;
  } else if (row.shared == SharedExperts::summed) {
    const int64_t all = keys.size_or(kSharedWidth, 0, 0);
    c.shared_experts = all % c.expert_width == 0 ? all / c.expert_width : 1;
    c.shared_width = c.shared_experts > 0 ? all / c.shared_experts : 0;
  } else if (row.shared == SharedExperts::same) {
    c.shared_experts = 1;
    c.shared_width = c.expert_width;
  } else {  // converters copy it where a config says that there are none
    keys.need_number(kSharedWidth, 0, "it has no shared experts");
  }
  keys.need_number("expert_shared_count", static_cast<double>(c.shared_experts),
                   "its shared experts are so many");
  if (row.llama4) read_gguf_llama4_layers(keys, row, c);
  else if (!row.step.empty()) {
    keys.number(row.step, 0);
    keys.need_number(row.step, 1, "every layer behind the dense ones routes");
  }
  c.routing =
      default_options(find_recipe(row.recipe), experts, used,
                      c.moe_layers.empty() ? c.layers - c.dense_first : std::ssize(c.moe_layers));
  if (row.llama4) {
    c.routing.stages = llama4_stages();
    c.routing.coef.balance = 0.001f * static_cast<float>(used);  // what its configs learn with
  }
  keys.need_number(kGgufGating, static_cast<double>(row.gating),
                   row.gating == GgufGating::softmax ? "the router is a softmax (1)"
                                                     : "the router is sigmoids (2)");
  keys.need_number("moe_every_n_layers", 1, "every layer routes");
  if (std::holds_alternative<GroupedTopK>(find_recipe(row.recipe).train.select))
    read_weighing(keys, c);
  if (!row.weighs_as_said) return need_usual_weighing(keys, row);
  // Kimi's converter leaves it to the graph.
  const bool divides = keys.has(kNorm) ? keys.flag(kNorm) : row.kimi;
  if (divides != row.renormalises)
    fail(
        "{}: by key \"{}\" the weights of the chosen experts are {}divided by their sum; of {} "
        "only "
        "the other is supported",
        keys.where(), keys.name(kNorm), divides ? "" : "not ", row.title);
}

// Keys of experts may stand there that llama.cpp wants of models without any. One expert that no
// router chooses is an FFN.
void read_gguf_dense(GgufKeys& keys, const GgufArchitecture& row, ModelConfig& c) {
  if (keys.size_or("expert_count", 0, 0) == 1) keys.ignore("expert_used_count");
  else keys.need_number("expert_used_count", 0, "there are no experts");
  if (!row.halves) c.dense_width = c.expert_width = keys.size("feed_forward_length", 1);
  if (row.granite4)
    keys.need_number(kSharedWidth, static_cast<double>(c.dense_width),
                     "the FFN beside experts is all there is");
  if (!row.latent()) return;
  keys.need_number(kDenseFirst, static_cast<double>(c.layers), "all layers are dense");
  for (const char* key :
       {"expert_feed_forward_length", "expert_shared_count", kGgufGating, kScale, kNorm})
    keys.ignore(key);
}

void add_gguf_experts(std::vector<GgufEntry>& out, const std::string& prefix,
                      const GgufArchitecture& row, const ModelConfig& c) {
  using Type = GgufEntry::Type;
  const auto size = [&](std::string_view key, int64_t x) {
    out.push_back({prefix + std::string(key), Type::u32, x});
  };
  const auto number = [&](std::string_view key, float x) {
    out.push_back({prefix + std::string(key), Type::f32, static_cast<double>(x)});
  };
  if (row.expert_width != "feed_forward_length" && !row.halves)
    size("feed_forward_length", row.dense_first || row.llama4         ? c.dense_width
                                : row.shared == SharedExperts::beside ? c.shared_width
                                                                      : c.expert_width);
  size(row.expert_width, c.expert_width);
  size("expert_count", c.routing.experts);
  size("expert_used_count", c.routing.top_k);
  if (row.dense_first && !row.dense_by_tensors) size(kDenseFirst, c.layers - c.moe_layer_count());
  if (row.shared == SharedExperts::counted)
    size("expert_shared_count", c.shared_experts * c.shared_width / c.expert_width);
  if (row.shared_width != SharedWidth::unsaid) size(kSharedWidth, said_shared_width(row, c));
  if (!row.step.empty()) size(row.step, row.llama4 ? llama4_step(c) : 1);
  if (row.shared == SharedExperts::gated || row.shared == SharedExperts::one ||
      (row.may_lack_shared() && c.shared_experts > 0))
    size(kSharedWidth, c.shared_experts * c.shared_width);
  if (row.gating != GgufGating::softmax || row.weighs_as_said)
    size(kGgufGating, static_cast<int64_t>(row.gating));
  if (!row.weighs_as_said) {
    if (row.shared == SharedExperts::counted) number(kScale, 1);  // it must stand there
    return;
  }
  const RoutingSpec spec = eval_spec(c.routing);
  number(kScale, std::get<ChosenScores>(spec.weigh).scale);
  out.push_back({prefix + kNorm, Type::boolean, row.renormalises});
  const auto* grouped = std::get_if<GroupedTopK>(&spec.select);
  if (grouped == nullptr || grouped->groups == 1) return;
  size(kGroups, grouped->groups);
  size(kGroupsKept, grouped->keep);
}

void add_gguf_dense(std::vector<GgufEntry>& out, const std::string& prefix,
                    const GgufArchitecture& row, const ModelConfig& c) {
  const auto size = [&](std::string_view key, int64_t x) {
    out.push_back({prefix + std::string(key), GgufEntry::Type::u32, x});
  };
  if (!row.halves) size("feed_forward_length", c.dense_width);
  if (!row.latent()) return;
  size(kDenseFirst, c.layers);
  size("expert_feed_forward_length", c.dense_width);
  size("expert_shared_count", 0);
}

}  // namespace moe
