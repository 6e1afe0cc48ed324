// Carving by neurons: what a budget buys, that nothing is lost where all neurons work, that the fit
// helps, and that a file gives the same model again.
#include <gtest/gtest.h>

#include <cmath>

#include "convert/carve.h"
#include "hub/convert.h"
#include "hub/hub.h"
#include "infer/session.h"
#include "support/check.h"
#include "support/files.h"
#include "support/limits.h"

namespace moe::sketch_test {
namespace {

constexpr int64_t kWindow = 64, kWindows = 4, kVocab = 256, kNeurons = 96;

std::unique_ptr<Model> dense_model(bool gated = true) {
  ModelConfig c;
  c.vocab = kVocab;
  c.width = 64;
  c.layers = 2;
  c.heads = c.kv_heads = 2;
  c.head_width = 32;
  c.context = kWindow;
  c.dense_width = kNeurons;
  c.gated = gated;
  c.init.std = 0.2f;
  auto model = std::make_unique<Model>(c);
  model->initialise(3);
  return model;
}

std::vector<int32_t> text(uint64_t seed, int64_t tokens = kWindow * kWindows) {
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(uniform_index(RngKey::from_seed(seed), i, kVocab));
  return ids;
}

CarveOptions options(const Model& dense, double budget, const char* fit = "", int64_t bits = 0) {
  CarveOptions o;
  o.method = "sketch";
  o.budget = budget;
  o.sketch_bits = bits;
  o.fit = fit;
  o.window = kWindow;
  o.windows = kWindows;
  return with_shape(dense.config(), o, DType::bf16);
}

// [tokens,V] by the session: the first `read` tokens as a prompt, the others one by one.
std::vector<double> logits(Model& model, const std::vector<int32_t>& ids, int64_t read) {
  moe::Run run(2);
  Session session(model, run, std::ssize(ids));
  std::vector<double> out;
  const auto add = [&](std::span<const float> row) {
    out.insert(out.end(), row.begin(), row.end());
  };
  const std::span<const int32_t> all = ids;
  if (read > 0) add(session.prefill(all.first(static_cast<size_t>(read))));
  for (int64_t i = read; i < std::ssize(ids); ++i)
    add(session.decode(all.subspan(static_cast<size_t>(i), 1)));
  return out;
}

TEST(Sketch, WhereAllNeuronsWorkTheDenseModelRemains) {
  for (const bool gated : {true, false}) {
    const auto dense = dense_model(gated);
    CarveOptions o = options(*dense, 0.6);
    o.active = kNeurons;
    moe::Run run(2);
    const CarveResult carved = carve(run, *dense, text(1), o);
    EXPECT_TRUE(carved.model->config().by_neuron());
    test::expect_near(logits(*carved.model, text(5, 20), 0), logits(*dense, text(5, 20), 0), 1e-4,
                      "logits");
    for (const CarvedLayer& l : carved.layers) {
      EXPECT_LT(l.error, 1e-4);
      EXPECT_DOUBLE_EQ(l.agreement, 1);
    }
  }
}

TEST(Sketch, APromptIsReadByAllNeurons) {
  const auto dense = dense_model();
  moe::Run run(2);
  const CarveResult carved = carve(run, *dense, text(1), options(*dense, 0.4, "none"));
  const std::vector<int32_t> ids = text(5, 20);
  test::expect_near(logits(*carved.model, ids, 20), logits(*dense, ids, 20), 1e-4, "logits");
  EXPECT_GT(test::relative_error(logits(*carved.model, ids, 0), logits(*dense, ids, 0)), 1e-2);
}

// The bytes of the sketch are among those that are counted.
TEST(Sketch, TakesAsManyNeuronsAsTheBudgetPays) {
  const ModelConfig dense = dense_model()->config();
  CarveOptions o;
  o.method = "sketch";
  int64_t before = 0;
  for (const double budget : {0.25, 0.5, 0.75, 1.0}) {
    o.budget = budget;
    const CarveOptions shaped = with_shape(dense, o, DType::bf16);
    EXPECT_EQ(shaped.experts, kNeurons);
    EXPECT_EQ(shaped.shared, 0);
    EXPECT_GT(shaped.active, before);
    EXPECT_LE(share_read(dense, shaped, DType::bf16), budget);
    EXPECT_GT(share_read(dense, shaped, DType::bf16), budget - 1.001 / kNeurons);
    EXPECT_LT(with_shape(dense, o, DType::q8_0).active, shaped.active);
    before = shaped.active;
  }
}

// More bits leave fewer neurons, and are taken where what is left is worth more.
TEST(Sketch, HasTheBitsThatTheBudgetAllows) {
  const ModelConfig dense = dense_model()->config();
  CarveOptions o;
  o.method = "sketch";
  for (const auto& [budget, weights, bits] :
       {std::tuple{0.9, DType::bf16, 4}, std::tuple{0.5, DType::bf16, 3},
        std::tuple{0.25, DType::bf16, 2}, std::tuple{0.75, DType::q8_0, 3},
        std::tuple{0.5, DType::q8_0, 2}, std::tuple{0.75, DType::q4_0, 2}}) {
    o.budget = budget;
    o.sketch_bits = 0;
    const CarveOptions chosen = with_shape(dense, o, weights);
    EXPECT_EQ(chosen.sketch_bits, bits) << budget << ' ' << name_of(weights);
    int64_t before = dense.dense_width + 1;
    for (o.sketch_bits = 2; o.sketch_bits <= 4; ++o.sketch_bits) {
      const int64_t neurons = with_shape(dense, o, weights).active;
      EXPECT_LT(neurons, before);
      before = neurons;
    }
    EXPECT_EQ(carved_config(dense, chosen).sketch_bits, bits);
  }
}

// As many neurons, chosen by a better copy.
TEST(Sketch, MoreBitsChooseBetter) {
  const auto dense = dense_model();
  std::vector<double> agreement, error;
  for (const int64_t bits : {2, 3, 4}) {
    CarveOptions o = options(*dense, 0.5, "none", bits);
    o.active = kNeurons / 2;
    moe::Run run(2);
    const CarvedLayer layer = carve(run, *dense, text(1), o).layers[0];
    agreement.push_back(layer.agreement);
    error.push_back(layer.error);
  }
  for (const size_t more : {1, 2}) {
    EXPECT_GT(agreement[more], agreement[more - 1]);
    EXPECT_LT(error[more], error[more - 1]);
  }
}

// Rows of 64 hold no block of 256, so what is asked for as q4_k is written as q5_0.
TEST(Sketch, CountsTheBytesOfTheTypeThatRowsAreWrittenIn) {
  const ModelConfig dense = dense_model()->config();
  CarveOptions o;
  o.method = "sketch";
  o.budget = 0.9;
  for (const auto& [asked, written] :
       {std::pair{DType::q4_k, DType::q5_0}, std::pair{DType::q6_k, DType::q8_0},
        std::pair{DType::q2_k, DType::q4_0}}) {
    const CarveOptions shaped = with_shape(dense, o, asked);
    EXPECT_EQ(shaped.active, with_shape(dense, o, written).active);
    EXPECT_DOUBLE_EQ(share_read(dense, shaped, asked), share_read(dense, shaped, written));
  }
}

TEST(Sketch, MoreNeuronsLoseLessAndAFitHelps) {
  const auto dense = dense_model();
  double before = INFINITY;
  for (const double budget : {0.3, 0.5, 0.7}) {
    moe::Run run(2);
    const double error = carve(run, *dense, text(1), options(*dense, budget)).layers[0].error;
    const double bare =
        carve(run, *dense, text(1), options(*dense, budget, "none")).layers[0].error;
    EXPECT_LT(error, before);
    EXPECT_LT(error, bare);
    before = error;
  }
}

// Of a layer whose neurons never work there is nothing to fit, and nothing to choose by.
TEST(Sketch, ALayerMayBeSilent) {
  for (const bool gated : {true, false}) {
    const auto dense = dense_model(gated);
    const ExpertBank& bank = dense->block(1).ffn.experts;
    const Tensor first = (gated ? bank.gate : bank.up).value;
    std::fill_n(first.as<float>(), first.numel(), 0.0f);
    moe::Run run(2);
    const CarveResult carved = carve(run, *dense, text(1), options(*dense, 0.5));
    EXPECT_EQ(carved.layers.size(), 2u);
    if (gated)
      EXPECT_EQ(test::values(carved.model->block(1).ffn.experts.gate.value),
                test::values(bank.gate.value));
    EXPECT_EQ(carved.layers[1].error, 0);
  }
}

// A file has the sketch in its own type, a folder in f32, and both give the same numbers.
class SavedSketch : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Bits, SavedSketch, testing::Values(2, 3, 4));
TEST_P(SavedSketch, IsLoadedAgain) {
  const auto dense = dense_model();
  moe::Run run(2);
  const CarveResult carved = carve(run, *dense, text(1), options(*dense, 0.4, "", GetParam()));
  const test::TempFolder folder;
  const auto tokenizer = make_tokenizer("bytes");
  save_model(folder / "m", *carved.model, *tokenizer, DType::f32);
  LoadedModel from_folder = open_model(folder / "m", {});
  convert_model(from_folder, folder / "m", folder / "m.gguf", {});
  const LoadedModel from_file = open_model(folder / "m.gguf", {});
  for (Model* model : {from_folder.model.get(), from_file.model.get()}) {
    Router& router = *model->block(1).ffn.router;
    for (const Param* p : {&router.logit.weight, &router.logit.up}) EXPECT_TRUE(is_sketch(*p));
    EXPECT_EQ(router.logit.weight.value.dtype, GetParam() == 4 ? DType::q4_0 : DType::q2_0);
    EXPECT_EQ(router.logit.up.value.dtype, GetParam() >= 3 ? DType::q4_0 : DType::q2_0);
  }
  const std::vector<int32_t> ids = text(5, 20);
  EXPECT_EQ(logits(*from_folder.model, ids, 0), logits(*from_file.model, ids, 0));
  EXPECT_EQ(logits(*from_file.model, ids, 0), logits(*carved.model, ids, 0));
}

TEST(Sketch, SameCommandSameBits) {
  const auto dense = dense_model();
  std::vector<std::string> found;
  for (const int threads : {1, 2}) {
    moe::Run run(threads);
    const CarveResult carved = carve(run, *dense, text(1), options(*dense, 0.5));
    const Tensor& sketch = carved.model->block(1).ffn.router->logit.up.value;
    found.emplace_back(static_cast<const char*>(sketch.data), static_cast<size_t>(sketch.bytes()));
  }
  EXPECT_EQ(found[0], found[1]);
}

TEST(Sketch, RefusesWhatHasNoMeaning) {
  const auto dense = dense_model();
  const auto refused = [&](const ModelConfig& config, const auto& change, double budget = 0.5) {
    return test::message_of([&] {
      CarveOptions o;
      o.method = "sketch";
      o.budget = budget;
      change(o);
      check_carve(config, with_shape(config, o, DType::bf16));
    });
  };
  const auto has = [](const std::string& said, const char* part) {
    EXPECT_NE(said.find(part), std::string::npos) << said;
  };
  const auto nothing = [](CarveOptions&) {};
  check_carve(dense->config(), options(*dense, 0.5));
  has(refused(dense->config(), nothing, 0), "budget is 0");
  has(refused(dense->config(), nothing, 1.5), "budget is 1.5");
  const auto five = [](CarveOptions& o) { o.sketch_bits = 5; };
  has(refused(dense->config(), five), "sketch_bits is 5; a sketch has 2, 3 or 4 bits a number");
  ModelConfig read = dense->config();  // says the same
  read.sketch_bits = 5;
  EXPECT_EQ(test::message_of([&] { validate(read); }), refused(dense->config(), five));
  has(refused(dense->config(), nothing, 0.05), "the sketch alone reads 0.104");
  has(refused(dense->config(), [](CarveOptions& o) { o.router = "energy"; }), "its own router");
  ModelConfig biased = dense->config(), narrow = biased;
  biased.ffn_bias = true;
  has(refused(biased, nothing), "have biases");
  narrow.width = 96;
  has(refused(narrow, nothing), "blocks of 64 numbers");
}

}  // namespace
}  // namespace moe::sketch_test
