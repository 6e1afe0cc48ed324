// How configs of the families say what their experts are, which layers have them and how the router
// scores: a row for each way of saying it. family_experts.cpp reads and writes them.
#pragma once

#include <optional>
#include <string>

#include "core/json.h"
#include "model/config.h"

namespace moe {

// Which layers route. first: those behind the first ones, which are dense and counted under a key;
// first_or_types: the same, or as "mlp_layer_types" says of each layer "dense" or "sparse", and
// both are written; first_or_list: the same, and only the count is written. types: as that list
// says, in any order, and all where it is missing. step: each "decoder_sparse_step"th that is not
// in "mlp_only_layers". own: as the row's own reader says; mixers: those that the reader of
// what mixes tokens (family_mixers.h) has found, or none.
enum class MoeLayers { all, first, first_or_types, first_or_list, types, step, own, mixers };

// gated: one with a gate, as wide as a key says; one: without a gate; one_or_none: the same, and
// none where the width is 0; branch: one beside the routed ones with norms of its own; alike: one,
// as wide as a routed one; counted: at least one, each as wide; counted_or_none: or none.
enum class FamilyShared { none, gated, one, one_or_none, branch, alike, counted, counted_or_none };

// Whether a softmax router's weights are divided by their sum; said: as "norm_topk_prob" says.
enum class Renormalised { said, always, never };

struct FamilyExperts {
  // Of these, null: there is none, or the row's own reader knows it.
  const char *count_key = "num_experts", *top_k_key = "num_experts_per_tok";
  const char* other_top_k_key = nullptr;  // where it stands, before the other
  const char* width_key = "moe_intermediate_size";
  const char* dense_width_key = nullptr;  // of dense layers
  bool dense_as_experts = false;          // they are as wide as an expert where it is missing

  MoeLayers layers = MoeLayers::all;
  const char* dense_first_key = "first_k_dense_replace";
  // With `first_or_...`, where neither key stands; empty: one has to.
  std::optional<int64_t> dense_first_otherwise = 1;
  const char* every_key = nullptr;  // of these layers only each so manyth routes
  bool every_needed = false;

  FamilyShared shared = FamilyShared::none;
  const char* shared_key = nullptr;      // their number, or of one its width
  bool shared_needed = true;             // else none where their number is missing
  const char* one_shared_key = nullptr;  // says that it is one

  // The recipe of a softmax router, and of one whose weights are divided, if another.
  const char *recipe = "qwen2-moe", *renormalised_recipe = nullptr;
  Renormalised norm = Renormalised::said;
  bool only_recipe = false;          // it is the family's own, and no other can be said
  bool several_chosen = false;       // one combine weight alone is divided by nothing
  bool first_deepseek = false;       // losses, and what it refuses, are the first DeepSeek's
  bool clamped = false;              // FFNs are gpt-oss's clamped SwiGLUs
  bool biased = false;               // experts have biases
  const char* switch_key = nullptr;  // says whether there are experts
  // Where their number is 0 the shared one is all there is, and the other keys need not stand
  // there.
  bool or_shared_alone = false;

  // The router as stages of no published recipe; `scores_said`: or a softmax, as
  // "expert_selection_fn" says, and shared experts join as a key says too (Cohere's).
  std::string (*stages)(bool renormalise) = nullptr;
  bool scores_said = false;

  // What only this row has, once the sizes and the layers are known.
  void (*read)(const JsonReader&, ModelConfig&) = nullptr;
  void (*write)(Json&, const ModelConfig&) = nullptr;
  // Then these have the router too, and nothing else asks what the row can say.
  std::string (*why_not)(const ModelConfig&) = nullptr;

  bool counts_shared() const {
    return shared == FamilyShared::counted || shared == FamilyShared::counted_or_none;
  }
  // Whether some of the family's models have none.
  bool may_be_none() const {
    return switch_key != nullptr || or_shared_alone || layers == MoeLayers::mixers;
  }
  bool dense_first() const {
    return layers == MoeLayers::first || layers == MoeLayers::first_or_types ||
           layers == MoeLayers::first_or_list;
  }
};

// A router that scores by more than a softmax: what the family's code does where its config says
// nothing, and the words of the configs that were published.
struct FamilyRouter {
  const char *recipe = "deepseek-v3", *score = "sigmoid";
  const char* method = "";   // empty: there is no key of it
  bool greedy = false;       // it may also choose among all, by the method "greedy"
  bool renormalises = true;  // weights are divided by their sum
  bool groups = true;  // the config has the keys of groups of experts, and a factor of the weights
  // Where there is no key of a method; null: nor one of this.
  const char* bias_key = "use_routing_bias";
  bool scale = false;  // then a factor of the weights all the same
  const char *score_key = "scoring_func", *scale_key = "routed_scaling_factor",
             *norm_key = "norm_topk_prob";
  bool score_flag = false;  // the key of the score holds no word: true is this one
  const char* groups_key = "n_group";
  // Under which transformers saves them; null: under the same.
  const char *other_groups_key = nullptr, *other_norm_key = nullptr;
  bool scale_or_one = false;  // there may be no factor, which is 1 then
};

}  // namespace moe
