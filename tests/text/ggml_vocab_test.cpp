// Tokenizers out of GGUF's words and back, and what such a file may not say.
#include "text/ggml_vocab.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "support/files.h"
#include "support/learned_bpe.h"
#include "text/bpe_train.h"
#include "text/byte_alphabet.h"
#include "text/chat.h"
#include "text/ggml_pre.h"
#include "text/splitter.h"
#include "text/tokenizer_config.h"

namespace moe::test::ggml_vocab_test {
namespace {

using Strings = std::vector<std::string>;
using Ids = std::vector<int32_t>;

constexpr std::string_view kText =
    "The cat's 1234 mice,\n\n  Gr\u00F6\u00DFe \u4E2D\u6587 \U0001F600  <s> a\tb  ";

GgmlVocab over_bytes(const std::string& pre, const Strings& merges) {
  GgmlVocab vocab;
  vocab.model = "gpt2";
  vocab.pre = pre;
  for (int b = 0; b < 256; ++b) vocab.tokens.push_back(byte_alphabet()[static_cast<size_t>(b)]);
  for (const std::string& merge : merges) {
    vocab.merges.push_back(merge);
    std::string token = merge;
    token.erase(token.find(' '), 1);
    vocab.tokens.push_back(token);
  }
  vocab.types.assign(vocab.tokens.size(), 1);
  return vocab;
}

void add(GgmlVocab& vocab, const std::string& token, int32_t type, float score = 0) {
  vocab.tokens.push_back(token);
  vocab.types.push_back(type);
  if (vocab.model == "llama") vocab.scores.push_back(score);
}

// <unk>, <s>, </s>, the bytes, then words in order of score.
GgmlVocab over_characters(const Strings& words) {
  GgmlVocab vocab;
  vocab.model = "llama";
  add(vocab, "<unk>", 2);
  add(vocab, "<s>", 3);
  add(vocab, "</s>", 3);
  for (int b = 0; b < 256; ++b) add(vocab, fmt::format("<0x{:02X}>", b), 6);
  for (const std::string& word : words)
    add(vocab, word, 1, -static_cast<float>(vocab.tokens.size()));
  vocab.unk = 0;
  vocab.bos = 1;
  vocab.eos = 2;
  return vocab;
}

Strings pieces_of(const Tokenizer& tokenizer, std::string_view text) {
  Strings pieces;
  for (const int32_t id : tokenizer.encode(text)) pieces.push_back(tokenizer.piece(id));
  return pieces;
}

TEST(GgmlVocab, OverBytesSplitsByItsName) {
  GgmlVocab vocab = over_bytes("smollm", {"1 2", "a b"});
  add(vocab, "<|im_end|>", 3);
  vocab.eos = 258;
  vocab.eot = 65;
  vocab.chat_template = "{{ x }}";
  const auto smollm = make_ggml_tokenizer(vocab, "m.gguf");
  EXPECT_EQ(pieces_of(*smollm, "12ab<|im_end|>"), (Strings{"1", "2", "ab", "<|im_end|>"}));
  EXPECT_TRUE(smollm->ends_text(258) && smollm->ends_text(65) && !smollm->ends_text(66));
  EXPECT_EQ(parse_json(smollm->config_json(), "c").at("chat_template"), "{{ x }}");
  vocab.pre = "gpt-2";
  EXPECT_EQ(pieces_of(*make_ggml_tokenizer(vocab, "m.gguf"), "12ab"), (Strings{"12", "ab"}));
  vocab.bos = 258;
  for (const char* pre : {"llama-bpe", "tekken"}) {
    vocab.pre = pre;
    EXPECT_EQ(make_ggml_tokenizer(vocab, "m.gguf")->encode_text("a"), (Ids{258, 97}))
        << "llama.cpp puts it there unless the file says no: " << pre;
    EXPECT_TRUE(make_ggml_tokenizer(vocab, "m.gguf")->special().add_bos);
  }
  vocab.add_bos = false;
  EXPECT_EQ(make_ggml_tokenizer(vocab, "m.gguf")->encode_text("a"), Ids{97});
  vocab.pre = "";
  EXPECT_EQ(pieces_of(*make_ggml_tokenizer(vocab, "m.gguf"), "12"), Strings{"12"});
}

TEST(GgmlVocab, EveryNameHasPatternsThatAreRead) {
  for (const GgmlPre& row : ggml_pres())
    for (const std::string& name : row.names) {
      const auto tokenizer = make_ggml_tokenizer(over_bytes(name, {"a b", "ab c"}), "m.gguf");
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(kText)), kText) << name;
      EXPECT_EQ(parse_tokenizer(tokenizer->to_json(), "t.json")->encode(kText),
                tokenizer->encode(kText))
          << name;
      const GgmlVocab again = ggml_vocab_of(*tokenizer);
      EXPECT_EQ(again.pre, row.names[0]);
      EXPECT_EQ(again.merges, (Strings{"a b", "ab c"}));
    }
}

// The pieces are those that Python's regex gives for the models' own patterns.
TEST(GgmlVocab, SplitsAsTheModelsOwnTokenizersDo) {
  const auto split = [](const char* pre, std::string_view text) {
    Strings pieces;
    Splitter(ggml_pre(pre).patterns).split(text, [&](std::string_view piece) {
      pieces.emplace_back(piece);
    });
    return pieces;
  };
  EXPECT_EQ(split("exaone-moe", "It's a long phrase, 12 x!/y\n\n 한국어 문장  e\u0301 b"),
            (Strings{"It", "'s", " a long phrase", ",", " ", "1", "2", " x", "!/", "y", "\n\n",
                     " 한국어 문장", " ", " e\u0301 b"}));
  EXPECT_EQ(split("kimi-k2", "HelloWorld it's  你好world 1〇345 DON'T 々x a\n\n b"),
            (Strings{"Hello", "World", " it's", " ", " ", "你好", "world", " ", "1〇3", "45",
                     " DON'T", " ", "々", "x", " a", "\n\n", " b"}));
  EXPECT_EQ(split("afmoe", "a1234567 12 ²x y²! ไทยລາວ中文カナ한국 !abc\n"),
            (Strings{"a", "1", "234", "567", " ", "12", " ", "²x", " y", "²", "!", " ", "ไทย",
                     "ລາວ", "中文カナ", "한국", " !", "abc", "\n"}));
  EXPECT_EQ(split("seed-coder", "It's 12 x!/\n\n b  c"),
            (Strings{"It", "'s", " ", "1", "2", " x", "!/", "\n\n", " b", " ", " c"}));
  EXPECT_EQ(split("laguna", "It's 12 x!\n\n b  c\n"),
            (Strings{"It", "'s", " ", "1", "2", " x", "!", "\n\n", " b", " ", " c", "\n"}));
  EXPECT_EQ(&ggml_pre("hy_v4"), &ggml_pre("deepseek-v3"));
  EXPECT_EQ(split("youtu", "HelloWorld it's 中文，カナ한국 12 x!/\n b  c"),
            (Strings{"Hello", "World", " it's", " ", "中文", "，", "カナ", "한국", " ", "1", "2",
                     " x", "!/\n", " b", " ", " c"}));
  for (const int64_t digits : {1, 2, 3, 509, 510, 511, 512, 1021}) {
    Strings want(static_cast<size_t>(digits / 3), "777");
    if (digits % 3 > 0) want.emplace(want.begin(), static_cast<size_t>(digits % 3), '7');
    EXPECT_EQ(split("afmoe", std::string(static_cast<size_t>(digits), '7')), want) << digits;
  }
}

TEST(GgmlVocab, BytesWithoutATokenAreLeftOut) {
  GgmlVocab vocab = over_bytes("gpt-2", {});
  vocab.tokens['b'] = "<none>";
  EXPECT_EQ(make_ggml_tokenizer(vocab, "m.gguf")->encode("abc"), (Ids{'a', 'c'}));
}

TEST(GgmlVocab, OverCharactersMergesByScore) {
  const auto tokenizer = make_ggml_tokenizer(
      over_characters({"ab", "bc", "abc", "\u2581", "\u2581ab", "a", "b", "c", "\u00E9"}),
      "m.gguf");
  EXPECT_EQ(pieces_of(*tokenizer, "abc"), (Strings{" ", "abc"})) << "ab first, then abc before _ab";
  EXPECT_EQ(pieces_of(*tokenizer, "ab"), Strings{" ab"});
  EXPECT_EQ(pieces_of(*tokenizer, "aabc bc"), (Strings{" ", "a", "abc", " ", "bc"}));
  EXPECT_EQ(pieces_of(*tokenizer, "\u00E9d\n"), (Strings{" ", "\u00E9", "d", "\n"}));
  EXPECT_EQ(tokenizer->encode("\u00E9d"), (Ids{262, 267, 3 + 'd'}));
  EXPECT_EQ(pieces_of(*tokenizer, "a</s>a"), (Strings{" ", "a", "</s>", " ", "a"}))
      << "each part of the text gets a space";
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("  abc d\xFF")), "  abc d\xFF");
  EXPECT_EQ(tokenizer->encode_text("b"), (Ids{1, 262, 265}));
}

TEST(GgmlVocab, OverCharactersTheSpaceInFrontMayBeLeftOut) {
  GgmlVocab vocab = over_characters({"\u2581", "a"});
  vocab.add_space_prefix = false;
  const auto tokenizer = make_ggml_tokenizer(vocab, "m.gguf");
  EXPECT_EQ(pieces_of(*tokenizer, "a a"), (Strings{"a", " ", "a"}));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(" a")), " a");
}

// "gemma4": over characters, with merges in place of scores.
TEST(GgmlVocab, OverCharactersMergesAsListed) {
  GgmlVocab vocab = over_characters({"\u2581", "a", "b", "ab", "ba", "\u2581a"});
  vocab.model = "gemma4";
  vocab.scores.clear();
  vocab.merges = {"b a", "a b", "\u2581 a"};
  const auto tokenizer = make_ggml_tokenizer(vocab, "m.gguf");
  EXPECT_EQ(pieces_of(*tokenizer, "aba ab"), (Strings{"a", "ba", " ", "ab"}));
  EXPECT_EQ(pieces_of(*tokenizer, " ac"), (Strings{" a", "c"}));
  EXPECT_EQ(tokenizer->encode_text("b"), (Ids{1, 261}));
  const auto again = parse_tokenizer(tokenizer->to_json(), "t.json");
  EXPECT_EQ(again->encode("aba ab"), tokenizer->encode("aba ab"));
  vocab.merges.push_back("a c");
  EXPECT_FAILS(make_ggml_tokenizer(vocab, "m.gguf"), "names what is no token");
}

TEST(GgmlVocab, OfEqualScoresTheLeftmostPairIsMerged) {
  GgmlVocab vocab = over_characters({"a", "b", "c", "\u2581"});
  add(vocab, "bc", 1, -1);
  add(vocab, "ab", 1, -1);
  EXPECT_EQ(pieces_of(*make_ggml_tokenizer(vocab, "m.gguf"), "abc"), (Strings{" ", "ab", "c"}));
}

TEST(GgmlVocab, ComesBackFromTokenizerJson) {
  GgmlVocab vocab =
      over_characters({"ab", "\u2581", "abab", "\u2581ab", "a", "b", "\u2581\u2581", "b\u2581"});
  const auto tokenizer = make_ggml_tokenizer(vocab, "m.gguf");
  const auto read = parse_tokenizer(tokenizer->to_json(), "t.json");
  for (const std::string text : {"abab ab  b a", "", " ", "ab", "</s>", "x</s> <s>y", "b b"}) {
    EXPECT_EQ(read->encode(text), tokenizer->encode(text)) << text;
    EXPECT_EQ(read->decode(read->encode(text)), tokenizer->decode(tokenizer->encode(text))) << text;
  }
  EXPECT_EQ(read->encode_text("a"), tokenizer->encode_text("a"));
  const GgmlVocab again = ggml_vocab_of(*tokenizer);
  EXPECT_EQ(again.tokens, vocab.tokens);
  EXPECT_EQ(again.types, vocab.types);
  EXPECT_EQ(again.bos, 1);
  EXPECT_EQ(again.eos, 2);
  EXPECT_EQ(again.unk, 0);
  EXPECT_TRUE(*again.add_bos && *again.add_space_prefix);
  const auto once_more = make_ggml_tokenizer(again, "m.gguf");
  for (const std::string text : {"abab ab  b a", "b b", "aab bab\u00E9"})
    EXPECT_EQ(once_more->encode(text), tokenizer->encode(text)) << text;
}

TEST(GgmlVocab, TellsWhichTokensEndAText) {
  GgmlVocab vocab = over_characters({"ab", "a", "b"});
  const auto ends_of = [&](std::optional<int32_t> eot, std::optional<int32_t> eom) {
    vocab.eot = eot;
    vocab.eom = eom;
    return make_ggml_tokenizer(vocab, "m.gguf")->special().ends;
  };
  EXPECT_EQ(ends_of({}, {}), Ids{});
  EXPECT_EQ(ends_of(vocab.eos, vocab.eos), Ids{});
  EXPECT_EQ(ends_of({}, 260), Ids{260});
  EXPECT_EQ(ends_of(260, 260), Ids{260});
  EXPECT_EQ(ends_of(259, 260), (Ids{259, 260}));
  const GgmlVocab again = ggml_vocab_of(*make_ggml_tokenizer(vocab, "m.gguf"));
  EXPECT_EQ(again.eos, 2);
  EXPECT_EQ(again.eot, 259);
  EXPECT_EQ(again.eom, 260);
}

// As SmolLM2's file has them: <|endoftext|> is no end there, or not the first one, but is known by
// its name in a folder.
TEST(GgmlVocab, KeepsTheFirstEndThroughAFolder) {
  GgmlVocab vocab = over_bytes("smollm", {"a b"});
  add(vocab, "<|endoftext|>", 3);
  add(vocab, "<|im_end|>", 3);
  const int32_t by_name = 257, first = 258;
  vocab.eos = first;
  for (const std::optional<int32_t> second : {std::optional<int32_t>(), std::optional(by_name)}) {
    vocab.eot = second;
    const auto of_file = make_ggml_tokenizer(vocab, "m.gguf");
    ASSERT_EQ(of_file->special().eos, first);
    const Json listed = parse_json(generation_json(*of_file), "g").at("eos_token_id");
    EXPECT_EQ(listed, second ? Json({first, by_name}) : Json(first));
    TempFolder folder;
    put(folder / "tokenizer.json", of_file->to_json());
    put(folder / "tokenizer_config.json", of_file->config_json());
    put(folder / "generation_config.json", generation_json(*of_file));
    const auto of_folder = load_tokenizer(folder.path());
    EXPECT_EQ(of_folder->special().eos, first);
    EXPECT_EQ(of_folder->special().ends, Ids{by_name});
    const GgmlVocab again = ggml_vocab_of(*of_folder);
    EXPECT_EQ(again.eos, first);
    EXPECT_EQ(again.eot, by_name);
  }
}

// Those whose text llama.cpp knows leave the keys to others.
TEST(GgmlVocab, HoldsMoreEndsThanThereAreKeysFor) {
  GgmlVocab vocab = over_characters({"ab", "a", "b"});
  const auto first = static_cast<int32_t>(vocab.tokens.size());
  for (const char* name : {"<|im_end|>", "<x>", "<y>", "<z>"}) add(vocab, name, 3);
  vocab.eot = first;
  vocab.eom = first + 1;
  vocab.more_ends = {first + 2, first, 2};
  const auto three = make_ggml_tokenizer(vocab, "m.gguf");
  EXPECT_EQ(three->special().ends, (Ids{first, first + 1, first + 2})) << "each once, and no eos";
  GgmlVocab again = ggml_vocab_of(*three);
  EXPECT_EQ(again.eot, first + 1);
  EXPECT_EQ(again.eom, first + 2);
  EXPECT_EQ(again.more_ends, Ids{first});
  EXPECT_EQ(ends_unknown_to_llama_cpp(again), Ids{});
  vocab.more_ends.push_back(first + 3);
  again = ggml_vocab_of(*make_ggml_tokenizer(vocab, "m.gguf"));
  EXPECT_EQ(again.more_ends, (Ids{first + 3, first}));
  EXPECT_EQ(ends_unknown_to_llama_cpp(again), Ids{first + 3});
  EXPECT_EQ(make_ggml_tokenizer(again, "m.gguf")->special().ends,
            (Ids{first + 1, first + 2, first + 3, first}));
  vocab.more_ends = {first + 4};
  EXPECT_FAILS(make_ggml_tokenizer(vocab, "m.gguf"), "its end token is");
}

TEST(GgmlVocab, HoldsTemplatesByName) {
  GgmlVocab vocab = over_characters({"ab", "a", "b"});
  vocab.chat_template = "plain";
  vocab.named_templates = {{"tool_use", "with tools"}};
  const auto tokenizer = make_ggml_tokenizer(vocab, "m.gguf");
  EXPECT_EQ(chat_template_of(*tokenizer), "plain");
  EXPECT_EQ(chat_template_of(*tokenizer, "tool_use"), "with tools");
  const GgmlVocab again = ggml_vocab_of(*tokenizer);
  EXPECT_EQ(again.chat_template, "plain");
  EXPECT_EQ(again.named_templates, vocab.named_templates);
}

TEST(GgmlVocab, OurOwnTokenizersCanBeWritten) {
  const auto bytes = make_tokenizer("bytes");
  const GgmlVocab vocab = ggml_vocab_of(*bytes);
  EXPECT_EQ(vocab.model, "gpt2");
  EXPECT_EQ(vocab.pre, "gpt-2");
  EXPECT_TRUE(make_ggml_tokenizer(vocab, "m.gguf")->encode(kText) == bytes->encode(kText));
  const std::string_view text = "the cat and the dog, the cat's 12 12";
  const auto learned = learned_bpe(std::span(&text, 1), 265);
  const GgmlVocab written = ggml_vocab_of(*learned);
  EXPECT_EQ(written.pre, "gpt-2");
  EXPECT_EQ(written.types.back(), 3);
  EXPECT_EQ(written.eos, learned->eos_id());
  const auto read = make_ggml_tokenizer(written, "m.gguf");
  EXPECT_EQ(read->encode("the cat<|endoftext|>12"), learned->encode("the cat<|endoftext|>12"));
  EXPECT_EQ(read->eos_id(), learned->eos_id());
  const std::string rule(3000, '-');  // gives tokens of 1024 bytes and more
  const std::string_view ruled[] = {rule, rule};
  const auto long_ones = learned_bpe(ruled, 300);
  ASSERT_EQ(long_ones->encode(rule).size(), 1u);
  EXPECT_EQ(make_ggml_tokenizer(ggml_vocab_of(*long_ones), "m.gguf")->encode(rule),
            long_ones->encode(rule));
}

TEST(GgmlVocab, RefusesWhatItCannotHonour) {
  const auto expect = [](GgmlVocab vocab, const auto& change, const char* reason) {
    change(vocab);
    EXPECT_FAILS(make_ggml_tokenizer(vocab, "m.gguf"), reason);
    EXPECT_FAILS(make_ggml_tokenizer(vocab, "m.gguf"), "m.gguf: this tokenizer is not supported");
  };
  const GgmlVocab bytes = over_bytes("gpt-2", {"a b"}),
                  characters = over_characters({"ab", "a", "b"});
  expect(
      bytes, [](GgmlVocab& v) { v.pre = "smolm"; },
      "its tokenizer.ggml.pre is \"smolm\", which is not known; did you mean \"smollm\"?");
  expect(
      bytes, [](GgmlVocab& v) { v.model = "bert"; },
      "its tokenizer.ggml.model is \"bert\"; supported are gpt2, llama, t5 and gemma4");
  expect(
      bytes, [](GgmlVocab& v) { v.tokens.clear(); }, "it has 0 tokens");
  expect(
      bytes, [](GgmlVocab& v) { v.types.pop_back(); }, "it has 256 token types for 257 tokens");
  expect(
      bytes, [](GgmlVocab& v) { v.types[0] = 7; }, "a token has the type 7");
  expect(
      bytes, [](GgmlVocab& v) { v.tokens[1] = v.tokens[0]; }, "occurs twice, as 0 and 1");
  expect(
      bytes, [](GgmlVocab& v) { v.tokens[1] = "\xFF"; }, "is not UTF-8");
  expect(
      characters, [](GgmlVocab& v) { v.tokens.back() = std::string(1025, 'x'); },
      "a token has 1025 bytes");
  expect(
      bytes, [](GgmlVocab& v) { v.merges[0] = "ab"; }, "merge 0 is not two tokens");
  expect(
      bytes, [](GgmlVocab& v) { v.merges[0] = "b a"; }, "merge 0 (\"b a\") names what is no token");
  expect(
      bytes, [](GgmlVocab& v) { v.eos = 257; }, "its eos token is 257, and it has 257 tokens");
  expect(
      bytes, [](GgmlVocab& v) { v.eom = 257; }, "its eom token is 257, and it has 257 tokens");
  expect(
      bytes, [](GgmlVocab& v) { v.add_eos = true; }, "puts a token behind a text");
  expect(
      characters, [](GgmlVocab& v) { v.scores.pop_back(); }, "it has 261 scores for 262 tokens");
  expect(
      characters, [](GgmlVocab& v) { v.scores[5] = std::numeric_limits<float>::quiet_NaN(); },
      "is no number");
  expect(
      characters, [](GgmlVocab& v) { v.tokens[10] = "x"; }, "byte 7 is no token");
}

TEST(GgmlVocab, SaysWhatLlamaCppHasNoWordFor) {
  Json json = parse_json(
      make_ggml_tokenizer(over_characters({"\u2581", "ab", "bc", "abc", "a", "b", "c"}), "m")
          ->to_json(),
      "t");
  const auto expect = [](const Json& changed, const char* reason) {
    const auto tokenizer = parse_tokenizer(changed.dump(), "t.json");
    EXPECT_FAILS(ggml_vocab_of(*tokenizer), reason);
    EXPECT_FAILS(ggml_vocab_of(*tokenizer), "cannot be written into a GGUF file");
  };
  Json fewer = json;
  fewer["model"]["merges"].erase(fewer["model"]["merges"].size() - 1);
  expect(fewer, "leave out one way to make the token \"abc\"");
  Json apart = json;
  apart["model"]["merges"] = Json::parse(R"([["a", "bc"], ["a", "b"], ["b", "c"], ["ab", "c"]])");
  expect(apart, "do not stand together");
  Json split = parse_json(make_ggml_tokenizer(over_bytes("qwen2", {"a b"}), "m")->to_json(), "t");
  split["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "[ab]";
  expect(split, "no name for the way it splits a text");
  split["normalizer"] = {{"type", "Prepend"}, {"prepend", "x"}};
  expect(split, "no word for its normalizer");
}

}  // namespace
}  // namespace moe::test::ggml_vocab_test
