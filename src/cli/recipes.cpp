#include "moe/recipes/recipes.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/flags.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/json.h"
#include "jobs/recipes.h"
#include "moe/recipes/spec_json.h"

namespace moe::cli {
namespace {

struct Flags {
  std::string name;
  bool json = false;
  Given given;
};

constexpr size_t kLabel = 16;  // columns before what a line says
constexpr size_t kTitle = 42;  // columns before a title in the table

// "Fedus et al. 2021, arXiv 2101.03961": where the table has no room for sections and code.
std::string short_source(std::string_view source) {
  const size_t arxiv = source.find("arXiv ");
  const size_t end = source.find_first_of(",;(", arxiv == std::string_view::npos ? 0 : arxiv);
  std::string_view text = source.substr(0, end);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return std::string(text);
}

// {"type": "buffer", "factor": 1.25, "scope": {"group": 8}} as "buffer: factor 1.25, scope {group
// 8}".
std::string words_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (!value.is_object()) return value.dump();
  std::string text;
  for (const auto& [key, inner] : value.items()) {
    if (key == "type") continue;
    const std::string shown = words_of(inner);
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", key,
                        inner.is_object() ? "{" + shown + "}" : shown);
  }
  return value.contains("type") ? fmt::format("{}: {}", words_of(value["type"]), text) : text;
}

void print_line(std::string_view label, const std::string& text) {
  fmt::print("  {:<{}}{}\n", label, kLabel - 2, wrapped(text, kLabel));
}

void print_recipe(const Recipe& r) {
  fmt::print("{}: {}\n", r.name, wrapped(std::string(r.title), r.name.size() + 2));
  print_line("formula", std::string(r.formula));
  if (r.has_router()) {
    std::string sizes = fmt::format("{} experts, top-{}{}", r.default_experts, r.default_top_k,
                                    r.top_k_is_fixed ? " (fixed)" : "");
    if (r.norm_topk_prob_is_open) sizes += "; norm_topk_prob is open";
    if (r.shared.experts > 0)
      sizes += fmt::format(
          "; {} shared {} as wide as {}{}", r.shared.experts,
          r.shared.experts == 1 ? "expert" : "experts",
          r.shared.widths == 1 ? "a routed one" : fmt::format("{} routed ones", r.shared.widths),
          r.shared.gate ? ", gated" : "");
    print_line("defaults", sizes);
    const Json stages = to_json(r.train, r.eval_as_trained);
    for (const char* stage : {"noise", "score", "select", "weigh", "second", "capacity"})
      print_line(stage, words_of(stages.at(stage)));
    print_line("as evaluated",
               stages.at("capacity_eval") == "dropless"
                   ? "dropless"
                   : "dropless; as-trained " + words_of(stages.at("capacity_eval")));
    std::string losses;
    for (const auto& [name, loss] : stages.at("losses").items())
      if (loss != false)
        losses += fmt::format("{}{}{}", losses.empty() ? "" : "; ", name,
                              loss.is_object() ? " {" + words_of(loss) + "}" : "");
    print_line("losses", losses.empty() ? "none but a z-loss where it is asked for" : losses);
    for (const StatedLoss& loss : stated_losses(r)) print_line("coefficient", loss.in_words);
  }
  print_line("causal", r.causality.empty() ? "yes" : std::string(r.causality));
  print_line("source", std::string(r.source));
  if (!r.differs.empty()) print_line("differs", std::string(r.differs));
}

void print_row(const Recipe& r) {
  const std::string size =
      r.has_router() ? fmt::format("{} of {}", r.default_top_k, r.default_experts) : "-";
  fmt::print("{:<20} {:<9} {:<10} {}\n{:{}}{}\n", r.name, size, causal_word(r),
             wrapped(std::string(r.title), kTitle), "", kTitle,
             wrapped(short_source(r.source), kTitle));
}

int run_recipes(const Flags& f) {
  if (!f.name.empty()) {
    const Recipe& r = find_recipe(f.name);
    if (f.json) fmt::print("{}\n", recipe_json(r).dump());
    else print_recipe(r);
    return 0;
  }
  if (f.json) {
    fmt::print("{}\n", recipes_reply());
    return 0;
  }
  fmt::print("{:<20} {:<9} {:<10} {}\n", "recipe", "K of E", "causal",
             "what it is, and its source");
  for (const Recipe& r : recipes()) print_row(r);
  fmt::print(
      "\nK of E: what a token takes by default. causal \"evaluated\": later tokens matter in "
      "training only.\nmoe recipes NAME says more.\n");
  return 0;
}

}  // namespace

Action add_recipes(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list;
  list.add("NAME", f->name,
           "one recipe in full: formula, defaults, stages with their parameters, losses, "
           "causality, source, where implementations differ")
      .positional()
      .values(names_of(recipes()));
  list.add("json", f->json, "JSON on standard output");
  add_flags(app, std::move(list), f->given);
  return [f] { return run_recipes(*f); };
}

}  // namespace moe::cli
