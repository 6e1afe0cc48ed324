#include "jobs/league.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "analyze/data/history.h"
#include "analyze/data/league_claims.h"
#include "analyze/data/routing_stats.h"
#include "analyze/pages/league_page.h"
#include "analyze/pictures/league_figures.h"
#include "analyze/texts/league_text.h"
#include "convert/carve.h"
#include "core/error.h"
#include "core/file.h"
#include "core/words.h"
#include "evaluate/speed.h"
#include "jobs/league_record.h"
#include "jobs/train_memory.h"
#include "jobs/training.h"
#include "model/cost.h"
#include "ops/devices.h"
#include "ops/ops.h"
#include "options/common.h"
#include "text/bpe_train.h"
#include "train/memory.h"
#include "train/metrics.h"
#include "train/run_lock.h"

namespace moe {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kEvaluations = 10, kSaves = 4, kLeastSave = 50;  // of a run
constexpr int64_t kLeastEvalTokens = 16384, kMostEvalTokens = 65536;
constexpr int64_t kRoutingTokens = 20'000;  // of each held-out domain

// Those of the table that draw their weights: the others are cut out of a trained model, or need
// stages.
std::vector<std::string> recipes_to_enter() {
  std::vector<std::string> names;
  for (const Recipe& r : recipes())
    if (r.name != kCustom && !is_carved(r.name)) names.emplace_back(r.name);
  return names;
}

constexpr int64_t kClockRounds = 3, kPairs = 7;  // of steps that are timed in a round

struct Texts {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<Corpus> train, held_out;
};

Texts read_texts(const LeagueOptions& o) {
  Texts out;
  out.tokenizer = choose_tokenizer(o.setup.tokenizer, o.data);
  if (o.setup.train.hold_out > 0) {
    SplitCorpus parts = Corpus::split(o.data, *out.tokenizer, o.setup.train.hold_out);
    out.train.emplace(std::move(parts.train));
    out.held_out.emplace(std::move(parts.held_out));
  } else {
    out.train.emplace(o.data, *out.tokenizer);
    out.held_out.emplace(o.eval_data, *out.tokenizer);
  }
  check_held_out(*out.held_out, o.setup.train);
  return out;
}

LeagueKey key_of(const LeagueRun& run) { return {run.arm, run.lr, run.seed}; }

std::map<LeagueKey, double> losses_of_runs(const std::vector<LeagueRun>& runs) {
  std::map<LeagueKey, double> losses;
  for (const LeagueRun& run : runs) losses[key_of(run)] = loss_of(run);
  return losses;
}

// One league, its options complete.
class LeagueRunner {
 public:
  LeagueRunner(LeagueOptions options, Given given, const LeagueWatch& watch);
  League run();

 private:
  void take_options();
  void complete_shape();
  std::vector<MatchedArm> entering() const;
  void check_arms();
  // That each arm which is still to be timed or trained fits.
  void check_memory_of_arms() const;
  // Makes the folder: only once all is read and checked, so that what is refused leaves none.
  void begin();
  // A tokenizer that has to be learned is learned once: all runs read the one in OUT, which is that
  // of the text once it is read.
  void settle_tokenizer();
  // The twin's, or what its time comes to by its clock: 0 before that is read.
  int64_t steps_of(const MatchedArm&, const std::optional<LeagueClock>&) const;
  // What an arm trains by for so many steps.
  TrainOptions training_of(const MatchedArm&, int64_t steps) const;
  int64_t tokens_of_twin() const;  // that it reads in training
  RunOptions run_options(const MatchedArm&, const LeagueKey&) const;
  // Nothing where it was stopped.
  std::optional<LeagueRun> train_one(const LeagueKey&, int64_t number, int64_t planned);
  LeagueRun measured(const LeagueKey&, Training&, const TrainSummary&) const;
  // Nats a token after the last step of a run that is done.
  double evaluated(Training&, const TrainSummary&) const;
  std::optional<LeagueRouting> routing_of(Training&) const;
  void fit_steps();
  // Of the arms that have none a clock, left in their folders. Before all runs and in rounds over
  // all arms, so that they meet the same minutes: a share of the twin's time hangs on them.
  void time_steps() const;
  void forget_models(const std::string& folder) const;
  const MatchedArm& arm(const std::string& name) const;
  std::vector<std::string> names_of_arms() const;
  LeagueMatch match() const;
  LeagueArm entered(const MatchedArm&) const;
  League write(const std::vector<LeagueRun>&, bool done) const;

  LeagueOptions options_;
  LeagueOptions asked_;  // the tokenizer as it was asked for: what is kept
  Given given_;
  const LeagueWatch& watch_;
  RunLock lock_;
  std::vector<MatchedArm> arms_;
  LeagueRules rules_;
  Texts texts_;
  std::atomic<bool> stop_ = false;
};

LeagueRunner::LeagueRunner(LeagueOptions options, Given given, const LeagueWatch& watch)
    : options_(std::move(options)), given_(std::move(given)), watch_(watch) {
  take_options();
  LeagueOptions& o = options_;
  const bool goes_on = holds_league(o.out), must_fit = !goes_on && o.setup.train.minutes > 0;
  if (goes_on) lock_.take(o.out);
  if (goes_on) arms_ = take_record(o, given_);
  else complete_shape();
  if (o.data.empty()) fail_usage("@data is missing: name a text file or a folder of them");
  if (o.eval_data.empty() == (o.setup.train.hold_out == 0))
    fail_usage(
        "the loss that counts is that of held-out text: name it with @eval_data, or keep a share "
        "of @data with @hold_out, one of the two");
  if (must_fit) leave_room_for_warmup(o.setup.train);
  validate(resolved(o.setup.train));
  ops::device_of(o.setup.train.device);  // fails where there is none
  rules_ = {o.setup.train.lr, o.rates, o.seeds, o.finalists, o.setup.train.seed};
  validate(rules_);
  if (o.times < 1) fail_usage("@times is {}; it must be at least 1", o.times);
  join(arms_, entering());
  asked_ = o;
  if (goes_on) settle_tokenizer();
  texts_ = read_texts(o);
  const LeagueText text{data_print(*texts_.train, o.setup.train.mix).hash,
                        data_print(*texts_.held_out).hash};
  check_text(o.out, text);
  check_arms();
  check_memory_of_arms();
  if (must_fit) fit_steps();
  if (!goes_on) begin();
  settle_tokenizer();
  write_record(asked_, arms_, text);
}

void LeagueRunner::take_options() {
  LeagueOptions& o = options_;
  if (o.out.empty()) fail_usage("@out is missing: name a folder for the league");
  FieldList setup = fields(o.setup);
  apply_files(setup, o.setup, given_);
  if (given_.by_caller("minutes") && given_.by_caller("steps"))
    fail_usage(
        "@minutes works out how many steps the dense twin has time for; leave @steps out, or "
        "@minutes");
  check_writable(o.out);
  check_outside(o.out, o.data, "data");
  check_outside(o.out, o.eval_data, "eval_data");
  for (std::string& path : o.data) path = absolute_path(path);
  for (std::string& path : o.eval_data) path = absolute_path(path);
  if (fs::is_directory(o.setup.tokenizer)) o.setup.tokenizer = absolute_path(o.setup.tokenizer);
}

// What is wrong with a model is said before hours are spent on others.
void LeagueRunner::check_arms() {
  const TrainOptions& t = options_.setup.train;
  for (const MatchedArm& one : arms_) {
    entered(one);
    validate(resolved(training_of(one, t.steps)));
    if (std::ranges::find(one.sets, "lr") != one.sets.end())
      rules_.middles[one.name] = one.train.lr;
  }
}

void LeagueRunner::check_memory_of_arms() const {
  const auto check = [&](const MatchedArm& one, const MatchedArm* beside) {
    const auto training = [&](const MatchedArm& of) {
      return resolved(training_of(of, options_.setup.train.steps));
    };
    const auto config = [&](const MatchedArm& of) {
      return make_config(of.wanted, texts_.tokenizer->vocab_size(), options_.setup.train.context);
    };
    check_before_weights(config(one), training(one), options_.memory);
    if (!beside) return;
    MemoryNeed need = training_need(config(one), training(one), Held::nothing);
    need.add("the dense twin that is timed beside it",
             training_need(config(*beside), training(*beside), Held::nothing).total());
    check_memory(need, options_.memory,
                 marked("lower @batch and raise @accumulate, add @recompute, or take a smaller "
                        "model or more memory"));
  };
  const std::vector<std::string> to_run =
      arms_to_run(rules_, names_of_arms(), losses_of_runs(read_runs(options_.out, arms_)));
  for (const MatchedArm& one : arms_) {
    const bool is_timed = !read_clock(options_.out, one.name);
    if (!is_timed && std::ranges::find(to_run, one.name) == to_run.end()) continue;
    check_memory_of(one.name, [&] { check(one, is_timed ? &arm(std::string(kTwin)) : nullptr); });
  }
}

void LeagueRunner::begin() {
  const std::string& out = options_.out;
  make_folder(out);
  lock_.take(out);
  if (holds_league(out)) fail("another league began in {} meanwhile; choose another @out", out);
}

void LeagueRunner::settle_tokenizer() {
  std::string& tokenizer = options_.setup.tokenizer;
  if (!tokenizer.starts_with("bpe:")) return;
  const std::string folder = options_.out + "/tokenizer";
  if (texts_.tokenizer) {
    fs::create_directories(folder);
    save_tokenizer(folder, *texts_.tokenizer);
  }
  if (fs::exists(folder + "/tokenizer.json")) tokenizer = folder;
}

// The width that works for a token is what is given, what the preset's experts have together, or
// 4 D.
void LeagueRunner::complete_shape() {
  WantedModel& m = options_.setup.model;
  if (m.architecture.empty()) m.architecture = "olmoe";
  if (!m.dense_width && m.expert_width)
    m.dense_width = *m.expert_width * m.routing.top_k.value_or(1) +
                    m.shared_experts.value_or(0) * m.shared_width.value_or(*m.expert_width);
  if (!m.dense_width) m.dense_width = 4 * m.width;
}

std::vector<MatchedArm> LeagueRunner::entering() const {
  const LeagueOptions& o = options_;
  std::vector<std::string> names = o.recipes;
  if (names.empty() && o.entries.empty() && arms_.empty()) names = recipes_to_enter();
  if (std::find(names.begin(), names.end(), kTwin) == names.end() && arms_.empty())
    names.insert(names.begin(), std::string(kTwin));
  std::vector<MatchedArm> arms;
  const auto add = [&](const std::string& name, const LeagueEntry& entry) {
    for (const MatchedArm& one : arms)
      if (one.name == name)
        fail_usage("two arms are called '{}'; name one of them otherwise", name);
    arms.push_back(match_arm(name, entry, o.setup.model, o.times));
  };
  for (const std::string& name : names) {
    LeagueEntry entry;
    entry.wanted.routing.recipe = find_recipe(name).name;
    if (name == kCustom)
      fail_usage("recipe '{}' enters by a file of its stages: name it with @entries", kCustom);
    add(name, entry);
  }
  for (const std::string& path : o.entries) {
    add(fs::path(path).stem().string(), read_entry(path));
  }
  std::stable_partition(arms.begin(), arms.end(),
                        [](const MatchedArm& one) { return one.name == kTwin; });
  return arms;
}

const MatchedArm& LeagueRunner::arm(const std::string& name) const {
  return *std::find_if(arms_.begin(), arms_.end(),
                       [&](const MatchedArm& one) { return one.name == name; });
}

std::vector<std::string> LeagueRunner::names_of_arms() const {
  std::vector<std::string> names;
  for (const MatchedArm& one : arms_) names.push_back(one.name);
  return names;
}

int64_t LeagueRunner::steps_of(const MatchedArm& one,
                               const std::optional<LeagueClock>& clock) const {
  const int64_t twin = options_.setup.train.steps;
  if (one.time == 0) return twin;
  if (!clock) return 0;
  return std::max<int64_t>(2, std::llround(static_cast<double>(twin) * one.time / clock->times));
}

int64_t LeagueRunner::tokens_of_twin() const {
  const TrainOptions& t = options_.setup.train;
  return t.steps * t.batch * t.accumulate * t.context;
}

// Where its clock says how many there are, a warm-up as long as all of them gives way.
TrainOptions LeagueRunner::training_of(const MatchedArm& one, int64_t steps) const {
  TrainOptions t = own_training(one, options_.setup.train);
  t.steps = steps;
  if (one.time > 0 && t.warmup >= steps) t.warmup.reset();
  return t;
}

RunOptions LeagueRunner::run_options(const MatchedArm& one, const LeagueKey& key) const {
  RunOptions run;
  static_cast<SetupOptions&>(run) = options_.setup;
  run.preset.clear();
  run.config.clear();
  run.model = one.wanted;
  run.data = options_.data;
  run.eval_data = options_.eval_data;
  run.out = run_folder(options_.out, key);
  run.memory = options_.memory;
  run.resume = true;
  run.train = training_of(one, steps_of(one, read_clock(options_.out, one.name)));
  TrainOptions& t = run.train;
  // The last rate is the same share of the highest one in all runs of an arm.
  if (t.min_lr) *t.min_lr *= key.lr / rules_.of(one.name).lr;
  t.lr = key.lr;
  t.seed = key.seed;
  t.minutes = 0;
  // Claims are about when a loss was reached, so that curves have points however short a run is:
  // together they read at most what three times the twin's tokens are, or about as long as its
  // steps take. All arms are judged by the same windows.
  t.eval_every = std::max<int64_t>(1, t.steps / kEvaluations);
  t.eval_tokens =
      std::clamp(3 * tokens_of_twin() / kEvaluations, kLeastEvalTokens, kMostEvalTokens);
  t.save_every = std::max(kLeastSave, t.steps / kSaves);
  return run;
}

// How many steps the twin has time for. The evaluations of a run are about as many however many
// steps it has, so they are counted as what comes after them.
void LeagueRunner::fit_steps() {
  TrainOptions& t = options_.setup.train;
  const MatchedArm& twin = arm(std::string(kTwin));
  TrainOptions o = run_options(twin, {twin.name, rules_.lr, rules_.first_seed}).train;
  o.minutes = t.minutes;
  o.eval_every = 0;
  o = resolved(o);
  Model model(make_config(twin.wanted, texts_.tokenizer->vocab_size(), o.context));
  model.initialise(o.seed);
  const Deadline deadline{steady_seconds, steady_seconds() + 60 * t.minutes,
                          (kEvaluations - 1) * evaluation_tokens(*texts_.held_out, o)};
  t.steps = fitted_steps(model, o, deadline, *texts_.train, &*texts_.held_out, nullptr, stop_);
  // a file's gives way
  if (!given_.by_caller("warmup") && t.warmup >= t.steps) t.warmup.reset();
  validate(resolved(t));
  asked_.setup.train = t;
  watch_.watch.tell(message("@minutes {:g}: the dense twin has time for {}, and so have all",
                            t.minutes, counted(t.steps, "step")));
}

// A model in training whose steps are timed.
struct Clocked {
  Model model;
  Trainer trainer;

  Clocked(const ModelConfig& config, const TrainOptions& o, const Corpus& text)
      : model(config), trainer((model.initialise(o.seed), model), o, text) {}
  double step_ms() {
    const double start = steady_seconds();
    trainer.step();
    return 1e3 * (steady_seconds() - start);
  }
};

// On the text itself, as what a recipe drops and how even it is hangs on it.
void LeagueRunner::time_steps() const {
  struct Waiting {
    const MatchedArm* arm;
    std::vector<double> own = {}, twin = {};  // ms
  };
  std::vector<Waiting> waiting;
  for (const MatchedArm& one : arms_)
    if (!read_clock(options_.out, one.name)) waiting.push_back({&one});
  if (waiting.empty()) return;
  const auto make = [&](const MatchedArm& of) {
    TrainOptions o = run_options(of, {of.name, rules_.of(of.name).lr, rules_.first_seed}).train;
    o.steps = std::max(o.steps, kPairs + 1);
    // Few steps have no room for a schedule, and take as long at any rate.
    o.warmup.reset();
    o.min_lr.reset();
    return std::make_unique<Clocked>(
        make_config(of.wanted, texts_.tokenizer->vocab_size(), o.context), resolved(o),
        *texts_.train);
  };
  const Progress progress = watch_.watch.begin();
  for (int64_t round = 0; round < kClockRounds; ++round)
    for (int64_t i = 0; i < std::ssize(waiting); ++i) {
      Waiting& one = waiting[static_cast<size_t>(i)];
      progress(round * std::ssize(waiting) + i, kClockRounds * std::ssize(waiting),
               fmt::format("clocks of a step, {}'s beside the twin's", one.arm->name));
      const auto own = make(*one.arm), twin = make(arm(std::string(kTwin)));
      own->trainer.step();
      twin->trainer.step();
      for (int64_t pair = 0; pair < kPairs; ++pair) {
        if (watch_.watch.stopped()) return;
        one.own.push_back(own->step_ms());
        one.twin.push_back(twin->step_ms());
      }
    }
  for (const Waiting& one : waiting)
    write_clock(options_.out, one.arm->name,
                {median(one.own), median(one.twin), median_ratio(one.own, one.twin)});
}

std::optional<LeagueRouting> LeagueRunner::routing_of(Training& training) const {
  Model& model = training.model();
  if (model.config().moe_layer_count() == 0) return {};
  Run run(training.options().threads, training.options().dtype);
  const RoutingReport report = routing_report(model, run, training.tokenizer(), *texts_.held_out,
                                              {.tokens = kRoutingTokens});
  LeagueRouting out;
  double domain = 0;
  const auto layers = static_cast<double>(report.moe_layers.size());
  for (const LayerStats& layer : report.moe_layers) {
    const auto experts = static_cast<double>(layer.counts.size());
    out.max_vio += layer.max_vio / layers;
    out.effective_experts += layer.effective_experts / experts / layers;
    out.dead += layer.dead;
    out.experts += std::ssize(layer.counts);
    out.vocabulary += layer.vocabulary_input.value_or(0) / layers;
    const double even = static_cast<double>(report.top_k) / experts;
    if (!layer.domain.at.empty())
      domain += *std::max_element(layer.domain.at.begin(), layer.domain.at.end()) / even / layers;
  }
  if (report.domains.size() > 1) out.domain = domain;
  return out;
}

LeagueRun LeagueRunner::measured(const LeagueKey& key, Training& training,
                                 const TrainSummary& summary) const {
  LeagueRun run{.arm = key.arm, .lr = key.lr, .seed = key.seed, .steps = training.options().steps};
  const TrainingHistory history = read_history(training.out()).value();
  const double bytes_a_token =
      static_cast<double>(texts_.held_out->bytes()) / static_cast<double>(texts_.held_out->size());
  for (const auto& [step, ce] : history.eval_ce) run.curve.emplace_back(step, ce / bytes_a_token);
  // A kill may have lost the line of the last step.
  if (run.curve.empty() || run.curve.back().first < run.steps)
    run.curve.emplace_back(run.steps, evaluated(training, summary) / bytes_a_token);
  run.loss = run.curve.back().second;
  run.seconds = summary.last.seconds;
  double points = 0;
  for (const HistoryPoint& p : history.points) {
    if (10 * p.step < 9 * run.steps || p.max_vio.empty()) continue;
    ++points;
    for (size_t l = 0; l < p.max_vio.size(); ++l) {
      run.max_vio += p.max_vio[l] / static_cast<double>(p.max_vio.size());
      run.dropped += p.dropped[l] / static_cast<double>(p.dropped.size());
    }
  }
  if (points > 0) run.max_vio /= points, run.dropped /= points;
  run.routing = routing_of(training);
  return run;
}

double LeagueRunner::evaluated(Training& training, const TrainSummary& summary) const {
  Trainer trainer(training.model(), training.options(), *texts_.train);
  trainer.resume_at(summary.last.step, summary.last.seconds);
  return trainer.evaluate(*texts_.held_out);
}

void LeagueRunner::forget_models(const std::string& folder) const {
  if (options_.keep_models) return;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name != "metrics.jsonl" && name != "result.json") fs::remove_all(entry.path());
  }
}

std::optional<LeagueRun> LeagueRunner::train_one(const LeagueKey& key, int64_t number,
                                                 int64_t planned) {
  if (watch_.on_begin) watch_.on_begin(key, number, planned);
  Given given;
  for (const char* name : {"lr", "steps", "seed", "recipe", "data", "out"})
    given.add(name, GivenBy::caller);
  if (!options_.eval_data.empty()) given.add("eval_data", GivenBy::caller);
  const RunOptions options = run_options(arm(key.arm), key);
  LeagueRun run{.arm = key.arm, .lr = key.lr, .seed = key.seed, .steps = options.train.steps};
  try {
    Training training(options, given);
    TrainSummary summary;
    if (training.is_done()) {
      summary = training.done();
    } else {
      const Progress progress = watch_.watch.begin();
      TrainCallbacks callbacks;
      callbacks.on_step = [&](const StepResult& r) {
        progress(r.step, r.steps, fmt::format("steps of {}, {}", key.arm, described_ce(r.ce)));
        if (watch_.watch.stopped()) stop_ = true;
      };
      summary = training.run(callbacks, stop_);
      if (summary.interrupted) return {};
    }
    run = measured(key, training, summary);
  } catch (const DivergedError& e) {
    run.diverged = spelled(e.marked());
  }
  fs::create_directories(options.out);
  write_run(options.out, run);
  forget_models(options.out);
  if (watch_.on_done) watch_.on_done(run);
  return run;
}

LeagueArm LeagueRunner::entered(const MatchedArm& one) const {
  const ModelConfig c =
      make_config(one.wanted, texts_.tokenizer->vocab_size(), options_.setup.train.context);
  const Recipe& recipe = find_recipe(c.routing.recipe);
  LeagueArm out{.name = one.name,
                .recipe = c.routing.recipe,
                .source = std::string(recipe.source),
                .title = std::string(recipe.title),
                .not_causal = ""};
  const bool routed = c.moe_layer_count() > 0;
  if (routed) out.not_causal = not_causal_because(c.routing, default_eval(c.routing));
  out.experts = c.routing.experts;
  out.top_k = c.routing.top_k;
  out.expert_width = routed ? c.expert_width : c.dense_width;
  out.shared_experts = routed ? c.shared_experts : 0;
  out.shared_width = routed ? c.shared_width : 0;
  const ParamCount params = count_params(c);
  out.time = one.time;
  if (one.time > 0) out.own = own_settings(one, options_.setup.model);
  out.parameters = params.total();
  out.active_parameters = params.active();
  out.clock = read_clock(options_.out, one.name);
  out.steps = steps_of(one, out.clock);
  return out;
}

LeagueMatch LeagueRunner::match() const {
  const LeagueOptions& o = asked_;
  const WantedModel& m = o.setup.model;
  TrainOptions t = resolved(options_.setup.train);
  const auto text = [](const std::vector<std::string>& paths, const Corpus& corpus) {
    std::vector<std::string> names;
    for (const std::string& path : paths) names.push_back(fs::path(path).filename().string());
    return fmt::format("{}: {} tokens", fmt::join(names, ", "),
                       human_count(static_cast<double>(corpus.size())));
  };
  FieldList list = fields(t);
  LeagueMatch out;
  out.shape =
      fmt::format("{} of width {}, {}, the parts of {}, context {}", counted(m.layers, "layer"),
                  m.width, counted(m.heads, "head"), m.architecture, t.context);
  out.text = text(o.data, *texts_.train);
  out.held_out = t.hold_out > 0 ? fmt::format("{:g} of the documents of it", t.hold_out)
                                : text(o.eval_data, *texts_.held_out);
  out.tokenizer = o.setup.tokenizer;
  out.schedule = fmt::format(
      "{}, {}, warm-up of {}, weight decay {:g}, products in {}",
      list.at("optimizer").get().get<std::string>(), list.at("schedule").get().get<std::string>(),
      counted(t.warmup.value_or(0), "step"), t.weight_decay, name_of(t.dtype));
  out.machine =
      fmt::format("{}, kernels {}", counted(thread_count(t.threads), "thread"), ops::isa_name());
  out.active_width = m.dense_width.value();
  out.steps = t.steps;
  out.step_tokens = t.batch * t.accumulate * t.context;
  out.rates = o.rates, out.seeds = o.seeds, out.finalists = o.finalists;
  out.minutes = t.minutes;
  return out;
}

League LeagueRunner::write(const std::vector<LeagueRun>& runs, bool done) const {
  std::vector<LeagueArm> arms;
  for (const MatchedArm& one : arms_) arms.push_back(entered(one));
  League league = make_league(match(), arms, runs, rules_.first_seed);
  league.done = done;
  write_atomically(options_.out + "/league.json", to_json(league).dump(1) + "\n");
  write_atomically(options_.out + "/league.md", league_text(league));
  write_atomically(options_.out + "/league.html", league_page(league));
  write_atomically(options_.out + "/league.svg", league_picture(league));
  return league;
}

League LeagueRunner::run() {
  std::vector<LeagueRun> runs = read_runs(options_.out, arms_);
  const std::vector<std::string> names = names_of_arms();
  std::map<LeagueKey, double> losses = losses_of_runs(runs);
  time_steps();
  while (const auto key = next_run(rules_, names, losses)) {
    if (watch_.watch.stopped()) return write(runs, false);
    const auto run = train_one(*key, std::ssize(losses) + 1, planned_runs(rules_, names, losses));
    if (!run) return write(runs, false);
    runs.push_back(*run);
    losses[key_of(*run)] = loss_of(*run);
    write(runs, false);
  }
  return write(runs, true);
}

}  // namespace

FieldList fields(LeagueOptions& o) {
  FieldList list, setup = fields(o.setup), train = fields(o.setup.train);
  list.add("data", o.data,
           "what all arms are trained on, in the same batches: text files or folders of them")
      .path();
  list.add("eval_data", o.eval_data, "held-out text, whose loss counts, as @data").path();
  list.add(train.take({"hold_out"}));
  list.add("out", o.out,
           "folder of the league: a folder for each run, league.html, league.md, league.json, "
           "league.svg. One that holds a league goes on with it, and nothing else need be given")
      .path();
  list.add(
          "recipes", o.recipes,
          "the arms, beside the dense twin; default: every recipe of `moe recipes` that is trained "
          "from drawn weights")
      .values(recipes_to_enter());
  list.add(
          "entries", o.entries,
          "arms of your own: JSON files of stages (docs/recipes.md), or of Routing options as `moe "
          "train @config` takes them, {\"stages\": {...}, \"top_k\": 4} or {\"recipe\": "
          "\"olmoe\", \"norm_topk_prob\": true}; an arm is called as its file, and is matched as "
          "the others are. With a \"time\", as in {\"time\": 0.5, \"recipe\": \"mixtral\", "
          "\"experts\": 32}, it trains for that share of the dense twin's time instead, and may "
          "set other options of Model and Training too (docs/league.md)")
      .path();
  FieldList minutes = train.take({"minutes"});
  minutes.at("minutes").help = marked(
      "in place of @steps: as many as the dense twin has time for, measured at the start; the "
      "others take as many steps, in their own time");
  minutes.at("minutes").group.clear();
  list.add(std::move(minutes));
  list.add("rates", o.rates,
           "learning rates of each arm, factors of 2 around @lr; where the best is at an end, more "
           "are tried on that side; 1: @lr alone");
  list.add("seeds", o.seeds, "seeds of the dense twin and the finalists, from @seed on");
  list.add("finalists", o.finalists, "arms of the lowest loss that are run with all seeds");
  list.add("times", o.times, "FFNs of the dense twin that the experts of an arm hold together");
  list.add("keep_models", o.keep_models,
           "keep the weights of runs that are done, else only their figures stay");
  list.add(setup.take({"preset", "config", "tokenizer"}));
  FieldList model = shape_fields(o.setup.model);
  model.at("dense_width").help =
      "W: the FFN width that works for a token in every arm; default: what the preset's experts "
      "have together, or 4 D";
  model.at("architecture").help =
      "parts beside the routing, the same for all: gpt2, llama, olmoe; default: olmoe";
  list.add(std::move(model));
  FieldList training = setup.in_group("Training");
  training.take({"expert_parallel", "replans"});
  training.at("lr").help = "the learning rate in the middle";
  training.at("seed").help = "the first seed, of weights, noise and the order of the data";
  list.add(std::move(training));
  list.group("");
  add_memory_limits(list, o.memory, false);
  return list;
}

League run_league(LeagueOptions options, Given given, const LeagueWatch& watch) {
  return LeagueRunner(std::move(options), std::move(given), watch).run();
}

}  // namespace moe
