// Folders of other programs' families: what is saved as a family comes back as it, older and other
// forms of its tensors are read, and a folder with one wrong tensor is refused whatever is wrong
// with it. Their configs: families_test.cpp.
#include <algorithm>
#include <array>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "core/json.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "hub/configs.h"
#include "hub/convert.h"
#include "hub/folder/config_json.h"
#include "hub/hub.h"
#include "hub/saved_folder.h"
#include "support/check.h"
#include "support/files.h"

namespace moe::test::family_folders_test {
namespace {

class FamilyFolder : public ::testing::Test {
 protected:
  void start(const ModelConfig& config) {
    model_ = drawn_model(config, 5);
    save_model(folder_.path(), *model_, *make_tokenizer("bytes"));
  }
  void rewrite(const std::function<bool(SafetensorsItem&)>& change,
               std::vector<SafetensorsItem> also = {}) {
    rewrite_tensors(folder_.path(), change, std::move(also));
  }
  std::string message() {
    return message_of([&] { open_model(folder_.path(), {}); });
  }
  void expect_params(const LoadedModel& loaded) {
    ASSERT_EQ(loaded.model->params().size(), model_->params().size());
    for (size_t i = 0; i < model_->params().size(); ++i) {
      const Param &got = *loaded.model->params()[i], &want = *model_->params()[i];
      SCOPED_TRACE(want.name);
      if (want.value.rank < 2) {
        EXPECT_EQ(values(got.value), values(want.value));
        continue;
      }
      // A matrix may lie anywhere in the file.
      for (int64_t e = 0; e < want.value.matrices(); ++e)
        EXPECT_EQ(values(got.expert(e)), values(want.expert(e)));
    }
  }

  TempFolder folder_;
  std::unique_ptr<Model> model_;
};

TEST_F(FamilyFolder, EachComesBackAsItself) {
  for (const NamedConfig& named : small_families()) {
    SCOPED_TRACE(named.name);
    std::filesystem::remove_all(folder_.path());
    start(named.config);
    const Json json = read_json(folder_ / "config.json");
    EXPECT_EQ(json["model_type"], named.name);
    const LoadedModel loaded = load_model(folder_.path());
    EXPECT_EQ(config_to_json(loaded.model->config()), config_to_json(named.config));
    ASSERT_EQ(loaded.model->params().size(), model_->params().size());
    for (size_t i = 0; i < model_->params().size(); ++i)
      EXPECT_TRUE(same_bits(loaded.model->params()[i]->value, model_->params()[i]->value))
          << model_->params()[i]->name;
  }
}

// One tensor removed, added, twice, transposed, renamed: five refusals.
TEST_F(FamilyFolder, OneWrongTensor) {
  for (const NamedConfig& named : small_families()) {
    SCOPED_TRACE(named.name);
    const auto again = [&] {
      std::filesystem::remove_all(folder_.path());
      start(named.config);
    };
    again();
    std::string victim, vector;
    const Safetensors file = Safetensors::open(folder_.path());
    for (const NamedTensor& t : file.tensors()) {
      if (t.value.rank == 2 && t.value.shape[0] != t.value.shape[1] &&
          t.name.find(".1.") != std::string::npos)
        victim = t.name;
      // in every layer, dense ones too
      if (t.value.rank == 1 && t.name.find(".1.") != std::string::npos &&
          t.name.find("correction_bias") == std::string::npos &&
          t.name.find("ffn.gate.bias") == std::string::npos &&
          t.name.find("post_mlp_layernorm") == std::string::npos &&
          t.name.find("layernorm.norm") == std::string::npos &&
          t.name.find("expert_bias") == std::string::npos)
        vector = t.name;
    }
    ASSERT_FALSE(victim.empty() || vector.empty());
    rewrite([&](SafetensorsItem& item) { return item.name != victim; });
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, "there is no tensor \"" + victim + "\"", message());
    again();
    float number = 0;
    rewrite([](SafetensorsItem&) { return true; },
            {{"model.layers.1.extra.weight", Tensor(&number, DType::f32, {1}), DType::f32}});
    EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                        "tensor \"model.layers.1.extra.weight\" is no part of the model",
                        message());
    again();
    std::string bytes = slurp(folder_ / "model.safetensors");
    const size_t at = bytes.find('"' + vector + '"');
    ASSERT_NE(at, std::string::npos);
    bytes[bytes.find(".1.", at) + 1] = '0';
    put(folder_ / "model.safetensors", bytes);
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, "stands twice", message());
    again();
    rewrite([&](SafetensorsItem& item) {
      if (item.name == victim)
        item.value = item.value.reshape({item.value.shape[1], item.value.shape[0]});
      return true;
    });
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, "it looks transposed", message());
    again();
    rewrite([&](SafetensorsItem& item) {
      if (item.name == victim) item.name += "s";
      return true;
    });
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, "did you mean \"" + victim + "s\"?", message());
  }
}

// What lies behind the model's own layers predicts further tokens.
TEST_F(FamilyFolder, WhatIsBesideTheTextIsNamedOrLeftOut) {
  for (const NamedConfig& named : small_families()) {
    if (named.name != "deepseek_v3") continue;
    start(named.config);
    float number = 0;
    const auto extra = [&](const char* name) {
      return SafetensorsItem{name, Tensor(&number, DType::f32, {1}), DType::f32};
    };
    rewrite([](SafetensorsItem&) { return true; },
            {extra("model.layers.3.eh_proj.weight"), extra("model.layers.3.enorm.weight"),
             extra("visual.blocks.0.weight")});
    EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                        "2 tensors of layers that predict further tokens "
                        "(\"model.layers.3.eh_proj.weight\" ...) lie beside the model of text that "
                        "config.json describes; `moe convert IN OUT --text-only`",
                        message());
    LoadedModel loaded = open_model(folder_.path(), {}, {}, BesideText::leave_out);
    ASSERT_EQ(loaded.left_out.size(), 2u);
    EXPECT_EQ(loaded.left_out[0].tensors, 2);
    EXPECT_EQ(loaded.left_out[1].what, "a tower for pictures");
    const TempFolder text;
    convert_model(loaded, folder_.path(), text / "out.gguf", {});
    EXPECT_TRUE(open_model(text / "out.gguf", {}).left_out.empty());
    // The account still says what is consumed by nothing else.
    loaded.left_out.pop_back();
    EXPECT_FAILS(convert_model(loaded, folder_.path(), text / "again.gguf", {}),
                 "was consumed 0 times");
    // What is known to be nothing of the kind is refused all the same.
    rewrite([](SafetensorsItem&) { return true; }, {extra("model.layers.x.weight")});
    EXPECT_FAILS(open_model(folder_.path(), {}, {}, BesideText::leave_out),
                 "\"model.layers.x.weight\" is no part of the model");
  }
}

// One matrix makes what gates, what the convolution sees and the steps, in this order; without
// experts an FFN has the name of a shared one.
TEST_F(FamilyFolder, StateSpacesStandAsGraniteHasThem) {
  const std::vector<NamedConfig> families = small_families();
  start(small_family("granitemoehybrid"));
  const Safetensors file = Safetensors::open(folder_.path());
  const std::string mamba = "model.layers.0.mamba.";
  const auto numbers = [&](ParamKind kind, bool bias) {
    return values(model_->find(Part::attention, kind, 0, bias)->value);
  };
  std::vector<double> in;
  for (const ParamKind kind : {ParamKind::scan_z, ParamKind::scan_xbc, ParamKind::scan_dt})
    for (const double x : numbers(kind, false)) in.push_back(x);
  EXPECT_EQ(values(file.get(mamba + "in_proj.weight")), in);
  EXPECT_EQ(describe(file.get(mamba + "in_proj.weight")), "f32 [48, 8]");
  EXPECT_EQ(describe(file.get(mamba + "conv1d.weight")), "f32 [28, 1, 3]");
  EXPECT_EQ(values(file.get(mamba + "conv1d.bias")), numbers(ParamKind::scan_conv, true));
  EXPECT_EQ(values(file.get(mamba + "dt_bias")), numbers(ParamKind::scan_dt_bias, true));
  EXPECT_EQ(values(file.get(mamba + "A_log")), numbers(ParamKind::scan_a_log, true));
  EXPECT_EQ(values(file.get(mamba + "D")), numbers(ParamKind::scan_skip, true));
  EXPECT_EQ(values(file.get(mamba + "norm.weight")), numbers(ParamKind::scan_norm, false));
  EXPECT_EQ(describe(file.get(mamba + "out_proj.weight")), "f32 [8, 16]");
  EXPECT_FALSE(file.contains("model.layers.1.mamba.in_proj.weight"));

  std::filesystem::remove_all(folder_.path());
  start(std::ranges::find_if(families, [](const NamedConfig& named) {
          return named.name == "granitemoehybrid" && named.config.moe_layer_count() == 0;
        })->config);
  EXPECT_EQ(
      describe(
          Safetensors::open(folder_.path()).get("model.layers.1.shared_mlp.input_linear.weight")),
      "f32 [24, 8]");
}

// Of an indexer's queries, keys and norms the rows that turn stand as the family turns them, in
// pairs of neighbours or of halves; and some layers of GLM-5.2 have none.
TEST_F(FamilyFolder, IndexersTurnAsTheFamilyDoes) {
  for (const bool pairs : {false, true}) {
    SCOPED_TRACE(pairs);
    std::filesystem::remove_all(folder_.path());
    start(small_family(pairs ? "glm_moe_dsa" : "deepseek_v32"));
    const Safetensors file = Safetensors::open(folder_.path());
    const std::string indexer = "model.layers.1.self_attn.indexer.";
    const auto expect_rows = [&](const char* name, ParamKind kind, bool bias,
                                 const std::vector<int64_t>& rows) {
      SCOPED_TRACE(name);
      const std::vector<double> theirs = values(file.get(indexer + name)),
                                ours = values(model_->find(Part::attention, kind, 1, bias)->value);
      ASSERT_EQ(theirs.size(), ours.size());
      const size_t cols = theirs.size() / rows.size();
      for (size_t r = 0; r < rows.size(); ++r)
        for (size_t c = 0; c < cols; ++c)
          EXPECT_EQ(theirs[r * cols + c], ours[static_cast<size_t>(rows[r]) * cols + c]) << r;
    };
    // three heads of four numbers, all of which turn in the second family
    const std::vector<int64_t> one =
        pairs ? std::vector<int64_t>{0, 2, 1, 3} : std::vector<int64_t>{0, 1, 2, 3};
    std::vector<int64_t> all;
    for (const int64_t head : {0, 4, 8})
      for (const int64_t row : one) all.push_back(head + row);
    expect_rows("wq_b.weight", ParamKind::index_q, false, all);
    expect_rows("wk.weight", ParamKind::index_k, false, one);
    expect_rows("k_norm.weight", ParamKind::index_k_norm, false, one);
    expect_rows("k_norm.bias", ParamKind::index_k_norm, true, one);
    expect_rows("weights_proj.weight", ParamKind::index_weights, false, {0, 1, 2});
    EXPECT_NE(file.contains("model.layers.2.self_attn.indexer.wk.weight"), pairs);
    // Converted it is the same model still.
    const TempFolder out;
    LoadedModel loaded = open_model(folder_.path(), {});
    for (const char* name : {"again", "again.gguf"}) {
      check_convert_target(folder_.path(), out / name, loaded);
      convert_model(loaded, folder_.path(), out / name, {});
      expect_params(open_model(out / name, {}));
    }
    EXPECT_EQ(read_json(out / "again/config.json")["model_type"],
              pairs ? "glm_moe_dsa" : "deepseek_v32");
    EXPECT_EQ(Gguf::open(out / "again.gguf").text("general.architecture"),
              pairs ? "glm-dsa" : "deepseek32");
  }
}

// What turns the other way there has the halves of its heads the other way round.
TEST_F(FamilyFolder, HalvesOfNanoChatsHeadsAreSwapped) {
  start(small_family("nanochat"));
  const Safetensors file = Safetensors::open(folder_.path());
  for (const bool bias : {false, true})
    for (const auto& [name, kind] : {std::pair{"q", ParamKind::q}, {"k", ParamKind::k}}) {
      SCOPED_TRACE(fmt::format("{} {}", name, bias ? "bias" : "weight"));
      const Tensor theirs = file.get(fmt::format("model.layers.1.self_attn.{}_proj.{}", name,
                                                 bias ? "bias" : "weight")),
                   ours = model_->find(Part::attention, kind, 1, bias)->value;
      const int64_t cols = bias ? 1 : ours.cols(), rows = ours.numel() / cols;
      ASSERT_EQ(theirs.numel(), ours.numel());
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c) {
          const int64_t half = r % 6 < 3 ? r + 3 : r - 3;
          EXPECT_EQ(theirs.as<float>()[half * cols + c], ours.as<float>()[r * cols + c]) << r;
        }
    }
  expect_params(open_model(folder_.path(), {}));
}

// Two numbers of Apertus's activation have no dimensions there, as buffers of transformers have
// none; a file in which they have one is read too.
TEST_F(FamilyFolder, NumbersOfApertusHaveNoDimensions) {
  start(small_family("apertus"));
  const std::string bytes = slurp(folder_ / "model.safetensors");
  const auto shape_of_number = [&](const std::string& name) {
    const size_t at = bytes.find("\"model.layers.1.mlp.act_fn." + name + "\""),
                 shape = bytes.find("\"shape\":", at);
    return at == std::string::npos ? ""
                                   : bytes.substr(shape + 8, bytes.find(']', shape) - shape - 7);
  };
  for (const char* name : {"beta", "eps"}) EXPECT_EQ(shape_of_number(name), "[]") << name;
  for (const char* name : {"alpha_p", "alpha_n"}) EXPECT_EQ(shape_of_number(name), "[1]") << name;
  const Safetensors file = Safetensors::open(folder_.path());
  EXPECT_TRUE(file.contains("model.layers.0.attention_layernorm.weight"));
  EXPECT_TRUE(file.contains("model.layers.0.feedforward_layernorm.weight"));
  expect_params(open_model(folder_.path(), {}));
  rewrite([](SafetensorsItem&) { return true; });
  EXPECT_NE(slurp(folder_ / "model.safetensors"), bytes);
  expect_params(open_model(folder_.path(), {}));
}

// As the places that a tower counts are: only what is read has to be of a type that is known.
TEST_F(FamilyFolder, AnotherTypeIsRefusedOnlyWhereItIsRead) {
  start(small_family("deepseek_v3"));
  std::array<uint8_t, 16> numbers{};
  const auto with_counts = [&](const std::string& name) {
    rewrite([&](SafetensorsItem& item) { return item.name != name; },
            {{name, Tensor(numbers.data(), DType::u8, {16}), DType::u8}});
    std::string bytes = slurp(folder_ / "model.safetensors");
    const std::string_view was = R"("U8","shape":[16])", counts = R"("U64","shape":[2])";
    ASSERT_NE(bytes.find(was), std::string::npos);
    put(folder_ / "model.safetensors", bytes.replace(bytes.find(was), was.size(), counts));
  };
  with_counts("visual.position_ids");
  const LoadedModel loaded = open_model(folder_.path(), {}, {}, BesideText::leave_out);
  ASSERT_EQ(loaded.left_out.size(), 1u);
  EXPECT_EQ(loaded.left_out[0].what, "a tower for pictures");
  expect_params(loaded);
  start(loaded.model->config());
  with_counts("model.norm.weight");
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "tensor \"model.norm.weight\": dtype \"U64\" is not supported", message());
}

// Qwen3-VL's experts stand in one tensor, beside what sees: published with the input dimension
// first, by transformers 5 with it last.
TEST_F(FamilyFolder, TheTextOfQwen3Vl) {
  const ModelConfig config = small_family("qwen3_moe");
  const int64_t experts = config.routing.experts, f = config.expert_width, d = config.width;
  for (const bool published : {true, false}) {
    SCOPED_TRACE(published);
    std::filesystem::remove_all(folder_.path());
    start(config);
    const Safetensors file = Safetensors::open(folder_.path());
    std::vector<SafetensorsItem> items;
    std::deque<std::vector<float>> memory;
    const auto put_bank = [&](const std::string& name, int64_t rows, int64_t cols) {
      float* numbers =
          memory.emplace_back(static_cast<size_t>(experts * rows * cols)).data();  // zeros
      items.push_back({name, Tensor(numbers, DType::f32, {experts, rows, cols}), DType::f32});
      return numbers;
    };
    for (int64_t i = 0; i < config.layers; ++i) {
      const std::string there = fmt::format("model.language_model.layers.{}.mlp.experts.", i);
      float* gate_up =
          put_bank(there + "gate_up_proj", published ? d : 2 * f, published ? 2 * f : d);
      float* down = put_bank(there + "down_proj", published ? f : d, published ? d : f);
      for (int64_t e = 0; e < experts; ++e) {
        const auto weight = [&](const char* which) {
          return file.get(fmt::format("model.layers.{}.mlp.experts.{}.{}_proj.weight", i, e, which))
              .as<float>();
        };
        const float *gate = weight("gate"), *up = weight("up"), *back = weight("down");
        for (int64_t j = 0; j < f; ++j)
          for (int64_t k = 0; k < d; ++k) {
            const auto place = [&](int64_t r) {
              return published ? (e * d + k) * 2 * f + r : (e * 2 * f + r) * d + k;
            };
            gate_up[place(j)] = gate[j * d + k];
            gate_up[place(f + j)] = up[j * d + k];
            down[published ? (e * f + j) * d + k : (e * d + k) * f + j] = back[k * f + j];
          }
      }
    }
    rewrite(
        [](SafetensorsItem& item) {
          if (item.name.starts_with("model.")) item.name.insert(6, "language_model.");
          return item.name.find(".experts.") == std::string::npos;
        },
        items);
    const Json text = read_json(folder_ / "config.json");
    put(folder_ / "config.json",
        Json({{"model_type", "qwen3_vl_moe"}, {"text_config", text}}).dump());
    expect_params(load_model(folder_.path()));
    expect_params(open_model(folder_.path(), {}));
  }
}

// The one of Qwen2.5-Omni's models that writes text.
TEST_F(FamilyFolder, TheTextOfQwen25Omni) {
  ModelConfig qwen2 = small_family("qwen2");
  qwen2.tied = false;
  start(qwen2);
  const Json text = read_json(folder_ / "config.json");
  put(folder_ / "config.json",
      Json({{"model_type", "qwen2_5_omni"}, {"thinker_config", {{"text_config", text}}}}).dump());
  float number = 0;
  rewrite(
      [](SafetensorsItem& item) {
        item.name.insert(0, "thinker.");
        return true;
      },
      {{"token2wav.code2wav_bigvgan_model.conv_pre.weight", Tensor(&number, DType::f32, {1}),
        DType::f32}});
  const LoadedModel loaded = open_model(folder_.path(), {}, {}, BesideText::leave_out);
  ASSERT_EQ(loaded.left_out.size(), 1u);
  EXPECT_EQ(loaded.left_out[0].what, "a model that speaks");
  expect_params(loaded);
}

// The one of Qwen3-Omni's models that writes text, and what is beside it.
TEST_F(FamilyFolder, TheTextOfQwen3Omni) {
  start(small_family("qwen3_moe"));
  const Json text = read_json(folder_ / "config.json");
  put(folder_ / "config.json",
      Json({{"model_type", "qwen3_omni_moe"}, {"thinker_config", {{"text_config", text}}}}).dump());
  const auto within = [](SafetensorsItem& item) {
    item.name.insert(0, "thinker.");
    return true;
  };
  rewrite(within);
  expect_params(load_model(folder_.path()));
  expect_params(open_model(folder_.path(), {}));
  float number = 0;
  const auto extra = [&](const char* name) {
    return SafetensorsItem{name, Tensor(&number, DType::f32, {1}), DType::f32};
  };
  const auto as_it_is = [](SafetensorsItem&) { return true; };
  rewrite(as_it_is, {extra("thinker.audio_tower.conv.weight"), extra("thinker.visual.norm.weight"),
                     extra("talker.model.layers.0.norm.weight"), extra("code2wav.norm.weight")});
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "lie beside the model of text", message());
  const LoadedModel loaded = open_model(folder_.path(), {}, {}, BesideText::leave_out);
  std::map<std::string, int64_t> left_out;
  for (const Beside& beside : loaded.left_out) left_out[beside.what] = beside.tensors;
  EXPECT_EQ(left_out, (std::map<std::string, int64_t>{{"a tower for pictures", 1},
                                                      {"a tower for sound", 1},
                                                      {"a model that speaks", 2}}));
  expect_params(loaded);
  rewrite(as_it_is, {extra("thinker.model.layers.2.norm.weight")});
  EXPECT_FAILS(open_model(folder_.path(), {}, {}, BesideText::leave_out),
               "\"thinker.model.layers.2.norm.weight\" is no part of the model");
}

// Under the names that each kind of checkpoint has, beside something of what sees or hears.
TEST_F(FamilyFolder, TheTextsOfModelsOfPictures) {
  struct Case {
    std::string type, text, sees, inserted;
    size_t at = 0;  // where in the names of the text
    bool around = false;
    std::string what = "a tower for pictures";
  };
  const std::string brings = "what brings pictures or sound in", hears = "a tower for sound";
  for (const Case& of :
       {Case{"qwen2_5_vl", "qwen2", "visual.merger.ln_q.weight", "", 0, true},
        {"qwen2_vl", "qwen2", "model.visual.merger.ln_q.weight", "language_model.", 6, false},
        {"internvl", "qwen3_moe", "vision_tower.embeddings.cls_token", "language_model.", 0, false},
        {"deepseek_ocr2", "deepseek", "model.qwen2_model.query_768.weight", "", 0, false},
        {"llava", "llama", "multi_modal_projector.linear_1.bias", "language_model.", 0, false,
         brings},
        {"qwen2_audio", "qwen2", "audio_tower.conv1.weight", "language_model.", 0, false, hears},
        {"voxtral", "llama", "audio_tower.conv1.weight", "language_model.", 0, false, hears},
        {"voxtral", "llama", "model.audio_tower.conv1.weight", "language_model.", 6, false, hears},
        {"glm4v", "glm4", "model.visual.merger.proj.weight", "language_model.", 6, false},
        {"smolvlm", "llama", "model.vision_model.post_layernorm.bias", "text_model.", 6, false},
        {"idefics3", "llama", "model.connector.modality_projection.proj.weight", "text_model.", 6,
         false},
        {"lfm2_vl", "lfm2", "model.vision_tower.post_layernorm.bias", "language_model.", 6, false},
        {"lfm3_vl", "lfm3", "model.vision_tower.patch_embed.bias", "language_model.", 6, false},
        {"aya_vision", "cohere2", "vision_tower.post_layernorm.bias", "language_model.", 0, false},
        {"kimi_vl", "deepseek_v3", "vision_tower.patch_embed.proj.bias", "language_model.", 0,
         false},
        {"kimi_k25", "deepseek_v3", "mm_projector.pre_norm.bias", "language_model.", 0, false,
         brings},
        {"internvl", "gpt_oss", "model.vision_tower.layernorm.bias", "language_model.", 6, false},
        {"lighton_ocr", "qwen3", "model.vision_encoder.ln_pre.weight", "language_model.", 6, false},
        {"lighton_ocr", "qwen3", "model.vision_projection.norm.weight", "language_model.", 6, false,
         brings},
        {"dots_ocr", "qwen2", "vision_tower.merger.ln_q.bias", "", 0, true},
        {"deepseek_vl_v2", "deepseek", "model.projector.layers.bias", "", 0, true},
        {"deepseek_vl_v2", "deepseek", "model.vision_model.pre_layrnorm.bias", "", 0, true},
        {"llava_next", "granite", "model.vision_tower.post_layernorm.bias", "language_model.", 6,
         false},
        {"llava_next", "mistral", "image_newline", "language_model.", 0, false},
        {"llava_next", "mistral", "model.image_newline", "language_model.", 6, false}}) {
    SCOPED_TRACE(of.type + " " + of.sees);
    std::filesystem::remove_all(folder_.path());
    start(small_family(of.text));
    Json json = read_json(folder_ / "config.json");
    if (!of.around) json = {{"text_config", json}};
    json["model_type"] = of.type;
    json["vision_config"] = Json::object();
    put(folder_ / "config.json", json.dump());
    const auto named = [&](SafetensorsItem& item) {
      if (of.at == 0 || item.name.starts_with("model.")) item.name.insert(of.at, of.inserted);
      return true;
    };
    float number = 0;
    rewrite(named, {{of.sees, Tensor(&number, DType::f32, {1}), DType::f32}});
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, of.what + " (\"" + of.sees + "\" ...)", message());
    const LoadedModel loaded = open_model(folder_.path(), {}, {}, BesideText::leave_out);
    ASSERT_EQ(loaded.left_out.size(), 1u);
    EXPECT_EQ(loaded.left_out[0].tensors, 1);
    EXPECT_EQ(loaded.model->config().model_type, of.text);
    expect_params(loaded);
  }
}

// Qwen3.5's without experts, alone and as the text of a model of pictures.
TEST_F(FamilyFolder, Qwen35WithoutExperts) {
  ModelConfig c = small_config();
  c.layers = 3;
  c.head_width = 8;
  c.rotary_width = 2;
  c.qk_norm = QkNorm::head;
  c.norm_offset = c.attention_gate = true;
  c.linear = {.key_heads = 2, .value_heads = 4, .key_width = 4, .value_width = 6, .conv_width = 4};
  c.linear_layers = {0, 2};
  start(c);
  const Json text = read_json(folder_ / "config.json");
  EXPECT_EQ(text["model_type"], "qwen3_5_text");
  expect_params(load_model(folder_.path()));
  expect_params(open_model(folder_.path(), {}));
  put(folder_ / "config.json", Json({{"model_type", "qwen3_5"}, {"text_config", text}}).dump());
  float number = 0;
  rewrite(
      [](SafetensorsItem& item) {
        if (item.name.starts_with("model.")) item.name.insert(6, "language_model.");
        return true;
      },
      {{"mtp.fc.weight", Tensor(&number, DType::f32, {1}), DType::f32}});
  const LoadedModel loaded = open_model(folder_.path(), {}, {}, BesideText::leave_out);
  ASSERT_EQ(loaded.left_out.size(), 1u);
  EXPECT_EQ(loaded.left_out[0].what, "layers that predict further tokens");
  expect_params(loaded);
}

// GPT-2's own files leave off the prefix and store the causal mask; old Llamas store the angles.
TEST_F(FamilyFolder, OlderFiles) {
  for (const NamedConfig& named : small_families()) {
    if (named.name != "gpt2" && named.name != "llama") continue;
    std::filesystem::remove_all(folder_.path());
    start(named.config);
    const bool gpt2 = named.name == "gpt2";
    std::vector<float> table(16 * 16);
    rewrite(
        [&](SafetensorsItem& item) {
          if (gpt2) item.name = item.name.substr(std::string("transformer.").size());
          return true;
        },
        {gpt2 ? SafetensorsItem{"h.0.attn.bias", Tensor(table.data(), DType::f32, {1, 1, 16, 16}),
                                DType::f32}
              : SafetensorsItem{"model.layers.1.self_attn.rotary_emb.inv_freq",
                                Tensor(table.data(), DType::f32, {1}), DType::f32}});
    const LoadedModel loaded = load_model(folder_.path());
    for (size_t i = 0; i < model_->params().size(); ++i)
      EXPECT_TRUE(same_bits(loaded.model->params()[i]->value, model_->params()[i]->value))
          << model_->params()[i]->name;
  }
}

TEST_F(FamilyFolder, WithoutATokenizerThatCanBeRead) {
  start(small_families()[0].config);
  std::filesystem::remove(folder_ / "tokenizer.json");
  put(folder_ / "vocab.json", "{}");
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "there is no tokenizer.json in this folder, only vocab.json", message());
}

}  // namespace
}  // namespace moe::test::family_folders_test
