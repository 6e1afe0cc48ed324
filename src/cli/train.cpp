#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/among.h"
#include "cli/flags.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/json.h"
#include "core/threads.h"
#include "core/words.h"
#include "jobs/forward_memory.h"
#include "jobs/inspect_text.h"
#include "jobs/replies.h"
#include "jobs/samples.h"
#include "model/cost.h"
#include "ops/ops.h"
#include "train/alarms.h"
#include "train/metrics.h"

namespace moe::cli {
namespace {

constexpr double kPeakSeconds = 0.3;

struct Flags {
  RunOptions run;
  SampleOptions samples;
  bool show_memory = false, no_report = false, json = false, elastic = false;
  Given given;
};

// What processes that are left of a run must know of it to go on.
struct Shape {
  int64_t micro_batches = 0, expert_parallel = 1;
  comm::Remnant of(int left) const { return comm::remnant(left, micro_batches, expert_parallel); }
};

std::string describe_pairs(const PairFigures& pairs) {
  return fmt::format("{:.4f}, margin {:.3f}, accuracy {:.0f}%", pairs.loss, pairs.margin,
                     100 * pairs.accuracy);
}

std::string describe_evaluation(const Evaluation& found) {
  return found.pairs ? fmt::format("dpo {}", describe_pairs(*found.pairs))
                     : fmt::format("ce {:.4f} nats per token", found.ce);
}

// The figures behind the progress bar, what matters most first. CE stands apart from the auxiliary
// losses, which are not part of it.
std::vector<std::string> describe_step(const StepResult& r, PeakShare& peak, bool routed) {
  std::vector<std::string> parts = {
      r.pairs ? fmt::format("dpo {}", describe_pairs(*r.pairs)) : described_ce(r.ce),
      fmt::format("{} left", human_seconds(r.seconds_left)),
      fmt::format("{} tok/s", human_count(r.tokens_per_second))};
  if (r.pairs) parts.push_back(described_ce(r.ce));
  if (r.kl && !std::isnan(*r.kl)) parts.push_back(fmt::format("kl {:.3f}", *r.kl));
  constexpr double kSlow = 1.3;
  if (r.exchange && r.exchange->lag > kSlow)
    parts.push_back(
        fmt::format("process {} is {:.1f}x slow", r.exchange->slowest, r.exchange->lag));
  if (r.exchange) parts.push_back(fmt::format("exchange {:.0f}%", 100 * r.exchange->share));
  if (r.exchange && r.exchange->hidden > 0)
    parts.push_back(fmt::format("hidden {:.0f}%", 100 * r.exchange->hidden));
  if (routed) parts.push_back(fmt::format("MaxVio {:.2f}", r.max_vio));
  if (routed) parts.push_back(fmt::format("dropped {:.1f}%", 100 * r.dropped));
  each_loss(r, [&](const char* name, double x) {
    if (x != 0) parts.push_back(fmt::format("{} {:.2f}", name, x));
  });
  parts.push_back(peak.describe(r.flops_per_second));
  return parts;
}

// Who shares the work, where there are several.
void describe_processes(ProgressLine& screen, const comm::Layout& layout) {
  const int processes = layout.all().size, spread = layout.experts().size;
  if (processes == 1) return;
  screen.log(fmt::format("processes: {}; {}", processes,
                         spread == 1 ? "each has the whole model"
                         : spread == processes
                             ? "each layer's experts are spread over them"
                             : fmt::format("{} copies of the experts, each spread over {}",
                                           processes / spread, spread)));
}

// `windows` of an epoch, with a mix.
std::string describe_text_steps(const Corpus& corpus, int64_t windows, const TrainOptions& o) {
  const int64_t tokens = o.steps * o.batch * o.accumulate * o.context;
  return fmt::format(
      "run: {} of {} tokens, {} tokens in all ({:.2f} passes over the data), {}, {}",
      counted(o.steps, "step"), o.batch * o.accumulate * o.context,
      human_count(static_cast<double>(tokens)),
      static_cast<double>(tokens) /
          static_cast<double>(changes_anything(o.mix) ? windows * o.context : corpus.size()),
      name_of(o.dtype), counted(o.threads, "thread"));
}

std::string describe_pair_steps(const Corpus& corpus, const TrainOptions& o) {
  const int64_t pairs = o.steps * o.batch * o.accumulate,
                all = PairIndex(corpus, o.context).count();
  return fmt::format("run: {} of {}, {} in all ({:.2f} passes over the data), beta {}, {}, {}",
                     counted(o.steps, "step"), counted(o.batch * o.accumulate, "pair"), pairs,
                     static_cast<double>(pairs) / static_cast<double>(all), o.dpo_beta,
                     name_of(o.dtype), counted(o.threads, "thread"));
}

// Which pairs there are, and whose reference they are held to.
void describe_pairs(ProgressLine& screen, const Training& training) {
  const int64_t context = training.options().context;
  const std::string& teacher = training.teacher_path();
  screen.log(fmt::format("data: {} (chosen, rejected), held to {}",
                         counted(training.corpus().pairs(), "preference pair"),
                         teacher.empty() ? "the model as the run starts from it" : teacher));
  for (const Corpus* text : {&training.corpus(), training.held_out()}) {
    const int64_t left_out = text == nullptr ? 0 : PairIndex(*text, context).left_out();
    if (left_out > 0)
      screen.log(
          fmt::format("data: {} left out, as a text has more than {} tokens (--context {})",
                      counted(left_out, text == training.held_out() ? "held-out pair" : "pair"),
                      context + 1, context));
  }
}

void describe_run(ProgressLine& screen, const Model& model, const Corpus& corpus,
                  const Corpus* held_out, const Tokenizer& tokenizer, const TrainOptions& o) {
  const ModelConfig& c = model.config();
  const ModelCost cost = count_cost(c, o.context);
  const std::vector<DomainShare> shares = domain_shares(corpus, o.context, o.mix);
  std::vector<std::string> domains, visits;
  int64_t windows = 0;
  for (const DomainShare& share : shares) {
    domains.push_back(share.name);
    if (share.visits != share.windows)
      visits.push_back(
          fmt::format("{} {} windows for {}", share.name, share.visits, share.windows));
    windows += share.visits;
  }
  const std::string shown = domains.size() <= 8 ? fmt::format("{}", fmt::join(domains, ", "))
                                                : fmt::format("{} domains", domains.size());
  const auto data_tokens = static_cast<double>(corpus.size());
  screen.log(fmt::format("data: {} tokens in {} ({})", human_count(data_tokens),
                         counted(corpus.documents(), "document"), shown));
  if (changes_anything(o.mix))
    screen.log(fmt::format(
        "data: an epoch visits {}{}{}", fmt::join(visits, ", "),
        visits.empty() || visits.size() == shares.size() ? "" : ", and of the other domains ",
        visits.size() == shares.size() ? "" : "each window once"));
  if (corpus.untrained() > 0)
    screen.log(fmt::format("data: {:.1f}% of the tokens are learned from",
                           100 * (1 - static_cast<double>(corpus.untrained()) / data_tokens)));
  if (held_out)
    screen.log(fmt::format("data: {} tokens in {} are held out",
                           human_count(static_cast<double>(held_out->size())),
                           counted(held_out->documents(), "document")));
  for (const std::string& line : describe(corpus.skipped())) screen.log("data: " + line);
  if (!tokenizer.ids_are_bytes())
    screen.log(fmt::format(
        "tokenizer: {}, {} entries, {:.2f} bytes a token", tokenizer.spec(), tokenizer.vocab_size(),
        static_cast<double>(corpus.bytes()) / static_cast<double>(corpus.size())));
  screen.log(fmt::format("model: {} parameters, {} active for a token; recipe {}",
                         human_count(static_cast<double>(cost.params.total())),
                         human_count(static_cast<double>(cost.params.active())), c.routing.recipe));
  screen.log(o.pairs ? describe_pair_steps(corpus, o) : describe_text_steps(corpus, windows, o));
  if (o.dtype == DType::bf16 && !ops::has_bf16_products())
    screen.log(
        "note: this processor has no bf16 products; they run in f32 and bf16 only saves memory");
}

// Which experts are trained, and what part of the rows is theirs.
std::string describe_hot(const Model& model, const TrainOptions& o) {
  int64_t experts = 0;
  double rows = 0;
  size_t least = o.hot.front().experts.size(), most = least;
  for (const HotLayer& hot : o.hot) {
    experts += static_cast<int64_t>(hot.experts.size());
    least = std::min(least, hot.experts.size());
    most = std::max(most, hot.experts.size());
    rows += hot.share / static_cast<double>(o.hot.size());
  }
  return fmt::format(
      "hot experts: {} of {}, {} a layer; they get {:.1f}% of the rows of this text, the others "
      "stay as they are",
      experts, model.config().routing.experts * model.config().moe_layer_count(),
      least == most ? fmt::format("{}", least) : fmt::format("{} to {}", least, most), 100 * rows);
}

// What is trained, where it is not simply everything of a new model.
void describe_tuning(ProgressLine& screen, Training& training) {
  const TrainOptions& o = training.options();
  if (training.teacher() && !o.pairs)
    screen.log(fmt::format("teacher: {}; the loss is {:.3g} ce + {:.3g} kl",
                           training.teacher_path(), 1 - o.teacher_weight, o.teacher_weight));
  if (o.tune == Tune::all && !training.from_weights()) return;
  int64_t total = 0, trained = 0;
  std::vector<std::string> parts;
  for (const TrainedPart& part : trained_parts(training.model(), o)) {
    total += part.total;
    trained += part.trained;
    const auto share = 100 * static_cast<double>(part.trained) / static_cast<double>(part.total);
    parts.push_back(
        part.trained == 0 ? fmt::format("{} none", part.name)
        : part.trained == part.total
            ? fmt::format("{} all {}", part.name, human_count(static_cast<double>(part.total)))
            : fmt::format("{} {} on {} ({:.2f}%)", part.name,
                          human_count(static_cast<double>(part.trained)),
                          human_count(static_cast<double>(part.total)), share));
  }
  screen.log(fmt::format(
      "trained (--tune {}): {} of {} numbers, {:.2f}%: {}", name_of(o.tune),
      human_count(static_cast<double>(trained)), human_count(static_cast<double>(total)),
      100 * static_cast<double>(trained) / static_cast<double>(total), fmt::join(parts, ", ")));
  if (o.tune == Tune::all && training.takes_default_rate() && !training.resumed_from())
    screen.log(
        fmt::format("note: --lr {:g} is the default, made for drawn weights; trained ones want "
                    "some {}",
                    o.lr, o.pairs ? "1e-6 to 1e-5" : "3e-5 to 3e-4"));
  if (o.tune == Tune::experts_hot) screen.log(describe_hot(training.model(), o));
  if (!tunes_whole(o.tune, Part::router) && training.model().config().moe_layer_count() > 0)
    screen.log(
        "routers stay as they are, their biases too: experts keep the tokens that they know "
        "(--tune lora+router moves them)");
}

void describe_resumed(ProgressLine& screen, const Training& training) {
  if (!training.resumed_from()) return;
  const std::string steps = counted(training.options().steps, "step");
  screen.log(fmt::format("resuming {} at step {}{}", training.out(), *training.resumed_from(),
                         training.passes_over_minutes()
                             ? fmt::format("; it keeps its {}, whatever --minutes says", steps)
                             : ""));
}

// Which weights are the best ones, where they are not the last.
void describe_best(ProgressLine& screen, const Training& training, const TrainSummary& summary) {
  if (!summary.best) return;
  const std::string lowest =
      fmt::format("lowest held-out {}: {:.4f} at step {}", training.options().pairs ? "dpo" : "ce",
                  summary.best->loss, summary.best->step);
  const bool is_last = summary.best->step == summary.last.step;
  const std::string folder = best_folder(training.out());
  if (saved_step(folder) == summary.best->step)
    screen.log(fmt::format("{}; those weights are in {}", lowest, folder));
  else if (training.options().keep_best)
    screen.log(fmt::format("{}; those weights were not kept, as --keep-best came later", lowest));
  else if (!is_last && !summary.interrupted)
    screen.log(fmt::format("{}, not at the end; with --keep-best those weights would be in {}",
                           lowest, folder));
}

// How it ended, what was noticed on the way, and which weights are the best.
void describe_end(ProgressLine& screen, const Training& training, const TrainSummary& summary,
                  int processes) {
  const std::string_view made = tunes_adapters(training.options().tune) ? "adapter" : "model";
  if (summary.interrupted && summary.last.step == summary.last.steps)
    screen.log(fmt::format(
        "interrupted in the last evaluation: all {} are done; the {} is in {}; `moe train --resume "
        "--out {}` takes the evaluation",
        counted(summary.last.step, "step"), made, training.out(), training.out()));
  else if (summary.interrupted)
    screen.log(
        fmt::format("interrupted: step {} is saved in {}; `moe train --resume --out {}` goes on{}",
                    summary.last.step, training.out(), training.out(),
                    processes > 1 ? ", in any number of processes" : ""));
  else
    screen.log(
        fmt::format("done: {} in {}, {} tokens a second; the {} is in {}",
                    counted(summary.last.step, "step"), human_seconds(summary.last.seconds),
                    human_count(static_cast<double>(summary.last.tokens) / summary.last.seconds),
                    made, training.out()));
  if (summary.alarms > 0)
    screen.log(fmt::format("{} on the way, kept in {}/metrics.jsonl",
                           counted(summary.alarms, "alarm"), training.out()));
  describe_best(screen, training, summary);
}

// The report's path. A run is done without it, so what keeps it from being written is only said.
std::optional<std::string> leave_report(ProgressLine& screen, Training& training,
                                        const std::atomic<bool>& stop) {
  const TrainOptions& o = training.options();
  const Corpus& texts = training.held_out() ? *training.held_out() : training.corpus();
  if (training.layout().is_spread()) {
    screen.log(fmt::format(
        "no report, as the experts lie on {} processes; `moe inspect {} --text FILE --html "
        "{}/report.html` makes one",
        training.layout().experts().size, training.out(), training.out()));
    return std::nullopt;
  }
  try {
    std::string path =
        write_report(training.model(), training.tokenizer(), texts, o.context, training.out(),
                     o.threads, o.dtype, [&](int64_t done, int64_t total) {
                       if (stop)
                         fail(
                             "interrupted after {} of {} windows; `moe inspect {} "
                             "--text FILE --html {}/report.html` makes one",
                             done, total, training.out(), training.out());
                       screen.show(done, total, "windows for the report");
                     });
    screen.log(
        fmt::format("report: {} (a page for the browser: curves, loads, who works on what)", path));
    return path;
  } catch (const std::exception& e) {
    screen.log(fmt::format("no report: {}", e.what()));
    return std::nullopt;
  }
}

void check_elastic(const comm::World& world) {
  if (world.group().size == 1)
    fail_usage("@elastic is for several processes; start them with mpirun --with-ft ulfm");
  if (!world.can_heal())
    fail_usage(
        "@elastic needs processes that go on when one is lost: Open MPI 5 or later, with which the "
        "command was built too, started by mpirun --with-ft ulfm");
}

// What is left of a call for another one, which goes on where it lost a process.
struct Left {
  std::optional<Shape> shape;
  RunLock lock;
};

int run_train(const Flags& f, const comm::World& world, Left& left) {
  std::optional<Shape>& shape = left.shape;
  const comm::Group& group = world.group();
  RunOptions asked = f.run;
  Given given = f.given;
  if (shape) {
    asked.resume = true;
    asked.train.expert_parallel = shape->of(group.size).expert_parallel;
    given.add("expert_parallel", GivenBy::caller);
  } else if (f.elastic) {
    comm::alike(group, [&] { check_elastic(world); });
  }
  if (asked.train.threads == 0 && group.size > 1) asked.train.threads = world.threads();
  share_memory(asked.memory, world);
  Training training(asked, given, group, on_screen(), &left.lock);
  const TrainOptions& options = training.options();
  if (f.elastic && !shape) shape = Shape{options.accumulate, options.expert_parallel};
  if (training.is_done()) {
    tell("{} is trained already: step {} of {}\n", training.out(), options.steps, options.steps);
    if (f.json) print_json(train_reply(training, training.done()));
    return 0;
  }
  const std::atomic<bool>& stop = watch_interrupts();
  std::optional<TrainingSamples> samples;
  comm::alike(group, [&] { samples.emplace(f.samples, training, stop); });
  ProgressLine screen;
  if (training.must_fit()) {
    screen.log("measuring how long a step takes");
    const Corpus& texts = training.held_out() ? *training.held_out() : training.corpus();
    training.fit(f.no_report ? 0 : report_tokens(texts, options.context), stop);
    screen.log(fmt::format("--minutes {:g}: there is time for {}", options.minutes,
                           counted(options.steps, "step")));
  }
  if (f.show_memory) screen.log("memory: " + training.estimated_memory());
  if (options.pairs) describe_pairs(screen, training);
  describe_run(screen, training.model(), training.corpus(), training.held_out(),
               training.tokenizer(), options);
  describe_tuning(screen, training);
  describe_processes(screen, training.layout());
  describe_resumed(screen, training);
  Run probe(options.threads);
  PeakShare peak(ops::measure_peak_flops(probe, options.dtype, kPeakSeconds));
  const bool routed = training.model().config().moe_layer_count() > 0;

  TrainCallbacks callbacks;
  callbacks.on_step = [&](const StepResult& r) {
    screen.show(r.step, r.steps, describe_step(r, peak, routed));
    if (training.layout().is_of_first_copy())
      samples->after_step(r.step, [&](const std::string& line) { screen.log(line); });
  };
  callbacks.on_eval = [&](int64_t step, const Evaluation& held_out) {
    screen.log(fmt::format("step {}: held-out {}", step, describe_evaluation(held_out)));
  };
  callbacks.on_alarm = [&](const Alarm& a) {
    screen.log(fmt::format("{}: step {}: {}", a.recovered ? "recovered" : "alarm", a.step, a.text));
  };
  callbacks.spell = flag_of;
  callbacks.on_log = [&](const std::string& line) { screen.log(line); };
  const TrainSummary summary = training.run(callbacks, stop);
  describe_end(screen, training, summary, group.size);
  std::optional<std::string> report;
  if (!summary.interrupted && !f.no_report && group.is_first())
    report = leave_report(screen, training, stop);
  if (f.json) {
    Json reply = train_reply(training, summary);
    if (report) reply["report"] = *report;
    print_json(reply);
  }
  return group.any(stop) ? kInterrupted : 0;
}

}  // namespace

Action add_train(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list = fields(f->run);
  add_show_memory(list, f->show_memory);
  list.add(fields(f->samples));
  list.add("no_report", f->no_report,
           "do not look at the routing when done; else OUT/report.html shows the run and what the "
           "experts specialise in");
  list.add("json", f->json, "one JSON object on standard output at the end");
  list.add("elastic", f->elastic,
           "under mpirun --with-ft ulfm: when a process is lost, go on from the last checkpoint "
           "with those that are left (docs/cluster.md)");
  add_flags(app, std::move(list), f->given);
  return [f] {
    Left left;
    Usable usable;
    if (f->elastic)
      usable = [&](int processes) {
        return left.shape ? left.shape->of(processes).processes : processes;
      };
    return run_among([&](const comm::World& world) { return run_train(*f, world, left); }, usable);
  };
}

}  // namespace moe::cli
