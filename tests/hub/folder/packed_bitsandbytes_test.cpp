// bitsandbytes: codes of 4 bits, whose blocks run over the flattened matrix and whose scales may be
// codes themselves, and whole numbers of 8 bits. What they load as is worked out here number by
// number.
#include <cmath>

#include "hub/folder/packed_layers.h"

namespace moe::test::packed_bitsandbytes_test {
namespace {

constexpr float kNf4[] = {-1.0f,
                          -0.6961928009986877f,
                          -0.5250730514526367f,
                          -0.39491748809814453f,
                          -0.28444138169288635f,
                          -0.18477343022823334f,
                          -0.09105003625154495f,
                          0.0f,
                          0.07958029955625534f,
                          0.16093020141124725f,
                          0.24611230194568634f,
                          0.33791524171829224f,
                          0.44070982933044434f,
                          0.5626170039176941f,
                          0.7229568362236023f,
                          1.0f};
// Twelfths.
constexpr float kFp4[] = {0, 0.0625f, 8, 12, 4, 6, 2, 3, 0, -0.0625f, -8, -12, -4, -6, -2, -3};

std::vector<float> meant_by(std::string_view type) {
  std::vector<float> map(std::begin(kNf4), std::end(kNf4));
  for (size_t i = 0; i < map.size() && type == "fp4"; ++i) map[i] = kFp4[i] / 12;
  return map;
}

void put_floats(MadeFile& to, const std::string& name, const std::vector<float>& numbers) {
  const Tensor t = to.put(name, DType::f32, {std::ssize(numbers)});
  std::copy(numbers.begin(), numbers.end(), t.as<float>());
}

void put_state(MadeFile& to, const std::string& layer, const Json& state) {
  const std::string text = state.dump(), type = state["quant_type"];
  const Tensor bytes =
      to.put(layer + ".weight.quant_state.bitsandbytes__" + type, DType::u8, {std::ssize(text)});
  std::copy(text.begin(), text.end(), bytes.as<uint8_t>());
}

Json state_of(const char* type, const char* dtype, int64_t block, int64_t out, int64_t in) {
  return {{"quant_type", type}, {"blocksize", block}, {"dtype", dtype}, {"shape", {out, in}}};
}

Json with_nested(Json state, int64_t block, double offset) {
  state["nested_blocksize"] = block;
  state["nested_dtype"] = "float32";
  state["nested_offset"] = offset;
  return state;
}

// As transformers writes it.
Json config_of(int64_t bits) {
  return {{"_load_in_4bit", bits == 4},
          {"_load_in_8bit", bits == 8},
          {"bnb_4bit_compute_dtype", "bfloat16"},
          {"bnb_4bit_quant_storage", "uint8"},
          {"bnb_4bit_quant_type", "nf4"},
          {"bnb_4bit_use_double_quant", true},
          {"llm_int8_enable_fp32_cpu_offload", false},
          {"llm_int8_has_fp16_weight", false},
          {"llm_int8_skip_modules", {"lm_head"}},
          {"llm_int8_threshold", 6.0},
          {"load_in_4bit", bits == 4},
          {"load_in_8bit", bits == 8},
          {"quant_method", "bitsandbytes"}};
}

class Bitsandbytes : public PackedLayers {
 protected:
  float drawn_float() { return static_cast<float>(0.01 + drawn()); }

  // The one weight of a file of parts.
  std::vector<float> unpacked(const MadeFile& made, const char* shape) {
    write_safetensors(packed_ / "model.safetensors", made.items);
    UnpackedTensors tensors(std::make_shared<const Safetensors>(Safetensors::open(packed_.path())),
                            {.kind = Packing::Kind::bitsandbytes});
    tensors.unpack();
    EXPECT_EQ(tensors.names(), std::vector<std::string>{"x.weight"});
    const Tensor x = tensors.get("x.weight");
    EXPECT_EQ(describe(x), shape);
    std::vector<float> numbers;
    for (int64_t i = 0; i < x.numel(); ++i) {
      const auto bits = static_cast<const uint16_t*>(x.data)[i];
      numbers.push_back(x.dtype == DType::f16 ? f16_to_f32(bits) : to_f32(bf16{bits}));
    }
    return numbers;
  }
};

struct CodesCase {
  const char* type = "nf4";
  bool nested = false;
  const char* dtype = "bfloat16";
  int64_t block = 64, expert_width = 16;
};

class Codes : public Bitsandbytes, public ::testing::WithParamInterface<CodesCase> {};

// Rows of 48, 16, 20 and 15 numbers and blocks of 64: most blocks lie in several rows, and the last
// ones are short. Rows of 64 have whole ones.
INSTANTIATE_TEST_SUITE_P(
    All, Codes,
    ::testing::Values(CodesCase{}, CodesCase{.type = "fp4"}, CodesCase{.nested = true},
                      CodesCase{.type = "fp4", .nested = true, .dtype = "float16"},
                      CodesCase{.dtype = "float16"}, CodesCase{.dtype = "float32"},
                      CodesCase{.nested = true, .expert_width = 20}, CodesCase{.expert_width = 15},
                      CodesCase{.expert_width = 64}, CodesCase{.block = 4096}));

TEST_P(Codes, Numbers) {
  const CodesCase& how = GetParam();
  const DType kept = std::string_view(how.dtype) == "float16" ? DType::f16 : DType::bf16;
  const std::vector<float> map = meant_by(how.type);
  constexpr int64_t kOuter = 4;  // published ones have 256
  const auto pack = [&](MadeFile& to, const std::string& layer, int64_t out, int64_t in) {
    if (layer.find("o_proj") != std::string::npos) return std::vector<float>{};
    const int64_t count = out * in, blocks = (count + how.block - 1) / how.block;
    std::vector<float> scale;
    Json state = state_of(how.type, how.dtype, how.block, out, in);
    if (how.nested) {
      std::vector<float> outer_map, outer;
      for (int i = 0; i < 256; ++i) outer_map.push_back(static_cast<float>(i - 128) / 127);
      const float offset = 1 + drawn_float();
      const Tensor codes = to.put(layer + ".weight.absmax", DType::u8, {blocks});
      for (int64_t b = 0; b < blocks; ++b) {
        if (b % kOuter == 0) outer.push_back(drawn_float());
        const int64_t code = drawn_below(256);
        codes.as<uint8_t>()[b] = static_cast<uint8_t>(code);
        const float product = outer_map[static_cast<size_t>(code)] * outer.back();
        scale.push_back(product + offset);
      }
      put_floats(to, layer + ".weight.nested_absmax", outer);
      put_floats(to, layer + ".weight.nested_quant_map", outer_map);
      state = with_nested(state, kOuter, offset);
    } else {
      for (int64_t b = 0; b < blocks; ++b) scale.push_back(drawn_float());
      put_floats(to, layer + ".weight.absmax", scale);
    }
    put_floats(to, layer + ".weight.quant_map", map);
    put_state(to, layer, state);
    const Tensor bytes = to.put(layer + ".weight", DType::u8, {(count + 1) / 2, 1});
    std::vector<float> want;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t code = drawn_below(16);
      bytes.as<uint8_t>()[i / 2] |= static_cast<uint8_t>(i % 2 == 0 ? code << 4 : code);
      const double product = static_cast<double>(map[static_cast<size_t>(code)]) *
                             scale[static_cast<size_t>(i / how.block)];
      want.push_back(rounded(kept, product));
    }
    return want;
  };
  expect_read(config_of(4), kept, pack, how.expert_width);
}

// Blocks of four over [3,5]: the second has the last number of row 0 and three of row 1. Codes 0 to
// 14 in their order, the first of a byte in its upper half; every scale is that of its block.
TEST_F(Bitsandbytes, BytesWrittenByHand) {
  std::vector<float> rising, want;
  for (int i = 0; i < 16; ++i) rising.push_back(static_cast<float>(i));
  const auto made_with = [&](const Json& state) {
    MadeFile made;
    const Tensor bytes = made.put("x.weight", DType::u8, {8, 1});
    for (int i = 0; i < 8; ++i)
      bytes.as<uint8_t>()[i] = static_cast<uint8_t>(2 * i << 4 | (2 * i + 1));
    put_floats(made, "x.weight.quant_map", rising);
    put_state(made, "x", state);
    return made;
  };
  for (int i = 0; i < 15; ++i) want.push_back(static_cast<float>(i << i / 4));
  MadeFile made = made_with(state_of("nf4", "float16", 4, 3, 5));
  put_floats(made, "x.weight.absmax", {1, 2, 4, 8});
  EXPECT_EQ(unpacked(made, "f16 [3, 5]"), want);
  // 3 * 2 - 5, 3.5 * 2 - 5, 9 * 1 - 5 and 13 * 1 - 5
  made = made_with(with_nested(state_of("fp4", "bfloat16", 4, 3, 5), 2, -5));
  const Tensor codes = made.put("x.weight.absmax", DType::u8, {4});
  for (int i = 0; i < 4; ++i) codes.as<uint8_t>()[i] = static_cast<uint8_t>(255 - i);
  std::vector<float> map(256);
  map[255] = 3, map[254] = 3.5f, map[253] = 9, map[252] = 13;
  put_floats(made, "x.weight.nested_quant_map", map);
  put_floats(made, "x.weight.nested_absmax", {2, 1});
  EXPECT_EQ(unpacked(made, "bf16 [3, 5]"), want);
}

// A row's scale is its largest number, which 127 stands for.
TEST_F(Bitsandbytes, EightBits) {
  const float part = 1.0f / 127;
  const auto pack = [&](MadeFile& to, const std::string& layer, int64_t out, int64_t in) {
    const Tensor bytes = to.put(layer + ".weight", DType::i8, {out, in}),
                 scales = to.put(layer + ".SCB", DType::f32, {out});
    // Older versions leave it out.
    if (layer.find("q_proj") == std::string::npos)
      to.put(layer + ".weight_format", DType::u8, {1}).as<uint8_t>()[0] = 0;
    std::vector<float> want;
    for (int64_t o = 0; o < out; ++o) {
      const float scale = scales.as<float>()[o] = drawn_float();
      for (int64_t i = 0; i < in; ++i) {
        const int64_t number = drawn_below(255) - 127;
        bytes.as<int8_t>()[o * in + i] = static_cast<int8_t>(number);
        const float product = static_cast<float>(number) * scale;
        want.push_back(rounded(DType::f16, static_cast<double>(product) * part));
      }
    }
    return want;
  };
  expect_read(config_of(8), DType::f16, pack, 32, 32);
  MadeFile made;
  const Tensor bytes = made.put("x.weight", DType::i8, {2, 2});
  constexpr int8_t kNumbers[] = {127, -127, 0, 127};
  std::copy(std::begin(kNumbers), std::end(kNumbers), bytes.as<int8_t>());
  put_floats(made, "x.SCB", {2, 0.5f});
  EXPECT_EQ(unpacked(made, "f16 [2, 2]"), (std::vector<float>{2, -2, 0, 0.5f}));
}

// Such configs were written before there was a "quant_method".
TEST_F(Bitsandbytes, AConfigOfBeforeQuantMethods) {
  save_model(plain_.path(), *std::make_unique<Model>(small_olmoe()), *make_tokenizer("bytes"),
             DType::f32);
  const Safetensors file = Safetensors::open(plain_.path());
  MadeFile made;
  for (const NamedTensor& tensor : file.tensors())
    made.items.push_back({tensor.name, tensor.value, DType::f32});
  for (const char* key : {"load_in_4bit", "load_in_8bit"}) {
    write(made, {{key, true}});
    EXPECT_EQ(load_model(packed_.path()).model->params().size(),
              load_model(plain_.path()).model->params().size());
  }
  expect_refused({{"load_in_4bit", false}}, "quant_method");
}

TEST_F(Bitsandbytes, OtherFormsAreRefusedByName) {
  save_model(plain_.path(), *std::make_unique<Model>(small_olmoe()), *make_tokenizer("bytes"),
             DType::f32);
  const auto with = [](const char* key, const Json& value) {
    Json config = config_of(4);
    config[key] = value;
    return config;
  };
  expect_refused(with("load_in_4bit", false),
                 "neither \"load_in_4bit\" nor \"load_in_8bit\" is true");
  expect_refused(with("bnb_4bit_quant_storage", "bfloat16"),
                 "\"bnb_4bit_quant_storage\" is \"bfloat16\"; only \"uint8\" is read");
  expect_refused(with("bnb_4bit_quant_type", "int4"),
                 "\"bnb_4bit_quant_type\" is \"int4\"; \"nf4\" and \"fp4\" are read");
  expect_refused(with("bnb_5bit", true), "\"bnb_5bit\" is not known here");
}

TEST_F(Bitsandbytes, PartsThatDoNotFitAreRefused) {
  const Packing packing = {.kind = Packing::Kind::bitsandbytes};
  const std::vector<float> map = meant_by("nf4");
  const auto made_of = [&](int64_t bytes, std::vector<float> scales, const Json& state) {
    MadeFile made;
    made.put("x.weight", DType::u8, {bytes, 1});
    put_floats(made, "x.weight.absmax", std::move(scales));
    put_floats(made, "x.weight.quant_map", map);
    if (!state.is_null()) put_state(made, "x", state);
    return made;
  };
  const Json good = state_of("nf4", "bfloat16", 4, 3, 5);
  const auto refused = [&](const MadeFile& made, const char* why) {
    expect_parts_refused(packing, made, why);
  };
  refused(
      made_of(8, {1, 2, 3, 4}, Json()),
      "\"x.weight\" has no \"quant_state.bitsandbytes__nf4\" or \"quant_state.bitsandbytes__fp4");
  refused(made_of(7, {1, 2, 3, 4}, good), "which do not fit [3, 5] in blocks of 4");
  refused(made_of(8, {1, 2, 3}, good), "with \"absmax\" f32 [3]");
  refused(made_of(8, {1, 2, 3, 4}, with_nested(good, 2, 0)), "\"nested_absmax\" absent");
  const auto changed = [&](const char* key, const Json& value) {
    Json state = good;
    state[key] = value;
    return made_of(8, {1, 2, 3, 4}, state);
  };
  refused(changed("blocksize", 0), "the quant_state of \"x.weight\": \"blocksize\" is 0");
  refused(changed("shape", Json::array({15})), "\"shape\" is [15]; that of a matrix is needed");
  refused(changed("shape", {-3, -5}), "\"shape\" is [-3,-5]; that of a matrix is needed");
  refused(changed("shape", {int64_t{1} << 60, 16}), "that of a matrix is needed");
  refused(changed("dtype", "float64"), "\"dtype\" is \"float64\", which is not known");
  refused(changed("nested_blocksize", 2), "nested_dtype");
  refused(changed("nested_scale", 2), "\"nested_scale\" is not known here");
  MadeFile no_map = made_of(8, {1, 2, 3, 4}, good);
  no_map.items.erase(no_map.items.begin() + 2);
  refused(no_map, "tensor \"x.weight\" has no \"x.weight.quant_map\" beside it");
  MadeFile broken = made_of(8, {1, 2, 3, 4}, good);
  broken.memory.back()[0] = '[';
  refused(broken, "the quant_state of \"x.weight\"");
  MadeFile alone;
  put_floats(alone, "x.weight.absmax", {1});
  refused(alone, "tensor \"x.weight.absmax\" has no packed \"x.weight\" beside it");

  MadeFile turned;
  turned.put("x.weight", DType::i8, {2, 3});
  put_floats(turned, "x.SCB", {1, 1});
  turned.put("x.weight_format", DType::u8, {1}).as<uint8_t>()[0] = 2;
  refused(turned, "the \"weight_format\" of \"x.weight\" is none of rows, which alone are read");
  MadeFile scales;
  scales.put("x.weight", DType::i8, {2, 3});
  put_floats(scales, "x.SCB", {1, 1, 1});
  refused(scales, "\"x.weight\" is i8 [2, 3] with \"SCB\" f32 [3]");
}

}  // namespace
}  // namespace moe::test::packed_bitsandbytes_test
