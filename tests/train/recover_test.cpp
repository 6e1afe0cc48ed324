// Runs that train a part of a model: what they leave on disk, that they go on bit for bit, and that
// the adapter merged into the weights they started from is the model they ended with.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "hub/adapter.h"
#include "hub/convert.h"
#include "support/files.h"
#include "support/param_named.h"
#include "support/train_run.h"

namespace moe::recover_test {
namespace {

using namespace test;

// Selection biases move by themselves, whatever is trained.
ModelConfig biased_config(const char* recipe) {
  ModelConfig c = noisy_config();
  c.routing = default_options(find_recipe(recipe), 4, 2, 2);
  return c;
}

// Of the first tokens of a text.
std::vector<double> logits_of(Model& model, const Corpus& corpus) {
  TextBatch text;
  text.add_row(corpus, 0, 32);
  moe::Run run(2);
  const Batch batch{text.ids, text.positions, text.bounds};
  const RoutingSpec spec = eval_spec(model.config().routing);
  ModelSaved saved;
  model.forward(run, {.batch = batch, .routing = &spec}, saved);
  const Tensor out = run.saved.alloc(DType::f32, {32, model.config().vocab});
  model.logits(run, out, saved.hidden);
  return values(out);
}

class Recover : public testing::Test {
 protected:
  TrainRun make(const std::string& out, Tune tune, const char* recipe = "deepseek-v3") {
    const std::string start = folder_ / recipe;
    if (!std::filesystem::exists(start)) {
      auto model = fresh(biased_config(recipe));
      save_model(start, *model, *make_tokenizer("bytes"));
    }
    TrainRun r{start, folder_ / out};
    r.options.tune = tune;
    r.options.lora_rank = 3;
    r.options.accumulate = 2;
    return r;
  }
  TempFolder folder_;
};

TEST_F(Recover, EveryKindGoesOnBitForBit) {
  for (Tune tune : {Tune::router, Tune::lora, Tune::lora_router, Tune::lora_router_norms})
    for (bool taught : {false, true}) {
      SCOPED_TRACE(std::string(name_of(tune)) + (taught ? " with a teacher" : ""));
      const std::string name = std::string(name_of(tune)) + (taught ? "-taught" : "");
      TrainRun whole = make(name + "-whole", tune), parts = make(name + "-parts", tune);
      for (TrainRun* r : {&whole, &parts}) {
        if (taught) r->teacher = fresh(plain_config(), 3);
        r->options.dtype = taught ? DType::bf16 : DType::f32;
      }
      const TrainSummary last = whole.run();
      parts.run(2);
      const TrainSummary resumed = parts.resume();
      EXPECT_EQ(resumed.last.ce, last.last.ce);
      EXPECT_EQ(resumed.last.kl, last.last.kl);
      EXPECT_EQ(resumed.last.kl.has_value(), taught);
      const std::string result =
          tunes_adapters(tune) ? "/adapter_model.safetensors" : "/model.safetensors";
      expect_same_tensors(whole.out + result, parts.out + result);
      expect_same_tensors(whole.out + "/trainer-5.safetensors",
                          parts.out + "/trainer-5.safetensors");
      EXPECT_EQ(std::filesystem::exists(whole.out + "/model.safetensors"), !tunes_adapters(tune));
    }
}

// The bias that balances the load is no parameter and must be in the checkpoint and in the adapter
// all the same.
TEST_F(Recover, ACheckpointKeepsTheSelectionBias) {
  for (const char* recipe : {"deepseek-v3", "carved", "cmoe"})
    for (Tune tune : {Tune::all, Tune::router, Tune::lora_router, Tune::lora_router_norms}) {
      SCOPED_TRACE(std::string(recipe) + " " + std::string(name_of(tune)));
      TrainRun r = make(std::string(recipe) + std::string(name_of(tune)), tune, recipe);
      const LoadedModel start = load_model(r.start);
      r.go(*start.model, 0, nullptr);
      const LoadedModel saved = load_model(r.out);
      for (const char* name : {"layers.0.ffn.router.bias", "layers.1.ffn.router.bias"}) {
        const Param *moved = param_named(*start.model, name),
                    *kept = param_named(*saved.model, name);
        ASSERT_NE(kept, nullptr);
        EXPECT_GT(norm(values(moved->value)), 0);
        EXPECT_TRUE(same_bits(moved->value, kept->value));
      }
      if (tunes_adapters(tune)) {
        const Safetensors adapter = Safetensors::open(r.out + "/adapter_model.safetensors");
        EXPECT_TRUE(same_bits(
            adapter.get("base_model.model.model.layers.1.mlp.gate.e_score_correction_bias"),
            param_named(*saved.model, "layers.1.ffn.router.bias")->value));
      }
    }
}

TEST_F(Recover, TheMergedAdapterIsTheTrainedModel) {
  for (Tune tune : {Tune::lora, Tune::lora_router, Tune::lora_norms, Tune::lora_router_norms}) {
    SCOPED_TRACE(name_of(tune));
    TrainRun r = make(std::string("merge-") + std::string(name_of(tune)), tune);
    r.run();
    LoadedModel start = open_model(r.start, {});
    const AttachedAdapter attached = attach_adapter(*start.model, r.out, 2);
    EXPECT_EQ(attached.matrices,
              2 * (4 + 3 * 4 + (start.model->config().shared_experts > 0 ? 3 : 0)));
    EXPECT_GT(largest_term(*start.model), 0);
    // OUT stands for the model it names, with the adapter on it.
    LoadedModel trained = open_model(r.out, {});
    EXPECT_EQ(trained.metadata.at("step"), "5");
    const auto want = logits_of(*trained.model, r.corpus);
    EXPECT_EQ(logits_of(*start.model, r.corpus), want);
    const std::string out = folder_ / std::string("merged-") + std::string(name_of(tune));
    check_convert_target(r.start, out, start);
    convert_model(start, r.start, out, {.threads = 2});
    const LoadedModel merged = load_model(out), again = load_model(r.out);
    EXPECT_TRUE(same_weights(*merged.model, *again.model));
    EXPECT_LE(relative_error(logits_of(*merged.model, r.corpus), want), 1e-5);
  }
}

// Rows of tokens go on bit for bit, are merged, and belong to no other run.
TEST_F(Recover, TokenRowsGoOnAndAreMerged) {
  for (const bool tied : {false, true}) {
    SCOPED_TRACE(tied);
    ModelConfig config = noisy_config();
    config.tied = tied;
    const std::string start = folder_ / (tied ? "tied" : "untied");
    auto model = fresh(config);
    save_model(start, *model, *make_tokenizer("bytes"));
    const auto make_run = [&](const char* out) {
      TrainRun r{start, folder_ / (std::string(out) + (tied ? "-tied" : ""))};
      r.options.tune = Tune::lora_norms;
      r.options.tune_tokens = {"t", "e"};
      r.options.token_ids = {'e', 't'};
      return r;
    };
    TrainRun whole = make_run("whole"), parts = make_run("parts");
    const TrainSummary last = whole.run();
    parts.run(2);
    // who resumes need not look them up again
    parts.options.token_ids = {};
    EXPECT_EQ(parts.resume().last.ce, last.last.ce);
    for (const char* file : {"/adapter_model.safetensors", "/trainer-5.safetensors"})
      expect_same_tensors(whole.out + file, parts.out + file);

    LoadedModel base = open_model(start, {});
    const AttachedAdapter attached = attach_adapter(*base.model, whole.out, 2);
    EXPECT_EQ(attached.token_rows, tied ? 2 : 4);
    const auto want = logits_of(*base.model, whole.corpus);
    const std::string out = folder_ / (tied ? "merged-tied" : "merged");
    check_convert_target(start, out, base);
    convert_model(base, start, out, {.threads = 2});
    const LoadedModel merged = load_model(out);
    EXPECT_LE(relative_error(logits_of(*merged.model, whole.corpus), want), 1e-5);
    attached.terms->take_off();
    EXPECT_GT(relative_error(logits_of(*base.model, whole.corpus), want), 1e-3);
    attached.terms->hang();
    EXPECT_EQ(logits_of(*base.model, whole.corpus), want);

    TrainRun other = make_run("parts");
    other.options.tune_tokens = {"t"};
    other.options.token_ids = {'t'};
    const Checkpoint checkpoint = load_checkpoint(other.out);
    EXPECT_FAILS(check_same_options(checkpoint, other.options), "tune_tokens was");
  }
}

TEST_F(Recover, WhatChangesTheMathematicsIsNotResumed) {
  TrainRun r = make("out", Tune::lora);
  r.teacher = fresh(plain_config(), 3);
  r.run(2);
  const auto refused = [&](auto&& change, const char* part) {
    TrainRun other = make("out", Tune::lora);
    other.teacher = fresh(plain_config(), 3);
    change(other);
    EXPECT_FAILS(other.resume(), part);
  };
  refused([](TrainRun& o) { o.options.lora_rank = 4; }, "lora_rank was 3 and is now 4");
  refused([](TrainRun& o) { o.options.tune = Tune::router; },
          "tune was \"lora\" and is now \"router\"");
  refused([](TrainRun& o) { o.options.teacher_weight = 0.25; },
          "teacher_weight was 0.5 and is now 0.25");
  refused([](TrainRun& o) { o.teacher = nullptr; },
          "it learns from a teacher; give the same teacher");
  refused([](TrainRun& o) { o.teacher = fresh(plain_config(), 4); },
          "its teacher is another model");
  TrainRun same = make("out", Tune::lora);
  same.teacher = fresh(plain_config(), 3);
  EXPECT_EQ(same.resume().last.step, 5);
}

TEST_F(Recover, MeasuringAStepChangesNothing) {
  for (Tune tune : {Tune::all, Tune::lora, Tune::router}) {
    TrainRun r = make("x", tune);
    const LoadedModel model = load_model(r.start), same = load_model(r.start);
    r.options.minutes = 1;
    const std::atomic<bool> go_on = false, stop = true;
    const auto fitted = [&](double seconds, const std::atomic<bool>& stopped) {
      return fitted_steps(*model.model, r.options, {[] { return 0.0; }, seconds}, r.corpus, nullptr,
                          nullptr, stopped);
    };
    EXPECT_GE(fitted(60, go_on), 10);
    EXPECT_FAILS(fitted(60, stop), "interrupted while it was measured");
    for (size_t i = 0; i < model.model->params().size(); ++i)
      EXPECT_EQ(values(model.model->params()[i]->value), values(same.model->params()[i]->value))
          << model.model->params()[i]->name;
    r.options.minutes = 1e-9;
    EXPECT_EQ(fitted(6e-8, go_on), 2) << "the first tells whether there is time for more";
    // A run after it is the run without it.
    Trainer after(*model.model, r.options, r.corpus), without(*same.model, r.options, r.corpus);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(after.step().ce, without.step().ce);
    EXPECT_TRUE(same_weights(*model.model, *same.model));
  }
}

}  // namespace
}  // namespace moe::recover_test
