// Questions made of a text: where they come from, how a model reads them, and that the answers are
// those of the model's own probabilities.
#include "evaluate/quiz.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "evaluate/score.h"
#include "infer/eval_routing.h"
#include "infer/session.h"
#include "model/cost.h"
#include "support/files.h"
#include "support/learned_bpe.h"
#include "support/tiny_model.h"

namespace moe::quiz_test {
namespace {

using test::fresh;
using test::plain_config;

// "w0 w1\nw2 ...": each word tells its place.
std::string numbered(int64_t words) {
  std::string text;
  for (int64_t i = 0; i < words; ++i)
    text += fmt::format("{}w{}", i == 0 ? "" : i % 5 == 2 ? "\n" : " ", i);
  return text;
}

int64_t first_number(std::string_view words) {
  return std::stoll(std::string(words.substr(words.find('w') + 1)));
}

TEST(Quiz, QuestionsAreWhatStandsInTheText) {
  const std::string text = numbered(1000);
  const QuizOptions o{.questions = 30, .context = 8, .words = 3};
  const std::vector<Question> quiz = make_quiz(text, o);
  ASSERT_EQ(quiz.size(), 30u);
  std::set<int64_t> places;
  for (const Question& q : quiz) {
    ASSERT_EQ(std::ssize(q.continuations), kChoices);
    EXPECT_NE(text.find(q.context + q.continuations[0]), std::string::npos);
    const int64_t first = first_number(q.context);
    places.insert(first);
    EXPECT_EQ(first_number(q.continuations[0]), first + o.context);
    EXPECT_EQ(first_number(q.continuations[0].substr(q.word)), first + o.context + 1);
    for (size_t c = 1; c < q.continuations.size(); ++c) {
      EXPECT_NE(text.find(q.continuations[c]), std::string::npos);
      const int64_t other = first_number(q.continuations[c]);
      EXPECT_TRUE(other + o.words <= first || other >= first + o.context + o.words)
          << other << " lies in the place of the question at " << first;
    }
  }
  EXPECT_EQ(places.size(), 30u);
  EXPECT_LT(*places.begin(), 40);
  EXPECT_GT(*places.rbegin(), 940);
}

TEST(Quiz, TheSeedSaysAll) {
  const std::string text = numbered(500);
  const auto words = [&](uint64_t seed) {
    std::string all;
    for (const Question& q :
         make_quiz(text, {.questions = 9, .context = 5, .words = 2, .seed = seed}))
      for (const std::string& c : q.continuations) all += c;
    return all;
  };
  EXPECT_EQ(words(1), words(1));
  EXPECT_NE(words(1), words(2));
}

TEST(Quiz, RefusesATextThatIsTooShort) {
  EXPECT_FAILS(make_quiz(numbered(20), {.questions = 5, .context = 8, .words = 3}),
               "the text has 20 words, too few for 5 questions");
  EXPECT_FAILS(make_quiz(numbered(100), {.questions = 0}), "questions 0");
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_FAILS(make_quiz(numbered(100), {.context = kHuge, .words = kHuge}), "must all be between");
}

// Blanks and line ends between them aside, as what is asked for is the words.
std::multiset<std::string> words_offered(const Question& q) {
  std::multiset<std::string> offered;
  for (std::string c : q.continuations) {
    std::replace(c.begin(), c.end(), '\n', ' ');
    offered.insert(c);
  }
  return offered;
}

// Of a text of five words over and over, a fifth of all places say what the question's own does.
TEST(Quiz, NoWrongContinuationIsTheRightOne) {
  std::string text;
  for (int64_t i = 0; i < 1200; ++i) text += fmt::format("w{}{}", i % 5, i % 7 == 6 ? '\n' : ' ');
  for (const Question& q : make_quiz(text, {.questions = 60, .context = 4, .words = 2})) {
    const std::multiset<std::string> offered = words_offered(q);
    for (const std::string& c : offered) EXPECT_EQ(offered.count(c), 1u) << c;
  }
  std::string same;
  for (int64_t i = 0; i < 300; ++i) same += "again ";
  EXPECT_FAILS(make_quiz(same, {.questions = 5, .context = 4, .words = 2}),
               "the text repeats itself");
}

// The logits of a whole continuation are there at once, whatever a loss would cut them into.
TEST(Quiz, EstimatesTheMemoryOfItsLogits) {
  const auto tokenizer = make_tokenizer("bytes");
  ModelConfig config = plain_config();
  config.context = 1024;
  config.vocab = 20000;
  const auto model = fresh(config);
  Question q{.context = "the router", .continuations = {}, .word = 6};
  for (const char* word : {" sends", " takes", " gives", " wants"})
    for (int i = 0; i < 100; ++i) {
      if (i == 0) q.continuations.emplace_back();
      q.continuations.back() += word;
    }
  const std::vector<AskedQuestion> asked = as_asked(std::span(&q, 1), *tokenizer, 1024);
  moe::Run run(2);
  take_quiz(*model, run, asked);
  size_t held = run.saved.peak() + run.scratch.peak();
  for (const Arena& arena : run.thread_scratch) held += arena.peak();
  const ForwardUse use = quiz_use(*model, asked, DType::f32);
  const double ratio =
      static_cast<double>(held) / static_cast<double>(count_forward_memory(
                                      config, use.shape, evaluation_spec(config, std::nullopt, 0)));
  EXPECT_GT(ratio, 0.85);
  EXPECT_LT(ratio, 1.1);
}

// The tokens from the first of the continuation on hold all of it, whatever the tokenizer.
TEST(Quiz, ATokenizerCutsWhereTheContinuationBegins) {
  const std::string text = numbered(300);
  const std::vector<Question> quiz = make_quiz(text, {.questions = 5, .context = 6, .words = 2});
  const auto bytes = make_tokenizer("bytes");
  const std::string_view texts[] = {text};
  const auto bpe = test::learned_bpe(texts, 300);
  for (const Tokenizer* tokenizer : {bytes.get(), bpe.get()}) {
    const std::vector<AskedQuestion> asked = as_asked(quiz, *tokenizer, 128);
    for (size_t q = 0; q < quiz.size(); ++q)
      for (size_t c = 0; c < 4; ++c) {
        const AskedQuestion::Sequence& s = asked[q].sequences[c];
        const auto decoded = [&](int64_t begin, int64_t end) {
          return tokenizer->decode(std::span(s.ids).subspan(static_cast<size_t>(begin),
                                                            static_cast<size_t>(end - begin)));
        };
        const std::string& continuation = quiz[q].continuations[c];
        EXPECT_EQ(decoded(0, std::ssize(s.ids)), quiz[q].context + continuation);
        EXPECT_TRUE(decoded(s.first, std::ssize(s.ids)).ends_with(continuation));
        EXPECT_FALSE(decoded(s.first + 1, std::ssize(s.ids)).ends_with(continuation));
        EXPECT_EQ(s.bytes, std::ssize(continuation));
        if (c == 0)
          EXPECT_TRUE(
              decoded(s.first, asked[q].word_end).ends_with(continuation.substr(0, quiz[q].word)));
      }
  }
}

// The same by scoring each continuation by itself.
TEST(Quiz, TheChoiceIsThatOfTheLogProbabilities) {
  const auto tokenizer = make_tokenizer("bytes");
  ModelConfig config = plain_config();
  config.context = 128;
  const auto model = fresh(config);
  const std::vector<Question> quiz =
      make_quiz(numbered(400), {.questions = 25, .context = 5, .words = 3});
  const std::vector<AskedQuestion> asked = as_asked(quiz, *tokenizer, 128);
  moe::Run run(2);
  const std::vector<QuizAnswer> answers = take_quiz(*model, run, asked);
  int right = 0;
  for (size_t q = 0; q < quiz.size(); ++q) {
    std::vector<double> a_byte;
    for (const AskedQuestion::Sequence& s : asked[q].sequences) {
      const Score alone =
          score(*model, run, *tokenizer, s.ids, {.window = std::ssize(s.ids), .per_token = true});
      double sum = 0;
      for (int64_t i = s.first; i < std::ssize(s.ids); ++i)
        sum += *alone.logprobs[static_cast<size_t>(i)];
      a_byte.push_back(sum / static_cast<double>(s.bytes));
    }
    const bool best = std::max_element(a_byte.begin(), a_byte.end()) == a_byte.begin();
    EXPECT_EQ(answers[q].continuation, best) << q;
    right += best;
  }
  EXPECT_GT(right, 0);
  EXPECT_LT(right, 25);
}

// What the model writes by itself is a word that it knows.
TEST(Quiz, TheWordIsWhatTheModelWouldWrite) {
  const auto tokenizer = make_tokenizer("bytes");
  const auto model = fresh(plain_config());
  moe::Run run(2);
  Question q{.context = "one two", .continuations = {"", " ab", " cd", " ef"}, .word = 6};
  Session session(*model, run, 32);
  std::vector<int32_t> ids = tokenizer->encode(q.context);
  std::span<const float> logits = session.prefill(ids);
  for (int i = 0; i < 8; ++i) {
    ids = {static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin())};
    q.continuations[0] += tokenizer->piece(ids[0]);
    logits = session.decode(ids);
  }
  const auto word = [&] {
    return take_quiz(*model, run, as_asked(std::span(&q, 1), *tokenizer, 32))[0].word;
  };
  EXPECT_TRUE(word());
  q.continuations[0][7] ^= 1;  // behind the word
  EXPECT_TRUE(word());
  q.continuations[0][5] ^= 1;
  EXPECT_FALSE(word());
}

TEST(Quiz, TheBeginningIsLeftOutWhereTheContextIsShort) {
  const auto tokenizer = make_tokenizer("bytes");
  const Question q{.context = "one two three", .continuations = {" four", " six"}, .word = 5};
  const AskedQuestion whole = as_asked(std::span(&q, 1), *tokenizer, 18)[0],
                      cut = as_asked(std::span(&q, 1), *tokenizer, 10)[0];
  EXPECT_EQ(tokenizer->decode(whole.sequences[0].ids), "one two three four");
  EXPECT_EQ(tokenizer->decode(cut.sequences[0].ids), "three four");
  EXPECT_EQ(cut.sequences[0].first, 5);
  EXPECT_EQ(cut.word_end, 10);
  EXPECT_EQ(tokenizer->decode(cut.sequences[1].ids), " three six");
  EXPECT_FAILS(as_asked(std::span(&q, 1), *tokenizer, 5), "lower");
}

}  // namespace
}  // namespace moe::quiz_test
