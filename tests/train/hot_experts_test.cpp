// Which experts a text uses most, on models whose routers are made to say so; and that training
// them moves no other.
#include "train/hot_experts.h"

#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>

#include "hub/adapter.h"
#include "hub/adapter_gguf.h"
#include "support/files.h"
#include "support/param_named.h"
#include "support/tiny_model.h"
#include "train/checkpoint.h"

namespace moe::hot_experts_test {
namespace {

using namespace test;

TrainOptions hot_options() {
  TrainOptions o = tiny_options();
  o.tune = Tune::experts_hot;
  o.lora_rank = 3;
  o.lora_alpha = 6;
  o.weight_decay = 0;
  return o;
}

// Every token is embedded along the first axis, and the routers see nothing else, so that each
// layer's experts get the order of `strength` [L][E]; the two strongest get all rows.
std::unique_ptr<Model> model_with_favourites(const std::vector<std::vector<float>>& strength) {
  ModelConfig config = plain_config();
  config.routing =
      default_options(find_recipe("olmoe"), static_cast<int64_t>(strength[0].size()), 2, 2);
  config.routing.coef = {};
  auto model = fresh(config);
  for (Param* p : model->params()) {
    if (p->part == Part::embedding)
      for (int64_t v = 0; v < p->value.rows(); ++v) p->value.row<float>(v)[0] = 50;
    if (p->part != Part::router) continue;
    for (int64_t e = 0; e < p->value.rows(); ++e)
      for (int64_t d = 0; d < p->value.cols(); ++d)
        p->value.row<float>(e)[d] =
            d == 0 ? strength[static_cast<size_t>(p->layer)][static_cast<size_t>(e)] : 0;
    p->touched();
  }
  return model;
}

TEST(HotExperts, AreThoseThatTheTextUses) {
  const Corpus corpus = tiny_corpus();
  auto model = model_with_favourites({{0, 2, -1, 3, -2}, {4, -1, -2, 0, 5}});
  TrainOptions options = hot_options();
  std::vector<std::pair<int64_t, int64_t>> told;
  Watch watch;
  watch.begin = [&]() -> Progress {
    return [&](int64_t done, int64_t total, std::string_view) { told.emplace_back(done, total); };
  };
  const std::vector<HotLayer> half = hot_experts(*model, options, corpus, watch);
  const auto batches = kHotTokens / (options.context * options.batch);
  ASSERT_EQ(std::ssize(told), batches + 1);
  EXPECT_EQ(told.front(), (std::pair<int64_t, int64_t>{0, batches}));
  EXPECT_EQ(told.back(), (std::pair<int64_t, int64_t>{batches, batches}));
  watch.stopped = [&] { return true; };
  EXPECT_FAILS(hot_experts(*model, options, corpus, watch), "interrupted");
  ASSERT_EQ(half.size(), 2u);
  EXPECT_EQ(half[0], (HotLayer{0, {1}, 0.5}));  // as many rows as expert 3, and comes first
  EXPECT_EQ(half[1], (HotLayer{1, {0}, 0.5}));
  options.hot_share = 0.51;
  const std::vector<HotLayer> more = hot_experts(*model, options, corpus);
  EXPECT_EQ(more[0], (HotLayer{0, {1, 3}, 1}));
  EXPECT_EQ(more[1], (HotLayer{1, {0, 4}, 1}));
  options.hot_share = 1;  // experts without a row are never hot
  EXPECT_EQ(hot_experts(*model, options, corpus), more);
}

// The fewest that have the share: without the coldest of them it is not reached.
TEST(HotExperts, AreNoMoreThanTheShareNeeds) {
  const Corpus corpus = tiny_corpus();
  ModelConfig config = plain_config();
  config.routing = default_options(find_recipe("olmoe"), 8, 2, 2);
  auto model = fresh(config);
  size_t before = 0;
  for (const double share : {0.1, 0.3, 0.5, 0.8, 1.0}) {
    TrainOptions options = hot_options();
    options.hot_share = share;
    const std::vector<HotLayer> hot = hot_experts(*model, options, corpus);
    EXPECT_EQ(hot_experts(*model, options, corpus), hot) << "the same again";
    size_t count = 0;
    for (const HotLayer& layer : hot) {
      EXPECT_GE(layer.share, share);
      EXPECT_LE(static_cast<double>(layer.experts.size()), std::ceil(share * 8));
      EXPECT_TRUE(std::is_sorted(layer.experts.begin(), layer.experts.end()));
      count += layer.experts.size();
    }
    EXPECT_GT(count, before);
    before = count;
  }
}

TEST(HotExperts, OnlyTheyMoveAndOnlyTheyHaveAdapters) {
  const Corpus corpus = tiny_corpus();
  auto model = model_with_favourites({{0, 2, -1, 3, -2}, {4, -1, -2, 0, 5}});
  TrainOptions options = hot_options();
  options.hot = {{0, {1}, 0.5}, {1, {0, 4}, 1}};
  std::map<std::string, std::vector<double>> before;
  for (const Param* p : model->params()) before[p->name] = values(p->value);
  Trainer trainer(*model, options, corpus);
  for (int i = 0; i < 3; ++i) EXPECT_GT(trainer.step().grad_norm, 0);
  EXPECT_EQ(trainer.trainable().adapters().size(), 2u * 3);
  for (const auto& adapter : trainer.trainable().adapters()) {
    const int64_t pairs = adapter->base->layer == 0 ? 1 : 2;
    EXPECT_EQ(adapter->base->part, Part::experts);
    EXPECT_EQ(adapter->a.value.shape[0], pairs);
    EXPECT_EQ(adapter->b.value.shape[0], pairs);
    for (int64_t p = 0; p < pairs; ++p) EXPECT_GT(norm(values(adapter->b.expert(p))), 0);
  }
  for (const Param* p : model->params()) EXPECT_EQ(values(p->value), before.at(p->name)) << p->name;
  trainer.leave_adapters();
  merge_terms(*model, 2);
  for (const Param* p : model->params()) {
    if (p->part != Part::experts) {
      EXPECT_EQ(values(p->value), before.at(p->name)) << p->name;
      continue;
    }
    const auto now = values(p->value);
    const size_t size = now.size() / 5;
    for (size_t e = 0; e < 5; ++e) {
      const bool hot = p->layer == 0 ? e == 1 : e == 0 || e == 4;
      const auto at = static_cast<std::ptrdiff_t>(e * size);
      EXPECT_EQ(std::equal(now.begin() + at, now.begin() + at + static_cast<std::ptrdiff_t>(size),
                           before.at(p->name).begin() + at),
                !hot)
          << p->name << " expert " << e;
    }
  }
}

// Where all experts are hot, it is --tune lora without the attention, to the bit; where some are,
// their gradients are those that they have there.
TEST(HotExperts, HaveTheGradientsThatTheyHaveAmongAll) {
  const Corpus corpus = tiny_corpus();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    ModelConfig config = plain_config();
    config.routing = default_options(find_recipe("olmoe"), 5, 2, 2);
    auto all = fresh(config), some = fresh(config);
    TrainOptions options = hot_options();
    options.dtype = dtype;
    options.clip = 0;
    options.hot = {{0, {0, 1, 2, 3, 4}, 1}, {1, {0, 1, 2, 3, 4}, 1}};
    Trainer every(*all, options, corpus);
    options.hot = {{0, {1, 4}, 0.5}, {1, {0, 2, 3}, 0.5}};
    Trainer picked(*some, options, corpus);
    const auto wide = every.trainable().adapters(), narrow = picked.trainable().adapters();
    ASSERT_EQ(wide.size(), narrow.size());
    for (size_t i = 0; i < wide.size(); ++i) {
      const std::vector<int64_t>& hot = narrow[i]->term.experts;
      EXPECT_TRUE(wide[i]->term.experts.empty());
      for (Adapter* adapter : {wide[i].get(), narrow[i].get()}) {
        for (int64_t e = 0; e < 5; ++e) {
          const int64_t pair = adapter->term.pair_of(e);
          if (pair < 0) continue;
          // small, and nothing for the cold ones among all
          const bool is_hot = std::binary_search(hot.begin(), hot.end(), e);
          for (Param* half : {&adapter->a, &adapter->b}) {
            const Tensor t = half->expert(pair);
            for (int64_t j = 0; j < t.numel(); ++j)
              t.as<float>()[j] =
                  is_hot || half == &adapter->a
                      ? 0.1f * normal(RngKey::from_seed(e + 9), static_cast<uint64_t>(j))
                      : 0;
          }
        }
        adapter->a.touched();
        adapter->b.touched();
      }
    }
    const double want = every.step().ce, got = picked.step().ce;
    EXPECT_NEAR(got, want, (dtype == DType::f32 ? 1e-6 : 1e-3) * want);
    for (size_t i = 0; i < wide.size(); ++i)
      for (const auto half : {&Adapter::a, &Adapter::b})
        for (size_t p = 0; p < narrow[i]->term.experts.size(); ++p) {
          const int64_t e = narrow[i]->term.experts[p];
          expect_near(((*narrow[i]).*half).expert_grad(static_cast<int64_t>(p)),
                      values(((*wide[i]).*half).expert_grad(e)),
                      dtype == DType::f32 ? kTwinF32 : kTwinBf16,
                      ((*narrow[i]).*half).name + " of expert " + std::to_string(e));
        }
  }
}

TEST(HotExperts, IsRefusedWhereThereAreNone) {
  const Corpus corpus = tiny_corpus();
  const auto refused = [&](const char* recipe, const std::string& part) {
    ModelConfig config = plain_config();
    config.routing = recipe == std::string("dense") ? default_options(find_recipe(recipe), 0, 0, 0)
                                                    : default_options(find_recipe(recipe), 4, 2, 2);
    auto model = fresh(config);
    EXPECT_FAILS(hot_experts(*model, hot_options(), corpus), part);
  };
  refused("dense", "this model is dense and has no experts");
  refused("expert-choice", "experts choose their tokens");
  auto dense = fresh([] {
    ModelConfig c = plain_config();
    c.routing = default_options(find_recipe("dense"), 0, 0, 0);
    return c;
  }());
  EXPECT_FAILS(Trainable(*dense, hot_options()), "this model is dense and has no experts");
  auto model = fresh(plain_config());
  EXPECT_FAILS(Trainable(*model, hot_options()), "it was not measured which experts are hot");
  TrainOptions options = hot_options();
  const auto other = [&](std::vector<HotLayer> hot) {
    options.hot = std::move(hot);
    EXPECT_FAILS(Trainable(*model, options), "are not of this model");
    for (const Param* p : model->params()) EXPECT_EQ(p->term, nullptr);
  };
  other({{0, {0}, 1}});               // layer 1 is missing
  other({{0, {0}, 1}, {1, {4}, 1}});  // there are four
  other({{0, {0}, 1}, {1, {}, 1}});
  other({{0, {0}, 1}, {1, {2, 1}, 1}});
  options = hot_options();
  options.expert_parallel = 2;
  EXPECT_FAILS(hot_experts(*model, options, corpus), "leave expert_parallel out");
}

// A run of hot experts, on disk.
class HotRun : public testing::Test {
 protected:
  HotRun() {
    auto model = fresh(plain_config());
    save_model(start_, *model, *make_tokenizer("bytes"));
    options_.hot = {{0, {1, 2}, 0.6}, {1, {3}, 0.5}};
  }
  TrainSummary go(Model& model, const std::string& out, int64_t stop_after,
                  const Checkpoint* checkpoint = nullptr) {
    std::atomic<bool> stop = false;
    TrainCallbacks callbacks;
    callbacks.on_step = [&](const StepResult& r) { stop = r.step == stop_after; };
    TrainOptions options = options_;
    if (checkpoint) options.hot.clear();  // it is in the checkpoint
    return train(model, {out, options, &corpus_, nullptr, tokenizer_.get(), nullptr, start_},
                 callbacks, stop, checkpoint);
  }
  void run(const std::string& out, int64_t stop_after = 0) {
    go(*load_model(start_).model, out, stop_after);
  }

  TempFolder folder_;
  std::string start_ = folder_ / "start";
  TrainOptions options_ = hot_options();
  Corpus corpus_ = tiny_corpus();
  std::unique_ptr<Tokenizer> tokenizer_ = make_tokenizer("bytes");
};

TEST_F(HotRun, GoesOnBitForBitWithTheChoiceItBeganWith) {
  const std::string whole = folder_ / "whole", parts = folder_ / "parts";
  run(whole);
  run(parts, 2);
  const Checkpoint checkpoint = load_checkpoint(parts);
  EXPECT_EQ(checkpoint.options.hot, options_.hot);
  EXPECT_EQ(go(*checkpoint.loaded.model, parts, 0, &checkpoint).last.step, 5);
  for (const char* name : {"/adapter_model.safetensors", "/trainer-5.safetensors"}) {
    const Safetensors x = Safetensors::open(whole + name), y = Safetensors::open(parts + name);
    ASSERT_EQ(x.names(), y.names());
    for (const NamedTensor& t : x.tensors())
      EXPECT_TRUE(same_bits(t.value, y.get(t.name))) << t.name;
  }
  TrainOptions other = options_;
  other.hot_share = 0.25;
  EXPECT_FAILS(check_same_options(checkpoint, other), "hot_share was 0.5 and is now 0.25");
}

// The folder names the hot experts only, a reader hangs no more than them, and a GGUF adapter,
// which has all of a bank, comes back as the same.
TEST_F(HotRun, LeavesAnAdapterOfTheHotOnesOnly) {
  const std::string out = folder_ / "out", path = folder_ / "a.gguf";
  run(out);
  const Safetensors file = Safetensors::open(out + "/adapter_model.safetensors");
  EXPECT_EQ(file.tensors().size(), 2u * 3 * 3);
  for (const NamedTensor& t : file.tensors()) {
    const bool hot = t.name.find("layers.0.mlp.experts.1.") != std::string::npos ||
                     t.name.find("layers.0.mlp.experts.2.") != std::string::npos ||
                     t.name.find("layers.1.mlp.experts.3.") != std::string::npos;
    EXPECT_TRUE(hot) << t.name;
  }
  LoadedModel trained = open_model(out, {}), again = open_model(start_, {});
  save_gguf_adapter(path, *trained.model, adapter_on(*trained.model));
  attach_adapter(*again.model, path, 1);
  for (const LoadedModel* loaded : {&trained, &again}) {
    int64_t hung = 0;
    for (const Param* p : loaded->model->params()) {
      if (p->term == nullptr) continue;
      ++hung;
      EXPECT_EQ(p->term->experts,
                p->layer == 0 ? (std::vector<int64_t>{1, 2}) : std::vector<int64_t>{3});
    }
    EXPECT_EQ(hung, 2 * 3);
  }
  EXPECT_GT(largest_term(*trained.model), 0);
  for (size_t i = 0; i < trained.model->params().size(); ++i) {
    const Param *x = trained.model->params()[i], *y = again.model->params()[i];
    if (x->term == nullptr) continue;
    EXPECT_TRUE(same_bits(x->term->a->value, y->term->a->value)) << x->name;
    EXPECT_TRUE(same_bits(x->term->b->value, y->term->b->value)) << x->name;
  }
}

// Saved as one pair for each expert, as every reader wants them, and hung once by ours.
TEST_F(HotRun, ASharedAdapterComesBackAsOne) {
  options_.lora_shared = true;
  options_.hot = {{0, {1, 2}, 0.6}, {1, {0, 3}, 0.5}};
  for (const Tune tune : {Tune::lora, Tune::experts_hot}) {
    SCOPED_TRACE(name_of(tune));
    options_.tune = tune;
    const std::string out = folder_ / std::string(name_of(tune)), path = folder_ / "s.gguf";
    const LoadedModel start = load_model(start_);
    go(*start.model, out, 0);
    LoadedModel folder = open_model(out, {}), file = open_model(start_, {});
    save_gguf_adapter(path, *folder.model, adapter_on(*folder.model));
    attach_adapter(*file.model, path, 1);
    int64_t banks = 0;
    for (size_t i = 0; i < start.model->params().size(); ++i) {
      const Param* p = start.model->params()[i];
      if (p->part != Part::experts) continue;
      ++banks;
      ASSERT_NE(p->term, nullptr) << p->name;
      for (const LoadedModel* loaded : {&folder, &file}) {
        const LowRankTerm* term = loaded->model->params()[i]->term;
        ASSERT_NE(term, nullptr) << p->name;
        EXPECT_EQ(term->experts, p->term->experts);
        // the factor, 6 / 3, is in B there, and changes no bit of it
        EXPECT_TRUE(same_bits(term->a->value, p->term->a->value)) << p->name;
        const auto b = values(term->b->value);
        auto want = values(p->term->b->value);
        for (double& x : want) x *= 2;
        EXPECT_EQ(b, want) << p->name;
      }
    }
    EXPECT_EQ(banks, 2 * 3);
  }
}

}  // namespace
}  // namespace moe::hot_experts_test
