// Prompt lookup: what is guessed, and that a text is the same, token for token, with guesses as
// without.
#include "infer/lookup.h"

#include "infer/generate.h"
#include "support/files.h"
#include "support/routings.h"
#include "support/same_rows.h"
#include "support/tiny_model.h"

namespace moe::test::lookup_test {
namespace {

using Ids = std::vector<int32_t>;

TEST(LookUp, FollowsTheLongestMatchAndOfEqualOnesTheLatest) {
  EXPECT_EQ(look_up(Ids{1, 2, 3, 4, 5, 1, 2, 3}, 8), (Ids{4, 5, 1}))
      << "three agree, so three are guessed";
  EXPECT_EQ(look_up(Ids{1, 2, 3, 4, 5, 1, 2, 3}, 2), (Ids{4, 5}));
  EXPECT_EQ(look_up(Ids{9, 1, 2, 7, 9, 8, 1, 2, 6, 0, 9, 1, 2}, 4), (Ids{7, 9, 8}))
      << "9 1 2 agrees for longer than the later 1 2";
  EXPECT_EQ(look_up(Ids{1, 2, 7, 0, 1, 2, 8, 5, 1, 2}, 4), (Ids{8, 5})) << "the later of two";
  EXPECT_EQ(look_up(Ids{4, 4, 4, 4}, 8), (Ids{4})) << "what follows ends with the text";
}

TEST(LookUp, OneTokenIsNoMatch) {
  EXPECT_EQ(look_up(Ids{1, 2, 3, 2}, 8), Ids{});
  EXPECT_EQ(look_up(Ids{1, 2, 1, 2}, 0), Ids{});
  EXPECT_EQ(look_up(Ids{}, 8), Ids{});
  EXPECT_EQ(look_up(Ids{1}, 8), Ids{});
}

TEST(LookUp, NeverGuessesMoreThanItsLimit) {
  const Ids same(500, 3);
  EXPECT_LE(look_up(same, 1000).size(), static_cast<size_t>(kMostGuesses));
}

struct Fixture {
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("bytes");
  moe::Run run;
  GenerateOptions options;

  explicit Fixture(const RoutingOptions& routing, DType dtype = DType::f32) : run(2, dtype) {
    ModelConfig config = plain_config();
    config.routing = routing;
    config.init.std = 0.3f;
    model = fresh(config);
    options.max_tokens = 90;
    options.sampler.seed = 3;
    if (default_eval(routing) == EvalRouting::threshold)
      options.session.routing = EvalRouting::threshold;
    // Sharp enough that a text comes back to what it said.
    options.sampler.temperature = 0.2f;
  }
  Generated generate(int64_t lookup) {
    options.prompt_lookup = lookup;
    return moe::generate(*model, run, *tokenizer, "the router sends the router sends", options,
                         [](const std::string&) { return true; });
  }
};

TEST(PromptLookup, EveryRecipeWritesTheSameTextWithGuessesAsWithout) {
  if (!ops::products_keep_row_bits(DType::f32))
    GTEST_SKIP() << "rows agree to 1e-5 only, so a draw may differ";
  int64_t accepted = 0, refused = 0, dtypes = 0;
  for (const DType dtype : {DType::f32, DType::bf16})
    dtypes += ops::products_keep_row_bits(dtype) ? 1 : 0;
  for (const RoutingOptions& routing : small_routings(4, 2)) {
    if (!not_causal_because(routing, default_eval(routing)).empty()) continue;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      if (!ops::products_keep_row_bits(dtype)) continue;
      for (const float temperature : {0.0f, 0.2f, 1.0f}) {
        Fixture f(routing, dtype);
        f.options.sampler.temperature = temperature;
        f.options.sampler.repeat_penalty = temperature == 1.0f ? 1.1f : 1.0f;
        const Generated plain = f.generate(0), guessed = f.generate(8);
        EXPECT_EQ(plain.ids, guessed.ids)
            << routing.recipe << " " << name_of(dtype) << " at temperature " << temperature;
        EXPECT_EQ(plain.text, guessed.text);
        EXPECT_EQ(plain.proposed, 0);
        EXPECT_LE(guessed.accepted, guessed.proposed);
        accepted += guessed.accepted;
        refused += guessed.proposed - guessed.accepted;
      }
    }
  }
  EXPECT_GT(accepted, 50 * dtypes) << "right guesses have been met";
  EXPECT_GT(refused, 50 * dtypes) << "and wrong ones, which have to leave no trace";
}

TEST(PromptLookup, EndsWhereTheTextEnds) {
  Fixture f(small_routing("olmoe", 4, 2));
  f.options.sampler.temperature = 0;
  const Generated whole = f.generate(0);
  for (int64_t n = 1; n < 20; ++n) {
    f.options.max_tokens = n;
    const Generated part = f.generate(8);
    EXPECT_EQ(part.tokens, n);
    EXPECT_EQ(part.ids, Ids(whole.ids.begin(), whole.ids.begin() + n));
  }
}

TEST(PromptLookup, ASessionGoesOnFromWhatWasSaid) {
  Fixture f(small_routing("olmoe", 4, 2));
  f.options.sampler.temperature = 0;
  f.options.prompt_lookup = 8;
  Session kept(*f.model, f.run, 400), other(*f.model, f.run, 400);
  std::string said = "the router sends the router sends";
  for (int round = 0; round < 3; ++round) {
    const Generated a = generate(kept, *f.tokenizer, f.tokenizer->encode(said), f.options,
                                 [](const std::string&) { return true; });
    other.truncate(0);
    GenerateOptions plain = f.options;
    plain.prompt_lookup = 0;
    const Generated b = generate(other, *f.tokenizer, f.tokenizer->encode(said), plain,
                                 [](const std::string&) { return true; });
    EXPECT_EQ(a.ids, b.ids) << "round " << round;
    said += "the";
  }
}

}  // namespace
}  // namespace moe::test::lookup_test
