// Llama 4's text, alone and within a model of pictures, by the words of its configs; what of that
// the engine does not do is refused by name; and how its tensors lie.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "formats/safetensors.h"
#include "hub/configs.h"
#include "hub/folder/architectures.h"
#include "hub/folder/config_json.h"
#include "hub/gguf/gguf_architectures.h"
#include "hub/hub.h"
#include "hub/published_configs.h"
#include "hub/saved_folder.h"
#include "model/cost.h"
#include "support/check.h"
#include "support/files.h"

namespace moe::test::llama4_test {
namespace {

// Scout's text in the words in which its class saves it (transformers:llama4/
// configuration_llama4.py, and what is known of Scout; its own page was not read).
Json scout() {
  return Json::parse(R"({
    "architectures": ["Llama4ForCausalLM"], "attention_bias": false,
    "attention_chunk_size": 8192, "attention_dropout": 0.0, "attn_scale": 0.1,
    "attn_temperature_tuning": true, "bos_token_id": 200000, "eos_token_id": [200001, 200007],
    "floor_scale": 8192, "for_llm_compressor": false, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 5120, "initializer_range": 0.02, "interleave_moe_layer_step": 1,
    "intermediate_size": 8192, "intermediate_size_mlp": 16384,
    "max_position_embeddings": 10485760, "model_type": "llama4_text",
    "no_rope_layer_interval": 4, "no_rope_layers": [], "num_attention_heads": 40,
    "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8,
    "num_local_experts": 16, "output_router_logits": false, "pad_token_id": 200018,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0,
    "tie_word_embeddings": false, "use_cache": true, "use_qk_norm": true,
    "vocab_size": 202048})");
}

int64_t attention_numbers() { return 2 * 5120 * 40 * 128 + 2 * 5120 * 8 * 128; }

TEST(Llama4, Scout) {
  const Json given = scout();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "llama4_text");
  EXPECT_EQ(c.moe_layer_count(), 48);
  EXPECT_TRUE(c.moe_layers.empty() && c.weigh_inputs && c.qk_norm_turned);
  EXPECT_EQ(c.qk_norm, QkNorm::bare);
  EXPECT_EQ(c.nope_layers.size(), 12u);
  const AttentionShape turning = c.attention(2), still = c.attention(3);
  EXPECT_EQ(turning.chunk, 8192);
  EXPECT_EQ(turning.window, 0);
  EXPECT_EQ(turning.rotary_width, 128);
  EXPECT_EQ(turning.qk_norm, QkNorm::bare);
  EXPECT_FALSE(turning.queries_grow);
  EXPECT_EQ(still.chunk, 0);
  EXPECT_EQ(still.rotary_width, 0);
  EXPECT_EQ(still.qk_norm, QkNorm::none);
  EXPECT_TRUE(still.queries_grow);
  EXPECT_TRUE(c.query_growth.where_still);
  EXPECT_EQ(c.query_growth.beta, 0.1f);
  EXPECT_EQ(c.query_growth.context, 8192);
  EXPECT_EQ(c.rope_scaling.kind, RopeScaling::Kind::llama3);
  EXPECT_EQ(c.rope_scaling.high_freq_factor, c.rope_scaling.low_freq_factor);
  const RoutingSpec spec = eval_spec(c.routing);
  EXPECT_TRUE(std::holds_alternative<RawScore>(spec.score));
  EXPECT_FALSE(std::get<ChosenSigmoids>(spec.weigh).renormalise);
  EXPECT_EQ(selection_bias(spec.select), nullptr);
  EXPECT_EQ(spec.slots(), 1);
  const int64_t expert = 3 * int64_t{5120} * 8192;
  EXPECT_EQ(count_params(c).total(),
            2 * int64_t{202048} * 5120 + 5120 +
                48 * (attention_numbers() + 2 * 5120 + 16 * 5120 + 17 * expert));
  EXPECT_NEAR(static_cast<double>(count_params(c).total()), 108e9, 1e9);  // "109B" with its eyes
  const Json saved = parse_json(config_to_json(c), "x");
  EXPECT_EQ(saved["layer_types"][2], "chunked_attention");
  EXPECT_EQ(saved["layer_types"][3], "full_attention");
  EXPECT_EQ(saved["no_rope_layers"][3], 0);
  EXPECT_EQ(saved["moe_layers"].size(), 48u);
  expect_same(saved, c);
}

// Its experts stand in every second layer, and queries and keys have no norms.
TEST(Llama4, Maverick) {
  Json given = with(with(scout(), "interleave_moe_layer_step", 2), "num_local_experts", 128);
  given = without(with(given, "use_qk_norm", false), "rope_scaling");
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.qk_norm, QkNorm::none);
  EXPECT_EQ(c.moe_layer_count(), 24);
  EXPECT_TRUE(!c.is_moe(0) && c.is_moe(1) && c.is_moe(47));
  const int64_t row = 3 * int64_t{5120};
  EXPECT_EQ(count_params(c).total(), 2 * int64_t{202048} * 5120 + 5120 +
                                         48 * (attention_numbers() + 2 * 5120) +
                                         24 * (128 * 5120 + 129 * row * 8192 + row * 16384));
  expect_same(parse_json(config_to_json(c), "x"), c);
}

TEST(Llama4, InOtherWords) {
  const Json given = scout();
  const ModelConfig c = parse(given);
  // A number was the switch once.
  expect_same(with(given, "attn_temperature_tuning", 4), c);
  const ModelConfig plain = parse(with(given, "attn_temperature_tuning", false));
  EXPECT_FALSE(plain.query_growth.present());
  expect_same(with(given, "attn_temperature_tuning", 0), plain);
  Json listed = with(given, "no_rope_layers", std::vector<int64_t>(48, 1));
  listed["no_rope_layers"][5] = 0;
  const ModelConfig own = parse(listed);
  EXPECT_EQ(own.nope_layers, (std::vector<int64_t>{5}));
  EXPECT_EQ(own.window_layers.size(), 47u);
  listed["layer_types"] = std::vector<std::string>(48, "full_attention");
  const ModelConfig whole = parse(listed);
  EXPECT_TRUE(whole.attention_window == 0 && !whole.window_chunks);
  EXPECT_EQ(parse_json(config_to_json(whole), "x")["attention_chunk_size"], whole.context);
  listed["layer_types"][7] = "chunked_attention";
  EXPECT_EQ(parse(listed).window_layers, (std::vector<int64_t>{7}));
  const ModelConfig some = parse(with(given, "moe_layers", Json::array({3, 5})));
  EXPECT_EQ(some.moe_layers, (std::vector<int64_t>{3, 5}));
  for (const ModelConfig& one : {plain, own, whole, some})
    expect_same(parse_json(config_to_json(one), "x"), one);
}

TEST(Llama4, Refuses) {
  const Json given = scout();
  expect_needed(given, {"attention_chunk_size", "attn_temperature_tuning", "attn_scale",
                        "floor_scale", "head_dim", "interleave_moe_layer_step",
                        "intermediate_size_mlp", "no_rope_layer_interval", "use_qk_norm"});
  expect_refused(given, {{"router_jitter_noise", 0.1}});
  EXPECT_FAILS(parse(with(given, "attention_chunk_size", nullptr)), "\"attention_chunk_size\"");
  EXPECT_FAILS(parse(with(given, "moe_layers", Json::array())), "such a model is a dense one");
  EXPECT_FAILS(parse(with(given, "interleave_moe_layer_step", 49)), "such a model is a dense one");
  EXPECT_FAILS(parse(with(given, "layer_types", std::vector<std::string>(48, "sliding_attention"))),
               "\"layer_types\" has \"sliding_attention\" at layer 0; chunked_attention and "
               "full_attention are known");
}

// Each of its parts is of this family alone.
TEST(Llama4, OtherModelsAreSavedInOtherWords) {
  const ModelConfig c = parse(scout());
  const auto becomes_another = [&](const char* why, auto change) {
    ModelConfig other = c;
    change(other);
    EXPECT_EQ(architecture_of(other).model_type, "moe_cpp") << why;
    EXPECT_EQ(gguf_form_of(other).architecture, &own_gguf_architecture()) << why;
    EXPECT_FAILS(architecture_of(other, "llama4_text", "here"), why);
    EXPECT_EQ(config_to_json(parse(parse_json(config_to_json(other), "x"))), config_to_json(other));
  };
  becomes_another("weights multiply what its experts make",
                  [](ModelConfig& m) { m.weigh_inputs = false; });
  becomes_another("its attention has a window", [](ModelConfig& m) { m.window_chunks = false; });
  becomes_another("queries and keys are not normalised without weights",
                  [](ModelConfig& m) { m.qk_norm = QkNorm::head; });
  becomes_another("norms of queries and keys see them before they turn",
                  [](ModelConfig& m) { m.qk_norm_turned = false; });
  becomes_another("its queries grow with their positions", [](ModelConfig& m) {
    m.nope_layers.clear();
    m.rope_scaling = {};
    m.query_growth.where_still = false;
  });
  becomes_another("routes in another way than by sigmoids of chosen logits", [](ModelConfig& m) {
    m.routing.stages = "{}";
    m.routing.coef = {};
  });
  becomes_another("it has not one shared expert", [](ModelConfig& m) { m.shared_experts = 2; });
  // Of the architectures of GGUF, too, one alone says them.
  for (const GgufArchitecture& row : gguf_architectures())
    EXPECT_EQ(why_not(row, c, nullptr).empty(), row.name == "llama4") << row.name;
}

TEST(Llama4, WithinAModelOfPictures) {
  Json text = scout();
  const ModelConfig c = parse(text);
  for (const char* key : {"attn_temperature_tuning", "attn_scale", "floor_scale",
                          "no_rope_layer_interval", "tie_word_embeddings", "architectures"})
    text.erase(key);
  const Json json = {
      {"model_type", "llama4"},       {"architectures", {"Llama4ForConditionalGeneration"}},
      {"boi_token_index", 200080},    {"eoi_token_index", 200081},
      {"image_token_index", 200092},  {"text_config", text},
      {"tie_word_embeddings", false}, {"vision_config", Json::object()}};
  const FolderConfig read = read_config(json.dump(), "config.json");
  EXPECT_TRUE(read.beside_others);
  EXPECT_EQ(read.config.model_type, "llama4_text");
  EXPECT_EQ(config_to_json(read.config), config_to_json(c));
}

class Llama4Folder : public ::testing::Test {
 protected:
  Llama4Folder() {
    model_ = drawn_model(small_family("llama4_text"), 5);
    save_model(folder_.path(), *model_, *make_tokenizer("bytes"));
  }
  void expect_params(const LoadedModel& loaded) {
    ASSERT_EQ(loaded.model->params().size(), model_->params().size());
    for (size_t i = 0; i < model_->params().size(); ++i) {
      const Param &got = *loaded.model->params()[i], &want = *model_->params()[i];
      SCOPED_TRACE(want.name);
      if (want.value.rank < 2) EXPECT_EQ(values(got.value), values(want.value));
      else
        for (int64_t e = 0; e < want.value.matrices(); ++e)
          EXPECT_EQ(values(got.expert(e)), values(want.expert(e)));
    }
  }

  TempFolder folder_;
  std::unique_ptr<Model> model_;
};

// Of experts the input dimension first, all gates before all ups; neighbours turn, in layers where
// nothing does too; dense layers and shared experts as everywhere.
TEST_F(Llama4Folder, TensorsLieAsThere) {
  const Safetensors file = Safetensors::open(folder_.path());
  const std::string ffn = "model.layers.1.feed_forward.";
  const Tensor gate_up = file.get(ffn + "experts.gate_up_proj"),
               down = file.get(ffn + "experts.down_proj");
  EXPECT_EQ(describe(gate_up), "f32 [3, 8, 20]");
  EXPECT_EQ(describe(down), "f32 [3, 10, 8]");
  const auto bank = [&](ParamKind kind) {
    return model_->find(Part::experts, kind, 1, false)->value.as<float>();
  };
  const float *gate = bank(ParamKind::gate), *up = bank(ParamKind::up),
              *back = bank(ParamKind::down);
  for (int64_t e = 0; e < 3; ++e)
    for (int64_t d = 0; d < 8; ++d)
      for (int64_t f = 0; f < 10; ++f) {
        const float* row = gate_up.as<float>() + (e * 8 + d) * 20;
        EXPECT_EQ(row[f], gate[(e * 10 + f) * 8 + d]);
        EXPECT_EQ(row[10 + f], up[(e * 10 + f) * 8 + d]);
        EXPECT_EQ(down.as<float>()[(e * 10 + f) * 8 + d], back[(e * 8 + d) * 10 + f]);
      }
  EXPECT_EQ(describe(file.get(ffn + "router.weight")), "f32 [3, 8]");
  EXPECT_EQ(describe(file.get(ffn + "shared_expert.up_proj.weight")), "f32 [10, 8]");
  EXPECT_EQ(describe(file.get("model.layers.0.feed_forward.up_proj.weight")), "f32 [14, 8]");
  EXPECT_FALSE(file.contains("model.layers.1.self_attn.q_norm.weight"));
  for (const int64_t layer : {1, 3}) {
    const Tensor theirs = file.get(fmt::format("model.layers.{}.self_attn.k_proj.weight", layer)),
                 ours = model_->find(Part::attention, ParamKind::k, layer, false)->value;
    const int64_t row[] = {0, 2, 4, 1, 3, 5};  // where a head's rows stand there
    for (int64_t r = 0; r < ours.rows(); ++r)
      for (int64_t c = 0; c < ours.cols(); ++c)
        EXPECT_EQ(theirs.row<float>(r / 6 * 6 + row[r % 6])[c], ours.row<float>(r)[c]) << r;
  }
  expect_params(open_model(folder_.path(), {}));
}

// What is published stands beside a tower.
TEST_F(Llama4Folder, TheTextOfAModelOfPictures) {
  std::vector<float> numbers(4);
  const Tensor other(numbers.data(), DType::f32, {4});
  rewrite_tensors(folder_.path(),
                  [](SafetensorsItem& item) {
                    item.name = "language_model." + item.name;
                    return true;
                  },
                  {{"vision_model.class_embedding", other, DType::f32},
                   {"multi_modal_projector.linear_1.weight", other, DType::f32}});
  const Json text = read_json(folder_ / "config.json");
  put(folder_ / "config.json", Json({{"model_type", "llama4"}, {"text_config", text}}).dump());
  EXPECT_FAILS(open_model(folder_.path(), {}), "lie beside the model of text");
  const LoadedModel loaded = open_model(folder_.path(), {}, {}, BesideText::leave_out);
  EXPECT_EQ(loaded.model->config().model_type, "llama4_text");
  expect_params(loaded);
}

}  // namespace
}  // namespace moe::test::llama4_test
