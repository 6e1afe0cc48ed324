// The interpreter against jinja2 (tools/golden/jinja.py), and its bounds.
#include "text/jinja/jinja.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/files.h"

namespace moe::test::jinja_test {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::time_t kNoonOfTheSecondDay = 36 * 3600;  // in every zone 2 January 1970, or nearly

std::string render(const std::string& source, const jinja::Variables& variables = {}) {
  return jinja::Template(source).render(variables, {.now = kNoonOfTheSecondDay}).text;
}

TEST(Jinja, EveryPieceAsJinja2) {
  const OrderedJson golden =
      OrderedJson::parse(std::ifstream(std::string(MOE_TEST_DATA) + "/golden/jinja.json"));
  jinja::Variables context;
  for (const auto& [name, value] : golden["context"].items())
    context.emplace_back(name, jinja::from_json(value));
  ASSERT_GT(golden["pieces"].size(), 70u);
  for (const OrderedJson& piece : golden["pieces"]) {
    const std::string source = piece["template"];
    if (piece.contains("refused")) EXPECT_FAILS(render(source, context), "chat template, line 1: ");
    else EXPECT_EQ(piece["text"], render(source, context)) << source;
  }
}

TEST(Jinja, SaysWhereSomethingIsWrong) {
  EXPECT_FAILS(render("a\n\n{{ x | nope }}"), "line 3: the filter nope is not known");
  EXPECT_FAILS(render("\n{% for x in y %}"), "line 2: {% endfor %} is missing");
  EXPECT_FAILS(render("{% extends 'x' %}"), "{% extends %} is not known here");
  EXPECT_FAILS(render("{{ 'a }}"), "a string does not end");
  EXPECT_FAILS(render("\n{# a"), "line 2: a comment does not end");
  EXPECT_FAILS(render("{% if true %}\n{{ a.b.c }}{% endif %}"), "line 2: a is undefined");
  EXPECT_FAILS(render("{% macro m() %}\n{{ 1 / 0 }}{% endmacro %}\n{{ m() }}"), "line 2: ");
  EXPECT_FAILS(render("{{ raise_exception('a\\n\\nb') }}"), "line 1: the template refuses: a  b");
  EXPECT_FAILS(render("{{ raise_exception('a' * 9999) }}"), "aaa...");
  EXPECT_FAILS(render("{{ 'É' | upper }}"), "beyond ASCII");
  EXPECT_FAILS(render("{{ 9223372036854775807 + 1 }}"), "64 bits");
}

TEST(Jinja, TellsWhereGenerationsStand) {
  const auto out = jinja::Template(
                       "ab{% generation %}c{{ 1 }}{% endgeneration %}d"
                       "{% generation %}{% endgeneration %}")
                       .render({}, {});
  EXPECT_EQ(out.text, "abc1d");
  ASSERT_EQ(out.generations.size(), 2u);
  EXPECT_EQ(out.generations[0], (std::pair<size_t, size_t>{2, 4}));
  EXPECT_EQ(out.generations[1], (std::pair<size_t, size_t>{5, 5}));
}

TEST(Jinja, WhatATemplateMayTakeIsBounded) {
  EXPECT_FAILS(render("{% for a in range(9999999) %}{% endfor %}"), "more than");
  EXPECT_FAILS(
      render("{% for a in range(2000) %}{% for b in range(2000) %}{% endfor %}{% endfor %}"),
      "more than");
  EXPECT_FAILS(render("{% set ns = namespace(t='0123456789') %}{% for i in range(99) %}"
                      "{% set ns.t = ns.t ~ ns.t %}{% endfor %}"),
               "MiB");
  EXPECT_FAILS(render("{{ 'a' * 99999999999 }}"), "steps");
  EXPECT_FAILS(render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), "40 deep");
  std::string deep, wide = "{{ 1";
  for (int i = 0; i < 10000; ++i) {
    deep += "(";
    wide += " + 1";
  }
  EXPECT_FAILS(render("{{ " + deep + "1" + std::string(10000, ')') + " }}"), "inside each other");
  EXPECT_FAILS(render(wide + " }}"), "too long");
  std::string sum = "m()";  // deep in each other by both
  for (int i = 0; i < 490; ++i) sum += " + 1";
  EXPECT_FAILS(render("{% macro m() %}{{ " + sum + " }}{% endmacro %}{{ m() }}"),
               "inside each other");
  for (const std::string next : {"[ns.l]", "{1: ns.l}", "[ns.l.index]", "ns.l.count"})
    EXPECT_FAILS(render("{% set ns = namespace(l=[]) %}{% for i in range(99999) %}"
                        "{% set ns.l = " +
                        next + " %}{% endfor %}"),
                 next == "ns.l.count" ? "" : "deep in each other");
  EXPECT_FAILS(render("{% set ns = namespace(f=0) %}{% for i in range(99999) %}{% set g = ns.f %}"
                      "{% macro f() %}{% endmacro %}{% set ns.f = f %}{% endfor %}"),
               "MiB");  // what stands around a macro is kept
  EXPECT_FAILS(render(std::string(2 << 20, 'a')), "1 MiB");
}

// Two lists of two lists of two lists ...: few bytes to hold, and more to write or to go through
// than any machine has.
TEST(Jinja, WhatIsHeldManyTimesCountsEachTime) {
  const std::string twice =
      "{% set ns = namespace(l=['a'], m=['a']) %}{% for i in range(60) %}"
      "{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{% endfor %}";
  for (const char* written :
       {"{{ ns.l }}", "{{ ns.l ~ '' }}", "{{ ns.l | tojson }}", "{{ ns.l | tojson(indent=4) }}",
        "{{ ns.l | string }}", "{{ [ns.l] | join }}", "{{ '{}'.format(ns.l) }}",
        "{{ 'a' | replace(ns.l, 'b') }}", "{{ ns.l is lower }}", "{{ raise_exception(ns.l) }}",
        "{{ {'a': 1}[ns.l] }}"})
    EXPECT_FAILS(render(twice + written), "more than") << written;
  for (const char* compared :
       {"{{ ns.l == ns.m }}", "{{ ns.l != ns.m }}", "{{ ns.l < ns.m }}", "{{ ns.l in [ns.m] }}",
        "{{ ns.l is eq(ns.m) }}", "{{ [ns.l, ns.m] | sort }}", "{{ [ns.l, ns.m] | max }}",
        "{{ [ns.l, ns.m] | unique | list }}", "{{ [ns.l].index(ns.m) }}",
        "{{ [ns.l].count(ns.m) }}", "{{ {ns.l: 1, ns.m: 2} | length }}",
        "{{ {ns.l: 1}.get(ns.m) }}"})
    EXPECT_FAILS(render(twice + compared), "steps") << compared;
  // to hold them is not much, and others tell at the first look
  EXPECT_EQ(render(twice + "{{ ns.l | length }}{{ ns.l == 'a' }}{{ ns.l[1:] | length }}"),
            "2False1");
}

TEST(Jinja, TextsTakeNoMoreThanTheirLength) {
  const jinja::Variables texts = {{"t", std::string(8 << 20, 'a')},
                                  {"u", std::string(4 << 20, 'a') + "b"},
                                  {"lines", std::string(8 << 20, '\n')}};
  EXPECT_EQ(render("{{ t[:3] }}{{ t[-2:] | length }}{{ t | first }}{{ t | last }}", texts),
            "aaa2aa");
  EXPECT_EQ(render("{{ t.strip('ab') }}{{ t.find('ab') }}", texts), "-1");
  for (const char* made : {"{{ t | list }}", "{{ t | reverse }}", "{{ t[::2] }}",
                           "{% for c in t %}{% endfor %}", "{{ lines.splitlines() }}"})
    EXPECT_FAILS(render(made, texts), "MiB") << made;
  for (const char* searched : {"{{ t.find(u) }}", "{{ t.rfind(u) }}", "{{ t.count(u) }}",
                               "{{ u in t }}", "{{ t.replace(u, '') }}"})
    EXPECT_FAILS(render(searched, texts), "steps") << searched;
  EXPECT_FAILS(render("{{ [[[[[[[[[[[x]]]]]]]]]]] | tojson(indent=100) }}",
                      {{"x", jinja::List(100'000, jinja::Value(int64_t{1}))}}),
               "MiB");
}

TEST(Jinja, NamesAreLookedForWithinTheSteps) {
  std::string many;
  for (int i = 0; i < 20'000; ++i) many += "{% set a" + std::to_string(i) + " = 0 %}";
  EXPECT_FAILS(render(many), "steps");
  std::string dict = "{{ {";
  for (int i = 0; i < 20'000; ++i) dict += std::to_string(i) + ":1,";
  EXPECT_FAILS(render(dict + "} | length }}"), "steps");
}

// As Python's slices and strip(): by characters.
TEST(Jinja, PartsOfTextsAreOfCharacters) {
  for (const auto& [piece, text] : std::initializer_list<std::pair<const char*, const char*>>{
           {"'äöüß'[1:3]", "öü"},
           {"'äöüß'[-2:]", "üß"},
           {"'äöüß'[:99]", "äöüß"},
           {"'äöüß'[3:1]", ""},
           {"'äöüß'[99:]", ""},
           {"'äöüß'[::-1]", "ßüöä"},
           {"'äöüß'[::2]", "äü"},
           {"'äö' | first", "ä"},
           {"'äö' | last", "ö"},
           {"'ääbää'.strip('ä')", "b"},
           {"'ääbää'.lstrip('äx')", "bää"},
           {"'ääbää'.rstrip('xä')", "ääb"},
           {"'ab ba'.strip('ab')", " "},
           {"'abab'.strip('ab')", ""},
           {"'abab'.lstrip('ab')", ""},
           {"'abab'.rstrip('ba')", ""},
           {"''.strip('a')", ""},
           {"'a,b,c'.rsplit(',', 1) | join(';')", "a,b;c"},
           {"'a\\nb\\r\\nc'.splitlines() | join(';')", "a;b;c"}})
    EXPECT_EQ(render(std::string("{{ ") + piece + " }}"), text) << piece;
  EXPECT_EQ(render("{{ '' | first is defined }}"), "False");
}

// Beside the pieces of jinja2's own (EveryPieceAsJinja2): names of a macro's body are looked up
// when it is called, around it and then at the top of the template.
TEST(Jinja, MacrosSeeWhatIsSetBehindThem) {
  const std::string inner = "{% macro a() %}{{ b() }}{% endmacro %}",
                    sibling = "{% macro b() %}inside{% endmacro %}",
                    top = "{% macro b() %}top{% endmacro %}";
  const auto in_macro = [](const std::string& body) {
    return "{% macro o() %}" + body + "{% endmacro %}";
  };
  EXPECT_EQ(render(in_macro(inner + sibling + "{{ a() }}") + "{{ o() }}"), "inside");
  EXPECT_EQ(render(in_macro(inner + "{{ a() }}") + top + "{{ o() }}"), "top");
  EXPECT_EQ(render(top + in_macro(inner + sibling + "{{ a() }}") + "{{ o() }}"), "inside");
  EXPECT_EQ(render(top + in_macro(inner + "{{ a() }}" + sibling + "{{ a() }}") + "{{ o() }}"),
            "topinside");
  EXPECT_FAILS(render(in_macro(inner + "{{ a() }}" + sibling) + "{{ o() }}"), "b is not known");
  const std::string kept =
      "{% set ns = namespace() %}" + in_macro(inner + "{% set ns.f = a %}" + sibling);
  EXPECT_EQ(render(kept + "{{ o() }}{{ ns.f() }}"), "inside") << "when the outer one is over";
  EXPECT_EQ(render(kept + "{{ o() }}" + top + "{{ ns.f() }}"), "inside");
  EXPECT_EQ(render("{% for i in [1, 2] %}" + inner +
                   "{% macro b() %}{{ i }}{% endmacro %}"
                   "{{ a() }}{% endfor %}"),
            "12");
  // not by what stands where it is called
  EXPECT_EQ(render("{% macro call(f) %}{% set b = 3 %}{{ f() }}{% endmacro %}" +
                   in_macro(inner + sibling + "{{ call(a) }}") + "{{ o() }}"),
            "inside");
}

// A namespace that holds itself is let go all the same (the address sanitizer watches).
TEST(Jinja, NamespacesMayHoldThemselves) {
  EXPECT_EQ(
      render("{% set n = namespace() %}{% set n.n = n %}{% set n.l = [n] %}{{ n.n.l[0].n == n }}"),
      "True");
}

}  // namespace
}  // namespace moe::test::jinja_test
