// Masks over tokens: that texts drawn through them are JSON and satisfy their schema, whatever the
// tokens; that marks never come; where a text may and must end.
#include "text/grammar/token_mask.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "core/json.h"
#include "support/files.h"
#include "support/learned_bpe.h"
#include "support/schema_checker.h"
#include "text/grammar/json_rules.h"
#include "text/grammar/json_schema.h"

namespace moe::test::token_mask_test {
namespace {

using grammar::Constraint;
using grammar::TokenTable;

std::shared_ptr<const TokenTable> table_of(const Tokenizer& tokenizer) {
  return std::make_shared<const TokenTable>(tokenizer);
}

Constraint constraint(const std::string& schema, const Tokenizer& tokenizer) {
  return Constraint(grammar::json_schema_grammar(schema, "s"), table_of(tokenizer));
}

// A small byte-level BPE whose tokens cross the borders of JSON's own, with an end of text.
std::unique_ptr<Tokenizer> small_bpe() {
  const std::string_view text =
      "{\"name\": \"a\", \"name\": \"b\"}, {\"n\":1,\"m\":null}]}\", \"name\": [true, false]\n  "
      "\"name\": \"caf\xC3\xA9 caf\xC3\xA9 \xE2\x82\xAC\xE2\x82\xAC 2024-01-01 2024-01-02 -10 "
      "-10.5";
  auto tokenizer = learned_bpe(std::vector<std::string_view>(3, text), 340);
  EXPECT_GT(tokenizer->vocab_size(), 280);
  return tokenizer;
}

// Tokens drawn among the allowed ones until the text ends. After a while what closes is preferred.
std::string walk(Constraint& constraint, const Tokenizer& tokenizer, uint32_t seed) {
  std::mt19937 random(seed);
  std::string text;
  const auto most = static_cast<int>(random() % 60);
  for (int step = 0; step < 4000; ++step) {
    if (constraint.must_end()) return text;
    const std::span<const uint64_t> mask = constraint.allowed();
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      EXPECT_EQ(constraint.allows(id), grammar::has(mask, id));
      if (grammar::has(mask, id)) ids.push_back(id);
    }
    if (constraint.may_end() && (step > most || random() % 8 == 0)) return text;
    int32_t chosen = ids[random() % ids.size()];
    if (step > most || random() % 6 == 0)
      for (const char* wanted : {"\"", "}", "]", "0", "1"}) {
        const int32_t id = tokenizer.encode(wanted)[0];
        if (!grammar::has(mask, id)) continue;
        chosen = id;
        break;
      }
    constraint.accept(chosen);
    if (tokenizer.ends_text(chosen)) return text;
    text += tokenizer.piece(chosen);
  }
  ADD_FAILURE() << "no end: " << text;
  return text;
}

const std::vector<std::string> kSchemas = {
    "{}",
    R"({"type": "object"})",
    R"({"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["name", "n"], "additionalProperties": false})",
    R"({"properties": {"name": {"type": "integer"}, "na\"me": {"type": "null"}, "\u00e9":
        {"const": 1}}, "additionalProperties": {"type": "array"}})",
    R"({"type": "array", "items": {"type": ["number", "null", "boolean"]}, "minItems": 2,
        "maxItems": 5})",
    R"({"prefixItems": [{"format": "date"}, {"format": "time"}, {"format": "date-time"},
        {"format": "uuid"}], "items": false, "minItems": 3})",
    R"({"type": "array", "items": {"type": "integer", "minimum": -105, "maximum": 1203},
        "minItems": 3})",
    R"({"type": "array", "items": {"type": "number", "exclusiveMinimum": -3, "maximum": 2},
        "minItems": 3})",
    R"({"type": "array", "items": {"type": "number", "exclusiveMinimum": 0,
        "exclusiveMaximum": 99999999999999}, "minItems": 3})",
    R"({"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 4},
        "minItems": 2})",
    R"({"type": "array", "items": {"enum": ["name", "nam", "n", 1, 12, null, {"name": [1]}]},
        "minItems": 4})",
    R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties":
        {"name": {"type": "string"}, "left": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type":
        "null"}]}, "right": {"$ref": "#/$defs/tree"}}, "required": ["left"],
        "additionalProperties": false}}})",
    R"({"oneOf": [{"properties": {"k": {"const": "a"}, "v": {"type": "null"}}, "required": ["k",
        "v"]}, {"properties": {"k": {"const": "ab"}, "v": {"type": "integer"}}, "required": ["k",
        "v"]}]})",
};

void draw_texts(const Tokenizer& tokenizer, uint32_t seeds) {
  const auto table = table_of(tokenizer);
  for (const std::string& schema : kSchemas) {
    const auto grammar = grammar::json_schema_grammar(schema, "s");
    const SchemaChecker checker(schema);
    for (uint32_t seed = 0; seed < seeds; ++seed) {
      Constraint one(grammar, table);
      const std::string text = walk(one, tokenizer, seed);
      EXPECT_TRUE(one.may_end());
      OrderedJson value;
      ASSERT_NO_THROW(value = OrderedJson::parse(text)) << schema << "\n" << text;
      EXPECT_TRUE(checker.holds(value)) << schema << "\n" << text;
    }
  }
}

TEST(Constraint, TextsDrawnFromBytesSatisfyTheSchema) { draw_texts(*make_tokenizer("bytes"), 40); }

TEST(Constraint, TextsDrawnFromLongerTokensSatisfyTheSchema) { draw_texts(*small_bpe(), 40); }

// The mask is what accept() takes, token by token, for every token.
TEST(Constraint, TheMaskIsWhatBytesAllow) {
  const auto tokenizer = small_bpe();
  const auto bytes = make_tokenizer("bytes");
  const auto table = table_of(*tokenizer);
  const auto byte_table = table_of(*bytes);
  const auto grammar = grammar::json_schema_grammar(kSchemas[2], "s");
  const std::string text = "{\"name\": \"caf\xC3\xA9\", \"n\":10}";
  for (size_t cut = 0; cut < text.size(); ++cut) {
    Constraint tokens(grammar, table);
    for (const char c : text.substr(0, cut)) tokens.accept(tokenizer->encode(std::string(1, c))[0]);
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      Constraint one(grammar, byte_table);
      bool can = !tokenizer->ends_text(id) && !tokenizer->piece(id).empty();
      const std::string all = text.substr(0, cut) + tokenizer->piece(id);
      for (size_t i = 0; can && i < all.size(); ++i) {
        const auto byte = static_cast<unsigned char>(all[i]);
        can = one.allows(byte);
        if (can) one.accept(byte);
      }
      ASSERT_EQ(tokens.allows(id), can) << cut << " " << id;
    }
  }
}

TEST(Constraint, EndsExactlyWhereTheTextMay) {
  auto tokenizer = small_bpe();
  const auto end = tokenizer->eos_id();
  ASSERT_TRUE(end.has_value());
  Constraint number = constraint(R"({"type": "integer"})", *tokenizer);
  EXPECT_FALSE(number.allows(*end));
  EXPECT_FALSE(number.may_end());
  EXPECT_FAILS(number.accept(*end), "may not come here");
  number.accept('4');
  EXPECT_TRUE(number.may_end());
  EXPECT_FALSE(number.must_end()) << "a digit may follow";
  EXPECT_TRUE(number.allows(*end));
  EXPECT_TRUE(number.allows('2'));
  EXPECT_FALSE(number.allows('.'));
  number.accept(*end);
  EXPECT_TRUE(number.may_end());
  EXPECT_TRUE(number.must_end());
  EXPECT_TRUE(number.allows(*end));
  EXPECT_FALSE(number.allows('2'));
  EXPECT_FAILS(number.accept('2'), "may not come here");

  Constraint object = constraint(R"({"type": "object"})", *tokenizer);
  object.accept('{');
  EXPECT_FALSE(object.must_end());
  object.accept('}');
  EXPECT_TRUE(object.must_end());
  EXPECT_TRUE(object.allows(*end));
}

TEST(Constraint, BytesHaveNoEndToken) {
  const auto tokenizer = make_tokenizer("bytes");
  Constraint one = constraint(R"({"const": 1})", *tokenizer);
  EXPECT_FALSE(one.allows(-1));
  EXPECT_FALSE(one.allows(256));
  EXPECT_FAILS(one.accept(256), "may not come here");
  one.accept('1');
  EXPECT_TRUE(one.must_end());
  EXPECT_FAILS(one.allowed(), "no token of the vocabulary can go on the text here, which is");
}

// An added token's text may be JSON; it is a mark all the same.
TEST(Constraint, MarksAreNoText) {
  Json json = parse_json(make_tokenizer("bytes")->to_json(), "t");
  json["added_tokens"] = {{{"id", 256}, {"content", "{\""}},
                          {{"id", 257}, {"content", "{}"}, {"special", false}},
                          {{"id", 258}, {"content", "<b>"}, {"normalized", true}}};
  const auto tokenizer = parse_tokenizer(json.dump(), "t.json");
  EXPECT_EQ(tokenizer->marks(), (std::vector<int32_t>{256, 257, 258}));
  Constraint one = constraint(R"({"type": "object"})", *tokenizer);
  EXPECT_TRUE(one.allows('{'));
  EXPECT_FALSE(one.allows(256));
  EXPECT_FALSE(one.allows(257));
  one.accept('{');
  one.accept('"');
  EXPECT_TRUE(one.allows('<'));
  EXPECT_FALSE(one.allows(258));
}

// Half a character is no string, so that a text never ends within one.
TEST(Constraint, CharactersAreWellFormed) {
  const auto tokenizer = make_tokenizer("bytes");
  Constraint one = constraint(R"({"type": "string"})", *tokenizer);
  one.accept('"');
  for (const int32_t never : {0x80, 0xBF, 0xC0, 0xC1, 0xF5, 0xFF, 0x0A, 0x1F})
    EXPECT_FALSE(one.allows(never)) << never;
  one.accept(0xED);
  EXPECT_TRUE(one.allows(0x9F));
  EXPECT_FALSE(one.allows(0xA0)) << "a surrogate";
  EXPECT_FALSE(one.allows('"'));
  one.accept(0x9F);
  one.accept(0xBF);
  EXPECT_TRUE(one.allows('"'));
}

// More states than are kept: what was forgotten is worked out again.
TEST(Constraint, LongTextsStayWithinMemory) {
  const auto tokenizer = make_tokenizer("bytes");
  Constraint one = constraint(
      R"({"type": "array", "items": {"type": "string", "maxLength": 20000}})", *tokenizer);
  one.accept('[');
  one.accept('"');
  for (int i = 0; i < 20'000; ++i) {
    if (i % 5 == 0) ASSERT_TRUE(one.allows('a')) << i;
    one.accept('a');
  }
  EXPECT_FALSE(one.allows('a'));
  one.accept('"');
  one.accept(']');
  EXPECT_TRUE(one.must_end());
}

TEST(Constraint, TheMaskStaysUntilTheNextToken) {
  const auto tokenizer = make_tokenizer("bytes");
  Constraint one(grammar::json_object_grammar(), table_of(*tokenizer));
  const std::vector<uint64_t> before(one.allowed().begin(), one.allowed().end());
  one.allows('x');
  EXPECT_TRUE(std::equal(before.begin(), before.end(), one.allowed().begin()));
  one.accept('{');
  EXPECT_FALSE(std::equal(before.begin(), before.end(), one.allowed().begin()));
}

}  // namespace
}  // namespace moe::test::token_mask_test
