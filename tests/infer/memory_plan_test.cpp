// Models larger than memory: what packed copies may take, what a token reads, and the hot set.
#include <algorithm>

#include "infer/memory_plan.h"

#include "hub/hub.h"
#include "infer/session.h"
#include "ops/cpu/gemm/packed.h"
#include "ops/memory.h"
#include "support/files.h"
#include "support/routings.h"
#include "support/tiny_model.h"

namespace moe::test::memory_plan_test {
namespace {

// A model whose matrices are views of memory that it does not own, as one of a mapped file.
std::unique_ptr<Model> bound_like(const Model& model) {
  auto bound = std::make_unique<Model>(model.config(), Storage::bound);
  for (size_t i = 0; i < bound->params().size(); ++i)
    bound->bind(*bound->params()[i], model.params()[i]->value);
  return bound;
}

constexpr int64_t kMiB = int64_t{1} << 20;

int64_t bytes_of_all(const Model& model) {
  int64_t bytes = 0;
  for (const Param* param : model.params()) bytes += param->value.bytes();
  return bytes;
}

// A text that meets every expert, the last layer's too: the logits of all its tokens are wanted.
void read_text(Model& model, DType dtype = DType::f32) {
  moe::Run run(2, dtype);
  // A second chunk meets every expert again, which is packed then.
  const auto count = static_cast<int32_t>(prompt_chunk() + 88);
  Session session(model, run, count);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i) ids.push_back(i * 37 % 256);
  session.prefill(ids, count);
}

ForwardUse use_of(Model& model, int64_t tokens = 16) {
  return {.model = &model, .shape = {.tokens = tokens, .dtype = DType::f32}};
}

MemoryPlan plan_of(const ForwardUse& use, int64_t left, const MemoryNeed& beside = {}) {
  return plan_memory(std::span(&use, 1), beside, {.all = taken_memory() + left, .packed = {}});
}

int64_t part_of(const MemoryNeed& need, std::string_view name) {
  for (const MemoryNeed::Part& part : need.parts)
    if (part.name == name) return part.bytes;
  return 0;
}

TEST(MemoryPlan, SaysWhenTheWeightsDoNotFit) {
  const auto model = fresh(plain_config());
  const auto bound = bound_like(*model);
  MemoryPlan plan = plan_of(use_of(*model), kMiB);
  EXPECT_EQ(plan.weights, 0) << "it owns its numbers";
  EXPECT_FALSE(plan.larger_than_memory());
  plan = plan_of(use_of(*bound), 100 * kMiB);
  EXPECT_EQ(plan.weights, bytes_of_all(*model));
  EXPECT_FALSE(plan.larger_than_memory());
  plan.available = plan.weights - 1;
  EXPECT_TRUE(plan.larger_than_memory());
}

TEST(MemoryPlan, LeavesHalfOfWhatTheRestLeaves) {
  const auto model = fresh(plain_config());
  const auto bound = bound_like(*model);
  ForwardUse use = use_of(*bound);
  use.cache = 3 * kMiB;
  MemoryNeed beside;
  beside.add("text", 2 * kMiB);
  const MemoryPlan plan =
      plan_memory(std::span(&use, 1), beside, {.all = taken_memory() + 1000 * kMiB, .packed = {}});
  const int64_t rest = part_of(plan.need, "activations") + 5 * kMiB;
  EXPECT_NEAR(static_cast<double>(plan.packed), static_cast<double>(1000 * kMiB - rest) / 2, 64e6)
      << "the process itself moves";
  EXPECT_EQ(part_of(plan.need, "packed"), forward_copy_bytes(*bound, DType::f32))
      << "it fits whole";
  EXPECT_GT(part_of(plan.need, "packing"), 0) << "experts that are met first pass through scratch";
  EXPECT_LT(part_of(plan.need, "packing"), part_of(plan.need, "packed"));
  EXPECT_EQ(cache_bytes(model->config(), DType::f32, 10), 2 * 2 * 10 * 32 * 4);
  EXPECT_EQ(cache_bytes(model->config(), DType::q8_0, 10), 2 * 2 * 10 * 34);
}

TEST(MemoryPlan, WhatRunsInTurnHoldsNoMoreThanTheLargest) {
  const auto model = fresh(plain_config());
  const auto bound = bound_like(*model);
  ForwardUse large = use_of(*bound, 32), small = use_of(*bound, 8);
  large.cache = 3 * kMiB;
  const auto need_of = [](std::vector<ForwardUse> uses) {
    return plan_memory(uses, {}, {.all = taken_memory() + 1000 * kMiB, .packed = {}}).need;
  };
  const MemoryNeed alone = need_of({large}), both = need_of({large, small});
  small.in_turn = true;
  const MemoryNeed in_turn = need_of({large, small});
  for (const char* part : {"kernels", "activations", "cache", "packing"}) {
    EXPECT_EQ(part_of(in_turn, part), part_of(alone, part)) << part;
    if (std::string_view(part) != "cache")
      EXPECT_GT(part_of(both, part), part_of(alone, part)) << part;
  }
  EXPECT_EQ(part_of(in_turn, "packed"), 2 * part_of(alone, "packed")) << "copies stay";
}

TEST(MemoryPlan, ATokenReadsTheKeysThatItSees) {
  ModelConfig config = plain_config();
  EXPECT_EQ(context_bytes(config, DType::f32, 9), cache_bytes(config, DType::f32, 10));
  config.attention_window = 4;
  EXPECT_EQ(context_bytes(config, DType::f32, 2), cache_bytes(config, DType::f32, 3));
  EXPECT_EQ(context_bytes(config, DType::f32, 9), cache_bytes(config, DType::f32, 4));
  config.window_layers = {1};
  EXPECT_EQ(2 * context_bytes(config, DType::q8_0, 9),
            cache_bytes(config, DType::q8_0, 10) + cache_bytes(config, DType::q8_0, 4))
      << "one layer of two has a window";
}

TEST(MemoryPlan, CopiesBeyondABudgetPassThroughScratch) {
  const auto model = fresh(plain_config());
  const auto bound = bound_like(*model);
  const ForwardUse use = use_of(*bound);
  const MemoryPlan plan = settle_memory(use, {}, {.all = {}, .packed = 1000}, "");
  EXPECT_EQ(part_of(plan.need, "packed"), 1000);
  EXPECT_GT(part_of(plan.need, "packing"), 0);
  read_text(*bound);
  EXPECT_LE(ops::copies_taken(bound->params()), 1000);
}

// Whoever runs a model and estimates nothing: the copies of all its weights have one limit from the
// start (tests/ops/weights_test.cpp says which).
TEST(MemoryPlan, ABoundModelIsLimitedFromTheStart) {
  const auto model = fresh(plain_config());
  const auto bound = bound_like(*model);
  const auto budget = ops::packed_weight(*bound->params()[0]).budget;
  ASSERT_NE(budget, nullptr);
  for (const Param* param : bound->params())
    EXPECT_EQ(ops::packed_weight(*param).budget, budget) << param->name;
}

// And what a caller may use counts from the moment the file is opened, estimated or not.
TEST(MemoryPlan, AnOpenedModelKeepsToItsLimits) {
  const TempFolder folder;
  save_model(folder / "m", *fresh(plain_config()), *make_tokenizer("bytes"));
  const auto copies = [&](const MemoryLimits& limits) {
    const LoadedModel opened = open_model(folder / "m", limits);
    read_text(*opened.model);
    return ops::copies_taken(opened.model->params());
  };
  const int64_t all = copies({});
  EXPECT_EQ(all, forward_copy_bytes(*open_model(folder / "m", {}).model, DType::f32));
  EXPECT_EQ(copies({.all = {}, .packed = 0}), 0);
  EXPECT_EQ(copies({.all = 1, .packed = {}}), 0) << "the process takes more than that already";
  const int64_t half = copies({.all = {}, .packed = all / 2});
  EXPECT_LE(half, all / 2);
  EXPECT_GT(half, all / 4);
}

// Two models share one budget as their weights do, and weights that a model owns are packed whole
// whatever the budget.
TEST(MemoryPlan, ModelsShareTheBudget) {
  ModelConfig large = plain_config();
  large.layers = 4;
  const auto small = fresh(plain_config()), big = fresh(large);
  const auto small_bound = bound_like(*small), big_bound = bound_like(*big);
  const std::vector<ForwardUse> uses = {use_of(*small_bound), use_of(*big_bound), use_of(*big)};
  const MemoryPlan plan = settle_memory(uses, {}, {.all = {}, .packed = 100000}, "");
  for (Model* model : {small_bound.get(), big_bound.get(), big.get()}) read_text(*model);
  const int64_t of_small = ops::copies_taken(small_bound->params()),
                of_big = ops::copies_taken(big_bound->params());
  EXPECT_LE(of_small + of_big, 100000);
  EXPECT_GT(of_big, of_small);
  EXPECT_GT(of_small, 20000);
  EXPECT_EQ(ops::copies_taken(big->params()), 0);
  EXPECT_EQ(part_of(plan.need, "packed"), 100000 + forward_copy_bytes(*big, DType::f32));
}

TEST(MemoryPlan, RefusesWhatDoesNotFit) {
  const auto model = fresh(plain_config());
  ForwardUse use = use_of(*model);
  use.cache = int64_t{1} << 50;
  EXPECT_FAILS(settle_memory(use, {}, {}, "lower --tokens"), "cache 1024 TiB");
  EXPECT_FAILS(settle_memory(use, {}, {}, "lower --tokens"), "lower --tokens");
}

// What is estimated of the copies is what they take once every expert was met.
TEST(MemoryPlan, EstimatesTheCopies) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto model = fresh(plain_config());
    const auto bound = bound_like(*model);
    read_text(*bound, dtype);
    EXPECT_EQ(ops::copies_taken(bound->params()), forward_copy_bytes(*bound, dtype));
  }
}

// Whatever the copies may take, the bits are the same.
TEST(MemoryPlan, ABudgetOfNothingGivesTheSameBits) {
  const auto model = fresh(plain_config());
  const auto ample = bound_like(*model), scarce = bound_like(*model);
  ops::limit_copies(scarce->params(), 0);
  moe::Run run(2);
  Session a(*ample, run, 40), b(*scarce, run, 40);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 40; ++i) ids.push_back(i * 11 % 256);
  const std::span<const float> x = a.prefill(ids), y = b.prefill(ids);
  EXPECT_TRUE(std::equal(x.begin(), x.end(), y.begin(), y.end()));
}

TEST(DecodeBytes, CountsActiveExpertsAndOneRowOfTheEmbedding) {
  // width 32, 4 experts of 48, K = 2, two layers, vocabulary 256
  ModelConfig config = plain_config();
  const auto untied = fresh(config);
  const int64_t expert = 3 * 32 * 48 * 4;
  EXPECT_EQ(decode_bytes(*untied, 2), bytes_of_all(*untied) - 2 * 2 * expert - 255 * 32 * 4);
  EXPECT_EQ(decode_bytes(*untied, 4), bytes_of_all(*untied) - 255 * 32 * 4);
  config.tied = true;
  const auto tied = fresh(config);
  EXPECT_EQ(decode_bytes(*tied, 2), bytes_of_all(*tied) - 2 * 2 * expert)
      << "the embedding is the head";
}

TEST(HotSet, CountsTheFewestThatTookAShare) {
  const auto model = fresh(plain_config());
  const int64_t expert = 3 * 32 * 48 * 4;
  const HotSet hot = hot_set(*model, {{50, 40, 5, 0}, {1, 1, 1, 2}});
  EXPECT_EQ(hot.experts, 8);
  EXPECT_EQ(hot.bytes, 8 * expert);
  EXPECT_EQ(hot.rows, 100);
  ASSERT_EQ(hot.parts.size(), 3u);
  EXPECT_EQ(hot.parts[0].experts, 1);
  EXPECT_EQ(hot.parts[1].experts, 2);
  EXPECT_EQ(hot.parts[2].experts, 6) << "50 + 40 + 5 + 2 + 1 + 1";
  EXPECT_EQ(hot.parts[2].bytes, 6 * expert);
}

// Of one network, each neuron has its rows of the three matrices.
TEST(HotSet, ANeuronHasItsRows) {
  ModelConfig config = plain_config();
  config.expert_width = 1;
  config.routing = default_options(find_recipe("sketch"), config.dense_width, 20, 2);
  const auto model = fresh(config);
  std::vector<std::vector<int64_t>> rows(2, std::vector<int64_t>(48, 0));
  rows[0][5] = 10;
  const HotSet hot = hot_set(*model, rows);
  EXPECT_EQ(hot.experts, 2 * 48);
  EXPECT_EQ(hot.bytes, 2 * 48 * 3 * 32 * 4);
  EXPECT_EQ(hot.parts[2].experts, 1);
  EXPECT_EQ(hot.parts[2].bytes, 3 * 32 * 4);
}

TEST(HotSet, ModelsThatReadNothingAreNotDense) {
  const HotSet hot = hot_set(*fresh(plain_config()), {});
  EXPECT_EQ(hot.experts, 8);
  EXPECT_EQ(hot.rows, 0);
  EXPECT_EQ(hot.parts[0].experts, 0);
}

TEST(HotSet, ASessionCountsItsRows) {
  const auto model = fresh(plain_config());
  moe::Run run(2);
  Session session(*model, run, 600);
  session.prefill(std::vector<int32_t>(530, 7));
  int64_t rows = 0;
  for (const auto& layer : session.runner().expert_rows())
    for (const int64_t n : layer) rows += n;
  EXPECT_EQ(rows, 530 * 2 + 2);  // of the last layer those of the last token
}

}  // namespace
}  // namespace moe::test::memory_plan_test
