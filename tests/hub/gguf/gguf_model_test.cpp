// Models in GGUF files: what is saved computes the same when it is loaded back, keys that change
// the mathematics cannot be left out, and what llama.cpp has no words for takes our own form and
// says why.
#include <cmath>
#include <set>

#include "hub/folder/config_json.h"
#include "hub/gguf/gguf_config.h"
#include "hub/gguf/gguf_model.h"
#include "hub/gguf_files.h"
#include "support/check.h"
#include "support/files.h"
#include "support/param_named.h"
#include "tensor/quant.h"
#include "text/tokenizer.h"

namespace moe::test::gguf_model_test {
namespace {

using gguf_files::ChangedGguf;
using gguf_files::drawn_model;
using gguf_files::logits_of;
using gguf_files::save;

TEST(GgufModel, EveryArchitectureComputesTheSameWhenLoadedBack) {
  std::set<std::string> seen;
  for (const auto& [name, config] : gguf_configs()) {
    SCOPED_TRACE(name);
    seen.insert(name + (config.moe_layer_count() > 0 ? config.routing.recipe : ""));
    TempFolder folder;
    const auto model = drawn_model(config);
    const std::vector<double> want = logits_of(*model);
    save(folder / "a.gguf", *model);
    EXPECT_EQ(Gguf::open(folder / "a.gguf").text("general.architecture"), name);
    EXPECT_TRUE(is_gguf(folder / "a.gguf"));
    for (const bool trained : {true, false}) {
      const LoadedModel loaded =
          trained ? load_model(folder / "a.gguf") : open_model(folder / "a.gguf", {});
      EXPECT_EQ(logits_of(*loaded.model), want);
      EXPECT_EQ(loaded.model->config().context, config.context);
      EXPECT_EQ(loaded.model->config().tied, config.tied);
      EXPECT_EQ(loaded.tokenizer->vocab_size(), 300);
      // What was loaded saves to the same bytes.
      save(folder / "b.gguf", *loaded.model);
      EXPECT_EQ(slurp(folder / "b.gguf") == slurp(folder / "a.gguf"), true);
    }
  }
  for (const GgufArchitecture& row : gguf_architectures())
    if (!row.read_only)
      EXPECT_TRUE(seen.contains(fmt::format("{}{}", row.name, row.recipe))) << row.title;
}

// A quantised file is the model whose weights went through the same blocks in memory.
TEST(GgufModel, QuantisedFilesHoldWhatQuantisingInMemoryGives) {
  for (const DType dtype : {DType::q8_0, DType::bf16, DType::f16}) {
    for (const auto& [name, config] : gguf_configs()) {
      SCOPED_TRACE(fmt::format("{} {}", name, name_of(dtype)));
      TempFolder folder;
      const auto model = drawn_model(config);
      save(folder / "a.gguf", *model, dtype);
      const auto target = gguf_target(*model, *make_tokenizer("bytes"));
      for (const FileTensor& tensor : target.tensors) {
        if (gguf_files::stays_f32(*model, tensor) ||
            tensor.shape.back() % block_of(dtype).elements != 0)
          continue;
        for (const FileTensor::Piece& piece : tensor.pieces) {
          const Tensor& value = piece.param->value;
          std::vector<std::byte> blocks(static_cast<size_t>(bytes_of(dtype, value.cols())));
          for (int64_t r = 0; r < value.rows(); ++r) {
            quantise(blocks.data(), value.row<float>(r), dtype, value.cols());
            dequantise(value.row<float>(r), blocks.data(), dtype, value.cols());
          }
          piece.param->touched();
        }
      }
      EXPECT_EQ(logits_of(*load_model(folder / "a.gguf").model), logits_of(*model));
      const LoadedModel bound = open_model(folder / "a.gguf", {});
      int64_t layer = 1;  // or another that has attention
      const auto of_attention = [&](const char* matrix) {
        return param_named(*bound.model, fmt::format("layers.{}.attn.{}.weight", layer, matrix));
      };
      while (of_attention("o") == nullptr) layer = (layer + 1) % config.layers;
      EXPECT_EQ(of_attention("o")->value.dtype, dtype);
      if (!config.latent.present()) EXPECT_EQ(of_attention("q")->value.dtype, dtype);
      const char* norm =
          config.states_pre_norm ? "layers.1.norm1_out.weight" : "layers.1.norm1.weight";
      if (config.norm_weights) EXPECT_EQ(param_named(*bound.model, norm)->value.dtype, DType::f32);
      // Rows of blocks are copied, not quantised again.
      save(folder / "b.gguf", *bound.model, dtype);
      EXPECT_EQ(slurp(folder / "b.gguf") == slurp(folder / "a.gguf"), true);
    }
  }
}

// llama.cpp turns neighbours in some architectures: row 2c + s of a head there is row c + s C/2
// here, C being how much of a head turns.
TEST(GgufModel, RowsOfQueriesAndKeysArePaired) {
  for (const auto& [name, config] : gguf_configs()) {
    if (config.positions == Positions::learned || config.latent.present() || config.attention_gate)
      continue;
    SCOPED_TRACE(name);
    TempFolder folder;
    const auto model = drawn_model(config);
    save(folder / "a.gguf", *model);
    const Gguf file = Gguf::open(folder / "a.gguf");
    const bool paired =
        std::set<std::string>{"llama",        "deepseek",      "smollm3", "granite",   "granitemoe",
                              "ernie4_5-moe", "glm4",          "arcee",   "command-r", "cohere2",
                              "mistral3",     "granitehybrid", "chatglm", "llama4",    "olmo"}
            .contains(name);
    // queries, keys and values in one
    const bool fused = name == "bailingmoe2" || name == "phi3" || name == "gptneox";
    int64_t layer = 1;  // or another that has attention
    const auto of_layer = [&](std::string_view ours) {
      return param_named(*model, fmt::format("layers.{}.{}", layer, ours));
    };
    while (of_layer("attn.q.weight") == nullptr) layer = (layer + 1) % model->config().layers;
    const auto check = [&, config = config](const char* theirs, const char* ours,
                                            int64_t before = 0) {
      const Tensor there = file.get(fmt::format("blk.{}.{}", layer, theirs)),
                   here = of_layer(ours)->value;
      const int64_t width = config.head_width, rows = here.rank == 1 ? here.cols() : here.rows(),
                    turned = config.rotary_width > 0 ? config.rotary_width : width,
                    cols = here.rank == 1 ? 1 : here.cols();
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t c = r % width,
                      from = paired && c < turned ? r - c + c / 2 + (c % 2) * turned / 2 : r;
        for (int64_t i = 0; i < cols; ++i)
          ASSERT_EQ(there.as<float>()[(before + r) * cols + i], here.as<float>()[from * cols + i])
              << theirs << " row " << r;
      }
    };
    if (fused) {
      const int64_t q = config.q_width(), kv = config.kv_heads * config.head_width;
      check("attn_qkv.weight", "attn.q.weight");
      check("attn_qkv.weight", "attn.k.weight", q);
      check("attn_qkv.weight", "attn.v.weight", q + kv);
      continue;
    }
    check("attn_q.weight", "attn.q.weight");
    check("attn_k.weight", "attn.k.weight");
    if (config.attention_bias) check("attn_q.bias", "attn.q.bias");
    if (config.full.values_of_keys) {
      EXPECT_FALSE(file.contains("blk.1.attn_v.weight"));
      continue;
    }
    const Tensor v = file.get(fmt::format("blk.{}.attn_v.weight", layer));
    EXPECT_EQ(
        std::memcmp(v.data, of_layer("attn.v.weight")->value.data, static_cast<size_t>(v.bytes())),
        0);
  }
}

TEST(GgufModel, ConfigsSurvive) {
  for (const auto& [name, config] : gguf_configs()) {
    SCOPED_TRACE(name);
    TempFolder folder;
    save(folder / "a.gguf", *drawn_model(config));
    const ModelConfig got = gguf_config(folder / "a.gguf");
    EXPECT_EQ(got.vocab, config.vocab);
    EXPECT_EQ(got.norm_eps, config.norm_eps);
    EXPECT_EQ(got.head_width, config.head_width);
    EXPECT_EQ(got.kv_heads, config.kv_heads);
    EXPECT_EQ(got.qk_norm, config.qk_norm);
    EXPECT_EQ(got.attention_bias, config.attention_bias);
    EXPECT_EQ(got.attention_out_bias, config.attention_out_bias);
    EXPECT_EQ(got.ffn_bias, config.ffn_bias);
    EXPECT_EQ(got.routing.recipe, config.routing.recipe);
    EXPECT_EQ(got.routing.experts, config.routing.experts);
    EXPECT_EQ(got.routing.top_k, config.routing.top_k);
    EXPECT_EQ(got.shared_experts * got.shared_width, config.shared_experts * config.shared_width);
    EXPECT_EQ(got.dense_first, config.dense_first);
    EXPECT_EQ(got.norm_placement, config.norm_placement);
    EXPECT_EQ(got.rotary_width, config.rotary_width);
    EXPECT_EQ(got.nope_layers, config.nope_layers);
    EXPECT_EQ(got.window_layers, config.window_layers);
    EXPECT_EQ(got.attention_window, config.attention_window);
    EXPECT_EQ(got.attention_sinks, config.attention_sinks);
    EXPECT_EQ(got.latent.width, config.latent.width);
    EXPECT_EQ(got.latent.query_width, config.latent.query_width);
    EXPECT_EQ(got.latent.value_width, config.latent.value_width);
    EXPECT_EQ(got.multipliers.embedding, config.multipliers.embedding);
    EXPECT_EQ(got.multipliers.residual, config.multipliers.residual);
    EXPECT_EQ(got.multipliers.attention, config.multipliers.attention);
    EXPECT_EQ(got.multipliers.logits, config.multipliers.logits);
    EXPECT_FLOAT_EQ(got.rope_scaling.score_mscale, config.rope_scaling.score_mscale);
    EXPECT_EQ(got.rope_scaling.truncate, config.rope_scaling.truncate);
    EXPECT_EQ(got.query_growth.beta, config.query_growth.beta);
    EXPECT_EQ(got.query_growth.context, config.query_growth.context);
    if (config.moe_layer_count() > 0) {
      const RoutingSpec a = eval_spec(got.routing), b = eval_spec(config.routing);
      EXPECT_EQ(a.select.index(), b.select.index());
      if (const auto* grouped = std::get_if<GroupedTopK>(&b.select)) {
        EXPECT_EQ(std::get<GroupedTopK>(a.select).groups, grouped->groups);
        EXPECT_EQ(std::get<GroupedTopK>(a.select).keep, grouped->keep);
      }
      if (const auto* weigh = std::get_if<ChosenScores>(&b.weigh))
        EXPECT_EQ(std::get<ChosenScores>(a.weigh).scale, weigh->scale);
    }
    if (config.positions == Positions::rope) EXPECT_EQ(got.rope_theta, config.rope_theta);
    if (name == "moe_cpp") EXPECT_EQ(config_to_json(got), config_to_json(config));
    const RopeScaling &a = got.rope_scaling, &b = config.rope_scaling;
    EXPECT_EQ(a.kind, b.kind);
    EXPECT_EQ(a.factor, b.factor);
    EXPECT_EQ(a.original_context, b.original_context);
    EXPECT_FLOAT_EQ(a.attention_factor, b.attention_factor);
    EXPECT_FLOAT_EQ(a.long_attention_factor, b.long_attention_factor);
    EXPECT_EQ(a.short_factors, b.short_factors);
    EXPECT_EQ(a.long_factors, b.long_factors);
  }
}

// Heads of 128 with theta 500000, as Llama 3.1 has them: what transformers' rope_type "llama3"
// divides its frequencies by.
TEST(GgufModel, Llama3Factors) {
  const RopeScaling scaling{
      .kind = RopeScaling::Kind::llama3, .factor = 8, .original_context = 8192};
  const std::vector<float> factors = llama3_factors(scaling, 500000, 128);
  ASSERT_EQ(factors.size(), 64u);
  const float blended[] = {1, 1.2075f, 1.5534f, 2.0263f, 2.6945f, 3.6843f, 5.2573f, 8};
  for (size_t i = 0; i < 64; ++i)
    EXPECT_NEAR(factors[i], i < 28 ? 1 : i > 35 ? 8 : blended[i - 28], 1e-4) << i;
}

TEST_F(ChangedGguf, EveryKeyThatChangesTheMathematicsIsNeeded) {
  for (const char* name : {"gpt2", "llama", "deepseek", "qwen2moe", "deepseek2", "granitemoe",
                           "gpt-oss", "command-r", "cohere2", "mistral3"}) {
    start(name);
    const std::string prefix = std::string(name) + ".";
    // Without these a file means what docs/gguf.md says, and llama.cpp does.
    const std::set<std::string> optional = {"vocab_size",
                                            "attention.key_length",
                                            "attention.value_length",
                                            "attention.head_count_kv",
                                            "rope.dimension_count",
                                            "expert_weights_scale",
                                            "expert_group_count",
                                            "expert_gating_func",
                                            "embedding_scale",
                                            "residual_scale",
                                            "attention.scale",
                                            "rope.scaling.finetuned",
                                            "attention.temperature_scale",
                                            "rope.scaling.yarn_beta_fast",
                                            "rope.scaling.yarn_beta_slow"};
    // Without these it means another model, whose tensors or keys these are not.
    const std::set<std::string> telling = {
        "attention.q_lora_rank", "attention.key_length_mla", "leading_dense_block_count",
        "expert_weights_norm",   "rope.scaling.type",        "expert_shared_feed_forward_length"};
    const std::vector<GgufEntry> whole = target_.metadata;
    int needed = 0;
    for (const GgufEntry& entry : whole) {
      if (!entry.key.starts_with(prefix) || optional.contains(entry.key.substr(prefix.size())))
        continue;
      if (entry.key == "qwen2moe.feed_forward_length" || entry.key == "gpt-oss.feed_forward_length")
        continue;  // every layer routes
      target_.metadata = whole;
      std::erase_if(target_.metadata, [&](const GgufEntry& e) { return e.key == entry.key; });
      if (entry.key.ends_with("expert_count"))
        expect_refused(prefix == "llama." || prefix == "deepseek2." ? "there are no experts"
                                                                    : "needs \"expert_count\"");
      else if (prefix != "deepseek." && telling.contains(entry.key.substr(prefix.size())))
        expect_refused("");
      else expect_refused("key \"" + entry.key + "\" is missing");
      ++needed;
    }
    EXPECT_GE(needed, 6) << name;
    tensors_.clear();
  }
}

TEST_F(ChangedGguf, WhatIsNotSupportedIsRefusedByItsKey) {
  using Type = GgufEntry::Type;
  start("deepseek");
  const std::vector<GgufEntry> whole = target_.metadata;
  const auto with = [&](const GgufEntry& entry) {
    target_.metadata = whole;
    std::erase_if(target_.metadata, [&](const GgufEntry& e) { return e.key == entry.key; });
    target_.metadata.push_back(entry);
  };
  with({"deepseek.expert_weights_scale", Type::f32, 2.5});
  expect_refused(
      "key \"deepseek.expert_weights_scale\" is 2.5; llama.cpp's versions differ in whether they "
      "apply it, so only 1 is supported");
  with({"deepseek.expert_gating_func", Type::u32, int64_t{2}});
  expect_refused("key \"deepseek.expert_gating_func\" is 2; the router is a softmax (1)");
  with({"deepseek.expert_weights_norm", Type::boolean, true});
  expect_refused(
      "key \"deepseek.expert_weights_norm\" is true, but llama.cpp's graph of DeepSeekMoE does the "
      "other");
  with({"deepseek.logit_scale", Type::f32, 0.5});
  expect_refused(
      "key \"deepseek.logit_scale\" is not known here, and it may change what the model computes");
  with({"deepseek.rope.dimension_count", Type::u32, int64_t{4}});
  expect_refused("heads are rotated whole, so only 8 is supported");
  with({"deepseek.rope.scaling.type", Type::string, std::string("longrope")});
  expect_refused("\"longrope\", which is not supported (none, linear and yarn are)");
  with({"deepseek.expert_used_count", Type::u32, int64_t{7}});
  expect_refused("key \"deepseek.expert_used_count\" is 7; it must be 1 to 6");
  with({"deepseek.attention.head_count", Type::u32s, std::vector<int64_t>{4, 4, 4}});
  expect_refused(
      "key \"deepseek.attention.head_count\" is a list of integers; an integer is needed");
  with({"deepseek.embedding_length", Type::u32, int64_t{1} << 23});
  expect_refused("they do not belong together");
  with({"deepseek.block_count", Type::u32, int64_t{4000}});
  expect_refused("they do not belong together");
  with({"general.architecture", Type::string, std::string("deepsek")});
  expect_refused(
      "architecture \"deepsek\" of key \"general.architecture\" is not supported; did you mean "
      "\"deepseek\"?");
}

// What the converter says beside what is written here, or leaves out, changes nothing.
TEST_F(ChangedGguf, KeysOfLlamaCppsConverter) {
  using Type = GgufEntry::Type;
  const float whole = 1 + 0.1f * std::log(4.0f);
  const GgufEntry layers = {"olmo2.attention.sliding_window_pattern", Type::booleans,
                            std::vector<bool>{true, true, true, false}};
  struct Case {
    const char* architecture;
    std::vector<GgufEntry> with;
    std::string without = {};
  };
  for (const Case& given :
       {Case{"hunyuan-moe",
             {{"hunyuan-moe.rope.scaling.type", Type::string, std::string("none")},
              {"hunyuan-moe.rope.scaling.factor", Type::f32, 1.0},
              {"hunyuan-moe.rope.scaling.original_context_length", Type::u32, int64_t{262144}},
              {"hunyuan-moe.expert_shared_count", Type::u32, int64_t{1}}}},
        Case{"ernie4_5-moe", {{"ernie4_5-moe.expert_shared_count", Type::u32, int64_t{2}}}},
        Case{"bailingmoe2",
             {{"bailingmoe2.rope.scaling.type", Type::string, std::string("none")},
              {"bailingmoe2.nextn_predict_layers", Type::u32, int64_t{0}}},
             "bailingmoe2.expert_shared_feed_forward_length"},
        Case{"exaone-moe",
             {{"exaone-moe.rope.scaling.type", Type::string, std::string("none")},
              {"exaone-moe.nextn_predict_layers", Type::u32, int64_t{0}},
              {"exaone-moe.attention.sliding_window_pattern", Type::booleans,
               std::vector<bool>{true, true, true, false, true}}},
             "exaone-moe.expert_shared_feed_forward_length"},
        Case{"afmoe",
             {{"afmoe.attention.sliding_window_pattern", Type::u32, int64_t{4}}},
             "afmoe.expert_gating_func"},
        // Nemotron's, whose "norm_eps" is taken for an RMSNorm's too.
        Case{"nemotron",
             {{"nemotron.rope.scaling.type", Type::string, std::string("none")},
              {"nemotron.attention.layer_norm_rms_epsilon", Type::f32, 1e-5}}},
        // Nemotron-H's, which says what of a head would turn where something did.
        Case{"nemotron_h",
             {{"nemotron_h.rope.dimension_count", Type::u32, int64_t{8}},
              {"nemotron_h.rope.scaling.finetuned", Type::boolean, false},
              {"nemotron_h.attention.layer_norm_epsilon", Type::f32, 1e-5}},
             "nemotron_h.rope.freq_base"},
        Case{"nemotron_h_moe",
             {{"nemotron_h_moe.expert_shared_count", Type::u32, int64_t{1}}},
             "nemotron_h_moe.expert_gating_func"},
        // Qwen3-Coder's, whose config says that it has none.
        Case{"qwen3moe", {{"qwen3moe.expert_shared_feed_forward_length", Type::u32, int64_t{0}}}},
        Case{"qwen35moe",
             {{"qwen35moe.attention.recurrent_layers", Type::booleans,
               std::vector<bool>{true, false, true}}}},
        Case{"qwen3next",
             {{"qwen3next.attention.recurrent_layers", Type::booleans,
               std::vector<bool>{true, false, true}}},
             "qwen3next.full_attention_interval"},
        Case{"qwen35",
             {{"qwen35.attention.recurrent_layers", Type::booleans,
               std::vector<bool>{true, false, true}}},
             "qwen35.full_attention_interval"},
        Case{"mellum",
             {{"mellum.attention.sliding_window_pattern", Type::booleans,
               std::vector<bool>{true, true, true, false}},
              {"mellum.rope.scaling.yarn_attn_factor", Type::f32, double{whole}}}},
        Case{"command-r", {{"command-r.rope.scaling.type", Type::string, std::string("none")}}},
        Case{"cohere2",
             {{"cohere2.rope.scaling.type", Type::string, std::string("none")},
              {"cohere2.attention.sliding_window_pattern", Type::u32, int64_t{4}}}},
        // GLM-4.5V's
        Case{"glm4moe",
             {{"glm4moe.rope.dimension_sections", Type::i32s, std::vector<int64_t>{1, 1, 2, 0}}}},
        Case{"olmo2", {layers, {"olmo2.rope.scaling.yarn_attn_factor", Type::f32, double{whole}}}},
        Case{"olmo2", {layers, {"olmo2.rope.scaling.attn_factor", Type::f32, double{whole}}}},
        Case{"deepseek2", {}, "deepseek2.expert_gating_func"}}) {
    SCOPED_TRACE(given.architecture);
    tensors_.clear();
    start(given.architecture);
    for (const GgufEntry& entry : given.with) set(entry);
    const size_t entries = target_.metadata.size();
    std::erase_if(target_.metadata, [&](const GgufEntry& e) { return e.key == given.without; });
    EXPECT_EQ(target_.metadata.size() + (given.without.empty() ? 0 : 1), entries);
    write();
    EXPECT_EQ(config_to_json(gguf_config(folder_ / "b.gguf")), config_to_json(gguf_config(path_)));
    EXPECT_EQ(logits_of(*load_model(folder_ / "b.gguf").model),
              logits_of(*load_model(path_).model));
  }
}

// Qwen2-VL's and Qwen3-VL's: keys under a name of their own, and some of pictures.
TEST_F(ChangedGguf, TheTextOfAModelOfPictures) {
  using Type = GgufEntry::Type;
  for (const auto& [text, pictures] : {std::pair<std::string, std::string>{"qwen2", "qwen2vl"},
                                       {"qwen3", "qwen3vl"},
                                       {"qwen3moe", "qwen3vlmoe"}}) {
    SCOPED_TRACE(pictures);
    tensors_.clear();
    start(text);
    for (GgufEntry& entry : target_.metadata)
      if (entry.key.starts_with(text + ".")) entry.key.replace(0, text.size(), pictures);
    set({"general.architecture", Type::string, pictures});
    const std::string sections = pictures + ".rope.dimension_sections";
    set({sections, Type::i32s, std::vector<int64_t>{2, 1, 1, 0}});
    set({pictures + ".n_deepstack_layers", Type::u32, int64_t{3}});
    write();
    EXPECT_EQ(config_to_json(gguf_config(folder_ / "b.gguf")), config_to_json(gguf_config(path_)));
    EXPECT_EQ(logits_of(*load_model(folder_ / "b.gguf").model),
              logits_of(*load_model(path_).model));
    set({sections, Type::i32s, std::vector<int64_t>{2, 1, 1, 4}});
    expect_refused("gives 4 to a fourth axis, along which no text moves");
  }
}

// The indexers of GLM-5 turn neighbours; older files leave it to their tensors which layers have
// one.
TEST_F(ChangedGguf, Glm5) {
  using Type = GgufEntry::Type;
  start("glm-dsa");
  const Tensor file = file_->get("blk.2.indexer.attn_k.weight"),
               here = model_->find(Part::attention, ParamKind::index_k, 2)->value;
  for (const auto& [theirs, ours] : {std::pair{1, 4}, {2, 1}, {6, 3}, {7, 7}, {8, 8}, {15, 15}})
    EXPECT_EQ(values(file.slice_rows(theirs, theirs + 1)), values(here.slice_rows(ours, ours + 1)))
        << theirs;
  EXPECT_FALSE(file_->contains("blk.1.indexer.attn_k.weight"));
  EXPECT_EQ(file_->get("blk.0.indexer.proj.weight").dtype, DType::f32);
  const auto expect_same = [&] {
    write();
    const SparseAttention got = gguf_config(folder_ / "b.gguf").sparse;
    EXPECT_EQ(std::tuple(got.top, got.heads, got.width), std::tuple(6, 3, 16));
    EXPECT_EQ(got.followers, std::vector<int64_t>{1});
    EXPECT_EQ(logits_of(*load_model(folder_ / "b.gguf").model), logits_of(*model_));
  };
  const std::string types = "glm-dsa.attention.indexer.types";
  EXPECT_EQ(std::get<std::vector<bool>>(entry(types).value),
            (std::vector<bool>{true, false, true}));
  expect_same();
  std::erase_if(target_.metadata, [&](const GgufEntry& e) { return e.key == types; });
  expect_same();
  set({types, Type::booleans, std::vector<bool>{true, true}});
  expect_refused("key \"glm-dsa.attention.indexer.types\" lists 2 layers of 3");
  set({types, Type::booleans, std::vector<bool>{false, false, true}});
  expect_refused("layer 0 has no indexer");
  set({types, Type::booleans, std::vector<bool>{true, true, true}});
  expect_refused("there is no tensor \"blk.1.indexer.");
  set({types, Type::booleans, std::vector<bool>{true, false, true}});
  set({"glm-dsa.attention.indexer.block_size", Type::u32, int64_t{4}});
  expect_refused("key \"glm-dsa.attention.indexer.block_size\" is not known here");
}

TEST_F(ChangedGguf, KeysThatDisagreeAreRefused) {
  using Type = GgufEntry::Type;
  start("qwen3moe");
  set({"qwen3moe.expert_shared_feed_forward_length", Type::u32, int64_t{96}});
  expect_refused("it has no shared experts, so only 0 is supported");
  tensors_.clear();
  start("bailingmoe2");
  set({"bailingmoe2.expert_shared_feed_forward_length", Type::u32, int64_t{96}});
  expect_refused("shared experts are as wide as the others, so only 32 is supported");
  tensors_.clear();
  start("exaone-moe");
  set({"exaone-moe.attention.sliding_window_pattern", Type::booleans,
       std::vector<bool>{true, false, true, false, true}});
  expect_refused("lists other layers; every layer of K-EXAONE but each 4th has a window");
  set({"exaone-moe.attention.sliding_window_pattern", Type::u32, int64_t{4}});
  set({"exaone-moe.expert_shared_feed_forward_length", Type::u32, int64_t{32}});
  expect_refused("shared experts are as wide as the others, so only 64 is supported");
  tensors_.clear();
  start("qwen35moe");
  set({"qwen35moe.attention.recurrent_layers", Type::booleans, std::vector<bool>{true, false}});
  expect_refused("key \"qwen35moe.attention.recurrent_layers\" lists 2 layers of 3");
  tensors_.clear();
  start("ernie4_5-moe");
  set({"ernie4_5-moe.expert_shared_count", Type::u32, int64_t{1}});
  expect_refused("so only 2 is supported");
  tensors_.clear();
  start("mellum");
  set({"mellum.attention.sliding_window_pattern", Type::u32, int64_t{6}});
  expect_refused("so only 4 is supported");
  tensors_.clear();
  start("olmo2");
  const std::vector<GgufEntry> as_written = target_.metadata;
  set({"olmo2.rope.scaling.yarn_attn_factor", Type::f32, 1.5});
  expect_refused("key \"olmo2.rope.scaling.yarn_attn_factor\" is 1.5; llama.cpp takes 1.138");
  for (const std::vector<bool>& layers :
       {std::vector<bool>{true, true, false, true}, std::vector<bool>{true, true, true}}) {
    target_.metadata = as_written;
    set({"olmo2.attention.sliding_window_pattern", Type::booleans, layers});
    expect_refused("lists other layers; every layer of OLMo 3 but each 4th has a window");
  }
}

// A file that does not say them has the usual ones; the largest model, known by its layers, divides
// scores by another root than others.
TEST_F(ChangedGguf, CapsOfGemma2) {
  start("gemma2");
  const auto read = [&] {
    write();
    return open_model(folder_ / "b.gguf", {}).model->config();
  };
  EXPECT_EQ(read().score_cap, 1.5f);
  EXPECT_EQ(read().logit_cap, 3);
  std::erase_if(target_.metadata,
                [](const GgufEntry& e) { return e.key.ends_with("softcapping"); });
  EXPECT_EQ(read().score_cap, 50);
  EXPECT_EQ(read().logit_cap, 30);
  set({"gemma2.attn_logit_softcapping", GgufEntry::Type::f32, 0.0});
  expect_refused("key \"gemma2.attn_logit_softcapping\" is 0; it must be at least");
  ModelConfig large = model_->config();
  large.layers = 46;
  large.window_layers.clear();
  for (int64_t i = 0; i < large.layers; i += 2) large.window_layers.push_back(i);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "its multipliers are others",
                      gguf_form_of(large).why_own);
  large.multipliers.attention = 1 / std::sqrt(static_cast<float>(large.width / large.heads));
  EXPECT_EQ(gguf_form_of(large).why_own, "");
}

// llama.cpp's converter leaves the base of rotary angles out of files of Gemma (github
// ggml-org/llama.cpp conversion/gemma.py).
TEST_F(ChangedGguf, GemmasWithoutARotaryBase) {
  for (const char* name : {"gemma", "gemma2"}) {
    tensors_.clear();
    start(name);
    std::erase_if(target_.metadata,
                  [](const GgufEntry& e) { return e.key.ends_with(".rope.freq_base"); });
    write();
    EXPECT_EQ(open_model(folder_ / "b.gguf", {}).model->config().rope_theta, 10000) << name;
  }
}

// Files from before llama.cpp knew windows do not say how far one reaches (github
// ggml-org/llama.cpp src/models/gemma2.cpp).
TEST_F(ChangedGguf, Gemma2WithoutAWindow) {
  start("gemma2");
  const std::string window = "gemma2.attention.sliding_window";
  std::erase_if(target_.metadata, [&](const GgufEntry& e) { return e.key == window; });
  write();
  const ModelConfig c = gguf_config(folder_ / "b.gguf");
  EXPECT_EQ(c.attention_window, 4096);
  EXPECT_EQ(c.window_layers, (std::vector<int64_t>{0, 2}));
  set({window, GgufEntry::Type::u32, int64_t{0}});
  expect_refused("key \"gemma2.attention.sliding_window\" is 0; it must be");
}

TEST_F(ChangedGguf, TensorsAreRefusedByName) {
  start("olmoe");
  const std::vector<NamedTensor> whole = tensors_;
  const auto find = [&](const char* name) {
    return std::ranges::find(tensors_, name, &NamedTensor::name);
  };
  tensors_.erase(find("blk.1.ffn_up_exps.weight"));
  expect_refused("there is no tensor \"blk.1.ffn_up_exps.weight\"");
  tensors_ = whole;
  find("blk.1.ffn_up_exps.weight")->name = "blk.1.ffn_up_exp.weight";
  expect_refused("did you mean \"blk.1.ffn_up_exp.weight\"?");
  tensors_ = whole;
  tensors_.push_back({"blk.1.attn_norm.scale", find("blk.1.attn_norm.weight")->value});
  expect_refused("tensor \"blk.1.attn_norm.scale\" is no part of the model");
  tensors_ = whole;
  find("blk.1.ffn_gate_inp.weight")->value =
      find("blk.1.ffn_gate_inp.weight")->value.reshape({32, 4});
  expect_refused("it looks transposed");
  tensors_ = whole;
  const int32_t zeros[32] = {};
  tensors_.erase(find("blk.1.attn_norm.weight"));
  tensors_.push_back(
      {"blk.1.attn_norm.weight", Tensor(const_cast<int32_t*>(zeros), DType::i32, {32})});
  expect_refused("tensor \"blk.1.attn_norm.weight\" is i32 [32]; weights must be");
}

TEST_F(ChangedGguf, FactorsOfAnotherKindThanLlama3s) {
  start("llama");
  model_.reset();
  for (const auto& [row, config] : gguf_configs())
    if (row == "llama" && config.rope_scaling.kind == RopeScaling::Kind::llama3)
      model_ = drawn_model(config);
  target_ = gguf_target(*model_, *make_tokenizer("bytes"));
  save(path_, *model_);
  const Gguf file = Gguf::open(path_);
  tensors_ = file.tensors();
  const float odd[] = {1, 3, 2, 8};
  std::ranges::find(tensors_, "rope_freqs.weight", &NamedTensor::name)->value =
      Tensor(const_cast<float*>(odd), DType::f32, {4});
  expect_refused(
      "tensor \"rope_freqs.weight\" divides the rotary frequencies in another way than Llama 3's "
      "scaling");
}

TEST_F(ChangedGguf, OurOwnFormIsReadAsAConfigOfAFolder) {
  model_ = drawn_model(carved_config("carved"));
  start();
  const std::string text = std::get<std::string>(entry("moe_cpp.config").value);
  const auto with = [&](const std::string& what, const std::string& instead) {
    ASSERT_NE(text.find(what), std::string::npos) << what;
    std::string changed = text;
    entry("moe_cpp.config").value = changed.replace(changed.find(what), what.size(), instead);
  };
  EXPECT_NO_THROW(open_model(path_, {}));
  with("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4000");
  expect_refused("the file's metadata asks for a model of");
  with("\"moe_intermediate_size\": 32", "\"moe_intermediate_size\": 10000000");
  expect_refused("they do not belong together");
  with("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2");
  expect_refused("lie beside the model of text that the file's metadata describes");
  with("\"expert_down_bias\": true,", "");
  expect_refused("is no part of the model");
  with("\"num_experts_per_tok\": 3,", "");
  expect_refused("key \"moe_cpp.config\": \"num_experts_per_tok\" is missing");
  with("\"num_experts_per_tok\": 3", "\"num_experts_per_tok\": 7");
  expect_refused("key \"moe_cpp.config\": ");
  with("\"gated_mlp\"", "\"gated\": 1, \"gated_mlp\"");
  expect_refused("key \"moe_cpp.config\": \"gated\" ");
  with("{", "");
  expect_refused("key \"moe_cpp.config\": ");
  entry("moe_cpp.config").value = text + std::string(size_t{16} << 20, ' ');
  expect_refused("key \"moe_cpp.config\": ");
  entry("moe_cpp.config").value = text;
  target_.metadata.push_back({"moe_cpp.block_count", GgufEntry::Type::u32, int64_t{3}});
  expect_refused("key \"moe_cpp.block_count\" is not known here");
  target_.metadata.pop_back();
  std::erase_if(target_.metadata, [](const GgufEntry& e) { return e.key == "moe_cpp.config"; });
  expect_refused("key \"moe_cpp.config\" is missing");
}

// What llama.cpp cannot say takes our own form, and why is said.
// llama.cpp's converter keeps gates and ups of Gemma 4's experts in one tensor, and writes which
// pairs of a head turn as factors.
TEST(GgufModel, Gemma4AsItsConverterWritesIt) {
  for (const auto& [name, config] : gguf_configs()) {
    if (name != "gemma4" || config.moe_layer_count() == 0) continue;
    TempFolder folder;
    const auto model = drawn_model(config);
    save(folder / "a.gguf", *model);
    const Gguf file = Gguf::open(folder / "a.gguf");
    const Tensor factors = file.get("rope_freqs.weight");
    ASSERT_EQ(factors.numel(), 12);
    for (int64_t i = 0; i < 12; ++i)
      EXPECT_EQ(factors.as<float>()[i], i < 3 ? 1.0f : 1e30f) << i;  // 0.25 of 24 / 2
    EXPECT_EQ(file.flags("gemma4.attention.sliding_window_pattern")[0], true);
    std::vector<GgufItem> items;
    std::vector<std::vector<float>> fused;
    fused.reserve(static_cast<size_t>(config.layers));
    for (const NamedTensor& t : file.tensors()) {
      const Tensor value = t.value;
      std::vector<int64_t> shape(value.shape.begin(), value.shape.begin() + value.rank);
      if (t.name.find("ffn_up_exps") != std::string::npos) continue;
      if (const size_t at = t.name.find("ffn_gate_exps"); at != std::string::npos) {
        const Tensor up = file.get(t.name.substr(0, at) + "ffn_up_exps.weight");
        const auto each = static_cast<size_t>(value.numel() / shape[0]);
        std::vector<float>& both = fused.emplace_back();
        for (size_t e = 0; e < static_cast<size_t>(shape[0]); ++e)
          for (const float* from : {value.as<float>(), up.as<float>()})
            both.insert(both.end(), from + e * each, from + (e + 1) * each);
        shape[1] *= 2;
        const int64_t cols = shape[2], rows = shape[0] * shape[1];
        items.push_back({t.name.substr(0, at) + "ffn_gate_up_exps.weight", DType::f32, shape,
                         [&both, rows, cols](int64_t) {
                           return Tensor(both.data(), DType::f32, {rows, cols});
                         }});
        continue;
      }
      items.push_back({t.name, DType::f32, shape, [value](int64_t) { return value; }});
    }
    write_gguf(folder / "b.gguf", gguf_target(*model, *make_tokenizer("bytes")).metadata, items);
    EXPECT_EQ(logits_of(*load_model(folder / "b.gguf").model), logits_of(*model));
  }
}

TEST(GgufModel, WhyOwn) {
  const auto refused = [](const ModelConfig& config, const char* reason) {
    const auto [architecture, why_own] = gguf_form_of(config);
    EXPECT_EQ(architecture, &own_gguf_architecture());
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, reason, why_own);
  };
  ModelConfig c = moe_config("olmoe");
  c.qk_norm = QkNorm::full;
  refused(c,
          "none of its architectures that are known here supports this model; OLMoE (\"olmoe\") "
          "comes nearest, but "
          "heads share keys and values");
  c.kv_heads = c.heads;
  c.routing.norm_topk_prob = true;
  refused(c,
          "OLMoE (\"olmoe\") comes nearest, but recipe 'olmoe' divides the weights of the chosen "
          "by their sum");
  c = moe_config("deepseek-v2", 8, 2);
  make_latent(c);
  c.shared_experts = 1;
  c.shared_width = 32;
  refused(c,
          "DeepSeek-V2 (\"deepseek2\") comes nearest, but recipe 'deepseek-v2' takes a group for "
          "as good as its best expert");
  c.routing.expert_groups = c.routing.groups_kept = 1;
  EXPECT_EQ(gguf_form_of(c).why_own, "");
  c.rope_scaling = {.kind = RopeScaling::Kind::yarn, .factor = 4, .original_context = 8};
  refused(c, "its YaRN scales what turns otherwise than what does not");
  c.rope_scaling = {};
  c.layers = 27;
  c.latent.query_width = 16;
  refused(c, "it has 27 layers, as DeepSeek-V2-Lite has, and latents of queries");
  refused(moe_config("expert-choice"), "does not choose the k largest scores");
  refused(moe_config("nanomoe"), "recipe 'nanomoe' has weights for its noise");
  refused(small_shared(), "OLMo (\"olmo\") comes nearest, but some of its layers route");
  c = dense_config();
  c.act = ops::Act::gelu;
  refused(c, "its activation is another");
  c = moe_config("mixtral");
  c.moe_every = 2;
  refused(c, "layer 1 is dense");
}

// Training noise and capacity are no part of what a model computes when it is evaluated.
TEST(GgufModel, RecipesThatEvaluateAlikeAreOneArchitecture) {
  ModelConfig c = moe_config("switch", 4, 1);
  c.qk_norm = QkNorm::full;
  c.kv_heads = c.heads;
  EXPECT_EQ(gguf_form_of(c).architecture->name, "olmoe");
  EXPECT_EQ(gguf_form_of(moe_config("gshard")).architecture->title, "Mixtral");
}

}  // namespace
}  // namespace moe::test::gguf_model_test
