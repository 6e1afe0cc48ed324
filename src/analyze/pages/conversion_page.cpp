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
std::string table_card(const ConversionReport& r) {
  std::string rows, words;
  for (const ComparedRow& row : compared_rows(r)) {
    const Definition& d = definition(row.key);
    rows += fmt::format(R"(<tr><th title="{}">{}</th><td>{}</td><td>{}</td><td>{}</td></tr>)",
                        escape(d.line), escape(row.name), escape(row.before), escape(row.after),
                        escape(row.change));
    words += fmt::format("<dt>{}</dt><dd>{}</dd>", escape(row.name),
                         escape(sentence(std::string(d.line), d.source)));
  }
  const std::string inside = fmt::format(
      R"(<table><thead><tr><th></th><th>before</th><th>after</th><th>change</th></tr></thead><tbody>{}</tbody></table><p class="note">{}</p>)"
      R"(<details><summary>What each of them is</summary><dl>{}</dl></details>)",
      rows, escape(sentence(distance_line(r))), words);
  return fmt::format(
      R"(<section class="card two" id="compared"><h2>Before and after</h2><p class="def">{}</p>{}</section>)"
      "\n",
      escape("Quality first, then speed, then size: no figure of one stands without the others."),
      inside);
}

std::string frontier_table(const ConversionReport& r) {
  if (r.frontier.empty()) return "";
  std::string rows;
  for (const FrontierPoint& p : r.frontier)
    rows += fmt::format(
        "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
        escape(p.name), fine_percent(p.ffn_share), compact(p.perplexity),
        p.is_before ? "" : compact(p.kl), ratio(p.speed_up.decode), ratio(p.speed_up.prompt));
  return fmt::format(
      R"(<section class="card" id="sweep"><h2>The sweep in numbers</h2><p class="def">{}</p><div class="scroll"><table><thead><tr><th></th><th>of the FFN</th>)"
      R"(<th>perplexity</th><th>KL</th><th>decode</th><th>prompt</th></tr></thead><tbody>{}</tbody></table></div></section>)"
      "\n",
      escape("Each with everything else the same; speeds are factors of the model before, measured "
             "in turns with it."),
      rows);
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
  item("text",
       fmt::format("{}: {} of {} tokens, {} predicted", r.text,
                   counted(r.figures.windows, "window"), r.figures.window, r.figures.tokens));
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

int64_t most_experts(const ConversionReport& r) {
  size_t most = 0;
  for (const LayerChoices& l : r.figures.after_load) most = std::max(most, l.counts.size());
  return static_cast<int64_t>(most);
}

}  // namespace

std::string conversion_page(const ConversionReport& r) {
  const FigureOptions o;
  std::string body = page_header(r.kind, r.after.name, subtitle_of(r), facts_of(r), findings_of(r));
  body += part("What it costs and what it buys",
               hero_card([&](const FigureOptions& w) { return frontier_figure(r, w); }) +
                   frontier_table(r) + table_card(r) +
                   (r.frontier.empty() ? figure_card(speed_figure(r, o), false)
                                       : figure_card(prompt_frontier_figure(r, o), false)));
  body +=
      part("Where it departs",
           figure_card(error_figure(r, o), false) + figure_card(agreement_figure(r, o), false) +
               figure_card(active_figure(r, o), false) + figure_card(drift_figure(r, o), false) +
               figure_card(same_choices_figure(r, o), false) +
               figure_card(expert_load_figure(r, o), false));
  body += part("How", steps_card(r));
  return page(r.kind + ": " + r.after.name, most_experts(r), body);
}

}  // namespace moe
