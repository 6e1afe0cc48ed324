// The strict parser and the reader over an object: each refusal with its place and its reason.
#include "core/json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "support/comma_locale.h"
#include "support/files.h"

namespace moe::test::json_test {
namespace {

Json parse(std::string_view text) { return parse_json(text, "x.json"); }

TEST(ParseJson, TakesWhatIsValid) {
  const Json value = parse(R"({"a": [1, -2.5, true, null, "é\u00e9"], "b": {}})");
  EXPECT_EQ(value["a"][1].get<double>(), -2.5);
  EXPECT_EQ(value["a"][4].get<std::string>(), "éé");
  EXPECT_TRUE(parse("3").is_number());
}

TEST(ShortestDecimal, IsTheSameInEveryLocale) {
  const auto all_right = [] {
    EXPECT_EQ(shortest_decimal(0.1f), 0.1);
    EXPECT_EQ(shortest_decimal(-3e-7f), -3e-7);
    EXPECT_EQ(shortest_decimal(65504.0f), 65504.0);
    EXPECT_EQ(shortest_decimal(INFINITY), INFINITY);
    EXPECT_TRUE(std::isnan(shortest_decimal(NAN)));
  };
  all_right();
  const CommaLocale comma;
  if (!comma.works()) GTEST_SKIP() << "no locale with a comma can be made here (localedef)";
  all_right();
  EXPECT_EQ(parse("[0.25]")[0].get<double>(), 0.25);
}

TEST(ParseJson, ErrorsHaveLineAndColumn) {
  EXPECT_FAILS(parse(""), "x.json: line 1, column 0: ");
  EXPECT_FAILS(parse("{\"a\": 1,\n \"b\" 2}"), "x.json: line 2, column 6: ");
  EXPECT_FAILS(parse("{\"a\": 1} x"), "line 1, column 10");
  EXPECT_FAILS(parse("{\"a\": 1"), "x.json: line 1");
  EXPECT_FAILS(parse("[1e999]"), "x.json: line 1, column 7: number overflow");
  EXPECT_FAILS(parse("\"\xff\""), "UTF-8");
  EXPECT_FAILS(parse("[1, 2,\n3 4]"), "x.json: line 2, column 3: ");
  EXPECT_FAILS(parse("[nan]"), "x.json: line 1");
}

TEST(ParseJson, DuplicateKeysAreRefusedInAnyObject) {
  EXPECT_FAILS(parse("{\"a\": 1,\n\"a\": 2}"), "line 2, column 3: the key \"a\" stands twice");
  EXPECT_FAILS(parse(R"([{"b": {"c": 1, "d": 2, "c": 3}}])"), "\"c\" stands twice");
  EXPECT_NO_THROW(parse(R"({"a": {"a": 1}, "b": [{"a": 2}, {"a": 3}]})"));
}

TEST(ParseJson, DepthAndSizeAreLimited) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_NO_THROW(parse(nested(kJsonMaxDepth)));
  EXPECT_FAILS(parse(nested(kJsonMaxDepth + 1)), "column 65: nested deeper than 64");
  EXPECT_FAILS(parse(std::string(1'000'000, '[')), "nested deeper");
  EXPECT_NO_THROW(parse_json("[1, 2]", "x", 6));
  EXPECT_FAILS(parse_json("[1, 2]", "x", 5), "6 bytes of JSON are more than the 5 allowed");
}

TEST(ParseJson, TheOrderOfKeysIsKeptWhereItIsAskedFor) {
  const std::string text = R"({"z":1,"a":{"y":[],"b":2.5}})";
  EXPECT_EQ(parse_ordered_json(text, "x").dump(), text);
  EXPECT_FAILS(parse_ordered_json("{\"a\": 1, \"a\": 2}", "x"), "the key \"a\" stands twice");
  EXPECT_FAILS(parse_ordered_json(std::string(100, '['), "x"), "nested deeper");
  EXPECT_FAILS(parse_ordered_json("[1, 2]", "x", 5), "more than the 5 allowed");
  const auto wide = [](size_t keys) {
    std::string out = "{\"\": 0";
    for (size_t i = 1; i < keys; ++i) out += fmt::format(", \"{}\": 0", i);
    return out + "}";
  };
  EXPECT_NO_THROW(parse_ordered_json(wide(kJsonMostOrderedKeys), "x"));
  EXPECT_FAILS(parse_ordered_json(wide(kJsonMostOrderedKeys + 1), "x"), "more than 1024 keys");
  EXPECT_NO_THROW(parse(wide(kJsonMostOrderedKeys + 1)));
}

TEST(OneLineJson, KeepsTheOrderThatTheValueHas) {
  const char* text = "{\"b\": [1, \"x\\ny\"], \"a\": null}";
  EXPECT_EQ(one_line_json(parse(text)), "{\"a\":null,\"b\":[1,\"x\\ny\"]}");
  EXPECT_EQ(one_line_json(parse_ordered_json(text, "x.json")), "{\"b\":[1,\"x\\ny\"],\"a\":null}");
  EXPECT_EQ(one_line_json(Json("a\xff")), "\"a\xEF\xBF\xBD\"");
}

TEST(ParseJson, FromAFile) {
  TempFolder folder;
  put(folder / "a.json", "{\"a\": }");
  EXPECT_FAILS(read_json(folder / "a.json"), (folder / "a.json") + ": line 1, column 7");
  EXPECT_FAILS(read_json(folder / "b.json"), "No such file");
}

class ReaderTest : public ::testing::Test {
 protected:
  Json json_ = parse(
      R"({"n": 4, "big": 18446744073709551615, "r": 0.5, "s": "text", "t": true, "null": null, "o": {"x": 1}, "list": [1, 2],
    "names": ["a", "b"], "mixed": [1, "a"], "os": [{"x": 1}, {"x": 2}], "act": "silo"})");
  JsonReader reader_{json_, "x.json"};
};

TEST_F(ReaderTest, TypedGetters) {
  EXPECT_EQ(reader_.get<int64_t>("n"), 4);
  EXPECT_EQ(reader_.get<double>("n"), 4.0);
  EXPECT_EQ(reader_.get<double>("r"), 0.5);
  EXPECT_EQ(reader_.get<std::string>("s"), "text");
  EXPECT_TRUE(reader_.get<bool>("t"));
  EXPECT_EQ(reader_.get<std::vector<int64_t>>("list"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(reader_.get<std::vector<std::string>>("names"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(reader_.object("o").get<int64_t>("x"), 1);
  EXPECT_EQ(reader_.objects("os").at(1).get<int64_t>("x"), 2);
}

TEST_F(ReaderTest, DefaultsStandInForAbsentAndNull) {
  EXPECT_EQ(reader_.get<int64_t>("absent", 7), 7);
  EXPECT_EQ(reader_.get<int64_t>("null", 8), 8);
  EXPECT_EQ(reader_.get<int64_t>("n", 9), 4);
  EXPECT_FALSE(reader_.has("null"));
  EXPECT_FAILS(reader_.get<int64_t>("null"), "\"null\" is missing: null is no value");
  EXPECT_FAILS(reader_.get<int64_t>("name"), "\"name\" is missing; did you mean \"names\"?");
}

TEST_F(ReaderTest, WrongTypesAreNamed) {
  EXPECT_FAILS(reader_.get<int64_t>("r"),
               "x.json: \"r\" must be a whole number of 64 bits, this is 0.5");
  EXPECT_FAILS(reader_.get<int64_t>("big"), "this is 18446744073709551615");
  EXPECT_FAILS(reader_.get<int64_t>("t"), "this is true");
  EXPECT_FAILS(reader_.get<bool>("n"), "must be true or false");
  EXPECT_FAILS(reader_.get<std::string>("o"), "this is an object");
  EXPECT_FAILS(reader_.get<std::vector<int64_t>>("mixed"), "an array of whole numbers");
  EXPECT_FAILS(reader_.object("n"), "an object is needed");
  EXPECT_FAILS(reader_.objects("list"),
               "x.json: \"list\"[0]: an object is needed, this is a whole number");
  EXPECT_FAILS(reader_.object("o").get<int64_t>("y"), "x.json: \"o\": \"y\" is missing");
}

TEST_F(ReaderTest, RangesAndNames) {
  EXPECT_EQ(reader_.get_in<int64_t>("n", 1, 4), 4);
  EXPECT_FAILS(reader_.get_in<int64_t>("n", 5, 8), "\"n\" is 4, it must be between 5 and 8");
  EXPECT_FAILS(reader_.get_in<double>("r", 0.6, 1), "\"r\" is 0.5, it must be between 0.6 and 1");
  EXPECT_EQ(reader_.get_in<int64_t>("absent", 5, 8, 6), 6);
  EXPECT_EQ(reader_.get_one_of("s", {"other", "text"}), 1u);
  EXPECT_FAILS(reader_.get_one_of("act", {"gelu", "silu"}),
               "\"act\" is \"silo\", which is not known; did you mean \"silu\"?");
}

TEST(JsonReader, UnknownKeysAreRefusedWithTheNearest) {
  const Json json = parse(R"({"hidden_size": 4, "num_expert": 8, "note": 1})");
  const JsonReader reader(json, "config.json");
  EXPECT_EQ(reader.get<int64_t>("hidden_size"), 4);
  EXPECT_EQ(reader.get<int64_t>("num_experts", 1), 1);
  EXPECT_FAILS(reader.refuse_unknown({"note"}),
               "config.json: \"num_expert\" is not known here; did you mean \"num_experts\"?");
  EXPECT_NO_THROW(reader.refuse_unknown({"note", "num_expert"}));
}

// Found by the fuzzer: a key may hold any character, and every message that repeats it must stay
// one line.
TEST(JsonReader, KeysAreRepeatedInOneLine) {
  const Json json = parse(R"({"a\nb": 7, "s\nt": "text", "o\nq": {"x": 1}})");
  const JsonReader reader(json, "x.json");
  EXPECT_FAILS(reader.get_in<int64_t>("a\nb", 0, 1), "\"a?b\" is 7");
  EXPECT_FAILS(reader.get_one_of("s\nt", {"other"}), "\"s?t\" is");
  EXPECT_FAILS(reader.objects("a\nb"), "\"a?b\" must be an array");
  EXPECT_FAILS(reader.object("o\nq").get<int64_t>("y"), "\"o?q\": \"y\" is missing");
}

}  // namespace
}  // namespace moe::test::json_test
