// `moe compare`: what one model predicts and costs beside another on the same text.
#include "jobs/compare.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "analyze/pages/conversion_page.h"
#include "analyze/texts/tables.h"
#include "cli/flags.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "hub/named_models.h"

namespace moe::cli {
namespace {

struct Flags {
  std::string before, after;
  std::vector<std::string> texts;
  CompareJob compare;
  bool json = false;
  Given given;
};

int run_compare(Flags& f) {
  check_speed_options(f.compare, f.given);
  f.compare.text = f.texts.front();
  f.compare.others.assign(f.texts.begin() + 1, f.texts.end());
  const ConversionReport report = compare_files(f.before, f.after, f.compare, on_screen());
  if (f.json) {
    print_json(to_json(report));
    return 0;
  }
  fmt::print("{}", conversion_tables(report));
  if (!f.compare.html.empty()) fmt::print("the page is in {}\n", f.compare.html);
  return 0;
}

}  // namespace

Action add_compare(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list;
  list.add("BEFORE", f->before, fmt::format("the model that is held to be right: {}", kModelIs))
      .positional()
      .required();
  list.add("AFTER", f->after,
           "another with the same vocabulary: a quantised, carved, pruned or further trained one")
      .positional()
      .required();
  list.add("text", f->texts,
           "a text file, or a folder of them, that neither was made with; several stand side by "
           "side, as the text that a model was tuned for and a general one")
      .required();
  list.add(
      "also", f->compare.also,
      "further models beside AFTER, each held against BEFORE on the first text: all of them in "
      "one table, and in one drawing of perplexity against speed");
  list.add(measuring_fields(f->compare));
  add_top_k_experts(list, f->compare.top_k_experts);
  list.at("top_k_experts").help = "experts a token takes in AFTER; 0: the model's number";
  list.add(cpu_fields(f->compare.compute));
  add_memory(list, f->compare.memory);
  list.add("html", f->compare.html, "write the figures and their charts as a self-contained page");
  list.add("pictures", f->compare.pictures,
           "write each chart of that page as a picture of its own (.svg) into this folder");
  list.add("json", f->json, "one JSON object on standard output");
  add_flags(app, std::move(list), f->given);
  return [f] { return run_compare(*f); };
}

}  // namespace moe::cli
