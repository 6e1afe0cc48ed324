#include "jobs/compare.h"

#include <algorithm>
#include <filesystem>

#include "analyze/pages/conversion_page.h"
#include "core/error.h"
#include "core/file.h"
#include "core/words.h"
#include "evaluate/score.h"
#include "infer/eval_routing.h"
#include "jobs/calibration.h"
#include "jobs/picture_folder.h"

namespace moe {
namespace {

SessionOptions timed_options(const ModelConfig& config, int64_t top_k) {
  SessionOptions options{.top_k_experts = top_k};
  // as the text is read
  if (config.moe_layer_count() > 0) options.routing = default_eval(config.routing);
  return options;
}

DType dtype_of(const LoadedModel& loaded, const CompareJob& job) {
  return job.compute.dtype.value_or(natural_dtype(*loaded.model));
}

// A model with its threads and memory.
struct Running {
  Model& model;
  Run run;
  std::optional<Session> session;  // where speeds are measured
  Running(const LoadedModel& loaded, const CompareJob& job, int64_t top_k)
      : model(*loaded.model), run(thread_count(job.compute.threads), dtype_of(loaded, job)) {
    if (!job.no_speed)
      session.emplace(model, run, job.speed.prompt + job.speed.tokens,
                      timed_options(model.config(), top_k));
  }
};

// What comparing takes of memory.
struct ComparingUse {
  std::vector<ForwardUse> models;
  MemoryNeed beside;
  std::string advice;  // what to lower
};

ComparingUse comparing_use(const NamedModel& before, const NamedModel& after, const CompareJob& job,
                           int64_t window) {
  ComparingUse use;
  for (const NamedModel* m : {&before, &after}) {
    const int64_t top_k = m == &after ? job.top_k_experts : 0,
                  timed = job.no_speed ? 0 : job.speed.prompt;
    const DType dtype = dtype_of(m->loaded, job);
    Model& model = *m->loaded.model;
    use.models.push_back(session_use(model, timed_options(model.config(), top_k), dtype, timed,
                                     job.no_speed ? 0 : job.speed.prompt + job.speed.tokens));
    use.models.back().shape.tokens = std::max(use.models.back().shape.tokens, window);
  }
  use.beside.add("comparing", comparing_bytes(before.loaded.model->config(),
                                              after.loaded.model->config(), window));
  use.advice = fmt::format("lower the tokens of a window (now {})", window);
  return use;
}

void check_comparable(const LoadedModel& before, const LoadedModel& after) {
  check_same_vocabulary(*before.model, *before.tokenizer, *after.model, *after.tokenizer);
}

// What the options cannot mean for a model.
void check_options(const NamedModel& m, const CompareJob& job, int64_t top_k, int64_t window) {
  const ModelConfig& config = m.loaded.model->config();
  if (!job.no_speed) validate(job.speed, config);
  evaluation_spec(config, std::nullopt, top_k);
  if (config.ends_at_context() && window > config.context)
    fail_usage("@window is {}, but {}; give at most {}", window, why_texts_end(config, m.name),
               config.context);
}

// All that would be refused of one of the further models once its turn comes.
void check_other(const NamedModel& before, const NamedModel& other, CompareJob job) {
  job.top_k_experts = 0;
  const int64_t window = job.options.window;
  check_options(other, job, 0, window);
  const ComparingUse use = comparing_use(before, other, job, window);
  check_forwards(other.name, use.models, use.beside, job.memory.limits, use.advice);
}

// Each of the further models held against the first one on the first text, beside the report's.
void add_others(ConversionReport& report, const NamedModel& before, CompareJob job,
                const ComparedText& text, const Watch& watch) {
  const auto short_name = [](const std::string& path) {
    const std::filesystem::path name(path);
    return (name.has_filename() ? name : name.parent_path()).filename().string();
  };
  job.top_k_experts = 0;
  report.frontier = {frontier_point(report, short_name(report.after.name), {})};
  report.frontier[0].is_written = true;
  for (const std::string& path : job.also) {
    watch.tell("beside it: " + path);
    LoadedModel other = open_model(path, job.memory.limits);
    report.frontier.push_back(
        frontier_point(compare_models(before, {path, other}, job, std::span(&text, 1), watch),
                       short_name(path), {}));
  }
  report.frontier.push_back(frontier_start(report));
  report.frontier.back().ffn_share.reset();
}

}  // namespace

FieldList measuring_fields(CompareJob& job, const std::string& group) {
  const bool verifies = !group.empty();
  FieldList list;
  list.group(group);
  list.add(verifies ? "verify_windows" : "windows", job.options.windows,
           "at most so many windows of the text; 0: all");
  list.add(verifies ? "verify_window" : "window", job.options.window,
           "tokens a window, as in moe score; default: 2048, or the shortest of the contexts")
      .no_default();
  list.add("no_speed", job.no_speed,
           "leave the speeds out; without it both models are timed in turns");
  list.add(fields(job.speed).take({"prompt", "tokens", "repeats"}));
  return list;
}

void check_speed_options(const CompareJob& job, const Given& given) {
  if (!job.no_speed) return;
  for (const char* name : {"prompt", "tokens", "repeats"})
    if (given.has(name))
      fail_usage("{} is of the speeds, which @no_speed leaves out; give one of them", field(name));
}

ComparedText read_compared_text(const std::string& name, const CompareJob& job,
                                const LoadedModel& model, std::string_view window) {
  ComparedText text{name, {}, job.options};
  if (text.options.window == 0) text.options.window = default_window(model.model->config());
  text.ids = read_ids(name, *model.tokenizer);
  scored_windows(std::ssize(text.ids),
                 {.window = text.options.window, .windows = text.options.windows},
                 {.text = name, .window = window});
  return text;
}

ConversionReport compare_models(const NamedModel& before, const NamedModel& after,
                                const CompareJob& job, std::span<const ComparedText> texts,
                                const Watch& watch, const std::string& interrupted) {
  check_comparable(before.loaded, after.loaded);
  const int64_t window = texts.front().options.window;
  check_options(before, job, 0, window);
  check_options(after, job, job.top_k_experts, window);
  const ComparingUse use = comparing_use(before, after, job, window);
  prepare_memory(before.name, use.models, use.beside, job.memory, use.advice, watch);
  ConversionReport report{.kind = "Comparison", .text = texts.front().name};
  Running first(before.loaded, job, 0), second(after.loaded, job, job.top_k_experts);
  const Progress progress = watch.begin();
  const auto check_stopped = [&](const std::string& when) {
    if (watch.stopped()) fail("interrupted {}{}", when, interrupted);
  };
  check_stopped("before the first window");
  int64_t windows = 0, read = 0;  // of all texts
  for (const ComparedText& t : texts)
    windows += scored_windows(std::ssize(t.ids),
                              {.window = t.options.window, .windows = t.options.windows});
  for (const ComparedText& t : texts) {
    Comparison figures =
        compare({first.model, first.run}, {second.model, second.run, job.top_k_experts},
                *before.loaded.tokenizer, t.ids, t.options, [&](int64_t done, int64_t) {
                  check_stopped(fmt::format("after {} of {} windows", read + done, windows));
                  progress(read + done, windows, "windows");
                });
    read += figures.windows;
    if (&t == &texts.front()) report.figures = std::move(figures);
    else report.others.push_back({t.name, std::move(figures)});
  }
  if (!job.no_speed) {
    std::vector<SpeedProbe> probes;
    probes.emplace_back(first.model, *first.session, job.speed);
    probes.emplace_back(second.model, *second.session, job.speed);
    measure_in_turns(probes, job.speed.repeats, [&](int64_t done, int64_t total) {
      check_stopped("while the speeds were measured");
      progress(done, total, "repeats of the speeds");
    });
    report.before_speed = probes[0].speed();
    report.after_speed = probes[1].speed();
  }
  report.before = model_card(before.name, first.model, first.run.compute, window);
  report.after =
      model_card(after.name, second.model, second.run.compute, window, job.top_k_experts);
  return report;
}

ConversionReport compare_files(const std::string& before_path, const std::string& after_path,
                               CompareJob job, const Watch& watch) {
  if (!job.no_speed) validate(job.speed);
  else if (!job.also.empty())
    fail_usage("@also sets quality against speed, which @no_speed leaves out; give one of them");
  LoadedModel before = open_model(before_path, job.memory.limits),
              after = open_model(after_path, job.memory.limits);
  check_comparable(before, after);
  if (job.options.window == 0) {
    int64_t window =
        std::min(default_window(before.model->config()), default_window(after.model->config()));
    for (const std::string& path : job.also)
      window = std::min(window, default_window(read_model_config(path)));
    job.options.window = window;
  }
  for (const std::string& path : job.also) {  // before anything is measured
    LoadedModel other = open_model(path, job.memory.limits);
    check_comparable(before, other);
    check_other({before_path, before}, {path, other}, job);
  }
  std::vector<ComparedText> texts = {read_compared_text(job.text, job, before)};
  for (const std::string& other : job.others)
    texts.push_back(read_compared_text(other, job, before));
  // opened before the work, so that a folder that cannot be written to is found at once
  std::optional<AtomicFile> page;
  if (!job.html.empty()) page.emplace(job.html);
  make_picture_folder(job.pictures);
  ConversionReport report =
      compare_models({before_path, before}, {after_path, after}, job, texts, watch);
  if (!job.also.empty()) add_others(report, {before_path, before}, job, texts.front(), watch);
  if (page) {
    page->write(conversion_page(report));
    page->commit();
  }
  if (!job.pictures.empty()) write_pictures(job.pictures, conversion_pictures(report));
  return report;
}

}  // namespace moe
