// Routing records as files: what a score writes reads back and, replayed through the same score,
// changes no bit, for every recipe; the weights are those that were used; what does not fit a model
// or a text is refused by name, and so is every damaged file.
#include "evaluate/routing_record.h"

#include <cstring>

#include "evaluate/score.h"
#include "moe/stages/replay.h"
#include "support/files.h"
#include "support/param_named.h"
#include "support/routings.h"
#include "support/tiny_model.h"

namespace moe::test::routing_record_test {
namespace {

constexpr int64_t kWindow = 12;

struct Fixture {
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("bytes");
  moe::Run run{2};
  ScoreOptions options{.window = kWindow, .per_token = true};
  std::vector<int32_t> ids;
  TempFolder folder;

  explicit Fixture(const RoutingOptions& routing = small_routing("olmoe", 4, 2), uint64_t seed = 7,
                   int64_t tokens = 5 * kWindow + 3) {
    ModelConfig config = plain_config();
    config.init.std = 0.3f;
    config.routing = routing;
    model = fresh(config, seed);
    for (Param* p : model->params())
      if (p->name.ends_with("threshold")) {
        std::fill_n(p->value.as<float>(), p->value.numel(), 0.25f);
        p->touched();
      }
    for (int64_t i = 0; i < tokens; ++i)
      ids.push_back(
          static_cast<int32_t>(uniform_index(RngKey::from_seed(4), static_cast<uint64_t>(i), 256)));
  }

  RoutingSpec spec() const { return scored_routing(model->config(), options); }
  std::span<const int32_t> scored() const {
    return std::span(ids).first(
        static_cast<size_t>(kWindow * scored_windows(static_cast<int64_t>(ids.size()), options)));
  }
  Score score() { return moe::score(*model, run, *tokenizer, ids, options); }
  Score record(const std::string& path) {
    const RecordInfo info{.routing = "dropless",
                          .dtype = "f32",
                          .tokenizer = "bytes",
                          .slots = spec().slots(),
                          .window = kWindow,
                          .windows = static_cast<int64_t>(scored().size()) / kWindow};
    RoutingRecorder recorder(path, model->config(), info, scored());
    options.on_routing = [&](int64_t window, int64_t layer, const MoeLayer::Saved& saved) {
      recorder.add(window, layer, saved);
    };
    Score s = score();
    options.on_routing = {};
    recorder.commit();
    return s;
  }
  Score replay(const RoutingRecord& record, Agreement* agreement = nullptr) {
    record.check_model(model->config(), spec());
    record.check_text(scored(), "bytes");
    options.recorded = [&](int64_t window) { return record.window(window); };
    if (agreement)
      options.on_routing = [&](int64_t w, int64_t layer, const MoeLayer::Saved& saved) {
        agreement->add(w, layer, saved, spec().experts);
      };
    Score s = score();
    if (agreement) agreement->finish();
    options.recorded = {};
    options.on_routing = {};
    return s;
  }
};

TEST(RoutingRecord, ReplayedByItsModelChangesNoBitForAnyRecipe) {
  int dropping = 0;
  for (RoutingOptions routing : small_routings(4, 2)) {
    if (std::holds_alternative<BufferCapacity>(resolved_recipe(routing).eval_as_trained))
      routing.capacity_factor_eval = 0.4f;
    for (const EvalRouting way : {EvalRouting::as_trained, default_eval(routing)}) {
      Fixture f(routing);
      f.options.routing = way;
      const Score first = f.record(f.folder / "r");
      EXPECT_EQ(first.logprobs, f.score().logprobs) << routing.recipe;  // recording changes nothing
      const RoutingRecord record = RoutingRecord::open(f.folder / "r");
      for (const Tensor& layer : record.window(0))
        for (int64_t i = 0; i < layer.numel(); ++i)
          dropping += layer.as<int32_t>()[i] < kNothingChosen;
      Agreement agreement;
      EXPECT_EQ(f.replay(record, &agreement).logprobs, first.logprobs) << routing.recipe;
      ASSERT_EQ(agreement.layers.size(), 2u);
      for (const auto& layer : agreement.layers) {
        EXPECT_EQ(layer.share(), 1) << routing.recipe;
        EXPECT_EQ(layer.own, layer.recorded) << routing.recipe;
      }
      EXPECT_EQ(agreement.tokens, 5 * kWindow);
      EXPECT_EQ(agreement.tokens_alike, 5 * kWindow);
    }
  }
  EXPECT_GT(dropping, 0);
}

TEST(RoutingRecord, HoldsWhatTheLayersDid) {
  RoutingOptions routing = small_routing("mixtral", 4, 2);
  Fixture f(routing);
  f.options.windows = 3;
  // [layer][token] of (expert, weight), in choice order
  std::vector<std::vector<std::vector<std::pair<int32_t, float>>>> sent(2);
  f.options.on_routing = [&](int64_t, int64_t layer, const MoeLayer::Saved& saved) {
    for (int64_t n = 0; n < kWindow; ++n) {
      auto& token = sent[static_cast<size_t>(layer)].emplace_back();
      for (auto i = static_cast<size_t>(saved.plan.bounds[static_cast<size_t>(n)]);
           i < static_cast<size_t>(saved.plan.bounds[static_cast<size_t>(n) + 1]); ++i) {
        const auto row = static_cast<int64_t>(saved.plan.row[i]);
        const auto* past = std::upper_bound(
            saved.plan.offsets.data(), saved.plan.offsets.data() + saved.plan.offsets.size(), row);
        token.emplace_back(static_cast<int32_t>(past - saved.plan.offsets.data()) - 1,
                           saved.plan.weight.as<float>()[row]);
      }
    }
  };
  f.score();
  f.record(f.folder / "r");
  const RoutingRecord record = RoutingRecord::open(f.folder / "r");
  const RecordInfo& info = record.info();
  EXPECT_EQ(info.recipe, "mixtral");
  EXPECT_EQ(info.routing, "dropless");
  EXPECT_EQ(info.dtype, "f32");
  EXPECT_EQ(info.tokenizer, "bytes");
  EXPECT_EQ(
      std::vector<int64_t>({info.layers, info.experts, info.slots, info.window, info.windows}),
      std::vector<int64_t>({2, 4, 2, kWindow, 3}));
  EXPECT_EQ(record.moe_layers(), (std::vector<int64_t>{0, 1}));
  EXPECT_TRUE(std::ranges::equal(record.ids(), std::span(f.ids).first(3 * kWindow)));
  const Safetensors file = Safetensors::open(f.folder / "r");
  for (int64_t w = 0; w <= 3; ++w) EXPECT_EQ(file.get("bounds").as<int32_t>()[w], w * kWindow);
  for (int64_t layer = 0; layer < 2; ++layer) {
    const Tensor weights = file.get(fmt::format("layers.{}.weights", layer)),
                 experts = file.get(fmt::format("layers.{}.experts", layer));
    ASSERT_EQ(weights.rows(), 3 * kWindow);
    for (int64_t n = 0; n < weights.rows(); ++n)
      for (int64_t i = 0; i < 2; ++i) {
        const auto& [expert, weight] =
            sent[static_cast<size_t>(layer)][static_cast<size_t>(n)][static_cast<size_t>(i)];
        EXPECT_EQ(experts.row<int32_t>(n)[i], expert);
        EXPECT_EQ(weights.row<float>(n)[i], weight);
      }
  }
}

TEST(RoutingRecord, TellsHowFarAnotherModelAgrees) {
  Fixture a, b(small_routing("olmoe", 4, 2), 8);
  a.record(a.folder / "r");
  const Score own = b.record(b.folder / "r");
  const RoutingRecord of_a = RoutingRecord::open(a.folder / "r"),
                      of_b = RoutingRecord::open(b.folder / "r");
  Agreement agreement;
  EXPECT_NE(b.replay(of_a, &agreement).logprobs, own.logprobs);
  // Nothing is replayed before the first layer, so there b's own choice is that of its own record.
  int64_t both = 0, alike = 0;
  for (int64_t w = 0; w < 5; ++w)
    for (int64_t n = 0; n < kWindow; ++n) {
      const int32_t *x = of_a.window(w)[0].row<int32_t>(n), *y = of_b.window(w)[0].row<int32_t>(n);
      const int common = (x[0] == y[0]) + (x[0] == y[1]) + (x[1] == y[0]) + (x[1] == y[1]);
      both += common;
      alike += common == 2;
    }
  ASSERT_EQ(agreement.layers.size(), 2u);
  EXPECT_EQ(agreement.layers[0].layer, 0);
  EXPECT_EQ(agreement.layers[1].layer, 1);
  EXPECT_EQ(agreement.layers[0].both, both);
  EXPECT_EQ(agreement.layers[0].recorded, 5 * kWindow * 2);
  EXPECT_EQ(agreement.layers[0].chance(), 0.5);
  EXPECT_GT(both, 0);
  EXPECT_LT(both, 5 * kWindow * 2);
  EXPECT_LE(agreement.tokens_alike, alike);
  EXPECT_EQ(agreement.tokens, 5 * kWindow);
}

TEST(RoutingRecord, IsRefusedByAnotherModelOrTextThanItsOwn) {
  Fixture f;
  f.record(f.folder / "r");
  const RoutingRecord record = RoutingRecord::open(f.folder / "r");
  const auto refused = [&](const std::function<void(ModelConfig&)>& change, const char* part) {
    ModelConfig config = f.model->config();
    change(config);
    EXPECT_FAILS(record.check_model(config, eval_spec(config.routing)), part);
  };
  refused([](ModelConfig& c) { c.layers = 3; }, "2 layers, this one has 3");
  refused([](ModelConfig& c) { c.moe_layers = {1}; }, "2 layers that route, this one has 1");
  refused([](ModelConfig& c) { c.routing = small_routing("olmoe", 8, 2); },
          "4 experts, this one has 8");
  refused([](ModelConfig& c) { c.routing = default_options(find_recipe("olmoe"), 4, 3, 2); },
          "2 choices a token, this one has 3");
  std::vector<int32_t> text(f.scored().begin(), f.scored().end());
  record.check_text(std::span(text).first(2 * kWindow), "bytes");  // a part of it
  text[17] ^= 1;
  EXPECT_FAILS(record.check_text(text, "bytes"), "token 17 is");
  EXPECT_FAILS(record.check_text(text, "bpe"),
               "read by the tokenizer \"bytes\", this one is \"bpe\"");
  text[17] ^= 1;
  text.resize(6 * kWindow);
  EXPECT_FAILS(record.check_text(text, "bytes"),
               "records 60 tokens, 72 are to be replayed; lower windows to 5");
  ModelConfig dense = f.model->config();
  dense.routing = {};
  EXPECT_FAILS(RoutingRecorder(f.folder / "no", dense,
                               RecordInfo{.slots = 1, .window = 1, .windows = 1}, f.scored()),
               "no layer that routes");
  EXPECT_EQ(f.folder.entries(), std::vector<std::string>{"r"});
}

TEST(RoutingRecord, LeavesNothingWhenTheScoreFails) {
  Fixture f;
  param_named(*f.model, "layers.1.ffn.router.weight")->value.as<float>()[0] = NAN;
  EXPECT_THROW(f.record(f.folder / "r"), Error);
  EXPECT_TRUE(f.folder.entries().empty());
}

// A valid record of 2 windows of 2 tokens, layers 0 and 2 of 3, 4 experts, 2 choices; each test
// changes one thing.
struct Raw {
  std::vector<int32_t> ids = {5, 6, 7, 8}, bounds = {0, 2, 4}, first = {0, 1, 2, -1, -1, -1, 3, -2},
                       second = {3, 2, 1, 0, -5, 0, 2, 3};
  std::vector<float> weights = std::vector<float>(8, 0.5f);
  std::map<std::string, std::string> metadata = {
      {"routing_record", "1"}, {"recipe", "olmoe"},    {"routing", "dropless"},
      {"dtype", "f32"},        {"tokenizer", "bytes"}, {"layers", "3"},
      {"experts", "4"},        {"slots", "2"},         {"window", "2"}};
  std::vector<SafetensorsItem> items() {
    return {{"ids", Tensor(ids.data(), DType::i32, {static_cast<int64_t>(ids.size())}), DType::i32},
            {"bounds", Tensor(bounds.data(), DType::i32, {static_cast<int64_t>(bounds.size())}),
             DType::i32},
            {"layers.0.experts", Tensor(first.data(), DType::i32, {4, 2}), DType::i32},
            {"layers.0.weights", Tensor(weights.data(), DType::f32, {4, 2}), DType::f32},
            {"layers.2.experts", Tensor(second.data(), DType::i32, {4, 2}), DType::i32}};
  }
};

class BrokenRecord : public ::testing::Test {
 protected:
  void refused(Raw raw, const char* part) { refused(raw, raw.items(), part); }
  void refused(const Raw& raw, const std::vector<SafetensorsItem>& items, const char* part) {
    write_safetensors(path_, items, raw.metadata);
    EXPECT_FAILS(RoutingRecord::open(path_), part);
    EXPECT_FAILS(RoutingRecord::open(path_), path_);
  }
  TempFolder folder_;
  std::string path_ = folder_ / "record";
};

TEST_F(BrokenRecord, TheUnbrokenOneIsRead) {
  Raw raw;
  write_safetensors(path_, raw.items(), raw.metadata);
  const RoutingRecord record = RoutingRecord::open(path_);
  EXPECT_EQ(record.moe_layers(), (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(record.info().windows, 2);
  EXPECT_EQ(record.window(1)[1].row<int32_t>(0)[0], -5);
}

TEST_F(BrokenRecord, Metadata) {
  const auto with = [&](const char* key, const char* value, const char* part) {
    Raw raw;
    if (value) raw.metadata[key] = value;
    else raw.metadata.erase(key);
    refused(raw, part);
  };
  with("routing_record", nullptr, "no \"routing_record\"");
  with("routing_record", "2", "version \"2\"");
  with("recipe", nullptr, "no \"recipe\"");
  with("window", nullptr, "no \"window\"");
  for (const char* bad : {"0", "-1", "", "2x", " 2", "1e3", "99999999999999999999", "4000000000"})
    with("window", bad, "\"window\" of the metadata");
  with("experts", "2000000", "\"experts\" of the metadata");
  with("slots", "5", "5 choices a token of 4 experts");
  with("slots", "1", "layers.0.experts");
  with("window", "3", "4 ids are not whole windows of 3");
  with("window", "1", "\"bounds\" is i32 [3], it must be i32 [5]");
  with("experts", "3", "layers.0.experts: token 3 of 4 has expert 3");
  with("layers", "2", "\"layers.2.experts\" belongs to no record of a model with 2 layers");
}

TEST_F(BrokenRecord, Tensors) {
  Raw raw;
  raw.bounds[1] = 3;
  refused(raw, "\"bounds\" has 3 at 1");
  raw = {};
  raw.bounds.push_back(6);
  refused(raw, "\"bounds\" is i32 [4]");
  raw = {};
  raw.first[5] = 4;
  refused(raw, "layers.0.experts: token 2 of 4 has expert 4");
  raw = {};
  raw.second[5] = -5;
  refused(raw, "layers.2.experts: token 2 of 4 has expert 3 twice");
  raw = {};
  const auto with = [&](size_t item, SafetensorsItem other, const char* part) {
    Raw good;
    std::vector<SafetensorsItem> items = good.items();
    items[item] = std::move(other);
    refused(good, items, part);
  };
  const Tensor floats(raw.weights.data(), DType::f32, {4, 2}),
      ints(raw.first.data(), DType::i32, {4, 2});
  with(0, {"other", Tensor(raw.ids.data(), DType::i32, {4}), DType::i32}, "\"ids\"");
  with(0, {"ids", Tensor(raw.ids.data(), DType::i32, {0}), DType::i32},
       "0 ids are not whole windows");
  with(0, {"ids", floats, DType::f32}, "\"ids\" is f32 [4, 2]");
  with(1, {"other", Tensor(raw.bounds.data(), DType::i32, {3}), DType::i32}, "\"bounds\"");
  with(2, {"layers.0.experts", floats, DType::f32}, "layers.0.experts is f32 [4, 2]");
  with(2, {"layers.0.experts", Tensor(raw.first.data(), DType::i32, {2, 4}), DType::i32},
       "layers.0.experts is i32 [2, 4]");
  with(2, {"layers.1.experts", Tensor(raw.second.data(), DType::i32, {4, 2}), DType::i32},
       "weights of layer 0, but no experts");
  with(3, {"layers.0.weights", ints, DType::i32}, "\"layers.0.weights\" is i32 [4, 2]");
  for (const char* name : {"layers.00.experts", "layers.-1.experts", "layers.1.expert",
                           "layers.3.experts", "layers..experts", "layers.1.experts.", "x"})
    with(4, {name, Tensor(raw.second.data(), DType::i32, {4, 2}), DType::i32},
         "belongs to no record");
  Raw none;
  refused(none, {none.items()[0], none.items()[1]}, "no experts of any layer");
}

TEST_F(BrokenRecord, CutShort) {
  Raw raw;
  write_safetensors(path_, raw.items(), raw.metadata);
  const std::string whole = slurp(path_);
  for (const size_t kept : {size_t{0}, size_t{8}, size_t{100}, whole.size() - 1}) {
    put(path_, whole.substr(0, kept));
    EXPECT_FAILS(RoutingRecord::open(path_), path_);
  }
}

}  // namespace
}  // namespace moe::test::routing_record_test
