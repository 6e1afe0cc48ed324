// Byte-level BPE: what training merges, what encoding makes of any bytes, what a tokenizer.json may
// say and what is refused.
#include "text/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "core/json.h"
#include "support/files.h"
#include "support/learned_bpe.h"
#include "text/bpe_train.h"
#include "text/byte_alphabet.h"
#include "text/corpus.h"
#include "text/pattern.h"
#include "text/splitter.h"
#include "text/utf8.h"

namespace moe::test::bpe_test {
namespace {

using Strings = std::vector<std::string>;

std::unique_ptr<Tokenizer> train(std::string_view text, int64_t size) {
  const std::vector<std::string_view> texts{text};
  return learned_bpe(texts, size);
}

Strings pieces_of(const Tokenizer& tokenizer, std::string_view text) {
  Strings pieces;
  for (const int32_t id : tokenizer.encode(text)) pieces.push_back(tokenizer.piece(id));
  return pieces;
}

Strings split(const Strings& patterns, std::string_view text) {
  Strings pieces;
  Splitter(patterns).split(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

Strings gpt2(std::string_view text) { return split({std::string(kGpt2Pattern)}, text); }

// Vocabulary of letters given by hand over all bytes, merges "a b".
Json tokenizer_json(const Strings& merges) {
  Json json = parse_json(make_tokenizer("bytes")->to_json(), "t");
  for (const std::string& merge : merges) {
    json["model"]["merges"].push_back(merge);
    std::string token = merge;
    token.erase(token.find(' '), 1);
    if (!json["model"]["vocab"].contains(token))
      json["model"]["vocab"][token] = json["model"]["vocab"].size();
  }
  return json;
}

Json added(int64_t id, const std::string& content, bool normalized = false) {
  return {{"id", id}, {"content", content}, {"normalized", normalized}};
}

std::unique_ptr<Tokenizer> parse(const Json& json) {
  return parse_tokenizer(json.dump(), "t.json");
}

// The pair of lowest rank, leftmost of equals, until none is left: the definition, without a heap.
Strings merge_by_definition(std::string_view piece,
                            const std::vector<std::pair<std::string, std::string>>& merges) {
  Strings parts;
  for (const char c : piece) parts.emplace_back(1, c);
  for (;;) {
    size_t best = merges.size(), at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i)
      for (size_t rank = 0; rank < best; ++rank)
        if (merges[rank] == std::pair(parts[i], parts[i + 1])) {
          best = rank;
          at = i;
        }
    if (best == merges.size()) return parts;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<int64_t>(at) + 1);
  }
}

// Counting all pairs anew after every merge: the definition of training.
Strings train_by_definition(std::string_view text, size_t merges) {
  std::vector<std::vector<int32_t>> words;
  for (const std::string& piece : gpt2(text)) {
    words.emplace_back();
    for (const char c : piece) words.back().push_back(static_cast<unsigned char>(c));
  }
  Strings names;
  for (int b = 0; b < 256; ++b) names.emplace_back(1, static_cast<char>(b));
  Strings learned;
  while (learned.size() < merges) {
    std::map<std::pair<int32_t, int32_t>, int64_t> counts;
    for (const auto& word : words)
      for (size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
    std::pair<int32_t, int32_t> best;
    int64_t most = 1;
    for (const auto& [pair, count] : counts)
      if (count > most) {
        most = count;
        best = pair;
      }
    if (most < 2) break;
    const std::string name =
        names[static_cast<size_t>(best.first)] + names[static_cast<size_t>(best.second)];
    if (std::find(names.begin(), names.end(), name) != names.end())
      ADD_FAILURE() << "choose a text in which no token is made twice";
    const auto id = static_cast<int32_t>(names.size());
    names.push_back(name);
    learned.push_back(to_alphabet(names[static_cast<size_t>(best.first)]) + " " +
                      to_alphabet(names[static_cast<size_t>(best.second)]));
    for (auto& word : words) {
      std::vector<int32_t> merged;
      for (size_t i = 0; i < word.size(); ++i) {
        const bool hit = i + 1 < word.size() && word[i] == best.first && word[i + 1] == best.second;
        merged.push_back(hit ? id : word[i]);
        i += hit;
      }
      word = std::move(merged);
    }
  }
  return learned;
}

Strings merges_of(const Tokenizer& tokenizer) {
  return parse_json(tokenizer.to_json(), "t")["model"]["merges"].get<Strings>();
}

TEST(Splitter, CutsAsGpt2Does) {
  EXPECT_EQ(gpt2("I'm here, it's 12 o'clock"),
            (Strings{"I", "'m", " here", ",", " it", "'s", " 12", " o", "'", "clock"}));
  EXPECT_EQ(gpt2("a   b\n\n c "), (Strings{"a", "  ", " b", "\n\n", " c", " "}));
  EXPECT_EQ(gpt2("Größe 中文!?x"), (Strings{"Größe", " 中文", "!?", "x"}));
  EXPECT_EQ(gpt2("x\u00A0\u0085y"), (Strings{"x", "\u00A0", "\u0085", "y"}));
  EXPECT_EQ(gpt2("x\u180Ey"), (Strings{"x", "\u180E", "y"}));  // no white space since Unicode 6.3
  EXPECT_EQ(gpt2(""), Strings{});
}

TEST(Splitter, BrokenBytesArePiecesOfTheirOwn) {
  EXPECT_EQ(gpt2("ab\xFF\xFE cd"), (Strings{"ab", "\xFF\xFE", " cd"}));
  EXPECT_EQ(gpt2("ab  \xE2\x82"), (Strings{"ab", "  ", "\xE2\x82"}));
  EXPECT_EQ(gpt2("\x80"), Strings{"\x80"});
}

TEST(Splitter, SeveralPatternsCutInTurn) {
  EXPECT_EQ(split({R"(\p{N}{1,3})", R"([一-龥]+)", R"(\s+)"}, "a1234 中文b"),
            (Strings{"a", "123", "4", " ", "中文", "b"}));
  const std::string llama3 =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  EXPECT_EQ(split({llama3}, "I'LL go\t to 12345!!\n\n  x"),
            (Strings{"I", "'LL", " go", "\t", " to", " ", "123", "45", "!!\n\n", " ", " x"}));
}

// A line of a genome, a padded file: an expression goes back over all of it before it takes it.
TEST(Splitter, LongRunsOfOneKindOfCharacterAreCut) {
  constexpr size_t kLong = 600'000;
  const std::string spaces = R"(\p{L}+|\s*[\r\n]+|\s+(?!\S)|\s+)",
                    capitals = R"(\p{Lu}*\p{Ll}+|\p{Lu}+\p{Ll}*|\s)";
  EXPECT_EQ(split({spaces}, std::string(kLong, ' ') + "x"),
            (Strings{std::string(kLong - 1, ' '), " ", "x"}));
  EXPECT_EQ(split({capitals}, "aB " + std::string(kLong, 'A')),
            (Strings{"a", "B", " ", std::string(kLong, 'A')}));
  EXPECT_EQ(split({"[,;]", capitals}, "--" + std::string(kLong, 'A') + ",A"),
            (Strings{"--", std::string(kLong, 'A'), ",", "A"}));
  EXPECT_FAILS(split({"(?:a+)+(?:a+)+(?:a+)+b"}, std::string(kLong, 'a') + "cb"),
               "cannot be matched");
}

TEST(Splitter, ReadsRubysAnchorsRepeatsAndCodePoints) {
  EXPECT_EQ(split({R"(\p{Nd}+)", R"(\A\p{Nd}{2}(?=\p{Nd}{3}+\z))"}, "a12345678 1234"),
            (Strings{"a", "12", "345678", " ", "1234"}))
      << "twice three digits, not three at once";
  EXPECT_EQ(split({R"(\p{Nd}+)", R"(\G\p{Nd}{3})"}, "a1234567"), (Strings{"a", "123", "456", "7"}));
  EXPECT_EQ(split({R"([\u4E00-\u9fff]+|\u00e9)"}, "a中文é"), (Strings{"a", "中文", "é"}));
  for (const char* pattern : {R"(\u4E0)", R"(\u4E0G)", R"([a\A])", R"([\p{L}]{2}+)", R"(\Z)"})
    EXPECT_FAILS(Splitter({pattern}), "which is not supported");
}

TEST(Splitter, RefusesWhatTheEnginesReadDifferently) {
  for (const char* pattern : {R"(\w+)", R"(a\b)", R"(\h)", R"([a[b]])", R"([a&&b])", R"([\S])",
                              R"(a{2}+)", R"(a{,2})", R"((?m)a)", R"((?<n>a))", R"((a)\1)",
                              R"((*ACCEPT))", R"(\p{^L})", R"(\pL)", R"([])", R"(\)"})
    EXPECT_FAILS(Splitter({pattern}), "which is not supported");
  EXPECT_FAILS(Splitter({"(a"}), "is not understood");
  EXPECT_FAILS(Splitter({R"(\p{Nonsense})"}), "is not understood");
  EXPECT_FAILS(Splitter({"[a"}), "class without an end");
  EXPECT_FAILS(Splitter({"a*"}), "can match nothing");
  EXPECT_FAILS(Splitter({""}), "is empty");
  EXPECT_FAILS(split({"(?:a+)+(?:a+)+(?:a+)+b"}, std::string(200, 'a') + "cb"),
               "cannot be matched");
}

TEST(BpeTraining, MergesTheMostFrequentPairFirst) {
  // aaabdaaabac twice in one word: aa 8 times, then the tie of (a, b) and (aa, a) at 4 goes to the
  // lower pair.
  const auto tokenizer = train("aaabdaaabacaaabdaaabac", 260);
  EXPECT_EQ(merges_of(*tokenizer), (Strings{"a a", "a b", "aa ab"}));
  EXPECT_EQ(tokenizer->vocab_size(), 260);
  EXPECT_EQ(tokenizer->eos_id(), 259);
  EXPECT_EQ(pieces_of(*tokenizer, "aaabac"), (Strings{"aaab", "a", "c"}));
  EXPECT_EQ(pieces_of(*tokenizer, "aaaa"), (Strings{"aa", "aa"}));
}

TEST(BpeTraining, TiesGoToTheLowerPair) {
  EXPECT_EQ(merges_of(*train("zy!zy!ba!ba", 259)), (Strings{"b a", "z y"}));
}

TEST(BpeTraining, StopsWhereNothingOccursTwice) {
  const auto tokenizer = train("ab ab", 1000);
  EXPECT_EQ(merges_of(*tokenizer), (Strings{"a b"}));  // " ab" occurs once only
  EXPECT_EQ(tokenizer->vocab_size(), 258);
  EXPECT_EQ(train("x", 257)->vocab_size(), 257);
  EXPECT_FAILS(train("x", 256), "from 257 to 1048576 entries, not 256");
}

TEST(BpeTraining, KeepsItsCountsRight) {
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    std::string text;
    for (int i = 0; i < 1500; ++i) text += "abcd  "[random() % 6];
    const Strings expected = train_by_definition(text, 40);
    if (HasNonfatalFailure()) return;
    EXPECT_EQ(merges_of(*train(text, 257 + static_cast<int64_t>(expected.size()))), expected)
        << round;
  }
}

TEST(BpeTraining, DocumentsDoNotMergeAcrossTheirEnd) {
  const auto tokenizer = train("ab<|endoftext|>ab<|endoftext|>ab<|endoftext|>", 300);
  EXPECT_EQ(merges_of(*tokenizer), (Strings{"a b"}));
  EXPECT_EQ(pieces_of(*tokenizer, "ab<|endoftext|>b<|endoftext|"),
            (Strings{"ab", "<|endoftext|>", "b", "<", "|", "e", "n", "d", "o", "f", "t", "e", "x",
                     "t", "|"}));
}

TEST(Bpe, EncodesByDefinition) {
  const std::vector<std::pair<std::string, std::string>> merges = {
      {"a", "b"}, {"b", "c"}, {"ab", "ab"}, {"a", "a"}, {"aa", "aa"}, {"c", "ab"}, {"bc", "bc"}};
  Strings written;
  for (const auto& [left, right] : merges) written.push_back(left + " " + right);
  const auto tokenizer = parse(tokenizer_json(written));
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::string piece;
    for (uint32_t i = 0, n = 1 + random() % 100; i < n; ++i) piece += "abc"[random() % 3];
    EXPECT_EQ(pieces_of(*tokenizer, piece), merge_by_definition(piece, merges)) << piece;
  }
}

TEST(Bpe, AnyBytesComeBack) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "Ein Größenwahn, 中文 und 😀 code(x);\n";
  const auto tokenizer = train(text, 400);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_LT(tokenizer->encode(text).size() * 3, text.size());
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    std::string bytes;
    for (uint32_t i = 0, n = random() % 300; i < n; ++i)
      bytes += round % 2 ? static_cast<char>(random()) : text[random() % text.size()];
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(bytes)), bytes) << round;
  }
}

TEST(Bpe, LongPiecesTakeNoQuadraticTime) {
  const auto tokenizer = parse(tokenizer_json({"a a", "aa aa", "a b"}));
  const std::string text = std::string(size_t{1} << 20, 'a') + "b";
  EXPECT_EQ(tokenizer->encode(text).size(), (size_t{1} << 18) + 1);
  const auto learned = train(text, 270);  // a, aa, aaaa, ...
  EXPECT_EQ(learned->decode(learned->encode(text)), text);
}

TEST(Bpe, WholeCharactersAreShownThoughTokensCutThem) {
  // E2 82, the first two bytes of the euro sign
  const auto tokenizer = parse(tokenizer_json({"â Ĥ"}));
  const auto ids = tokenizer->encode("€");
  ASSERT_EQ(ids.size(), 2u);
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.push(ids[0]), "");
  EXPECT_EQ(decoder.push(ids[1]), "€");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(BpeFile, ComesBackAsItWas) {
  const auto tokenizer = train("the cat and the dog and the cat", 262);
  const auto again = parse_tokenizer(tokenizer->to_json(), "t.json");
  EXPECT_EQ(again->spec(), "bpe");
  EXPECT_EQ(again->to_json(), tokenizer->to_json());
  EXPECT_EQ(again->eos_id(), tokenizer->eos_id());
  EXPECT_EQ(again->encode("the dog<|endoftext|>!"), tokenizer->encode("the dog<|endoftext|>!"));
  EXPECT_FAILS(tokenizer->piece(262), "token id 262 is outside the tokenizer's 0..261");
}

TEST(BpeFile, MergesMayBePairs) {
  Json json = tokenizer_json({"a b", "ab c"});
  json["model"]["merges"] = Json::array({Json::array({"a", "b"}), Json::array({"ab", "c"})});
  EXPECT_EQ(pieces_of(*parse(json), "abcab"), (Strings{"abc", "ab"}));
}

TEST(BpeFile, IgnoreMergesTakesWholePieces) {
  Json json = tokenizer_json({"a b"});
  json["model"]["vocab"]["Ġxyz"] = 257;
  EXPECT_EQ(pieces_of(*parse(json), "ab xyz"), (Strings{"ab", " ", "x", "y", "z"}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(pieces_of(*parse(json), "ab xyz"), (Strings{"ab", " xyz"}));
}

TEST(BpeFile, AddedTokensComeFirstAndTheLongestCounts) {
  Json json = tokenizer_json({"a b"});
  json["added_tokens"] = {added(257, "<a>"), added(258, "<a><b>"), added(98, "b", true),
                          added(301, "<|end_of_text|>")};
  const auto tokenizer = parse(json);
  EXPECT_EQ(tokenizer->vocab_size(), 302);
  EXPECT_EQ(tokenizer->eos_id(), 301);
  EXPECT_EQ(tokenizer->encode("<a><b>"), (std::vector<int32_t>{258}));
  EXPECT_EQ(tokenizer->encode("<a><a>ab<"), (std::vector<int32_t>{257, 257, 'a', 98, '<'}));
  EXPECT_EQ(tokenizer->piece(299), "");  // an id that the file leaves out
  json["post_processor"] = parse_json(R"({"type": "Sequence", "processors": [{"type": "ByteLevel"},
      {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<a>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]}]})",
                                      "t");
  EXPECT_EQ(parse(json)->bos_id(), 257);
}

// SentencePiece's form: <unk>, <s>, </s>, the bytes, then words; `words` are "a b" for a merge or a
// character.
Json over_characters(const Strings& words, const Json& normalizer, const Json& pre_tokenizer) {
  Json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}}, merges = Json::array();
  for (int b = 0; b < 256; ++b) vocab[byte_token(b)] = 3 + b;
  for (const std::string& word : words) {
    std::string token = word;
    if (const size_t space = word.find(' '); space != std::string::npos) {
      merges.push_back(word);
      token.erase(space, 1);
    }
    vocab[token] = vocab.size();
  }
  Json tokens = Json::array();
  for (const char* mark : {"<unk>", "<s>", "</s>"})
    tokens.push_back(
        {{"id", tokens.size()}, {"content", mark}, {"normalized", false}, {"special", true}});
  return {
      {"added_tokens", tokens},
      {"normalizer", normalizer},
      {"pre_tokenizer", pre_tokenizer},
      {"decoder",
       parse_json(
           R"({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
              {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})",
           "t")},
      {"model",
       {{"type", "BPE"},
        {"vocab", vocab},
        {"merges", merges},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true}}}};
}

const Strings kWords = {
    "\u2581", "a", "b", "\u2581 a", "a b", "\u2581 \u2581", "\u2581\u2581 \u2581\u2581"};
const char* kLlamaNormalizer =
    R"({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]})";

Json metaspace(const char* scheme, bool split) {
  return {{"type", "Metaspace"},
          {"replacement", "\u2581"},
          {"prepend_scheme", scheme},
          {"split", split}};
}

TEST(BpeOverCharacters, SpacesAreMarksAndUnknownCharactersBytes) {
  const auto tokenizer = parse(over_characters(kWords, parse_json(kLlamaNormalizer, "t"), nullptr));
  EXPECT_EQ(pieces_of(*tokenizer, "ab a"), (Strings{" a", "b", " a"}));
  EXPECT_EQ(pieces_of(*tokenizer, "bab"), (Strings{" ", "b", "ab"}));
  EXPECT_EQ(pieces_of(*tokenizer, "    a"), (Strings{"    ", " a"}));
  EXPECT_EQ(tokenizer->encode("\u00E9"), (std::vector<int32_t>{259, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(pieces_of(*tokenizer, "a</s>a"), (Strings{" a", "</s>", " a"}));
  for (const std::string text : {"ab  \u4E2D a\n\tb ", "", " ", "a\xFF\xE2\x82", "x<s", "\u2581"}) {
    const std::string back = tokenizer->decode(tokenizer->encode(text));
    EXPECT_EQ(back, text == "\u2581" ? " " : text);
    EXPECT_EQ(tokenizer->starts(text).size(), tokenizer->encode(text).size());
  }
}

TEST(BpeOverCharacters, MetaspacePutsItsMarkWhereTheSchemeSays) {
  const auto pieces = [](const char* scheme, bool split, const char* text) {
    return pieces_of(*parse(over_characters(kWords, nullptr, metaspace(scheme, split))), text);
  };
  EXPECT_EQ(pieces("first", false, "a</s>a"), (Strings{" a", "</s>", "a"}));
  EXPECT_EQ(pieces("first", false, "</s>a"), (Strings{"</s>", "a"}));
  EXPECT_EQ(pieces("always", false, "a</s>a"), (Strings{" a", "</s>", " a"}));
  EXPECT_EQ(pieces("always", false, " a"), Strings{" a"}) << "a mark that is there is enough";
  EXPECT_EQ(pieces("never", false, "a a"), (Strings{"a", " a"}));
  EXPECT_EQ(pieces("always", false, "a   a"), (Strings{" a", "  ", " a"}));
  EXPECT_EQ(pieces("always", true, "a   a"), (Strings{" a", " ", " ", " a"}));
}

TEST(BpeOverCharacters, UnknownCharactersWithoutBytes) {
  Json json = over_characters(kWords, nullptr, metaspace("never", false));
  json["model"]["byte_fallback"] = false;
  EXPECT_EQ(parse(json)->encode("ccac"), (std::vector<int32_t>{0, 260, 0}));
  json["model"]["fuse_unk"] = false;
  EXPECT_EQ(parse(json)->encode("ccac"), (std::vector<int32_t>{0, 0, 260, 0}));
  json["model"]["unk_token"] = nullptr;
  EXPECT_EQ(parse(json)->encode("ccac"), std::vector<int32_t>{260});
}

// A word that goes on after a space forbids cutting the text at spaces; the ids are those of the
// definition either way.
TEST(BpeOverCharacters, WordsMayHoldSpaces) {
  Strings words = {"\u2581", "a", "b", "a \u2581", "a\u2581 b"};
  const auto tokenizer = parse(over_characters(words, nullptr, metaspace("never", false)));
  EXPECT_EQ(pieces_of(*tokenizer, "aa b a "), (Strings{"a", "a b", " ", "a "}));
}

TEST(BpeOverCharacters, LongTextsTakeNoQuadraticTime) {
  const auto tokenizer =
      parse(over_characters({"a", "a a", "aa aa", "\u2581"}, nullptr, metaspace("first", false)));
  EXPECT_EQ(tokenizer->encode(std::string(size_t{1} << 20, 'a')).size(), (size_t{1} << 18) + 1);
  EXPECT_EQ(tokenizer->encode(std::string(size_t{1} << 18, ' ')).size(), size_t{1} << 18);
}

// What is learned from of a dialogue stands at these places.
TEST(BpeOverCharacters, TokensBeginWhereTheTextSays) {
  const auto tokenizer = parse(over_characters(kWords, parse_json(kLlamaNormalizer, "t"), nullptr));
  EXPECT_EQ(pieces_of(*tokenizer, "ab a</s> b\u00E9"),
            (Strings{" a", "b", " a", "</s>", "  ", "b", "\xC3", "\xA9"}));
  EXPECT_EQ(tokenizer->starts("ab a</s> b\u00E9"),
            (std::vector<int64_t>{0, 1, 2, 4, 8, 9, 10, 11}));
  const auto first = parse(over_characters(kWords, nullptr, metaspace("first", true)));
  EXPECT_EQ(first->starts("ab a</s> b"), (std::vector<int64_t>{0, 1, 2, 4, 8, 9}));
}

// Gemma's files: marks are in the place of spaces before the text is cut at spaces.
TEST(BpeOverCharacters, ACutAtSpacesBehindTheirMarksCutsNothing) {
  const Json marks = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  const Json cut = {{"type", "Split"},
                    {"pattern", {{"String", " "}}},
                    {"behavior", "MergedWithPrevious"},
                    {"invert", false}};
  const auto plain = parse(over_characters(kWords, marks, nullptr)),
             same = parse(over_characters(kWords, marks, cut));
  for (const char* text : {"ab a", "    a  b", " a", "a\nb a"})
    EXPECT_EQ(same->encode(text), plain->encode(text)) << text;
  EXPECT_FAILS(parse(over_characters(kWords, nullptr, cut)), "its pre_tokenizer is Split");
  Json other = cut;
  other["pattern"]["String"] = "a";
  EXPECT_FAILS(parse(over_characters(kWords, marks, other)), "its pre_tokenizer is Split");
}

TEST(BpeOverCharacters, RefusesWhatItCannotHonour) {
  const auto expect = [](const auto& change, const char* reason) {
    Json json = over_characters(kWords, parse_json(kLlamaNormalizer, "t"), nullptr);
    change(json);
    EXPECT_FAILS(parse(json), reason);
  };
  expect(
      [](Json& j) {
        j["pre_tokenizer"] = {{"type", "Whitespace"}};
      },
      "its pre_tokenizer is Whitespace");
  expect([](Json& j) { j["pre_tokenizer"] = metaspace("sometimes", true); }, "sometimes");
  expect([](Json& j) { j["decoder"]["decoders"][1]["type"] = "Metaspace"; },
         "step 2 of its decoder is Metaspace");
  expect([](Json& j) { j["decoder"]["decoders"][3]["stop"] = 1; },
         "strips more than spaces in front");
  expect([](Json& j) { j["decoder"] = {{"type", "WordPiece"}}; }, "its decoder is WordPiece");
  expect([](Json& j) { j["model"]["unk_token"] = "<none>"; }, "its unk_token <none> is no token");
  expect([](Json& j) { j["normalizer"]["normalizers"][0]["type"] = "Lowercase"; },
         "its normalizer is Lowercase");
}

TEST(BpeFile, ComposesTheTextBetweenAddedTokens) {
  Json json = tokenizer_json({});
  json["normalizer"] = {{"type", "NFC"}};
  json["added_tokens"] = {added(256, "e\u0301"), added(257, "o\u0308", true)};
  const auto tokenizer = parse(json);
  EXPECT_EQ(tokenizer->encode("a\u0308"), (std::vector<int32_t>{0xC3, 0xA4}));
  EXPECT_EQ(tokenizer->encode("e\u0301\u00E9"), (std::vector<int32_t>{256, 0xC3, 0xA9}))
      << "sought in the text itself";
  EXPECT_EQ(tokenizer->encode("\u00F6"), std::vector<int32_t>{257})
      << "sought in the composed text";
  EXPECT_EQ(tokenizer->starts("ao\u0308\nb"), (std::vector<int64_t>{0, 1, 3, 5}))
      << "of a line that was composed only its begin is known exactly";
}

TEST(BpeFile, AddedTokensTakeTheSpaceBesideThem) {
  Json json = tokenizer_json({});
  json["added_tokens"] = {added(256, "<l>"), added(257, "<r>"), added(258, "<b>")};
  json["added_tokens"][0]["lstrip"] = json["added_tokens"][2]["lstrip"] = true;
  json["added_tokens"][1]["rstrip"] = json["added_tokens"][2]["rstrip"] = true;
  const auto tokenizer = parse(json);
  EXPECT_EQ(tokenizer->encode("a \u2003<l> b"), (std::vector<int32_t>{'a', 256, ' ', 'b'}));
  EXPECT_EQ(tokenizer->encode(" <r> \u3000\nb"), (std::vector<int32_t>{' ', 257, 'b'}));
  EXPECT_EQ(tokenizer->encode("<r>  <l> <b> "), (std::vector<int32_t>{257, 256, 258}));
}

TEST(BpeFile, APostProcessorMayPutATokenInFront) {
  Json json = tokenizer_json({});
  json["added_tokens"] = {added(256, "<s>"), added(257, "</s>")};
  const auto with = [&](const char* single) {
    json["post_processor"] = {{"type", "TemplateProcessing"}, {"single", parse_json(single, "t")}};
    return parse(json);
  };
  const auto tokenizer = with(R"([{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}])");
  EXPECT_EQ(tokenizer->encode_text("a"), (std::vector<int32_t>{256, 'a'}));
  EXPECT_EQ(tokenizer->encode("a"), std::vector<int32_t>{'a'});
  EXPECT_EQ(with(R"([{"Sequence": {"id": "A"}}])")->encode_text("a"), std::vector<int32_t>{'a'});
  EXPECT_FAILS(with(R"([{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}])"),
               "puts </s> behind a text");
  EXPECT_FAILS(with(R"([{"SpecialToken": {"id": "<x>"}}, {"Sequence": {"id": "A"}}])"),
               "which is no added token");
}

TEST(BpeFile, SplitsAsLlama3WritesThem) {
  Json json = tokenizer_json({"1 2"});
  json["pre_tokenizer"] = parse_json(R"({"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "\\p{N}{1,2}| ?\\p{L}+"}, "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})",
                                     "t");
  EXPECT_EQ(pieces_of(*parse(json), "1212 112"), (Strings{"12", "12", " ", "1", "1", "2"}));
  json["pre_tokenizer"]["pretokenizers"][0] = {{"type", "Digits"}, {"individual_digits", true}};
  EXPECT_EQ(pieces_of(*parse(json), "12"), (Strings{"1", "2"}));
}

TEST(BpeFile, RefusesWhatItCannotHonour) {
  const auto expect = [](auto change, const char* reason) {
    Json json = tokenizer_json({"a b"});
    change(json);
    EXPECT_FAILS(parse(json), reason);
    EXPECT_FAILS(parse(json), "t.json: this tokenizer is not supported");
  };
  expect([](Json& j) { j["normalizer"] = {{"type", "NFKD"}}; }, "its normalizer is NFKD");
  expect(
      [](Json& j) {
        j["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", "b"}};
      },
      "its Replace has no String");
  expect([](Json& j) { j["truncation"] = {{"max_length", 4}}; }, "it has a truncation");
  expect([](Json& j) { j["model"]["dropout"] = 0.1; }, "it has dropout");
  expect([](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "it has a end_of_word_suffix");
  expect([](Json& j) { j["model"]["unk_token"] = "<unk>"; }, "its unk_token <unk> is no token");
  expect([](Json& j) { j["model"]["vocab"]["x"] = 97; }, "two tokens have the id 97");
  expect([](Json& j) { j["model"]["vocab"]["xx"] = -1; }, "is no number from 0 to 1048575");
  expect([](Json& j) { j["model"]["vocab"]["xx"] = 1e12; }, "is no number from 0 to 1048575");
  expect([](Json& j) { j["model"]["merges"].push_back("a"); }, "merge 1 is not two tokens");
  expect([](Json& j) { j["model"]["merges"].push_back("a b c"); }, "merge 1 is not two tokens");
  expect(
      [](Json& j) {
        j["model"]["merges"].push_back(Json::array({"a", 1}));
      },
      "merge 1 is not two tokens");
  expect([](Json& j) { j["model"]["merges"].push_back("b a"); },
         "merge 1 names ba, which is no token");
  expect([](Json& j) { j["added_tokens"] = Json::array({added(97, "<x>")}); },
         "which the vocabulary has otherwise");
  expect([](Json& j) { j["added_tokens"] = Json::array({added(300, "a")}); },
         "which the vocabulary has otherwise");
  expect([](Json& j) { j["added_tokens"] = Json::array({added(0xE9, "é")}); },
         "stands for other bytes");
  expect([](Json& j) { j["added_tokens"] = Json::array({added(300, "")}); },
         "an added token has 0 bytes");
  expect(
      [](Json& j) {
        j["added_tokens"] = Json::array({added(300, "<x>"), added(301, "<x>")});
      },
      "occurs twice");
  expect(
      [](Json& j) {
        j["added_tokens"] = Json::array({added(300, "<x>")});
        j["added_tokens"][0]["single_word"] = true;
      },
      "the added token <x> has single_word");
  expect(
      [](Json& j) {
        j["post_processor"] = {{"type", "RobertaProcessing"}};
      },
      "its post_processor is RobertaProcessing");
  const auto with_split = [&](const Json& split, const char* reason) {
    expect(
        [&](Json& j) {
          j["pre_tokenizer"] = {{"type", "Sequence"},
                                {"pretokenizers", {split, j["pre_tokenizer"]}}};
        },
        reason);
  };
  with_split({{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Removed"}},
             "its Split has the behavior Removed");
  with_split({{"type", "Split"},
              {"pattern", {{"Regex", "a"}}},
              {"behavior", "Isolated"},
              {"invert", true}},
             "its Split is inverted");
  with_split({{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Isolated"}},
             "its Split has no Regex");
  with_split({{"type", "Split"}, {"pattern", {{"Regex", R"(\w)"}}}, {"behavior", "Isolated"}},
             "which is not supported");
  with_split({{"type", "ByteLevel"}, {"add_prefix_space", false}}, "goes on after ByteLevel");
}

TEST(ChooseTokenizer, TrainsLoadsOrNames) {
  TempFolder folder;
  put(folder / "text.txt", "ab ab ab ab ab");
  const Strings data{folder / "text.txt"};
  EXPECT_EQ(choose_tokenizer("bytes", data)->spec(), "bytes");
  const auto trained = choose_tokenizer("bpe:258", data);
  EXPECT_EQ(merges_of(*trained), Strings{"a b"});
  put(folder / "tokenizer.json", trained->to_json());
  EXPECT_EQ(choose_tokenizer(folder.path(), data)->to_json(), trained->to_json());
  EXPECT_EQ(Corpus(data, *trained).size(), 9);
  for (const char* size : {"", "256", "-1", "4k", "99999999999999999999"})
    EXPECT_FAILS(choose_tokenizer(std::string("bpe:") + size, data), "number of entries");
  EXPECT_FAILS(choose_tokenizer("wordpiece", data), "known are bytes, bpe:SIZE, a model folder");
}

}  // namespace
}  // namespace moe::test::bpe_test
