// What sets single architectures of llama.cpp's apart: their keys and tensors, and what a model
// must be for one to say it.
#include <set>

#include "hub/gguf_files.h"

namespace moe::test::gguf_rows_test {
namespace {

using gguf_files::ChangedGguf;
using gguf_files::drawn_model;
using gguf_files::expect_back_from_folder;
using gguf_files::logits_of;
using gguf_files::save;

// Its layers of linear attention have no key/value heads. The converter writes convolutions and
// decays in four dimensions, of which llama-quantize leaves out the first ones.
TEST_F(ChangedGguf, KimiLinear) {
  using Type = GgufEntry::Type;
  start("kimi-linear");
  const std::string prefix = "kimi-linear.", heads = prefix + "attention.head_count_kv";
  EXPECT_EQ(std::get<std::vector<int64_t>>(entry(heads).value), (std::vector<int64_t>{0, 1, 0}));
  EXPECT_EQ(describe(file_->get("blk.2.ssm_a")), "f32 [4, 1]");
  EXPECT_EQ(values(file_->get("blk.2.ssm_a")), std::vector<double>(4, -1));
  const Tensor conv = model_->find(Part::attention, ParamKind::linear_conv, 2)->value;
  int64_t row = 0;
  for (const char* part : {"q", "k", "v"}) {
    const Tensor there = file_->get(fmt::format("blk.2.ssm_conv1d_{}.weight", part));
    EXPECT_EQ(describe(there), "f32 [64, 1, 4]");
    EXPECT_EQ(values(there), values(conv.slice_rows(row, row + 64)));
    row += 64;
  }
  for (const char* name : {"blk.0.attn_output.weight", "blk.0.ssm_dt.bias", "blk.1.attn_k_b.weight",
                           "blk.1.attn_q.weight", "output.weight"})
    EXPECT_TRUE(file_->contains(name)) << name;
  const std::vector<GgufEntry> whole = target_.metadata;
  for (NamedTensor& t : tensors_) {
    const auto& d = t.value.shape;
    if (t.name.find("ssm_conv1d_") != std::string::npos)
      t.value = t.value.reshape({1, d[0], 1, d[2]});
    if (t.name.ends_with("ssm_a")) t.value = t.value.reshape({1, 1, d[0], 1});
  }
  for (const char* key : {"expert_weights_norm", "attention.q_lora_rank"})
    std::erase_if(target_.metadata, [&](const GgufEntry& e) { return e.key == prefix + key; });
  set({prefix + "attention.value_length", Type::u32, int64_t{72}});
  write();
  EXPECT_EQ(logits_of(*load_model(folder_ / "b.gguf").model), logits_of(*model_));
  EXPECT_EQ(logits_of(*open_model(folder_ / "b.gguf", {}).model), logits_of(*model_));
  expect_back_from_folder(folder_ / "b.gguf", folder_, *model_, "kimi_linear");
  for (const char* key :
       {"kda.head_dim", "ssm.conv_kernel", "attention.kv_lora_rank", "attention.key_length_mla",
        "attention.value_length_mla", "attention.head_count_kv", "rope.dimension_count",
        "expert_shared_count", "feed_forward_length"}) {
    target_.metadata = whole;
    std::erase_if(target_.metadata, [&](const GgufEntry& e) { return e.key == prefix + key; });
    expect_refused("key \"" + prefix + key + "\" is missing");
  }
  const auto refused_with = [&](const GgufEntry& entry, const char* reason) {
    target_.metadata = whole;
    set(entry);
    expect_refused(reason);
  };
  refused_with({heads, Type::u32s, std::vector<int64_t>{0, 4, 0}},
               "has 4 at layer 1; all heads share the latents, so only 1 is supported");
  refused_with({heads, Type::u32s, std::vector<int64_t>{0, 1}}, "lists 2 layers of 3");
  refused_with({prefix + "attention.q_lora_rank", Type::u32, int64_t{16}},
               "queries are made of the token, so only 0 is supported");
  refused_with({prefix + "expert_weights_norm", Type::boolean, false},
               "are not divided by their sum");
  refused_with({prefix + "rope.scaling.type", Type::string, std::string("yarn")},
               "key \"kimi-linear.rope.scaling.type\" is not known here");
}

// Logits are multiplied there and divided here; one norm stands before both sublayers, without a
// bias.
TEST_F(ChangedGguf, CommandR) {
  using Type = GgufEntry::Type;
  start("command-r");
  EXPECT_EQ(std::get<double>(entry("command-r.logit_scale").value), 0.0625);
  EXPECT_TRUE(file_->contains("blk.1.attn_norm.weight"));
  for (const char* name :
       {"blk.1.ffn_norm.weight", "blk.1.attn_norm.bias", "output_norm.bias", "output.weight"})
    EXPECT_FALSE(file_->contains(name)) << name;
  const std::vector<GgufEntry> whole = target_.metadata;
  set({"command-r.logit_scale", Type::f32, 0.5});
  write();
  EXPECT_EQ(gguf_config(folder_ / "b.gguf").multipliers.logits, 2);
  std::vector<double> eightfold = logits_of(*model_);
  for (double& x : eightfold) x *= 8;
  EXPECT_EQ(logits_of(*load_model(folder_ / "b.gguf").model), eightfold);
  set({"command-r.logit_scale", Type::f32, 0.0});
  expect_refused("key \"command-r.logit_scale\" is 0; it must be at least");
  target_.metadata = whole;
  set({"command-r.block_count", Type::u32, int64_t{64}});
  expect_refused("with 64 layers or more queries and keys of Command R have LayerNorms");
}

// Queries grow from YaRN's original context on, whether frequencies are scaled or not. The text of
// Mistral Small 3.1 is a file of the same name in which they do not grow.
TEST_F(ChangedGguf, Ministral3) {
  using Type = GgufEntry::Type;
  start("mistral3");
  const std::string growth = "mistral3.attention.temperature_scale",
                    context = "mistral3.rope.scaling.original_context_length",
                    multiplier = "mistral3.rope.scaling.yarn_log_multiplier";
  EXPECT_EQ(std::get<double>(entry(growth).value), double{0.3f});
  EXPECT_EQ(std::get<int64_t>(entry(context).value), 4);
  EXPECT_EQ(std::get<double>(entry(multiplier).value), 1);
  set({"mistral3.rope.scaling.yarn_attn_factor", Type::f32, 1.0});
  write();
  EXPECT_EQ(logits_of(*load_model(folder_ / "b.gguf").model), logits_of(*model_));
  for (const char* key : {"log_multiplier", "attn_factor"}) {
    const std::vector<GgufEntry> whole = target_.metadata;
    set({fmt::format("mistral3.rope.scaling.yarn_{}", key), Type::f32, 0.5});
    expect_refused("llama.cpp's versions differ in what another does, so only 1 is supported");
    target_.metadata = whole;
  }
  const auto leave_out = [&](const std::string& key) {
    std::erase_if(target_.metadata, [&](const GgufEntry& e) { return e.key == key; });
  };
  for (const char* key : {"type", "factor", "yarn_beta_fast", "yarn_beta_slow",
                          "yarn_log_multiplier", "yarn_attn_factor"})
    leave_out(fmt::format("mistral3.rope.scaling.{}", key));
  write();
  EXPECT_EQ(gguf_config(folder_ / "b.gguf").query_growth.context, 4);
  leave_out(context);
  write();
  EXPECT_EQ(gguf_config(folder_ / "b.gguf").query_growth.context, model_->config().context);
  leave_out(growth);
  write();
  const LoadedModel plain = load_model(folder_ / "b.gguf");
  EXPECT_FALSE(plain.model->config().query_growth.present());
  EXPECT_EQ(gguf_form_of(plain.model->config()).architecture->name, "llama");
}

// Its layers of a state space have no key/value heads. What makes a token into one lies in a single
// matrix, decays and what is added in columns, the norm by groups of heads.
TEST_F(ChangedGguf, GraniteHybrid) {
  using Type = GgufEntry::Type;
  model_ = drawn_model(hybrid_config());
  start();
  const std::string prefix = "granitehybrid.", heads = prefix + "attention.head_count_kv",
                    turns = prefix + "rope.scaling.finetuned";
  EXPECT_EQ(std::get<std::vector<int64_t>>(entry(heads).value), (std::vector<int64_t>{0, 2, 0}));
  const auto param = [&](ParamKind kind, bool bias = false) {
    return model_->find(Part::attention, kind, 2, bias)->value;
  };
  const Tensor in = file_->get("blk.2.ssm_in.weight");
  EXPECT_EQ(describe(in), "f32 [196, 32]");
  int64_t row = 0;
  for (const ParamKind kind : {ParamKind::scan_z, ParamKind::scan_xbc, ParamKind::scan_dt}) {
    const Tensor part = param(kind);
    EXPECT_EQ(values(in.slice_rows(row, row + part.rows())), values(part));
    row += part.rows();
  }
  EXPECT_EQ(describe(file_->get("blk.2.ssm_a")), "f32 [4, 1]");
  EXPECT_EQ(values(file_->get("blk.2.ssm_a")), std::vector<double>(4, -1));
  EXPECT_EQ(describe(file_->get("blk.2.ssm_d")), "f32 [4, 1]");
  EXPECT_EQ(values(file_->get("blk.2.ssm_d")), values(param(ParamKind::scan_skip, true)));
  EXPECT_EQ(describe(file_->get("blk.2.ssm_norm.weight")), "f32 [2, 32]");
  EXPECT_EQ(values(file_->get("blk.2.ssm_norm.weight")), values(param(ParamKind::scan_norm)));
  EXPECT_EQ(describe(file_->get("blk.2.ssm_conv1d.weight")), "f32 [128, 4]");
  EXPECT_EQ(std::get<bool>(entry(turns).value), false);

  expect_back_from_folder(path_, folder_, *model_, "granitemoehybrid");

  const std::vector<GgufEntry> whole = target_.metadata;
  const auto without = [&](const std::string& key) {
    target_.metadata = whole;
    std::erase_if(target_.metadata, [&](const GgufEntry& e) { return e.key == key; });
  };
  for (const char* key : {"ssm.conv_kernel", "ssm.inner_size", "ssm.state_size",
                          "ssm.time_step_rank", "ssm.group_count", "attention.head_count"}) {
    without(prefix + key);
    expect_refused("key \"" + prefix + key + "\" is missing");
  }
  without(turns);
  write();
  EXPECT_TRUE(gguf_config(folder_ / "b.gguf").nope_layers.empty());
  without(prefix + "rope.freq_base");
  write();
  EXPECT_EQ(logits_of(*load_model(folder_ / "b.gguf").model), logits_of(*model_));
  const auto refused_with = [&](const GgufEntry& changed, const char* reason) {
    target_.metadata = whole;
    set(changed);
    expect_refused(reason);
  };
  refused_with({heads, Type::u32s, std::vector<int64_t>{0, 2}}, "lists 2 layers of 3");
  refused_with({heads, Type::u32s, std::vector<int64_t>{2, 1, 0}},
               "has 1 at layer 1 and 2 elsewhere; layers are alike here");
  refused_with({prefix + "ssm.time_step_rank", Type::u32, int64_t{3}},
               "key \"granitehybrid.ssm.inner_size\" is 64, which "
               "\"granitehybrid.ssm.time_step_rank\", 3 heads, does not divide");
  refused_with({prefix + "ssm.group_count", Type::u32, int64_t{3}},
               "4 heads of a state space are not 3 groups");
  refused_with({prefix + "ssm.state_size", Type::u32, int64_t{1} << 20}, "it must be 1 to 4096");
}

// Two lists say of each layer whether it is attention, an FFN or a state space, and its norm has
// the name of attention's. A state space lies as Granite 4's.
TEST_F(ChangedGguf, NemotronH) {
  using Type = GgufEntry::Type;
  using List = std::vector<int64_t>;
  model_ = drawn_model(halved_config());
  start();
  const std::string prefix = "nemotron_h_moe.", heads = prefix + "attention.head_count_kv",
                    widths = prefix + "feed_forward_length";
  EXPECT_EQ(std::get<List>(entry(heads).value), (List{0, 2, 0, 0}));
  EXPECT_EQ(std::get<List>(entry(widths).value), (List{0, 0, 32, 32}));
  EXPECT_EQ(entry(prefix + "attention.layer_norm_epsilon").value,
            entry(prefix + "attention.layer_norm_rms_epsilon").value);
  EXPECT_EQ(describe(file_->get("blk.0.ssm_in.weight")), "f32 [196, 32]");
  EXPECT_EQ(describe(file_->get("blk.0.ssm_a")), "f32 [4, 1]");
  EXPECT_EQ(describe(file_->get("blk.0.ssm_norm.weight")), "f32 [2, 32]");
  EXPECT_EQ(values(file_->get("blk.2.attn_norm.weight")),
            values(model_->find(Part::norms, ParamKind::ffn_norm, 2)->value));
  EXPECT_EQ(describe(file_->get("blk.3.ffn_up_shexp.weight")), "f32 [96, 32]");
  for (const char* name : {"blk.0.ffn_norm.weight", "blk.2.ffn_norm.weight",
                           "blk.2.ffn_gate_exps.weight", "blk.2.ffn_gate_shexp.weight"})
    EXPECT_FALSE(file_->contains(name)) << name;

  expect_back_from_folder(path_, folder_, *model_, "nemotron_h");

  const std::vector<GgufEntry> whole = target_.metadata;
  // A layer that predicts further tokens has both.
  set({prefix + "block_count", Type::u32, int64_t{5}});
  set({prefix + "nextn_predict_layers", Type::u32, int64_t{1}});
  set({heads, Type::u32s, List{0, 2, 0, 0, 2}});
  set({widths, Type::u32s, List{0, 0, 32, 32, 32}});
  write();
  EXPECT_EQ(logits_of(*load_model(folder_ / "b.gguf").model), logits_of(*model_));
  const auto refused_with = [&](const GgufEntry& changed, const char* reason) {
    target_.metadata = whole;
    set(changed);
    expect_refused(reason);
  };
  refused_with({widths, Type::u32s, List{0, 32, 32, 32}}, "layer 1 has attention and an FFN");
  refused_with({widths, Type::u32s, List{0, 0, 32, 64}},
               "has 32 at layer 2 and 64 elsewhere; layers are alike here");
  refused_with({widths, Type::u32s, List{0, 0, 32}}, "lists 3 layers of 4");
  refused_with({widths, Type::u32s, List{0, 0, 0, 0}}, "no layer has an FFN");
  refused_with({prefix + "moe_latent_size", Type::u32, int64_t{16}}, "is not known here");
  target_.metadata = whole;
  std::erase_if(target_.metadata, [](const GgufEntry& e) { return e.key.ends_with("inner_size"); });
  expect_refused("key \"nemotron_h_moe.ssm.inner_size\" is missing");
}

// The converter of Granite 4 writes models without a state space as Granite, with keys of one.
TEST_F(ChangedGguf, GraniteWithKeysOfAStateSpace) {
  using Type = GgufEntry::Type;
  ModelConfig c = dense_config();
  c.multipliers = {.embedding = 12, .residual = 0.25f, .attention = 0.5f, .logits = 6};
  model_ = drawn_model(c);
  start();
  const std::string heads = "granite.attention.head_count_kv";
  set({heads, Type::u32s, std::vector<int64_t>{2, 2, 2}});
  for (const char* key : {"ssm.conv_kernel", "ssm.inner_size", "ssm.state_size",
                          "ssm.time_step_rank", "ssm.group_count"})
    set({std::string("granite.") + key, Type::u32, int64_t{4}});
  set({"granite.expert_count", Type::u32, int64_t{0}});
  set({"granite.expert_used_count", Type::u32, int64_t{0}});
  set({"granite.expert_shared_feed_forward_length", Type::u32, int64_t{64}});
  set({"granite.deepstack_mapping", Type::i32s, std::vector<int64_t>{-1, 1, -1}});  // of pictures
  write();
  EXPECT_EQ(logits_of(*load_model(folder_ / "b.gguf").model), logits_of(*model_));
  const std::vector<GgufEntry> whole = target_.metadata;
  set({"granite.rope.scaling.finetuned", Type::boolean, false});
  write();
  EXPECT_EQ(gguf_config(folder_ / "b.gguf").nope_layers, (std::vector<int64_t>{0, 1, 2}));
  target_.metadata = whole;
  set({heads, Type::u32s, std::vector<int64_t>{2, 0, 2}});
  expect_refused("layer 1 has no attention; in a model of this architecture all have");
  target_.metadata = whole;
  set({"granite.expert_shared_feed_forward_length", Type::u32, int64_t{65}});
  expect_refused("the FFN beside experts is all there is, so only 64 is supported");
}

// llama.cpp knows by the number of layers whether it has windows.
TEST_F(ChangedGguf, Exaone4) {
  using Type = GgufEntry::Type;
  start("exaone4");
  EXPECT_EQ(model_->config().layers, 64);
  EXPECT_TRUE(file_->contains("rope_freqs.weight"));
  for (const char* name : {"blk.3.post_attention_norm.weight", "blk.3.post_ffw_norm.weight",
                           "blk.3.attn_q_norm.weight"})
    EXPECT_TRUE(file_->contains(name)) << name;
  std::vector<bool> pattern;
  for (int64_t i = 0; i < 64; ++i) pattern.push_back(i % 4 != 3);
  set({"exaone4.attention.sliding_window_pattern", Type::booleans, pattern});
  write();
  EXPECT_EQ(logits_of(*load_model(folder_ / "b.gguf").model), logits_of(*model_));
  const std::vector<GgufEntry> whole = target_.metadata;
  std::erase_if(target_.metadata, [](const GgufEntry& e) {
    return e.key.starts_with("exaone4.attention.sliding_window");
  });
  expect_refused("\"exaone4.attention.sliding_window\" is missing, but of 64 layers: with 64");
  target_.metadata = whole;
  set({"exaone4.block_count", Type::u32, int64_t{60}});
  expect_refused("\"exaone4.attention.sliding_window\" is there, but of 60 layers: with 64");
  set({"exaone4.block_count", Type::u32, int64_t{64}});
  pattern[3] = true;
  set({"exaone4.attention.sliding_window_pattern", Type::booleans, pattern});
  expect_refused("lists other layers; every layer of EXAONE 4 32B but each 4th has a window");
}

// Phi-3's: gates and ups of an FFN in one tensor, factors of frequencies in two, and a window that
// llama.cpp does not heed.
TEST_F(ChangedGguf, Phi3) {
  using Type = GgufEntry::Type;
  start("phi3");
  ASSERT_EQ(model_->config().rope_scaling.kind, RopeScaling::Kind::longrope);
  EXPECT_EQ(describe(file_->get("blk.1.attn_qkv.weight")), "f32 [64, 32]");
  const Tensor both = file_->get("blk.1.ffn_up.weight");
  EXPECT_EQ(describe(both), "f32 [128, 32]");
  EXPECT_EQ(values(both.slice_rows(0, 64)),
            values(model_->find(Part::dense_ffn, ParamKind::gate, 1)->value));
  EXPECT_EQ(values(both.slice_rows(64, 128)),
            values(model_->find(Part::dense_ffn, ParamKind::up, 1)->value));
  EXPECT_FALSE(file_->contains("blk.1.ffn_gate.weight"));
  EXPECT_EQ(values(file_->get("rope_factors_long.weight")), (std::vector<double>{2, 9}));
  EXPECT_EQ(values(file_->get("rope_factors_short.weight")), (std::vector<double>{1, 1.5}));
  const std::vector<GgufEntry> whole = target_.metadata;
  const std::vector<NamedTensor> all = tensors_;
  const auto config_with = [&](const GgufEntry& changed) {
    target_.metadata = whole;
    set(changed);
    write();
    return gguf_config(folder_ / "b.gguf");
  };
  const std::string window = "phi3.attention.sliding_window";
  EXPECT_EQ(config_with({window, Type::u32, int64_t{0}}).attention_window, 0);
  const ModelConfig windowed = config_with({window, Type::u32, int64_t{5}});
  EXPECT_EQ(windowed.attention_window, 5);
  EXPECT_TRUE(windowed.has_window(0) && windowed.has_window(2));
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "a window of the last tokens only",
                      gguf_form_of(windowed).why_own);
  EXPECT_EQ(config_with({"phi3.rope.scaling.type", Type::string, std::string("longrope")})
                .rope_scaling.original_context,
            8);
  const auto refused_with = [&](const GgufEntry& changed, const char* reason) {
    target_.metadata = whole;
    set(changed);
    expect_refused(reason);
  };
  refused_with({"phi3.rope.scaling.type", Type::string, std::string("yarn")},
               "and tensor \"rope_factors_long.weight\" scale the rotary frequencies");
  refused_with({"phi3.rope.scaling.factor", Type::f32, 2.0},
               "frequencies are divided by factors of their own, so only 1 is supported");
  refused_with({"phi3.rope.scaling.attn_factor", Type::f32, 0.0}, "it must be at least");
  target_.metadata = whole;
  const auto find = [&](const char* name) {
    return std::ranges::find(tensors_, name, &NamedTensor::name);
  };
  tensors_.erase(find("rope_factors_short.weight"));
  expect_refused("rope_factors_short.weight");
  tensors_ = all;
  const float wrong[] = {1, 0, 1};
  find("rope_factors_long.weight")->value = Tensor(const_cast<float*>(wrong), DType::f32, {3});
  expect_refused("tensor \"rope_factors_long.weight\" is f32 [3]; f32 [2] is needed");
  find("rope_factors_long.weight")->value = Tensor(const_cast<float*>(wrong), DType::f32, {2});
  expect_refused("a factor of longrope is not above 0 and finite");
  // Phi-4, of which the converter says a context and no factors.
  tensors_ = all;
  std::erase_if(tensors_, [](const NamedTensor& t) { return t.name.starts_with("rope_factors"); });
  std::erase_if(target_.metadata,
                [](const GgufEntry& e) { return e.key == "phi3.rope.scaling.attn_factor"; });
  write();
  EXPECT_EQ(gguf_config(folder_ / "b.gguf").rope_scaling.kind, RopeScaling::Kind::none);
}

// Files of the first GLM-4 as it was published have queries, keys and values in one tensor, later
// ones as transformers has them.
TEST_F(ChangedGguf, GlmWithFusedAttention) {
  start("chatglm");
  std::vector<std::vector<float>> both;
  both.reserve(static_cast<size_t>(2 * model_->config().layers));
  for (int64_t i = 0; i < model_->config().layers; ++i)
    for (const char* kind : {"weight", "bias"}) {
      std::vector<float>& numbers = both.emplace_back();
      for (const char* part : {"q", "k", "v"}) {
        const std::string name = fmt::format("blk.{}.attn_{}.{}", i, part, kind);
        const Tensor t = file_->get(name);
        numbers.insert(numbers.end(), t.as<float>(), t.as<float>() + t.numel());
        std::erase_if(tensors_, [&](const NamedTensor& each) { return each.name == name; });
      }
      const auto n = static_cast<int64_t>(numbers.size());
      tensors_.push_back({fmt::format("blk.{}.attn_qkv.{}", i, kind),
                          n == 64 ? Tensor(numbers.data(), DType::f32, {64})
                                  : Tensor(numbers.data(), DType::f32, {n / 32, 32})});
    }
  write();
  for (const bool trained : {true, false}) {
    const LoadedModel loaded =
        trained ? load_model(folder_ / "b.gguf") : open_model(folder_ / "b.gguf", {});
    EXPECT_TRUE(loaded.model->config().attention_bias);
    EXPECT_EQ(logits_of(*loaded.model), logits_of(*model_));
  }
  std::erase_if(tensors_, [](const NamedTensor& t) { return t.name == "blk.1.attn_qkv.bias"; });
  expect_refused("there is no tensor \"blk.1.attn_qkv.bias\"");
}

// DeepSeek's attention without experts, of which llama.cpp wants some keys all the same.
TEST_F(ChangedGguf, Youtu) {
  using Type = GgufEntry::Type;
  for (const auto& [row, config] : gguf_configs())
    if (row == "deepseek2" && config.moe_layer_count() == 0) model_ = drawn_model(config);
  ASSERT_NE(model_, nullptr);
  start();
  for (const auto& [key, x] : {std::pair{"leading_dense_block_count", 3},
                               {"expert_feed_forward_length", 64},
                               {"expert_shared_count", 0}})
    EXPECT_EQ(std::get<int64_t>(entry(std::string("deepseek2.") + key).value), x) << key;
  set({"deepseek2.expert_weights_norm", Type::boolean, true});
  write();
  EXPECT_EQ(logits_of(*load_model(folder_ / "b.gguf").model), logits_of(*model_));
  set({"deepseek2.leading_dense_block_count", Type::u32, int64_t{1}});
  expect_refused("all layers are dense, so only 3 is supported");
}

// llama.cpp's converter does not write the base of rotary angles, and says that attention and FFN
// share a norm where a config does not say whether; its graph goes by the tensors.
TEST_F(ChangedGguf, StableLm) {
  using Type = GgufEntry::Type;
  start("stablelm");
  const std::string base = "stablelm.rope.freq_base";
  set({base, Type::f32, 10000.0});
  write();
  const std::vector<double> want = logits_of(*load_model(folder_ / "b.gguf").model);
  std::erase_if(target_.metadata, [&](const GgufEntry& e) { return e.key == base; });
  for (const bool shared : {true, false}) {
    set({"stablelm.use_parallel_residual", Type::boolean, shared});
    write();
    const LoadedModel loaded = load_model(folder_ / "b.gguf");
    EXPECT_EQ(loaded.model->config().rope_theta, 10000);
    EXPECT_EQ(loaded.model->config().norm_placement, NormPlacement::pre);
    EXPECT_EQ(logits_of(*loaded.model), want);
  }
  const std::vector<NamedTensor> whole = tensors_;
  std::erase_if(tensors_,
                [](const NamedTensor& t) { return t.name.find("ffn_norm") != std::string::npos; });
  expect_refused("attention and FFN of this StableLM share a norm, which is not supported");
  tensors_ = whole;
  tensors_.push_back(
      {"blk.0.attn_q_norm.weight", file_->get("blk.0.attn_norm.weight").reshape({4, 8})});
  expect_refused("queries and keys of this StableLM have LayerNorms, which are not supported");
}

// Of each row that is not written a model, and a tensor that its files have.
struct ReadOnly {
  const char *row, *tensor;
  ModelConfig config;
};
std::vector<ReadOnly> read_only_configs() {
  ModelConfig seed = dense_config();
  seed.model_type = "seed_oss";
  seed.head_width = 16;
  seed.attention_bias = true;
  ModelConfig ernie = dense_config();
  ernie.model_type = "ernie4_5";
  ernie.head_width = 16;
  ernie.tied = true;
  ModelConfig hy = grouped_config();
  hy.model_type = "hy_v3";
  hy.routing.expert_groups = hy.routing.groups_kept = 1;
  hy.qk_norm = QkNorm::head;
  hy.head_width = 16;
  return {{"seed_oss", "blk.1.post_attention_norm.weight", seed},
          {"ernie4_5", "blk.1.ffn_norm.weight", ernie},
          {"hy_v3", "blk.1.exp_probs_b", hy}};
}

TEST(GgufRows, RowsThatAreReadOnly) {
  std::set<std::string_view> seen;
  for (const auto& [name, tensor, config] : read_only_configs()) {
    SCOPED_TRACE(name);
    const auto rows = gguf_architectures();
    const auto row = std::ranges::find(rows, std::string_view(name), &GgufArchitecture::name);
    ASSERT_TRUE(row != rows.end() && row->read_only);
    ASSERT_EQ(why_not(*row, config), "");
    seen.insert(row->name);
    TempFolder folder;
    const auto model = drawn_model(config);
    const std::vector<double> want = logits_of(*model);
    gguf_files::save_as(folder / "a.gguf", *model, *row);
    EXPECT_TRUE(Gguf::open(folder / "a.gguf").contains(tensor));
    if (config.sparse.present())  // whose indexers turn halves there, as here
      EXPECT_EQ(values(Gguf::open(folder / "a.gguf").get(tensor)),
                values(model->find(Part::attention, ParamKind::index_k, 1)->value));
    for (const bool trained : {true, false}) {
      const LoadedModel loaded =
          trained ? load_model(folder / "a.gguf") : open_model(folder / "a.gguf", {});
      EXPECT_EQ(logits_of(*loaded.model), want);
      EXPECT_EQ(loaded.model->config().model_type, config.model_type);
      EXPECT_EQ(loaded.model->config().dense_first, config.dense_first);
      save(folder / "b.gguf", *loaded.model);
    }
    const std::string written = Gguf::open(folder / "b.gguf").text("general.architecture");
    EXPECT_TRUE(written != name && written != "moe_cpp") << written;
    EXPECT_EQ(logits_of(*load_model(folder / "b.gguf").model), want);
  }
  for (const GgufArchitecture& row : gguf_architectures()) {
    if (row.read_only) EXPECT_TRUE(seen.contains(row.name)) << row.title;
  }
}

// That none of llama.cpp's architectures says the model, and why.
void expect_own(const ModelConfig& config, const char* reason) {
  const auto [architecture, why_own] = gguf_form_of(config);
  EXPECT_EQ(architecture, &own_gguf_architecture());
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, reason, why_own);
}

TEST(GgufRows, WhyStatesAndWindowsAreOwn) {
  ModelConfig c = hybrid_config();
  EXPECT_EQ(gguf_form_of(c).why_own, "");
  c.scan.conv_bias = false;
  expect_own(c,
             "Granite 4 MoE (\"granitehybrid\") comes nearest, but the convolution of its state "
             "spaces has no bias");
  c = hybrid_config();
  c.scan.groups = 4;
  expect_own(c, "heads of its state spaces are in 4 groups");
  c.scan.width = 24;
  expect_own(c, "its state spaces are not twice as wide as the model");
  c = hybrid_config();
  c.layers = 4;
  for (const GgufArchitecture& row : gguf_architectures()) {
    if (row.title == "Granite 4 MoE") EXPECT_EQ(why_not(row, c), "in layer 3 something turns");
  }
  c = dense_config();
  c.norm_placement = NormPlacement::output;
  c.qk_norm = QkNorm::head;
  EXPECT_EQ(gguf_form_of(c).architecture->title, "EXAONE 4");
  c.layers = 64;
  expect_own(c, "with 64 layers llama.cpp gives it windows");
  c.layers = 4;
  c.attention_window = 5;
  c.window_layers = {0, 1, 2};
  c.nope_layers = {3};
  expect_own(
      c,
      "EXAONE 4 32B (\"exaone4\") comes nearest, but llama.cpp gives it windows only with 64 "
      "layers");
}

TEST(GgufRows, WhyHalvesAreOwn) {
  ModelConfig c = halved_config();
  c.scan.groups = 4;
  c.scan.width = 24;  // sizes that are asked of Granite alone
  EXPECT_EQ(gguf_form_of(c).why_own, "");
  c.scan.conv_bias = false;
  expect_own(c,
             "Nemotron 3 Nano (\"nemotron_h_moe\") comes nearest, but the convolution of its state "
             "spaces has no bias");
  c = halved_config();
  c.moe_layers = {2};
  expect_own(c, "Nemotron 3 Nano (\"nemotron_h_moe\") comes nearest, but layer 3 is dense");
  c = halved_config();
  c.nope_layers.clear();
  expect_own(c, "in layer 1 something turns");
  c = halved_config();
  c.scan = {};
  c.scan_layers.clear();
  c.nope_layers = {0, 1};
  expect_own(c, "none of its layers has a state space");
  c = halved_config();
  c.mixer_only_layers = {0};
  for (const GgufArchitecture& row : gguf_architectures())
    EXPECT_EQ(why_not(row, c), row.halves ? "layer 1 mixes tokens and has an FFN"
                                          : "some of its layers are attention or an FFN alone")
        << row.title;
}

TEST(GgufRows, WhyOwn) {
  ModelConfig c = kimi_config();
  EXPECT_EQ(gguf_form_of(c).why_own, "");
  c.linear.key_heads = c.linear.value_heads = 2;
  expect_own(
      c,
      "Kimi Linear (\"kimi-linear\") comes nearest, but its linear attention has 2 heads, its "
      "other attention 4");
  c = kimi_config();
  c.linear.gate_width = 8;
  expect_own(c, "keys, values and gates of its linear attention are of different widths");
  c.linear.gate_width = 0;
  expect_own(c, "heads of its linear attention have one decay each");
  c.linear.channel_decays = true;
  expect_own(c, "keys, values and gates of its linear attention are of different widths");
  c = kimi_config();
  c.linear.decay_floor = -5;
  expect_own(c, "decays of its linear attention have a floor");
  c = kimi_config();
  c.attention_gate = c.head_gates = true;
  expect_own(c, "its attention has one gate a head");
  c = kimi_config();
  c.latent.query_width = 16;
  expect_own(c, "its queries are made of latents");
  c = kimi_config();
  c.nope_layers.clear();
  for (const GgufArchitecture& row : gguf_architectures()) {
    if (row.name == "kimi-linear") EXPECT_EQ(why_not(row, c), "in layer 1 something turns");
  }
  c = dense_config();
  c.query_growth = {.beta = 0.1f, .context = 8};
  EXPECT_EQ(gguf_form_of(c).why_own, "");
  c.rope_scaling = {.kind = RopeScaling::Kind::yarn, .factor = 4, .original_context = 16};
  expect_own(
      c,
      "Ministral 3 (\"mistral3\") comes nearest, but its queries grow from another context on "
      "than its YaRN's");
  c.rope_scaling.original_context = 8;
  EXPECT_EQ(gguf_form_of(c).why_own, "");
  c.rope_scaling.attention_factor = 1.1f;
  expect_own(c, "its YaRN multiplies cosines and sines");
  c = dense_config();
  c.norm = NormKind::layer;
  c.norm_placement = NormPlacement::beside;
  c.tied = true;
  EXPECT_EQ(gguf_form_of(c).why_own, "");
  c.attention_bias = c.attention_out_bias = true;
  expect_own(c,
             "Command R (\"command-r\") comes nearest, but queries, keys and values have biases");
  c.attention_bias = c.attention_out_bias = false;
  c.layers = 64;
  expect_own(c, "with 64 layers or more its queries and keys have norms");
  c.layers = 3;
  c.norm_bias = true;
  for (const GgufArchitecture& row : gguf_architectures()) {
    if (row.name == "command-r") EXPECT_EQ(why_not(row, c), "its norms have biases");
  }
}

}  // namespace
}  // namespace moe::test::gguf_rows_test
