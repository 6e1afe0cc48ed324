// Training on documents: nothing reaches across their bounds, masked tokens are not learned from,
// and the loss is a mean over what is predicted however the step is cut.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "formats/safetensors.h"
#include "support/files.h"
#include "support/model_check.h"
#include "support/routings.h"
#include "support/tiny_model.h"
#include "text/tokenize.h"
#include "train/checkpoint.h"

namespace moe::documents_test {
namespace {

using namespace test;

std::vector<int32_t> tiny_ids(int64_t words = 600) {
  const Corpus corpus = tiny_corpus(words);
  std::vector<int32_t> ids(static_cast<size_t>(corpus.size()));
  corpus.fill(0, corpus.size(), ids.data());
  return ids;
}

// Documents of 1 to 40 tokens, and every third of them learned from in its second half only.
Corpus cut_corpus(bool masked = true) {
  std::vector<int32_t> ids = tiny_ids();
  std::vector<uint32_t> ends;
  std::vector<TokenSpan> untrained;
  const auto all = static_cast<uint32_t>(ids.size());
  for (uint32_t at = 0, i = 0; at < all; ++i) {
    const uint32_t end =
        std::min(all, at + 1 + static_cast<uint32_t>(uniform_index(RngKey::from_seed(3), i, 40)));
    if (masked && i % 3 == 0 && (end - at) / 2 > 0) untrained.push_back({at, at + (end - at) / 2});
    ends.push_back(end);
    at = end;
  }
  return Corpus(std::move(ids), std::move(ends), std::move(untrained));
}

TrainOptions one_step(int64_t batch, int64_t accumulate) {
  TrainOptions o = tiny_options();
  o.batch = batch;
  o.accumulate = accumulate;
  o.steps = 1;
  o.warmup = 0;
  o.clip = 0;
  o.threads = 1;
  return o;
}

// Losses of each token of one row under a model, with the routing of training but no randomness.
std::vector<float> losses(Model& model, const Corpus& corpus, int64_t context) {
  moe::Run run(1);
  TextBatch text;
  text.add_row(corpus, 0, context);
  const Batch batch{text.ids, text.positions, text.bounds};
  const bool routed = model.config().moe_layer_count() > 0;
  const RoutingSpec spec = routed ? eval_spec(model.config().routing) : RoutingSpec{};
  ModelSaved saved;
  model.forward(run, {.batch = batch, .routing = &spec}, saved);
  Tensor nll = run.saved.alloc(DType::f32, {context});
  model.loss_forward(run, nll, text.targets, saved);
  return {nll.as<float>(), nll.as<float>() + context};
}

TEST(TrainDocuments, NothingReachesAcrossABound) {
  std::vector<int32_t> ids = tiny_ids(40);
  ids.resize(33);
  auto model = fresh(plain_config());
  const Corpus before(ids, {13, 33});
  const std::vector<float> first = losses(*model, before, 32);
  EXPECT_EQ(first[12], 0) << "the last token of a document predicts nothing";
  EXPECT_GT(first[11], 0);
  EXPECT_GT(first[13], 0);
  ids[4] ^= 1;
  const std::vector<float> second = losses(*model, Corpus(ids, {13, 33}), 32);
  EXPECT_NE(first[6], second[6]) << "inside the document the change is seen";
  for (size_t n = 13; n < 32; ++n) EXPECT_EQ(first[n], second[n]) << n;
  // Without the bound it is seen behind it, or this proves nothing.
  const std::vector<float> whole = losses(*model, Corpus(ids), 32);
  EXPECT_NE(whole[20], second[20]);
  // And a document that stands alone has the same bits.
  const std::vector<int32_t> alone(ids.begin() + 13, ids.end());
  const std::vector<float> third = losses(*model, Corpus(alone), 19);
  for (size_t n = 0; n < 19; ++n) EXPECT_EQ(third[n], second[n + 13]) << n;
}

// Of every trained parameter: after one step m = (1 - beta1) * gradient.
std::vector<std::vector<double>> first_gradient(const ModelConfig& config, const Corpus& corpus,
                                                const TrainOptions& options,
                                                StepResult* result = nullptr) {
  auto model = fresh(config);
  Trainer trainer(*model, options, corpus);
  const StepResult r = trainer.step();
  if (result) *result = r;
  std::vector<std::vector<double>> all;
  for (size_t i = 0; i < trainer.optimizer().params().size(); ++i)
    all.push_back(values(trainer.optimizer().m(i)));
  return all;
}

// Against the transcription of the whole model in double.
TEST(TrainDocuments, TheMaskedGradientIsThatOfTheTwin) {
  ModelConfig config = small();
  config.routing = default_options(find_recipe("olmoe"), 4, 2, 2);
  weigh_losses(config.routing);
  std::vector<int32_t> ids;
  for (uint64_t i = 0; i < 17; ++i)
    ids.push_back(static_cast<int32_t>(uniform_index(RngKey::from_seed(8), i, 9)));
  const Corpus corpus(ids, {3, 4, 10, 17}, {{5, 7}, {12, 13}});
  TrainOptions options = one_step(2, 1);
  options.context = 8;
  const BatchPlan plan(corpus.size(), {8, 2, 1}, options.shuffle, options.seed);
  TextBatch text;
  plan.fill(corpus, 0, 0, text);
  ASSERT_GE(text.bounds.size(), 5u);
  ASSERT_LT(text.predicted, 12);
  const TwinInput in{text.ids, text.positions, text.targets, text.bounds, {}, {}};
  const RoutingSpec spec = train_spec(config.routing);
  Model model(config);
  for (uint64_t seed = 1;; ++seed) {
    ASSERT_LT(seed, 1000u);
    draw_params(model, seed);
    const auto drawn = twin_params<double>(model);
    if (TwinModel<double>(config, spec, drawn).run(in, config.routing.coef).smallest_margin >= 1e-3)
      break;
  }
  model.enable_grads();
  const auto want = twin_gradients(model, spec, in);
  const auto params = twin_params<double>(model);
  const TwinOutput<double> twin =
      TwinModel<double>(config, spec, params).run(in, config.routing.coef);
  Trainer trainer(model, options, corpus);
  const StepResult r = trainer.step();
  EXPECT_EQ(r.predicted, text.predicted);
  EXPECT_NEAR(r.ce, twin.ce, kTwinF32 * twin.ce);
  for (size_t i = 0; i < trainer.optimizer().params().size(); ++i) {
    const Param& p = *trainer.optimizer().params()[i];
    std::vector<double> gradient = values(trainer.optimizer().m(i));
    for (double& x : gradient) x /= 1 - options.beta1;
    expect_near(gradient, want.at(p.name), kTwinF32, p.name);
  }
}

TEST(TrainDocuments, MicroBatchesOfUnequalTargetsAreOneBatch) {
  const Corpus corpus = cut_corpus();
  StepResult whole, split;
  const auto one = first_gradient(plain_config(), corpus, one_step(4, 1), &whole),
             four = first_gradient(plain_config(), corpus, one_step(1, 4), &split);
  const BatchPlan plan(corpus.size(), {32, 1, 4}, Shuffle::epoch, 1);
  TextBatch text;
  std::vector<int64_t> counts;
  for (int64_t a = 0; a < 4; ++a) {
    plan.fill(corpus, 0, a, text);
    counts.push_back(text.predicted);
  }
  EXPECT_NE(*std::min_element(counts.begin(), counts.end()),
            *std::max_element(counts.begin(), counts.end()))
      << "or this proves nothing";
  EXPECT_EQ(whole.predicted, counts[0] + counts[1] + counts[2] + counts[3]);
  EXPECT_EQ(split.predicted, whole.predicted);
  EXPECT_LT(whole.predicted, 128);
  EXPECT_EQ(whole.tokens, 128);
  EXPECT_NEAR(whole.ce, split.ce, 1e-6);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_LE(relative_error(four[i], one[i]), 2e-6) << i;
  // Short documents cost less attention.
  StepResult uncut;
  first_gradient(plain_config(), tiny_corpus(), one_step(4, 1), &uncut);
  EXPECT_LT(whole.flops, uncut.flops);
}

TEST(TrainDocuments, EveryRecipeTrainsOnThem) {
  const Corpus corpus = cut_corpus();
  for (const RoutingOptions& routing : small_routings(8, 2)) {
    SCOPED_TRACE(routing.recipe);
    ModelConfig config = noisy_config();
    config.routing = routing;
    TrainOptions options = one_step(2, 2);
    options.steps = 12;
    auto model = fresh(config);
    Trainer trainer(*model, options, corpus);
    const double start = trainer.step().ce;
    StepResult last;
    for (int i = 1; i < 12; ++i) last = trainer.step();
    EXPECT_LT(last.ce, start);
    EXPECT_TRUE(std::isfinite(trainer.evaluate(corpus)));
  }
}

// A step, and a text, in which nothing is to be predicted.
TEST(TrainDocuments, NothingToPredictDividesByNothing) {
  std::vector<int32_t> ids = tiny_ids();
  const auto all = static_cast<uint32_t>(ids.size());
  const Corpus corpus(ids, {all}, {{0, all}});
  auto model = fresh(noisy_config());
  Trainer trainer(*model, tiny_options(), corpus);
  const StepResult r = trainer.step();
  EXPECT_EQ(r.predicted, 0);
  EXPECT_TRUE(std::isnan(r.ce));
  EXPECT_TRUE(std::isfinite(r.grad_norm));
  for (const Param* p : model->params())
    for (const double x : values(p->value)) ASSERT_TRUE(std::isfinite(x)) << p->name;
  EXPECT_FAILS(trainer.evaluate(corpus), "is to be predicted");
}

TEST(TrainDocuments, EvaluationIsTheMeanOverWhatIsPredicted) {
  const Corpus corpus = cut_corpus();
  auto model = fresh(plain_config());
  TrainOptions options = one_step(3, 1);
  options.eval_tokens = 0;
  Trainer trainer(*model, options, corpus);
  double sum = 0;
  int64_t predicted = 0;
  for (int64_t start = 0; start + 33 <= corpus.size(); start += 32) {
    TextBatch text;
    text.add_row(corpus, start, 32);
    std::vector<int32_t> ids(33);
    corpus.fill(start, 33, ids.data());
    for (size_t s = 0; s + 1 < text.bounds.size(); ++s) {
      const auto begin = text.bounds[s], end = text.bounds[s + 1];
      // Each sequence on its own.
      const std::vector<int32_t> own(ids.begin() + begin, ids.begin() + end + 1);
      const std::vector<float> nll = losses(*model, Corpus(own), end - begin);
      for (int64_t n = begin; n < end; ++n)
        if (text.targets[static_cast<size_t>(n)] != kNoTarget)
          sum += nll[static_cast<size_t>(n - begin)];
    }
    predicted += text.predicted;
  }
  EXPECT_NEAR(trainer.evaluate(corpus), sum / static_cast<double>(predicted), 1e-6);
}

class FromFiles : public ::testing::Test {
 protected:
  FromFiles() {
    const auto text = [](uint64_t seed) {
      std::string out;
      for (uint64_t i = 0; i < 900; ++i)
        out += std::string(1 + uniform_index(RngKey::from_seed(seed), i, 5),
                           static_cast<char>('a' + i % 7)) +
               "\n";
      return out;
    };
    put(folder_ / "in/one.txt", text(1));
    put(folder_ / "in/two.txt", text(2));
    std::string lines;
    for (int i = 0; i < 60; ++i)
      lines +=
          R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello )" +
          std::to_string(i) + "\"}]}\n";
    put(folder_ / "in/talk.jsonl", lines);
    tokenize({.paths = {folder_ / "in"}, .out = folder_ / "tokens", .shard_tokens = 4000}, *bytes_,
             {});
    options_ = tiny_options();
    options_.mix = {{"talk", 2}, {"two", 0.5}};
    options_.accumulate = 2;
  }
  void run(const std::string& out, const Corpus& corpus, int64_t stop_after) {
    std::optional<Checkpoint> checkpoint;
    if (holds_model(out)) checkpoint = load_checkpoint(out);
    std::unique_ptr<Model> model = checkpoint ? nullptr : fresh(noisy_config());
    std::atomic<bool> stop = false;
    TrainCallbacks callbacks;
    callbacks.on_step = [&](const StepResult& r) { stop = r.step == stop_after; };
    const TrainJob job{out, options_, &corpus, nullptr, bytes_.get()};
    train(checkpoint ? *checkpoint->loaded.model : *model, job, callbacks, stop,
          checkpoint ? &*checkpoint : nullptr);
  }
  TempFolder folder_;
  std::unique_ptr<Tokenizer> bytes_ = make_tokenizer("bytes");
  TrainOptions options_;
};

TEST_F(FromFiles, ResumingFromShardsIsBitExactAndEqualsTheText) {
  const Corpus shards({folder_ / "tokens"}, *bytes_), text({folder_ / "in"}, *bytes_);
  run(folder_ / "whole", text, 0);
  run(folder_ / "parts", shards, 2);
  EXPECT_EQ(load_checkpoint(folder_ / "parts").step, 2);
  run(folder_ / "parts", shards, 0);
  const Safetensors a = Safetensors::open(folder_ / "whole/model.safetensors"),
                    b = Safetensors::open(folder_ / "parts/model.safetensors");
  for (const NamedTensor& t : a.tensors()) EXPECT_TRUE(same_bits(t.value, b.get(t.name))) << t.name;
}

TEST_F(FromFiles, AResumedRunMustReadTheSame) {
  const Corpus corpus({folder_ / "in"}, *bytes_);
  run(folder_ / "out", corpus, 2);
  const auto resume = [&](const Corpus& with) { run(folder_ / "out", with, 0); };
  const TrainOptions same = options_;
  options_.mix["talk"] = 3;
  EXPECT_FAILS(resume(corpus),
               R"(mix was {"talk":2.0,"two":0.5} and is now {"talk":3.0,"two":0.5})");
  options_ = same;
  options_.hold_out = 0.1;
  EXPECT_FAILS(resume(corpus), "hold_out was 0.0 and is now 0.1");
  options_ = same;
  // The same tokens in other documents, with other masks, and in other domains.
  std::vector<int32_t> ids(static_cast<size_t>(corpus.size()));
  corpus.fill(0, corpus.size(), ids.data());
  std::vector<uint32_t> ends;
  for (int64_t at = 0; at < corpus.size(); at = corpus.document_end(at))
    ends.push_back(static_cast<uint32_t>(corpus.document_end(at)));
  std::vector<uint8_t> trained(ids.size());
  corpus.fill_trained(0, corpus.size(), trained.data());
  std::vector<TokenSpan> untrained;
  for (uint32_t i = 0; i < trained.size(); ++i)
    if (trained[i] == 0) untrained.push_back({i, i + 1});
  const Checkpoint checkpoint = load_checkpoint(folder_ / "out");
  const auto differs = [&](const Corpus& with) {
    return data_print(with).hash != data_print(corpus).hash;
  };
  EXPECT_FALSE(differs(Corpus(ids, ends, untrained))) << "or the rest proves nothing";
  std::vector<uint32_t> moved = ends;
  ++moved[moved.size() / 2];
  EXPECT_TRUE(differs(Corpus(ids, moved, untrained)));
  untrained.pop_back();
  EXPECT_TRUE(differs(Corpus(ids, ends, untrained)));
  std::filesystem::rename(folder_ / "in/one.txt", folder_ / "in/on.txt");
  const Corpus renamed({folder_ / "in"}, *bytes_);
  EXPECT_EQ(data_print(renamed).hash, data_print(corpus).hash)
      << "without a mix names mean nothing";
  EXPECT_NE(data_print(renamed, options_.mix).hash, data_print(corpus, options_.mix).hash);
  EXPECT_FAILS(resume(renamed), "different ones");
  std::filesystem::rename(folder_ / "in/on.txt", folder_ / "in/one.txt");
  EXPECT_NO_THROW(resume(corpus));
}

}  // namespace
}  // namespace moe::documents_test
