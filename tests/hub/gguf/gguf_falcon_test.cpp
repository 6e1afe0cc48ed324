// Falcon-H1 in llama.cpp's form, whose weights hold what its config multiplies them by: with
// factors that are powers of two the same bits come out, and an adapter's second half has the
// factor too.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "hub/adapted.h"
#include "hub/adapter_gguf.h"
#include "hub/convert.h"
#include "hub/gguf/quant_mix.h"
#include "hub/gguf_files.h"
#include "model/adapters.h"
#include "support/param_named.h"

namespace moe::test::gguf_falcon_test {
namespace {

using gguf_files::ChangedGguf;
using gguf_files::drawn_model;
using gguf_files::logits_of;
using gguf_files::save;

// Scores are over the root of 16, so that keys get twice what they are.
constexpr Multipliers kPowers = {.embedding = 4,
                                 .attention = 0.5f,
                                 .logits = 8,
                                 .scan_in = {0.5f, 2, 4, 0.25f, 2},
                                 .scan_out = 0.5f,
                                 .attention_out = 0.25f,
                                 .ffn_gate = 2,
                                 .ffn_down = 0.5f};

ModelConfig multiplied_config() {
  ModelConfig c = beside_config();
  c.multipliers = kPowers;
  c.scan.norm = false;
  return c;
}

class GgufFalcon : public ChangedGguf {
 protected:
  void begin(const ModelConfig& c) {
    tensors_.clear();
    model_ = drawn_model(c);
    start();
  }
  // That rows of a tensor are so many times those of a parameter.
  void expect_times(const std::string& tensor, const std::string& param, double factor,
                    int64_t begin = 0, int64_t from = 0, int64_t rows = -1) {
    const Tensor there = file_->get(tensor), here = param_named(*model_, param)->value,
                 matrix = here.rank == 3 ? here.at(0) : here;
    if (rows < 0) rows = matrix.rows();
    std::vector<double> want = values(matrix.slice_rows(from, from + rows));
    for (double& x : want) x *= factor;
    EXPECT_EQ(values(there.slice_rows(begin, begin + rows)), want) << tensor << " from " << begin;
  }
};

TEST_F(GgufFalcon, KeysAndTensors) {
  begin(multiplied_config());
  EXPECT_EQ(std::get<std::string>(entry("general.architecture").value), "falcon-h1");
  for (const auto& [key, x] : {std::pair{"ssm.inner_size", 64},
                               {"ssm.state_size", 16},
                               {"ssm.time_step_rank", 4},
                               {"ssm.group_count", 2},
                               {"ssm.conv_kernel", 4},
                               {"attention.head_count_kv", 2},
                               {"feed_forward_length", 64}})
    EXPECT_EQ(std::get<int64_t>(entry(std::string("falcon-h1.") + key).value), x) << key;
  for (const GgufEntry& e : target_.metadata)
    EXPECT_EQ(e.key.find("scale"), std::string::npos) << e.key;
  EXPECT_EQ(describe(file_->get("blk.1.ffn_norm")), "f32 [32]");
  EXPECT_EQ(describe(file_->get("blk.1.ssm_a")), "f32 [4, 1]");
  EXPECT_EQ(describe(file_->get("blk.1.ssm_d")), "f32 [4, 1]");
  EXPECT_EQ(describe(file_->get("blk.1.ssm_in.weight")), "f32 [196, 32]");
  EXPECT_EQ(describe(file_->get("blk.1.ssm_conv1d.weight")), "f32 [128, 4]");
  for (const char* name : {"blk.1.ffn_norm.weight", "blk.1.ssm_norm.weight"})
    EXPECT_FALSE(file_->contains(name)) << name;
  begin([] {
    ModelConfig c = multiplied_config();
    c.scan.norm = true;
    return c;
  }());
  EXPECT_EQ(describe(file_->get("blk.1.ssm_norm.weight")), "f32 [2, 32]");
}

TEST_F(GgufFalcon, WeightsHoldTheMultipliers) {
  begin(multiplied_config());
  expect_times("token_embd.weight", "embed.weight", 4);
  for (const auto& [tensor, kind, factor] : {std::tuple{"attn_q", ParamKind::q, 1.0},
                                             {"attn_k", ParamKind::k, 2.0},
                                             {"attn_v", ParamKind::v, 1.0},
                                             {"attn_output", ParamKind::o, 0.25},
                                             {"ssm_out", ParamKind::scan_o, 0.5}})
    expect_times(fmt::format("blk.1.{}.weight", tensor),
                 model_->find(Part::attention, kind, 1)->name, factor);
  for (const auto& [tensor, kind, factor] : {std::tuple{"ffn_gate", ParamKind::gate, 2.0},
                                             {"ffn_up", ParamKind::up, 1.0},
                                             {"ffn_down", ParamKind::down, 0.5}})
    expect_times(fmt::format("blk.1.{}.weight", tensor),
                 model_->find(Part::dense_ffn, kind, 1)->name, factor);
  const auto in = [&](ParamKind kind) { return model_->find(Part::attention, kind, 1)->name; };
  const std::string all = "blk.1.ssm_in.weight";
  expect_times(all, in(ParamKind::scan_z), 0.5);
  expect_times(all, in(ParamKind::scan_xbc), 2, 64, 0, 64);
  expect_times(all, in(ParamKind::scan_xbc), 4, 128, 64, 32);
  expect_times(all, in(ParamKind::scan_xbc), 0.25, 160, 96, 32);
  expect_times(all, in(ParamKind::scan_dt), 2, 192);
  expect_times("output.weight", model_->find(Part::lm_head, ParamKind::weight, -1)->name, 0.125);
}

TEST_F(GgufFalcon, ComputesTheSameWithoutMultipliers) {
  for (const bool tied : {false, true}) {
    SCOPED_TRACE(tied);
    ModelConfig c = multiplied_config();
    c.tied = tied;
    begin(c);
    for (const bool trained : {true, false}) {
      const LoadedModel loaded = trained ? load_model(path_) : open_model(path_, {});
      const ModelConfig& got = loaded.model->config();
      EXPECT_TRUE(got.multipliers.none() && got.scan_beside && !got.scan.norm);
      EXPECT_EQ(std::ssize(got.scan_layers), got.layers);
      EXPECT_FALSE(got.tied);  // the head has another factor than the embedding
      EXPECT_EQ(logits_of(*loaded.model), logits_of(*model_));
    }
  }
  ModelConfig alike = multiplied_config();
  alike.tied = true;
  alike.multipliers.logits = 0.25f;
  begin(alike);
  EXPECT_FALSE(file_->contains("output.weight"));
  EXPECT_TRUE(load_model(path_).model->config().tied);
  EXPECT_EQ(logits_of(*load_model(path_).model), logits_of(*model_));
}

// Any factors, out of a folder as `moe convert` goes, and back into one.
TEST_F(GgufFalcon, OutOfAFolderAndBack) {
  ModelConfig c = multiplied_config();
  c.multipliers = {.embedding = 5.5f,
                   .attention = 0.2f,
                   .logits = 7,
                   .scan_in = {0.7f, 1.3f, 0.6f, 1.2f, 0.8f},
                   .scan_out = 0.3f,
                   .attention_out = 0.9f,
                   .ffn_gate = 0.6f,
                   .ffn_down = 1.4f};
  begin(c);
  const std::string folder = folder_ / "folder", back = folder_ / "back";
  for (const std::string& made : {folder, back}) std::filesystem::create_directory(made);
  save_model(folder, *model_, *make_tokenizer("bytes"));
  LoadedModel of_folder = open_model(folder, {});
  EXPECT_EQ(of_folder.model->config().multipliers.scan_out, 0.3f);
  EXPECT_EQ(convert_model(of_folder, folder, folder_ / "c.gguf", {}).why_own, "");
  const Gguf converted = Gguf::open(folder_ / "c.gguf");
  ASSERT_EQ(converted.tensors().size(), file_->tensors().size());
  for (const NamedTensor& t : file_->tensors())
    EXPECT_EQ(values(converted.get(t.name)), values(t.value)) << t.name;
  LoadedModel of_file = open_model(folder_ / "c.gguf", {});
  convert_model(of_file, folder_ / "c.gguf", back, {});
  const LoadedModel again = load_model(back);
  EXPECT_EQ(again.model->config().model_type, "falcon_h1");
  const std::vector<double> want = logits_of(*model_), got = logits_of(*again.model);
  double largest = 0;
  for (const double x : want) largest = std::max(largest, std::fabs(x));
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-4 * largest) << i;
}

// What the converter leaves to llama.cpp, and what earlier ones wrote into keys.
TEST_F(GgufFalcon, OtherKeys) {
  using Type = GgufEntry::Type;
  begin(beside_config());
  const std::vector<GgufEntry> whole = target_.metadata;
  const auto without = [&](const std::string& key) {
    target_.metadata = whole;
    std::erase_if(target_.metadata,
                  [&](const GgufEntry& e) { return e.key == "falcon-h1." + key; });
    EXPECT_EQ(target_.metadata.size() + 1, whole.size()) << key;
  };
  without("rope.dimension_count");
  write();
  EXPECT_EQ(logits_of(*load_model(folder_ / "b.gguf").model), logits_of(*model_));
  for (const char* key : {"ssm.conv_kernel", "ssm.inner_size", "ssm.state_size",
                          "ssm.time_step_rank", "ssm.group_count", "rope.freq_base",
                          "feed_forward_length", "attention.layer_norm_rms_epsilon"}) {
    without(key);
    expect_refused(fmt::format("key \"falcon-h1.{}\" is missing", key));
  }
  const auto refused_with = [&](const GgufEntry& changed, const char* reason) {
    target_.metadata = whole;
    set(changed);
    expect_refused(reason);
  };
  refused_with({"falcon-h1.mlp_gate_multiplier", Type::f32, 0.5}, "is not known here");
  refused_with({"falcon-h1.attention.head_count_kv", Type::u32s, std::vector<int64_t>{2, 0, 2}},
               "layer 1 has no attention; in a model of this architecture all have");
  refused_with({"falcon-h1.expert_count", Type::u32, int64_t{4}}, "has no experts");
}

TEST_F(GgufFalcon, WhyOwn) {
  const auto own = [](const char* reason, auto change) {
    ModelConfig c = multiplied_config();
    change(c);
    const auto [architecture, why_own] = gguf_form_of(c);
    EXPECT_EQ(architecture, &own_gguf_architecture());
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, reason, why_own);
  };
  own("Falcon-H1 (\"falcon-h1\") comes nearest, but the convolution of its state spaces has no "
      "bias",
      [](ModelConfig& c) { c.scan.conv_bias = false; });
  own("what its sublayers add has a multiplier",
      [](ModelConfig& c) { c.multipliers.residual = 0.5f; });
  own("layer 1 has not both attention and a state space", [](ModelConfig& c) {
    c.scan_layers = {0, 2};
  });
  own("in layer 2 nothing turns", [](ModelConfig& c) { c.nope_layers = {2}; });
  own("queries, keys and values have biases", [](ModelConfig& c) { c.attention_bias = true; });
}

// Pairs of one model hang on the other, whose weights hold the factors.
TEST_F(GgufFalcon, AdaptersHaveTheFactorToo) {
  ModelConfig c = multiplied_config();
  c.multipliers.scan_in.fill(1);
  Adapted made(c);
  const std::string path = folder_ / "adapter.gguf";
  save_gguf_adapter(path, made.model, made.file);
  Model again(c);
  again.initialise(3);
  save(folder_ / "m.gguf", again);
  attach_adapter(again, path, 1);
  merge_terms(again, 1);
  for (const LowRank& low : made.file.matrices)
    expect_near(param_named(again, low.base->name)->value, made.merged(low), 1e-6, low.base->name);
  const LoadedModel folded = load_model(folder_ / "m.gguf");
  attach_adapter(*folded.model, path, 1);
  merge_terms(*folded.model, 1);
  const std::vector<double> want = logits_of(again), got = logits_of(*folded.model);
  double largest = 0;
  for (const double x : want) largest = std::max(largest, std::fabs(x));
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-4 * largest) << i;
}

// llama.cpp counts its layers' values as any attention's.
TEST(GgufFalconMix, Values) {
  const ModelConfig c = beside_config();
  const auto model = drawn_model(c);
  const QuantMix& mix = find_quant_mix("q4_k_m", "--quant");
  std::vector<DType> types;
  for (int64_t i = 0; i < c.layers; ++i)
    types.push_back(
        type_in_mix(mix, *model->find(Part::attention, ParamKind::v, i), false, c, false));
  EXPECT_EQ(types, (std::vector<DType>{DType::q4_k, DType::q4_k, DType::q6_k}));
}

}  // namespace
}  // namespace moe::test::gguf_falcon_test
