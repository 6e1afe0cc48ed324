// Draft models: that a text is the same with one as without, whatever it guesses, that wrong
// guesses leave no trace in its cache, how much is guessed, and which models are refused.
#include "infer/draft.h"

#include <cctype>
#include <cmath>

#include "infer/dialogue.h"
#include "infer/generate.h"
#include "support/files.h"
#include "support/same_rows.h"
#include "support/shouting.h"
#include "support/tiny_model.h"

namespace moe::test::draft_test {
namespace {

using Ids = std::vector<int32_t>;

const EmitText kAll = [](const std::string&) { return true; };
constexpr const char* kPrompt = "the router sends the router sends";  // 33 tokens
constexpr int64_t kCapacity = 200;
// Random models are never sure.
const DraftOptions kAlways = {.model = {}, .tokens = 8, .min_p = 0};

ModelConfig config_of(int64_t context = 256) {
  ModelConfig config = plain_config();
  config.context = context;
  config.init.std = 0.3f;  // logits far enough apart that texts differ
  return config;
}

struct Fixture {
  std::unique_ptr<Model> model = fresh(config_of());
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("bytes");
  moe::Run run, draft_run;
  GenerateOptions options;

  explicit Fixture(DType dtype = DType::f32) : run(2, dtype), draft_run(2, dtype) {
    options.max_tokens = 90;
    options.sampler.seed = 3;
    options.sampler.temperature = 1;
  }
  DraftModel draft(Model& small, const DraftOptions& draft_options = kAlways) {
    return {small, draft_run, *tokenizer, kCapacity, draft_options};
  }
  Generated write(Guesser* guesser = nullptr, const std::string& prompt = kPrompt) {
    GenerateOptions o = options;
    o.guesser = guesser;
    return generate(*model, run, *tokenizer, prompt, o, kAll);
  }
  // Some ways to draw.
  template <class F>
  void for_samplers(const F& f) {
    for (const float temperature : {0.0f, 0.2f, 1.0f}) {
      SCOPED_TRACE(temperature);
      options.sampler.temperature = temperature;
      options.sampler.repeat_penalty = temperature == 1 ? 1.1f : 1.0f;
      options.sampler.frequency_penalty = temperature == 1 ? 0.3f : 0.0f;
      f();
    }
  }
};

// A draw on the edge may fall the other way elsewhere.
bool draws_alike(DType dtype) { return ops::products_keep_row_bits(dtype); }
#define SKIP_UNLESS_DRAWS_ARE_ALIKE() \
  if (!draws_alike(DType::f32)) GTEST_SKIP() << "rows agree to 1e-5 only, so a draw may differ"

TEST(Draft, TheModelItselfGuessesEveryTokenRight) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    if (!draws_alike(dtype)) continue;
    SCOPED_TRACE(name_of(dtype));
    Fixture f(dtype);
    f.for_samplers([&] {
      DraftModel draft = f.draft(*f.model);
      const Generated plain = f.write(), guessed = f.write(&draft);
      EXPECT_EQ(guessed.ids, plain.ids);
      EXPECT_EQ(guessed.text, plain.text);
      EXPECT_EQ(plain.proposed, 0);
      EXPECT_EQ(guessed.accepted, guessed.proposed);
      EXPECT_GT(guessed.accepted, 70) << "of 90 tokens, eight of nine";
    });
  }
}

TEST(Draft, AnotherModelChangesNothingAndIsHardlyAsked) {
  SKIP_UNLESS_DRAWS_ARE_ALIKE();
  Fixture f;
  const auto other = fresh(config_of(), 99);
  f.for_samplers([&] {
    DraftModel draft = f.draft(*other);
    const Generated plain = f.write(), guessed = f.write(&draft);
    EXPECT_EQ(guessed.ids, plain.ids);
    EXPECT_GT(guessed.proposed, guessed.accepted);
    EXPECT_LT(guessed.proposed - guessed.accepted, 45);
  });
}

// Hands on what a draft guesses, and holds it against what came.
class Watched : public Guesser {
 public:
  explicit Watched(DraftModel& draft) : draft_(draft) {}
  bool begin(std::span<const int32_t> prompt, const KeepReading& keep) override {
    return draft_.begin(prompt, keep);
  }
  Ids guess(std::span<const int32_t> text, const Sampler& sampler, int64_t most) override {
    Ids guesses = draft_.guess(text, sampler, most);
    EXPECT_LE(std::ssize(guesses), std::max<int64_t>(most, 0));
    if (!guesses.empty()) longest = std::max(longest, std::ssize(text) + std::ssize(guesses) - 1);
    return guesses;
  }
  int64_t longest = 0;  // text that the draft read

 protected:
  DraftModel& draft_;
};

// In every third round the draft draws what is hardly ever written, and reads it.
class Misled : public Watched {
 public:
  using Watched::Watched;
  Ids guess(std::span<const int32_t> text, const Sampler& sampler, int64_t most) override {
    if (honest_) {
      expect_came(text.subspan(behind_));
      right += std::ssize(guesses_);
    }
    honest_ = ++round_ % 3 != 0;
    behind_ = text.size();
    SamplerOptions forced{.temperature = 0};
    forced.logit_bias = {{kNever, 1000.0f}};
    guesses_ = Watched::guess(text, honest_ ? sampler : Sampler(forced), most);
    if (!honest_) misled += std::ssize(guesses_);
    return guesses_;
  }
  int64_t right = 0, misled = 0;

 private:
  static constexpr int32_t kNever = 7;
  void expect_came(std::span<const int32_t> came) const {
    ASSERT_GE(came.size(), guesses_.size());
    EXPECT_EQ(Ids(came.begin(), came.begin() + std::ssize(guesses_)), guesses_);
  }
  int round_ = 0;
  bool honest_ = false;
  size_t behind_ = 0;
  Ids guesses_;
};

TEST(Draft, WhatItReadAndDidNotComeIsForgotten) {
  SKIP_UNLESS_DRAWS_ARE_ALIKE();
  Fixture f;
  f.for_samplers([&] {
    DraftModel draft = f.draft(*f.model);
    Misled misled(draft);
    const Generated guessed = f.write(&misled);
    EXPECT_EQ(guessed.ids, f.write().ids);
    EXPECT_GT(misled.right, 20);
    EXPECT_GT(misled.misled, 5);
    EXPECT_GT(guessed.proposed, guessed.accepted);
  });
}

// Knows the text, and guesses five tokens of it with one of them wrong, each in turn, then none.
class Knowing : public Guesser {
 public:
  explicit Knowing(Ids whole) : whole_(std::move(whole)) {}
  Ids guess(std::span<const int32_t> text, const Sampler&, int64_t most) override {
    constexpr size_t kGuesses = 5;
    const size_t count = std::min({kGuesses, static_cast<size_t>(std::max<int64_t>(most, 0)),
                                   whole_.size() - text.size()}),
                 wrong = round_++ % (kGuesses + 1);
    const auto from = whole_.begin() + static_cast<std::ptrdiff_t>(text.size());
    Ids guesses(from, from + static_cast<std::ptrdiff_t>(count));
    if (wrong < count) guesses[wrong] = (guesses[wrong] + 1) % 256;
    right += static_cast<int64_t>(std::min(wrong, count));
    return guesses;
  }
  int64_t right = 0;

 private:
  Ids whole_;
  size_t round_ = 0;
};

TEST(Guesser, GuessesThatAreRightInPartAreKeptSoFar) {
  SKIP_UNLESS_DRAWS_ARE_ALIKE();
  Fixture f;
  f.for_samplers([&] {
    const Generated plain = f.write();
    Ids whole = plain.prompt_ids;
    whole.insert(whole.end(), plain.ids.begin(), plain.ids.end());
    Knowing knowing(whole);
    const Generated guessed = f.write(&knowing);
    EXPECT_EQ(guessed.ids, plain.ids);
    EXPECT_EQ(guessed.accepted, knowing.right);
    EXPECT_GT(guessed.accepted, 40);
  });
}

TEST(Draft, GuessesNothingWhereItsContextEnds) {
  SKIP_UNLESS_DRAWS_ARE_ALIKE();
  for (const Positions positions : {Positions::rope, Positions::learned}) {
    Fixture f;
    ModelConfig config = config_of(60);
    config.positions = positions;
    const auto small = fresh(config);
    DraftModel draft = f.draft(*small);
    Watched watched(draft);
    const Generated guessed = f.write(&watched);
    EXPECT_EQ(guessed.ids, f.write().ids);
    EXPECT_GT(guessed.proposed, 0);
    EXPECT_LE(watched.longest, 60);

    config.context = 20;  // shorter than the prompt
    const auto smaller = fresh(config);
    DraftModel none = f.draft(*smaller);
    const Generated alone = f.write(&none);
    EXPECT_EQ(alone.ids, guessed.ids);
    EXPECT_EQ(alone.proposed, 0);
  }
}

TEST(Draft, GuessesOnlyWhereItIsSure) {
  Fixture f;
  const Ids text = f.tokenizer->encode(kPrompt);
  Session session(*f.model, f.run, kCapacity);
  const std::span<const float> logits = session.prefill(text);
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - most);
  const Sampler sampler({.temperature = 0});
  for (const double factor : {0.98, 1.02}) {
    DraftOptions options = kAlways;
    options.min_p = static_cast<float>(factor / sum);
    DraftModel draft = f.draft(*f.model, options);
    EXPECT_EQ(draft.guess(text, sampler, 1).size(), factor < 1 ? 1u : 0u);
  }
  DraftOptions never = kAlways;
  never.min_p = 1;
  DraftModel draft = f.draft(*f.model, never);
  EXPECT_EQ(f.write(&draft).proposed, 0);
}

// The step that checks the last guess draws the end of a text anyway.
TEST(Draft, DoesNotGuessTheEndOfAText) {
  SKIP_UNLESS_DRAWS_ARE_ALIKE();
  Fixture f;
  f.tokenizer->set_special({.eos = f.write().ids.at(30)});
  DraftModel draft = f.draft(*f.model);
  const Generated plain = f.write(), guessed = f.write(&draft);
  EXPECT_EQ(plain.finish, "stop");
  EXPECT_EQ(guessed.finish, "stop");
  EXPECT_EQ(guessed.ids, plain.ids);
  EXPECT_EQ(guessed.accepted, guessed.proposed);
}

TEST(Draft, EndsWhereTheTextEnds) {
  SKIP_UNLESS_DRAWS_ARE_ALIKE();
  Fixture f;
  const Generated whole = f.write();
  DraftModel draft = f.draft(*f.model);
  for (int64_t n = 0; n < 20; ++n) {
    f.options.max_tokens = n;
    const Generated part = f.write(&draft);
    EXPECT_EQ(part.ids, Ids(whole.ids.begin(), whole.ids.begin() + n));
    EXPECT_EQ(part.accepted, part.proposed);
  }
}

TEST(Draft, FollowsADialogue) {
  SKIP_UNLESS_DRAWS_ARE_ALIKE();
  Fixture f;
  f.model = fresh(config_of(1024));
  f.options.max_tokens = 30;
  DraftModel draft(*f.model, f.draft_run, *f.tokenizer, 1024, kAlways);
  Dialogue plain(*f.model, f.run, *f.tokenizer, f.options);
  f.options.guesser = &draft;
  Dialogue guessed(*f.model, f.run, *f.tokenizer, f.options);
  for (int turn = 0; turn < 3; ++turn) {
    const std::string question = fmt::format("question {}", turn);
    const Reply reply = guessed.ask(question, kAll);
    EXPECT_EQ(reply.content, plain.ask(question, kAll).content);
    EXPECT_GT(reply.generated.accepted, 10);
    EXPECT_EQ(guessed.ask_again(kAll).content, plain.ask_again(kAll).content);
  }
}

TEST(Draft, ItsReadingOfALongPromptCanBeEnded) {
  SKIP_UNLESS_DRAWS_ARE_ALIKE();
  Fixture f;
  const int64_t most = 4 * prompt_chunk();
  const auto small = fresh(config_of(most), 99);
  const Ids prompt(static_cast<size_t>(2 * prompt_chunk() + 276), 'a');
  DraftModel draft(*small, f.draft_run, *f.tokenizer, most, kAlways);
  f.options.guesser = &draft;
  Session session(*f.model, f.run, most), other(*f.model, f.run, most);
  int asked = 0;
  const Generated out = generate(session, *f.tokenizer, prompt, f.options, kAll,
                                 [&](int64_t, int64_t) { return ++asked < 5; });
  EXPECT_EQ(asked, 5) << "the model reads three chunks, the draft one";
  EXPECT_EQ(out.finish, "interrupted");
  EXPECT_EQ(out.tokens, 0);
  const Generated again = generate(session, *f.tokenizer, prompt, f.options, kAll);
  f.options.guesser = nullptr;
  EXPECT_EQ(again.ids, generate(other, *f.tokenizer, prompt, f.options, kAll).ids);
}

// Bytes, or the first of them, and ids behind them that stand for nothing.
class CutTokenizer : public Tokenizer {
 public:
  CutTokenizer(int64_t bytes, int64_t size) : bytes_(bytes), size_(size) {}
  int64_t vocab_size() const override { return size_; }
  std::string spec() const override { return "cut"; }
  std::vector<int32_t> encode(std::string_view) const override { return {}; }
  std::string piece(int32_t id) const override {
    return id < bytes_ ? std::string(1, static_cast<char>(id)) : "";
  }
  std::string to_json() const override { return ""; }

 private:
  int64_t bytes_, size_;
};

TEST(Draft, NeedsTheVocabularyOfTheModel) {
  const auto bytes = make_tokenizer("bytes");
  ModelConfig wide = config_of();
  wide.vocab = 320;
  EXPECT_NO_THROW(check_draft(config_of(), *bytes, config_of(), *bytes));
  EXPECT_NO_THROW(check_draft(config_of(), *bytes, wide, *bytes)) << "rows that are no tokens";
  EXPECT_NO_THROW(check_draft(config_of(), *bytes, wide, CutTokenizer(256, 300)));
  EXPECT_NO_THROW(check_draft(wide, CutTokenizer(256, 300), config_of(), *bytes));
  EXPECT_FAILS(
      check_draft(config_of(), *bytes, config_of(), Shouting()),
      "token 97 is 'a' in the model and 'A' in the one of draft: a draft guesses tokens of "
      "the model");
  EXPECT_FAILS(check_draft(config_of(), *bytes, config_of(), CutTokenizer(250, 256)),
               "the model has 256 tokens and the one of draft 250");
  EXPECT_FAILS(check_draft(config_of(), CutTokenizer(250, 256), config_of(), *bytes),
               "the model has 250 tokens and the one of draft 256");
}

// Rows beside the tokens are never guessed, and a token that the draft does not know ends guessing.
TEST(Draft, RowsThatAreNoTokensDoNotMatter) {
  SKIP_UNLESS_DRAWS_ARE_ALIKE();
  Fixture f;
  ModelConfig wide = config_of();
  wide.vocab = 320;
  const auto padded = fresh(wide, 99);
  DraftModel draft = f.draft(*padded);
  const Generated guessed = f.write(&draft);
  EXPECT_EQ(guessed.ids, f.write().ids);
  EXPECT_GT(guessed.proposed, 0);

  DraftModel narrow = f.draft(*f.model);
  const Sampler sampler(f.options.sampler);
  EXPECT_EQ(narrow.guess(Ids{1, 2, 300}, sampler, 4), Ids{});
  EXPECT_NE(narrow.guess(Ids{1, 2, 30}, sampler, 4), Ids{});
}

TEST(Draft, NeitherModelMayKeepStates) {
  const auto bytes = make_tokenizer("bytes");
  ModelConfig linear = config_of();
  linear.linear = {
      .key_heads = 1, .value_heads = 1, .key_width = 4, .value_width = 4, .conv_width = 2};
  linear.linear_layers = {0};
  EXPECT_FAILS(check_draft(linear, *bytes, config_of(), *bytes), "leave draft out");
  EXPECT_FAILS(check_draft(config_of(), *bytes, linear, *bytes), "take another draft");
  EXPECT_NO_THROW(check_guessing(linear, {}));
  Fixture f;
  DraftModel draft = f.draft(*f.model);
  f.options.guesser = &draft;
  EXPECT_FAILS(check_guessing(linear, f.options), "cannot be taken back");
  EXPECT_NO_THROW(check_guessing(config_of(), f.options));
}

TEST(Draft, RefusesWhatHasNoMeaning) {
  Fixture f;
  for (const int64_t tokens : {int64_t{0}, kMostGuesses + 1})
    EXPECT_FAILS(f.draft(*f.model, {.model = {}, .tokens = tokens}), "draft_tokens is");
  for (const float min_p : {-0.1f, 1.1f, NAN})
    EXPECT_FAILS(f.draft(*f.model, {.model = {}, .min_p = min_p}), "draft_min_p is");
}

TEST(DraftPace, GuessesAsManyAsAreLikelyRight) {
  DraftPace pace(8);
  EXPECT_EQ(pace.next(), 8) << "at first";
  pace.judge(8, 8);
  EXPECT_EQ(pace.next(), 8);
  pace.judge(8, 1);
  const int64_t fewer = pace.next();
  EXPECT_LT(fewer, 8);
  pace.judge(fewer, 0);
  const int64_t fewest = pace.next();
  EXPECT_LT(fewest, fewer);
  EXPECT_GE(fewest, 1);
  for (int i = 0; i < 20; ++i) pace.judge(4, 4);
  EXPECT_EQ(pace.next(), 8) << "it has come to be right again";
  EXPECT_EQ(DraftPace(3).next(), 3);
}

// Rounds out of 200 in which something is guessed, or would be but for doubt.
int64_t rounds_asked(int64_t guessed) {
  DraftPace pace(8);
  int64_t asked = 0;
  for (int i = 0; i < 200; ++i) {
    if (pace.next() == 0) continue;
    ++asked;
    pace.judge(guessed, 0);
  }
  return asked;
}

TEST(DraftPace, ADraftThatDoesNotPayIsHardlyAsked) {
  const int64_t wrong = rounds_asked(1), unsure = rounds_asked(0);
  EXPECT_LE(wrong, 12);
  EXPECT_GE(wrong, 6) << "now and then it is";
  EXPECT_GT(unsure, wrong) << "doubt costs less than checking";
  EXPECT_LE(unsure, 24);

  DraftPace pace(8);
  for (int i = 0; i < 200; ++i)
    if (pace.next() > 0) pace.judge(1, 0);
  while (pace.next() == 0) continue;
  pace.judge(1, 1);
  EXPECT_GT(pace.next(), 0) << "one right guess ends the pauses";
}

}  // namespace
}  // namespace moe::test::draft_test
