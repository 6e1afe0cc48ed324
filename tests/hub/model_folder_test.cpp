// Model folders: what is saved loads bit for bit, in the names and shapes of the golden files;
// every wrong tensor is refused by name; a save that fails leaves what was there.
#include <sys/resource.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <csignal>
#include <functional>

#include "core/file.h"
#include "core/json.h"
#include "hub/configs.h"
#include "hub/folder/config_json.h"
#include "hub/hub.h"
#include "hub/saved_folder.h"
#include "hub/tensor_map.h"
#include "support/check.h"
#include "support/files.h"
#include "support/param_named.h"
#include "text/chat.h"

namespace moe::test::model_folder_test {
namespace {

void save(const std::string& folder, Model& model, DType dtype = DType::f32) {
  save_model(folder, model, *make_tokenizer("bytes"), dtype);
}

// Bitwise, through `stored`: what the file's dtype makes of a number. Buffers are always stored as
// they are.
void expect_same_model(
    Model& got, Model& want,
    const std::function<float(float)>& stored = [](float x) { return x; }) {
  ASSERT_EQ(got.params().size(), want.params().size());
  for (size_t p = 0; p < want.params().size(); ++p) {
    const Param &a = *got.params()[p], &b = *want.params()[p];
    ASSERT_EQ(a.name, b.name);
    ASSERT_EQ(describe(a.value), describe(b.value)) << a.name;
    for (int64_t i = 0; i < a.value.numel(); ++i)
      ASSERT_EQ(std::bit_cast<uint32_t>(a.value.as<float>()[i]),
                std::bit_cast<uint32_t>(b.is_trained() ? stored(b.value.as<float>()[i])
                                                       : b.value.as<float>()[i]))
          << a.name << " element " << i;
  }
}

TEST(ModelFolder, EveryKindSurvivesBitForBit) {
  for (const NamedConfig& named : small_configs()) {
    SCOPED_TRACE(named.name);
    TempFolder folder;
    const auto model = drawn_model(named.config);
    save_model(folder / "new/model", *model, *make_tokenizer("bytes"), DType::f32,
               {{"step", "17"}});
    const LoadedModel loaded = load_model(folder / "new/model");
    expect_same_model(*loaded.model, *model);
    for (const Param* param : loaded.model->params()) EXPECT_EQ(param->version, 2u) << param->name;
    EXPECT_EQ(config_to_json(loaded.model->config()), config_to_json(named.config));
    EXPECT_EQ(loaded.tokenizer->spec(), "bytes");
    EXPECT_EQ(loaded.metadata.at("step"), "17");
  }
}

// What the ids do not depend on is kept too, and a template that lies in a file of its own, as
// newer folders have it, is taken in.
TEST(ModelFolder, TheTokenizersConfigIsKept) {
  TempFolder folder;
  const auto model = drawn_model(small_config());
  const auto tokenizer = make_tokenizer("bytes");
  save_model(folder / "plain", *model, *tokenizer);
  EXPECT_FALSE(std::filesystem::exists(folder / "plain/tokenizer_config.json"));
  mark_dialogues(*tokenizer);
  save_model(folder / "a", *model, *tokenizer);
  const LoadedModel loaded = load_model(folder / "a");
  EXPECT_EQ(dialogues_of(*loaded.tokenizer), Dialogues::chatml);
  save_model(folder / "b", *loaded.model, *loaded.tokenizer);
  EXPECT_EQ(slurp(folder / "b/tokenizer_config.json"), slurp(folder / "a/tokenizer_config.json"));

  put(folder / "b/tokenizer_config.json", R"({"padding_side": "left"})");
  put(folder / "b/chat_template.jinja", "<|im_start|>{{ x }}<|im_end|>");
  EXPECT_EQ(
      Json::parse(load_model(folder / "b").tokenizer->config_json()),
      Json::parse(R"({"chat_template": "<|im_start|>{{ x }}<|im_end|>", "padding_side": "left"})"));
  put(folder / "b/tokenizer_config.json", "[1]");
  EXPECT_FAILS(load_model(folder / "b"), "tokenizer_config.json: an object is needed");
}

TEST(ModelFolder, Bf16RoundsOnceAndStays) {
  for (const NamedConfig& named : small_configs()) {
    SCOPED_TRACE(named.name);
    TempFolder folder;
    const auto model = drawn_model(named.config);
    save(folder.path(), *model, DType::bf16);
    const Safetensors file = Safetensors::open(folder.path());
    for (const NamedTensor& tensor : file.tensors()) {
      const bool sketch = named.config.routing.recipe == "sketch" &&
                          tensor.name.find(".mlp.gate.") != std::string::npos,
                 buffer = sketch || tensor.name.find(".e_score_") != std::string::npos;
      EXPECT_EQ(tensor.value.dtype, buffer ? DType::f32 : DType::bf16) << tensor.name;
    }
    const LoadedModel loaded = load_model(folder.path());
    expect_same_model(*loaded.model, *model, [](float x) { return to_f32(to_bf16(x)); });
    save(folder.path(), *loaded.model, DType::bf16);
    expect_same_model(*load_model(folder.path()).model, *loaded.model);
  }
}

TEST(ModelFolder, SameModelSameBytes) {
  TempFolder a, b;
  const auto model = drawn_model(small_nanomoe(true, true));
  save(a.path(), *model);
  save(b.path(), *model);
  for (const char* file : {"/config.json", "/tokenizer.json", "/model.safetensors"})
    EXPECT_EQ(slurp(a.path() + file), slurp(b.path() + file)) << file;
  EXPECT_EQ(a.entries(),
            (std::vector<std::string>{"config.json", "model.safetensors", "tokenizer.json"}));
}

// Names and shapes of a model's file, "name shape", sorted.
std::vector<std::string> names_and_shapes(const ModelConfig& config) {
  TempFolder folder;
  save(folder.path(), *drawn_model(config));
  std::vector<std::string> out;
  const Safetensors file = Safetensors::open(folder.path());
  for (const NamedTensor& tensor : file.tensors())
    out.push_back(tensor.name + " " + describe(tensor.value));
  std::sort(out.begin(), out.end());
  return out;
}

// The weights of a golden file lie under the names that the program it was made with uses.
std::vector<std::string> golden_names_and_shapes(const std::string& name,
                                                 const std::vector<std::string>& also = {}) {
  const Safetensors golden =
      Safetensors::open(std::string(MOE_TEST_DATA) + "/golden/" + name + ".safetensors");
  std::vector<std::string> out = also;
  for (const NamedTensor& tensor : golden.tensors())
    if (golden.contains("grad." + tensor.name))
      out.push_back(tensor.name + " " + describe(tensor.value));
  std::sort(out.begin(), out.end());
  return out;
}

// The same bytes as without being asked; stopped half way, the folder holds no tensors.
TEST(ModelFolder, TellsHowFarItIs) {
  TempFolder folder;
  const auto model = drawn_model(small_shared());
  save(folder / "quiet", *model);
  std::vector<int64_t> told;
  int64_t total = 0;
  const auto bytes = make_tokenizer("bytes");
  save_model(folder / "told", *model, *bytes, DType::f32, {}, [&](int64_t done, int64_t all) {
    told.push_back(done);
    total = all;
  });
  EXPECT_EQ(slurp(folder / "told/model.safetensors"), slurp(folder / "quiet/model.safetensors"));
  EXPECT_GT(told.size(), 10u);
  EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
  EXPECT_EQ(told.front(), 0);
  int64_t numbers = 0;
  for (const Param* param : model->params()) numbers += param->value.numel();
  EXPECT_EQ(total, numbers);
  EXPECT_FAILS(save_model(folder / "stopped", *model, *bytes, DType::f32, {},
                          [&](int64_t done, int64_t all) {
                            if (2 * done > all) fail("stopped");
                          }),
               "stopped");
  EXPECT_FALSE(std::filesystem::exists(folder / "stopped/model.safetensors"));
}

TEST(ModelFolder, OlmoeNamesAreTransformers) {
  for (const char* name : {"olmoe_mha", "olmoe_gqa"}) {
    const Json golden = read_json(std::string(MOE_TEST_DATA) + "/golden/" + name + ".json");
    ModelConfig config = parse_config(golden["config"].dump(), name);
    config.vocab = 256;  // for the byte tokenizer
    std::vector<std::string> want = golden_names_and_shapes(name);
    for (std::string& line : want)
      if (line.starts_with("lm_head") || line.starts_with("model.embed"))
        line.replace(line.find("[64"), 3, "[256");
    EXPECT_EQ(names_and_shapes(config), want);
  }
}

TEST(ModelFolder, NanoMoeNamesAreNanoMoes) {
  for (const std::string name : {"nanomoe_bias", "nanomoe_nobias", "nanomoe_noise"}) {
    const Json golden = read_json(std::string(MOE_TEST_DATA) + "/golden/" + name + ".json");
    const Json& theirs = golden["config"]["nanomoe"];
    ModelConfig c = small_nanomoe(theirs["bias"], theirs["use_noisy_top_k"]);
    c.width = theirs["n_embd"];
    c.layers = theirs["n_layer"];
    c.heads = c.kv_heads = theirs["n_head"];
    c.head_width = c.width / c.heads;
    c.context = theirs["block_size"];
    c.dense_width = c.expert_width = 4 * c.width;
    c.moe_every = theirs["stride"];
    c.routing.experts = theirs["n_exp"];
    const int64_t vocab = theirs["vocab_size"];
    std::vector<std::string> want =
        golden_names_and_shapes(name, {fmt::format("lm_head.weight f32 [{}, {}]", vocab, c.width)});
    for (std::string& line : want)
      if (line.starts_with("lm_head") || line.starts_with("transformer.wte"))
        line.replace(line.find("[") + 1, std::to_string(vocab).size(), "256");
    EXPECT_EQ(names_and_shapes(c), want) << name;
  }
}

// As transformers' DeepSeek-V3 has it; expert choice's thresholds are ours in its manner.
TEST(ModelFolder, RouterBuffersHaveNamesInHuggingFacesManner) {
  ModelConfig c = small_config();
  c.routing = small_routing("deepseek-v3", 6, c.layers);
  const std::vector<std::string> v3 = names_and_shapes(c);
  EXPECT_NE(
      std::find(v3.begin(), v3.end(), "model.layers.1.mlp.gate.e_score_correction_bias f32 [6]"),
      v3.end());
  c.routing = small_routing("expert-choice", 6, c.layers);
  const std::vector<std::string> ec = names_and_shapes(c);
  EXPECT_NE(std::find(ec.begin(), ec.end(), "model.layers.1.mlp.gate.e_score_threshold f32 [6]"),
            ec.end());
  c.routing = small_routing("hash", 6, c.layers);
  for (const std::string& name : names_and_shapes(c))
    EXPECT_EQ(name.find(".mlp.gate."), std::string::npos) << name;
}

TEST(ModelFolder, NanoMoeLayouts) {
  TempFolder folder;
  const auto model = drawn_model(small_nanomoe(true, true));
  save(folder.path(), *model);
  const Safetensors file = Safetensors::open(folder.path());
  const int64_t d = 8, f = 32;
  const auto param = [&](const char* name) { return param_named(*model, name)->value.as<float>(); };
  const float* attn = file.get("transformer.h.1.attn.c_attn.weight").as<float>();  // [3D,D]
  const float* fc = file.get("transformer.h.0.mlp.experts.c_fc").as<float>();      // [E,D,4D]
  const float* proj = file.get("transformer.h.0.mlp.experts.c_proj").as<float>();  // [E,4D,D]
  for (int64_t r = 0; r < d; ++r)
    for (int64_t c = 0; c < d; ++c) {
      EXPECT_EQ(attn[r * d + c], param("layers.1.attn.q.weight")[r * d + c]);
      EXPECT_EQ(attn[(d + r) * d + c], param("layers.1.attn.k.weight")[r * d + c]);
      EXPECT_EQ(attn[(2 * d + r) * d + c], param("layers.1.attn.v.weight")[r * d + c]);
    }
  for (int64_t e = 0; e < 3; ++e)
    for (int64_t r = 0; r < f; ++r)
      for (int64_t c = 0; c < d; ++c) {
        EXPECT_EQ(fc[(e * d + c) * f + r],
                  param("layers.0.ffn.experts.up.weight")[(e * f + r) * d + c]);
        EXPECT_EQ(proj[(e * f + r) * d + c],
                  param("layers.0.ffn.experts.down.weight")[(e * d + c) * f + r]);
      }
  const Tensor fc_bias = file.get("transformer.h.2.mlp.experts.fc_bias");
  EXPECT_EQ(describe(fc_bias), "f32 [3, 1, 32]");
  for (int64_t i = 0; i < 3 * f; ++i)
    EXPECT_EQ(fc_bias.as<float>()[i], param("layers.2.ffn.experts.up.bias")[i]);
  EXPECT_TRUE(same_bits(file.get("lm_head.weight"), file.get("transformer.wte.weight")));
}

TEST(ModelFolder, CountsWhatAModelHolds) {
  for (const NamedConfig& named : small_configs()) {
    Model model(named.config);
    int64_t held = 0;
    for (const Param* param : model.params()) held += param->value.numel();
    EXPECT_EQ(parameter_count(named.config), static_cast<double>(held)) << named.name;
  }
}

// A saved model whose files can be changed.
class Changed : public ::testing::Test {
 protected:
  void start(const ModelConfig& config) {
    model_ = drawn_model(config);
    save(folder_.path(), *model_);
  }
  // Writes the tensors again after `change` was applied to each; false drops it.
  void rewrite(const std::function<bool(SafetensorsItem&)>& change,
               std::vector<SafetensorsItem> also = {}) {
    rewrite_tensors(folder_.path(), change, std::move(also));
  }
  // The same, for one tensor.
  void rewrite(const std::string& name, const std::function<void(SafetensorsItem&)>& change) {
    bool found = false;
    rewrite([&](SafetensorsItem& item) {
      if (item.name == name) found = true, change(item);
      return true;
    });
    ASSERT_TRUE(found) << name;
  }
  std::string message() {
    return message_of([&] { load_model(folder_.path()); });
  }
  void expect_refused(const std::string& part) {
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, message());
  }

  TempFolder folder_;
  std::unique_ptr<Model> model_;
};

constexpr const char* kExpertUp = "model.layers.1.mlp.experts.2.up_proj.weight";

TEST_F(Changed, MissingExtraRenamed) {
  start(small_olmoe());
  rewrite([](SafetensorsItem& item) { return item.name != kExpertUp; });
  expect_refused(folder_.path() +
                 ": there is no tensor \"model.layers.1.mlp.experts.2.up_proj.weight\", which "
                 "config.json asks for");
  // its neighbours are no misspellings of it
  EXPECT_EQ(message().find("did you mean"), std::string::npos);

  save(folder_.path(), *model_);
  rewrite(kExpertUp,
          [](SafetensorsItem& item) { item.name = "model.layers.1.mlp.experts.2.up.weight"; });
  expect_refused("did you mean \"model.layers.1.mlp.experts.2.up.weight\"?");

  save(folder_.path(), *model_);
  float number = 0;
  rewrite([](SafetensorsItem&) { return true; },
          {{"model.layers.0.mlp.experts.3.up_proj.weight", Tensor(&number, DType::f32, {1}),
            DType::f32},
           {"odd", Tensor(&number, DType::f32, {1}), DType::f32}});
  expect_refused(
      "tensor \"model.layers.0.mlp.experts.3.up_proj.weight\" is no part of the model that "
      "config.json describes, nor are 1 others");
}

TEST_F(Changed, ShapesAndDTypes) {
  start(small_olmoe());
  rewrite(kExpertUp, [](SafetensorsItem& item) { item.value = item.value.reshape({8, 6}); });
  expect_refused(
      "tensor \"model.layers.1.mlp.experts.2.up_proj.weight\" is f32 [8, 6], config.json asks for "
      "[6, 8]; it looks transposed");
  save(folder_.path(), *model_);
  rewrite(kExpertUp, [](SafetensorsItem& item) { item.value = item.value.reshape({48}); });
  expect_refused("is f32 [48], config.json asks for [6, 8]");
  save(folder_.path(), *model_);
  rewrite(kExpertUp, [](SafetensorsItem& item) { item.value.dtype = item.dtype = DType::i32; });
  expect_refused("is i32 [6, 8]; weights must be f32, bf16 or f16");
  save(folder_.path(), *model_);
  std::vector<uint16_t> halves(48, 0x3E00);  // 1.5
  rewrite(kExpertUp, [&](SafetensorsItem& item) {
    item.value = Tensor(halves.data(), item.dtype = DType::f16, {6, 8});
  });
  const LoadedModel loaded = load_model(folder_.path());
  for (int64_t i = 0; i < 48; ++i)
    ASSERT_EQ(
        param_named(*loaded.model, "layers.1.ffn.experts.up.weight")->value.at(2).as<float>()[i],
        1.5f);
}

TEST_F(Changed, AShortFusedTensor) {
  start(small_nanomoe(false, false));
  rewrite("transformer.h.0.attn.c_attn.weight",
          [](SafetensorsItem& item) { item.value = item.value.slice_rows(0, 16); });
  expect_refused(
      "tensor \"transformer.h.0.attn.c_attn.weight\" is f32 [16, 8], config.json asks for [24, 8]");
}

TEST_F(Changed, ATensorTwice) {
  start(small_nanomoe(false, false));
  std::string bytes = slurp(folder_ / "model.safetensors");
  const size_t at = bytes.find("\"transformer.h.0.ln_1.weight\"");
  ASSERT_NE(at, std::string::npos);
  bytes[at + std::string("\"transformer.h.").size()] = '1';
  put(folder_ / "model.safetensors", bytes);
  expect_refused("\"transformer.h.1.ln_1.weight\" stands twice");
}

TEST_F(Changed, TheTiedHeadMayBeLeftOutButNotDiffer) {
  start(small_nanomoe(false, false));
  rewrite([](SafetensorsItem& item) { return item.name != "lm_head.weight"; });
  expect_same_model(*load_model(folder_.path()).model, *model_);
  save(folder_.path(), *model_);
  std::vector<float> other(256 * 8, 0.5f);
  rewrite("lm_head.weight", [&](SafetensorsItem& item) {
    item.value = Tensor(other.data(), DType::f32, {256, 8});
  });
  expect_refused(
      "\"lm_head.weight\" differs from the embedding, though config.json says "
      "\"tie_word_embeddings\": true");
}

TEST_F(Changed, HostileSizesAllocateNothing) {
  start(small_olmoe());
  const Json json = read_json(folder_ / "config.json");
  const rlim_t room = rlim_t{2} << 30;
  rlimit before{};
  getrlimit(RLIMIT_AS, &before);
  for (const char* key : {"hidden_size", "vocab_size", "intermediate_size", "num_experts"}) {
    Json hostile = json;
    hostile[key] = 1 << 24;
    put(folder_ / "config.json", hostile.dump());
#ifndef MOE_SANITIZED
    const rlimit tight{room, before.rlim_max};
    setrlimit(RLIMIT_AS, &tight);
#endif
    expect_refused("they do not belong together");
    setrlimit(RLIMIT_AS, &before);
  }
}

TEST_F(Changed, WhatIsNoModelFolder) {
  EXPECT_FAILS(load_model(folder_ / "nothing"),
               "there is no such folder; a model folder holds config.json, model.safetensors and "
               "tokenizer.json");
  put(folder_ / "m.gguf", "GGUF\x03");
  EXPECT_FAILS(load_model(folder_ / "m.gguf"), "m.gguf: the version at offset 4 needs 4 bytes");
  put(folder_ / "text", "hello");
  EXPECT_FAILS(load_model(folder_ / "text"),
               "text: this file is no GGUF, and a model folder holds");
  for (const char* name : {"config.json", "tokenizer.json"}) {
    start(small_olmoe());
    std::filesystem::remove(folder_ / name);
    expect_refused(fmt::format("there is no {} in this folder; a model folder holds", name));
  }
  start(small_olmoe());
  for (const char* name : {"config.json", "model.safetensors"})
    EXPECT_FAILS(
        load_model(folder_ / name),
        "this is one file of a model folder; name the folder in its place: " + folder_.path());
  std::filesystem::remove(folder_ / "model.safetensors");
  expect_refused("its weights are in m.gguf; name that file in place of the folder");
  std::filesystem::remove(folder_ / "m.gguf");
  expect_refused(
      "there is neither model.safetensors nor model.safetensors.index.json in this folder");
}

TEST_F(Changed, AnotherModelIsNotOverwritten) {
  start(small_olmoe());
  const auto other = drawn_model(small_shared());
  EXPECT_FAILS(save(folder_.path(), *other), "another model is in this folder (");
  EXPECT_FAILS(check_save_target(folder_.path(), *other),
               "choose another folder or delete it first");
  expect_same_model(*load_model(folder_.path()).model, *model_);
  // A config that the same tensors fit may change, and half a model need not be spared.
  ModelConfig config = small_olmoe();
  config.routing.coef.balance = 0.5f;
  const auto tuned = drawn_model(config, 2);
  save(folder_.path(), *tuned);
  EXPECT_EQ(load_model(folder_.path()).model->config().routing.coef.balance, 0.5f);
  expect_same_model(*load_model(folder_.path()).model, *tuned);
  std::filesystem::remove(folder_ / "model.safetensors");
  save(folder_.path(), *other);
  expect_same_model(*load_model(folder_.path()).model, *other);
}

TEST_F(Changed, AFailedSaveLeavesWhatWasThere) {
  start(small_olmoe());
  const auto entries = folder_.entries();
  const auto later = drawn_model(small_olmoe(), 2);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit tight{1000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &tight);
  const std::string refused = message_of([&] { save(folder_.path(), *later); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "cannot write " + (folder_ / "model.safetensors"),
                      refused);
  EXPECT_EQ(folder_.entries(), entries);
  expect_same_model(*load_model(folder_.path()).model, *model_);
  save(folder_.path(), *later);
  expect_same_model(*load_model(folder_.path()).model, *later);
}

TEST_F(Changed, WhatCannotBeSaved) {
  put(folder_ / "file", "x");
  const auto model = drawn_model(small_olmoe());
  EXPECT_FAILS(save(folder_ / "file", *model), "cannot make the folder");
  EXPECT_FAILS(save(folder_ / "file/deeper", *model), "cannot make the folder");
  EXPECT_FAILS(save(folder_.path(), *model, DType::f16), "saved as f32 or bf16, not f16");
  ModelConfig narrow = small_olmoe();
  narrow.vocab = 100;
  EXPECT_FAILS(save(folder_.path(), *drawn_model(narrow)),
               "the tokenizer has 256 tokens, but the model's vocabulary is 100");
  EXPECT_EQ(folder_.entries(), std::vector<std::string>{"file"});
}

}  // namespace
}  // namespace moe::test::model_folder_test
