// Texts under a constraint: a model of random weights writes JSON that satisfies its schema, with
// and without guesses, and stops where nothing can follow.
#include <nlohmann/json.hpp>
#include <set>

#include "core/json.h"
#include "infer/generate.h"
#include "support/files.h"
#include "support/schema_checker.h"
#include "support/tiny_model.h"
#include "text/grammar/json_rules.h"
#include "text/grammar/json_schema.h"

namespace moe::test::constrained_test {
namespace {

const char* const kPerson = R"({"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 8},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1, "maxItems": 3}},
    "required": ["name", "age", "tags"], "additionalProperties": false})";

struct Writer {
  std::unique_ptr<Model> model;
  moe::Run run{2};
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("bytes");
  GenerateOptions options;

  Writer() {
    ModelConfig config = plain_config();
    config.init.std = 0.3f;
    model = fresh(config);
    options.max_tokens = 400;
    options.sampler.temperature = 1;
    options.sampler.top_k = 0;
  }
  std::unique_ptr<grammar::Constraint> constraint(const std::string& schema) const {
    return std::make_unique<grammar::Constraint>(
        grammar::json_schema_grammar(schema, "s"),
        std::make_shared<const grammar::TokenTable>(*tokenizer));
  }
  Generated write(const std::string& schema, const std::string& prompt = "Once") {
    const std::vector<int32_t> ids = tokenizer->encode(prompt);
    Session session = session_for(*model, run, ids, options);
    std::string shown;
    Generated out = generate(
        session, *tokenizer, ids, options,
        [&](const std::string& text) {
          shown += text;
          return true;
        },
        {}, constraint(schema));
    EXPECT_EQ(shown, out.text);
    return out;
  }
};

TEST(Constrained, ARandomModelWritesWhatTheSchemaAsksFor) {
  Writer w;
  const SchemaChecker checker(kPerson);
  std::set<std::string> texts;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    w.options.sampler.seed = seed;
    const Generated out = w.write(kPerson);
    ASSERT_EQ(out.finish, "stop") << out.text;
    EXPECT_TRUE(checker.holds(OrderedJson::parse(out.text))) << out.text;
    EXPECT_EQ(out.tokens, std::ssize(out.text)) << "bytes, and nothing behind the last brace";
    texts.insert(out.text);
  }
  EXPECT_GT(texts.size(), 8u) << "the model decides what the schema leaves open";
}

TEST(Constrained, TheMostLikelyAllowedTokenIsTaken) {
  Writer w;
  w.options.sampler.temperature = 0;
  EXPECT_EQ(w.write(R"({"const": {"a": "fixed"}})").text.substr(0, 1), "{");
  EXPECT_EQ(w.write(R"({"const": "fixed"})").text, "\"fixed\"");
}

TEST(Constrained, GuessesGoThroughTheConstraint) {
  Writer w;
  const std::string schema = R"({"type": "array", "minItems": 6, "maxItems": 6,
      "items": {"const": "copied text"}})";
  for (const float temperature : {0.0f, 1.0f}) {
    w.options.sampler.temperature = temperature;
    w.options.prompt_lookup = 0;
    const Generated plain = w.write(schema, "\"copied text\",\"copied text\"\n");
    w.options.prompt_lookup = 8;
    const Generated guessed = w.write(schema, "\"copied text\",\"copied text\"\n");
    EXPECT_GT(guessed.accepted, 10);
    EXPECT_EQ(guessed.finish, "stop");
    EXPECT_EQ(parse_json(guessed.text, "t").size(), 6u);
    EXPECT_EQ(guessed.text, plain.text);
  }
}

TEST(Constrained, AnEndTokenStops) {
  Writer w;
  w.tokenizer->set_special({.eos = 7});
  for (uint64_t seed = 0; seed < 6; ++seed) {
    w.options.sampler.seed = seed;
    const Generated out = w.write(R"({"type": "integer"})");
    EXPECT_EQ(out.finish, "stop");
    EXPECT_TRUE(parse_json(out.text, "t").is_number_integer()) << out.text;
  }
}

TEST(Constrained, WhatWasHeldBackIsShownAtTheEnd) {
  Writer w;
  w.options.stop = {"}!"};
  const Generated out = w.write(R"({"const": {}})");
  EXPECT_EQ(out.text.back(), '}');
  EXPECT_EQ(out.finish, "stop");
  w.options.max_tokens = 5;
  w.options.stop = {};
  const Generated cut = w.write(R"({"const": "a long text"})");
  EXPECT_EQ(cut.finish, "length");
  EXPECT_EQ(cut.text, "\"a lo");
}

// A draw under a mask is the draw among the allowed logits alone.
TEST(Constrained, TheSamplerTakesNoOtherToken) {
  const std::vector<float> logits = {5, 1, 4, 3, 2};
  const std::vector<uint64_t> mask = {0b11010};
  SamplerOptions o;
  o.temperature = 0;
  EXPECT_EQ(Sampler(o).next(logits, mask), 3);
  o.temperature = 1;
  o.top_k = 2;
  o.min_p = 0;
  o.top_p = 1;
  Sampler masked(o), cut(o);
  std::set<int32_t> seen;
  for (int i = 0; i < 200; ++i) {
    const int32_t id = masked.next(logits, mask);
    seen.insert(id);
    EXPECT_EQ(id, cut.next(std::vector<float>{-INFINITY, 1, -INFINITY, 3, 2}));
  }
  EXPECT_EQ(seen, (std::set<int32_t>{3, 4}));
  EXPECT_FAILS(Sampler(o).next(logits, std::vector<uint64_t>{0}), "none of the 0 tokens");
  EXPECT_FAILS(Sampler(o).next(std::vector<float>{-INFINITY, 1}, std::vector<uint64_t>{1}),
               "none of the 1 tokens");
  EXPECT_FAILS(Sampler(o).next(std::vector<float>{1, NAN}, std::vector<uint64_t>{1}), "nan");

  // beyond the mask's end lies what pads a vocabulary
  std::vector<float> wide(130, 1);
  wide[129] = 9;
  o.temperature = 0;
  EXPECT_EQ(Sampler(o).next(wide, std::vector<uint64_t>{0, uint64_t{1} << 5}), 69);
}

TEST(Constrained, ThePenaltyMeetsAllowedTokensOnly) {
  SamplerOptions o;
  o.temperature = 0;
  o.repeat_penalty = 4;
  Sampler sampler(o);
  for (const int32_t id : {0, 2, 3}) sampler.accept(id);
  EXPECT_EQ(sampler.next(std::vector<float>{9, 1, 8, 3, 2}, std::vector<uint64_t>{0b11000}), 4);
}

}  // namespace
}  // namespace moe::test::constrained_test
