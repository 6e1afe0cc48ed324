#include "cli/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "analyze/pages/conversion_page.h"
#include "analyze/texts/conversion_findings.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/file.h"
#include "evaluate/score.h"
#include "infer/eval_routing.h"
#include "text/corpus.h"

namespace moe::cli {
namespace {

// One column of a table over layers; absent values are dashes.
struct Column {
  std::string head;
  std::function<std::string(int64_t layer)> cell;
};

std::string percent_or_dash(const std::optional<double>& share) { return share ? fmt::format("{:.1f}%", 100 * *share) : "-"; }

const LayerChoices* choices_of(const std::vector<LayerChoices>& all, int64_t layer) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const LayerChoices& c) { return c.layer == layer; });
  return found == all.end() ? nullptr : &*found;
}

const ConvertedLayer* converted(const ConversionReport& r, int64_t layer) {
  const auto found = std::find_if(r.layers.begin(), r.layers.end(), [&](const ConvertedLayer& l) { return l.layer == layer; });
  return found == r.layers.end() ? nullptr : &*found;
}

// Columns that have something to say.
std::vector<Column> layer_columns(const ConversionReport& r) {
  std::vector<Column> columns;
  const auto any = [&](auto member) { return std::any_of(r.layers.begin(), r.layers.end(), [&](const ConvertedLayer& l) { return (l.*member).has_value(); }); };
  const auto of_layer = [&r](auto&& value) {
    return [&r, value](int64_t layer) -> std::string {
      const ConvertedLayer* l = converted(r, layer);
      return l ? value(*l) : "-";
    };
  };
  if (any(&ConvertedLayer::active)) columns.push_back({"active", of_layer([](const ConvertedLayer& l) { return l.active ? std::to_string(*l.active) : "-"; })});
  if (any(&ConvertedLayer::error)) columns.push_back({"error", of_layer([](const ConvertedLayer& l) { return percent_or_dash(l.error); })});
  if (any(&ConvertedLayer::agreement)) columns.push_back({"as oracle", of_layer([](const ConvertedLayer& l) { return percent_or_dash(l.agreement); })});
  const Comparison& c = r.figures;
  if (!c.same_choices.empty())
    columns.push_back({"choices kept", [&c](int64_t layer) {
                         for (size_t i = 0; i < c.before_load.size(); ++i)
                           if (c.before_load[i].layer == layer) return percent_or_dash(c.same_choices[i]);
                         return std::string("-");
                       }});
  if (!c.after_load.empty()) {
    columns.push_back({"MaxVio", [&c](int64_t layer) {
                         const LayerChoices* l = choices_of(c.after_load, layer);
                         return l ? fmt::format("{:.2f}", balance_of(*l).max_vio) : "-";
                       }});
    columns.push_back({"dead", [&c](int64_t layer) {
                         const LayerChoices* l = choices_of(c.after_load, layer);
                         return l ? std::to_string(balance_of(*l).dead) : "-";
                       }});
  }
  if (!columns.empty() && !c.drift.empty())
    columns.push_back({"drift", [&c](int64_t layer) { return percent_or_dash(c.drift.at(static_cast<size_t>(layer))); }});
  return columns;
}

void print_layers(const ConversionReport& r) {
  const std::vector<Column> columns = layer_columns(r);
  const std::vector<double>& drift = r.figures.drift;
  if (columns.empty()) {
    if (drift.empty()) return;
    const auto most = std::max_element(drift.begin(), drift.end());
    fmt::print("\nthe state after a layer moves by {:.2f}% of its length after layer 0, {:.2f}% after layer {} (most), {:.2f}% after the last\n",
               100 * drift.front(), 100 * *most, most - drift.begin(), 100 * drift.back());
    return;
  }
  fmt::print("\n  layer");
  for (const Column& c : columns) fmt::print("{:>{}}", c.head, std::max<size_t>(9, c.head.size() + 2));
  fmt::print("\n");
  std::vector<int64_t> layers;
  for (const ConvertedLayer& l : r.layers) layers.push_back(l.layer);
  for (const LayerChoices& l : r.figures.after_load) layers.push_back(l.layer);
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  for (const int64_t layer : layers) {
    fmt::print("  {:>5}", layer);
    for (const Column& c : columns) fmt::print("{:>{}}", c.cell(layer), std::max<size_t>(9, c.head.size() + 2));
    fmt::print("\n");
  }
}

void print_frontier(const ConversionReport& r) {
  if (r.frontier.empty()) return;
  size_t width = 8;
  for (const FrontierPoint& p : r.frontier) width = std::max(width, p.name.size());
  fmt::print("\n  {:<{}}{:>9}{:>13}{:>10}{:>12}{:>11}{:>9}{:>11}{:>9}{:>12}\n", "", width, "FFN", "perplexity", "KL", "same token", "decode/s", "", "prompt/s",
             "", "read/token");
  for (const FrontierPoint& p : r.frontier)
    fmt::print("{} {:<{}}{:>8.1f}%{:>13.3f}{:>10}{:>11.1f}%{:>11.1f}{:>9}{:>11.1f}{:>9}{:>12}\n", p.is_written ? '*' : ' ', p.name, width, 100 * p.ffn_share,
               p.perplexity, p.is_before ? "-" : fmt::format("{:.4f}", p.kl), 100 * p.same_top, p.decode_rate, ratio(p.speed_up.decode), p.prompt_rate,
               ratio(p.speed_up.prompt), human_bytes(static_cast<double>(p.bytes_per_token)));
  fmt::print("speeds are factors of the first model's, measured in turns with it\n");
}

std::string model_line(const ModelCard& m) { return fmt::format("{}: {}; weights {}, activations {}", m.name, m.shape, m.weights, m.compute); }

SessionOptions timed_options(const ModelConfig& config, int64_t top_k) {
  SessionOptions options{.top_k_experts = top_k};
  if (config.moe_layer_count() > 0) options.routing = default_eval(config.routing);  // as the text is read
  return options;
}

DType dtype_of(const LoadedModel& loaded, const CompareFlags& f) { return f.compute.dtype.value_or(natural_dtype(*loaded.model)); }

// A model with its threads and memory.
struct Running {
  Model& model;
  Run run;
  std::optional<Session> session;  // where speeds are measured
  Running(const LoadedModel& loaded, const CompareFlags& f, int64_t top_k) : model(*loaded.model), run(thread_count(f.compute.threads), dtype_of(loaded, f)) {
    if (!f.no_speed) session.emplace(model, run, f.speed.prompt + f.speed.tokens, timed_options(model.config(), top_k));
  }
};

void prepare_comparison(const NamedModel& before, const NamedModel& after, const CompareFlags& f, int64_t window) {
  std::vector<ForwardUse> uses;
  for (const NamedModel* m : {&before, &after}) {
    const int64_t top_k = m == &after ? f.top_k_experts : 0, timed = f.no_speed ? 0 : f.speed.prompt;
    const DType dtype = dtype_of(m->loaded, f);
    Model& model = *m->loaded.model;
    uses.push_back(session_use(model, timed_options(model.config(), top_k), dtype, timed, f.no_speed ? 0 : f.speed.prompt + f.speed.tokens));
    uses.back().shape.tokens = std::max(uses.back().shape.tokens, window);
  }
  MemoryNeed beside;
  beside.add("comparing", comparing_bytes(before.loaded.model->config(), after.loaded.model->config(), window));
  prepare_memory(before.name, uses, beside, f.memory, fmt::format("lower the tokens of a window (now {})", window));
}

}  // namespace

FieldList measuring_fields(CompareFlags& f, const std::string& group) {
  const bool verifies = !group.empty();
  FieldList list;
  list.group(group);
  list.add(verifies ? "verify_windows" : "windows", f.options.windows, "at most so many windows of the text; 0: all");
  list.add(verifies ? "verify_window" : "window", f.options.window, "tokens a window, as in moe score; default: 2048, or the shorter of the two contexts")
      .no_default();
  list.add("no_speed", f.no_speed, "leave the speeds out; without it both models are timed in turns");
  list.add(fields(f.speed).take({"prompt", "tokens", "repeats"}));
  return list;
}

ComparedText read_compared_text(const CompareFlags& f, const LoadedModel& model) {
  ComparedText text{{}, f.options};
  if (text.options.window == 0) text.options.window = default_window(model.model->config());
  const Corpus corpus({f.text}, *model.tokenizer);
  scored_windows(corpus.size(), {.window = text.options.window, .windows = text.options.windows});
  text.ids.resize(static_cast<size_t>(corpus.size()));
  corpus.fill(0, corpus.size(), text.ids.data());
  return text;
}

ConversionReport compare_models(const NamedModel& before, const NamedModel& after, const CompareFlags& f, const ComparedText& text,
                                const std::string& interrupted) {
  check_same_vocabulary(*before.loaded.model, *before.loaded.tokenizer, *after.loaded.model, *after.loaded.tokenizer);
  for (const NamedModel* m : {&before, &after}) {
    if (!f.no_speed) validate(f.speed, m->loaded.model->config());
    evaluation_spec(m->loaded.model->config(), std::nullopt, m == &after ? f.top_k_experts : 0);
  }
  prepare_comparison(before, after, f, text.options.window);
  ConversionReport report{.kind = "Comparison", .text = f.text};
  Running first(before.loaded, f, 0), second(after.loaded, f, f.top_k_experts);
  const std::atomic<bool>& stop = watch_interrupts();
  ProgressLine progress;
  report.figures = compare({first.model, first.run}, {second.model, second.run, f.top_k_experts}, *before.loaded.tokenizer, text.ids, text.options,
                           [&](int64_t done, int64_t total) {
                             if (stop) fail("interrupted after {} of {} windows{}", done, total, interrupted);
                             progress.show(done, total, "windows");
                           });
  if (!f.no_speed) {
    std::vector<SpeedProbe> probes;
    probes.emplace_back(first.model, *first.session, f.speed);
    probes.emplace_back(second.model, *second.session, f.speed);
    measure_in_turns(probes, f.speed.repeats, [&](int64_t done, int64_t total) {
      if (stop) fail("interrupted while the speeds were measured{}", interrupted);
      progress.show(done, total, "repeats of the speeds");
    });
    report.before_speed = probes[0].speed();
    report.after_speed = probes[1].speed();
  }
  report.before = model_card(before.name, first.model, first.run.compute, text.options.window);
  report.after = model_card(after.name, second.model, second.run.compute, text.options.window, f.top_k_experts);
  return report;
}

void print_report(const ConversionReport& r) {
  fmt::print("before  {}\nafter   {}\n", model_line(r.before), model_line(r.after));
  fmt::print("text    {}: {} of {} tokens, {} predicted\n\n", r.text, counted(r.figures.windows, "window"), r.figures.window, r.figures.tokens);
  fmt::print("  {:<26}{:>12}{:>12}{:>20}\n", "", "before", "after", "change");
  for (const ComparedRow& row : compared_rows(r)) fmt::print("  {:<26}{:>12}{:>12}{:>20}\n", row.name, row.before, row.after, row.change);
  fmt::print("\n{}\n", wrapped(distance_line(r), 0));
  print_layers(r);
  print_frontier(r);
}

void write_page(const std::string& path, const ConversionReport& r) { write_atomically(path, conversion_page(r)); }

}  // namespace moe::cli
