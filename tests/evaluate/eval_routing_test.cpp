// How many experts a token takes in an evaluation, and in which dtype products compute when nobody
// says.
#include "infer/eval_routing.h"

#include <numeric>
#include <set>

#include "evaluate/score.h"
#include "infer/session.h"
#include "support/files.h"
#include "support/routings.h"
#include "support/same_rows.h"
#include "support/tiny_model.h"

namespace moe::test::eval_routing_test {
namespace {

struct Fixture {
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("bytes");
  moe::Run run{2};
  std::vector<int32_t> ids;

  explicit Fixture(const RoutingOptions& routing) {
    ModelConfig config = plain_config();
    config.routing = routing;
    config.init.std = 0.3f;
    model = fresh(config);
    for (int32_t i = 0; i < 64; ++i) ids.push_back(i * 41 % 256);
  }
  // Loss, and pairs that were sent to an expert in each window of each layer.
  std::pair<Score, std::vector<int64_t>> score(int64_t k) {
    std::vector<int64_t> pairs;
    ScoreOptions options{.window = 32, .per_token = true, .top_k_experts = k};
    options.on_routing = [&](int64_t, int64_t, const MoeLayer::Saved& saved) {
      pairs.push_back(saved.plan.rows());
    };
    return {moe::score(*model, run, *tokenizer, ids, options), pairs};
  }
  std::vector<float> logits(int64_t k) {
    Session session(*model, run, 64, {.top_k_experts = k});
    const std::span<const float> out = session.prefill(ids);
    return {out.begin(), out.end()};
  }
};

TEST(TopKExperts, TheModelsOwnNumberGivesTheSameBits) {
  for (const char* recipe : {"olmoe", "mixtral", "deepseek-v3", "switch", "hash"}) {
    Fixture f(small_routing(recipe, 4, 2));
    const int64_t own = f.model->config().routing.top_k;
    EXPECT_EQ(f.score(own).first.logprobs, f.score(0).first.logprobs) << recipe;
    EXPECT_TRUE(same_rows(f.logits(own), f.logits(0))) << recipe;
  }
}

TEST(TopKExperts, TheRecordShowsAsManyAsWereAskedFor) {
  Fixture f(small_routing("olmoe", 4, 2));
  std::set<double> losses;
  for (int64_t k = 1; k <= 4; ++k) {
    const auto [score, pairs] = f.score(k);
    EXPECT_EQ(pairs, std::vector<int64_t>(4, 32 * k)) << "two windows of two layers";
    losses.insert(score.nats_per_token);
  }
  EXPECT_EQ(losses.size(), 4u) << "each number is another model";
}

// The chosen weights of these add up to the same whatever K is, or do not.
TEST(TopKExperts, WeightsFollowTheRecipesOwnStage) {
  const auto sums = [](const char* recipe, int64_t k) {
    Fixture f(small_routing(recipe, 4, 2));
    std::vector<float> sum;
    ScoreOptions options{.window = 32, .top_k_experts = k};
    options.on_routing = [&](int64_t, int64_t, const MoeLayer::Saved& saved) {
      const Tensor& w = saved.router.weights;
      for (int64_t n = 0; n < w.rows(); ++n)
        sum.push_back(std::accumulate(w.row<float>(n), w.row<float>(n) + w.cols(), 0.0f));
    };
    moe::score(*f.model, f.run, *f.tokenizer, f.ids, options);
    return sum;
  };
  for (const int64_t k : {1, 2, 3})
    for (const float sum : sums("mixtral", k)) EXPECT_NEAR(sum, 1, 1e-5) << "renormalised";
  for (const float sum : sums("olmoe", 1)) EXPECT_LT(sum, 0.999f) << "raw probabilities";
}

TEST(TopKExperts, RefusesWhatHasNoMeaning) {
  Fixture f(small_routing("olmoe", 4, 2));
  for (const int64_t k : {-1, 5}) EXPECT_FAILS(f.logits(k), "1 to 4");
  Fixture experts_choose(small_routing("expert-choice", 4, 2));
  EXPECT_FAILS(experts_choose.score(2), "experts that choose");
  Fixture grouped(small_routing("deepseek-v3", 8, 2));
  EXPECT_FAILS(grouped.logits(8), "groups");
  ModelConfig dense = plain_config();
  dense.routing = default_options(find_recipe("dense"), 1, 1, 0);
  EXPECT_FAILS(evaluation_spec(dense, {}, 1), "dense");
  EXPECT_FAILS(evaluation_spec(dense, EvalRouting::dropless, 0), "routing is dropless, but");
  EXPECT_EQ(evaluation_spec(dense, {}, 0).experts, 0);
}

TEST(NaturalDtype, FollowsMostOfTheNumbers) {
  Fixture f(small_routing("olmoe", 4, 2));
  EXPECT_EQ(natural_dtype(*f.model), DType::f32);
  Model bound(f.model->config(), Storage::bound);
  for (Param* param : bound.params())
    param->value.dtype = param->is_matrix() ? DType::bf16 : DType::f32;
  EXPECT_EQ(natural_dtype(bound), ops::has_bf16_products() ? DType::bf16 : DType::f32);
  for (Param* param : bound.params())
    if (param->value.rank == 3) param->value.dtype = DType::q8_0;
  EXPECT_EQ(natural_dtype(bound), DType::f32) << "quantised experts are most of it";
}

}  // namespace
}  // namespace moe::test::eval_routing_test
