// Patterns that are said otherwise cut as before, and long runs of one kind of character are cut.
#include "text/linear_patterns.h"

#include <gtest/gtest.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <memory>
#include <random>
#include <stdexcept>

#include "text/ggml_pre.h"
#include "text/pattern.h"
#include "text/splitter.h"

namespace moe::test::linear_patterns_test {
namespace {

using Strings = std::vector<std::string>;

Strings split(const Strings& patterns, std::string_view text) {
  Strings pieces;
  Splitter(patterns).split(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

std::string repeated(std::string_view unit, size_t n) {
  std::string text;
  while (n-- > 0) text += unit;
  return text;
}

const Strings kCharacters = {
    "a",  "B",  "é",      "\u02B0", "\u01C5", "\u4E2D", "\u3005", "\u30AB", "\u0301", " ",     " ",
    "\t", "\v", "\u3000", "\n",     "\r\n",   "7",      "7",      "²",      "\u0663", "!",     "/",
    "'s", "+",  "\u3007", "x ",     "a ",     "\u2E80", "\u0001", "\xE2",   "\u0E01", "\u00AD"};

// Runs of few kinds of characters.
std::string random_text(std::mt19937& random, size_t runs, size_t longest) {
  std::string text;
  const size_t kinds = 1 + random() % kCharacters.size(), first = random();
  for (size_t i = 0; i < runs; ++i) {
    const std::string& unit = kCharacters[(first + random() % kinds) % kCharacters.size()];
    text += repeated(unit, 1 + random() % (random() % 8 == 0 ? longest : 3));
  }
  return text;
}

// `by_definition` are patterns that nothing is put in place of.
void expect_same(const Strings& patterns, const Strings& by_definition, size_t longest) {
  ASSERT_EQ(linear_patterns(by_definition), by_definition);
  const Splitter linear(patterns), slow(by_definition);
  std::mt19937 random(7);
  for (int trial = 0; trial < 400; ++trial) {
    const std::string text = random_text(random, 1 + random() % 30, longest);
    Strings want, pieces;
    slow.split(text, [&](std::string_view piece) { want.emplace_back(piece); });
    linear.split(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
    ASSERT_EQ(pieces, want) << text;
  }
}

// The same pattern by another text.
std::string in_a_group(std::string_view pattern) { return "(?:" + std::string(pattern) + ")"; }

TEST(LinearPatterns, WordsWithSpacesBetweenThemAreCutAsBefore) {
  expect_same(ggml_pre("exaone-moe").patterns, {in_a_group(kExaoneMoePattern)}, 20);
}

TEST(LinearPatterns, SpacesThatEndALineAreCutAsBefore) {
  const std::string pattern = R"(\s+$)";
  expect_same({pattern}, {in_a_group(pattern)}, 20);
}

// Half their number squared are more steps than a text of so many may take, each place more than
// it may for nothing.
TEST(LinearPatterns, SpacesOfAnyNumberBeforeADigitAreCut) {
  const std::string spaces = repeated(" ", 300'000);
  EXPECT_EQ(split(ggml_pre("deepseek-llm").patterns, spaces + "5"), (Strings{spaces, "5"}));
}

// Kimi's classes leave out what is Han.
TEST(LinearPatterns, KimisWordsAreCutByTheirDefinition) {
  const std::string ends = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?", front = R"([^\r\n\p{L}\p{N}]?)",
                    upper = R"((?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]))",
                    lower = R"((?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}]))";
  expect_same(
      ggml_pre("kimi-k2").patterns,
      {R"([\p{Han}]+|)" + front + upper + "*" + lower + "+" + ends + "|" + front + upper + "+" +
       lower + "*" + ends + R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
      20);
}

TEST(LinearPatterns, DigitsAreCutAsBefore) {
  Strings by_definition(std::begin(kTrinityDigits), std::end(kTrinityDigits));
  by_definition[0] = in_a_group(by_definition[0]);
  expect_same({std::begin(kTrinityDigits), std::end(kTrinityDigits)}, by_definition, 2000);
}

TEST(LinearPatterns, DigitsOfAnyNumberAreCut) {
  constexpr size_t kThrees = 100'000;
  Strings want(kThrees, "777");
  want.insert(want.begin(), {"a", "77"});
  EXPECT_EQ(split(ggml_pre("afmoe").patterns, "a77" + repeated("777", kThrees)), want);
}

// The matcher has a stack of 8 MB, of which each repetition of a group takes eight bytes, of one
// within another more than twenty.
TEST(LinearPatterns, WordsOfAnyLengthAreCut) {
  for (const char* unit : {"a", "B"}) {
    const std::string text = repeated(unit, 1'100'000) + "b";
    EXPECT_EQ(split(ggml_pre("kimi-k2").patterns, text + "5"), (Strings{text, "5"})) << unit;
  }
  for (const char* unit : {"a", "a ", "\u4E2D", "a\u0301", "a\u0301 "}) {
    const std::string text = repeated(unit, 400'000) + "b";
    EXPECT_EQ(split(ggml_pre("exaone-moe").patterns, text + "  5"), (Strings{text, " ", " ", "5"}))
        << unit;
  }
}

// ---- counted steps ------------------------------------------------------------------------------

struct FreeMatcher {
  void operator()(pcre2_code* x) const { pcre2_code_free(x); }
  void operator()(pcre2_match_data* x) const { pcre2_match_data_free(x); }
  void operator()(pcre2_match_context* x) const { pcre2_match_context_free(x); }
};

// Cuts as Splitter does, and counts what the matcher tries and the bytes that it passes.
class StepCounter {
 public:
  explicit StepCounter(const Strings& patterns) : context_(pcre2_match_context_create(nullptr)) {
    for (const std::string& pattern : patterns) {
      const std::string translated = to_pcre2(pattern);
      int error = 0;
      size_t at = 0;
      codes_.emplace_back(pcre2_compile(
          reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_AUTO_CALLOUT, &error, &at, nullptr));
      if (!codes_.back()) throw std::invalid_argument(translated);
    }
    pcre2_set_callout(context_.get(), count, this);
  }

  size_t of(std::string_view text) {
    steps_ = 0;
    match_all(0, text);
    return steps_;
  }

 private:
  static int count(pcre2_callout_block* block, void* self) {
    auto& counter = *static_cast<StepCounter*>(self);
    const size_t here = block->current_position;
    counter.steps_ += 1 + (here > counter.at_ ? here - counter.at_ : 0);
    counter.at_ = here;
    return 0;
  }

  void match_all(size_t level, std::string_view text) {
    if (level == codes_.size() || text.empty()) return;
    const std::unique_ptr<pcre2_match_data, FreeMatcher> data(pcre2_match_data_create(1, nullptr));
    size_t done = 0;
    for (at_ = 0;
         pcre2_match(codes_[level].get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                     done, PCRE2_NO_UTF_CHECK, data.get(), context_.get()) >= 0;
         at_ = done) {
      const size_t* place = pcre2_get_ovector_pointer(data.get());
      match_all(level + 1, text.substr(done, place[0] - done));
      match_all(level + 1, text.substr(place[0], place[1] - place[0]));
      done = place[1];
    }
    match_all(level + 1, text.substr(done));
  }

  std::unique_ptr<pcre2_match_context, FreeMatcher> context_;
  std::vector<std::unique_ptr<pcre2_code, FreeMatcher>> codes_;
  size_t steps_ = 0, at_ = 0;
};

// One that goes back over a run from each of its places takes half the run's length a byte.
// Trinity's looked over 510 digits 510 times to find the first piece of 1021.
TEST(LinearPatterns, EveryNameTakesFewStepsAByte) {
  constexpr size_t kRun = 1021, kStepsAByte = 64;
  for (const GgmlPre& row : ggml_pres()) {
    StepCounter steps(linear_patterns(row.patterns));
    for (const std::string& unit : kCharacters)
      for (const char* end : {"", "5", "\u4E2D", "!"}) {
        if (unit == "\xE2") continue;  // never matched against
        const std::string text = repeated(unit, kRun) + end;
        EXPECT_LE(steps.of(text), kStepsAByte * text.size())
            << row.names[0] << ": " << unit << " and " << end;
      }
  }
}

}  // namespace
}  // namespace moe::test::linear_patterns_test
