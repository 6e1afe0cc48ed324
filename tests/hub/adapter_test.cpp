// Adapters in PEFT's form: names and shapes as PEFT gives them (huggingface/peft docs, "PEFT
// checkpoint format"), what is saved is what is merged for every family, and what belongs to no
// model is refused with file and key.
#include "hub/adapter.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "formats/safetensors.h"
#include "hub/adapted.h"
#include "hub/configs.h"
#include "model/adapters.h"
#include "support/check.h"
#include "support/files.h"
#include "support/param_named.h"

namespace moe::test::adapter_test {
namespace {

TEST(Adapter, EveryFamilyComesBackMerged) {
  for (const auto& [name, config] : every_small_config()) {
    SCOPED_TRACE(name);
    const TempFolder folder;
    Adapted made(config);
    for (Param* p : made.model.params())
      if (p->name.find(".ffn.router.") != std::string::npos) made.file.whole.push_back(p);
    save_model(folder / "m", made.model, *make_tokenizer("bytes"));
    for (Param* p : made.file.whole)
      for (int64_t i = 0; i < p->value.numel(); ++i) p->value.as<float>()[i] += 1;
    save_adapter(folder / "a", made.model, made.file);
    LoadedModel loaded = open_model(folder / "m", {});
    const AttachedAdapter report = attach_adapter(*loaded.model, folder / "a", 2);
    EXPECT_EQ(report.whole, static_cast<int64_t>(made.file.whole.size()));
    EXPECT_GT(largest_term(*loaded.model), 0);
    merge_terms(*loaded.model, 2);
    int64_t matrices = 0;
    for (const LowRank& low : made.file.matrices) {
      const Param& p = *param_named(*loaded.model, low.base->name);
      EXPECT_EQ(p.value.dtype, DType::f32);
      expect_near(p.value, made.merged(low), 1e-6, p.name);
      matrices += p.value.rank == 3 ? p.value.shape[0] : 1;
    }
    EXPECT_EQ(report.matrices, matrices);
    for (const Param* p : made.model.params())
      if (!is_adapted(*p))
        EXPECT_EQ(values(param_named(*loaded.model, p->name)->value), values(p->value)) << p->name;
  }
}

// lora_A [r,in] and lora_B [out,r] under the names of the modules; what PEFT needs to find them
// again stands in the configuration.
TEST(Adapter, NamesAndShapesArePeftsOwn) {
  const TempFolder folder;
  Adapted made(small_olmoe());
  made.file.base_model = "somewhere/olmoe";
  made.file.whole = {param_named(made.model, "layers.1.ffn.router.weight")};
  save_adapter(folder / "a", made.model, made.file);
  const Safetensors file = Safetensors::open(folder / "a/adapter_model.safetensors");
  const auto shape = [&](const char* name) {
    const Tensor t = file.get(name);
    return std::vector<int64_t>(t.shape.begin(), t.shape.begin() + t.rank);
  };
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shape("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"), (Shape{2, 8}));
  EXPECT_EQ(shape("base_model.model.model.layers.0.self_attn.k_proj.lora_B.weight"), (Shape{4, 2}));
  EXPECT_EQ(shape("base_model.model.model.layers.1.mlp.experts.2.gate_proj.lora_A.weight"),
            (Shape{2, 8}));
  EXPECT_EQ(shape("base_model.model.model.layers.1.mlp.experts.2.down_proj.lora_A.weight"),
            (Shape{2, 6}));
  EXPECT_EQ(shape("base_model.model.model.layers.1.mlp.experts.2.down_proj.lora_B.weight"),
            (Shape{8, 2}));
  EXPECT_EQ(shape("base_model.model.model.layers.1.mlp.gate.weight"), (Shape{3, 8}));
  EXPECT_EQ(file.tensors().size(), 2u * 2 * (4 + 3 * 3) + 1);
  const Json config = read_json(folder / "a/adapter_config.json");
  EXPECT_EQ(config["peft_type"], "LORA");
  EXPECT_EQ(config["task_type"], "CAUSAL_LM");
  EXPECT_EQ(config["base_model_name_or_path"], "somewhere/olmoe");
  EXPECT_EQ(config["r"], 2);
  EXPECT_EQ(config["lora_alpha"], 5);
  EXPECT_EQ(
      config["target_modules"],
      Json::parse(R"(["down_proj","gate_proj","k_proj","o_proj","q_proj","up_proj","v_proj"])"));
  EXPECT_EQ(config["modules_to_save"], Json::parse(R"(["mlp.gate"])"));
  EXPECT_EQ(config["rank_pattern"], Json::object());
}

// transformers 5 calls modules of Nemotron-H otherwise than its files call their tensors, and so
// does PEFT, which finds a whole tensor by no other name.
TEST(Adapter, HasTheNamesOfModulesAndReadsThoseOfFiles) {
  Adapted made(small_family("nemotron_h"));
  for (Param* p : made.model.params())
    if (p->part == Part::router) made.file.whole.push_back(p);
  const TempFolder folder;
  save_adapter(folder / "a", made.model, made.file);
  std::vector<SafetensorsItem> items;
  {
    const Safetensors file = Safetensors::open(folder / "a/adapter_model.safetensors");
    for (const NamedTensor& tensor : file.tensors()) {
      const std::string own = "base_model.model.model.";
      ASSERT_TRUE(tensor.name.starts_with(own)) << tensor.name;
      items.push_back({"base_model.model.backbone." + tensor.name.substr(own.size()),
                       file.get(tensor.name), DType::f32});
    }
    std::filesystem::create_directories(folder / "b");
    write_safetensors(folder / "b/adapter_model.safetensors", items, {});
  }
  std::filesystem::copy_file(folder / "a/adapter_config.json", folder / "b/adapter_config.json");
  Model as_saved(made.model.config()), as_there(made.model.config());
  for (Model* model : {&as_saved, &as_there}) model->initialise(3);
  attach_adapter(as_saved, folder / "a", 1);
  const AttachedAdapter report = attach_adapter(as_there, folder / "b", 1);
  EXPECT_GT(report.matrices, 0);
  EXPECT_GT(report.whole, 0) << "routers";
  for (Model* model : {&as_saved, &as_there}) merge_terms(*model, 1);
  for (const LowRank& low : made.file.matrices)
    EXPECT_TRUE(same_bits(param_named(as_saved, low.base->name)->value,
                          param_named(as_there, low.base->name)->value))
        << low.base->name;
}

// q, k and v in one matrix: three pairs in one of three times the rank, at the same scale.
TEST(Adapter, MatricesThatShareATensorAreStacked) {
  for (const NamedConfig& family : small_families()) {
    if (family.name != "gpt2") continue;
    const TempFolder folder;
    Adapted made(family.config);
    save_adapter(folder / "a", made.model, made.file);
    const Safetensors file = Safetensors::open(folder / "a/adapter_model.safetensors");
    EXPECT_EQ(file.get("base_model.model.transformer.h.0.attn.c_attn.lora_A.weight").rows(), 6);
    EXPECT_EQ(file.get("base_model.model.transformer.h.0.attn.c_attn.lora_B.weight").rows(), 24);
    const Json config = read_json(folder / "a/adapter_config.json");
    EXPECT_EQ(config["rank_pattern"], (Json{{"c_attn", 6}}));
    EXPECT_EQ(config["alpha_pattern"], (Json{{"c_attn", 15.0}}));
    EXPECT_EQ(config["fan_in_fan_out"], true);
    return;
  }
  FAIL() << "no gpt2 among the families";
}

// Rows 2 and 5 of every table, drawn.
void add_token_rows(Adapted& made) {
  for (Param* p : made.model.params())
    if (p->is_matrix() && (p->part == Part::embedding || p->part == Part::lm_head))
      made.file.tokens.push_back(
          {p, draw(made.memory, DType::f32, {2, p->value.cols()}, 77), {2, 5}});
}

// Of every family, whose embeddings have names of their own and whose heads may be tied.
TEST(Adapter, RowsOfTokensComeBack) {
  for (const auto& [name, config] : every_small_config()) {
    SCOPED_TRACE(name);
    const TempFolder folder;
    Adapted made(config);
    add_token_rows(made);
    save_model(folder / "m", made.model, *make_tokenizer("bytes"));
    save_adapter(folder / "a", made.model, made.file);
    LoadedModel loaded = open_model(folder / "m", {});
    const AttachedAdapter report = attach_adapter(*loaded.model, folder / "a", 2);
    EXPECT_EQ(report.token_rows, config.tied ? 2 : 4);
    const AdapterFile on = adapter_on(*loaded.model);
    ASSERT_EQ(on.tokens.size(), made.file.tokens.size());
    for (size_t i = 0; i < on.tokens.size(); ++i) {
      EXPECT_EQ(on.tokens[i].ids, (std::vector<int64_t>{2, 5}));
      EXPECT_TRUE(same_bits(on.tokens[i].rows, made.file.tokens[i].rows));
    }
    merge_terms(*loaded.model, 2);
    for (const OfTokens& own : made.file.tokens) {
      const Tensor merged = param_named(*loaded.model, own.base->name)->value;
      for (int64_t id = 0; id < merged.rows(); ++id) {
        const int64_t t = id == 2 ? 0 : id == 5 ? 1 : -1;
        EXPECT_EQ(
            values(merged.slice_rows(id, id + 1)),
            values(t < 0 ? own.base->value.slice_rows(id, id + 1) : own.rows.slice_rows(t, t + 1)))
            << own.base->name << " " << id;
      }
    }
  }
}

// The names that PEFT's get_peft_model_state_dict() gives them, and where it looks for the tokens.
TEST(Adapter, RowsOfTokensAreNamedAsPeftDoes) {
  const TempFolder folder;
  Adapted made(small_olmoe());
  ASSERT_FALSE(made.model.config().tied);
  add_token_rows(made);
  save_adapter(folder / "a", made.model, made.file);
  const Safetensors file = Safetensors::open(folder / "a/adapter_model.safetensors");
  for (const char* name :
       {"base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta",
        "base_model.model.lm_head.token_adapter.trainable_tokens_delta"})
    EXPECT_EQ(file.get(name).rows(), 2) << name;
  const Json config = read_json(folder / "a/adapter_config.json");
  EXPECT_EQ(config["trainable_token_indices"],
            Json::parse(R"({"embed_tokens": [2, 5], "lm_head": [2, 5]})"));
}

class Refused : public ::testing::Test {
 protected:
  Refused() : made_(small_olmoe()) {
    save_model(folder_ / "m", made_.model, *make_tokenizer("bytes"));
    save_adapter(folder_ / "a", made_.model, made_.file);
    config_ = read_json(folder_ / "a/adapter_config.json");
  }
  // Merging fails with a line that names the adapter and holds `part`, and changes nothing.
  void expect(const std::string& part) {
    LoadedModel loaded = open_model(folder_ / "m", {});
    const std::string message =
        message_of([&] { attach_adapter(*loaded.model, folder_ / "a", 1); });
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, message);
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, folder_ / "a", message);
    for (const Param* p : made_.model.params())
      EXPECT_EQ(values(param_named(*loaded.model, p->name)->value), values(p->value)) << p->name;
  }
  void expect_config(const char* key, const Json& value, const std::string& part) {
    Json changed = config_;
    changed[key] = value;
    put(folder_ / "a/adapter_config.json", changed.dump());
    expect(part);
    put(folder_ / "a/adapter_config.json", config_.dump());
  }
  // The file with one tensor changed: renamed, given other numbers, or left out.
  void expect_tensor(const std::string& name, const std::string& becomes, Tensor value,
                     const std::string& part) {
    const std::string path = folder_ / "a/adapter_model.safetensors";
    const std::string whole = slurp(path);
    {
      const Safetensors file = Safetensors::open(path);
      std::vector<SafetensorsItem> items;
      for (const NamedTensor& t : file.tensors()) {
        if (t.name != name) items.push_back({t.name, t.value, t.value.dtype});
        else if (!becomes.empty())
          items.push_back({becomes, value.empty() ? t.value : value, DType::f32});
      }
      write_safetensors(path, items);
    }
    expect(part);
    put(path, whole);
  }

  TempFolder folder_;
  Adapted made_;
  Json config_;
};

TEST_F(Refused, OtherKindsOfAdapters) {
  expect_config("peft_type", "IA3", "the adapter is of type IA3; only LORA is known");
  expect_config("use_dora", true, "\"use_dora\" is set");
  expect_config("bias", "all", "\"bias\" is \"all\"");
  expect_config("target_parameters", Json{"mlp.experts.down_proj"}, "\"target_parameters\" is set");
  expect_config("r", 0, "\"r\"");
  expect_config("rank_pattern", Json{{"q_.*", 3}}, "a regular expression");
  expect_config("r", 3, "must be [3, 8]");
}

// Some ways of PEFT to begin change the model too, and its pairs are right only beside that.
TEST_F(Refused, PairsOfAChangedModel) {
  constexpr const char* kStart = "init_lora_weights";
  for (const char* start : {"pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga"}) {
    SCOPED_TRACE(start);
    expect_config(kStart, start, fmt::format("\"{}\" is \"{}\"", kStart, start));
    expect_config(kStart, start, "path_initial_model_for_weight_conversion");
  }
  for (const Json& start :
       {Json(true), Json(false), Json(), Json("gaussian"), Json("eva"), Json("orthogonal")}) {
    SCOPED_TRACE(start.dump());
    Json changed = config_;
    changed[kStart] = start;
    put(folder_ / "a/adapter_config.json", changed.dump());
    LoadedModel loaded = open_model(folder_ / "m", {});
    EXPECT_GT(attach_adapter(*loaded.model, folder_ / "a", 1).matrices, 0);
  }
}

TEST_F(Refused, TensorsThatAreNotTheModels) {
  const std::string a = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
  const std::string b = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";
  Arena arena;
  expect_tensor(a, "", {}, "has no \"" + a + "\" beside it");
  expect_tensor(b, "", {}, "has no \"" + b + "\" beside it");
  expect_tensor(a, "model.layers.0.self_attn.q_proj.lora_A.weight", {},
                "does not begin with \"base_model.model.\"");
  expect_tensor(a, "base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight", {},
                "belongs to no matrix of this model");
  expect_tensor(a, "base_model.model.model.layers.0.self_attn.q_proj.bias", {},
                "is no tensor of this model");
  expect_tensor(a, "base_model.model.model.norm.token_adapter.trainable_tokens_delta", {},
                "has rows of neither the embedding nor a head");
  expect_tensor(a, a, draw(arena, DType::f32, {2, 9}, 1), "must be [2, 8]");
  const Tensor bad = draw(arena, DType::f32, {2, 8}, 1);
  bad.as<float>()[5] = std::nanf("");
  expect_tensor(a, a, bad, "holds nan");
}

// A head that is the embedding would not stay as it was.
TEST(AdapterTies, AnEmbeddingAloneIsRefused) {
  const TempFolder folder;
  ModelConfig config = small_olmoe();
  config.tied = true;
  Adapted made(config);
  made.file.whole = {param_named(made.model, "embed.weight")};
  save_model(folder / "m", made.model, *make_tokenizer("bytes"));
  save_adapter(folder / "a", made.model, made.file);
  Json peft = read_json(folder / "a/adapter_config.json");
  const auto attach = [&](const Json& ties) {
    peft["ensure_weight_tying"] = ties;
    put(folder / "a/adapter_config.json", peft.dump());
    LoadedModel loaded = open_model(folder / "m", {});
    return attach_adapter(*loaded.model, folder / "a", 1).whole;
  };
  EXPECT_FAILS(attach(false), "in this model both are one matrix");
  EXPECT_EQ(attach(true), 1);
}

TEST_F(Refused, WhatIsNoAdapter) {
  LoadedModel loaded = open_model(folder_ / "m", {});
  EXPECT_FAILS(attach_adapter(*loaded.model, folder_ / "m", 1),
               "there is no adapter_config.json; an adapter is a folder of");
}

// As PEFT writes them too: in any order, as a list alone; and what does not fit is named.
TEST(AdapterTokens, AreReadAsPeftMeansThem) {
  const TempFolder folder;
  Adapted made(small_olmoe());
  add_token_rows(made);
  made.file.tokens.resize(1);
  save_model(folder / "m", made.model, *make_tokenizer("bytes"));
  save_adapter(folder / "a", made.model, made.file);
  Json config = read_json(folder / "a/adapter_config.json");
  const auto attach = [&](const Json& tokens) {
    config["trainable_token_indices"] = tokens;
    put(folder / "a/adapter_config.json", config.dump());
    auto loaded = std::make_shared<LoadedModel>(open_model(folder / "m", {}));
    attach_adapter(*loaded->model, folder / "a", 1);
    return loaded;
  };
  const auto turned = attach(Json{7, 3});
  const AdapterFile on = adapter_on(*turned->model);
  EXPECT_EQ(on.tokens.at(0).ids, (std::vector<int64_t>{3, 7}));
  EXPECT_EQ(values(on.tokens[0].rows.slice_rows(0, 1)),
            values(made.file.tokens[0].rows.slice_rows(1, 2)));
  EXPECT_FAILS(attach(Json{2, 2}), "names token 2 twice");
  EXPECT_FAILS(attach(Json{2, 1 << 20}), "names token 1048576");
  EXPECT_FAILS(attach(Json{-1, 2}), "names token -1");
  EXPECT_FAILS(attach(Json{2}), "must be [1, 8]");
  EXPECT_FAILS(attach(Json::array()), "names no token");
  EXPECT_FAILS(attach(Json{{"lm_head", {2, 5}}}), "does not say whose rows \"model.embed_tokens\"");
  EXPECT_FAILS(attach(Json()), "does not say whose rows");
  EXPECT_FAILS(attach(Json("2")), "trainable_token_indices");
  made.file.tokens.clear();
  save_adapter(folder / "a", made.model, made.file);
  EXPECT_FAILS(attach(Json{2, 5}), "it has no rows of the tokens");
}

TEST(AdapterScale, FollowsPeftsRules) {
  const TempFolder folder;
  Adapted made(small_olmoe());
  save_model(folder / "m", made.model, *make_tokenizer("bytes"));
  save_adapter(folder / "a", made.model, made.file);
  Json config = read_json(folder / "a/adapter_config.json");
  // How much of B A of a matrix is added, by a number of it.
  const auto scale_of = [&](const char* name) {
    put(folder / "a/adapter_config.json", config.dump());
    LoadedModel loaded = open_model(folder / "m", {});
    attach_adapter(*loaded.model, folder / "a", 1);
    merge_terms(*loaded.model, 1);
    for (const LowRank& low : made.file.matrices)
      if (low.base->name == name) {
        const double w = values(low.base->value)[0], full = made.merged(low)[0];
        return 2.5 * (values(param_named(*loaded.model, name)->value)[0] - w) / (full - w);
      }
    return 0.0;
  };
  EXPECT_NEAR(scale_of("layers.0.attn.q.weight"), 2.5, 1e-4);
  config["alpha_pattern"] = {{"q_proj", 3}, {"^model.layers.1.self_attn.k_proj", 1}};
  EXPECT_NEAR(scale_of("layers.0.attn.q.weight"), 1.5, 1e-4);
  EXPECT_NEAR(scale_of("layers.0.attn.k.weight"), 2.5, 1e-4);
  EXPECT_NEAR(scale_of("layers.1.attn.k.weight"), 0.5, 1e-4);
  config["use_rslora"] = true;
  EXPECT_NEAR(scale_of("layers.0.attn.v.weight"), 5 / std::sqrt(2.0), 1e-4);
}

}  // namespace
}  // namespace moe::test::adapter_test
