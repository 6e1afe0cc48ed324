// The byte tokenizer, its tokenizer.json, and decoding a stream without ever showing half a
// character.
#include "text/tokenizer.h"

#include <nlohmann/json.hpp>

#include "core/json.h"
#include "support/files.h"
#include "text/tokenizer_config.h"
#include "text/utf8.h"

namespace moe::test::tokenizer_test {
namespace {

std::string all_bytes() {
  std::string text;
  for (int b = 0; b < 256; ++b) text += static_cast<char>(b);
  return text;
}

TEST(ByteTokenizer, IdsAreBytes) {
  const auto tokenizer = make_tokenizer("bytes");
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_EQ(tokenizer->spec(), "bytes");
  EXPECT_TRUE(tokenizer->ids_are_bytes());
  EXPECT_EQ(tokenizer->encode("aé"), (std::vector<int32_t>{97, 0xC3, 0xA9}));
  const auto ids = tokenizer->encode(all_bytes());
  for (int b = 0; b < 256; ++b) EXPECT_EQ(ids[b], b);
  EXPECT_EQ(tokenizer->decode(ids), all_bytes());
  EXPECT_FALSE(tokenizer->bos_id() || tokenizer->eos_id());
  EXPECT_FAILS(tokenizer->piece(256), "token id 256 is outside");
  EXPECT_FAILS(tokenizer->piece(-1), "token id -1 is outside");
}

TEST(ByteTokenizer, UnknownSpecsAreUsageErrors) {
  EXPECT_FAILS(make_tokenizer("byte"), "did you mean \"bytes\"?");
  EXPECT_FAILS(make_tokenizer("wordpiece"), "known are bytes");
  try {
    make_tokenizer("bpe:1000");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), Error::Kind::usage);
  }
}

TEST(ByteTokenizer, FileIsAByteLevelBpeWithoutMerges) {
  const Json json = parse_json(make_tokenizer("bytes")->to_json(), "tokenizer.json");
  const Json& vocab = json["model"]["vocab"];
  EXPECT_EQ(json["model"]["type"], "BPE");
  EXPECT_EQ(json["model"]["merges"].size(), 0u);
  EXPECT_EQ(json["pre_tokenizer"]["add_prefix_space"], false);
  EXPECT_EQ(vocab.size(), 256u);
  // Corners of GPT-2's byte alphabet.
  EXPECT_EQ(vocab["a"], 97);
  EXPECT_EQ(vocab["Ā"], 0);   // U+0100
  EXPECT_EQ(vocab["Ċ"], 10);  // newline
  EXPECT_EQ(vocab["Ġ"], 32);  // space
  EXPECT_EQ(vocab["ġ"], 127);
  EXPECT_EQ(vocab["ł"], 160);
  EXPECT_EQ(vocab["Ń"], 173);
  EXPECT_EQ(vocab["¡"], 161);
  EXPECT_EQ(vocab["ÿ"], 255);
}

TEST(ByteTokenizer, LoadsWhatItWrote) {
  TempFolder folder;
  const std::string written = make_tokenizer("bytes")->to_json();
  put(folder / "tokenizer.json", written);
  const auto loaded = load_tokenizer(folder.path());
  EXPECT_EQ(loaded->spec(), "bytes");
  EXPECT_EQ(loaded->to_json(), written);

  const auto changed = [&](auto change) {
    Json json = parse_json(written, "t");
    change(json);
    return message_of([&] { parse_tokenizer(json.dump(), "t.json"); });
  };
  const auto expect = [&](auto change, const char* reason) {
    const std::string message = changed(change);
    EXPECT_NE(message.find(reason), std::string::npos) << message;
    EXPECT_NE(message.find("t.json: this tokenizer is not supported"), std::string::npos)
        << message;
    EXPECT_NE(message.find("supported are BPE over bytes"), std::string::npos) << message;
  };
  expect([](Json& j) { j["model"]["type"] = "Unigram"; }, "it is a Unigram over bytes");
  expect([](Json& j) { j["model"]["merges"].push_back("a b"); },
         "merge 0 names ab, which is no token");
  expect([](Json& j) { j["normalizer"] = {{"type", "Lowercase"}}; }, "its normalizer is Lowercase");
  expect([](Json& j) { j["pre_tokenizer"] = nullptr; }, "it has no pre_tokenizer");
  expect([](Json& j) { j["pre_tokenizer"]["type"] = "Whitespace"; },
         "its pre_tokenizer is Whitespace");
  expect([](Json& j) { j["pre_tokenizer"]["add_prefix_space"] = true; }, "puts a space");
  expect(
      [](Json& j) {
        j["post_processor"] = {{"type", "BertProcessing"}};
      },
      "its post_processor is BertProcessing");
  EXPECT_FAILS(parse_tokenizer("{}", "t.json"), "t.json: \"model\" is missing");
  EXPECT_FAILS(load_tokenizer(folder / "no"), "No such file");
}

// A word that is looked for first, such as <tool_call>, is text all the same.
TEST(TokenizerFolder, KnowsWhichMarksAreNoText) {
  Json json = parse_json(make_tokenizer("bytes")->to_json(), "t");
  json["added_tokens"] = {
      {{"id", 256}, {"content", "<s>"}, {"special", true}},
      {{"id", 257}, {"content", "<tool_call>"}, {"special", false}},
      {{"id", 258}, {"content", "<b>"}, {"normalized", true}, {"special", true}}};
  const auto tokenizer = parse_tokenizer(json.dump(), "t.json");
  EXPECT_EQ(tokenizer->special_marks(), (std::vector<int32_t>{256, 258}));
  EXPECT_EQ(make_tokenizer("bytes")->special_marks(), std::vector<int32_t>());
}

TEST(TokenizerFolder, SaysWhatBeginsAndEndsAText) {
  TempFolder folder;
  Json json = parse_json(make_tokenizer("bytes")->to_json(), "t");
  json["added_tokens"] = Json::array();
  for (const char* name : {"<s>", "<|endoftext|>", "<|im_end|>", "<|eot|>"})
    json["added_tokens"].push_back(
        {{"id", 256 + json["added_tokens"].size()}, {"content", name}, {"normalized", false}});
  put(folder / "tokenizer.json", json.dump());
  const auto special = [&] { return load_tokenizer(folder.path())->special(); };
  EXPECT_EQ(special().eos, 257) << "by its name";
  EXPECT_FALSE(special().bos || special().add_bos);

  put(folder / "tokenizer_config.json",
      R"({"bos_token": {"content": "<s>"}, "add_bos_token": true, "eos_token": "<|im_end|>"})");
  EXPECT_EQ(special().bos, 256);
  EXPECT_TRUE(special().add_bos);
  EXPECT_EQ(special().eos, 257);
  EXPECT_EQ(special().ends, std::vector<int32_t>{258});
  EXPECT_EQ(generation_json(*load_tokenizer(folder.path())), "") << "eos_token says it already";

  put(folder / "generation_config.json", R"({"eos_token_id": [257, 259, 500]})");
  put(folder / "config.json", R"({"eos_token_id": 258})");
  EXPECT_EQ(special().ends, (std::vector<int32_t>{258, 259}))
      << "500 is a row of the model without a token";
  const auto tokenizer = load_tokenizer(folder.path());
  for (const int32_t id : {257, 258, 259}) EXPECT_TRUE(tokenizer->ends_text(id));
  EXPECT_FALSE(tokenizer->ends_text(256));
  EXPECT_EQ(parse_json(generation_json(*tokenizer), "t"),
            parse_json(R"({"eos_token_id": [257, 258, 259]})", "t"));

  put(folder / "generation_config.json", R"({"eos_token_id": -1})");
  EXPECT_FAILS(load_tokenizer(folder.path()), "generation_config.json: eos_token_id holds -1");
  put(folder / "generation_config.json", R"({"eos_token_id": "x"})");
  EXPECT_FAILS(load_tokenizer(folder.path()), "eos_token_id");
}

TEST(TokenizerFolder, AnEndThatOnlyGenerationConfigNamesIsWrittenAgain) {
  TempFolder folder;
  Json json = parse_json(make_tokenizer("bytes")->to_json(), "t");
  json["added_tokens"] = {{{"id", 256}, {"content", "<|im_end|>"}, {"normalized", false}}};
  put(folder / "tokenizer.json", json.dump());
  const auto written = [&] { return generation_json(*load_tokenizer(folder.path())); };
  EXPECT_EQ(written(), "") << "nothing ends a text";
  put(folder / "generation_config.json", R"({"eos_token_id": [256]})");
  EXPECT_EQ(load_tokenizer(folder.path())->special().eos, 256);
  EXPECT_EQ(parse_json(written(), "t"), parse_json(R"({"eos_token_id": 256})", "t"));
  put(folder / "tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  EXPECT_EQ(written(), "") << "eos_token says it";
  std::filesystem::remove(folder / "tokenizer_config.json");
  json["added_tokens"][0]["content"] = "<|end_of_text|>";
  put(folder / "tokenizer.json", json.dump());
  EXPECT_EQ(written(), "") << "its name says it";
}

// "<a>" is a mark, and what is written "b" is two tokens.
class Named : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 4; }
  std::string spec() const override { return "named"; }
  std::vector<int32_t> encode(std::string_view) const override { return {}; }
  std::string piece(int32_t id) const override {
    return std::vector<std::string>{"<a>", "b", "b", "<a>"}.at(static_cast<size_t>(id));
  }
  std::string to_json() const override { return ""; }
  std::vector<int32_t> marks() const override { return {3}; }
};

TEST(TokenNamed, ByPieceMarkOrNumber) {
  const auto bytes = make_tokenizer("bytes");
  EXPECT_EQ(token_named(*bytes, "t"), 't');
  EXPECT_EQ(token_named(*bytes, "7"), 7);
  EXPECT_FAILS(token_named(*bytes, "the"), "the tokenizer has no token 'the'; give a token's text");
  EXPECT_FAILS(token_named(*bytes, "-7"), "has no token '-7'");
  EXPECT_FAILS(token_named(*bytes, ""), "has no token ''");
  const Named named;
  EXPECT_EQ(token_named(named, "<a>"), 3);
  EXPECT_FAILS(token_named(named, "b"), "the tokens 1 and 2 are both 'b'");
  EXPECT_FAILS(token_named(named, "<A>"), "did you mean \"<a>\"?");
}

TEST(Utf8, StepsFollowTheUnicodeStandard) {
  using Kind = Utf8Step::Kind;
  const auto expect = [](std::string_view bytes, Kind kind, int length) {
    const Utf8Step step = utf8_step(bytes);
    EXPECT_EQ(step.kind, kind) << testing::PrintToString(bytes);
    EXPECT_EQ(step.length, length) << testing::PrintToString(bytes);
  };
  expect("a", Kind::character, 1);
  expect("é!", Kind::character, 2);
  expect("€", Kind::character, 3);
  expect("😀", Kind::character, 4);
  expect("\xF4\x8F\xBF\xBF", Kind::character, 4);
  expect("\x80", Kind::broken, 1);
  expect("\xC0\x80", Kind::broken, 1);          // overlong
  expect("\xE0\x9F\xBF", Kind::broken, 1);      // overlong
  expect("\xF0\x8F\xBF\xBF", Kind::broken, 1);  // overlong
  expect("\xED\xA0\x80", Kind::broken, 1);      // surrogate
  expect("\xF4\x90\x80\x80", Kind::broken, 1);  // above U+10FFFF
  expect("\xF5", Kind::broken, 1);
  expect("\xE2\x82x", Kind::broken, 2);
  expect("\xF0\x9F\x98x", Kind::broken, 3);
  expect("\xC3", Kind::cut, 1);
  expect("\xE2\x82", Kind::cut, 2);
  expect("\xF0\x9F\x98", Kind::cut, 3);
}

std::string stream(const std::string& bytes) {
  const auto tokenizer = make_tokenizer("bytes");
  StreamDecoder decoder(*tokenizer);
  std::string out;
  for (const int32_t id : tokenizer->encode(bytes)) {
    const std::string piece = decoder.push(id);
    for (std::string_view rest = piece; !rest.empty();) {
      const Utf8Step step = utf8_step(rest);
      EXPECT_EQ(step.kind, Utf8Step::Kind::character);
      rest.remove_prefix(static_cast<size_t>(step.length));
    }
    out += piece;
  }
  return out + decoder.finish();
}

TEST(StreamDecoder, ShowsWholeCharactersOnly) {
  EXPECT_EQ(stream("aé€😀z"), "aé€😀z");
  EXPECT_EQ(stream("a\xE2\x82"), "a\uFFFD");
  EXPECT_EQ(stream("\xE2\x82z"), "\uFFFDz");
  EXPECT_EQ(stream("\xE2\x82\xE2\x82\xAC"), "\uFFFD€");
  EXPECT_EQ(stream("\xFF\x80"), "\uFFFD\uFFFD");
  EXPECT_NE(stream(all_bytes()), "");
  const auto tokenizer = make_tokenizer("bytes");
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.push(0xE2), "");
  EXPECT_EQ(decoder.push(0x82), "");
  EXPECT_EQ(decoder.push(0xAC), "€");
  EXPECT_EQ(decoder.finish(), "");
}

}  // namespace
}  // namespace moe::test::tokenizer_test
