// GPTQ, AWQ and compressed-tensors: what a folder in these forms loads as is worked out here number
// by number while it is packed, for dense layers and for experts, which come one at a time.
#include <cmath>

#include "hub/folder/packed_layers.h"

namespace moe::test::packed_integers_test {
namespace {

// Number n of those that stand in `words` from `first` on, `step` words from one word to the next.
void put_bits(const Tensor& words, int64_t first, int64_t step, int64_t n, int64_t bits,
              int64_t number) {
  int32_t& word = words.as<int32_t>()[first + n * bits / 32 * step];
  word = static_cast<int32_t>(static_cast<uint32_t>(word) | static_cast<uint32_t>(number)
                                                                << n * bits % 32);
}

class PackedIntegers : public PackedLayers {};

Json gptq(int64_t bits, int64_t group_size) {
  return {{"quant_method", "gptq"}, {"bits", bits},           {"group_size", group_size},
          {"sym", false},           {"desc_act", true},       {"damp_percent", 0.01},
          {"lm_head", false},       {"true_sequential", true}};
}

struct GptqCase {
  int64_t bits = 4, group = 8;
  bool v2 = false, in_order = true, listed = true;
  DType scales = DType::f16;
  // What it is held in, all widths 32 where that is a type of blocks; zero points are in the middle
  // but for q4_1.
  DType kept = scales;
};

// What q less its zero point times the scale is in a type.
float held(DType kept, double number, double zero, double scale) {
  if (kept == DType::q4_1)
    return static_cast<float>(number * scale + rounded(DType::f16, -zero * scale));
  const double product = (number - zero) * scale;
  return is_quantised(kept) ? static_cast<float>(product) : rounded(kept, product);
}

class Gptq : public PackedIntegers, public ::testing::WithParamInterface<GptqCase> {};

INSTANTIATE_TEST_SUITE_P(
    All, Gptq,
    ::testing::Values(GptqCase{}, GptqCase{.bits = 8}, GptqCase{.v2 = true},
                      GptqCase{.bits = 8, .v2 = true}, GptqCase{.in_order = false},
                      GptqCase{.bits = 8, .in_order = false}, GptqCase{.listed = false},
                      GptqCase{.group = -1, .listed = false},
                      GptqCase{.group = 12, .listed = false}, GptqCase{.scales = DType::bf16},
                      GptqCase{.group = 32, .kept = DType::q4_0},
                      GptqCase{.group = -1, .listed = false, .kept = DType::q4_0},
                      GptqCase{.group = 32, .scales = DType::bf16, .kept = DType::q4_0},
                      GptqCase{.group = 32, .v2 = true, .kept = DType::q4_1},
                      GptqCase{.bits = 8, .group = 32, .kept = DType::q8_0}));

// Zero points in the file are one less, and wrap around within their word, but in gptq_v2.
TEST_P(Gptq, Numbers) {
  const GptqCase& how = GetParam();
  const bool middle = is_quantised(how.kept) && how.kept != DType::q4_1;
  const auto pack = [&](MadeFile& to, const std::string& layer, int64_t out, int64_t in) {
    const int64_t in_word = 32 / how.bits, group = how.group < 0 ? in : how.group,
                  count = (in + group - 1) / group, most = int64_t{1} << how.bits;
    const Tensor numbers = to.put(layer + ".qweight", DType::i32, {in / in_word, out}),
                 zeros = to.put(layer + ".qzeros", DType::i32, {count, out / in_word}),
                 scales = to.put(layer + ".scales", how.scales, {count, out});
    std::vector<int64_t> zero;
    std::vector<double> scale;
    for (int64_t i = 0; i < count * out; ++i) {
      zero.push_back(middle ? most / 2 : drawn_below(most));
      scale.push_back(put_scale(scales, i, static_cast<float>(0.01 + drawn())));
      put_bits(zeros, i / out * (out / in_word), 1, i % out, how.bits, zero.back());
    }
    for (int64_t i = 0; i < zeros.numel() && !how.v2; ++i)
      zeros.as<int32_t>()[i] = static_cast<int32_t>(static_cast<uint32_t>(zeros.as<int32_t>()[i]) -
                                                    (how.bits == 4 ? 0x11111111u : 0x01010101u));
    std::vector<int64_t> group_of;
    for (int64_t i = 0; i < in; ++i)
      group_of.push_back((how.in_order ? i : (i * 5 + 3) % in) / group);
    if (how.listed) {
      const Tensor list = to.put(layer + ".g_idx", DType::i32, {in});
      std::copy(group_of.begin(), group_of.end(), list.as<int32_t>());
    }
    std::vector<float> want;
    for (int64_t o = 0; o < out; ++o)
      for (int64_t i = 0; i < in; ++i) {
        const int64_t number = drawn_below(most), g = group_of[static_cast<size_t>(i)];
        put_bits(numbers, o, out, i, how.bits, number);
        const auto at = static_cast<size_t>(g * out + o);
        want.push_back(
            held(how.kept, static_cast<double>(number), static_cast<double>(zero[at]), scale[at]));
      }
    return want;
  };
  Json config = gptq(how.bits, how.group);
  if (how.v2) config["checkpoint_format"] = "gptq_v2";
  else config["format"] = "gptq";
  if (is_quantised(how.kept)) expect_read(config, how.kept, pack, 32, 32);
  else expect_read(config, how.kept, pack);
}

// Symmetric ones all have the zero point in the middle; in words that anybody can read.
TEST_F(PackedIntegers, WordsWrittenByHand) {
  MadeFile made;
  const auto word = [&](const std::string& name, uint32_t each, int64_t rows, int64_t cols) {
    const Tensor words = made.put(name, DType::i32, {rows, cols});
    std::fill_n(words.as<int32_t>(), words.numel(), static_cast<int32_t>(each));
  };
  const auto halves = [&](const std::string& name, int64_t rows, int64_t cols) {
    const Tensor scales = made.put(name, DType::f16, {rows, cols});
    for (int64_t i = 0; i < scales.numel(); ++i) put_scale(scales, i, 0.5f);
  };
  const auto numbers = [&](const Packing& packing) {
    write_safetensors(packed_ / "model.safetensors", made.items);
    made = {};
    UnpackedTensors unpacked(std::make_shared<const Safetensors>(Safetensors::open(packed_.path())),
                             packing);
    unpacked.unpack();
    EXPECT_EQ(unpacked.names(), std::vector<std::string>{"x.weight"});
    const Tensor x = unpacked.get("x.weight");
    EXPECT_EQ(describe(x), "f16 [8, 8]");
    std::vector<float> all;
    for (int64_t i = 0; i < x.numel(); ++i)
      all.push_back(f16_to_f32(static_cast<const uint16_t*>(x.data)[i]));
    return all;
  };
  std::vector<float> rising, falling;  // along a row; down a column
  for (int i = 0; i < 64; ++i) {
    rising.push_back(0.5f * static_cast<float>(i % 8 - 8));
    falling.push_back(0.5f * static_cast<float>(i / 8 - 8));
  }
  using Kind = Packing::Kind;
  word("x.qweight", 0x76543210, 1, 8);
  word("x.qzeros", 0x77777777, 1, 1);
  halves("x.scales", 1, 8);
  EXPECT_EQ(numbers({.kind = Kind::gptq, .zeros_less_one = true}), rising);
  word("x.qweight", 0x76543210, 1, 8);
  word("x.qzeros", 0x88888888, 1, 1);
  halves("x.scales", 1, 8);
  EXPECT_EQ(numbers({.kind = Kind::gptq}), rising);
  // Even ones in the lower half of a word.
  word("x.qweight", 0x75316420, 8, 1);
  word("x.qzeros", 0x88888888, 2, 1);
  halves("x.scales", 2, 8);
  EXPECT_EQ(numbers({.kind = Kind::awq, .groups = {4}}), falling);
  word("x.weight_packed", 0x76543210, 8, 1);
  halves("x.weight_scale", 8, 1);
  std::fill_n(made.put("x.weight_shape", DType::i64, {2}).as<int64_t>(), 2, 8);
  EXPECT_EQ(numbers({.kind = Kind::compressed}), rising);
}

// One expert whose zero points are elsewhere takes those of its layer with it, and nobody else.
TEST_F(PackedIntegers, ExpertsOfALayerAreOfOneType) {
  MadeFile made;
  const auto add = [&](const std::string& layer, uint32_t zeros) {
    made.put(layer + ".qweight", DType::i32, {4, 8});
    made.put(layer + ".qzeros", DType::i32, {1, 1}).as<int32_t>()[0] = static_cast<int32_t>(zeros);
    made.put(layer + ".scales", DType::f16, {1, 8});
  };
  const std::vector<std::pair<std::string, DType>> want = {
      {"layers.0.experts.0.up", DType::q4_1},
      {"layers.0.experts.11.up", DType::q4_1},
      {"layers.0.experts.0.down", DType::q4_0},
      {"layers.1.experts.0.up", DType::q4_0},
      {"layers.1.shared_experts.up", DType::q4_0}};
  for (const auto& [name, kept] : want)
    add(name, name == "layers.0.experts.11.up" ? 0x88888887 : 0x88888888);
  write_safetensors(packed_ / "model.safetensors", made.items);
  const UnpackedTensors unpacked(
      std::make_shared<const Safetensors>(Safetensors::open(packed_.path())),
      {.kind = Packing::Kind::gptq});
  for (const auto& [name, kept] : want)
    EXPECT_EQ(unpacked.get(name + ".weight").dtype, kept) << name;
}

TEST_F(PackedIntegers, Awq) {
  constexpr int64_t kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};  // which of eight each place has
  const auto pack = [&](MadeFile& to, const std::string& layer, int64_t out, int64_t in) {
    const int64_t count = in / 8;
    const Tensor numbers = to.put(layer + ".qweight", DType::i32, {in, out / 8}),
                 zeros = to.put(layer + ".qzeros", DType::i32, {count, out / 8}),
                 scales = to.put(layer + ".scales", DType::f16, {count, out});
    const auto drawn_words = [&](const Tensor& words) {
      std::vector<int64_t> all(static_cast<size_t>(words.numel() * 8));
      for (int64_t w = 0; w < words.numel(); ++w)
        for (int64_t place = 0; place < 8; ++place) {
          int64_t& number = all[static_cast<size_t>(w * 8 + kOrder[place])];
          number = drawn_below(16);
          put_bits(words, w, 1, place, 4, number);
        }
      return all;
    };
    const std::vector<int64_t> number = drawn_words(numbers), zero = drawn_words(zeros);
    std::vector<double> scale;
    for (int64_t i = 0; i < count * out; ++i)
      scale.push_back(put_scale(scales, i, static_cast<float>(0.01 + drawn())));
    std::vector<float> want;
    for (int64_t o = 0; o < out; ++o)
      for (int64_t i = 0; i < in; ++i) {
        const auto at = static_cast<size_t>(i / 8 * out + o);
        want.push_back(rounded(
            DType::f16,
            static_cast<double>(number[static_cast<size_t>(i * out + o)] - zero[at]) * scale[at]));
      }
    return want;
  };
  expect_read({{"quant_method", "awq"},
               {"bits", 4},
               {"group_size", 8},
               {"version", "GEMM"},
               {"zero_point", true},
               {"modules_to_not_convert", nullptr}},
              DType::f16, pack);
}

struct PackedCase {
  int64_t bits = 4, group = 4;  // 0: a row
  enum class Zeros { none, packed, bytes } zeros = Zeros::none;
  bool listed = false, ordered = false;
  DType scales = DType::bf16;
};

class PackQuantized : public PackedIntegers, public ::testing::WithParamInterface<PackedCase> {};

INSTANTIATE_TEST_SUITE_P(
    All, PackQuantized,
    ::testing::Values(PackedCase{}, PackedCase{.bits = 8}, PackedCase{.group = 0},
                      PackedCase{.zeros = PackedCase::Zeros::packed},
                      PackedCase{.bits = 8, .zeros = PackedCase::Zeros::packed},
                      PackedCase{.group = 0, .zeros = PackedCase::Zeros::packed},
                      PackedCase{.zeros = PackedCase::Zeros::bytes}, PackedCase{.listed = true},
                      PackedCase{.listed = true, .ordered = true}, PackedCase{.scales = DType::f16},
                      PackedCase{.scales = DType::f32}));

// Rows of experts are 20 numbers or 32, words whole or not; zero points go down columns.
TEST_P(PackQuantized, Numbers) {
  const PackedCase& how = GetParam();
  using Zeros = PackedCase::Zeros;
  const auto pack = [&](MadeFile& to, const std::string& layer, int64_t out, int64_t in) {
    const int64_t in_word = 32 / how.bits, group = how.group == 0 ? in : how.group,
                  count = in / group, most = int64_t{1} << how.bits, middle = most / 2,
                  words = (in + in_word - 1) / in_word;
    const Tensor numbers = to.put(layer + ".weight_packed", DType::i32, {out, words}),
                 scales = to.put(layer + ".weight_scale", how.scales, {out, count});
    const Tensor shape = to.put(layer + ".weight_shape", how.listed ? DType::i32 : DType::i64, {2});
    if (how.listed) shape.as<int32_t>()[0] = static_cast<int32_t>(out);
    if (how.listed) shape.as<int32_t>()[1] = static_cast<int32_t>(in);
    if (!how.listed) shape.as<int64_t>()[0] = out, shape.as<int64_t>()[1] = in;
    std::vector<int64_t> zero(static_cast<size_t>(out * count)), group_of;
    if (how.zeros != Zeros::none)
      for (int64_t& z : zero) z = drawn_below(most) - middle;
    if (how.zeros == Zeros::packed) {
      const Tensor packed =
          to.put(layer + ".weight_zero_point", DType::i32, {(out + in_word - 1) / in_word, count});
      for (int64_t i = 0; i < out * count; ++i)
        put_bits(packed, i % count, count, i / count, how.bits,
                 zero[static_cast<size_t>(i)] + middle);
    } else if (how.zeros == Zeros::bytes) {
      const Tensor bytes = to.put(layer + ".weight_zero_point", DType::i8, {out, count});
      std::copy(zero.begin(), zero.end(), bytes.as<int8_t>());
    }
    for (int64_t i = 0; i < in; ++i)
      group_of.push_back((how.listed && !how.ordered ? (i * 3 + 1) % in : i) / group);
    if (how.listed) {
      const Tensor list = to.put(layer + ".weight_g_idx", DType::i32, {in});
      if (how.ordered) std::fill_n(list.as<int32_t>(), in, -1);  // no list
      else std::copy(group_of.begin(), group_of.end(), list.as<int32_t>());
    }
    std::vector<double> scale;
    for (int64_t i = 0; i < out * count; ++i)
      scale.push_back(put_scale(scales, i, static_cast<float>(0.01 + drawn())));
    std::vector<float> want;
    for (int64_t o = 0; o < out; ++o)
      for (int64_t i = 0; i < in; ++i) {
        const int64_t number = drawn_below(most) - middle;
        put_bits(numbers, o * words, 1, i, how.bits, number + middle);
        const auto at = static_cast<size_t>(o * count + group_of[static_cast<size_t>(i)]);
        // of f32 the product is rounded to f32 first
        const auto product = static_cast<float>(static_cast<double>(number - zero[at]) * scale[at]);
        want.push_back(rounded(how.scales, product));
      }
    return want;
  };
  const bool rows = how.group == 0;
  expect_read(compressed("pack-quantized", {{"num_bits", how.bits},
                                            {"type", "int"},
                                            {"symmetric", how.zeros == Zeros::none},
                                            {"strategy", rows ? "channel" : "group"},
                                            {"group_size", rows ? Json() : Json(how.group)},
                                            {"block_structure", nullptr},
                                            {"dynamic", false},
                                            {"actorder", how.listed ? "group" : "weight"},
                                            {"observer", "minmax"},
                                            {"observer_kwargs", Json::object()}}),
              how.scales == DType::f16 ? DType::f16 : DType::bf16, pack, 20);
}

struct BytesCase {
  const char* strategy;
  DType numbers = DType::f8_e4m3, scales = DType::bf16;
  bool zeros = false;
};

class CompressedBytes : public PackedIntegers, public ::testing::WithParamInterface<BytesCase> {};

INSTANTIATE_TEST_SUITE_P(
    All, CompressedBytes,
    ::testing::Values(BytesCase{"tensor"}, BytesCase{"channel"}, BytesCase{"block"},
                      BytesCase{"channel", DType::f8_e4m3, DType::f32},
                      BytesCase{"channel", DType::f8_e4m3, DType::f16},
                      BytesCase{"tensor", DType::i8}, BytesCase{"channel", DType::i8},
                      BytesCase{"group", DType::i8}, BytesCase{"channel", DType::i8, DType::f16},
                      BytesCase{"channel", DType::i8, DType::bf16, true}));

// FP8 and whole bytes beside the scales of a matrix, of rows, of groups and of blocks 8 x 12.
// Layers that the config ignores stand there as they are, and what is said of activations changes
// nothing.
TEST_P(CompressedBytes, Numbers) {
  const BytesCase& how = GetParam();
  const std::string strategy = how.strategy;
  const bool floats = how.numbers == DType::f8_e4m3;
  const auto pack = [&](MadeFile& to, const std::string& layer, int64_t out, int64_t in) {
    if (layer.find("o_proj") != std::string::npos) return std::vector<float>{};
    const int64_t high = strategy == "tensor"  ? out
                         : strategy == "block" ? 8
                                               : 1,
                  wide = strategy == "block"   ? 12
                         : strategy == "group" ? 4
                                               : in;
    const int64_t down = (out + high - 1) / high, across = (in + wide - 1) / wide;
    const Tensor numbers = to.put(layer + ".weight", how.numbers, {out, in});
    const Tensor scales = strategy == "tensor"
                              ? to.put(layer + ".weight_scale", how.scales, {1})
                              : to.put(layer + ".weight_scale", how.scales, {down, across});
    put_scale(to.put(layer + ".input_scale", DType::f32, {1}), 0, 3);
    if (layer.ends_with("k_proj"))
      put_scale(to.put(layer.substr(0, layer.size() - strlen("_proj")) + "_scale", DType::f32, {1}),
                0, 3);
    std::vector<double> scale, zero(static_cast<size_t>(scales.numel()));
    for (int64_t i = 0; i < scales.numel(); ++i)
      scale.push_back(put_scale(scales, i, static_cast<float>(0.01 + drawn())));
    if (how.zeros) {
      const Tensor zeros = to.put(layer + ".weight_zero_point", DType::i8, {down, across});
      for (int64_t i = 0; i < zeros.numel(); ++i) {
        zeros.as<int8_t>()[i] = static_cast<int8_t>(drawn_below(256) - 128);
        zero[static_cast<size_t>(i)] = zeros.as<int8_t>()[i];
      }
    }
    std::vector<float> want;
    for (int64_t o = 0; o < out; ++o)
      for (int64_t i = 0; i < in; ++i) {
        auto byte = static_cast<uint8_t>(drawn_below(256));
        if (floats && (byte & 0x7F) == 0x7F) byte = 0;
        static_cast<uint8_t*>(numbers.data)[o * in + i] = byte;
        const double number = floats ? f8_number(byte) : static_cast<int8_t>(byte);
        const auto at = static_cast<size_t>(o / high * across + i / wide);
        const auto product = static_cast<float>((number - zero[at]) * scale[at]);
        want.push_back(rounded(how.scales, product));
      }
    return want;
  };
  Json weights = {{"num_bits", 8}, {"type", floats ? "float" : "int"}, {"strategy", strategy}};
  if (strategy == "block") weights["block_structure"] = {8, 12};
  if (strategy == "group") weights["group_size"] = 4;
  expect_read(compressed(floats ? "float-quantized" : "int-quantized", weights),
              how.scales == DType::f16 ? DType::f16 : DType::bf16, pack, 20);
}

// AutoGPTQ stores a bias for each layer: one of zeros may be there though the model has none.
TEST_F(PackedIntegers, BiasesOfZeros) {
  float bias = 0;
  const auto pack = [&](MadeFile& to, const std::string& layer, int64_t out, int64_t in) {
    to.put(layer + ".qweight", DType::i32, {in / 8, out});
    to.put(layer + ".qzeros", DType::i32, {1, out / 8});
    to.put(layer + ".scales", DType::f16, {1, out});
    put_scale(to.put(layer + ".bias", DType::f16, {out}), out - 1, bias);
    return std::vector<float>(static_cast<size_t>(out * in), -0.0f);  // 0 - 1 times 0
  };
  expect_read(gptq(4, -1), DType::f16, pack);
  bias = 1;
  EXPECT_FAILS(expect_read(gptq(4, -1), DType::f16, pack), ".bias\" is no part of the model");
}

TEST_F(PackedIntegers, OtherFormsAreRefusedByName) {
  save_model(plain_.path(), *std::make_unique<Model>(small_olmoe()), *make_tokenizer("bytes"),
             DType::f32);
  const auto with = [](Json config, const char* key, const Json& value) {
    config[key] = value;
    return config;
  };
  expect_refused(gptq(3, 8), "\"bits\" is 3; GPTQ is read in 4 and in 8 bits");
  expect_refused(gptq(4, 0), "\"group_size\" is 0; -1 or a size");
  const Json four = gptq(4, 8);
  expect_refused(with(four, "checkpoint_format", "marlin"),
                 "\"checkpoint_format\" is \"marlin\"; \"gptq\" and \"gptq_v2\" are read");
  expect_refused(with(four, "is_marlin_format", true), "weights in Marlin's order are not read");
  expect_refused(with(four, "rotation", "hadamard"), "\"rotation\" is \"hadamard\"; only null");
  expect_refused(with(four, "grop_size", 8), "\"grop_size\" is not known here");
  const Json awq = {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 8}, {"version", "gemm"}};
  expect_refused(with(awq, "version", "gemv"),
                 "\"version\" is \"gemv\"; only \"gemm\" is read of AWQ's orders");
  expect_refused(with(awq, "backend", "llm-awq"), "\"backend\" is \"llm-awq\"; only \"gemm\"");
  expect_refused(with(awq, "bits", 3), "\"bits\" is 3; AWQ is read in 4 bits");
  const Json weights = {{"num_bits", 4}, {"type", "int"}, {"strategy", "group"}, {"group_size", 8}};
  expect_refused(compressed("mxfp8-quantized", weights),
                 "\"format\" is \"mxfp8-quantized\"; \"float-quantized\"");
  expect_refused(compressed("marlin-24", weights), "\"format\" is \"marlin-24\"");
  const auto scheme = [&](const char* key, const Json& value) {
    return compressed("pack-quantized", with(weights, key, value));
  };
  expect_refused(scheme("num_bits", 3), "\"num_bits\" is 3; 4 and 8 bits are read");
  expect_refused(scheme("type", "float"),
                 "\"group_size\" is 8; 4 bits of type \"float\" are read in groups of 16");
  expect_refused(scheme("strategy", "token"), "\"strategy\" is \"token\"");
  expect_refused(scheme("block_structure", {128}), "two sizes of a block are needed");
  const Json words = compressed("pack-quantized", weights);
  expect_refused(with(words, "sparsity_config", {{"format", "sparse-24-bitmask"}}),
                 "\"format\" is \"sparse-24-bitmask\"; only \"dense\"");
  expect_refused(with(words, "transform_config", {{"config_groups", {{"R1", 1}}}}),
                 "weights of a turned model are not read");
}

TEST_F(PackedIntegers, PartsThatDoNotFitAreRefused) {
  const Packing gptq = {.kind = Packing::Kind::gptq, .groups = {8}},
                awq = {.kind = Packing::Kind::awq, .groups = {8}},
                packed = {.kind = Packing::Kind::compressed, .groups = {8}};
  const auto of_gptq = [&](int64_t zeros, int64_t groups, int64_t listed, int32_t group) {
    MadeFile made;
    made.put("x.qweight", DType::i32, {2, 8});
    made.put("x.qzeros", DType::i32, {groups, zeros});
    made.put("x.scales", DType::f16, {groups, 8});
    if (listed > 0)
      std::fill_n(made.put("x.g_idx", DType::i32, {listed}).as<int32_t>(), listed, group);
    return made;
  };
  MadeFile made = of_gptq(3, 2, 0, 0);
  expect_parts_refused(gptq, made,
                       "\"x.qweight\" is i32 [2, 8] with scales f16 [2, 8] and zeros i32 [2, 3]");
  made = of_gptq(1, 3, 0, 0);
  expect_parts_refused(gptq, made, "16 columns in 3 groups are of no \"group_size\"");
  made = of_gptq(1, 2, 15, 0);
  expect_parts_refused(gptq, made, "the list of its groups is i32 [15], i32 [16] is needed");
  for (const int32_t group : {2, -1}) {
    made = of_gptq(1, 2, 16, group);
    expect_parts_refused(gptq, made, "a column is of group");
  }
  made = of_gptq(1, 2, 0, 0);
  made.items.pop_back();
  expect_parts_refused(gptq, made, "tensor \"x.qweight\" has no \"x.scales\" beside it");
  expect_parts_refused(awq, made, "tensor \"x.qweight\" has no \"x.scales\" beside it");
  made.items.erase(made.items.begin());
  expect_parts_refused(gptq, made, "tensor \"x.qzeros\" has no packed \"x.weight\" beside it");

  MadeFile short_of_zeros;
  short_of_zeros.put("x.qweight", DType::i32, {16, 2});
  short_of_zeros.put("x.qzeros", DType::i32, {2, 1});
  short_of_zeros.put("x.scales", DType::f16, {2, 16});
  expect_parts_refused(awq, short_of_zeros, "i32 [I,O/8], [G,O] and i32 [G,O/8] are needed");

  const auto of_words = [&](int64_t in, std::initializer_list<int64_t> scales) {
    MadeFile words;
    words.put("x.weight_packed", DType::i32, {8, 2});
    words.put("x.weight_scale", DType::bf16, scales);
    const Tensor shape = words.put("x.weight_shape", DType::i64, {2});
    shape.as<int64_t>()[0] = 8;
    shape.as<int64_t>()[1] = in;
    return words;
  };
  MadeFile words = of_words(17, {8, 1});
  expect_parts_refused(packed, words, "its shape said to be [8, 17] by i64 [2]");
  words = of_words(int64_t{1} << 62, {8, 1});
  expect_parts_refused(packed, words, "its shape said to be [8, 4611686018427387904]");
  words = of_words(16, {8, 4});
  expect_parts_refused(packed, words, "16 columns in 4 groups are of no \"group_size\"");
  words = of_words(16, {4, 2});
  expect_parts_refused(packed, words,
                       "of 8 x 16 numbers one is needed, or one of each row, group or block");
  words = of_words(16, {8, 2});
  words.put("x.weight_zero_point", DType::i32, {8, 2});
  expect_parts_refused(packed, words, "zero points i32 [8, 2], which do not fit");
  MadeFile alone;
  alone.put("x.weight", DType::bf16, {8, 8});
  alone.put("x.weight_scale", DType::bf16, {8, 1});
  expect_parts_refused(packed, alone,
                       "tensor \"x.weight_scale\" has no packed \"x.weight\" beside it");
}

}  // namespace
}  // namespace moe::test::packed_integers_test
