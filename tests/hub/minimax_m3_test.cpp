// MiniMax-M3's configs, as transformers writes them and as they were published, within the config
// of a model of pictures too; the names of its tensors, and its GGUF files.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "formats/safetensors.h"
#include "hub/configs.h"
#include "hub/folder/architectures.h"
#include "hub/folder/config_json.h"
#include "hub/gguf_configs.h"
#include "hub/gguf_files.h"
#include "hub/hub.h"
#include "hub/published_configs.h"
#include "hub/saved_folder.h"
#include "model/cost.h"
#include "support/check.h"
#include "support/files.h"

namespace moe::test::minimax_m3_test {
namespace {

using gguf_files::ChangedGguf;
using gguf_files::logits_of;

// The defaults of the class (transformers:minimax_m3_vl/configuration_minimax_m3_vl.py), and lists
// as the published model has them.
Json minimax_m3() {
  Json json = Json::parse(R"({
    "architectures": ["MiniMaxM3VLForCausalLM"], "attention_dropout": 0.0,
    "dense_intermediate_size": 12288, "head_dim": 128, "hidden_act": "silu", "hidden_size": 6144,
    "index_block_size": 128, "index_head_dim": 128, "index_local_blocks": 1, "index_n_heads": 4,
    "index_topk_blocks": 16, "initializer_range": 0.02, "intermediate_size": 3072,
    "max_position_embeddings": 524288, "model_type": "minimax_m3_vl_text",
    "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 60,
    "num_key_value_heads": 4, "num_local_experts": 128, "output_router_logits": false,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000000.0,
                        "partial_rotary_factor": 0.5},
    "rotary_dim": 64, "routed_scaling_factor": 2.0, "router_aux_loss_coef": 0.001,
    "router_jitter_noise": 0.0, "shared_intermediate_size": 3072, "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0, "tie_word_embeddings": false, "use_cache": true,
    "vocab_size": 200064})");
  for (int64_t i = 0; i < 60; ++i) {
    json["layer_types"].push_back(i < 3 ? "full_attention" : "minimax_m3_sparse");
    json["mlp_layer_types"].push_back(i < 3 ? "dense" : "sparse");
  }
  return json;
}

// The text's part by the words of other programs that read the published one.
Json published_text() {
  Json json = minimax_m3();
  for (const char* key :
       {"index_block_size", "index_head_dim", "index_local_blocks", "index_n_heads",
        "index_topk_blocks", "layer_types", "mlp_layer_types", "rope_parameters",
        "router_aux_loss_coef", "router_jitter_noise", "architectures", "model_type"})
    json.erase(key);
  json.update(Json::parse(R"({
    "attention_output_gate": false, "hidden_act": "swigluoai", "n_shared_experts": 1,
    "num_mtp_modules": 7, "partial_rotary_factor": 0.5, "qk_norm_type": "per_head",
    "rope_theta": 5000000, "scoring_func": "sigmoid", "use_gemma_norm": true, "use_qk_norm": true,
    "use_routing_bias": true,
    "sparse_attention_config": {
      "use_sparse_attention": true, "sparse_index_dim": 128, "sparse_num_index_heads": 4,
      "sparse_topk_blocks": 16, "sparse_block_size": 128, "sparse_score_type": "max",
      "sparse_init_block": 0, "sparse_local_block": 1}})"));
  for (int64_t i = 0; i < 60; ++i) {
    json["moe_layer_freq"].push_back(i < 3 ? 0 : 1);
    for (const char* key : {"sparse_disable_index_value", "sparse_attention_freq"})
      json["sparse_attention_config"][key].push_back(i < 3 ? 0 : 1);
  }
  return json;
}

TEST(MiniMaxM3, IsReadAsWhatItIs) {
  const Json given = minimax_m3();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "minimax_m3_vl_text");
  EXPECT_EQ(c.dense_first, 3);
  EXPECT_EQ(c.moe_layer_count(), 57);
  EXPECT_EQ(c.act, ops::Act::swiglu_oai);
  EXPECT_TRUE(c.norm_offset && !c.ffn_bias);
  EXPECT_EQ(c.routing.recipe, "deepseek-v3");
  EXPECT_EQ(std::get<ChosenScores>(eval_spec(c.routing).weigh).scale, 2.0f);
  EXPECT_TRUE(c.shared_experts == 1 && c.shared_width == 3072 && !c.shared_gate);
  const AttentionShape whole = c.attention(2), sparse = c.attention(3);
  EXPECT_EQ(whole.top + whole.index_heads + whole.block, 0);
  EXPECT_EQ(sparse.top, 2048);
  EXPECT_EQ(sparse.block, 128);
  EXPECT_EQ(sparse.local, 1);
  EXPECT_EQ(sparse.index_heads, 4);
  EXPECT_EQ(sparse.index_width, 128);
  EXPECT_EQ(sparse.rotary_width, 64);
  EXPECT_EQ(sparse.qk_norm, QkNorm::head);
  const int64_t attention = 6144 * (2 * 64 * 128 + 2 * 4 * 128) + 2 * 128,
                indexer = 6144 * (4 * 128 + 128) + 2 * 128, row = 3 * 6144;
  EXPECT_EQ(count_params(c).total(), 2 * int64_t{200064} * 6144 + 6144 +
                                         60 * (2 * 6144 + attention) + 57 * indexer +
                                         3 * row * 12288 + 57 * (128 * 6144 + 129 * row * 3072));
  EXPECT_NEAR(static_cast<double>(count_params(c).total()), 426.2e9, 0.1e9);
  EXPECT_EQ(count_params(c).frozen, 57 * indexer);
  EXPECT_EQ(count_params(c).buffers, 57 * 128);
  // the published model's 1,024 numbers of keys and values a layer, and 128 of an indexer
  EXPECT_EQ(count_memory(c).kv_per_token_bf16, 2 * (60 * 1024 + 57 * 128));
  expect_same(parse_json(config_to_json(c), "x"), c);
}

TEST(MiniMaxM3, AsItWasPublished) {
  const ModelConfig c = parse(minimax_m3());
  const Json text = published_text();
  Json whole = {{"architectures", {"MiniMaxM3SparseForConditionalGeneration"}},
                {"model_type", "minimax_m3_vl"},
                {"image_token_index", 200025},
                {"projector_hidden_size", 6144},
                {"vision_config", {{"model_type", "clip_vision_model"}}},
                {"text_config", text}};
  ModelConfig read = parse(whole);
  EXPECT_EQ(read.model_type, "minimax_m3_vl_text");
  EXPECT_EQ(read.routing.coef.balance, 0);  // of which it says nothing
  read.routing.coef.balance = c.routing.coef.balance;
  EXPECT_EQ(config_to_json(read), config_to_json(c));
  // both ways at once
  Json both = minimax_m3();
  both["sparse_attention_config"] = text["sparse_attention_config"];
  both["moe_layer_freq"] = text["moe_layer_freq"];
  expect_same(both, c);
}

TEST(MiniMaxM3, OfOtherLayers) {
  Json given = minimax_m3();
  given["mlp_layer_types"][5] = "dense";
  given["layer_types"][0] = "minimax_m3_sparse";
  const ModelConfig listed = parse(given);
  EXPECT_TRUE(!listed.is_moe(5) && !listed.is_moe(2) && listed.is_moe(3));
  EXPECT_EQ(listed.attention(0).top, 2048);
  EXPECT_EQ(listed.attention(1).top, 0);
  expect_same(parse_json(config_to_json(listed), "x"), listed);
  given = minimax_m3();
  for (Json& type : given["layer_types"]) type = "full_attention";
  const ModelConfig whole = parse(given);
  EXPECT_FALSE(whole.sparse.present());
  expect_same(parse_json(config_to_json(whole), "x"), whole);
  for (const char* key : {"index_block_size", "index_n_heads"}) given.erase(key);
  expect_same(given, whole);
}

TEST(MiniMaxM3, Refuses) {
  const Json given = minimax_m3();
  expect_needed(given,
                {"head_dim", "index_block_size", "index_n_heads", "index_topk_blocks",
                 "index_local_blocks", "layer_types", "mlp_layer_types", "routed_scaling_factor",
                 "dense_intermediate_size", "shared_intermediate_size"});
  expect_refused(given, {{"n_shared_experts", 2},
                         {"use_gemma_norm", false},
                         {"qk_norm_type", "per_layer"},
                         {"attention_output_gate", true},
                         {"use_routing_bias", false},
                         {"scoring_func", "softmax"}});
  EXPECT_FAILS(parse(with(given, "swiglu_alpha", 1.5)), "\"swiglu_alpha\" is 1.5");
  EXPECT_FAILS(parse(with(given, "rotary_dim", 32)), "does not go with");
  EXPECT_FAILS(parse(with(given, "index_block_size", 96)), "blocks of 96 tokens are chosen");
  EXPECT_FAILS(parse(with(given, "index_n_heads", 2)), "an indexer has 2 heads");
  EXPECT_FAILS(parse(with(given, "index_local_blocks", 17)), "the last 17 of them always");
  Json other = given;
  other["layer_types"][7] = "sliding_attention";
  EXPECT_FAILS(parse(other), "\"layer_types\" has \"sliding_attention\" at layer 7");
  other = given;
  other["moe_layer_freq"] = std::vector<int64_t>(60, 1);
  EXPECT_FAILS(parse(other), "\"moe_layer_freq\" lists other layers");
  other = given;
  for (Json& type : other["mlp_layer_types"]) type = "dense";
  EXPECT_FAILS(parse(other), "no layer routes by \"mlp_layer_types\"");
  const auto refused_of_object = [&](const char* key, const Json& value, const char* why) {
    Json text = published_text();
    text["model_type"] = "minimax_m3_vl_text";
    text["sparse_attention_config"][key] = value;
    EXPECT_FAILS(parse(text), why);
  };
  refused_of_object("use_sparse_attention", false, "\"use_sparse_attention\" is false");
  refused_of_object("sparse_score_type", "mean", "\"sparse_score_type\" is \"mean\"");
  refused_of_object("sparse_init_block", 1, "\"sparse_init_block\" is 1");
  refused_of_object("sparse_disable_index_value", std::vector<int64_t>(60, 0),
                    "indexers with values of their own");
  refused_of_object("sparse_attention_freq", std::vector<int64_t>(59, 1), "lists 59 layers");
  refused_of_object("sparse_heads", 1, "sparse_heads");
  Json text = published_text();
  text["model_type"] = "minimax_m3_vl_text";
  text["index_topk_blocks"] = 8;
  EXPECT_FAILS(parse(text), "\"sparse_topk_blocks\" says another number");
}

// What it cannot say others can.
TEST(MiniMaxM3, SaysNoMoreThanItHas) {
  for (const auto change : {+[](ModelConfig& c) { c.norm_offset = false; },
                            +[](ModelConfig& c) { c.act = ops::Act::silu; },
                            +[](ModelConfig& c) { c.shared_experts = 2; },
                            +[](ModelConfig& c) { c.qk_norm = QkNorm::none; }}) {
    ModelConfig c = parse(minimax_m3());
    change(c);
    EXPECT_EQ(architecture_of(c).model_type, "moe_cpp");
    expect_same(parse_json(config_to_json(c), "x"), c);
  }
  EXPECT_FAILS(architecture_of(parse(minimax_m3()), "minimax_m2", "here"), "is sparse");
}

TEST(MiniMaxM3, TensorsAreCalledAsTheFamilyCallsThem) {
  const TempFolder folder;
  const auto model = drawn_model(small_family("minimax_m3_vl_text"), 5);
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  const Safetensors file = Safetensors::open(folder.path());
  const auto shape = [&](const std::string& name) {
    return describe(file.get("model.layers." + name));
  };
  EXPECT_EQ(shape("1.self_attn.indexer.q_proj.weight"), "f32 [8, 8]");
  EXPECT_EQ(shape("1.self_attn.indexer.k_proj.weight"), "f32 [4, 8]");
  EXPECT_EQ(shape("1.self_attn.indexer.q_norm.weight"), "f32 [4]");
  EXPECT_EQ(shape("1.self_attn.indexer.k_norm.weight"), "f32 [4]");
  EXPECT_FALSE(file.contains("model.layers.0.self_attn.indexer.q_proj.weight"));
  EXPECT_EQ(shape("0.mlp.gate_up_proj.weight"), "f32 [24, 8]");
  EXPECT_EQ(shape("0.mlp.down_proj.weight"), "f32 [8, 12]");
  EXPECT_EQ(shape("1.mlp.shared_experts.gate_up_proj.weight"), "f32 [12, 8]");
  EXPECT_EQ(shape("1.mlp.experts.gate_up_proj"), "f32 [3, 12, 8]");
  EXPECT_EQ(shape("1.mlp.gate.e_score_correction_bias"), "f32 [3]");
}

// Under the published names, and those that transformers gives it within a model of pictures, it is
// the same model, which others lie beside.
TEST(MiniMaxM3, IsReadUnderOtherNames) {
  const auto model = drawn_model(small_family("minimax_m3_vl_text"), 5);
  const Architecture& row = find_model_type("minimax_m3_vl_text", "here");
  ASSERT_EQ(row.other_names.size(), 2u);
  for (const TensorNames* names : row.other_names) {
    const TempFolder folder;
    save_model(folder.path(), *model, *make_tokenizer("bytes"));
    std::vector<SafetensorsItem> items = items_of(map_tensors(*names, *model), DType::f32, false);
    const Tensor one = model->find(Part::norms, ParamKind::final_norm, -1)->value;
    for (const char* name : {"model.mtp.layers.0.norm.weight", "patch_merge_mlp.linear_1.bias",
                             "multi_modal_projector.linear_1.bias"})
      items.push_back({name, one, DType::f32});
    for (SafetensorsItem& item : items)
      if (item.name.starts_with("model.") || item.name.starts_with("lm_head."))
        item.name = "language_model." + item.name;
    write_safetensors(folder / "model.safetensors", items);
    const Safetensors file = Safetensors::open(folder.path());
    for (const char* name : {"1.self_attn.index_q_proj.weight", "1.self_attn.index_k_norm.weight",
                             "0.mlp.gate_proj.weight", "1.block_sparse_moe.gate.weight",
                             "1.block_sparse_moe.experts.2.w3.weight",
                             "1.block_sparse_moe.shared_experts.down_proj.weight"})
      EXPECT_TRUE(file.contains(std::string("language_model.model.layers.") + name)) << name;
    const Json text = read_json(folder / "config.json");
    put(folder / "config.json",
        Json({{"model_type", "minimax_m3_vl"}, {"text_config", text}}).dump());
    EXPECT_FAILS(open_model(folder.path(), {}), "lie beside the model of text");
    const LoadedModel loaded = open_model(folder.path(), {}, {}, BesideText::leave_out);
    EXPECT_EQ(loaded.left_out.size(), 2u);
    for (size_t i = 0; i < model->params().size(); ++i) {
      const Param &got = *loaded.model->params()[i], &want = *model->params()[i];
      SCOPED_TRACE(want.name);
      if (want.value.rank < 2) EXPECT_EQ(values(got.value), values(want.value));
      for (int64_t e = 0; want.value.rank >= 2 && e < want.value.matrices(); ++e)
        EXPECT_EQ(values(got.expert(e)), values(want.expert(e)));
    }
  }
}

// A norm's 1 is part of its weight there, and layers without an indexer see all.
TEST_F(ChangedGguf, MiniMaxM3) {
  using Type = GgufEntry::Type;
  start("minimax-m3");
  EXPECT_EQ(std::get<int64_t>(entry("minimax-m3.attention.indexer.top_k").value), 3);
  EXPECT_EQ(std::get<int64_t>(entry("minimax-m3.attention.indexer.block_size").value), 64);
  EXPECT_EQ(std::get<int64_t>(entry("minimax-m3.attention.indexer.local_blocks").value), 2);
  EXPECT_EQ(std::get<int64_t>(entry("minimax-m3.leading_dense_block_count").value), 1);
  EXPECT_TRUE(file_->contains("blk.1.indexer.q_proj.weight"));
  EXPECT_FALSE(file_->contains("blk.0.indexer.q_proj.weight"));
  std::vector<double> norm =
      values(model_->find(Part::attention, ParamKind::index_q_norm, 1)->value);
  for (double& w : norm) w = static_cast<double>(static_cast<float>(w + 1));
  EXPECT_EQ(values(file_->get("blk.1.indexer.q_norm.weight")), norm);
  write();
  const ModelConfig got = gguf_config(folder_ / "b.gguf"), &c = model_->config();
  EXPECT_EQ(
      std::tuple(got.sparse.top, got.sparse.heads, got.sparse.width, got.sparse.block,
                 got.sparse.local),
      std::tuple(c.sparse.top, c.sparse.heads, c.sparse.width, c.sparse.block, c.sparse.local));
  EXPECT_EQ(got.sparse.whole_layers, c.sparse.whole_layers);
  EXPECT_EQ(logits_of(*load_model(folder_ / "b.gguf").model), logits_of(*model_));
  EXPECT_EQ(architecture_of(got).model_type, "minimax_m3_vl_text");
  set({"minimax-m3.attention.indexer.block_size", Type::u32, int64_t{96}});
  expect_refused("blocks of 96 tokens are chosen");
  std::erase_if(target_.metadata, [&](const GgufEntry& e) {
    return e.key == "minimax-m3.attention.indexer.block_size";
  });
  expect_refused("key \"minimax-m3.attention.indexer.block_size\" is missing");
}

}  // namespace
}  // namespace moe::test::minimax_m3_test
