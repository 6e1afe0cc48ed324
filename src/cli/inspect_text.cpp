#include "cli/inspect_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "analyze/data/history.h"
#include "analyze/data/report_json.h"
#include "analyze/pages/html_report.h"
#include "analyze/pictures/report_pictures.h"
#include "analyze/texts/report_findings.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/file.h"
#include "core/words.h"
#include "evaluate/score.h"
#include "hub/hub.h"
#include "infer/eval_routing.h"
#include "infer/options.h"

namespace moe::cli {
namespace {

constexpr size_t kShownExperts = 8;
constexpr size_t kShownTokens = 8;

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }
std::string percent(const std::optional<double>& share) { return share ? percent(*share) : "-"; }
std::string figure(const std::optional<double>& x) { return x ? fmt::format("{:.3f}", *x) : "-"; }

// A token within quotes, on one line.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n') out += "\\n";
    else if (c == '\t') out += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) out += fmt::format("0x{:02X}", static_cast<unsigned char>(c));
    else out += c;
  }
  return out + "\"";
}

size_t name_width(const RoutingReport& r) {
  size_t width = 8;
  for (const DomainText& d : r.domains) width = std::max(width, d.name.size());
  return width;
}

void print_texts(const RoutingReport& r) {
  int64_t tokens = 0;
  for (const DomainText& d : r.domains) tokens += d.tokens;
  if (r.moe_layers.empty()) fmt::print("{}: {}, no MoE layer: there is no routing to look at\n", r.model, counted(r.layers, "dense layer"));
  else
    fmt::print("{}: recipe {}, {} of {} experts, {} chosen a token; routed {}\n", r.model, r.recipe,
               counted(static_cast<int64_t>(r.moe_layers.size()), "MoE layer"), r.experts, r.top_k, r.routing);
  fmt::print("{} tokens of {}, in windows of {}\n\n", human_count(static_cast<double>(tokens)), counted(static_cast<int64_t>(r.domains.size()), "text"),
             r.window);
  const size_t width = name_width(r);
  fmt::print("  {:<{}}{:>10}{:>14}\n", "text", width, "tokens", "nats/token");
  for (const DomainText& d : r.domains) fmt::print("  {:<{}}{:>10}{:>14.3f}\n", d.name, width, human_count(static_cast<double>(d.tokens)), d.nats_per_token);
}

void print_layers(const RoutingReport& r) {
  fmt::print("\n  {:>5}{:>8}{:>8}{:>11}{:>6}{:>9}{:>10}{:>10}{:>9}{:>8}{:>8}{:>9}{:>11}{}\n", "", "MaxVio", "MaxVio", "effective", "dead", "dropped", "without",
             "router", "", "top", "vocab.", "vocab.", "vocab.", r.earlier.empty() ? "" : "  saturation");
  fmt::print("  {:>5}{:>8}{:>8}{:>11}{:>6}{:>9}{:>10}{:>10}{:>9}{:>8}{:>8}{:>9}{:>11}{}\n", "layer", "", "window", "experts", "", "", "expert", "entropy",
             "margin", "score", "input", "next", "predicted", r.earlier.empty() ? "" : "     earlier");
  for (const LayerStats& s : r.moe_layers)
    fmt::print("  {:>5}{:>8.2f}{:>8.2f}{:>11.2f}{:>6}{:>9}{:>10}{:>10}{:>9}{:>8}{:>8}{:>9}{:>11}{}\n", s.layer, s.max_vio, s.max_vio_batch, s.effective_experts,
               s.dead, percent(s.dropped), percent(s.unrouted), figure(s.router_entropy), figure(s.margin), figure(s.top_score), percent(s.vocabulary_input),
               percent(s.vocabulary_target), percent(s.vocabulary_predicted), r.earlier.empty() ? "" : fmt::format("{:>12}", percent(s.saturation)));
  if (!r.earlier.empty())
    fmt::print("  saturation: share of the choices that {} made too; {} at random\n", r.earlier, percent(double(r.top_k) / double(r.experts)));
}

void print_specialists(const RoutingReport& r) {
  const double even = static_cast<double>(r.top_k) / static_cast<double>(r.experts);
  const size_t width = name_width(r);
  fmt::print("\nthe expert that most of a text's tokens choose ({} when even)\n", percent(even));
  fmt::print("  {:<{}}{:>6}{:>8}{:>9}{:>13}\n", "text", width, "layer", "expert", "share", "times even");
  for (size_t d = 0; d < r.domains.size(); ++d) {
    const LayerStats* best = nullptr;
    int64_t expert = 0;
    const auto share = [&](const LayerStats& s, int64_t e) { return s.domain(static_cast<int64_t>(d), e); };
    for (const LayerStats& s : r.moe_layers)
      for (int64_t e = 0; e < r.experts; ++e)
        if (!best || share(s, e) > share(*best, expert)) {
          best = &s;
          expert = e;
        }
    fmt::print("  {:<{}}{:>6}{:>8}{:>9}{:>13.2f}\n", r.domains[d].name, width, best->layer, expert, percent(share(*best, expert)), share(*best, expert) / even);
  }
}

// Of the layer that goes most by the token: its experts with the strongest favourites.
void print_favourites(const RoutingReport& r) {
  const LayerStats& s =
      *std::max_element(r.moe_layers.begin(), r.moe_layers.end(), [](const auto& a, const auto& b) { return a.vocabulary_input < b.vocabulary_input; });
  std::vector<size_t> experts;
  for (size_t e = 0; e < s.favourites.size(); ++e)
    if (!s.favourites[e].empty()) experts.push_back(e);
  std::stable_sort(experts.begin(), experts.end(), [&](size_t a, size_t b) { return s.favourites[a][0].share > s.favourites[b][0].share; });
  if (experts.size() > kShownExperts) experts.resize(kShownExperts);
  std::sort(experts.begin(), experts.end());
  if (experts.empty()) return;  // no token occurs often enough to say
  fmt::print("\nfavourite tokens of the experts of layer {}, the one that goes most by the token (share of the token's occurrences)\n", s.layer);
  for (const size_t e : experts) {
    std::vector<std::string> tokens;
    for (const TokenAffinity& t : s.favourites[e])
      if (tokens.size() < kShownTokens) tokens.push_back(fmt::format("{} {:.0f}%", quoted(t.text), 100 * t.share));
    fmt::print("  expert {:>3}: {}\n", e, fmt::join(tokens, "  "));
  }
}

void print_report(const RoutingReport& r, const TrainingHistory* history) {
  print_texts(r);
  if (r.moe_layers.empty()) return;
  const std::vector<std::string> troubles = troubles_of(r, history);
  if (!troubles.empty()) fmt::print("\nwhat is wrong\n");
  for (const std::string& trouble : troubles) fmt::print("  {}\n", trouble);
  print_layers(r);
  print_specialists(r);
  print_favourites(r);
  fmt::print("\nmore by --json and --html FILE: loads, co-activation, every expert of every text, sample texts\n");
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail("cannot make the folder of --pictures, '{}': {}", path, error.message());
}

void write_pictures(const std::string& folder, const RoutingReport& report, const std::optional<TrainingHistory>& history) {
  for (const auto& [name, svg] : report_pictures(report, history ? &*history : nullptr)) write_atomically(folder + "/" + name, svg);
}

}  // namespace

FieldList fields(TextFlags& f) {
  FieldList list;
  list.group("What the routers do on texts");
  list.add("text", f.texts, "texts to run the model on, files or folders; each file is a domain");
  list.add("html", f.html, "write the report as a page of its own to this file, with the training curves when MODEL has a metrics.jsonl");
  list.add("pictures", f.pictures, "write each chart of that page as a picture of its own (.svg) into this folder");
  list.add("against", f.against, "an earlier checkpoint of the same model: how many of the choices it made too (router saturation)");
  list.add("tokens", f.stats.tokens, "tokens of each domain at most, in windows spread evenly over it; 0: all");
  list.add("window", f.stats.window, "tokens a window; 0: 2048, or the model's context where that is shorter");
  list.add_choice("routing", f.stats.routing, eval_routing_names(),
                  "dropless; as-trained, or threshold, as in moe score. Default: dropless, or threshold where experts choose");
  add_top_k_experts(list, f.stats.top_k_experts);
  add_threads(list, f.threads);
  add_memory(list, f.memory);
  return list;
}

void check_text_options(const TextFlags& f, const Given& given) {
  if (!f.texts.empty()) return;
  TextFlags unused;
  for (const Field& field : fields(unused))
    if (given.has(field.name)) fail_usage("{} needs a text to look at: add --text FILE", moe::field(field.name));
}

void inspect_text(const std::string& folder, const TextFlags& f, std::optional<DType> dtype, Json* json) {
  const RoutingStatsOptions& options = f.stats;
  const LoadedModel loaded = load_model(folder, LoadFor::inference);
  const RoutingOptions& recipe = loaded.model->config().routing;
  const bool routed = loaded.model->config().moe_layer_count() > 0;
  LoadedModel earlier;
  if (!f.against.empty()) earlier = load_model(f.against, LoadFor::inference);
  const Corpus corpus(f.texts, *loaded.tokenizer);
  std::optional<AtomicFile> page;  // opened before the work, so that a folder that cannot be written to is found at once
  if (!f.html.empty()) page.emplace(f.html);
  if (!f.pictures.empty()) make_folder(f.pictures);
  Run run(thread_count(f.threads), dtype.value_or(natural_dtype(*loaded.model)));
  const int64_t window = std::min(options.window > 0 ? options.window : default_window(loaded.model->config()), corpus.size());
  std::vector<ForwardUse> uses;
  for (const LoadedModel* m : std::initializer_list<const LoadedModel*>{&loaded, &earlier})
    if (m->model)
      uses.push_back(
          {.model = m->model.get(), .shape = {.tokens = window, .dtype = run.compute}, .routing = options.routing, .top_k_experts = options.top_k_experts});
  MemoryNeed beside;
  beside.add("report", reporting_bytes(loaded.model->config(), window, std::ssize(uses)));
  prepare_memory(folder, uses, beside, f.memory, "lower --window", on_screen());
  RoutingReport report;
  {
    ProgressLine progress;
    const std::atomic<bool>& stop = watch_interrupts();
    report = routing_report(*loaded.model, run, *loaded.tokenizer, corpus, options, earlier.model.get(), [&](int64_t done, int64_t total) {
      if (stop) fail("interrupted after {} of {} windows", done, total);
      progress.show(done, total, "windows");
    });
  }
  report.model = folder;
  report.earlier = f.against;
  if (routed) report.routing = name_of(options.routing.value_or(default_eval(recipe)));
  const std::optional<TrainingHistory> history = read_history(folder);
  if (page) {
    page->write(html_report(report, history ? &*history : nullptr));
    page->commit();
  }
  if (!f.pictures.empty()) write_pictures(f.pictures, report, history);
  if (json) {
    (*json)["routing"] = to_json(report);
    if (history) (*json)["history"] = to_json(*history);
    return;
  }
  print_report(report, history ? &*history : nullptr);
  if (!f.html.empty()) fmt::print("the page is in {}\n", f.html);
  if (!f.pictures.empty()) fmt::print("the pictures are in {}\n", f.pictures);
}

}  // namespace moe::cli
