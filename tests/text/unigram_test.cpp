// The unigram model: the best cut against all cuts, what is no word, and every file it comes in:
// tokenizer.json, tokenizer.model and GGUF.
#include "text/unigram.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "core/base64.h"
#include "core/json.h"
#include "support/files.h"
#include "support/limits.h"
#include "support/sentencepiece_file.h"
#include "text/bpe.h"
#include "text/charsmap.h"
#include "text/ggml_vocab.h"
#include "text/sentencepiece_model.h"
#include "text/utf8.h"

namespace moe::test::unigram_test {
namespace {

using Strings = std::vector<std::string>;
using Parts = std::vector<UnigramTable::Part>;

Parts cut(const UnigramTable& table, std::string_view text, size_t window = UnigramTable::kWindow) {
  Parts parts;
  table.cut(
      text, [&](const UnigramTable::Part& part) { parts.push_back(part); }, window);
  return parts;
}

// The best sum of every way to cut the text, by trying all.
double best_by_definition(std::string_view text, const Strings& words,
                          const std::vector<double>& scores, double unknown) {
  if (text.empty()) return 0;
  double best = -INFINITY;
  bool single = false;
  for (size_t id = 0; id < words.size(); ++id)
    if (!words[id].empty() && text.starts_with(words[id])) {
      single |= words[id].size() == 1;
      best = std::max(best, scores[id] + best_by_definition(text.substr(words[id].size()), words,
                                                            scores, unknown));
    }
  if (!single)
    best = std::max(best, unknown + best_by_definition(text.substr(1), words, scores, unknown));
  return best;
}

TEST(Unigram, FindsTheBestOfAllCuts) {
  std::mt19937 random(1);
  const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto word = [&](int longest) {
    std::string w;
    for (int n = 1 + draw(longest); n > 0; --n) w += static_cast<char>('a' + draw(3));
    return w;
  };
  for (int trial = 0; trial < 200; ++trial) {
    Strings words = {""};
    for (int n = draw(8); n >= 0; --n) {
      const std::string w = word(4);
      if (std::find(words.begin(), words.end(), w) == words.end()) words.push_back(w);
    }
    std::vector<double> scores;
    for (size_t i = 0; i < words.size(); ++i) scores.push_back(-0.25 * (1 + draw(40)));
    const double unknown = *std::min_element(scores.begin(), scores.end()) - 10;
    const UnigramTable table(words, scores);
    const std::string text = word(9);
    double sum = 0;
    std::string back;
    for (const UnigramTable::Part& part : cut(table, text)) {
      sum += part.id < 0 ? unknown : scores[static_cast<size_t>(part.id)];
      if (part.id >= 0) EXPECT_EQ(part.text, words[static_cast<size_t>(part.id)]);
      back += part.text;
    }
    EXPECT_EQ(back, text);
    EXPECT_NEAR(sum, best_by_definition(text, words, scores, unknown), 1e-9) << text;
  }
}

// One table for the whole text, filled from its begin, the shortest word first; the first of equal
// sums stays.
Parts cut_by_one_table(std::string_view text, const Strings& words,
                       const std::vector<double>& scores, double unknown) {
  struct Best {
    double sum = 0;
    size_t from = std::string_view::npos;
    int32_t id = -1;
  };
  std::vector<Best> best(text.size() + 1);
  std::vector<size_t> shortest_first(words.size());
  for (size_t id = 0; id < words.size(); ++id) shortest_first[id] = id;
  std::stable_sort(shortest_first.begin(), shortest_first.end(),
                   [&](size_t a, size_t b) { return words[a].size() < words[b].size(); });
  const auto offer = [&](size_t from, size_t length, double score, int32_t id) {
    const double sum = score + best[from].sum;
    Best& there = best[from + length];
    if (there.from == std::string_view::npos || sum > there.sum) there = {sum, from, id};
  };
  for (size_t at = 0; at < text.size();) {
    const Utf8Step next = utf8_step(text.substr(at));
    const auto character =
        next.kind == Utf8Step::Kind::character ? static_cast<size_t>(next.length) : 1;
    bool single = false;
    for (const size_t id : shortest_first)
      if (text.substr(at).starts_with(words[id])) {
        offer(at, words[id].size(), scores[id], static_cast<int32_t>(id));
        single |= words[id].size() == character;
      }
    if (!single) offer(at, character, unknown, -1);
    at += character;
  }
  Parts parts;
  for (size_t end = text.size(); end > 0; end = best[end].from)
    parts.push_back({text.substr(best[end].from, end - best[end].from), best[end].id});
  std::reverse(parts.begin(), parts.end());
  return parts;
}

// Of one letter words overlap everywhere, of several there are places that all paths pass.
TEST(Unigram, AWindowChangesNothing) {
  std::mt19937 random(2);
  const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const Strings letters = {"a", "b", "é", "\u2581", "c"};
  for (int trial = 0; trial < 300; ++trial) {
    const int alphabet = 1 + draw(5), longest = 1 + draw(9), scores_there_are = 1 + draw(12);
    const auto text_of = [&](int n) {
      std::string text;
      while (n-- > 0) text += letters[static_cast<size_t>(draw(alphabet))];
      return text;
    };
    Strings words;
    std::vector<double> scores;
    for (int n = draw(20); n >= 0; --n) {
      const std::string word = text_of(1 + draw(longest));
      if (std::find(words.begin(), words.end(), word) != words.end()) continue;
      words.push_back(word);
      scores.push_back(-0.1 * (1 + draw(scores_there_are)));
    }
    const double unknown = *std::min_element(scores.begin(), scores.end()) - 10;
    const UnigramTable table(words, scores);
    std::string text = text_of(draw(400));
    if (trial % 4 == 0 && !text.empty()) text[text.size() / 2] = '\xE2';
    const Parts want = cut_by_one_table(text, words, scores, unknown);
    for (const size_t window : {size_t{1}, size_t{7}, size_t{50}, UnigramTable::kWindow}) {
      const Parts parts = cut(table, text, window);
      ASSERT_EQ(parts.size(), want.size()) << text << ", window " << window;
      for (size_t i = 0; i < parts.size(); ++i) {
        ASSERT_EQ(parts[i].text.data(), want[i].text.data()) << text << ", window " << window;
        ASSERT_EQ(parts[i].text, want[i].text);
        ASSERT_EQ(parts[i].id, want[i].id);
      }
    }
  }
}

// Words of two and three letters never meet in a text of one letter, so no place is passed by all
// paths.
TEST(Unigram, ALongTextTakesLittleMemory) {
  if (!kLimitsWork) GTEST_SKIP() << "the sanitizer ends the process where memory is refused";
  const Strings words = {"aa", "aaa", " ", "b"};
  const UnigramTable table(words, {-1, -1.5, -2, -3});
  constexpr size_t kLong = size_t{1} << 20;
  size_t overlapping = 0, apart = 0;
  {
    const std::string as(kLong + 1, 'a');
    std::string bs;
    for (size_t i = 0; i < kLong; ++i) bs += i % 8 == 7 ? ' ' : 'b';
    const AddressLimit limit(int64_t{8} << 20);  // eight bytes a letter
    table.cut(as, [&](const UnigramTable::Part& part) { overlapping += part.text.size(); });
    table.cut(bs, [&](const UnigramTable::Part& part) { apart += part.text.size(); });
  }
  EXPECT_EQ(overlapping, kLong + 1);
  EXPECT_EQ(apart, kLong);
}

TEST(Unigram, BrokenBytesAreUnknownOneByOne) {
  const Strings words = {"a"};
  const UnigramTable table(words, {-1});
  const Parts parts = cut(table, "a\xE2\x82z");
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_EQ(parts[0].id, 0);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(parts[i].id, -1);
}

TEST(Charsmap, TakesTheLongestOrTheShortest) {
  const std::string bytes = charsmap_of({{'A', "a"}, {'\t', " "}, {'#', ""}});
  const Charsmap map(bytes);
  ASSERT_TRUE(map.longest("Ab"));
  EXPECT_EQ(map.longest("Ab")->becomes, "a");
  EXPECT_EQ(map.longest("Ab")->length, 1u);
  EXPECT_EQ(map.shortest("\t")->becomes, " ");
  EXPECT_EQ(map.longest("#")->becomes, "");
  EXPECT_FALSE(map.longest("b"));
  EXPECT_FALSE(map.longest(""));
  EXPECT_FALSE(Charsmap("").longest("A"));
  EXPECT_FAILS(Charsmap("abc"), "no trie");
  EXPECT_FAILS(Charsmap(bytes.substr(0, 100)), "no trie");
  EXPECT_FAILS(Charsmap(std::string("\3\0\0\0abc", 7)), "no trie");
}

const SentencePieceFile kFile = {
    .words = {{"<unk>", 0, 2},
              {"<s>", 0, 3},
              {"</s>", 0, 3},
              {"\u2581", -3},
              {"\u2581the", -2},
              {"\u2581cat", -2.5f},
              {"a", -4},
              {"t", -4},
              {"c", -4},
              {"at", -3.5f},
              {"\u2581zzz", -1, 5}},
    .charsmap = charsmap_of({{'A', "a"}, {'T', "t"}, {'C', "c"}, {'\t', " "}, {'#', ""}})};

std::unique_ptr<Tokenizer> made(const SentencePieceFile& file) {
  return make_ggml_tokenizer(parse_sentencepiece(file.bytes(), "t.model"), "t.model");
}

Strings pieces_of(const Tokenizer& tokenizer, std::string_view text) {
  Strings pieces;
  for (const int32_t id : tokenizer.encode(text)) pieces.push_back(tokenizer.piece(id));
  return pieces;
}

TEST(SentencePieceModel, NormalisesAndCutsAText) {
  const auto tokenizer = made(kFile);
  EXPECT_EQ(pieces_of(*tokenizer, "Thehe cat"), (Strings{" the", "<unk>", " cat"}))
      << "h and e are one unknown";
  EXPECT_EQ(pieces_of(*tokenizer, "  the \t CAT "), (Strings{" the", " cat"}))
      << "spaces at the ends and repeated ones are gone, letters mapped";
  EXPECT_EQ(pieces_of(*tokenizer, "the#cat"), (Strings{" the", "c", "at"}));
  EXPECT_EQ(pieces_of(*tokenizer, " \t "), Strings{});
  EXPECT_EQ(pieces_of(*tokenizer, ""), Strings{});
  EXPECT_EQ(pieces_of(*tokenizer, "zzz"), (Strings{" ", "<unk>"})) << "unused words are not taken";
  EXPECT_EQ(pieces_of(*tokenizer, "the</s>"), (Strings{" the", "</s>"}));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("the cat")), "the cat");
  EXPECT_EQ(tokenizer->special().eos, 2);
  EXPECT_FALSE(tokenizer->special().add_bos);
  EXPECT_EQ(tokenizer->starts("  the  cat").size(), 2u);
}

TEST(SentencePieceModel, KeepsSpacesWhereItIsToldTo) {
  SentencePieceFile file = kFile;
  file.trims = false;
  EXPECT_EQ(pieces_of(*made(file), " the  cat "), (Strings{" ", " the", " ", " cat", " "}));
  file.prepends = false;
  EXPECT_EQ(pieces_of(*made(file), "at cat"), (Strings{"at", " cat"}));
}

TEST(SentencePieceModel, FallsBackToBytes) {
  SentencePieceFile file = kFile;
  for (int b = 0; b < 256; ++b) file.words.push_back({byte_token(b), 0, 6});
  const auto tokenizer = made(file);
  EXPECT_EQ(pieces_of(*tokenizer, "the é"), (Strings{" the", " ", "\xC3", "\xA9"}));
  EXPECT_EQ(pieces_of(*tokenizer, "<0x41>").front(), " ") << "a byte's name is no word";
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("the é")), "the é");
}

// What is written is read as the same, from tokenizer.json and from a GGUF file's values.
TEST(SentencePieceModel, IsTheSameInEveryFile) {
  SentencePieceFile with_bytes = kFile;
  for (int b = 0; b < 256; ++b) with_bytes.words.push_back({byte_token(b), 0, 6});
  for (const SentencePieceFile& file : {kFile, with_bytes}) {
    const auto tokenizer = made(file);
    const auto again = parse_tokenizer(tokenizer->to_json(), "t.json");
    GgmlVocab vocab = ggml_vocab_of(*tokenizer);
    EXPECT_EQ(vocab.model, "t5");
    EXPECT_EQ(vocab.charsmap, file.charsmap);
    EXPECT_EQ(vocab.remove_extra_whitespaces, true);
    EXPECT_EQ(vocab.types[0], 2);
    EXPECT_EQ(vocab.types[2], 3);
    EXPECT_EQ(vocab.types[4], 1);
    const auto from_gguf = make_ggml_tokenizer(std::move(vocab), "t.gguf");
    for (const char* text : {"The  cat\té", " catatcat </s> the", "<0x41>zzz##a", "\xE2\x82 the"}) {
      EXPECT_EQ(again->encode(text), tokenizer->encode(text)) << text;
      EXPECT_EQ(from_gguf->encode(text), tokenizer->encode(text)) << text;
    }
  }
}

TEST(SentencePieceModel, RefusesWhatItCannotHonour) {
  const auto refused = [](const SentencePieceFile& file, const char* why) {
    EXPECT_FAILS(made(file), why);
  };
  SentencePieceFile file = kFile;
  file.model = 3;
  refused(file, "its model type is 3");
  file = kFile;
  file.trainer_more = number_field(24, 1);
  refused(file, "behind words");
  file.trainer_more = number_field(40, 99);
  refused(file, "its unknown token is 99");
  file = kFile;
  file.charsmap = "abc";
  refused(file, "no trie");
  file = kFile;
  file.words.clear();
  refused(file, "no tokens");
  for (size_t size = 1; size < 60; ++size) try {
      (void)parse_sentencepiece(kFile.bytes().substr(0, size), "cut");
    } catch (const Error&) {
    }
  EXPECT_FAILS(parse_sentencepiece("{\"model\": 1}", "t.model"), "t.model: this is no");
  EXPECT_FAILS(parse_sentencepiece(varint(1 << 3 | 2) + varint(1000), "t"), "only 0 left");
  EXPECT_FAILS(parse_sentencepiece(varint(1 << 3) + std::string(11, '\xFF'), "t"), "64 bits");
}

TEST(SentencePieceModel, AFolderMayHaveItAlone) {
  const TempFolder dir;
  put(dir / "tokenizer.model", kFile.bytes());
  EXPECT_EQ(load_tokenizer(dir.path())->vocab_size(), 11);
  put(dir / "tokenizer_config.json",
      R"({"add_bos_token": true, "bos_token": "<s>", "chat_template": "x",
 "added_tokens_decoder": {"0": {"content": "<unk>"}, "11": {"content": "<|im_end|>", "special": true}}})");
  const auto tokenizer = load_tokenizer(dir.path());
  EXPECT_EQ(tokenizer->vocab_size(), 12);
  EXPECT_EQ(tokenizer->encode("the<|im_end|>"), (std::vector<int32_t>{4, 11}));
  EXPECT_EQ(tokenizer->encode_text("the"), (std::vector<int32_t>{1, 4}));
  EXPECT_NE(tokenizer->config_json().find("chat_template"), std::string::npos);
}

// ---- tokenizer.json -----------------------------------------------------------------------------

Json unigram_json() {
  return parse_json(R"({"model": {"type": "Unigram", "unk_id": 0, "vocab":
      [["<unk>", 0], ["\u2581", -3], ["\u2581the", -2], ["\u2581cat", -2.5], ["a", -4], ["e", -4.5],
       ["at", -3.5]]},
    "normalizer": null, "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581",
      "prepend_scheme": "always", "split": true},
    "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"},
    "added_tokens": [{"id": 0, "content": "<unk>", "special": true, "normalized": false}]})",
                    "t");
}

std::unique_ptr<Tokenizer> parse(const Json& json) {
  return parse_tokenizer(json.dump(), "t.json");
}

TEST(UnigramJson, CutsWords) {
  EXPECT_EQ(pieces_of(*parse(unigram_json()), "the cat at"), (Strings{" the", " cat", " ", "at"}));
  EXPECT_EQ(pieces_of(*parse(unigram_json()), "xy a"), (Strings{" ", "<unk>", " ", "a"}));
  Json split = unigram_json();
  split["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers", {{{"type", "WhitespaceSplit"}}, split["pre_tokenizer"]}}};
  EXPECT_EQ(pieces_of(*parse(split), " the\n\tcat\u3000a "), (Strings{" the", " cat", " ", "a"}));
}

// What is learned from of a dialogue stands at these places.
TEST(UnigramJson, WordsOfALongTextShareItsWayBack) {
  constexpr int64_t kWords = 100'000;
  Json json = unigram_json();
  json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}};
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers", {{{"type", "WhitespaceSplit"}}, json["pre_tokenizer"]}}};
  std::string text;
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < kWords; ++i) {
    starts.push_back(std::ssize(text));
    text += "the   ";
  }
  EXPECT_EQ(parse(json)->starts(text), starts);
}

TEST(UnigramJson, NormalisesAsTheFileSays) {
  Json json = unigram_json();
  const std::string map = charsmap_of({{'A', "a"}, {'\t', " "}});
  json["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "Precompiled"}, {"precompiled_charsmap", to_base64(map)}},
        {{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}},
        {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", "\u2581"}}}}};
  EXPECT_EQ(pieces_of(*parse(json), "the \t At  "), (Strings{" the", " ", "at"}));
  // A cluster of less than 6 bytes is replaced as a whole by what its first character becomes.
  EXPECT_EQ(pieces_of(*parse(json), "A\u0301t"), (Strings{" ", "at"}));
  json["normalizer"] = {{"type", "NFKC"}};
  EXPECT_EQ(pieces_of(*parse(json), "\uFF41\u00A0\u1D43"), (Strings{" ", "a", " ", "a"}));
}

TEST(UnigramJson, IsWrittenAndReadAgain) {
  for (const bool bytes : {false, true}) {
    Json json = unigram_json();
    if (bytes) {
      json["model"]["byte_fallback"] = true;
      for (int b = 0; b < 256; ++b) json["model"]["vocab"].push_back({byte_token(b), 0});
    }
    const std::string text = json.dump();
    BpeParts parts = read_bpe(json, text, "t");
    parts.json.clear();
    const auto again = make_bpe(std::move(parts));
    const auto third = parse_tokenizer(again->to_json(), "t");
    for (const char* t : {"the cat", "xy éa <0x41>"}) {
      EXPECT_EQ(again->encode(t), parse(json)->encode(t));
      EXPECT_EQ(third->encode(t), parse(json)->encode(t));
    }
  }
}

TEST(UnigramJson, RefusesWhatIsNone) {
  const auto refused = [](const std::function<void(Json&)>& change, const char* why) {
    Json json = unigram_json();
    change(json);
    EXPECT_FAILS(parse(json), why);
  };
  refused([](Json& j) { j["model"]["vocab"] = Json::object(); }, "no list of 1");
  refused([](Json& j) { j["model"]["vocab"].push_back("x"); }, "no word with a score");
  refused([](Json& j) { j["model"]["vocab"].push_back({"at", -1}); }, "two tokens are at");
  refused([](Json& j) { j["model"]["unk_id"] = 7; }, "unk_id");
  refused([](Json& j) { j["decoder"]["type"] = "ByteLevel"; }, "over bytes");
  refused(
      [](Json& j) {
        j["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "!"}};
      },
      "no base64");
  refused([](Json& j) { j["model"]["type"] = "WordPiece"; }, "BPE and Unigram");
}

}  // namespace
}  // namespace moe::test::unigram_test
