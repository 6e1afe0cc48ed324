// Grammars built by hand: repetitions, rules that lead back to themselves, what is refused, and
// that what is allowed never comes to a dead end.
#include "text/grammar/grammar.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "support/files.h"
#include "text/grammar/json_rules.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/states.h"

namespace moe::test::grammar_test {
namespace {

using grammar::Builder;
using grammar::ByteSet;
using grammar::kDead;
using grammar::kUnbounded;
using grammar::RuleId;
using grammar::StateId;
using grammar::States;

bool accepts(const std::shared_ptr<const grammar::Grammar>& grammar, const std::string& text) {
  States states(grammar);
  StateId state = states.start();
  for (const char c : text) state = states.next(state, static_cast<uint8_t>(c));
  return states.complete(state);
}

TEST(ByteSet, HoldsWhatItIsToldTo) {
  ByteSet set(0x7F, 0x81);
  EXPECT_FALSE(set.has(0x7E));
  for (const int byte : {0x7F, 0x80, 0x81}) EXPECT_TRUE(set.has(byte));
  EXPECT_FALSE(set.has(0x82));
  EXPECT_TRUE(ByteSet("a\xFF").has(0xFF));
  EXPECT_FALSE(set.without(0x80).has(0x80));
  EXPECT_TRUE(ByteSet(5, 5).without(5).empty());
  set |= ByteSet("x");
  EXPECT_TRUE(set.has('x') && set.has(0x81));
}

TEST(Grammar, RepetitionsCount) {
  Builder b("g");
  const RuleId ab = b.rule({b.text("a"), b.text("bb")});
  const auto grammar =
      b.build(b.rule({{b.bytes(ByteSet("<")), Builder::repeat(ab, 2, 4), b.bytes(ByteSet(">"))},
                      {b.bytes(ByteSet("[")), Builder::repeat(ab, 3, kUnbounded)},
                      {b.bytes(ByteSet("(")), Builder::repeat(ab, 0, 0), b.bytes(ByteSet(")"))}}));
  for (const char* text : {"<aa>", "<abba>", "<bbbbbbbb>", "[aaa", "[aaaaaaaaabb", "()"})
    EXPECT_TRUE(accepts(grammar, text)) << text;
  for (const char* text : {"", "<a>", "<>", "<aaaaa>", "<aab>", "[aa", "[aaab", "(a)", "<aa>>"})
    EXPECT_FALSE(accepts(grammar, text)) << text;
}

TEST(Grammar, BracketsMatchAndListsAreFlat) {
  Builder b("g");
  const RuleId pair = b.rule(), list = b.rule();
  b.add(pair, {b.bytes(ByteSet("(")), Builder::ref(list), b.bytes(ByteSet(")"))});
  b.add(list, {});
  b.add(list, {Builder::ref(pair), Builder::ref(list)});
  const auto grammar = b.build(list);
  EXPECT_TRUE(accepts(grammar, ""));
  EXPECT_TRUE(accepts(grammar, "(()())()"));
  EXPECT_FALSE(accepts(grammar, "(()"));
  EXPECT_FALSE(accepts(grammar, "())"));
  std::string flat;
  for (int i = 0; i < 5000; ++i) flat += "()";
  EXPECT_TRUE(accepts(grammar, flat)) << "the last rule of an alternative needs no return place";
  const std::string open(grammar::kMostHeight / 2 - 1, '('), close(open.size(), ')');
  EXPECT_TRUE(accepts(grammar, open + close));
  EXPECT_FALSE(accepts(grammar, open + open + open + close + close + close));
}

TEST(Grammar, RefusesWhatHasNoEnd) {
  {
    Builder b("g");
    const RuleId one = b.rule(), two = b.rule(), empty = b.rule({{}});
    b.add(one, {Builder::ref(empty), Builder::ref(two)});
    b.add(two, {Builder::ref(one), b.bytes(ByteSet("a"))});
    b.add(two, b.text("a"));
    EXPECT_FAILS(b.build(one), "g: a $ref leads back to its own schema");
  }
  {
    Builder b("g");
    const RuleId endless = b.rule();
    b.add(endless, {b.bytes(ByteSet("a")), Builder::ref(endless)});
    EXPECT_FAILS(b.build(endless), "g: no text satisfies it");
    EXPECT_NO_THROW(b.build(b.rule({b.text("b"), {Builder::ref(endless)}})));
  }
  {
    Builder b("g");
    RuleId deep = b.rule({b.text("a")});
    for (uint32_t i = 0; i < grammar::kMostHeight; ++i)
      deep = b.rule({{Builder::ref(deep), b.bytes(ByteSet("b"))}});
    EXPECT_TRUE(accepts(b.build(deep), "a" + std::string(grammar::kMostHeight, 'b')));
    EXPECT_FAILS(b.build(b.rule({{Builder::ref(deep), b.bytes(ByteSet("b"))}})), "nested too deep");
  }
  {
    Builder b("g");
    const RuleId empty = b.rule({{}, b.text("a")});
    EXPECT_FAILS(b.build(b.rule({{Builder::repeat(empty, 0, 3)}})), "may be empty");
  }
}

// Nesting is preferred until no more is possible, then whatever comes; the text still goes on.
TEST(States, WhatIsAllowedCanBeCompleted) {
  const auto tree = grammar::json_schema_grammar(
      R"({"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {"l": {"anyOf":
          [{"type": "null"}, {"$ref": "#/$defs/t"}]}, "r": {"type": "array", "items":
          {"$ref": "#/$defs/t"}}}, "required": ["l", "r"], "additionalProperties": false}}})",
      "s");
  for (const auto& grammar : {grammar::json_object_grammar(), tree})
    for (uint32_t seed = 0; seed < 8; ++seed) {
      std::mt19937 random(seed);
      States states(grammar);
      StateId state = states.start();
      std::string text;
      for (int step = 0; step < 6000 && !states.complete(state); ++step) {
        ASSERT_FALSE(states.live(state).empty()) << text;
        std::string wanted = step < 1500 ? "[{\":" : "\"}]:,n0";
        if (random() % 4 == 0) wanted = "";
        int byte = -1;
        for (const char c : wanted)
          if (byte < 0 && states.live(state).has(c)) byte = c;
        while (byte < 0) {
          const auto any = static_cast<int>(random() % 256);
          if (states.live(state).has(any)) byte = any;
        }
        state = states.next(state, static_cast<uint8_t>(byte));
        ASSERT_NE(state, kDead) << text;
        text += static_cast<char>(byte);
        if (states.crowded()) state = states.keep_only(state);
        states.begin_work();
      }
      EXPECT_TRUE(states.complete(state)) << seed << text;
    }
}

TEST(States, WhatIsForgottenIsFoundAgain) {
  const auto grammar = grammar::json_object_grammar();
  const std::string text = R"({"a": [1, {"b": "caf\u00e9"}], "c": -2.5e3})";
  States kept(grammar), forgetful(grammar);
  StateId a = kept.start(), b = forgetful.start();
  for (const char c : text) {
    EXPECT_EQ(kept.live(a), forgetful.live(b));
    a = kept.next(a, static_cast<uint8_t>(c));
    b = forgetful.keep_only(forgetful.next(b, static_cast<uint8_t>(c)));
  }
  EXPECT_TRUE(kept.complete(a));
  EXPECT_TRUE(forgetful.complete(b));
  EXPECT_EQ(forgetful.keep_only(kDead), kDead);
}

}  // namespace
}  // namespace moe::test::grammar_test
