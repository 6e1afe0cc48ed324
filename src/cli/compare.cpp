// `moe compare`: what one model predicts and costs beside another on the same text.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "analyze/pages/conversion_page.h"
#include "cli/comparison.h"
#include "cli/flags.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/file.h"
#include "core/json.h"
#include "hub/named_models.h"

namespace moe::cli {
namespace {

struct Flags {
  std::string before, after;
  CompareFlags compare;
  bool json = false;
  Given given;
};

int run_compare(Flags f) {
  if (!f.compare.no_speed) validate(f.compare.speed);
  LoadedModel before = load_model(f.before, LoadFor::inference), after = load_model(f.after, LoadFor::inference);
  if (f.compare.options.window == 0) f.compare.options.window = std::min(default_window(before.model->config()), default_window(after.model->config()));
  check_same_vocabulary(*before.model, *before.tokenizer, *after.model, *after.tokenizer);
  const ComparedText text = read_compared_text(f.compare, before);
  std::optional<AtomicFile> page;  // opened before the work, so that a folder that cannot be written to is found at once
  if (!f.compare.html.empty()) page.emplace(f.compare.html);
  const ConversionReport report = compare_models({f.before, before}, {f.after, after}, f.compare, text);
  if (page) {
    page->write(conversion_page(report));
    page->commit();
  }
  if (f.json) {
    print_json(to_json(report));
    return 0;
  }
  print_report(report);
  if (page) fmt::print("the page is in {}\n", f.compare.html);
  return 0;
}

}  // namespace

Action add_compare(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list;
  list.add("BEFORE", f->before, fmt::format("the model that is held to be right: {}", kModelIs)).positional().required();
  list.add("AFTER", f->after, "another with the same vocabulary: a quantised, carved, pruned or further trained one").positional().required();
  list.add("text", f->compare.text, "a text file, or a folder of them, that neither was made with").required();
  list.add(measuring_fields(f->compare));
  add_top_k_experts(list, f->compare.top_k_experts);
  list.at("top_k_experts").help = "experts a token takes in AFTER; 0: the model's number";
  list.add(fields(f->compare.compute));
  add_memory(list, f->compare.memory);
  list.add("html", f->compare.html, "write the figures and their charts as a self-contained page");
  list.add("json", f->json, "one JSON object on standard output");
  add_flags(app, std::move(list), f->given);
  return [f] { return run_compare(*f); };
}

}  // namespace moe::cli
