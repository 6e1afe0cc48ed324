// The page and the pictures of a report: well-formed whatever is in them, complete, the same every
// time, and small. How it looks is the browser's to say (scripts/report_test.sh).
#include "analyze/pages/html_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "analyze/data/definitions.h"
#include "analyze/made_report.h"
#include "analyze/page_check.h"
#include "analyze/pages/markup.h"
#include "analyze/pictures/report_figures.h"
#include "analyze/pictures/report_pictures.h"
#include "analyze/pictures/svg_chart.h"
#include "analyze/pictures/svg_parts.h"

namespace moe::html_report_test {
namespace {

using test::count;
using test::fault_of;
using test::has_card;
using test::made_history;
using test::made_report;
using test::MadeShape;
using test::markup_of;
using test::unprintable_number;

const std::vector<std::string> kRunCards = {"ce", "losses", "step_max_vio", "grad_norm",
                                            "step_load"};
const std::vector<std::string> kTextCards = {"load",           "max_vio",      "domain",
                                             "nats_per_token", "coactivation", "vocabulary_input",
                                             "router_entropy", "favourites",   "sample"};

// A margin may be below 0, where a bias or groups chose against the scores.
TEST(Chart, ValuesBelowTheGivenLowStayInside) {
  LineChart chart{.label = "margin",
                  .x_title = "layer",
                  .y_title = "margin",
                  .series = {{.name = "", .colour = "q5", .x = {0, 1}, .y = {0.002, -0.0014}}},
                  .low = 0};
  const Drawing drawing = draw_lines(chart);
  const size_t at = drawing.body.find(R"(<path class="ln q5" d=")");
  ASSERT_NE(at, std::string::npos) << drawing.body;
  double x0 = 0, y0 = 0, x1 = 0, y1 = 0;
  ASSERT_EQ(std::sscanf(drawing.body.c_str() + drawing.body.find(" d=\"", at),
                        " d=\"M%lf %lfL%lf %lf", &x0, &y0, &x1, &y1),
            4)
      << drawing.body.substr(at, 90);
  EXPECT_GE(y0, 0);
  EXPECT_GT(y1, y0);
  EXPECT_LE(y1, chart.height);
}

TEST(HtmlReport, FaultsAreFound) {
  EXPECT_EQ(fault_of("<p class=\"a\">x &lt; y<br/></p>"), "");
  for (const char* broken : {"<p>", "</p>", "<p><b></p></b>", "<p>a < b</p>", "<p title=\"<\">",
                             "<p", "<p>\x01</p>", "<p>\xFF</p>"})
    EXPECT_NE(fault_of(broken), "") << broken;
}

TEST(HtmlReport, HasEveryCardWithItsDefinition) {
  const TrainingHistory h = made_history();
  const std::string page = html_report(made_report(), &h);
  EXPECT_EQ(fault_of(page), "");
  for (const auto* cards : {&kRunCards, &kTextCards})
    for (const std::string& id : *cards) {
      EXPECT_TRUE(has_card(page, id)) << id;
      std::string line = escape(definition(id).line);
      line[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(line[0])));
      if (id != "router_entropy")
        EXPECT_NE(page.find(line), std::string::npos) << id << ": " << line;
    }
  for (const char* key : {"router_entropy", "margin", "top_score"})
    EXPECT_NE(page.find(escape(definition(key).line)), std::string::npos) << key;
  EXPECT_EQ(count(page, "<svg "), count(page, "role=\"img\" aria-label=\""))
      << "each chart says in words what it shows";
  EXPECT_EQ(count(page, "aria-label=\"\""), 0u);
  EXPECT_FALSE(has_card(page, "step_dropped")) << "nothing was dropped";
  EXPECT_FALSE(has_card(page, "saturation")) << "there is no earlier checkpoint";
  EXPECT_EQ(page.find("http", page.find("<body>")), page.find("http://www.w3.org/2000/svg"))
      << "nothing is fetched from anywhere";
}

TEST(HtmlReport, ShowsWhatIsOnlySometimesThere) {
  RoutingReport r = made_report();
  TrainingHistory h = made_history();
  r.earlier = "out/tiny at step 100";
  for (LayerStats& l : r.moe_layers) l.saturation = 0.7;
  r.moe_layers[2].dead = 3;
  r.moe_layers[1].dropped = 0.25;
  h.points[5].dropped[1] = 0.125;
  h.alarms = {{40, "collapse", "two experts take <all> tokens; try a larger balance loss"}};
  const std::string page = html_report(r, &h);
  EXPECT_EQ(fault_of(page), "");
  for (const char* id : {"saturation", "step_dropped", "alarms"})
    EXPECT_TRUE(has_card(page, id)) << id;
  EXPECT_FALSE(has_card(page, "dpo"));
  EXPECT_NE(page.find("two experts take &lt;all&gt; tokens; try a larger balance loss"),
            std::string::npos);
  EXPECT_NE(page.find("3 of 32 experts are dead"), std::string::npos);
  EXPECT_NE(page.find("Up to 25% of a layer&#39;s choices find their expert full and are dropped."),
            std::string::npos);
  EXPECT_EQ(html_report(made_report(), nullptr).find("id=\"alarms\""), std::string::npos);
}

// Hundreds of neurons a token: slices of them in the maps, and nothing of pairs and ids.
TEST(HtmlReport, NeuronsStandInSlicesByFallingLoad) {
  RoutingReport r = made_report({.experts = 200, .top_k = 80, .slots = 80, .samples = 0});
  r.by_neuron = true;
  r.moe_layers[1].dead = 3;
  for (LayerStats& l : r.moe_layers) {
    l.coactivation = {};
    l.favourites.clear();
    for (auto value : {&LayerStats::vocabulary_input, &LayerStats::vocabulary_target,
                       &LayerStats::vocabulary_predicted, &LayerStats::router_entropy,
                       &LayerStats::margin, &LayerStats::top_score})
      (l.*value).reset();
  }
  const std::string page = html_report(r, nullptr);
  EXPECT_EQ(fault_of(page), "");
  for (const char* card : {"load", "max_vio", "domain"}) EXPECT_TRUE(has_card(page, card)) << card;
  for (const char* card :
       {"coactivation", "vocabulary_input", "router_entropy", "favourites", "sample"})
    EXPECT_FALSE(has_card(page, card)) << card;
  EXPECT_EQ(page.find("dead: "), std::string::npos) << "a cold neuron is no trouble";
  EXPECT_NE(page.find("the mean of 3 neurons of like load"), std::string::npos);
  EXPECT_EQ(markup_of(page).find(">64<"), std::string::npos) << "slices are 0 to 63";
  EXPECT_LT(page.size(), 400'000u);
}

TEST(HtmlReport, SlicesHoldEveryExpertOnceTheBusiestFirst) {
  const auto load = [](int64_t e) { return e % 2 == 1 ? 2.0 : 1.0; };
  const std::vector<std::vector<int64_t>> columns = columns_by(load, 130, true);
  EXPECT_EQ(columns.size(), 64u);
  EXPECT_EQ(columns[0], (std::vector<int64_t>{1, 3}));
  std::set<int64_t> seen;
  for (const std::vector<int64_t>& column : columns) {
    EXPECT_GE(column.size(), 2u);
    EXPECT_LE(column.size(), 3u);
    seen.insert(column.begin(), column.end());
  }
  EXPECT_EQ(seen.size(), 130u);
  EXPECT_EQ(columns_by(load, 5, false),
            (std::vector<std::vector<int64_t>>{{0}, {1}, {2}, {3}, {4}}));
  EXPECT_EQ(columns_by(load, 5, true).size(), 5u);
}

TEST(HtmlReport, ShowsTheFiguresOfPreferencePairs) {
  TrainingHistory h = made_history();
  for (HistoryPoint& p : h.points) p.pairs = PairPoint{p.step, 0.5, 0.7, 0.8};
  h.eval_pairs = {{h.points.front().step, 0.625, 0.25, 0.5}, {h.points.back().step, 0.5, 0.5, 1}};
  const std::string page = html_report(made_report(), &h);
  EXPECT_EQ(fault_of(page), "");
  EXPECT_TRUE(has_card(page, "dpo"));
  const std::vector<std::pair<std::string, std::string>> pictures =
      report_pictures(made_report(), &h);
  const auto picture = std::find_if(pictures.begin(), pictures.end(),
                                    [](const auto& p) { return p.first == "pairs.svg"; });
  ASSERT_NE(picture, pictures.end());
  EXPECT_EQ(fault_of(picture->second), "");
  for (const char* word : {"loss", "margin", "accuracy", "held out"})
    EXPECT_NE(picture->second.find(word), std::string::npos) << word;
}

TEST(HtmlReport, NamesTheStrongestSpecialist) {
  RoutingReport r = made_report();
  for (LayerStats& l : r.moe_layers) std::fill(l.domain.at.begin(), l.domain.at.end(), 0.25);
  r.moe_layers[2].domain(4, 6) = 0.75;
  const std::string page = html_report(r, nullptr);
  EXPECT_NE(page.find("Expert 6 of layer 2 specialises in german: 75% of its tokens choose that "
                      "expert, 3.0× the 25% that would without preference."),
            std::string::npos);
  EXPECT_NE(page.find("1 of 32 experts specialises in a domain: more than twice that share of its "
                      "tokens choose it."),
            std::string::npos);
}

// An expert that is busy in every domain prefers none of them.
TEST(HtmlReport, ABusyExpertIsNoSpecialist) {
  RoutingReport r = made_report();
  for (LayerStats& l : r.moe_layers) std::fill(l.domain.at.begin(), l.domain.at.end(), 0.25);
  for (int64_t d = 0; d < 6; ++d)
    r.moe_layers[2].domain(d, 3) = 0.52 + 0.01 * static_cast<double>(d);
  r.moe_layers[1].domain(4, 6) = 0.4;
  const std::string page = html_report(r, nullptr);
  EXPECT_NE(page.find("No expert specialises in a domain so far: the strongest preference is that "
                      "of expert 6 of layer 1 for german, 40% of whose tokens choose it "
                      "(25% if there were none)."),
            std::string::npos);
}

// A router that has collapsed: whatever it sends to its one expert is no specialty, and the page
// begins with what is wrong.
TEST(HtmlReport, TroubleStandsBeforeEverything) {
  RoutingReport r = made_report({.experts = 16, .top_k = 1, .slots = 1});
  for (LayerStats& l : r.moe_layers) {
    std::fill(l.load.begin(), l.load.end(), 0.0);
    std::fill(l.domain.at.begin(), l.domain.at.end(), 0.0);
    l.load[9] = 0.9, l.load[3] = 0.1;
    for (int64_t d = 0; d < l.domain.rows; ++d) l.domain(d, 9) = 0.9, l.domain(d, 3) = 0.1;
    l.dead = 14;
    l.max_vio = 0.9 * 16 - 1;
  }
  TrainingHistory h = made_history();
  h.alarms = {{40, "loss-spike", "the loss jumped"},
              {87, "collapsed-router", "layer 1 sends all to expert 9"}};
  for (HistoryPoint& p : h.points) std::fill(p.dropped.begin(), p.dropped.end(), 0.72);
  const std::string page = html_report(r, &h);
  EXPECT_EQ(fault_of(page), "");
  const std::vector<std::string> in_order = {
      "<ul class=\"findings\"><li class=\"trouble\">The router has collapsed in 4 of 4 layers: in "
      "layer 0, 90% of all choices go to expert 9 (6.2% if they were even).",
      "56 of 64 experts are dead: they get less than a hundredth of the mean load",
      "At the end of training 72% of the choices found their expert full",
      "The run raised 2 alarms, the last at step 87: collapsed-router.",
      "Work is spread least evenly"};
  size_t at = 0;
  for (const std::string& part : in_order) {
    const size_t found = page.find(part, at);
    ASSERT_NE(found, std::string::npos) << part;
    at = found;
  }
  EXPECT_EQ(page.find("of its tokens choose that expert"), std::string::npos)
      << "no specialist is praised";
  for (const char* praise :
       {"specialise in a domain", "the token itself decides most", "The closest pair"})
    EXPECT_EQ(page.find(praise), std::string::npos) << praise;
  // Nothing is wrong with a healthy one.
  const TrainingHistory healthy = made_history();
  TrainingHistory calm = healthy;
  calm.alarms.clear();
  for (HistoryPoint& p : calm.points) std::fill(p.dropped.begin(), p.dropped.end(), 0.05);
  EXPECT_EQ(html_report(made_report(), &calm).find("class=\"trouble\""), std::string::npos);
}

// The rate of the run is its tokens over its seconds, whatever its last steps did.
TEST(HtmlReport, TheRateIsThatOfTheWholeRun) {
  TrainingHistory h = made_history();
  h.points.back().tokens = 479'000, h.points.back().seconds = 100,
  h.points.back().tokens_per_second = 10'300;
  const std::string page = html_report(made_report(), &h);
  EXPECT_NE(page.find(", 4.79k a second"), std::string::npos);
  EXPECT_EQ(page.find("10.3k"), std::string::npos);
}

// The name of an axis takes no room of its numbers, and no two texts of the row touch.
TEST(Chart, EveryTickOfAnAxisHasItsNumber) {
  for (const double last : {9.0, 100.0, 400.0, 1000.0, 20'000.0})
    for (const char* name : {"step", "tokens trained on so far"}) {
      LineChart chart{.label = "loss",
                      .x_title = name,
                      .y_title = "nats",
                      .series = {{.name = "", .colour = "q5", .x = {0, last}, .y = {5, 1}}},
                      .whole_x = true};
      const std::string body = draw_lines(chart).body;
      const svg::Axis axis = svg::make_axis(0, last, 38, chart.width - 16, 5, true);
      size_t ticks = 0;
      for (size_t at = body.find("class=\"ax m\""); at != std::string::npos;
           at = body.find("class=\"ax m\"", at + 1))
        ++ticks;
      EXPECT_EQ(ticks, axis.ticks.size()) << last << " " << name;
      const auto y_of = [&](const std::string& text) {
        const size_t end = body.find(">" + text + "</text>"), begin = body.rfind("y=\"", end);
        return std::atof(body.c_str() + begin + 3);
      };
      EXPECT_GE(y_of(name), y_of(tick_number(axis.ticks.back(), axis.ticks[1])) + 11)
          << "the name stands below";
      EXPECT_LE(y_of(name), chart.height - 3) << "and inside";
    }
}

// Bytes are letters: a word has one colour, that of the expert with most of its weight.
TEST(HtmlReport, SamplesOfBytesAreColouredByWord) {
  RoutingReport r =
      made_report({.layers = 1, .experts = 4, .top_k = 2, .slots = 2, .samples = 1, .tokens = 8});
  r.ids_are_bytes = true;
  SampleText& s = r.samples[0];
  s.pieces = {"a", "", "é", "c", " ", "!", "!", "\n"};
  s.nll = {0, 1, 2, 3, 1, 1, 1, 1};
  s.experts = {{1, 2, 2, 3, 2, 1, 1, 2, 0, 1, 3, 0, 3, 0, 0, 2}};
  s.weights = {
      {0.9F, 0.1F, 0.9F, 0.1F, 0.9F, 0.1F, 0.6F, 0.4F, 0.7F, 0.3F, 0.5F, 0.5F, 0.5F, 0.5F, 1, 0}};
  const std::string page = html_report(r, nullptr);
  // Of the word: expert 2 has (0.1 + 0.9 + 0.9 + 0.4) / 4, expert 1 (0.9 + 0.1 + 0.6) / 4, expert 3
  // 0.1 / 4.
  EXPECT_NE(
      page.find(
          R"(<span class="t x2 w2">aéc</span><span class="t x0 w2"> !!</span><span class="t x0 w4">)"),
      std::string::npos)
      << page.substr(page.find("class=\"tokens\""), 800);
  EXPECT_NE(page.find(R"(data-nats="6.00 3.00 1.00")"), std::string::npos);
  EXPECT_NE(page.find(R"(data-experts="2:575,1:400,3:25;)"), std::string::npos);
  EXPECT_NE(page.find("8 bytes, 1.43 nats per byte"), std::string::npos);
  EXPECT_NE(page.find("a word has the colour of the expert with the most weight over its bytes"),
            std::string::npos);
  for (const auto& [name, svg] : report_pictures(r, nullptr)) {
    if (name != "samples.svg") continue;
    EXPECT_NE(svg.find(">aéc</text>"), std::string::npos);
    EXPECT_NE(svg.find("model are bytes"), std::string::npos);
  }
  r.ids_are_bytes = false;
  EXPECT_EQ(html_report(r, nullptr).find("aéc"), std::string::npos);
}

// Tokens, names and messages come from files: none may become markup, and none may hide.
TEST(HtmlReport, HostileTextStaysText) {
  const std::vector<std::string> hostile = {"<script>alert(1)</script>",
                                            "\"><img src=x onerror=alert(1)>",
                                            "' onmouseover='x",
                                            "</span></div>",
                                            "&amp;",
                                            std::string("\0\x01\x1b[31m", 7),
                                            "\xE2\x80\xAE"
                                            "evil",
                                            "\xD7\xA9\xD7\x9C",
                                            "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x94\xAC",
                                            "\xFF\xC0\xAF",
                                            "\xED\xA0\x80",
                                            "漢字",
                                            "\xEF\xBF\xBE",
                                            "\n\n",
                                            "\r\n\t",
                                            "</style>",
                                            "]]>",
                                            "<!--",
                                            std::string(3000, 'w')};
  RoutingReport r = made_report();
  TrainingHistory h = made_history();
  for (size_t i = 0; i < hostile.size(); ++i) {
    r.domains[i % 6].name = r.samples[i % 3].domain = hostile[i];
    for (SampleText& s : r.samples) s.pieces[i] = hostile[i];
    r.moe_layers[0].favourites[i % 8][0].text = hostile[i];
    h.alarms.push_back({static_cast<int64_t>(i), hostile[i], hostile[i]});
    r.model = r.recipe = r.tokenizer = r.earlier = hostile[i];
    h.loss_names = {hostile[i], "z"};
    const std::string page = html_report(r, &h);
    ASSERT_EQ(fault_of(page), "") << i;
    for (const auto& [name, svg] : report_pictures(r, &h))
      ASSERT_EQ(fault_of(svg), "") << name << " " << i;
  }
  const std::string page = markup_of(html_report(r, &h));
  EXPECT_EQ(count(page, "<script"), 0u);
  EXPECT_EQ(count(page, "<img"), 0u);
  EXPECT_EQ(page.find("\xE2\x80\xAE"), std::string::npos)
      << "a mark that turns the direction of what follows";
  EXPECT_NE(page.find("‹U+202E›evil"), std::string::npos);
  EXPECT_NE(page.find("\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x94\xAC"), std::string::npos)
      << "an emoji of several characters stays whole";
  EXPECT_NE(page.find("漢字"), std::string::npos);
}

TEST(HtmlReport, EscapesAndShortens) {
  EXPECT_EQ(escape("a<b>&\"'c"), "a&lt;b&gt;&amp;&quot;&#39;c");
  EXPECT_EQ(escape(std::string_view("\0\t\n\x7f\x1b", 5)), "␀⇥↵␡␛");
  EXPECT_EQ(escape(" a b", Spaces::shown), "␣a␣b");
  EXPECT_EQ(escape("\xC3"), "\uFFFD");
  EXPECT_EQ(escape("\xE2\x80\x8B"), "‹U+200B›");
  EXPECT_EQ(shortened("日本語日本語", 4), "日本語…");
  EXPECT_EQ(shortened("four", 4), "four");
  EXPECT_EQ(length_of("日\xFF"), 2u);
}

TEST(HtmlReport, RoundsNumbers) {
  EXPECT_EQ(compact(2'690'000), "2.69M");
  EXPECT_EQ(compact(924'000), "924k");
  EXPECT_EQ(compact(999'700), "1.00M");
  EXPECT_EQ(compact(1.3379), "1.34");
  EXPECT_EQ(compact(8), "8");
  EXPECT_EQ(compact(0), "0");
  EXPECT_EQ(compact(0.03125), "0.0312");
  EXPECT_EQ(compact(3e-5), "3.0e-05");
  EXPECT_EQ(compact(NAN), "n/a");
  EXPECT_EQ(percent(0.524), "52%");
  EXPECT_EQ(percent(0.052), "5.2%");
  EXPECT_EQ(percent(0.0001), "<0.1%");
  EXPECT_EQ(percent(NAN), "n/a");
  EXPECT_EQ(fine_percent(0.125), "12.5%");
  EXPECT_EQ(times(2.34), "2.3×");
  EXPECT_EQ(decimal(-0.0001, 2), "0.00");
  EXPECT_EQ(tick_number(1500, 500), "1.5k");
  EXPECT_EQ(tick_number(0.002, 0.001), "0.002");
  EXPECT_EQ(tick_number(3, 1), "3");
}

TEST(HtmlReport, AnySizeIsWellFormed) {
  const MadeShape shapes[] = {{.layers = 1,
                               .experts = 1,
                               .top_k = 1,
                               .slots = 1,
                               .domains = 1,
                               .samples = 1,
                               .tokens = 1,
                               .points = 1},
                              {.layers = 1,
                               .experts = 2,
                               .top_k = 1,
                               .slots = 1,
                               .domains = 2,
                               .samples = 1,
                               .tokens = 2,
                               .points = 2},
                              {.layers = 9,
                               .experts = 9,
                               .top_k = 3,
                               .slots = 3,
                               .domains = 30,
                               .samples = 2,
                               .tokens = 40,
                               .points = 30},
                              {.layers = 64,
                               .experts = 256,
                               .top_k = 8,
                               .slots = 8,
                               .domains = 30,
                               .samples = 2,
                               .tokens = 64,
                               .points = 40},
                              {.layers = 2,
                               .experts = 16,
                               .top_k = 2,
                               .slots = 16,
                               .domains = 3,
                               .samples = 1,
                               .tokens = 50,
                               .points = 40}};
  for (const MadeShape& shape : shapes) {
    const RoutingReport r = made_report(shape);
    const TrainingHistory h = made_history(shape);
    const std::string page = html_report(r, &h);
    EXPECT_EQ(fault_of(page), "") << shape.layers << " x " << shape.experts;
    EXPECT_EQ(unprintable_number(markup_of(page)), "") << shape.layers << " x " << shape.experts;
    for (const auto& [name, svg] : report_pictures(r, &h))
      EXPECT_EQ(fault_of(svg), "") << name << ", " << shape.layers << " x " << shape.experts;
  }
}

TEST(HtmlReport, PartsMayBeAbsent) {
  const TrainingHistory h = made_history();
  const std::string texts_only = html_report(made_report(), nullptr);
  EXPECT_EQ(fault_of(texts_only), "");
  for (const std::string& id : kRunCards) EXPECT_FALSE(has_card(texts_only, id)) << id;
  for (const std::string& id : kTextCards) EXPECT_TRUE(has_card(texts_only, id)) << id;

  RoutingReport bare = made_report();
  bare.samples.clear();
  for (LayerStats& l : bare.moe_layers)
    l.favourites.clear(), l.router_entropy = l.margin = l.top_score = {};
  const std::string no_samples = html_report(bare, &h);
  EXPECT_EQ(fault_of(no_samples), "");
  for (const char* id : {"sample", "favourites", "router_entropy"})
    EXPECT_FALSE(has_card(no_samples, id)) << id;

  RoutingReport dense{.model = "dense", .layers = 4};
  TrainingHistory run = made_history({.layers = 0});
  run.loss_names.clear();
  for (HistoryPoint& p : run.points) p.losses.clear();
  const std::string no_moe = html_report(dense, &run);
  EXPECT_EQ(fault_of(no_moe), "");
  EXPECT_NE(no_moe.find("has no MoE layer"), std::string::npos);
  EXPECT_TRUE(has_card(no_moe, "ce"));
  for (const char* id : {"losses", "step_load", "step_max_vio", "domain"})
    EXPECT_FALSE(has_card(no_moe, id)) << id;

  const TrainingHistory empty;
  EXPECT_EQ(fault_of(html_report({}, &empty)), "");
  EXPECT_EQ(fault_of(html_report({}, nullptr)), "");
  EXPECT_TRUE(report_pictures({}, &empty).empty());
}

TEST(HtmlReport, ValuesThatAreNoNumbersLeaveGaps) {
  RoutingReport r = made_report();
  TrainingHistory h = made_history();
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               inf = std::numeric_limits<double>::infinity();
  r.moe_layers[0].domain(0, 0) = r.moe_layers[1].coactivation(0, 1) = r.moe_layers[1].load[2] = nan;
  r.moe_layers[2].margin = r.moe_layers[0].max_vio = r.domains[1].nats_per_token = inf;
  r.samples[0].nll[3] = nan;
  r.samples[0].weights[0][4] = std::numeric_limits<float>::infinity();
  h.points[3].ce = h.points[7].load[0][1] = h.points[9].max_vio[0] = h.points[9].losses[0] = nan;
  h.points[20].ce = inf;
  const std::string page = html_report(r, &h);
  EXPECT_EQ(fault_of(page), "");
  EXPECT_EQ(unprintable_number(markup_of(page)), "");
}

// Charts show means of neighbouring points: one that is missing takes nothing from the others.
TEST(HtmlReport, AMissingPointIsLeftOutOfItsMean) {
  TrainingHistory h = made_history();
  const std::string whole = html_report(made_report(), &h);
  h.points[3].ce = std::numeric_limits<double>::quiet_NaN();
  const std::string page = html_report(made_report(), &h);
  EXPECT_NE(page, whole);
  EXPECT_GT(count(whole, ", training "), 100u);
  EXPECT_EQ(count(page, ", training "), count(whole, ", training "));
}

// The first steps may be cut off at the top of the chart, and it says so; a spike later on never
// is.
TEST(HtmlReport, LateSpikesStayInTheChart) {
  TrainingHistory h = made_history();
  EXPECT_NE(html_report(made_report(), &h).find("(from 5.87 at step 4)"), std::string::npos);
  for (size_t i = 300; i < 310; ++i) h.points[i].ce = 7;
  EXPECT_EQ(html_report(made_report(), &h).find("at step 4)"), std::string::npos);
}

// Nor is a held-out loss that rises again, whatever the training's does.
TEST(HtmlReport, AHeldOutLossThatRisesStaysInTheChart) {
  TrainingHistory h = made_history();
  const auto held_out = [&] {
    const std::string body = loss_figure(h, {}).panels.at(0).drawing.body;
    return count(body, R"(<circle class="dt q6")");
  };
  EXPECT_EQ(held_out(), h.eval_ce.size());
  for (size_t i = 5; i < h.eval_ce.size(); ++i) h.eval_ce[i].second = static_cast<double>(i);
  EXPECT_EQ(held_out(), h.eval_ce.size());
}

// Experts that choose: a token has any number of them, or none, and then it is shown as such.
TEST(HtmlReport, TokensWithoutExpertAreMarked) {
  RoutingReport r =
      made_report({.layers = 2, .experts = 4, .top_k = 1, .slots = 4, .samples = 1, .tokens = 4});
  SampleText& s = r.samples[0];
  s.pieces = {"a", "b", "c", "\n"};
  s.experts = {{-1, -1, -1, -1, -1, 3, 0, -1, 2, -1, -1, -1, 1, 0, 2, 3},
               std::vector<int32_t>(16, -1)};
  s.weights = {{0, 0, 0, 0, 0, 0.75F, 0.25F, 0, 1, 0, 0, 0, 0.1F, 0.2F, 0.3F, 0.4F},
               std::vector<float>(16, 0)};
  const std::string page = html_report(r, nullptr);
  EXPECT_NE(
      page.find(
          R"(<span class="t none">a</span><span class="t x3 w3">b</span><span class="t x2 w4">c</span>)"),
      std::string::npos);
  EXPECT_NE(page.find(R"(data-experts=";3:750,0:250;2:1000;1:100,0:200,2:300,3:400|;;;")"),
            std::string::npos);
  EXPECT_NE(page.find("<i>↵</i>\n</span>"), std::string::npos)
      << "a line end is shown and ends the line";
}

TEST(HtmlReport, SameInputSameBytes) {
  const TrainingHistory h = made_history();
  EXPECT_EQ(html_report(made_report(), &h), html_report(made_report(), &h));
  EXPECT_EQ(report_pictures(made_report(), &h), report_pictures(made_report(), &h));
}

TEST(HtmlReport, IsSmall) {
  const TrainingHistory h = made_history();
  EXPECT_LT(html_report(made_report(), &h).size(), size_t{1'500'000});
  const MadeShape large{
      .layers = 16, .experts = 64, .top_k = 8, .slots = 8, .samples = 6, .tokens = 256};
  const TrainingHistory long_run = made_history(large);
  EXPECT_LT(html_report(made_report(large), &long_run).size(), size_t{6'000'000});
}

TEST(HtmlReport, PicturesStandAlone) {
  const TrainingHistory h = made_history();
  std::set<std::string> names;
  for (const auto& [name, svg] : report_pictures(made_report(), &h)) {
    names.insert(name);
    EXPECT_EQ(fault_of(svg), "") << name;
    EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"")) << name;
    EXPECT_NE(svg.find("prefers-color-scheme:dark"), std::string::npos) << name;
    EXPECT_EQ(count(svg, "http"), count(svg, "http://www.w3.org/2000/svg"))
        << name << " fetches something";
    EXPECT_LT(svg.size(), size_t{150'000}) << name;
  }
  for (const char* name :
       {"loss.svg", "load-over-time.svg", "max-vio.svg", "load.svg", "domains.svg",
        "co-activation.svg", "vocabulary.svg", "router.svg", "samples.svg"})
    EXPECT_TRUE(names.contains(name)) << name;
}

}  // namespace
}  // namespace moe::html_report_test
