#include "jobs/inspect_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "analyze/data/history.h"
#include "analyze/data/report_json.h"
#include "analyze/pages/html_report.h"
#include "core/error.h"
#include "core/file.h"
#include "evaluate/score.h"
#include "hub/hub.h"
#include "infer/eval_routing.h"
#include "infer/options.h"
#include "jobs/picture_folder.h"
#include "text/loader.h"

namespace moe {
namespace {

constexpr int64_t kReportTokens = 20'000;  // of each domain, of the page that a training run leaves

}  // namespace

FieldList fields(InspectTextJob& job) {
  FieldList list;
  list.group("What the routers do on texts");
  list.add("text", job.texts, "texts to run the model on, files or folders; each file is a domain");
  list.add("html", job.html,
           "write the report as a page of its own to this file, with the training curves when "
           "MODEL has a metrics.jsonl");
  list.add("pictures", job.pictures,
           "write each chart of that page as a picture of its own (.svg) into this folder");
  list.add("against", job.against,
           "an earlier checkpoint of the same model: how many of the choices it made too (router "
           "saturation)");
  list.add("tokens", job.stats.tokens,
           "tokens of each domain at most, in windows spread evenly over it; 0: all");
  list.add("window", job.stats.window,
           "tokens a window; 0: 2048, or the model's context where that is shorter");
  list.add_choice("routing", job.stats.routing, eval_routing_names(),
                  "dropless; as-trained, or threshold, as in moe score. Default: dropless, or "
                  "threshold where experts choose");
  add_top_k_experts(list, job.stats.top_k_experts);
  add_threads(list, job.threads);
  add_memory(list, job.memory);
  return list;
}

void check_given(const InspectTextJob& job, const Given& given) {
  if (!job.texts.empty()) return;
  InspectTextJob unused;
  for (const Field& one : fields(unused))
    if (given.has(one.name))
      fail_usage("{} needs a text to look at: add @text FILE", field(one.name));
}

InspectedText inspect_text(const InspectTextJob& job, const Watch& watch) {
  const RoutingStatsOptions& options = job.stats;
  const LoadedModel loaded = open_model(job.model, job.memory.limits);
  const RoutingOptions& recipe = loaded.model->config().routing;
  const bool routed = loaded.model->config().moe_layer_count() > 0;
  LoadedModel earlier;
  if (!job.against.empty()) earlier = open_model(job.against, job.memory.limits);
  const Corpus corpus(job.texts, *loaded.tokenizer);
  // opened before the work, so that a folder that cannot be written to is found at once
  std::optional<AtomicFile> page;
  if (!job.html.empty()) page.emplace(job.html);
  make_picture_folder(job.pictures);
  Run run(thread_count(job.threads), job.dtype.value_or(natural_dtype(*loaded.model)));
  const int64_t window = std::min(
      options.window > 0 ? options.window : default_window(loaded.model->config()), corpus.size());
  std::vector<ForwardUse> uses;
  for (const LoadedModel* m : std::initializer_list<const LoadedModel*>{&loaded, &earlier})
    if (m->model)
      uses.push_back({.model = m->model.get(),
                      .shape = {.tokens = window, .dtype = run.compute, .loss = m == &loaded},
                      .routing = options.routing,
                      .top_k_experts = options.top_k_experts});
  MemoryNeed beside;
  beside.add("report", reporting_bytes(loaded.model->config(), options, window, std::ssize(uses)));
  prepare_memory(job.model, uses, beside, job.memory, marked("lower @window"), watch);
  InspectedText found;
  RoutingReport& report = found.report;
  {
    const Progress progress = watch.begin();
    const auto check = [&](int64_t done, int64_t total) {
      if (watch.stopped()) fail("interrupted after {} of {} windows", done, total);
    };
    check(0, 0);
    report = routing_report(*loaded.model, run, *loaded.tokenizer, corpus, options,
                            earlier.model.get(), [&](int64_t done, int64_t total) {
                              check(done, total);
                              progress(done, total, "windows");
                            });
  }
  report.model = job.model;
  report.earlier = job.against;
  if (routed) report.routing = name_of(options.routing.value_or(default_eval(recipe)));
  found.history = read_history(job.model);
  const TrainingHistory* history = found.history ? &*found.history : nullptr;
  if (page) {
    page->write(html_report(report, history));
    page->commit();
  }
  if (!job.pictures.empty()) write_pictures(job.pictures, report_pictures(report, history));
  return found;
}

void add_to_json(Json& reply, const InspectedText& found) {
  reply["routing"] = to_json(found.report);
  if (found.history) reply["history"] = to_json(*found.history);
}

int64_t report_tokens(const Corpus& texts, int64_t context) {
  return std::min(texts.size(),
                  kReportTokens * static_cast<int64_t>(domain_shares(texts, context, {}).size()));
}

std::string write_report(Model& model, const Tokenizer& tokenizer, const Corpus& texts,
                         int64_t window, const std::string& out, int threads, DType dtype,
                         const std::function<void(int64_t, int64_t)>& progress) {
  Run run(threads, dtype);
  run.widen = true;  // as it was trained, and no panels of quantised weights beside them
  RoutingReport report = routing_report(
      model, run, tokenizer, texts, {.tokens = kReportTokens, .window = window}, nullptr, progress);
  report.model = out;
  if (!report.moe_layers.empty()) report.routing = name_of(default_eval(model.config().routing));
  const std::optional<TrainingHistory> history = read_history(out);
  const std::string path = out + "/report.html";
  write_atomically(path, html_report(report, history ? &*history : nullptr));
  return path;
}

}  // namespace moe
