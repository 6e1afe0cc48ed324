// Preference pairs of JSON Lines in every form, what of them is learned from, and one clear line
// for each that is none; then as tokens of a corpus.
#include "text/preference_pair.h"

#include "support/files.h"
#include "text/bpe_train.h"
#include "text/corpus.h"
#include "text/jsonl.h"
#include "text/tokenize.h"

namespace moe::test::preference_pair_test {
namespace {

std::string learned(const Document& document) {
  std::string out;
  for (const auto& [begin, end] : document.trained)
    out += "[" +
           document.text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)) + "]";
  return out;
}

Document read_pair(const std::string& line) {
  JsonlReader reader(line, "x.jsonl");
  Document pair;
  EXPECT_TRUE(reader.next(pair));
  EXPECT_EQ(pair.rejected.size(), 1u);
  EXPECT_FALSE(pair.all_trained);
  pair.rejected.resize(1);
  return pair;
}

std::string refusal(const std::string& line) {
  return message_of([&] {
    const std::string bytes = "{\"text\": \"good\"}\n" + line;
    JsonlReader reader(bytes, "x.jsonl");
    for (Document document; reader.next(document);) continue;
  });
}
#define EXPECT_REFUSED(line, part) EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, refusal(line))

const std::string kUser = R"({"role": "user", "content": "q"})",
                  kGood = R"({"role": "assistant", "content": "good"})",
                  kBad = R"({"role": "assistant", "content": "bad"})";

// {"chosen": [a], "rejected": [b]}, and "prompt" where there is one.
std::string of_lists(const std::string& prompt, const std::string& a, const std::string& b) {
  return (prompt.empty() ? "{" : R"({"prompt": )" + prompt + ", ") + R"("chosen": [)" + a +
         R"(], "rejected": [)" + b + "]}";
}

TEST(PreferencePair, StringsAreTakenAsTheyAre) {
  const Document pair =
      read_pair(R"({"prompt": "2+2=", "chosen": " 4", "rejected": " 5", "id": 1})");
  EXPECT_EQ(pair.text, "2+2= 4");
  EXPECT_EQ(learned(pair), "[ 4]");
  EXPECT_EQ(pair.rejected[0].text, "2+2= 5");
  EXPECT_EQ(learned(pair.rejected[0]), "[ 5]");
  EXPECT_TRUE(pair.is_plain && pair.rejected[0].is_plain);
  EXPECT_EQ(learned(read_pair(R"({"prompt": "", "chosen": "ab", "rejected": "ac"})")), "[ab]");
  EXPECT_EQ(learned(read_pair(R"({"prompt": "p", "chosen": "", "rejected": "c"})")), "");
}

TEST(PreferencePair, TheCommonBeginningOfStringsIsTheirPrompt) {
  Document pair = read_pair(R"({"chosen": "Human: a Bot: yes", "rejected": "Human: a Bot: no"})");
  EXPECT_EQ(learned(pair), "[ yes]") << "a space goes with what follows it";
  EXPECT_EQ(learned(pair.rejected[0]), "[ no]");
  pair = read_pair(R"({"chosen": "grün", "rejected": "grén"})");
  EXPECT_EQ(learned(pair), "[ün]") << "no character is cut: both begin with the same byte";
  pair = read_pair(R"({"chosen": "ab", "rejected": "abc"})");
  EXPECT_EQ(learned(pair), "");
  EXPECT_EQ(learned(pair.rejected[0]), "[c]");
}

TEST(PreferencePair, ListsGoThroughTheTemplate) {
  const std::string begin = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n";
  for (const std::string& line : {of_lists("[" + kUser + "]", kGood, kBad),
                                  of_lists("", kUser + "," + kGood, kUser + "," + kBad),
                                  of_lists("\"q\"", kUser + "," + kGood, kUser + "," + kBad)}) {
    SCOPED_TRACE(line);
    const Document pair = read_pair(line);
    EXPECT_EQ(pair.text, begin + "good<|im_end|>\n");
    EXPECT_EQ(learned(pair), "[good<|im_end|>]");
    EXPECT_EQ(pair.rejected[0].text, begin + "bad<|im_end|>\n");
    EXPECT_EQ(learned(pair.rejected[0]), "[bad<|im_end|>]");
    EXPECT_FALSE(pair.is_plain);
  }
}

TEST(PreferencePair, RepliesOfThePromptAreReadOnly) {
  const std::string before = kUser + "," + kGood + "," + kUser;
  for (const std::string& line :
       {of_lists("[" + before + "]", kGood + "," + kUser + "," + kGood, kBad),
        of_lists("", before + "," + kGood + "," + kUser + "," + kGood, before + "," + kBad)}) {
    const Document pair = read_pair(line);
    EXPECT_EQ(learned(pair), "[good<|im_end|>][good<|im_end|>]");
    EXPECT_EQ(pair.trained[0].begin, static_cast<int64_t>(pair.text.find("good", 60)));
    EXPECT_EQ(learned(pair.rejected[0]), "[bad<|im_end|>]");
  }
}

TEST(PreferencePair, WhatIsNoPairIsRefused) {
  EXPECT_REFUSED(R"({"prompt": "a", "chosen": "b"})",
                 "x.jsonl: line 2: \"rejected\" is missing; a preference pair has \"chosen\" and "
                 "\"rejected\"");
  EXPECT_REFUSED(R"({"prompt": "a", "rejected": "b", "chosen": null})",
                 "x.jsonl: line 2: \"chosen\" is missing");
  EXPECT_REFUSED(R"({"chosen": "a", "rejected": "b", "text": "c"})",
                 "\"text\" stands beside \"chosen\" and \"rejected\"");
  EXPECT_REFUSED(R"({"chosen": 3, "rejected": "b"})", "\"chosen\" must be a string, this is 3");
  EXPECT_REFUSED(
      R"({"chosen": "a", "rejected": ["b"]})",
      "line 2: one of \"chosen\" and \"rejected\" is a list of messages, the other is not");
  EXPECT_REFUSED(
      R"({"prompt": [], "chosen": "a", "rejected": "b"})",
      "line 2: \"prompt\" is a list of messages, \"chosen\" and \"rejected\" are strings");
  EXPECT_REFUSED(R"({"prompt": 1, "chosen": "a", "rejected": "b"})", "\"prompt\" must be a string");
  EXPECT_REFUSED(R"({"chosen": "a", "rejected": "a"})",
                 "line 2: \"chosen\" and \"rejected\" are the same");
  EXPECT_REFUSED(R"({"chosen": "", "rejected": "a"})", "line 2: \"chosen\" is empty");
  EXPECT_REFUSED(of_lists("", kGood, kBad), "begin with different messages");
  EXPECT_REFUSED(of_lists("[" + kUser + "]", kGood, kGood), "are the same");
  EXPECT_REFUSED(of_lists("[" + kUser + "]", kGood, kUser),
                 "line 2: \"rejected\": no message behind the prompt has the role \"assistant\"");
  EXPECT_REFUSED(of_lists("", kUser, kUser + "," + kBad),
                 "\"chosen\": no message behind the prompt");
  EXPECT_REFUSED(of_lists("[" + kUser + "]", R"({"role": "bot", "content": "a"})", kBad),
                 "line 2: \"chosen\": ");
  EXPECT_REFUSED(of_lists("[" + kUser + "]", R"({"role": "assistant"})", kBad),
                 "line 2: \"chosen\"[0]: \"content\" is missing");
  EXPECT_REFUSED(of_lists("[" + kUser + "]", "3", kBad), "\"chosen\"[0]: an object is needed");
}

class PairsOfAFile : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& bytes) {
    put(folder_ / name, bytes);
    return folder_ / name;
  }
  TempFolder folder_;
  std::unique_ptr<Tokenizer> bytes_ = make_tokenizer("bytes");
};

TEST_F(PairsOfAFile, AreTwoDocumentsEach) {
  const std::string path = write("a.jsonl", R"({"prompt": "ab", "chosen": "cd", "rejected": "e"})"
                                            "\n"
                                            R"({"prompt": "", "chosen": "f", "rejected": "g"})");
  const Corpus corpus({path}, *bytes_, Pairs::taken);
  EXPECT_EQ(corpus.pairs(), 2);
  EXPECT_EQ(corpus.documents(), 4);
  EXPECT_EQ(corpus.size(), 9);
  EXPECT_EQ(corpus.untrained(), 4);
  EXPECT_EQ(corpus.document_end(0), 4);
  EXPECT_EQ(corpus.document_end(4), 7);
  std::vector<uint8_t> trained(9);
  corpus.fill_trained(0, 9, trained.data());
  EXPECT_EQ(trained, (std::vector<uint8_t>{0, 0, 1, 1, 0, 0, 1, 1, 1}));
}

TEST_F(PairsOfAFile, StayOnOneSideOfASplit) {
  std::string lines;
  for (int i = 0; i < 200; ++i)
    lines += fmt::format("{{\"prompt\": \"{}\", \"chosen\": \"{}!\", \"rejected\": \"?{}\"}}\n", i,
                         i, i);
  const SplitCorpus parts = Corpus::split({write("a.jsonl", lines)}, *bytes_, 0.2, Pairs::taken);
  EXPECT_EQ(parts.train.pairs() + parts.held_out.pairs(), 200);
  EXPECT_GT(parts.held_out.pairs(), 20);
  for (const Corpus* part : {&parts.train, &parts.held_out}) {
    EXPECT_EQ(part->documents(), 2 * part->pairs());
    for (int64_t p = 0, at = 0; p < part->pairs(); ++p) {
      const int64_t middle = part->document_end(at), end = part->document_end(middle);
      EXPECT_EQ(part->at(middle - 1), '!');
      EXPECT_NE(part->at(end - 1), '!');
      at = end;
    }
  }
}

TEST_F(PairsOfAFile, AreNotMixedWithOtherText) {
  const std::string pairs = write("p.jsonl", R"({"chosen": "a", "rejected": "b"})"),
                    text = write("t.txt", "text"),
                    both = write("b.jsonl", R"({"chosen": "a", "rejected": "b"})"
                                            "\n"
                                            R"({"text": "c"})");
  EXPECT_FAILS(Corpus({text, pairs}, *bytes_, Pairs::taken),
               pairs + " holds preference pairs and " + text + " other text");
  EXPECT_FAILS(Corpus({both}, *bytes_, Pairs::taken), "other text");
  EXPECT_FAILS(Corpus({pairs}, *bytes_), pairs + " holds preference pairs, which only data and ");
}

// Whatever else is wrong with them: no other form of them would be taken.
TEST_F(PairsOfAFile, AreRefusedWhereTheyHaveNoUse) {
  const std::string lists = write("l.jsonl", of_lists("[" + kUser + "]", kGood, kBad)),
                    refusal = lists + " holds preference pairs, which only data and eval_data of";
  EXPECT_FAILS(Corpus({lists}, *bytes_), refusal);
  EXPECT_FAILS(Corpus::split({lists}, *bytes_, 0.5), refusal);
  TokenizeJob job;
  job.paths = {lists};
  job.out = folder_ / "out";
  EXPECT_FAILS(tokenize(job, *bytes_, {}), refusal);
  const auto learned = choose_tokenizer("bpe:300", {lists});
  EXPECT_FAILS(tokenize(job, *learned, {}), refusal);
  EXPECT_FAILS(Corpus({write("h.jsonl", R"({"text": "a", "chosen": "b"})")}, *bytes_),
               "\"rejected\" is missing");
}

TEST_F(PairsOfAFile, ListsNeedATemplate) {
  const std::string path = write("p.jsonl", of_lists("[" + kUser + "]", kGood, kBad));
  EXPECT_FAILS(Corpus({path}, *bytes_, Pairs::taken),
               path + ": line 1: \"chosen\": the model has no chat template");
  mark_dialogues(*bytes_);
  EXPECT_EQ(Corpus({path}, *bytes_, Pairs::taken).pairs(), 1);
}

// What a tokenizer puts around a text stands around these too.
class AroundTokenizer : public Tokenizer {
 public:
  AroundTokenizer() { set_special({.bos = 256, .eos = 257, .add_bos = true}); }
  int64_t vocab_size() const override { return 258; }
  std::string spec() const override { return "around"; }
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string piece(int32_t id) const override {
    return id < 256 ? std::string(1, static_cast<char>(id)) : "";
  }
  std::string to_json() const override { return ""; }
};

TEST_F(PairsOfAFile, StringsBeginAndEndAsTextsDo) {
  const std::string path = write("p.jsonl", R"({"prompt": "a", "chosen": "b", "rejected": ""})"
                                            "\n"
                                            R"({"prompt": "", "chosen": "c", "rejected": "d"})");
  const Corpus corpus({path}, AroundTokenizer(), Pairs::taken);
  std::vector<int32_t> ids(static_cast<size_t>(corpus.size()));
  std::vector<uint8_t> trained(ids.size());
  corpus.fill(0, corpus.size(), ids.data());
  corpus.fill_trained(0, corpus.size(), trained.data());
  EXPECT_EQ(
      ids, (std::vector<int32_t>{256, 'a', 'b', 257, 256, 'a', 257, 256, 'c', 257, 256, 'd', 257}));
  EXPECT_EQ(trained, (std::vector<uint8_t>{0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 1, 1}));
}

}  // namespace
}  // namespace moe::test::preference_pair_test
