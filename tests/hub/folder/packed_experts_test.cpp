// gpt-oss's experts as other programs than its makers' pack them: all of a layer in one tensor, as
// ModelOpt exports them, and one by one, as unsloth saves them. Both load as the numbers that they
// mean.
#include <map>
#include <nlohmann/json.hpp>

#include "hub/folder/packed_layers.h"

namespace moe::test::packed_experts_test {
namespace {

bool is_bank(std::string_view name) {
  return name.ends_with("gate_up_proj") || name.ends_with("experts.down_proj");
}

class PackedExperts : public PackedLayers {
 protected:
  using PackBank =
      std::function<std::vector<float>(MadeFile& to, const std::string& name, const Tensor& bank)>;

  // What is loaded of a folder whose banks [E,I,O] `pack` packs are the numbers that it gives, and
  // all else is as it was.
  void expect_banks(const Json& packing, const PackBank& pack) {
    Model model(small_gpt_oss(32));
    model.initialise(3);
    save_model(plain_.path(), model, *make_tokenizer("bytes"));
    const Safetensors file = Safetensors::open(plain_.path());
    MadeFile made;
    std::map<std::string, std::vector<float>> want;
    for (const NamedTensor& tensor : file.tensors())
      if (is_bank(tensor.name)) want[tensor.name] = pack(made, tensor.name, tensor.value);
      else made.items.push_back({tensor.name, tensor.value, DType::f32});
    ASSERT_EQ(want.size(), 4u) << "two banks in two layers";
    write(made, packing);
    const LoadedModel loaded = load_model(packed_.path());
    save_model(packed_ / "again", *loaded.model, *loaded.tokenizer);
    const Safetensors again = Safetensors::open(packed_ / "again");
    for (const NamedTensor& tensor : file.tensors()) {
      const Tensor got = again.get(tensor.name);
      const std::vector<double> before = values(tensor.value);
      const auto found = want.find(tensor.name);
      EXPECT_EQ(values(got), found == want.end()
                                 ? before
                                 : std::vector<double>(found->second.begin(), found->second.end()))
          << tensor.name;
    }
    const LoadedModel opened = open_model(packed_.path(), {});
    for (const char* part : {"gate", "up", "down"}) {
      const std::string name = fmt::format("layers.1.ffn.experts.{}.weight", part);
      const Param* param = param_named(*opened.model, name);
      EXPECT_EQ(param->value.dtype, DType::bf16) << name;
      EXPECT_EQ(values(param->expert(2)), values(param_named(*loaded.model, name)->expert(2)));
    }
  }
};

Json modelopt(const char* algo) {
  return {{"quant_method", "modelopt"},
          {"quant_algo", algo},
          {"exclude_modules", {"lm_head", "model.layers.*.self_attn*"}},
          {"producer", {{"name", "modelopt"}, {"version", "0.37.0"}}}};
}

TEST_F(PackedExperts, Nvfp4OfModelOpt) {
  constexpr double kSizes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  expect_banks(modelopt("NVFP4"), [&](MadeFile& to, const std::string& name, const Tensor& bank) {
    const int64_t experts = bank.shape[0], in = bank.shape[1], out = bank.shape[2];
    const Tensor bytes = to.put(name, DType::u8, {experts, in / 2, out}),
                 scales = to.put(name + "_weight_scale", DType::f8_e4m3, {experts, in / 16, out}),
                 of_all = to.put(name + "_weight_scale_2", DType::f32, {1});
    put_scale(to.put(name + "_input_scale", DType::f32, {1}), 0, 5);
    of_all.as<float>()[0] = 0.375f;
    for (int64_t i = 0; i < scales.numel(); ++i)
      static_cast<uint8_t*>(scales.data)[i] = static_cast<uint8_t>(0x28 + drawn_below(32));
    std::vector<float> numbers;
    for (int64_t e = 0; e < experts; ++e)
      for (int64_t i = 0; i < in; ++i)
        for (int64_t o = 0; o < out; ++o) {
          const int64_t code = drawn_below(16);
          bytes.as<uint8_t>()[(e * in / 2 + i / 2) * out + o] |=
              static_cast<uint8_t>(code << 4 * (i % 2));
          const auto scale = static_cast<float>(
              f8_number(static_cast<uint8_t*>(scales.data)[(e * in / 16 + i / 16) * out + o]));
          const double size = kSizes[code % 8];
          numbers.push_back(rounded(DType::bf16, (code < 8 ? size : -size) * (scale * 0.375f)));
        }
    return numbers;
  });
}

TEST_F(PackedExperts, Fp8OfModelOpt) {
  expect_banks(modelopt("FP8"), [&](MadeFile& to, const std::string& name, const Tensor& bank) {
    const Tensor bytes =
                     to.put(name, DType::f8_e4m3, {bank.shape[0], bank.shape[1], bank.shape[2]}),
                 scale = to.put(name + "_weight_scale", DType::f32, {1});
    scale.as<float>()[0] = 0.375f;
    std::vector<float> numbers;
    for (int64_t i = 0; i < bytes.numel(); ++i) {
      auto byte = static_cast<uint8_t>(drawn_below(256));
      if ((byte & 0x7F) == 0x7F) byte = 0;
      static_cast<uint8_t*>(bytes.data)[i] = byte;
      numbers.push_back(rounded(DType::bf16, f8_number(byte) * 0.375));
    }
    return numbers;
  });
}

TEST_F(PackedExperts, BanksThatDoNotFitAreRefused) {
  const Packing packing = {.kind = Packing::Kind::modelopt};
  MadeFile made;
  made.put("x_proj", DType::u8, {2, 8, 4});
  made.put("x_proj_weight_scale", DType::f8_e4m3, {2, 2, 4});
  made.put("x_proj_weight_scale_2", DType::f32, {1});
  expect_parts_refused(packing, made, "u8 [E,I/2,O], f8_e4m3 [E,I/16,O] and f32 [1] are needed");
  MadeFile each;
  each.put("x_proj", DType::f8_e4m3, {2, 8, 4});
  each.put("x_proj_weight_scale", DType::f32, {2});
  expect_parts_refused(packing, each, "a bank is needed and one number");
  MadeFile alone;
  alone.put("x_proj", DType::f8_e4m3, {2, 8, 4});
  expect_parts_refused(packing, alone, "\"x_proj\" has no \"x_proj_weight_scale\" beside it");
}

// Gates and ups in turns, the output dimension first, beside biases; here in their own type.
TEST_F(PackedExperts, OneByOneAsUnslothSavesThem) {
  const ModelConfig config = small_gpt_oss(32);
  Model model(config);
  uint64_t index = 0;
  for (Param* param : model.params()) {
    const RngKey key = RngKey::from_seed(4).fold(index++);
    for (int64_t i = 0; i < param->value.numel(); ++i)
      param->value.as<float>()[i] = to_f32(to_bf16(normal(key, static_cast<uint64_t>(i))));
  }
  save_model(plain_.path(), model, *make_tokenizer("bytes"));
  const Safetensors file = Safetensors::open(plain_.path());
  MadeFile made;
  constexpr std::string_view kRouter = "mlp.router.", kBias = "_bias";
  for (const NamedTensor& tensor : file.tensors()) {
    const Tensor& x = tensor.value;
    std::string name = tensor.name;
    if (const size_t at = name.find(kRouter); at != std::string::npos)
      made.items.push_back({name.insert(at + kRouter.size(), "linear."), x, DType::f32});
    else if (is_bank(name)) {
      for (int64_t e = 0; e < x.shape[0]; ++e) {
        const Tensor one =
            made.put(fmt::format("{}s.{}.weight", name, e), DType::bf16, {x.shape[2], x.shape[1]});
        for (int64_t i = 0; i < x.shape[1]; ++i)
          for (int64_t o = 0; o < x.shape[2]; ++o)
            one.row<bf16>(o)[i] = to_bf16(x.as<float>()[(e * x.shape[1] + i) * x.shape[2] + o]);
      }
    } else if (name.ends_with("proj_bias")) {
      name.resize(name.size() - kBias.size());
      for (int64_t e = 0; e < x.shape[0]; ++e) {
        const Tensor one = made.put(fmt::format("{}s.{}.bias", name, e), DType::f32, {x.shape[1]});
        std::copy_n(x.row<float>(e), x.shape[1], one.as<float>());
      }
    } else {
      made.items.push_back({name, x, DType::f32});
    }
  }
  write(made, {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}});
  for (const bool trained : {true, false}) {
    const LoadedModel loaded =
        trained ? load_model(packed_.path()) : open_model(packed_.path(), {});
    for (const Param* want : model.params()) {
      const Param* got = param_named(*loaded.model, want->name);
      ASSERT_EQ(got->value.numel(), want->value.numel()) << want->name;
      if (want->value.rank < 3) {
        EXPECT_EQ(values(got->value), values(want->value)) << want->name;
        continue;
      }
      for (int64_t e = 0; e < want->value.matrices(); ++e)
        EXPECT_EQ(values(got->expert(e)), values(want->expert(e))) << want->name << " " << e;
    }
    if (!trained)
      EXPECT_EQ(param_named(*loaded.model, "layers.0.ffn.experts.up.weight")->value.dtype,
                DType::bf16);
  }
}

}  // namespace
}  // namespace moe::test::packed_experts_test
