// A draft model as verbs open it: what is estimated of its memory, what is told and refused.
#include "jobs/drafting.h"

#include "support/files.h"
#include "support/tiny_model.h"

namespace moe::test::drafting_test {
namespace {

class DraftingTest : public ::testing::Test {
 protected:
  DraftingTest() {
    for (const char* name : {"writer", "draft"}) {
      ModelConfig config = plain_config();
      config.context = name == std::string("writer") ? 512 : 128;
      save_model(folder_ / name, *fresh(config, 1), *make_tokenizer("bytes"));
    }
    options_.model = folder_ / "draft";
    options_.min_p = 0;
    compute_ = {.dtype = DType::f32, .threads = 2};
    watch_.tell = [this](const std::string& line) { told_ += line; };
  }

  TempFolder folder_;
  DraftOptions options_;
  ComputeOptions compute_;
  Watch watch_;
  std::string told_;
};

TEST_F(DraftingTest, IsEstimatedBesideTheModel) {
  const LoadedModel writer = open_model(folder_ / "writer", {});
  const Drafting whole(options_, writer, {}, compute_, 100, {}, watch_);
  EXPECT_EQ(told_, "");
  EXPECT_EQ(whole.use(40).cache, cache_bytes(plain_config(), DType::f32, 100));
  EXPECT_EQ(whole.use(40).shape.tokens, 40);
  const Drafting cut(options_, writer, {.cache_dtype = DType::bf16}, compute_, 300, {}, watch_);
  EXPECT_EQ(cut.use(300).cache, cache_bytes(plain_config(), DType::bf16, 128));
  EXPECT_EQ(cut.use(300).shape.tokens, 128);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "made for 128 tokens", told_);

  const std::vector<ForwardUse> alone = {session_use(*writer.model, {}, DType::f32, 40, 100)};
  std::vector<ForwardUse> both = alone;
  both.push_back(whole.use(40));
  EXPECT_GT(plan_memory(both, {}, {}).need.total(), plan_memory(alone, {}, {}).need.total());
}

// A server's: no more than its texts can fill, nor than the model's own cache.
TEST_F(DraftingTest, IsEstimatedForManyTexts) {
  const LoadedModel writer = open_model(folder_ / "writer", {});
  Drafting drafting(options_, writer, {}, compute_, 100, {}, watch_);
  const int64_t token = cache_bytes(plain_config(), DType::f32, 1);
  EXPECT_EQ(drafting.token_bytes(), token);
  EXPECT_EQ(drafting.shared_use(0).cache, 0);
  EXPECT_EQ(drafting.shared_use(130).cache, 192 * token) << "in whole blocks";
  EXPECT_EQ(drafting.shared_use(100000).cache, SharedDraft::kTexts * 128 * token);
  EXPECT_EQ(drafting.start_shared(130).computed(), 0);
}

TEST_F(DraftingTest, GuessesOnceItHasStarted) {
  const LoadedModel writer = open_model(folder_ / "writer", {});
  Drafting drafting(options_, writer, {}, compute_, 100, {}, watch_);
  moe::Run run(2);
  GenerateOptions options{.max_tokens = 20};
  const auto write = [&] {
    return generate(*writer.model, run, *writer.tokenizer, "the router", options,
                    [](const std::string&) { return true; });
  };
  const Generated plain = write();
  tell_guesses(options, plain, watch_);
  EXPECT_EQ(told_, "") << "nobody guessed";
  options.guesser = &drafting.start();
  const Generated guessed = write();
  EXPECT_GT(guessed.proposed, 0);
  if (ops::products_keep_row_bits(DType::f32)) EXPECT_EQ(guessed.ids, plain.ids);
  tell_guesses(options, guessed, watch_);
  EXPECT_PRED_FORMAT2(
      ::testing::IsSubstring,
      fmt::format("draft: {} of {} guessed tokens were right", guessed.accepted, guessed.proposed),
      told_);
}

TEST_F(DraftingTest, RefusesOptionsThatDoNotGoTogether) {
  Given given;
  EXPECT_NO_THROW(check_draft_options({}, {.prompt_lookup = 4}, given));
  EXPECT_NO_THROW(check_draft_options(options_, {}, given));
  EXPECT_FAILS(check_draft_options(options_, {.prompt_lookup = 4}, given), "give one of them");
  EXPECT_NO_THROW(check_one_guesser({}, {.prompt_lookup = 4}));
  EXPECT_FAILS(check_one_guesser(options_, {.prompt_lookup = 4}), "give one of them");
  given.add("draft_tokens", GivenBy::caller);
  EXPECT_NO_THROW(check_draft_options(options_, {}, given));
  EXPECT_FAILS(check_draft_options({}, {}, given), "draft_tokens is of a draft model");
  EXPECT_FAILS(check_draft_options({}, given), "draft_tokens is of a draft model");
  EXPECT_FAILS(check_draft_options({.model = {}, .tokens = 0}, {}, given), "draft_tokens is 0");
}

}  // namespace
}  // namespace moe::test::drafting_test
