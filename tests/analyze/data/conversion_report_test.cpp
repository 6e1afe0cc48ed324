// The report of a conversion: the rows and sentences of given figures, the page in every state of
// what was measured, the JSON.
#include "analyze/pages/conversion_page.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>

#include "analyze/data/definitions.h"
#include "analyze/made_conversion.h"
#include "analyze/page_check.h"
#include "analyze/pages/markup.h"
#include "analyze/pictures/conversion_figures.h"
#include "analyze/pictures/svg_parts.h"
#include "analyze/texts/conversion_findings.h"
#include "analyze/texts/tables.h"
#include "core/error.h"
#include "core/rng.h"
#include "support/tiny_model.h"

namespace moe::test::conversion_report_test {
namespace {

const ComparedRow& row_of(const std::vector<ComparedRow>& rows, std::string_view key) {
  for (const ComparedRow& row : rows)
    if (row.key == key) return row;
  throw Error("no row " + std::string(key));
}

bool says(const std::vector<std::string>& sentences, std::string_view part) {
  return std::any_of(sentences.begin(), sentences.end(),
                     [&](const std::string& s) { return s.find(part) != std::string::npos; });
}

TEST(Conversion, RowsSayBothAndTheChange) {
  const auto rows = compared_rows(made_conversion());
  EXPECT_EQ(row_of(rows, "perplexity").before, "18.630");
  EXPECT_EQ(row_of(rows, "perplexity").after, "26.000");
  EXPECT_EQ(row_of(rows, "perplexity").change, "1.40×");
  EXPECT_EQ(row_of(rows, "nats_per_token").change, "+0.3333 ± 0.0110");
  EXPECT_EQ(row_of(rows, "right").change, "-3.3 points");
  EXPECT_EQ(row_of(rows, "decode_rate").before, "106")
      << "128 tokens in the middle of 1.20, 1.21 and 1.25 s";
  EXPECT_EQ(row_of(rows, "decode_rate").after, "127");
  EXPECT_EQ(row_of(rows, "decode_rate").change, "1.20×") << "of 1.2, 1.186 and 1.238";
  EXPECT_EQ(row_of(rows, "bytes_per_token").change, "0.83×");
  for (const ComparedRow& row : rows) EXPECT_NO_THROW(definition(row.key)) << row.key;
}

TEST(Conversion, SpeedIsAbsentWhereItWasNotMeasured) {
  const ConversionReport r = made_conversion({.sweep = 0, .speeds = false});
  EXPECT_THROW(row_of(compared_rows(r), "decode_rate"), Error);
  EXPECT_TRUE(says(findings_of(r), "how fast it is was not measured"));
  const std::string page = conversion_page(r);
  EXPECT_FALSE(has_card(page, "decode_rate"));
  EXPECT_FALSE(has_card(page, "frontier"));
  EXPECT_TRUE(to_json(r).at("speed_up").is_null());
  EXPECT_TRUE(to_json(r).at("after").at("decode_rate").is_null());
}

// No sentence about speed without the quality it is bought with.
TEST(Conversion, QualityStandsBesideSpeed) {
  const std::vector<std::string> findings = findings_of(made_conversion());
  EXPECT_EQ(findings[0],
            "It writes tokens at 1.20× the speed of the model before and reads a prompt at 1.21×, "
            "at 1.40× the perplexity (26.000 against 18.630).");
  EXPECT_TRUE(says(findings, "reads 83.3% of the bytes"));
  EXPECT_TRUE(says(findings, "1.20× the speed where memory is the limit"));
}

TEST(Conversion, AChangeWithinItsErrorIsCalledThat) {
  ConversionReport r = made_conversion();
  EXPECT_FALSE(says(findings_of(r), "cannot tell it from none"));
  r.figures.after.nats_per_token = r.figures.before.nats_per_token + 0.02;
  EXPECT_TRUE(says(findings_of(r),
                   "+0.0200 nats a token is within twice its standard error: 24 windows cannot "
                   "tell it from none"));
  r.figures.loss_error = {};
  EXPECT_FALSE(says(findings_of(r), "cannot tell it from none"));
}

// NaN is neither within an error nor worse than before, on one text and on several.
TEST(Conversion, AModelThatPredictsNoNumbersIsCalledThat) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ConversionReport r = made_conversion();
  r.figures.after = {nan, nan, nan, 0};
  r.figures.loss_error = nan;
  r.figures.kl = r.figures.kl_median = r.figures.kl_high = r.figures.kl_most = nan;
  EXPECT_TRUE(says(findings_of(r),
                   "predicts no finite numbers cannot be held against another: the loss is n/a "
                   "nats a token, 2.9248 before"));
  for (const char* part : {"cannot tell", "Both find the same token"})
    EXPECT_FALSE(says(findings_of(r), part)) << part;
  EXPECT_EQ(row_of(compared_rows(r), "nats_per_token").change, "n/a ± n/a");
  r.others.push_back({"general.txt", made_conversion().figures});
  const auto findings = findings_of(r);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_TRUE(findings[0].starts_with("Text 1, held-out.txt, is predicted in no finite numbers"))
      << findings[0];
  EXPECT_TRUE(findings[1].starts_with("Text 2, general.txt, is predicted worse than before"))
      << findings[1];
}

TEST(Conversion, BalanceIsOfTheCounts) {
  const LoadBalance b = balance_of({0, {40, 20, 0, 20}});
  EXPECT_DOUBLE_EQ(b.max_vio, 1);
  EXPECT_EQ(b.dead, 1);
  EXPECT_EQ(balance_of({0, {0, 0}}).dead, 0) << "nothing was routed";
  ConversionReport r = made_conversion();
  r.figures.after_load[7].counts = {10'000, 0, 0, 0, 0};
  EXPECT_TRUE(says(
      findings_of(r),
      "The least even layer is 7: its busiest expert gets 5.00× the mean load; 4 experts in all"));
}

TEST(Conversion, OnlyAConversionIsMadeOfTheOther) {
  ConversionReport r = made_conversion();
  EXPECT_TRUE(subtitle_of(r).starts_with("made of smollm2.gguf: 30 MoE layers")) << subtitle_of(r);
  EXPECT_NE(conversion_page(r).find("read by no step of the conversion"), std::string::npos);
  r.kind = "Comparison";
  r.steps.clear();
  r.layers.clear();
  EXPECT_TRUE(subtitle_of(r).starts_with("beside smollm2.gguf: 30 MoE layers")) << subtitle_of(r);
  EXPECT_EQ(conversion_page(r).find("read by no step of the conversion"), std::string::npos);
}

TEST(Conversion, LayersThatStandOutAreNamed) {
  ConversionReport r = made_conversion();
  r.layers[4].error = 0.91;
  r.layers[9].error = 0.02;
  EXPECT_TRUE(says(findings_of(r),
                   "Layer 4 departs most from the FFN it was made of, by 91% of its output's "
                   "length; layer 9 least, by 2.0%."));
}

TEST(Conversion, ThePageIsWellFormedWhateverWasMeasured) {
  const MadeConversion shapes[] = {
      {},
      {.speeds = false},
      {.sweep = 0},
      {.sweep = 1},
      {.sweep = 0, .speeds = false, .converted = false, .routed = false},
      {.layers = 1, .experts = 1, .active = 1, .sweep = 2},
      {.layers = 64, .experts = 256, .active = 8, .sweep = 20}};
  for (const MadeConversion& shape : shapes) {
    const std::string page = conversion_page(made_conversion(shape));
    EXPECT_EQ(fault_of(page), "") << shape.layers << " x " << shape.experts;
    EXPECT_EQ(unprintable_number(markup_of(page)), "") << shape.layers << " x " << shape.experts;
    EXPECT_LT(page.size(), size_t{1'000'000});
    EXPECT_TRUE(has_card(page, "compared"));
    EXPECT_EQ(has_card(page, "frontier"), shape.sweep > 0);
    EXPECT_EQ(has_card(page, "reconstruction_error"), shape.converted);
  }
}

TEST(Conversion, CardsOfThePage) {
  const std::string page = conversion_page(made_conversion());
  for (const char* id : {"frontier", "sweep", "compared", "prompt_frontier", "reconstruction_error",
                         "router_agreement", "drift", "load", "steps"})
    EXPECT_TRUE(has_card(page, id)) << id;
  EXPECT_FALSE(has_card(page, "decode_rate")) << "the frontier has the speeds";
  EXPECT_TRUE(has_card(conversion_page(made_conversion({.sweep = 0})), "decode_rate"));
  EXPECT_FALSE(has_card(page, "layer_active")) << "every layer takes as many";
  EXPECT_FALSE(has_card(page, "same_choices"));
  EXPECT_EQ(page, conversion_page(made_conversion()));
  ConversionReport r = made_conversion();
  r.layers[3].active = 2;
  r.figures.same_choices.assign(30, 0.9);
  r.figures.before_load = r.figures.after_load;
  EXPECT_TRUE(has_card(conversion_page(r), "layer_active"));
  EXPECT_TRUE(has_card(conversion_page(r), "same_choices"));
}

// A tuned model on the text that it was tuned for and on a general one.
ConversionReport tuned_on_two_texts() {
  ConversionReport r = made_conversion({.sweep = 0, .converted = false});
  r.kind = "Comparison";
  r.steps.clear();
  r.text = "own.txt";
  r.figures.after.nats_per_token = r.figures.before.nats_per_token - 0.3;
  r.figures.after.perplexity = 13.8;
  r.figures.before_load = r.figures.after_load;
  r.figures.same_choices.assign(30, 0.75);
  r.others.push_back({"general.txt", r.figures});
  Comparison& general = r.others[0].figures;
  general.after = general.before;
  general.after.nats_per_token += 0.2;
  general.after.perplexity = 22.75;
  general.kl = 0.0625;
  general.same_choices.assign(30, 0.95);
  return r;
}

TEST(Conversion, TextsStandSideBySide) {
  const ConversionReport r = tuned_on_two_texts();
  ASSERT_EQ(texts_of(r).size(), 2u);
  EXPECT_EQ(texts_of(r)[1].name, "text 2");
  EXPECT_EQ(texts_of(made_conversion())[0].name, "held-out.txt");
  const auto findings = findings_of(r);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0],
            "Text 1, own.txt, is predicted better than before: perplexity 13.800 against 18.630, "
            "KL 0.352 nats a token; its tokens keep 75% of their experts.");
  EXPECT_EQ(findings[1],
            "Text 2, general.txt, is predicted worse than before: perplexity 22.750 against "
            "18.630, KL 0.0625 nats a token; its tokens keep 95% of their experts.");
  const std::string table = conversion_tables(r);
  for (const char* line :
       {"text 1  own.txt: 24 windows of 2048 tokens", "text 2  general.txt: 24 windows",
        "  perplexity\n    text 1                        18.630      13.800               0.74×\n"
        "    text 2                        18.630      22.750               1.22×\n",
        "text 2: KL 0.0625 nats", "kept 1", "was 1", "MaxVio 2", "75.0%", "95.0%"})
    EXPECT_NE(table.find(line), std::string::npos) << line << "\n" << table;
  for (size_t at = 0, end; (end = table.find('\n', at)) != std::string::npos; at = end + 1)
    EXPECT_LE(length_of(std::string_view(table).substr(at, end - at)), 110u);
  const Json j = to_json(r);
  ASSERT_EQ(j.at("others").size(), 1u);
  EXPECT_EQ(j.at("others")[0].at("text"), "general.txt");
  EXPECT_EQ(j.at("others")[0].at("kl"), 0.0625);
  EXPECT_EQ(j.at("others")[0].at("after").at("perplexity"), 22.75);
  EXPECT_TRUE(to_json(made_conversion()).at("others").empty());
}

// The model before routes, the one after is dense: what there is to say of layers is of the first.
TEST(Conversion, LayersThatOnlyTheModelBeforeRoutesHaveRows) {
  ConversionReport r = tuned_on_two_texts();
  for (Comparison* c : {&r.figures, &r.others[0].figures}) {
    c->after_load.clear();
    c->same_choices.clear();
  }
  const std::string table = conversion_tables(r);
  for (const char* head : {"was 1", "drift 1", "was 2", "drift 2"})
    EXPECT_NE(table.find(head), std::string::npos) << head << "\n" << table;
  for (int64_t layer = 0; layer < 30; ++layer)
    EXPECT_EQ(count(table, fmt::format("\n  {:>5} ", layer)), 1u) << layer << "\n" << table;
}

TEST(Conversion, ThePageOfSeveralTexts) {
  const std::string page = conversion_page(tuned_on_two_texts());
  EXPECT_EQ(fault_of(page), "");
  for (const char* id : {"compared", "costs", "same_choices", "drift", "load", "max_vio"})
    EXPECT_TRUE(has_card(page, id)) << id;
  for (const char* part : {"text 1, before", "text 1, after", "text 2, before", "text 2, after",
                           "Perplexity, text 2", "own.txt", "general.txt"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  EXPECT_EQ(count(page, "colspan=\"3\""), 2u);
  EXPECT_FALSE(has_card(page, "decode_rate")) << "the costs have the speeds";
  EXPECT_FALSE(has_card(conversion_page(made_conversion()), "max_vio"));
}

TEST(Conversion, WhateverTextIsEscaped) {
  ConversionReport r = made_conversion();
  r.after.name = "<script>alert(1)</script>";
  r.text = "\"><img src=x>";
  r.steps.emplace_back("<b>", "<i>&");
  r.frontier[0].name = "<u>";
  const std::string page = markup_of(conversion_page(r));
  for (const char* raw : {"<script>alert", "<img", "<b>", "<i>&", "<u>"})
    EXPECT_EQ(page.find(raw), std::string::npos) << raw;
  EXPECT_EQ(fault_of(conversion_page(r)), "");
}

TEST(Conversion, ValuesThatAreNoNumbersLeaveGaps) {
  ConversionReport r = made_conversion();
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               inf = std::numeric_limits<double>::infinity();
  r.figures.after.perplexity = inf;
  r.figures.kl = nan;
  r.figures.drift[2] = nan;
  r.layers[0].error = inf;
  r.frontier[1].perplexity = nan;
  const std::string page = conversion_page(r);
  EXPECT_EQ(fault_of(page), "");
  EXPECT_EQ(unprintable_number(markup_of(page)), "");
}

// Perplexities of 20 and 1000 stand in one chart, by factors: equal ratios are equal distances.
TEST(Conversion, TheFrontierIsAChartOfFactors) {
  PointChart chart{.label = "p", .x_title = "speed", .y_title = "perplexity", .points = {}};
  for (const double y : {10.0, 100.0, 1000.0}) chart.points.push_back({y, y, "p", "p", "q2"});
  std::vector<double> height;
  const std::string body = draw_points(chart).body;
  for (size_t at = body.find("<circle"); at != std::string::npos; at = body.find("<circle", at + 1))
    height.push_back(std::stod(body.substr(body.find("cy=\"", at) + 4)));
  ASSERT_EQ(height.size(), 3u);
  EXPECT_GT(height[0], height[1]);
  EXPECT_NEAR(height[0] - height[1], height[1] - height[2], 0.11);
  for (const char* tick : {">10<", ">100<", ">1k<"})
    EXPECT_NE(body.find(tick), std::string::npos) << tick;
}

// Values close together, as after a conversion that changed little, still have numbers beside them,
// each another one.
TEST(Conversion, AChartOfFactorsHasNumbersHoweverCloseItsPointsAre) {
  for (const auto& [low, high] : {std::pair{755.6, 755.8},
                                  {18.0, 18.0},
                                  {1.31, 1.33},
                                  {9.9e3, 1e4},
                                  {1.0, 1.0},
                                  {14.2, 15.1}}) {
    PointChart chart{.label = "p", .x_title = "speed", .y_title = "perplexity", .points = {}};
    chart.points = {{1, low, "p", "p", "q2"}, {2, high, "p", "p", "q2"}};
    const std::string body = draw_points(chart).body;
    std::vector<std::string> numbers;
    const std::string beside = "<text x=\"38\"";  // the right end of the y axis's numbers
    for (size_t at = body.find(beside); at != std::string::npos; at = body.find(beside, at + 1)) {
      const size_t from = body.find('>', at) + 1;
      numbers.push_back(body.substr(from, body.find('<', from) - from));
    }
    EXPECT_GE(numbers.size(), 2u) << low << " to " << high;
    std::sort(numbers.begin(), numbers.end());
    EXPECT_EQ(std::adjacent_find(numbers.begin(), numbers.end()), numbers.end())
        << low << " to " << high;
  }
}

// Steps 0 to 300 over the whole width: the last number ends at the edge, where a centred one would
// be cut off.
TEST(Conversion, TheLastNumberOverAHeatMapStaysInside) {
  HeatMap map;
  map.label = "m", map.caption = "steps", map.rows = {"0"};
  map.from = 0, map.to = 300;
  map.columns.assign(30, "");
  map.value = {.rows = 1, .cols = 30, .at = std::vector<double>(30, 0.5)};
  const std::string body = draw_heat(map).body;
  EXPECT_NE(body.find("class=\"ax e\">300<"), std::string::npos) << body;
  EXPECT_NE(body.find("class=\"ax m\">200<"), std::string::npos) << body;
}

// Where names would lie over each other only some are drawn: the one that matters and the one
// before always.
TEST(Conversion, NamesOfThePointsDoNotOverlap) {
  PointChart chart{.label = "p", .x_title = "speed", .y_title = "perplexity", .points = {}};
  for (int i = 0; i < 30; ++i)
    chart.points.push_back(
        {1 + 0.01 * i, 20 + 0.1 * i, "point " + std::to_string(i), "p", "q2", i == 13});
  chart.points.push_back({1, 20, "before", "p", "ink", false, true});
  const std::string body = draw_points(chart).body;
  EXPECT_EQ(count(body, "<circle class=\"dt"), 31u);
  EXPECT_LT(count(body, ">point "), 12u);
  for (const char* name : {">point 0<", ">point 13<", ">before<"})
    EXPECT_NE(body.find(name), std::string::npos) << name;
}

// What a drawing has: numbers behind `key`, of each element that begins with `element`.
std::vector<double> numbers_of(const std::string& body, const std::string& element,
                               const std::string& key) {
  std::vector<double> numbers;
  for (size_t at = body.find(element); at != std::string::npos; at = body.find(element, at + 1))
    numbers.push_back(std::stod(body.substr(body.find(key, at) + key.size())));
  return numbers;
}

// Models of `moe compare --also`, wherever they lie.
TEST(Conversion, ANameIsNearestToItsPointOrALineLeadsToIt) {
  size_t named = 0, points = 0, led = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    PointChart chart{
        .label = "p", .x_title = "speed", .y_title = "perplexity", .points = {}, .joined = false};
    const RngKey key = RngKey::from_seed(seed);
    const uint64_t count = 2 + seed % 7;
    for (uint64_t i = 0; i < count; ++i)
      chart.points.push_back({1 + static_cast<double>(uniform(key, 2 * i)),
                              10 + 3 * static_cast<double>(uniform(key, 2 * i + 1)),
                              fmt::format("m{}-{}.gguf", i, std::string(i % 5, 'q')), "p", "q2",
                              i == 0});
    const std::string body = draw_points(chart).body;
    const std::vector<double> x = numbers_of(body, "<circle class=\"dt", "cx=\""),
                              y = numbers_of(body, "<circle class=\"dt", "cy=\"");
    ASSERT_EQ(x.size(), count);
    for (uint64_t i = 0; i < count; ++i) {
      ++points;
      const size_t end = body.find(">" + chart.points[i].name + "<");
      if (end == std::string::npos) continue;
      ++named;
      const std::string text = body.substr(body.rfind("<text", end));
      const double left = numbers_of(text, "<text", "x=\"")[0],
                   baseline = numbers_of(text, "<text", " y=\"")[0],
                   right = left + svg::width_of(chart.points[i].name);
      const auto away = [&](uint64_t p) {
        return std::hypot(x[p] - std::clamp(x[p], left, right),
                          y[p] - std::clamp(y[p], baseline - 9, baseline + 2));
      };
      double others = 1e9;
      for (uint64_t p = 0; p < count; ++p)
        if (p != i) others = std::min(others, away(p));
      if (others > away(i) + 1) continue;
      ++led;
      const std::string lead =
          fmt::format("<path class=\"ld\" d=\"M{} {}L", coordinate(x[i]), coordinate(y[i]));
      EXPECT_NE(body.find(lead), std::string::npos) << chart.points[i].name << "\n" << body;
    }
  }
  EXPECT_GT(led, 50u) << "as many that lie close prove something";
  EXPECT_GT(named, points * 95 / 100);
}

TEST(Conversion, JsonHasEveryFigure) {
  const ConversionReport r = made_conversion();
  const Json j = to_json(r);
  EXPECT_EQ(j.at("windows"), 24);
  EXPECT_EQ(j.at("before").at("perplexity"), 18.63);
  EXPECT_EQ(j.at("after").at("model"), "out/carved.gguf");
  EXPECT_NEAR(j.at("speed_up").at("decode").get<double>(), 1.2, 1e-9);
  EXPECT_EQ(j.at("layers").size(), 30u);
  EXPECT_EQ(j.at("layers").at(2).at("reconstruction_error"), *r.layers[2].error);
  EXPECT_EQ(j.at("after_load").at(1).at("counts").size(), 5u);
  EXPECT_EQ(j.at("frontier").size(), 6u);
  EXPECT_EQ(j.at("frontier").at(2).at("is_written"), true);
  EXPECT_EQ(j.at("steps").at("method"), "fitted");
  for (const char* key : {"kl", "same_top", "rms_change", "drift", "same_choices"}) {
    EXPECT_TRUE(j.contains(key)) << key;
    EXPECT_NO_THROW(definition(key)) << key;
  }
  for (const auto& [key, value] : j.at("after").items())
    if (key != "model" && key != "shape" && key != "weights" && key != "compute" &&
        !key.ends_with("_seconds"))
      EXPECT_NO_THROW(definition(key)) << key;
}

TEST(Conversion, ACardCountsWhatTheModelCosts) {
  auto model = fresh(plain_config());
  const ModelCard card = model_card("m", *model, DType::f32, 32),
                  fewer = model_card("m", *model, DType::bf16, 32, 1);
  EXPECT_EQ(card.shape, "2 MoE layers, 2 of 4 experts of width 48 a token, recipe olmoe");
  EXPECT_EQ(card.weights, "f32");
  EXPECT_EQ(fewer.compute, "bf16");
  const int64_t expert = 3 * 32 * 48;
  EXPECT_EQ(card.parameters - card.active_parameters, 2 * 2 * expert);
  EXPECT_EQ(card.weight_bytes, 4 * card.parameters);
  EXPECT_EQ(card.bytes_per_token - fewer.bytes_per_token, 4 * 2 * expert);
  EXPECT_DOUBLE_EQ(card.flops_per_token - fewer.flops_per_token, 2 * 2 * expert);
}

// mixtral trains with two experts or more, switch with one.
TEST(Conversion, ACardOfMoreOrFewerExpertsThanTheRecipeTrains) {
  const int64_t expert = 3 * 32 * 48;
  for (const auto& [recipe, own, asked] :
       {std::tuple("mixtral", 2, 1), std::tuple("switch", 1, 2)}) {
    ModelConfig c = plain_config();
    c.routing = default_options(find_recipe(recipe), 4, own, 2);
    auto model = fresh(c);
    const ModelCard card = model_card("m", *model, DType::f32, 32),
                    other = model_card("m", *model, DType::f32, 32, asked);
    const int64_t more = 2 * (asked - own) * expert;  // numbers, of both layers
    EXPECT_NE(other.shape.find(fmt::format("{} of 4 experts", asked)), std::string::npos)
        << other.shape;
    EXPECT_EQ(other.parameters, card.parameters) << recipe;
    EXPECT_EQ(other.active_parameters - card.active_parameters, more) << recipe;
    EXPECT_EQ(other.bytes_per_token - card.bytes_per_token, 4 * more) << recipe;
    EXPECT_DOUBLE_EQ(other.flops_per_token - card.flops_per_token, static_cast<double>(2 * more))
        << recipe;
  }
}

}  // namespace
}  // namespace moe::test::conversion_report_test
