// One draft for the texts of a batcher: each is what it is without, whatever is guessed and however
// many are under way, what the draft cannot follow goes on without it, and only few are guessed
// for.
#include "infer/shared_draft.h"

#include <atomic>
#include <new>

#include "infer/batcher.h"
#include "support/tiny_model.h"
#include "text/grammar/json_schema.h"

namespace moe::test::shared_draft_test {
namespace {

using Ids = std::vector<int32_t>;

constexpr int64_t kContext = 1200, kCache = 6000;
// Random models are never sure.
const DraftOptions kAlways = {.model = {}, .tokens = 8, .min_p = 0};

ModelConfig config_of(int64_t context = kContext) {
  ModelConfig config = plain_config();
  config.context = context;
  config.init.std = 0.3f;  // logits far enough apart that texts differ
  return config;
}

Ids some_ids(int64_t count, uint64_t seed) {
  Ids ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>(
        uniform_index(RngKey::from_seed(seed), static_cast<uint64_t>(i), 256)));
  return ids;
}

struct Outcome {
  TextProgress all;
  Generated end;
  bool ended = false;
};

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

class SharedDraftTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!ops::products_keep_row_bits(DType::f32))
      GTEST_SKIP() << "rows agree to 1e-5 only, so a draw may differ";
  }

  TextRequest request(Ids prompt, uint64_t seed, float temperature = 1) const {
    TextRequest r;
    r.prompt = std::move(prompt);
    r.options.max_tokens = 40;
    r.options.sampler.seed = seed;
    r.options.sampler.temperature = temperature;
    return r;
  }
  // One of each kind that a server is asked for.
  std::vector<TextRequest> mixed() const {
    std::vector<TextRequest> all;
    for (uint64_t i = 0; i < 9; ++i)
      all.push_back(request(some_ids(i % 3 == 0 ? 700 : 5 + static_cast<int64_t>(i) * 20, i), i,
                            i % 2 == 0 ? 1.0f : 0.0f));
    all[0].routing = true;
    all[1].top_logprobs = 2;
    all[2].routing = true;
    all[2].top_logprobs = 0;
    all[2].prompt_logprobs = true;
    all[3].options.sampler.repeat_penalty = 1.2f;
    all[3].options.sampler.frequency_penalty = 0.4f;
    all[4].grammar = grammar::json_schema_grammar(
        R"({"type": "array", "items": {"type": "integer"}, "minItems": 9})", "schema");
    all[4].tokens = std::make_shared<grammar::TokenTable>(*tokenizer_);
    all[5].options.sampler.logit_bias = {{'x', 1000.0f}};
    all[5].options.stop = {std::string(7, 'x')};
    all[6].options.max_tokens = 1;
    all[7].options.max_tokens = 3;
    all[8].prompt = all[7].prompt;
    return all;
  }
  void add(Batcher& batcher, TextRequest r, Outcome& out) {
    r.on_progress = [&out](const TextProgress& p) {
      out.all.text += p.text;
      append(out.all.ids, p.ids);
      append(out.all.logprobs, p.logprobs);
      append(out.all.prompt_logprobs, p.prompt_logprobs);
      append(out.all.routing.ids, p.routing.ids);
      append(out.all.routing.experts, p.routing.experts);
      append(out.all.routing.weights, p.routing.weights);
    };
    r.on_end = [&out](const Generated& g, const std::exception_ptr& error) {
      EXPECT_FALSE(out.ended);
      EXPECT_FALSE(error);
      out.ended = true;
      out.end = g;
    };
    batcher.add(std::move(r));
  }
  std::vector<Outcome> write(const std::vector<TextRequest>& requests, SharedDraft* draft,
                             int64_t parallel, AdapterChoice* adapters = nullptr) {
    ModelRunner runner(*model_, run_, kCache);
    runner.set_adapters(adapters);
    Batcher batcher(runner, *tokenizer_, parallel, kContext, draft);
    std::vector<Outcome> outcomes(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) add(batcher, requests[i], outcomes[i]);
    while (batcher.step()) {
    }
    return outcomes;
  }
  std::unique_ptr<SharedDraft> draft_of(Model& small, int64_t cache = kCache,
                                        const DraftOptions& options = kAlways) {
    return std::make_unique<SharedDraft>(small, draft_run_, *tokenizer_, kContext, cache, options);
  }

  static void expect_same(const std::vector<Outcome>& got, const std::vector<Outcome>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      SCOPED_TRACE(i);
      ASSERT_TRUE(got[i].ended);
      EXPECT_EQ(got[i].all.text, want[i].all.text);
      EXPECT_EQ(got[i].all.ids, want[i].all.ids);
      EXPECT_EQ(got[i].end.text, want[i].end.text);
      EXPECT_EQ(got[i].end.finish, want[i].end.finish);
      EXPECT_EQ(got[i].end.stop, want[i].end.stop);
      EXPECT_EQ(got[i].all.routing.ids, want[i].all.routing.ids);
      EXPECT_EQ(got[i].all.routing.experts, want[i].all.routing.experts);
      EXPECT_EQ(got[i].all.routing.weights, want[i].all.routing.weights);
      expect_same_logprobs(got[i].all.logprobs, want[i].all.logprobs);
      expect_same_logprobs(got[i].all.prompt_logprobs, want[i].all.prompt_logprobs);
      EXPECT_EQ(want[i].end.proposed, 0);
    }
  }
  static void expect_same_logprobs(const std::vector<TokenLogprobs>& got,
                                   const std::vector<TokenLogprobs>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].token.id, want[i].token.id);
      EXPECT_EQ(got[i].token.logprob, want[i].token.logprob);
      ASSERT_EQ(got[i].top.size(), want[i].top.size());
      for (size_t k = 0; k < got[i].top.size(); ++k) EXPECT_EQ(got[i].top[k].id, want[i].top[k].id);
    }
  }
  static int64_t proposed(const std::vector<Outcome>& outcomes) {
    int64_t sum = 0;
    for (const Outcome& o : outcomes) sum += o.end.proposed;
    return sum;
  }

  moe::Run run_{2}, draft_run_{2};
  std::unique_ptr<Tokenizer> tokenizer_ = make_tokenizer("bytes");
  std::unique_ptr<Model> model_ = fresh(config_of());
};

// The model's own weights guess right, others wrong; the texts are the same, few at once and many.
TEST_F(SharedDraftTest, EachTextIsWhatItIsWithoutADraft) {
  const std::vector<TextRequest> requests = mixed();
  const std::vector<Outcome> want = write(requests, nullptr, 3);
  for (const uint64_t seed : {7u, 99u}) {
    const std::unique_ptr<Model> small = fresh(config_of(), seed);
    for (const int64_t parallel : {int64_t{1}, int64_t{3}, SharedDraft::kTexts, int64_t{8}}) {
      SCOPED_TRACE(fmt::format("weights {}, {} at once", seed, parallel));
      const auto draft = draft_of(*small);
      const std::vector<Outcome> got = write(requests, draft.get(), parallel);
      expect_same(got, want);
      if (parallel <= SharedDraft::kTexts) EXPECT_GT(proposed(got), 0);
      EXPECT_EQ(got[6].end.proposed, 0) << "a text of one token";
    }
  }
}

TEST_F(SharedDraftTest, TheModelItselfGuessesEveryTokenRight) {
  std::vector<TextRequest> requests;
  for (uint64_t i = 0; i < 3; ++i) requests.push_back(request(some_ids(30 * (1 + i % 2), i), i));
  const std::unique_ptr<Model> same = fresh(config_of());
  const auto draft = draft_of(*same);
  for (const Outcome& o : write(requests, draft.get(), 3)) {
    EXPECT_EQ(o.end.accepted, o.end.proposed);
    EXPECT_GT(o.end.accepted, 30) << "of 40 tokens, eight of nine";
  }
}

// An adapter is the model's alone: the draft guesses without, and no more of it is right.
TEST_F(SharedDraftTest, TextsWithAdaptersAreWhatTheyAreWithout) {
  AdapterChoice choice;
  const auto adapters = std::make_shared<Adapters>();
  for (Param* p : model_->params())
    if (p->is_matrix() && p->layer >= 0 && p->part != Part::router) adapters->add(*p, {2}, false);
  for (const auto& adapter : adapters->all())
    for (Param* half : {&adapter->a, &adapter->b})
      for (int64_t i = 0; i < half->value.numel(); ++i)
        half->value.as<float>()[i] = 0.1f * normal(RngKey::from_seed(1), static_cast<uint64_t>(i));
  ASSERT_EQ(choice.add(adapters), 1);
  std::vector<TextRequest> requests;
  for (uint64_t i = 0; i < 4; ++i) {
    requests.push_back(request(some_ids(50, i / 2), 3));
    requests.back().adapter = static_cast<int32_t>(i % 2);
  }
  const std::unique_ptr<Model> same = fresh(config_of());
  const auto draft = draft_of(*same);
  const std::vector<Outcome> want = write(requests, nullptr, 4, &choice),
                             got = write(requests, draft.get(), 4, &choice);
  expect_same(got, want);
  EXPECT_NE(want[0].all.ids, want[1].all.ids);
  EXPECT_EQ(got[0].end.accepted, got[0].end.proposed);
  EXPECT_LT(got[1].end.accepted, got[1].end.proposed);
}

TEST_F(SharedDraftTest, GuessesOnlyWhileFewTextsAreUnderWay) {
  const std::unique_ptr<Model> same = fresh(config_of());
  for (const int64_t more : {0, 1}) {
    std::vector<TextRequest> requests;
    for (int64_t i = 0; i < SharedDraft::kTexts + more; ++i)
      requests.push_back(request(some_ids(20, static_cast<uint64_t>(i)), 1));
    const auto draft = draft_of(*same);
    const std::vector<Outcome> got = write(requests, draft.get(), 8);
    for (const Outcome& o : got) EXPECT_EQ(o.end.proposed > 0, more == 0);
    EXPECT_EQ(draft->computed() > 0, more == 0);
    expect_same(got, write(requests, nullptr, 8));
  }
}

// A long text goes on alone when the many are done, and the draft, which has read nothing of it,
// catches up.
TEST_F(SharedDraftTest, CatchesUpWhenFewAreLeft) {
  std::vector<TextRequest> requests = {request(some_ids(900, 1), 1)};
  requests[0].options.max_tokens = 120;
  for (uint64_t i = 2; i < 8; ++i) requests.push_back(request(some_ids(20, i), i));
  const std::unique_ptr<Model> same = fresh(config_of());
  const auto draft = draft_of(*same);
  const std::vector<Outcome> got = write(requests, draft.get(), 8);
  expect_same(got, write(requests, nullptr, 8));
  EXPECT_GT(got[0].end.accepted, 40);
  EXPECT_EQ(got[0].end.accepted, got[0].end.proposed);
  EXPECT_EQ(got[3].end.proposed, 0);
}

TEST_F(SharedDraftTest, TextsThatItCannotFollowGoOnWithoutIt) {
  TextRequest shown = request(some_ids(40, 1), 1);
  shown.routing = true;
  const Outcome routed = write({shown}, nullptr, 1)[0];
  TextRequest replayed = request(some_ids(40, 1), 1), looked_up = request(some_ids(40, 2), 2);
  replayed.recorded = std::make_shared<const Ids>(routed.all.routing.experts);
  looked_up.options.prompt_lookup = 4;
  looked_up.prompt = Ids(40, 'a');
  const TextRequest longer = request(some_ids(100, 3), 3);
  const std::vector<TextRequest> requests = {replayed, longer, request(some_ids(20, 4), 4)};
  const std::unique_ptr<Model> small = fresh(config_of(60));  // texts of 60 tokens
  const auto draft = draft_of(*small);
  const std::vector<Outcome> got = write(requests, draft.get(), 4);
  expect_same(got, write(requests, nullptr, 4));
  EXPECT_EQ(got[0].end.proposed, 0);
  EXPECT_EQ(got[1].end.proposed, 0);
  EXPECT_GT(got[2].end.proposed, 0);
  // The text's own guesses are not the draft's.
  const auto idle = draft_of(*small);
  EXPECT_EQ(write({looked_up}, idle.get(), 1)[0].all.ids,
            write({looked_up}, nullptr, 1)[0].all.ids);
  EXPECT_EQ(idle->computed(), 0);
}

// Two blocks are room for one text of up to 128 tokens; the other takes them when it is done.
TEST_F(SharedDraftTest, ATextForWhichThereIsNoRoomGoesOnWithoutIt) {
  const std::unique_ptr<Model> same = fresh(config_of());
  std::vector<TextRequest> requests;
  for (uint64_t i = 0; i < 3; ++i) requests.push_back(request(some_ids(70, i), i));
  const auto draft = draft_of(*same, 128);
  const std::vector<Outcome> both = write({requests[0], requests[1]}, draft.get(), 2);
  expect_same(both, write({requests[0], requests[1]}, nullptr, 2));
  EXPECT_GT(both[0].end.proposed, 0);
  const std::vector<Outcome> next = write({requests[2]}, draft.get(), 2);
  expect_same(next, write({requests[2]}, nullptr, 2));
  EXPECT_GT(next[0].end.accepted, 30);
}

// What one text read serves the next that begins so, as it does the model.
TEST_F(SharedDraftTest, ReadsABeginningOnce) {
  const std::unique_ptr<Model> same = fresh(config_of());
  const auto draft = draft_of(*same);
  const TextRequest first = request(some_ids(700, 1), 1);
  TextRequest second = first;
  second.options.sampler.seed = 2;
  second.prompt.push_back(5);
  write({first}, draft.get(), 1);
  const int64_t read = draft->computed();
  EXPECT_GE(read, 700);
  const std::vector<Outcome> got = write({second}, draft.get(), 1);
  EXPECT_LT(draft->computed() - read, 64 + 2 * 40 + 8);
  expect_same(got, write({second}, nullptr, 1));
  EXPECT_GT(got[0].end.accepted, 30);
}

// Bytes, until there is no memory left.
class Failing : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 256; }
  std::string spec() const override { return "failing"; }
  Ids encode(std::string_view) const override { return {}; }
  std::string piece(int32_t id) const override { return std::string(1, static_cast<char>(id)); }
  std::string to_json() const override { return ""; }
  std::optional<int32_t> eos_id() const override {
    if (++asked > 20) throw std::bad_alloc();
    return std::nullopt;
  }
  mutable std::atomic<int> asked{0};
};

TEST_F(SharedDraftTest, WhereItFailsTextsGoOn) {
  const std::unique_ptr<Model> same = fresh(config_of());
  const Failing failing;
  SharedDraft draft(*same, draft_run_, failing, kContext, kCache, kAlways);
  std::vector<TextRequest> requests;
  for (uint64_t i = 0; i < 3; ++i) requests.push_back(request(some_ids(30, i), i));
  const std::vector<Outcome> got = write(requests, &draft, 3);
  expect_same(got, write(requests, nullptr, 3));
  EXPECT_GT(failing.asked, 20);
  EXPECT_LE(proposed(got), 20);
}

TEST_F(SharedDraftTest, FollowsNoTextThatItCannotRead) {
  const std::unique_ptr<Model> same = fresh(config_of());
  const auto draft = draft_of(*same, 256);
  EXPECT_EQ(draft->follow(some_ids(kContext + 1, 9), 2 * kContext), nullptr) << "beyond its texts";
  EXPECT_EQ(draft->follow(Ids{256}, 10), nullptr) << "no id of its own";
  const auto all = draft->follow(some_ids(100, 9), 256);
  EXPECT_NE(all, nullptr);
  EXPECT_EQ(draft->follow(some_ids(3, 9), 4), nullptr) << "the room is taken";
}

}  // namespace
}  // namespace moe::test::shared_draft_test
