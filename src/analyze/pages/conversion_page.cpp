#include "analyze/pages/conversion_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "analyze/data/definitions.h"
#include "analyze/pages/markup.h"
#include "analyze/pages/page.h"
#include "analyze/pictures/conversion_figures.h"
#include "analyze/texts/conversion_findings.h"
#include "core/words.h"

namespace moe {
namespace {

// What each figure is stands behind its name, for a pointer, and below the table for everyone.
std::string head_cell(const ComparedRow& row) {
  return fmt::format(R"(<th title="{}">{}</th>)", escape(definition(row.key).line),
                     escape(row.name));
}
std::string value_cells(const ComparedRow& row) {
  return fmt::format("<td>{}</td><td>{}</td><td>{}</td>", escape(row.before), escape(row.after),
                     escape(row.change));
}

std::string words_of(const std::vector<ComparedRow>& rows) {
  std::string words;
  for (const ComparedRow& row : rows) {
    const Definition& d = definition(row.key);
    words += fmt::format("<dt>{}</dt><dd>{}</dd>", escape(row.name),
                         escape(sentence(std::string(d.line), d.source)));
  }
  return fmt::format(R"(<details><summary>What each of them is</summary><dl>{}</dl></details>)",
                     words);
}

constexpr size_t kNameShown = 32;  // characters of a text's name above its columns
constexpr const char *kBeforeAfter = "<th>before</th><th>after</th><th>change</th>",
                     *kTableOf = R"(<table><thead>{}</thead><tbody>{}</tbody></table>)";

std::string card_of_table(const char* id, const char* classes, const char* title, const char* line,
                          const std::string& inside) {
  return fmt::format(
      R"(<section class="card {}" id="{}"><h2>{}</h2><p class="def">{}</p>{}</section>)"
      "\n",
      classes, id, title, escape(line), inside);
}

std::string rows_of(const std::vector<ComparedRow>& rows) {
  std::string out;
  for (const ComparedRow& row : rows)
    out += fmt::format("<tr>{}{}</tr>", head_cell(row), value_cells(row));
  return out;
}

std::string note(const std::string& text) {
  return fmt::format(R"(<p class="note">{}</p>)", escape(text));
}

std::string table_card(const ConversionReport& r) {
  const std::vector<ComparedRow> rows = compared_rows(r);
  return card_of_table(
      "compared", "two", "Before and after",
      "Quality first, then speed, then size: no figure of one stands without the others.",
      fmt::format(fmt::runtime(kTableOf), fmt::format("<tr><th></th>{}</tr>", kBeforeAfter),
                  rows_of(rows)) +
          note(sentence(distance_line(r.figures))) + words_of(rows));
}

// Several texts side by side, and beside them what the models cost, which is of no text.
std::string texts_cards(const ConversionReport& r) {
  const std::vector<TextView> texts = texts_of(r);
  std::string names = R"(<tr><th></th>)", heads = R"(<tr><th></th>)", body, notes;
  std::vector<std::vector<ComparedRow>> predictions;  // [texts]
  for (const TextView& t : texts) {
    predictions.push_back(prediction_rows(t.figures));
    names += fmt::format(R"(<th colspan="3" class="group">{}</th>)",
                         escape(fmt::format("{}, {}", t.name, shortened(t.text, kNameShown))));
    heads += kBeforeAfter;
    notes += note(fmt::format("{}, {}: {}", t.name, t.text, sentence(distance_line(t.figures))));
  }
  for (size_t i = 0; i < predictions[0].size(); ++i) {
    body += "<tr>" + head_cell(predictions[0][i]);
    for (const auto& rows : predictions) body += value_cells(rows[i]);
    body += "</tr>";
  }
  const std::vector<ComparedRow> costs = cost_rows(r);
  return card_of_table(
             "compared", "two", "What they predict, text by text",
             "On a text of its own a tuned model shows what it learned, on another what it forgot.",
             R"(<div class="scroll">)" +
                 fmt::format(fmt::runtime(kTableOf), names + "</tr>" + heads + "</tr>", body) +
                 "</div>" + notes + words_of(predictions[0])) +
         card_of_table(
             "costs", "", "What they cost", "Speed first, then size.",
             fmt::format(fmt::runtime(kTableOf), fmt::format("<tr><th></th>{}</tr>", kBeforeAfter),
                         rows_of(costs)) +
                 words_of(costs));
}

std::string frontier_table(const ConversionReport& r) {
  if (r.frontier.empty()) return "";
  const bool shares = r.frontier.front().ffn_share.has_value();
  std::string rows;
  for (const FrontierPoint& p : r.frontier)
    rows += fmt::format(
        "<tr><th>{}</th>{}<td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
        escape(p.name),
        shares ? fmt::format("<td>{}</td>", fine_percent(p.ffn_share.value_or(1))) : "",
        compact(p.perplexity), p.is_before ? "" : compact(p.kl), ratio(p.speed_up.decode),
        ratio(p.speed_up.prompt), human_bytes(static_cast<double>(p.bytes_per_token)));
  return fmt::format(
      R"(<section class="card" id="sweep"><h2>{}</h2><p class="def">{}</p><div class="scroll"><table><thead><tr><th></th>{}<th>perplexity</th>)"
      R"(<th>KL</th><th>decode</th><th>prompt</th><th>read a token</th></tr></thead><tbody>{}</tbody></table></div></section>)"
      "\n",
      r.is_conversion() ? "The sweep in numbers" : "The models in numbers",
      escape(std::string(r.is_conversion() ? "Each with everything else the same; speeds"
                                           : "Each held against the model before; speeds") +
             " are factors of the model before, measured in turns with it."),
      shares ? "<th>of the FFN</th>" : "", rows);
}

std::string steps_card(const ConversionReport& r) {
  std::string inside = R"(<dl class="fav">)";
  const auto item = [&](const std::string& name, const std::string& value) {
    inside += fmt::format("<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
  };
  const auto model = [&](const char* name, const ModelCard& m) {
    item(name,
         fmt::format("{}: {}; weights {}, activations {}", m.name, m.shape, m.weights, m.compute));
  };
  model("before", r.before);
  model("after", r.after);
  for (const auto& [name, value] : r.steps) item(name, value);
  for (const TextView& t : texts_of(r))
    item(r.others.empty() ? "text" : t.name,
         fmt::format("{}: {} of {} tokens, {} predicted", t.text,
                     counted(t.figures.windows, "window"), t.figures.window, t.figures.tokens));
  if (r.before_speed)
    item("speeds", fmt::format("prompts of {} and {} tokens written, drawn at random; medians of "
                               "{}, the models in turns",
                               r.before_speed->prompt, r.before_speed->tokens,
                               r.before_speed->prompt_seconds.size()));
  const bool made = r.is_conversion();
  return fmt::format(
      R"(<section class="card two" id="steps"><h2>{}</h2><p class="def">{}</p>{}</dl></section>)"
      "\n",
      made ? "How it was made and measured" : "What was measured",
      made ? "The text that is scored is read by no step of the conversion."
           : "Both models read the same windows.",
      inside);
}

std::string part(const char* title, const std::string& cards) {
  return cards.empty() ? ""
                       : fmt::format(R"(<h2 class="part">{}</h2><div class="cards">{}</div>)"
                                     "\n",
                                     title, cards);
}

}  // namespace

std::string conversion_page(const ConversionReport& r) {
  const FigureOptions o;
  std::string body = page_header(r.kind, r.after.name, subtitle_of(r), facts_of(r), findings_of(r));
  body += part("What it costs and what it buys",
               hero_card([&](const FigureOptions& w) { return frontier_figure(r, w); }) +
                   frontier_table(r) + (r.others.empty() ? table_card(r) : texts_cards(r)) +
                   (!r.frontier.empty() ? figure_card(prompt_frontier_figure(r, o), false)
                    : r.others.empty()  ? figure_card(speed_figure(r, o), false)
                                        : ""));
  body += part(
      "Where it departs",
      figure_card(error_figure(r, o), false) + figure_card(agreement_figure(r, o), false) +
          figure_card(active_figure(r, o), false) + figure_card(drift_figure(r, o), false) +
          figure_card(same_choices_figure(r, o), false) + figure_card(balance_figure(r, o), false) +
          figure_card(expert_load_figure(r, r.others.empty() ? o : FigureOptions{.width = 280}),
                      !r.others.empty()));
  body += part("How", steps_card(r));
  return page(r.kind + ": " + r.after.name, 0, body);
}

}  // namespace moe
