// Floats of 4 and of 8 bits as ModelOpt, compressed-tensors and FBGEMM pack them: NVFP4 and E4M3.
// What they load as is worked out here number by number.
#include <cmath>

#include "hub/folder/packed_layers.h"

namespace moe::test::packed_floats_test {
namespace {

// As newer versions write it into config.json.
Json modelopt(const char* algo, const Json& weights) {
  return {{"quant_method", "modelopt"},
          {"quant_algo", algo},
          {"ignore", {"lm_head"}},
          {"kv_cache_scheme", {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}}},
          {"producer", {{"name", "modelopt"}, {"version", "0.33.0"}}},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}}, {"input_activations", weights}, {"weights", weights}}}}}};
}

Json of_fp8() { return {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}}; }
Json of_nvfp4() {
  return {{"dynamic", false}, {"num_bits", 4}, {"type", "float"}, {"group_size", 16}};
}

class PackedFloats : public PackedLayers {
 protected:
  float drawn_float() { return static_cast<float>(0.01 + drawn()); }

  uint8_t drawn_f8() {
    const auto byte = static_cast<uint8_t>(drawn_below(256));
    return (byte & 0x7F) == 0x7F ? uint8_t{0} : byte;
  }

  std::vector<float> pack_nvfp4(MadeFile& to, const std::string& layer, int64_t out, int64_t in,
                                bool divided);
  // One scale, or where there are `rows` one of each, as a list or as a column.
  std::vector<float> pack_f8(MadeFile& to, const std::string& layer, int64_t out, int64_t in,
                             int64_t rows, bool column);
};

// A byte holds an even number's sign, exponent and fraction in its lower half.
std::vector<float> PackedFloats::pack_nvfp4(MadeFile& to, const std::string& layer, int64_t out,
                                            int64_t in, bool divided) {
  constexpr float kSizes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const Tensor bytes = to.put(layer + (divided ? ".weight_packed" : ".weight"), DType::u8,
                              {out, in / 2}),
               scales = to.put(layer + ".weight_scale", DType::f8_e4m3, {out, in / 16}),
               of_all = to.put(layer + (divided ? ".weight_global_scale" : ".weight_scale_2"),
                               DType::f32, {1});
  put_scale(to.put(layer + (divided ? ".input_global_scale" : ".input_scale"), DType::f32, {1}), 0,
            3);
  const float all = of_all.as<float>()[0] = drawn_float();
  std::vector<float> scale, want;
  for (int64_t i = 0; i < scales.numel(); ++i) {
    const uint8_t byte = drawn_f8() & 0x7F;
    static_cast<uint8_t*>(scales.data)[i] = byte;
    const auto block = static_cast<float>(f8_number(byte));
    scale.push_back(divided ? block / all : block * all);
  }
  for (int64_t i = 0; i < out * in; ++i) {
    const int64_t code = drawn_below(16);
    bytes.as<uint8_t>()[i / 2] |= static_cast<uint8_t>(i % 2 == 0 ? code : code << 4);
    const float size = kSizes[code % 8], number = code < 8 ? size : -size;
    want.push_back(
        rounded(DType::bf16, static_cast<double>(number) * scale[static_cast<size_t>(i / 16)]));
  }
  return want;
}

std::vector<float> PackedFloats::pack_f8(MadeFile& to, const std::string& layer, int64_t out,
                                         int64_t in, int64_t rows, bool column) {
  const Tensor bytes = to.put(layer + ".weight", DType::f8_e4m3, {out, in}),
               scales = column ? to.put(layer + ".weight_scale", DType::f32, {rows, 1})
                               : to.put(layer + ".weight_scale", DType::f32, {rows});
  for (int64_t i = 0; i < rows; ++i) scales.as<float>()[i] = drawn_float();
  std::vector<float> want;
  for (int64_t o = 0; o < out; ++o)
    for (int64_t i = 0; i < in; ++i) {
      const uint8_t byte = drawn_f8();
      static_cast<uint8_t*>(bytes.data)[o * in + i] = byte;
      want.push_back(rounded(DType::bf16, f8_number(byte) * scales.as<float>()[rows == 1 ? 0 : o]));
    }
  return want;
}

TEST_F(PackedFloats, Nvfp4OfModelOpt) {
  expect_read(modelopt("NVFP4", of_nvfp4()), DType::bf16,
              [&](MadeFile& to, const std::string& layer, int64_t out, int64_t in) {
                if (layer.ends_with("k_proj"))
                  put_scale(to.put(layer + ".k_scale", DType::f32, {1}), 0, 3);
                return pack_nvfp4(to, layer, out, in, false);
              });
}

TEST_F(PackedFloats, Nvfp4OfCompressedTensors) {
  Json weights = of_nvfp4();
  weights["strategy"] = "tensor_group";
  weights["scale_dtype"] = "torch.float8_e4m3fn";
  expect_read(compressed("nvfp4-pack-quantized", weights), DType::bf16,
              [&](MadeFile& to, const std::string& layer, int64_t out, int64_t in) {
                return pack_nvfp4(to, layer, out, in, true);
              });
}

// Two bytes of each row: 0.5, -6, 3, 0, and 1, 1.5, -1, 4. Scales 2 and 0.5, the matrix' 4.
TEST_F(PackedFloats, BytesWrittenByHand) {
  constexpr uint8_t kBytes[] = {0xF1, 0x05, 0x32, 0x6A};
  for (const bool divided : {false, true}) {
    MadeFile made;
    const Tensor bytes = made.put(divided ? "x.weight_packed" : "x.weight", DType::u8, {2, 8}),
                 scales = made.put("x.weight_scale", DType::f8_e4m3, {2, 1}),
                 of_all = made.put(divided ? "x.weight_global_scale" : "x.weight_scale_2",
                                   DType::f32, {1});
    for (int64_t i = 0; i < 4; ++i) bytes.as<uint8_t>()[i / 2 * 8 + i % 2] = kBytes[i];
    static_cast<uint8_t*>(scales.data)[0] = 0x40;  // 1.0 * 2^(8 - 7)
    static_cast<uint8_t*>(scales.data)[1] = 0x30;  // 1.0 * 2^(6 - 7)
    of_all.as<float>()[0] = divided ? 0.25f : 4;
    write_safetensors(packed_ / "model.safetensors", made.items);
    UnpackedTensors unpacked(
        std::make_shared<const Safetensors>(Safetensors::open(packed_.path())),
        {.kind = divided ? Packing::Kind::compressed : Packing::Kind::modelopt});
    unpacked.unpack();
    const Tensor x = unpacked.get("x.weight");
    EXPECT_EQ(describe(x), "bf16 [2, 16]");
    EXPECT_EQ(unpacked.names(), std::vector<std::string>{"x.weight"});
    std::vector<double> want(32);
    const double first[] = {4, -48, 24, 0}, second[] = {2, 3, -2, 8};
    std::copy(std::begin(first), std::end(first), want.begin());
    std::copy(std::begin(second), std::end(second), want.begin() + 16);
    EXPECT_EQ(values(x), want);
  }
}

// It stays what it is.
TEST_F(PackedFloats, Mxfp4OfCompressedTensors) {
  constexpr float kSizes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const auto pack = [&](MadeFile& to, const std::string& layer, int64_t out, int64_t in) {
    const Tensor bytes = to.put(layer + ".weight_packed", DType::u8, {out, in / 2}),
                 scales = to.put(layer + ".weight_scale", DType::u8, {out, in / 32});
    for (int64_t i = 0; i < scales.numel(); ++i)
      scales.as<uint8_t>()[i] = static_cast<uint8_t>(120 + drawn_below(12));
    std::vector<float> numbers;
    for (int64_t i = 0; i < out * in; ++i) {
      const int64_t code = drawn_below(16);
      bytes.as<uint8_t>()[i / 2] |= static_cast<uint8_t>(code << 4 * (i % 2));
      const float size = std::ldexp(kSizes[code % 8], scales.as<uint8_t>()[i / 32] - 127);
      numbers.push_back(code <= 8 ? size : -size);  // the type has no -0
    }
    return numbers;
  };
  const Json weights = {{"num_bits", 4},        {"type", "float"},
                        {"strategy", "group"},  {"group_size", 32},
                        {"symmetric", true},    {"dynamic", false},
                        {"observer", "minmax"}, {"scale_dtype", "torch.uint8"}};
  expect_read(compressed("mxfp4-pack-quantized", weights), DType::mxfp4, pack, 32, 64);
  Json other = weights;
  other["group_size"] = 64;
  expect_refused(compressed("mxfp4-pack-quantized", other),
                 "\"group_size\" is 64; 4 bits of type \"float\" are read in groups of 16, as");
  MadeFile made;
  made.put("x.weight_packed", DType::u8, {2, 24});
  made.put("x.weight_scale", DType::u8, {2, 2});
  expect_parts_refused({.kind = Packing::Kind::compressed}, made,
                       "\"x.weight_packed\" is u8 [2, 24]; u8 [O,I/2] is needed");
}

TEST_F(PackedFloats, Fp8OfModelOpt) {
  expect_read(modelopt("FP8", of_fp8()), DType::bf16,
              [&](MadeFile& to, const std::string& layer, int64_t out, int64_t in) {
                put_scale(to.put(layer + ".input_scale", DType::f32, {1}), 0, 3);
                return pack_f8(to, layer, out, in, 1, false);
              });
  Json rows = of_fp8();
  rows["strategy"] = "channel";
  expect_read(modelopt("FP8_PER_CHANNEL_PER_TOKEN", rows), DType::bf16,
              [&](MadeFile& to, const std::string& layer, int64_t out, int64_t in) {
                return pack_f8(to, layer, out, in, out, false);
              });
}

TEST_F(PackedFloats, Fp8OfFbgemm) {
  expect_read({{"quant_method", "fbgemm_fp8"},
               {"activation_scale_ub", 1200.0},
               {"modules_to_not_convert", {"lm_head"}}},
              DType::bf16, [&](MadeFile& to, const std::string& layer, int64_t out, int64_t in) {
                return pack_f8(to, layer, out, in, out, true);
              });
}

// Experts in 4 bits, attention in 8, and some layers as they were.
TEST_F(PackedFloats, LayersOfSeveralForms) {
  Json config = modelopt("MIXED_PRECISION", of_nvfp4());
  config["config_groups"]["group_1"] = {{"targets", {"a"}}, {"weights", of_fp8()}};
  config["quantized_layers"] = {{"a", {{"quant_algo", "FP8"}}},
                                {"b", {{"quant_algo", "NVFP4"}, {"group_size", 16}}}};
  expect_read(
      config, DType::bf16, [&](MadeFile& to, const std::string& layer, int64_t out, int64_t in) {
        if (layer.ends_with("o_proj")) return std::vector<float>{};
        return layer.find("experts") != std::string::npos ? pack_nvfp4(to, layer, out, in, false)
                                                          : pack_f8(to, layer, out, in, 1, false);
      });
}

// Older versions wrote a file beside a config.json that says nothing of it.
TEST_F(PackedFloats, AFileOfModelOptsOwn) {
  save_model(plain_.path(), *std::make_unique<Model>(small_olmoe()), *make_tokenizer("bytes"),
             DType::f32);
  const Safetensors file = Safetensors::open(plain_.path());
  MadeFile made;
  std::vector<float> want;
  const std::string layer = "model.layers.0.self_attn.q_proj";
  for (const NamedTensor& tensor : file.tensors()) {
    const Tensor& x = tensor.value;
    if (tensor.name == layer + ".weight") want = pack_f8(made, layer, x.rows(), x.cols(), 1, false);
    else made.items.push_back({tensor.name, x, DType::f32});
  }
  Json said = {
      {"producer", {{"name", "modelopt"}, {"version", "0.15.1"}}},
      {"quantization",
       {{"quant_algo", "FP8"}, {"kv_cache_quant_algo", "FP8"}, {"exclude_modules", {"lm_head"}}}}};
  const auto write_folder = [&](const Json& packing) {
    write(made, packing);
    write_atomically(packed_ / "hf_quant_config.json", said.dump());
  };
  write_folder(nullptr);
  EXPECT_EQ(values(param_named(*load_model(packed_.path()).model, "layers.0.attn.q.weight")->value),
            std::vector<double>(want.begin(), want.end()));
  said["quantization"]["quant_algo"] = "W4A8_AWQ";
  write_folder(modelopt("FP8", of_fp8()));
  EXPECT_EQ(load_model(packed_.path()).model->params().size(),
            load_model(plain_.path()).model->params().size());
  write_folder(nullptr);
  EXPECT_FAILS(open_model(packed_.path(), {}),
               "hf_quant_config.json: \"quantization\": \"quant_algo\" is \"W4A8_AWQ\"");
  said["quantisation"] = 1;
  said["quantization"]["quant_algo"] = "FP8";
  write_folder(nullptr);
  EXPECT_FAILS(open_model(packed_.path(), {}), "\"quantisation\" is not known here");
}

TEST_F(PackedFloats, OtherFormsAreRefusedByName) {
  save_model(plain_.path(), *std::make_unique<Model>(small_olmoe()), *make_tokenizer("bytes"),
             DType::f32);
  const char* const algos =
      "\"FP8\", \"FP8_PER_CHANNEL_PER_TOKEN\", \"NVFP4\", \"W4A16_NVFP4\" and "
      "\"MIXED_PRECISION\" of these are read";
  for (const char* algo : {"NVFP4_AWQ", "W4A16_AWQ", "MXFP8", "FP8_PB_WO"})
    expect_refused(modelopt(algo, of_nvfp4()),
                   fmt::format("\"quant_algo\" is \"{}\"; {}", algo, algos).c_str());
  const auto with = [](Json config, const char* key, const Json& value) {
    config[key] = value;
    return config;
  };
  const Json good = modelopt("MIXED_PRECISION", of_nvfp4());
  expect_refused(with(good, "quantized_layers", {{"a", {{"quant_algo", "W8A16"}}}}),
                 "\"quant_algo\" is \"W8A16\"");
  expect_refused(
      with(good, "quantized_layers", {{"a", {{"quant_algo", "NVFP4"}, {"pre_quant_scale", true}}}}),
      "\"pre_quant_scale\" is not known here");
  expect_refused(with(good, "quantization", {{"quant_algo", "W4A8_AWQ"}}),
                 "\"quant_algo\" is \"W4A8_AWQ\"");
  expect_refused(modelopt("NVFP4", with(of_nvfp4(), "group_size", 32)), "\"group_size\" is 32");
  expect_refused(modelopt("NVFP4", with(of_nvfp4(), "num_bits", 6)), "4 and 8 bits are read");
  expect_refused({{"quant_method", "fbgemm_fp8"}, {"activation_scale", 1}},
                 "\"activation_scale\" is not known here");
}

TEST_F(PackedFloats, PartsThatDoNotFitAreRefused) {
  const Packing of_modelopt = {.kind = Packing::Kind::modelopt},
                fbgemm = {.kind = Packing::Kind::fbgemm};
  const auto made_of = [](DType numbers, std::initializer_list<int64_t> scales, DType of_scales,
                          int64_t of_all) {
    MadeFile made;
    made.put("x.weight", numbers, {4, 16});
    made.put("x.weight_scale", of_scales, scales);
    if (of_all > 0) made.put("x.weight_scale_2", DType::f32, {of_all});
    return made;
  };
  expect_parts_refused(of_modelopt, made_of(DType::u8, {4, 2}, DType::f8_e4m3, 0),
                       "tensor \"x.weight\" has no \"x.weight_scale_2\" beside it");
  expect_parts_refused(of_modelopt, made_of(DType::u8, {4, 1}, DType::f8_e4m3, 1),
                       "\"x.weight\" is u8 [4, 16] with scales f8_e4m3 [4, 1] and f32 [1]; u8 "
                       "[O,I/2], f8_e4m3 [O,I/16] and f32 [1] are needed");
  expect_parts_refused(of_modelopt, made_of(DType::u8, {4, 2}, DType::u8, 1), "with scales u8");
  expect_parts_refused(of_modelopt, made_of(DType::u8, {4, 2}, DType::f8_e4m3, 4), "and f32 [4]");
  expect_parts_refused(of_modelopt, made_of(DType::f8_e4m3, {3}, DType::f32, 0),
                       "of 4 x 16 numbers one is needed, or one of each row, group or block");
  expect_parts_refused(of_modelopt, made_of(DType::bf16, {1}, DType::f32, 0),
                       "tensor \"x.weight_scale\" has no packed \"x.weight\" beside it");
  expect_parts_refused(fbgemm, made_of(DType::f8_e4m3, {4, 2}, DType::f32, 0),
                       "16 columns in 2 groups are of no \"group_size\" that the config says");
}

}  // namespace
}  // namespace moe::test::packed_floats_test
