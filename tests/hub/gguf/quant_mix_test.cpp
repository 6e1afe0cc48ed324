// Which tensor gets which type in each mix, against what llama.cpp is known to have made, and on a
// model that is converted.
#include "hub/gguf/quant_mix.h"

#include <map>

#include "core/rng.h"
#include "formats/gguf.h"
#include "hub/configs.h"
#include "hub/convert.h"
#include "hub/gguf/gguf_model.h"
#include "support/check.h"
#include "support/files.h"

namespace moe::test::quant_mix_test {
namespace {

const QuantMix& mix(const char* name) { return find_quant_mix(name, "--quant"); }

ModelConfig dense(int64_t layers, int64_t heads = 32, int64_t kv_heads = 32) {
  ModelConfig c = small_config();
  c.layers = layers;
  c.heads = heads;
  c.kv_heads = kv_heads;
  c.routing.recipe = "dense";
  return c;
}
ModelConfig of_experts(int64_t experts, int64_t layers) {
  ModelConfig c = dense(layers);
  c.routing = default_options(find_recipe("mixtral"), experts, 2, layers);
  return c;
}

// By llama.cpp's names, which its rules and what it prints are in.
struct Matrix {
  const char* name;
  Part part;
  ParamKind kind;
};
constexpr Matrix kMatrices[] = {
    {"attn_q", Part::attention, ParamKind::q},
    {"attn_k", Part::attention, ParamKind::k},
    {"attn_v", Part::attention, ParamKind::v},
    {"attn_qkv", Part::attention, ParamKind::q},
    {"attn_output", Part::attention, ParamKind::o},
    {"linear_k", Part::attention, ParamKind::linear_k},
    {"linear_v", Part::attention, ParamKind::linear_v},
    {"linear_o", Part::attention, ParamKind::linear_o},
    {"ffn_gate", Part::dense_ffn, ParamKind::gate},
    {"ffn_up", Part::dense_ffn, ParamKind::up},
    {"ffn_down", Part::dense_ffn, ParamKind::down},
    {"ffn_gate_exps", Part::experts, ParamKind::gate},
    {"ffn_up_exps", Part::experts, ParamKind::up},
    {"ffn_down_exps", Part::experts, ParamKind::down},
    {"ffn_down_shexp", Part::shared, ParamKind::down},
    {"token_embd", Part::embedding, ParamKind::weight},
};

std::string type(const char* name, std::string_view matrix, int64_t layer,
                 const ModelConfig& config, bool weighed = false) {
  const Matrix& m = *std::ranges::find(kMatrices, matrix, &Matrix::name);
  Param param;
  param.part = m.part;
  param.kind = m.kind;
  param.layer = layer;
  return std::string(name_of(type_in_mix(mix(name), param, matrix == "attn_qkv", config, weighed)));
}

// How many of a dense model's matrices, seven a layer and the embedding, become which type.
std::map<std::string, int> counts(const char* name, const ModelConfig& config) {
  std::map<std::string, int> out;
  ++out[type(name, "token_embd", -1, config)];
  for (int64_t layer = 0; layer < config.layers; ++layer)
    for (const char* part :
         {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"})
      ++out[type(name, part, layer, config)];
  return out;
}

// What llama.cpp prints when it loads Llama 2 7B (32 layers, 291 tensors, 65 of them f32) in each
// mix; its head, one more q6_k, is no matter of the mix.
TEST(QuantMix, CountsAreThoseOfLlama2) {
  using Counts = std::map<std::string, int>;
  EXPECT_EQ(counts("q4_k_m", dense(32)), (Counts{{"q4_k", 193}, {"q6_k", 33 - 1}}));
  EXPECT_EQ(counts("q5_k_m", dense(32)), (Counts{{"q5_k", 193}, {"q6_k", 33 - 1}}));
  EXPECT_EQ(counts("q4_k_s", dense(32)), (Counts{{"q4_k", 217}, {"q5_k", 8}}));
  EXPECT_EQ(counts("q5_k_s", dense(32)), (Counts{{"q5_k", 225}}));
  for (const char* plain : {"q8_0", "q6_k", "q5_1", "q5_0", "q4_1", "q4_0"})
    EXPECT_EQ(counts(plain, dense(32)), (Counts{{plain, 225}}));
  // 80 layers whose heads share keys and values: the value matrices that would have four bits have
  // five.
  EXPECT_EQ(counts("q4_k_m", dense(80, 64, 8)),
            (Counts{{"q4_k", 481 - 40}, {"q5_k", 40}, {"q6_k", 80}}));
  EXPECT_EQ(counts("q4_k_m", dense(80, 64, 64)), (Counts{{"q4_k", 481}, {"q6_k", 80}}));
}

TEST(QuantMix, LayersWithMoreBits) {
  std::string which;
  for (int64_t layer = 0; layer < 32; ++layer)
    if (type("q4_k_m", "ffn_down", layer, dense(32)) == "q6_k") which += fmt::format("{} ", layer);
  EXPECT_EQ(which, "0 1 2 3 6 9 12 15 18 21 24 27 28 29 30 31 ");
  // A small model: no eighth at either end, but for the last layer.
  which.clear();
  for (int64_t layer = 0; layer < 4; ++layer)
    if (type("q5_k_m", "attn_v", layer, dense(4)) == "q6_k") which += fmt::format("{} ", layer);
  EXPECT_EQ(which, "2 3 ");
  EXPECT_EQ(type("q4_k_s", "attn_v", 3, dense(32)), "q5_k");
  EXPECT_EQ(type("q4_k_s", "attn_v", 4, dense(32)), "q4_k");
  EXPECT_EQ(type("q4_k_s", "ffn_down", 3, dense(32)), "q5_k");
  EXPECT_EQ(type("q4_k_s", "ffn_down", 0, dense(7)), "q4_k") << "no whole eighth";
}

// llama.cpp's counters go up with each tensor of a kind, so that layers without one are not seen.
TEST(QuantMix, LayersWithoutAMatrixAreNotCounted) {
  // Those of the layers in which a matrix of q4_k_m or q4_k_s has more bits.
  const auto more_bits = [](const char* name, const char* matrix,
                            const std::vector<int64_t>& layers, const ModelConfig& config) {
    std::vector<int64_t> which;
    for (const int64_t layer : layers)
      if (type(name, matrix, layer, config) != "q4_k") which.push_back(layer);
    return which;
  };
  using Layers = std::vector<int64_t>;
  const Layers attention = {2, 5, 8, 10, 12, 14}, others = {0, 1, 3, 4, 6, 7, 9, 11, 13, 15};
  ModelConfig conv = dense(16), scan = conv, linear = conv, lightning = conv;
  conv.conv_layers = others;
  scan.scan_layers = others;
  linear.linear_layers = others;
  lightning.lightning_layers = others;
  for (const ModelConfig& c : {conv, scan}) {
    EXPECT_EQ(more_bits("q4_k_s", "attn_v", attention, c), (Layers{2, 5, 8, 10}));
    EXPECT_EQ(more_bits("q4_k_m", "attn_v", attention, c), (Layers{8, 14}));
    EXPECT_EQ(more_bits("q4_k_m", "ffn_down", attention, c), (Layers{10, 14}));
  }
  // Layers with linear attention have such a tensor.
  for (const ModelConfig& c : {linear, lightning})
    EXPECT_EQ(more_bits("q4_k_s", "attn_v", attention, c), (Layers{2}));

  const Layers even = {0, 2, 4, 6}, odd = {1, 3, 5, 7};
  ModelConfig halves = dense(8), routed = of_experts(16, 8);
  halves.mixer_only_layers = routed.mixer_only_layers = even;
  halves.ffn_only_layers = routed.ffn_only_layers = odd;
  EXPECT_EQ(more_bits("q4_k_m", "ffn_down", odd, halves), (Layers{1, 7}));
  EXPECT_EQ(more_bits("q4_k_m", "attn_v", even, halves), (Layers{4, 6}));
  EXPECT_EQ(more_bits("q4_k_m", "ffn_down_exps", odd, routed), (Layers{3, 7}))
      << "of experts the layer's number counts";
}

// Kimi Linear's files call the matrices of linear attention as those of attention, and the values
// of the other layers otherwise. Qwen3-Next's call the way back ssm_out.
TEST(QuantMix, MatricesOfLinearAttentionThatStandApartCount) {
  ModelConfig c = of_experts(16, 16);
  c.latent.width = 8;
  c.linear = {.key_heads = 4, .value_heads = 4, .gate_width = 4};
  c.linear_layers = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14};
  const auto with = [&](const char* name, const char* type_there) {
    std::vector<int64_t> which;
    for (const int64_t layer : c.linear_layers)
      if (type(name, "linear_v", layer, c) == type_there) which.push_back(layer);
    return which;
  };
  using Layers = std::vector<int64_t>;
  EXPECT_EQ(with("q4_k_m", "q6_k"), (Layers{0, 4, 8, 12, 13, 14}));
  EXPECT_EQ(with("q4_k_s", "q5_k"), (Layers{0, 1, 2, 4}));
  EXPECT_EQ(with("q3_k_m", "q5_k"), (Layers{0, 1}));
  EXPECT_EQ(type("q2_k", "linear_v", 1, c), "q3_k") << "no heads share keys in its first layer";
  EXPECT_EQ(type("q2_k", "linear_o", 1, c), "q3_k");
  c.routing.experts = 8;
  EXPECT_EQ(type("q4_k_m", "linear_v", 1, c), "q8_0");
  EXPECT_EQ(type("q4_k_m", "linear_k", 1, c), "q8_0");
  EXPECT_EQ(type("q4_k_m", "linear_o", 1, c), "q5_k");
  c.linear.gate_width = 0;
  EXPECT_EQ(type("q4_k_m", "linear_o", 1, c), "q4_k");
}

// Mixtral: what is small beside eight experts gets q8_0, in every mix.
TEST(QuantMix, MixturesOfExperts) {
  for (const QuantMix& m : quant_mixes())
    for (const char* part : {"attn_v", "attn_k"})
      EXPECT_EQ(type(m.name.data(), part, 9, of_experts(8, 32)), "q8_0") << m.name;
  for (const char* four : {"q4_k_m", "q4_k_s"})
    EXPECT_EQ(type(four, "attn_output", 9, of_experts(8, 32)), "q5_k");
  EXPECT_EQ(type("q5_k_m", "attn_output", 9, of_experts(8, 32)), "q5_k");
  EXPECT_EQ(type("q6_k", "attn_output", 9, of_experts(8, 32)), "q6_k");
  EXPECT_EQ(type("q4_k_m", "attn_q", 9, of_experts(8, 32)), "q4_k");
  for (const char* part : {"ffn_down_exps", "ffn_down_shexp", "attn_v"}) {
    EXPECT_EQ(type("q4_k_m", part, 9, of_experts(16, 32)), "q6_k") << part;
    EXPECT_EQ(type("q4_k_m", part, 10, of_experts(16, 32)), "q4_k") << part;
  }
  for (const char* part : {"ffn_gate_exps", "ffn_up_exps", "attn_k", "attn_q", "attn_output"})
    EXPECT_EQ(type("q4_k_m", part, 9, of_experts(16, 32)), "q4_k") << part;
  EXPECT_EQ(type("q4_k_m", "attn_qkv", 9, dense(32)), "q6_k")
      << "keys and queries fused with the values";
}

TEST(QuantMix, OnlyExpertsAreMxfp4) {
  for (const char* part : {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"})
    EXPECT_EQ(type("mxfp4_moe", part, 3, of_experts(16, 32)), "mxfp4") << part;
  for (const char* part : {"attn_k", "attn_q", "attn_output", "ffn_down", "ffn_down_shexp"})
    EXPECT_EQ(type("mxfp4_moe", part, 3, of_experts(16, 32)), "q8_0") << part;
}

TEST(QuantMix, ValuesSharedByFourGetMoreBits) {
  EXPECT_EQ(type("iq4_nl", "attn_v", 9, dense(32)), "iq4_nl");
  EXPECT_EQ(type("iq4_nl", "attn_v", 9, dense(32, 32, 8)), "q5_k");
  // llama.cpp asks the first layer, which of LFM2 has no heads.
  ModelConfig conv = dense(32, 32, 8);
  conv.conv_layers = {0};
  EXPECT_EQ(type("iq4_nl", "attn_v", 9, conv), "iq4_nl");
  EXPECT_EQ(type("iq4_nl", "ffn_down", 3, dense(32)), "q5_k");
  EXPECT_EQ(type("iq4_nl", "ffn_down", 4, dense(32)), "iq4_nl");
}

// By the rules for LLAMA_FTYPE_MOSTLY_Q2_K and _Q3_K_S, _M, _L.
TEST(QuantMix, ThreeBitsAndTwo) {
  const auto row = [](const char* name, int64_t layer, const ModelConfig& config) {
    std::string out;
    for (const char* part : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_down"})
      out += fmt::format("{}{}", out.empty() ? "" : " ", type(name, part, layer, config));
    return out;
  };
  EXPECT_EQ(row("q3_k_s", 0, dense(32)), "q3_k q3_k q3_k q3_k q3_k q3_k");
  EXPECT_EQ(row("q3_k_m", 0, dense(32)), "q3_k q3_k q5_k q4_k q3_k q5_k");
  EXPECT_EQ(row("q3_k_m", 1, dense(32)), "q3_k q3_k q5_k q4_k q3_k q5_k");
  EXPECT_EQ(row("q3_k_m", 2, dense(32)), "q3_k q3_k q4_k q4_k q3_k q4_k");
  EXPECT_EQ(row("q3_k_l", 2, dense(32)), "q3_k q3_k q5_k q5_k q3_k q5_k");
  EXPECT_EQ(row("q2_k", 2, dense(32)), "q2_k q2_k q3_k q3_k q2_k q3_k");
  EXPECT_EQ(row("q2_k", 2, dense(32, 32, 8)), "q2_k q2_k q4_k q3_k q2_k q3_k");
  EXPECT_EQ(row("q3_k_m", 2, of_experts(8, 32)), "q3_k q8_0 q8_0 q5_k q3_k q4_k");
  EXPECT_EQ(row("q3_k_l", 2, of_experts(8, 32)), "q3_k q8_0 q8_0 q3_k q3_k q5_k");
  EXPECT_EQ(row("q3_k_s", 2, dense(80, 64, 8)), "q3_k q3_k q5_k q3_k q3_k q3_k");
  EXPECT_EQ(type("q3_k_l", "attn_qkv", 9, dense(32)), "q5_k");
  EXPECT_EQ(type("q3_k_m", "attn_qkv", 9, dense(32)), "q4_k");
}

TEST(QuantMix, TwoBitsOfOneScaleAreForLayers) {
  std::map<std::string, int> want = {{"q2_0", 224}, {"q4_k", 1}};
  EXPECT_EQ(counts("q2_0", dense(32, 32, 8)), want);
  want = {{"q2_0", 224 - 64}, {"q4_k", 1}, {"q8_0", 64}};
  EXPECT_EQ(counts("q2_0", of_experts(8, 32)), want);
  EXPECT_EQ(type("q2_0", "ffn_down_exps", 0, of_experts(16, 32)), "q2_0");
}

// Where the importance of the columns is known, llama.cpp gives the first layers an offset in place
// of five bits, and iq4_nl no more than it has.
TEST(QuantMix, WhatIsWeighedHasOtherRules) {
  EXPECT_EQ(type("iq4_nl", "ffn_down", 3, dense(32), true), "iq4_nl");
  EXPECT_EQ(type("q4_0", "ffn_down", 3, dense(32), true), "q4_1");
  EXPECT_EQ(type("q4_0", "ffn_down", 4, dense(32), true), "q4_0");
  EXPECT_EQ(type("q5_0", "ffn_down", 3, dense(32), true), "q5_1");
  EXPECT_EQ(type("q5_0", "ffn_up", 3, dense(32), true), "q5_0");
  EXPECT_EQ(type("q4_0", "ffn_down", 3, dense(32), false), "q4_0");
}

TEST(QuantMix, Names) {
  EXPECT_EQ(mix("Q4_K_M").name, "q4_k_m");
  EXPECT_EQ(mix("q4_k").name, "q4_k_m");
  EXPECT_EQ(mix("Q5_K").name, "q5_k_m");
  EXPECT_EQ(mix("Q3_K").name, "q3_k_m");
  EXPECT_FAILS(mix("iq2_xs"), "llama.cpp makes it of IQ types, which moe does not make");
  for (const char* other : {"q2_k_s", "iq1_s", "IQ3_M", "tq1_0", "nvfp4"})
    EXPECT_FAILS(mix(other), "which moe does not make");
  EXPECT_FAILS(mix("q9_0"), "no type or mix of types is called 'q9_0'");
  EXPECT_FAILS(mix("q4"), "'q4'; known are ");
  EXPECT_FAILS(mix("q4km"), "'q4km'; did you mean \"q4_k_m\"?");
  EXPECT_FAILS(mix("bf16"), "dtype bf16");
}

// The numbers of llama.h, enum llama_ftype.
TEST(QuantMix, FileTypes) {
  std::map<std::string, int64_t> got;
  for (const QuantMix& m : quant_mixes()) got[std::string(m.name)] = m.file_type;
  const std::map<std::string, int64_t> want = {
      {"q2_k", 10},      {"q3_k_s", 11}, {"q3_k_m", 12}, {"q3_k_l", 13}, {"iq4_nl", 25},
      {"mxfp4_moe", 38}, {"q4_0", 2},    {"q4_1", 3},    {"q8_0", 7},    {"q5_0", 8},
      {"q5_1", 9},       {"q4_k_s", 14}, {"q4_k_m", 15}, {"q5_k_s", 16}, {"q5_k_m", 17},
      {"q6_k", 18},      {"q2_0", 41},   {"iq4_xs", 30}};
  EXPECT_EQ(got, want);
}

// A model of eight layers, dense at first, with rows of 256 in the experts' way down and of 64
// elsewhere.
TEST(QuantMix, AConvertedModelHasThem) {
  ModelConfig c = small_config();
  c.layers = 8;
  c.width = 256;
  c.heads = 8;
  c.kv_heads = 4;
  c.head_width = 32;
  c.dense_width = c.expert_width = 256;
  for (const int64_t experts : {0, 4, 8}) {
    c.routing.recipe = "dense";
    if (experts > 0) c.routing = default_options(find_recipe("mixtral"), experts, 2, c.layers);
    Model model(c);
    uint64_t index = 0;
    for (Param* param : model.params())
      for (int64_t i = 0, n = param->value.numel(), seed = static_cast<int64_t>(index++); i < n;
           ++i)
        param->value.as<float>()[i] = static_cast<float>((i * 37 + seed * 11) % 101 - 50) / 64;
    const TempFolder folder;
    save_model(folder / "in", model, *make_tokenizer("bytes"));
    LoadedModel loaded = open_model(folder / "in", {});
    const ConvertReport report = convert_model(loaded, folder / "in", folder / "m.gguf",
                                               {.dtype = mix("q4_k_m"), .threads = 2});
    const Gguf file = Gguf::open(folder / "m.gguf");
    EXPECT_EQ(file.integer("general.file_type", 0, 1 << 20), 15);
    std::map<std::string, std::string> types;
    for (const NamedTensor& tensor : file.tensors())
      types[tensor.name] = std::string(name_of(file.get(tensor.name).dtype));
    const std::string down = experts > 0 ? "ffn_down_exps" : "ffn_down",
                      up = experts > 0 ? "ffn_up_exps" : "ffn_up";
    for (int64_t layer = 0; layer < 8; ++layer) {
      const bool more = layer == 0 || layer == 3 || layer == 6 || layer == 7;
      const auto at = [&](const std::string& part) {
        return types.at(fmt::format("blk.{}.{}.weight", layer, part));
      };
      EXPECT_EQ(at(down), more ? "q6_k" : "q4_k") << layer;
      EXPECT_EQ(at(up), "q4_k");
      EXPECT_EQ(at("attn_v"), experts == 8 ? "q8_0" : more ? "q6_k" : "q4_k") << layer;
      EXPECT_EQ(at("attn_k"), experts == 8 ? "q8_0" : "q4_k");
      EXPECT_EQ(at("attn_output"), experts == 8 ? "q5_k" : "q4_k");
      EXPECT_EQ(at("attn_norm"), "f32");
    }
    EXPECT_EQ(types.at("output.weight"), "q6_k");
    EXPECT_EQ(types.at("token_embd.weight"), "q4_k");
    bool said = false;
    for (const ConvertedRow& row : report.rows)
      said = said || (row.to == DType::q6_k && row.why == "the mix gives it more bits");
    EXPECT_TRUE(said);
    EXPECT_GT(open_model(folder / "m.gguf", {}).model->params().size(), 0u) << "and is read";
    if (experts == 0) continue;
    const ConvertReport fewer = convert_model(loaded, folder / "in", folder / "fewer.gguf",
                                              {.dtype = mix("mxfp4_moe"), .threads = 2});
    int64_t banks = 0;
    for (const ConvertedRow& row : fewer.rows)
      if (row.to == DType::mxfp4) banks += row.why == "the mix gives it fewer bits";
    EXPECT_GT(banks, 0) << "4.25 where others have 8.5";
  }
}

// More bits are for queries, keys and values in one tensor, not for an FFN's gates and ups in one.
TEST(QuantMix, WhatElseIsFusedHasNoMoreBits) {
  ModelConfig c = dense(2, 8, 4);
  c.width = c.dense_width = c.expert_width = 256;
  c.head_width = 32;
  c.rotary_width = 16;
  Model model(c);
  for (Param* param : model.params())
    for (int64_t i = 0; i < param->value.numel(); ++i)
      param->value.as<float>()[i] = static_cast<float>(i * 37 % 101 - 50) / 64;
  const TempFolder folder;
  save_model(folder / "in", model, *make_tokenizer("bytes"));
  LoadedModel loaded = open_model(folder / "in", {});
  convert_model(loaded, folder / "in", folder / "m.gguf", {.dtype = mix("q4_k_m"), .threads = 2});
  const Gguf file = Gguf::open(folder / "m.gguf");
  EXPECT_EQ(file.text("general.architecture"), "phi3");
  EXPECT_EQ(name_of(file.get("blk.1.attn_qkv.weight").dtype), "q6_k");
  EXPECT_EQ(name_of(file.get("blk.1.ffn_down.weight").dtype), "q6_k");
  EXPECT_EQ(name_of(file.get("blk.1.ffn_up.weight").dtype), "q4_k");
  EXPECT_EQ(name_of(file.get("blk.1.attn_output.weight").dtype), "q4_k");
}

// Rows of 64 in most matrices, of 96 on the way down.
TEST(QuantMix, AModelInTwoBitsIsMadeAndRead) {
  ModelConfig c = dense(2, 2, 2);
  c.width = 64;
  c.head_width = 32;
  c.dense_width = 96;
  Model model(c);
  uint64_t index = 0;
  for (Param* param : model.params())
    for (int64_t i = 0; i < param->value.numel(); ++i)
      param->value.as<float>()[i] = 0.1f * normal(RngKey::from_seed(3), index++);
  const TempFolder folder;
  save_model(folder / "in", model, *make_tokenizer("bytes"));
  LoadedModel loaded = open_model(folder / "in", {});
  const ConvertReport report =
      convert_model(loaded, folder / "in", folder / "m.gguf", {.dtype = mix("q2_0"), .threads = 2});
  const Gguf file = Gguf::open(folder / "m.gguf");
  EXPECT_EQ(file.integer("general.file_type", 0, 1 << 20), 41);
  const auto type_of = [&](const char* name) { return name_of(file.get(name).dtype); };
  for (const char* two : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up"})
    EXPECT_EQ(type_of(fmt::format("blk.1.{}.weight", two).c_str()), "q2_0") << two;
  EXPECT_EQ(type_of("blk.1.ffn_down.weight"), "q4_0");
  EXPECT_EQ(type_of("token_embd.weight"), "q5_0");
  EXPECT_EQ(type_of("output.weight"), "q8_0");
  EXPECT_TRUE(std::ranges::any_of(report.rows, [](const ConvertedRow& row) {
    return row.why == "rows are no multiple of 64";
  }));
  const LoadedModel read = open_model(folder / "m.gguf", {});
  EXPECT_TRUE(std::ranges::any_of(
      read.model->params(), [](const Param* param) { return param->value.dtype == DType::q2_0; }));
}

}  // namespace
}  // namespace moe::test::quant_mix_test
