// The loop of a run: steps, evaluations, metrics, checkpoints.
#include <filesystem>

#include "core/error.h"
#include "train/alarms.h"
#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/step_lines.h"
#include "train/trainer.h"

namespace moe {
namespace {

template <class... Args>
void tell(const std::function<void(Args...)>& callback, std::type_identity_t<Args>... args) {
  if (callback) callback(args...);
}

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail("cannot create the folder {}: {}; choose another --out", folder, error.message());
}

constexpr int64_t kRemembered = 1000;  // steps: far more than any running figure of the watcher reaches back

// A resumed run is watched as if it had never stopped: what is usual for it and which alarms are on are learned again from its metrics.
void remember(Watcher& watcher, const std::string& metrics) {
  each_last_line(metrics, kRemembered, [&](std::string_view line) {
    if (const std::optional<StepResult> step = parse_metrics_line(line, metrics)) watcher.feed(*step);
  });
}

struct Saver {
  const TrainJob& job;
  const TrainCallbacks& callbacks;
  const RunFiles& files;

  void save(Trainer& trainer, StepLines& metrics) const {
    metrics.sync();
    save_checkpoint(job.out, trainer, trainer.model(), *job.tokenizer, files);
    tell(callbacks.on_save, trainer.steps_done(), job.out);
  }
  // The start of the run: a model folder of its own where other programs may start from too, and OUT itself, so that a full disk or a folder that cannot be
  // written is found before the first step.
  void save_start(Trainer& trainer, StepLines& metrics) const {
    if (trainer.options().save_every > 0) {
      const std::string folder = job.out + "/checkpoint-0";
      make_folder(folder);
      save_model(folder, trainer.model(), *job.tokenizer, DType::f32, {{"step", "0"}});
    }
    save(trainer, metrics);
  }
};

}  // namespace

TrainSummary train(Model& model, const TrainJob& job, const TrainCallbacks& callbacks, const std::atomic<bool>& stop, const Checkpoint* resume) {
  const RunFiles files{data_print(*job.corpus, job.options.mix), resume ? resume->from : job.from, teacher_print(job.teacher)};
  TrainOptions options = job.options;
  if (resume) {
    check_resumable(*resume, options, files.data);
    check_same_teacher(*resume, job.teacher);
    options = resumed_options(*resume, options);
    if (options.threads != resume->options.threads)
      tell(callbacks.on_log,
           fmt::format("resumed on {} threads, the run began on {}: the last bits of sums over tokens may differ", options.threads, resume->options.threads));
  } else {
    check_unused(job.out);
  }
  Trainer trainer(model, options, *job.corpus, job.teacher);
  if (job.held_out) check_held_out(*job.held_out, options);
  if (resume) restore(trainer, *resume);
  make_folder(job.out);
  const std::string metrics_path = job.out + "/metrics.jsonl";
  StepLines metrics(metrics_path, trainer.steps_done());
  Watcher watcher(model.config(), trainer.options());
  remember(watcher, metrics_path);
  const Saver saver{job, callbacks, files};
  if (!resume) saver.save_start(trainer, metrics);

  TrainSummary summary;
  bool last = false;
  while (!last) {
    summary.last = trainer.step();
    const int64_t step = trainer.steps_done();
    tell(callbacks.on_step, summary.last);
    const bool finished = step == options.steps;
    std::optional<double> eval_ce;
    if (job.held_out && (finished || (options.eval_every > 0 && step % options.eval_every == 0))) {
      summary.eval_ce = eval_ce = trainer.evaluate(*job.held_out);
      tell(callbacks.on_eval, step, *eval_ce);
    }
    const std::vector<Alarm> alarms = watcher.feed(summary.last);
    for (const Alarm& alarm : alarms) {
      tell(callbacks.on_alarm, alarm);
      summary.alarms += alarm.recovered ? 0 : 1;
    }
    const std::string line = metrics_line(summary.last, eval_ce, alarms);
    metrics.append(line);
    tell(callbacks.on_metrics, line);
    summary.interrupted = !finished && stop.load();
    last = finished || summary.interrupted;
    if (last || (options.save_every > 0 && step % options.save_every == 0)) saver.save(trainer, metrics);
  }
  return summary;
}

}  // namespace moe
