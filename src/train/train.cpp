// The loop of a run: steps, evaluations, metrics, checkpoints.
#include <cmath>
#include <limits>

#include "core/error.h"
#include "train/alarms.h"
#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/pace.h"
#include "train/run_lock.h"
#include "train/schedule.h"
#include "train/step_lines.h"
#include "train/trainer.h"

namespace moe {
namespace {

template <class... Args>
void tell(const std::function<void(Args...)>& callback, std::type_identity_t<Args>... args) {
  if (callback) callback(args...);
}

// steps: far more than any running figure of the watcher reaches back
constexpr int64_t kRemembered = 1000;

// A resumed run is watched as if it had never stopped: what is usual for it and which alarms are on
// are learned again from its metrics.
void remember(Watcher& watcher, const std::string& metrics) {
  each_last_line(metrics, kRemembered, [&](std::string_view line) {
    if (const std::optional<StepResult> step = parse_metrics_line(line, metrics))
      watcher.feed(*step);
  });
}

struct Saver {
  const TrainJob& job;
  const TrainCallbacks& callbacks;
  const RunFiles& files;
  StepLines* metrics;  // null but for the process that writes

  // Each is called by all processes.
  void save(Trainer& trainer) const {
    if (metrics) metrics->sync();
    save_checkpoint(job.out, trainer, trainer.model(), *job.tokenizer, files);
    tell(callbacks.on_save, trainer.steps_done(), job.out);
  }
  // A model folder of its own, replaced as a whole.
  void save_best(Trainer& trainer, const BestEvaluation& best) const {
    if (!job.layout.is_of_first_copy()) return;
    const std::string folder = best_folder(job.out);
    if (metrics) make_folder(folder);
    save_tuned(folder, trainer, trainer.model(), *job.tokenizer, files.from,
               {{"step", std::to_string(best.step)},
                {trainer.options().pairs ? "eval_dpo" : "eval_ce", fmt::format("{}", best.loss)}});
  }
  // A checkpoint of its own, for runs that go on from it.
  void save_stable(Trainer& trainer) const {
    const std::string folder = stable_folder(job.out);
    if (metrics) make_folder(folder);
    save_checkpoint(folder, trainer, trainer.model(), *job.tokenizer, files);
  }
  // The start of the run: a model folder of its own where other programs may start from too, and
  // OUT itself, so that a full disk or a folder that cannot be written is found before the first
  // step.
  void save_start(Trainer& trainer) const {
    if (trainer.options().save_every > 0 && job.layout.is_of_first_copy()) {
      const std::string folder = job.out + "/checkpoint-0";
      if (metrics) make_folder(folder);
      save_tuned(folder, trainer, trainer.model(), *job.tokenizer, files.from, {{"step", "0"}});
    }
    save(trainer);
  }
};

// From a trainer that is ready to the end of its run.
class Loop {
 public:
  Loop(const TrainJob& job, const TrainCallbacks& callbacks, const std::atomic<bool>& stop,
       Trainer& trainer, Watcher& watcher, const Saver& saver)
      : job_(job),
        callbacks_(callbacks),
        stop_(stop),
        trainer_(trainer),
        watcher_(watcher),
        saver_(saver),
        group_(job.layout.all()),
        now_(job.deadline ? job.deadline->now : steady_seconds),
        pace_(trainer.options(),
              job.held_out ? evaluation_tokens(*job.held_out, trainer.options()) : 0,
              job.deadline ? job.deadline->afterwards : 0),
        told_steps_(trainer.options().steps) {}

  // `owes_evaluation`: the evaluation of the step that it goes on from was stopped. It may be all
  // that the run still has to do.
  TrainSummary run(std::optional<BestEvaluation> best, bool owes_evaluation) {
    summary_.best = best;
    keep_stable();  // a run that was killed before it had
    if (owes_evaluation) make_up();
    over_ = over_ || is_finished();
    while (!over_) {
      step();
      const bool finished = is_finished();
      const std::optional<Evaluation> eval = evaluate(finished);
      record(eval);
      const bool evaluation_lost = finished && job_.held_out && !eval;
      summary_.interrupted = group_.any(stop_) && (!finished || evaluation_lost);
      over_ = finished || summary_.interrupted;
      if (over_ || is_due(options().save_every))
        pace_.took_save(timed([&] { saver_.save(trainer_); }));
      if (!over_ && job_.deadline) keep_to(*job_.deadline);
      keep_stable();
    }
    return summary_;
  }

 private:
  const TrainOptions& options() const { return trainer_.options(); }
  bool is_finished() const { return trainer_.steps_done() == options().steps; }
  bool is_due(int64_t every) const { return every > 0 && trainer_.steps_done() % every == 0; }
  double timed(const std::function<void()>& work) const {
    const double start = now_();
    work();
    return now_() - start;
  }

  void step() {
    pace_.took_step(timed([&] { summary_.last = trainer_.step(); }));
    summary_.last.seconds_left = pace_.seconds_left(options(), trainer_.steps_done());
    pace_.took_other(timed([&] { tell(callbacks_.on_step, summary_.last); }));
  }

  // After the last stable step, whether the run is stopped there or not. A new plan may make it the
  // last one.
  void keep_stable() {
    const int64_t done = trainer_.steps_done();
    if (options().keep_stable && done < options().steps && done == stable_until(options()))
      pace_.took_save(timed([&] { saver_.save_stable(trainer_); }));
  }

  // The line of its step is there already.
  void make_up() {
    StepResult& last = summary_.last;
    last.step = trainer_.steps_done();
    last.steps = options().steps;
    last.tokens = trainer_.tokens_seen();
    last.seconds = trainer_.seconds();
    last.ce = std::numeric_limits<double>::quiet_NaN();  // of the session before
    const std::optional<Evaluation> eval = take_evaluation();
    summary_.interrupted = over_ = !eval;  // what OUT holds is that step still
    if (!eval || saver_.metrics == nullptr) return;
    tell(callbacks_.on_metrics, saver_.metrics->change_last([&](std::string_view line) {
      return with_evaluation(line, *eval, job_.out);
    }));
  }

  // Nothing where none is due, or it was interrupted.
  std::optional<Evaluation> evaluate(bool finished) {
    // Where the steps were fitted again, the last one may have been made a few steps ago by the
    // earlier count.
    const bool is_fresh = 2 * (trainer_.steps_done() - evaluated_at_) < *options().eval_every;
    const bool is_wanted = finished || (is_due(*options().eval_every) && !is_fresh);
    return job_.held_out && is_wanted ? take_evaluation() : std::nullopt;
  }

  // Nothing where it was interrupted.
  std::optional<Evaluation> take_evaluation() {
    std::optional<Evaluation> found;
    const double seconds = timed([&] { found = trainer_.evaluate(*job_.held_out, &stop_); });
    if (!found) return found;
    pace_.took_evaluation(seconds);
    evaluated_at_ = trainer_.steps_done();
    summary_.eval = found;
    tell(callbacks_.on_eval, trainer_.steps_done(), *found);
    if (summary_.best && summary_.best->loss <= found->loss()) return found;
    summary_.best = {trainer_.steps_done(), found->loss()};
    if (options().keep_best) saver_.save_best(trainer_, *summary_.best);
    return found;
  }

  void record(const std::optional<Evaluation>& eval) {
    if (saver_.metrics == nullptr) return;
    std::vector<Alarm> alarms = watcher_.feed(summary_.last);
    for (Alarm& alarm : alarms) {
      alarm.text = spelled(alarm.text, callbacks_.spell);
      tell(callbacks_.on_alarm, alarm);
      summary_.alarms += alarm.recovered ? 0 : 1;
    }
    const std::string line = metrics_line(summary_.last, eval, alarms);
    saver_.metrics->append(line);
    tell(callbacks_.on_metrics, line);
  }

  // A machine that gets slower or faster than it was measured moves the end, not the hour of it.
  // The warm-up stays what it was. Clocks differ between processes: the first one's counts.
  void keep_to(const Deadline& deadline) {
    const auto steps =
        static_cast<int64_t>(group_.of_first(static_cast<double>(steps_for(deadline))));
    if (steps == options().steps) return;
    trainer_.replan(steps, /*spread_evaluations=*/!job_.options.eval_every);
    if (std::abs(static_cast<double>(steps - told_steps_)) <=
        kWorthSaying * static_cast<double>(told_steps_))
      return;
    tell(callbacks_.on_log,
         fmt::format("steps take {} than before: there is time for {} in all, not {}",
                     steps < told_steps_ ? "longer" : "less time", steps, told_steps_));
    told_steps_ = steps;
  }

  // How many there is time for; as many as there are to be where they end near enough to it.
  int64_t steps_for(const Deadline& deadline) const {
    const int64_t seen = std::min<int64_t>(
        5, options().steps -
               1);  // steps before any judgement; of a run of few, while there is one to come
    constexpr double kOff = 0.02;
    const double left = deadline.end - now_(),
                 off = pace_.seconds_left(options(), trainer_.steps_done()) - left;
    if (pace_.steps_seen() < seen || std::abs(off) <= kOff * 60 * options().minutes)
      return options().steps;
    return std::max(pace_.steps_within(left, options(), trainer_.steps_done()),
                    options().warmup.value_or(0) + 1);
  }

  static constexpr double kWorthSaying = 0.1;

  const TrainJob& job_;
  const TrainCallbacks& callbacks_;
  const std::atomic<bool>& stop_;
  Trainer& trainer_;
  Watcher& watcher_;
  const Saver& saver_;
  const comm::Group& group_;
  std::function<double()> now_;
  Pace pace_;
  int64_t told_steps_;
  int64_t evaluated_at_ = 0;
  TrainSummary summary_;
  bool over_ = false;
};

// Of preference pairs: their reference's log-probabilities are in the checkpoint.
std::string held_out_pairs(const TrainJob& job) {
  return job.held_out && job.held_out->pairs() > 0 ? data_print(*job.held_out).hash : "";
}

// What metrics.jsonl holds of evaluations.
struct TakenEvaluations {
  std::optional<BestEvaluation> best;  // the lowest
  int64_t last = 0;                    // the step of the last one; 0: none
};
TakenEvaluations evaluations_in(const std::string& metrics) {
  TakenEvaluations taken;
  each_last_line(metrics, std::numeric_limits<int64_t>::max(), [&](std::string_view line) {
    const std::optional<BestEvaluation> found = parse_evaluation(line, metrics);
    if (!found) return;
    taken.last = found->step;
    if (!taken.best || found->loss < taken.best->loss) taken.best = found;
  });
  return taken;
}

// The evaluation after the checkpoint's step was due by the plan of the run that left it, and a
// stop cut it short: the line of that step has none.
bool is_evaluation_owed(const Checkpoint& c, int64_t last_evaluation, const std::string& metrics) {
  if (c.step == c.options.steps) return owes_last_evaluation(c);
  const int64_t every = c.options.eval_every.value_or(0);
  return every > 0 && c.step % every == 0 && 2 * (c.step - last_evaluation) >= every &&
         ends_without_evaluation(metrics, c.step);
}

// The first process's.
std::optional<BestEvaluation> agreed(const comm::Group& group,
                                     const std::optional<BestEvaluation>& best) {
  const BestEvaluation mine = best.value_or(BestEvaluation{});
  const bool any = group.of_first(best ? 1 : 0) > 0;
  const auto step = static_cast<int64_t>(group.of_first(static_cast<double>(mine.step)));
  const double loss = group.of_first(mine.loss);
  return any ? std::optional(BestEvaluation{step, loss}) : std::nullopt;
}

}  // namespace

std::string best_folder(const std::string& out) { return out + "/best"; }
std::string stable_folder(const std::string& out) { return out + "/stable"; }

TrainSummary train(Model& model, const TrainJob& job, const TrainCallbacks& callbacks,
                   const std::atomic<bool>& stop, const Checkpoint* resume) {
  const RunFiles files{data_print(*job.corpus, job.options.mix), resume ? resume->from : job.from,
                       model_print(job.teacher), held_out_pairs(job), job.sources};
  TrainOptions options = job.options;
  if (resume) {
    comm::alike(job.layout.all(), [&] {
      check_resumable(*resume, options, files.data, job.held_out != nullptr);
      check_same_teacher(*resume, job.teacher);
      check_same_held_out(*resume, files.held_out);
    });
    options = resumed_options(*resume, options);
    if (options.threads != resume->options.threads)
      tell(callbacks.on_log, fmt::format("resumed on {} threads, the run began on {}: the last "
                                         "bits of sums over tokens may differ",
                                         options.threads, resume->options.threads));
  }
  const comm::Group& group = job.layout.all();
  const bool writes = group.is_first();
  const std::string metrics_path = job.out + "/metrics.jsonl";
  std::optional<Trainer> trainer;
  RunLock own;
  RunLock& lock = job.lock ? *job.lock : own;
  std::optional<StepLines> metrics;
  comm::together(group, [&] {
    trainer.emplace(model, options, *job.corpus, job.teacher, job.layout);
    if (job.held_out) check_held_out(*job.held_out, trainer->options());
    if (writes) make_folder(job.out);
    if (writes) lock.take(job.out);
    if (resume) trainer->expect_reference(job.held_out);
    if (resume) restore(*trainer, *resume);
    else if (writes) check_unused(job.out);
    if (writes) metrics.emplace(metrics_path, trainer->steps_done());
    if (writes) lock.take(job.out);
  });
  comm::together(group, [&] {
    if (!writes) lock.join(job.out);
  });
  if (!resume && trainer->options().pairs) {
    tell(callbacks.on_log, "taking the reference's log-probabilities of the pairs, once");
    trainer->take_reference(job.held_out, stop);
  }
  Watcher watcher(model.config(), trainer->options());
  if (writes) remember(watcher, metrics_path);
  const Saver saver{job, callbacks, files, metrics ? &*metrics : nullptr};
  if (!resume) saver.save_start(*trainer);

  const TakenEvaluations taken = writes ? evaluations_in(metrics_path) : TakenEvaluations{};
  const bool owes = writes && resume && is_evaluation_owed(*resume, taken.last, metrics_path);
  const TrainSummary summary =
      Loop(job, callbacks, stop, *trainer, watcher, saver)
          .run(agreed(group, taken.best), job.held_out && group.of_first(owes ? 1 : 0) > 0);
  trainer->leave_adapters();
  return summary;
}

}  // namespace moe
