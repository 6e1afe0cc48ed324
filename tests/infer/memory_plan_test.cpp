// Models larger than memory: what packed copies may take, what a token reads, and the hot set.
#include "infer/memory_plan.h"

#include "infer/session.h"
#include "support/files.h"
#include "support/routings.h"
#include "support/tiny_model.h"

namespace moe::test {
namespace {

// A model whose matrices are views of memory that it does not own, as one of a mapped file.
std::unique_ptr<Model> bound_like(const Model& model) {
  auto bound = std::make_unique<Model>(model.config(), Storage::bound);
  for (size_t i = 0; i < bound->params().size(); ++i) bound->bind(*bound->params()[i], model.params()[i]->value);
  return bound;
}

int64_t bytes_of_all(const Model& model) {
  int64_t bytes = 0;
  for (const Param* param : model.params()) bytes += param->value.bytes();
  return bytes;
}

TEST(MemoryPlan, SaysWhenTheWeightsDoNotFit) {
  const auto model = fresh(plain_config());
  const auto bound = bound_like(*model);
  const int64_t all = bytes_of_all(*model);
  EXPECT_EQ(plan_memory(*model, all - 1, 0).weights, 0) << "it owns its numbers";
  EXPECT_FALSE(plan_memory(*model, all - 1, 0).larger_than_memory());
  EXPECT_EQ(plan_memory(*bound, all, 0).weights, all);
  EXPECT_FALSE(plan_memory(*bound, all, 0).larger_than_memory());
  EXPECT_TRUE(plan_memory(*bound, all - 1, 0).larger_than_memory());
}

TEST(MemoryPlan, LeavesHalfOfWhatTheCacheLeaves) {
  const auto model = fresh(plain_config());
  EXPECT_EQ(plan_memory(*model, 1000, 200).packed, 400);
  EXPECT_EQ(plan_memory(*model, 1000, 2000).packed, 0);
  EXPECT_EQ(cache_bytes(model->config(), DType::f32, 10), 2 * 2 * 10 * 32 * 4);
  EXPECT_EQ(cache_bytes(model->config(), DType::q8_0, 10), 2 * 2 * 10 * 34);
}

// Whatever the copies may take, the bits are the same.
TEST(MemoryPlan, ABudgetOfNothingGivesTheSameBits) {
  const auto model = fresh(plain_config());
  const auto ample = bound_like(*model), scarce = bound_like(*model);
  scarce->pack_budget().limit = 0;
  moe::Run run(2);
  Session a(*ample, run, 40), b(*scarce, run, 40);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 40; ++i) ids.push_back(i * 11 % 256);
  const std::span<const float> x = a.feed(ids), y = b.feed(ids);
  EXPECT_TRUE(std::equal(x.begin(), x.end(), y.begin(), y.end()));
}

TEST(DecodeBytes, CountsActiveExpertsAndOneRowOfTheEmbedding) {
  ModelConfig config = plain_config();  // width 32, 4 experts of 48, K = 2, two layers, vocabulary 256
  const auto untied = fresh(config);
  const int64_t expert = 3 * 32 * 48 * 4;
  EXPECT_EQ(decode_bytes(*untied, 2), bytes_of_all(*untied) - 2 * 2 * expert - 255 * 32 * 4);
  EXPECT_EQ(decode_bytes(*untied, 4), bytes_of_all(*untied) - 255 * 32 * 4);
  config.tied = true;
  const auto tied = fresh(config);
  EXPECT_EQ(decode_bytes(*tied, 2), bytes_of_all(*tied) - 2 * 2 * expert) << "the embedding is the head";
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

TEST(HotSet, ASessionCountsItsRows) {
  const auto model = fresh(plain_config());
  moe::Run run(2);
  Session session(*model, run, 600);
  session.feed(std::vector<int32_t>(530, 7));
  int64_t rows = 0;
  for (const auto& layer : session.expert_rows())
    for (const int64_t n : layer) rows += n;
  EXPECT_EQ(rows, 530 * 2 * 2);
}

}  // namespace
}  // namespace moe::test
