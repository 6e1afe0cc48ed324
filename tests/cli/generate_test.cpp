// `moe generate`: where its prompt comes from, and several texts of one prompt.
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "support/command.h"

namespace moe::test::generate_test {
namespace {

// A small model that has seen some text, made once.
class Generate : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    put(*folder_ / "text.txt", small_text());
    ok(train_small(*folder_ / "text.txt", model(), "20"));
  }
  static void TearDownTestSuite() { folder_.reset(); }
  static std::string model() { return *folder_ / "m"; }
  static std::string file(const std::string& name, const std::string& bytes) {
    put(*folder_ / name, bytes);
    return *folder_ / name;
  }
  static std::vector<std::string> words(std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", model(), "-n", "12", "--threads", "2"});
    return more;
  }
  static CommandResult fed(const std::string& input, std::vector<std::string> more) {
    return moe_command(words(std::move(more)), {}, input);
  }
  static Json json(std::vector<std::string> more) {
    more.emplace_back("--json");
    return parse_json(ok(words(std::move(more))).out, "moe generate");
  }

  static std::unique_ptr<TempFolder> folder_;
};
std::unique_ptr<TempFolder> Generate::folder_;

TEST_F(Generate, ReadsItsPromptFromAFileOrStandardInput) {
  const std::string want = ok(words({"-p", "The router\nsends"})).out;
  EXPECT_EQ(ok(words({"-f", file("prompt.txt", "The router\nsends\n")})).out, want)
      << "the line end that ends a file is not continued";
  EXPECT_EQ(ok(words({"--file", file("dos.txt", "The router\nsends\r\n")})).out, want);
  EXPECT_EQ(fed("The router\nsends\n", {"-p", "-"}).out, want);
  EXPECT_EQ(fed("The router\nsends", {"-f", "-"}).out, want);
  EXPECT_NE(fed("The router\nsends\n\n", {"-p", "-"}).out, want) << "one line end goes, not all";
  EXPECT_TRUE(ok(words({"-p", "--"})).out.starts_with("--")) << "any other text is one";
}

TEST_F(Generate, RefusesAPromptThatIsNone) {
  expect_refused(words({}), 2, {"--prompt TEXT", "--prompt -", "--file FILE"});
  expect_refused(words({"-p", ""}), 2, {"prompt is empty", "-p"});
  expect_refused(words({"-p", "x", "-f", file("x.txt", "x")}), 2,
                 {"--prompt and --file", "one of them"});
  expect_refused(words({"-p", "-"}), 1, {"standard input is empty"});
  expect_refused(words({"-f", file("empty.txt", "")}), 1, {"empty.txt is empty"});
  expect_refused(words({"-f", file("line.txt", "\n")}), 1, {"line.txt is empty"});
  expect_refused(words({"-f", file("nul.txt", std::string("ab\0c", 4))}), 1,
                 {"nul.txt is no text", "byte 2 is NUL"});
  expect_refused(words({"-f", file("latin.txt", "na\xEFve")}), 1,
                 {"latin.txt is no text", "byte 2", "UTF-8"});
  expect_refused(words({"-f", *folder_ / "none.txt"}), 1, {"none.txt"});
  expect_refused(words({"-f", folder_->path()}), 1, {folder_->path()});
}

TEST_F(Generate, SaysHowFastItWasWhereThatIsAsked) {
  const CommandResult quiet = ok(words({"-p", "The router"})),
                      told = ok(words({"-p", "The router", "--show-speed"}));
  EXPECT_EQ(told.out, quiet.out);
  EXPECT_EQ(quiet.err.find("speed: "), std::string::npos) << quiet.err;
  has(told.err, "speed: 10 tokens of the prompt read in ");
  has(told.err, "; 12 tokens written in ");
  EXPECT_TRUE(told.err.ends_with(" tokens/s\n")) << told.err;
  expect_refused(words({"-p", "x", "--verbose"}), 2, {"moe calls it --show-speed;"});
}

// The i-th of several is what its seed writes alone: the same text, whatever was written before it.
TEST_F(Generate, EachSampleIsWhatItsSeedWritesAlone) {
  for (const std::vector<std::string>& how :
       {std::vector<std::string>{}, {"--prompt-lookup", "4"}, {"--repeat-penalty", "1.3"}}) {
    std::vector<std::string> several = {"-p", "line 1", "--seed", "7", "--samples", "3"};
    several.insert(several.end(), how.begin(), how.end());
    const Json list = json(several);
    ASSERT_TRUE(list.is_array());
    ASSERT_EQ(list.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      std::vector<std::string> one = {"-p", "line 1", "--seed", std::to_string(7 + i)};
      one.insert(one.end(), how.begin(), how.end());
      const Json alone = json(one);
      EXPECT_EQ(list[i].at("seed"), 7 + i);
      for (const char* key :
           {"prompt", "text", "ids", "prompt_ids", "prompt_tokens", "tokens", "finish"})
        EXPECT_EQ(list[i].at(key), alone.at(key)) << key;
    }
    EXPECT_NE(list[0].at("text"), list[1].at("text"));
  }
}

// The model itself is a draft whose guesses are right, another one changes nothing either.
TEST_F(Generate, ADraftModelGuessesAndTheTextStaysTheSame) {
  const std::string other = *folder_ / "other", of_words = *folder_ / "of-words";
  ok(train_small(*folder_ / "text.txt", other, "2"));
  const Json plain = json({"-p", "line 1"});
  EXPECT_EQ(plain.at("proposed"), 0);
  for (const std::string& draft : {model(), other}) {
    const std::vector<std::string> how = {"-p", "line 1",         "--draft", draft, "--draft-min-p",
                                          "0",  "--draft-tokens", "4"};
    const Json guessed = json(how);
    EXPECT_EQ(guessed.at("ids"), plain.at("ids"));
    EXPECT_GT(guessed.at("proposed"), 0);
    EXPECT_LE(guessed.at("accepted"), guessed.at("proposed"));
    if (draft == model()) EXPECT_GT(guessed.at("accepted"), 4);
    has(ok(words(how)).err, "guessed tokens were right");
    std::vector<std::string> several = how;
    several.insert(several.end(), {"--samples", "2", "--seed", "7"});
    EXPECT_EQ(json(several)[1].at("ids"), json({"-p", "line 1", "--seed", "8"}).at("ids"));
  }
  // Texts of the draft end at 32 tokens.
  has(ok(words({"-p", std::string(30, 'x'), "--draft", other})).err,
      "--draft was made for 32 tokens");

  std::vector<std::string> training = train_small(*folder_ / "text.txt", of_words, "2");
  training.insert(training.end(), {"--tokenizer", "bpe:270"});
  ok(training);
  expect_refused(words({"-p", "x", "--draft", of_words}), 2, {"--draft", "vocabulary"});
  expect_refused(words({"-p", "x", "--draft", *folder_ / "none"}), 1, {"none"});
  expect_refused(words({"-p", "x", "--draft", other, "--draft-tokens", "65"}), 2,
                 {"--draft-tokens is 65"});
  expect_refused(words({"-p", "x", "--draft-min-p", "0.5"}), 2, {"--draft-min-p", "--draft MODEL"});
  expect_refused(words({"-p", "x", "--draft", other, "--prompt-lookup", "4"}), 2,
                 {"--prompt-lookup and --draft"});
}

TEST_F(Generate, SaysThatATextIsLongerThanTheContext) {
  has(ok(words({"-p", std::string(2000, 'x')})).err,
      "2011 tokens in one text are more than the 32");
  EXPECT_EQ(ok(words({"-p", "line 1"})).err, "") << "18 are not";
}

TEST_F(Generate, SamplesStandApartOnTheScreen) {
  const std::string two = ok(words({"-p", "line 1", "--seed", "7", "--samples", "2"})).out;
  const std::string first = ok(words({"-p", "line 1", "--seed", "7"})).out,
                    second = ok(words({"-p", "line 1", "--seed", "8"})).out;
  EXPECT_EQ(two, "==> sample 1 of 2, --seed 7 <==\n" + first +
                     "\n==> sample 2 of 2, --seed 8 <==\n" + second);
  EXPECT_EQ(ok(words({"-p", "line 1", "--seed", "7", "--samples", "1"})).out, first);
  EXPECT_TRUE(json({"-p", "line 1", "--samples", "1"}).is_object());
  expect_refused(words({"-p", "x", "--samples", "0"}), 2, {"--samples is 0"});
  expect_refused(words({"-p", "x", "--samples", "2", "--temperature", "0"}), 2,
                 {"--samples 2", "--temperature 0"});
}

}  // namespace
}  // namespace moe::test::generate_test
