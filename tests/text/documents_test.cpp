// Documents of every kind of source, what of them is learned from, and which of them are held out.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <regex>
#include <set>
#include <sstream>

#include "core/rng.h"
#include "support/files.h"
#include "support/learned_bpe.h"
#include "text/bpe_train.h"
#include "text/chat.h"
#include "text/corpus.h"
#include "text/tokenize.h"

namespace moe::test::documents_test {
namespace {

std::string text_of(const Corpus& corpus, const Tokenizer& tokenizer, int64_t begin = 0,
                    int64_t end = -1) {
  std::vector<int32_t> ids(static_cast<size_t>((end < 0 ? corpus.size() : end) - begin));
  corpus.fill(begin, static_cast<int64_t>(ids.size()), ids.data());
  return tokenizer.decode(ids);
}

std::vector<std::string> documents_of(const Corpus& corpus, const Tokenizer& tokenizer) {
  std::vector<std::string> all;
  for (int64_t at = 0; at < corpus.size(); at = corpus.document_end(at))
    all.push_back(text_of(corpus, tokenizer, at, corpus.document_end(at)));
  EXPECT_EQ(static_cast<int64_t>(all.size()), corpus.documents());
  return all;
}

// The text of the tokens that are learned from.
std::string learned_from(const Corpus& corpus, const Tokenizer& tokenizer) {
  std::vector<uint8_t> trained(static_cast<size_t>(corpus.size()));
  corpus.fill_trained(0, corpus.size(), trained.data());
  std::string text;
  for (int64_t i = 0; i < corpus.size(); ++i)
    if (trained[static_cast<size_t>(i)] != 0) text += tokenizer.piece(corpus.at(i));
  return text;
}

class Documents : public ::testing::Test {
 protected:
  TempFolder folder_;
  std::unique_ptr<Tokenizer> bytes_ = make_tokenizer("bytes");
  static std::unique_ptr<Tokenizer> words() {
    const std::string_view text =
        "the cat and the dog and the cat, a user and an assistant, the answer";
    return learned_bpe(std::span(&text, 1), 270);
  }
};

TEST_F(Documents, ATextFileEndsOneAtEachMark) {
  put(folder_ / "a.txt", "the cat<|endoftext|>and the dog<|endoftext|>");
  put(folder_ / "b.txt", "<|endoftext|>the<|endoftext|>cat");
  const auto tokenizer = words();
  const Corpus corpus({folder_ / "a.txt", folder_ / "b.txt"}, *tokenizer);
  EXPECT_EQ(documents_of(corpus, *tokenizer),
            (std::vector<std::string>{"the cat<|endoftext|>", "and the dog<|endoftext|>",
                                      "<|endoftext|>", "the<|endoftext|>", "cat"}));
  EXPECT_EQ(corpus.files()[1].begin, corpus.document_end(corpus.document_end(0)));
  // Bytes know no mark.
  const Corpus plain({folder_ / "a.txt", folder_ / "b.txt"}, *bytes_);
  EXPECT_EQ(plain.documents(), 2);
  EXPECT_EQ(plain.document_end(3), plain.files()[0].end);
}

TEST_F(Documents, EachLineOfJsonIsOneAndDialoguesAreLearnedFromByTheirReplies) {
  put(folder_ / "talk.jsonl",
      "{\"text\": \"the cat\"}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"the dog\"}, {\"role\": \"assistant\", "
      "\"content\": \"and the cat\"}, {\"role\": \"user\", "
      "\"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"gr\\u00fc\\u00dfe\"}]}\n"
      "{\"text\": \"dog\"}\n");
  const auto bpe = words();
  for (const Tokenizer* tokenizer : {bytes_.get(), bpe.get()}) {
    SCOPED_TRACE(tokenizer->spec());
    const std::string end = tokenizer->eos_id() ? kEndOfText : "";
    const Corpus corpus({folder_ / "talk.jsonl"}, *tokenizer);
    const std::vector<std::string> documents = documents_of(corpus, *tokenizer);
    ASSERT_EQ(documents.size(), 3u);
    EXPECT_EQ(documents[0], "the cat" + end);
    EXPECT_EQ(documents[1],
              "<|im_start|>user\nthe dog<|im_end|>\n<|im_start|>assistant\nand the "
              "cat<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
              "grüße<|im_end|>\n");
    EXPECT_EQ(documents[2], "dog" + end);
    if (tokenizer == bytes_.get()) {
      EXPECT_EQ(learned_from(corpus, *tokenizer), "the catand the cat<|im_end|>grüße<|im_end|>dog");
      EXPECT_EQ(corpus.untrained(), corpus.size() - 48);
    } else {
      // A token that begins in a reply may reach beyond it, and one that begins before it is not
      // learned from.
      EXPECT_NE(learned_from(corpus, *tokenizer).find("cat<|im_end|>"), std::string::npos);
      EXPECT_EQ(learned_from(corpus, *tokenizer).find("user"), std::string::npos);
    }
  }
}

// Enough lines that they are encoded in several batches by several threads.
TEST_F(Documents, ManyLinesKeepTheirOrderAndTheirSpans) {
  std::string lines, want, learned;
  for (int i = 0; i < 4000; ++i) {
    const std::string question(static_cast<size_t>(i % 97), 'q'),
        reply = "the answer " + std::to_string(i);
    lines += R"({"messages": [{"role": "user", "content": ")" + question +
             R"("}, {"role": "assistant", "content": ")" + reply + "\"}]}\n";
    const Message both[] = {{"user", question}, {"assistant", reply}};
    want += chat_document(both).text;
    learned += reply + kMessageEnd;
  }
  put(folder_ / "talk.jsonl", lines);
  const Corpus corpus({folder_ / "talk.jsonl"}, *bytes_);
  EXPECT_EQ(corpus.documents(), 4000);
  EXPECT_EQ(text_of(corpus, *bytes_), want);
  EXPECT_EQ(learned_from(corpus, *bytes_), learned);
  std::vector<uint8_t> trained(100);
  std::vector<uint8_t> all(static_cast<size_t>(corpus.size()));
  corpus.fill_trained(0, corpus.size(), all.data());
  for (int64_t start = 0; start + 100 <= corpus.size(); start += 977) {
    corpus.fill_trained(start, 100, trained.data());
    EXPECT_TRUE(std::equal(trained.begin(), trained.end(), all.begin() + start)) << start;
  }
}

// Sentences of words drawn once, in paragraphs.
std::string prose(uint64_t seed, size_t bytes) {
  const char* lexicon[] = {"moss",  "river", "stone",  "lantern",
                           "quiet", "amber", "willow", "ember"};
  const RngKey key = RngKey::from_seed(seed);
  std::string text;
  for (uint64_t i = 0; text.size() < bytes; ++i) {
    text += lexicon[uniform_index(key, 2 * i, 8)];
    text += uniform_index(key, 2 * i + 1, 40) == 0  ? "\n\n"
            : uniform_index(key, 2 * i + 1, 8) == 0 ? "\n"
                                                    : " ";
  }
  return text;
}

TEST(HoldOut, TheShareIsMetAndDependsOnContentOnly) {
  int held = 0;
  for (int i = 0; i < 20'000; ++i) held += is_held_out("document " + std::to_string(i), 0.05);
  EXPECT_NEAR(held, 1000, 4 * 31);
  EXPECT_FALSE(is_held_out("anything", 0));
  // What is held out of a small share is held out of a larger one.
  for (int i = 0; i < 1000; ++i)
    if (is_held_out(std::to_string(i), 0.05)) EXPECT_TRUE(is_held_out(std::to_string(i), 0.2));
}

TEST_F(Documents, TheSplitOfPlainTextLosesNothingAndFollowsTheContent) {
  std::string whole[3];
  for (int i = 0; i < 3; ++i)
    put(folder_ / ("in/" + std::to_string(i) + ".txt"),
        whole[i] = prose(static_cast<uint64_t>(i), 150'000));
  const auto split = Corpus::split({folder_ / "in"}, *bytes_, 0.2);
  EXPECT_EQ(split.train.size() + split.held_out.size(),
            static_cast<int64_t>(whole[0].size() + whole[1].size() + whole[2].size()));
  EXPECT_NEAR(static_cast<double>(split.held_out.size()) / 450'000, 0.2, 0.12);
  ASSERT_EQ(split.train.files().size(), 3u);
  // Each document is a part of its file that begins and ends at a line, in order, and the two sides
  // take turns.
  const std::vector<std::string> train = documents_of(split.train, *bytes_),
                                 held = documents_of(split.held_out, *bytes_);
  for (const auto* side : {&train, &held})
    for (const std::string& document : *side) {
      EXPECT_TRUE(whole[0].find(document) != std::string::npos ||
                  whole[1].find(document) != std::string::npos ||
                  whole[2].find(document) != std::string::npos);
      const bool last = whole[0].ends_with(document) || whole[1].ends_with(document) ||
                        whole[2].ends_with(document);
      EXPECT_TRUE(last || (document.size() >= 4096 && document.back() == '\n'));
    }
  // Renamed, reordered, and with another file among them: the same on either side.
  put(folder_ / "other/z.txt", whole[0]);
  put(folder_ / "other/y.txt", prose(99, 50'000));
  put(folder_ / "other/a.txt", whole[2]);
  put(folder_ / "other/b.txt", whole[1]);
  const auto again = Corpus::split({folder_ / "other"}, *bytes_, 0.2);
  const std::vector<std::string> held_again = documents_of(again.held_out, *bytes_);
  for (const std::string& document : held)
    EXPECT_NE(std::find(held_again.begin(), held_again.end(), document), held_again.end());
}

// Where each block looked through all of the line, this would take minutes.
TEST_F(Documents, OneLongLineIsSplitWhole) {
  std::string text;
  while (text.size() < size_t{32} << 20) text += "word" + std::to_string(text.size() * 7919) + " ";
  std::string parts;
  each_run("text8", text, *bytes_, 0.5, Pairs::refused,
           [&](TextRun&& run) { parts += run.text(); });
  EXPECT_TRUE(parts == text);
}

TEST_F(Documents, IdenticalDocumentsFallOnTheSameSide) {
  std::string lines, text;
  for (int i = 0; i < 300; ++i) {
    lines += "{\"text\": \"the cat " + std::to_string(i % 100) + "\"}\n";
    text += "the cat " + std::to_string(i % 100) + (i == 299 ? "" : kEndOfText);
  }
  put(folder_ / "lines.jsonl", lines);
  put(folder_ / "marked.txt", text);
  const auto tokenizer = words();
  std::set<std::string> sides[2][2];
  for (const int from_lines : {0, 1}) {
    const auto split =
        Corpus::split({folder_ / (from_lines ? "lines.jsonl" : "marked.txt")}, *tokenizer, 0.3);
    EXPECT_EQ(split.train.documents() + split.held_out.documents(), 300);
    for (const int held : {0, 1})
      for (std::string document : documents_of(held ? split.held_out : split.train, *tokenizer)) {
        if (document.ends_with(kEndOfText)) document.resize(document.size() - 13);
        sides[from_lines][held].insert(document);
      }
  }
  EXPECT_EQ(sides[0][0].size() + sides[0][1].size(), 100u) << "no document is on both sides";
  EXPECT_EQ(sides[0][1], sides[1][1]) << "whatever the file is";
  EXPECT_NEAR(static_cast<double>(sides[0][1].size()), 30, 20);
}

// The same texts as files, as lines of JSON and apart by marks: long ones, which are cut, and with
// the line end at the end that a file has and a line of JSON has not. No part of a text may be on
// both sides, whatever holds it.
TEST_F(Documents, ATextFallsOnTheSameSidesWhateverFileItIsIn) {
  std::string lines, marked;
  for (uint64_t i = 0; i < 60; ++i) {
    std::string text = prose(1000 + i, i % 3 == 0 ? 300 : 3000 + 500 * i);
    text.erase(text.find_last_not_of(" \n") + 1);
    // Every line says where it is from, so that it can be found again.
    std::string numbered;
    std::istringstream in(text);
    for (int line = 0; std::getline(in, text); ++line)
      numbered += text.empty() ? "\n" : fmt::format("[{}.{}] {}\n", i, line, text);
    put(folder_ / fmt::format("in/{}.txt", i), numbered + (i % 2 ? "\n" : ""));
    marked += (i > 0 ? kEndOfText : "") + numbered;
    numbered.pop_back();
    lines += "{\"text\": \"" + std::regex_replace(numbered, std::regex("\n"), "\\n") + "\"}\n";
  }
  put(folder_ / "in/lines.jsonl", lines);
  put(folder_ / "marked/all.txt", marked);
  const auto tokenizer = words();
  const std::vector<std::string> in = {folder_ / "in", folder_ / "marked"};
  const auto split = Corpus::split(in, *tokenizer, 0.3);
  tokenize({.paths = in, .out = folder_ / "out", .hold_out = 0.3}, *tokenizer, {});
  const Corpus train({folder_ / "out/train"}, *tokenizer),
      held({folder_ / "out/valid"}, *tokenizer);
  for (const auto& [trained, held_out] :
       {std::pair(&split.train, &split.held_out), std::pair(&train, &held)}) {
    const std::string a = text_of(*trained, *tokenizer), b = text_of(*held_out, *tokenizer);
    EXPECT_NEAR(static_cast<double>(b.size()) / static_cast<double>(a.size() + b.size()), 0.3,
                0.12);
    const auto marks = [](const std::string& text) {
      std::set<std::string> all;
      for (size_t at = text.find('['); at != std::string::npos; at = text.find('[', at + 1))
        all.insert(text.substr(at, text.find(']', at) - at));
      return all;
    };
    const std::set<std::string> trained_marks = marks(a), held_marks = marks(b);
    EXPECT_GT(held_marks.size(), 100u);
    std::set<std::string> leaked;  // texts
    for (const std::string& mark : held_marks)
      if (trained_marks.contains(mark)) leaked.insert(mark.substr(0, mark.find('.')));
    EXPECT_EQ(leaked.size(), 0u) << "of 60 texts";
  }
}

// Only the text counts of a dialogue too, and it is never cut: its replies make no sense without
// what they answer.
TEST_F(Documents, ADialogueIsOnOneSide) {
  std::string lines;
  for (uint64_t i = 0; i < 40; ++i)
    lines += "{\"messages\": [{\"role\": \"user\", \"content\": \"" + std::string(9000 + i, 'a') +
             "\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n";
  put(folder_ / "talk.jsonl", lines);
  const auto split = Corpus::split({folder_ / "talk.jsonl"}, *words(), 0.5);
  EXPECT_EQ(split.train.documents() + split.held_out.documents(), 40);
}

TEST_F(Documents, ASplitThatLeavesNothingIsRefused) {
  put(folder_ / "a.txt", "a single short text");
  EXPECT_FAILS(Corpus::split({folder_ / "a.txt"}, *bytes_, 1e-6), "leaves nothing held out");
  EXPECT_FAILS(Corpus::split({folder_ / "a.txt"}, *bytes_, 1 - 1e-9), "leaves nothing to train on");
}

// Beyond 16 MiB a text is encoded in parts cut at line ends; it stays one document with the same
// bytes.
TEST_F(Documents, ALongTextIsEncodedInParts) {
  std::string text = prose(5, size_t{1} << 20);
  while (text.size() < (size_t{33} << 20)) text += text.substr(0, size_t{1} << 20);
  put(folder_ / "long.txt", text);
  const auto tokenizer = words();
  const Corpus corpus({folder_ / "long.txt"}, *tokenizer);
  EXPECT_EQ(corpus.documents(), 1);
  EXPECT_EQ(corpus.document_end(12345), corpus.size());
  EXPECT_EQ(text_of(corpus, *tokenizer), text);
}

}  // namespace
}  // namespace moe::test::documents_test
