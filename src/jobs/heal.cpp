#include "jobs/heal.h"

#include <algorithm>
#include <atomic>

#include "core/error.h"
#include "jobs/training.h"
#include "ops/ops.h"
#include "train/alarms.h"

namespace moe {
namespace {

constexpr int64_t kContext = 512, kStepTokens = 4096;

// The run of `moe train` that heals.
RunOptions run_of(const HealOptions& o, const MakeOptions& make, const std::string& teacher,
                  const std::string& data) {
  RunOptions run;
  run.from = damaged_folder(make.out);
  run.out = make.out;
  run.teacher = teacher;
  run.data = o.data.empty() ? std::vector<std::string>{data} : o.data;
  run.memory = make.memory.limits;
  run.train.minutes = o.minutes;
  run.train.lr = o.lr;
  run.train.tune = o.tune;
  run.train.teacher_weight = o.teacher_weight;
  run.train.threads = make.threads;
  run.train.dtype = ops::has_bf16_products() ? DType::bf16 : DType::f32;
  run.train.context = std::min(kContext, read_model_config(run.from).context);
  run.train.batch = std::max<int64_t>(1, kStepTokens / run.train.context);
  return run;
}

}  // namespace

FieldList fields(HealOptions& o) {
  FieldList list;
  list.add("heal", o.minutes,
           "then train the result for so many minutes, with the model that it came from as the "
           "teacher; OUT is then the folder of that run (moe train @resume @out OUT goes on with "
           "one that was interrupted), and OUT/pruned what it began with")
      .unit("minutes");
  list.add("heal_data", o.data, "the texts to heal on: files or folders; default: @calibration")
      .path();
  list.add("heal_lr", o.lr, "highest learning rate of the healing");
  list.add("heal_teacher_weight", o.teacher_weight,
           "w in its loss (1 - w) ce + w KL(teacher || model), above 0 and at most 1");
  list.add_named(
      "heal_tune", {"all", "lora"}, [&o] { return std::string(name_of(o.tune)); },
      [&o](const std::string& name) { o.tune = name == "lora" ? Tune::lora : Tune::all; },
      "what is trained: all, or lora: adapters, where the weights of all do not fit in memory");
  return list;
}

void check_heal(const HealOptions& o, const MakeOptions& make, const Given& given) {
  if (o.minutes == 0) {
    for (const char* name : {"heal_data", "heal_lr", "heal_teacher_weight", "heal_tune"})
      if (given.has(name)) fail_usage("{} is of the healing: add @heal MINUTES", field(name));
    return;
  }
  if (!(o.minutes > 0)) fail_usage("@heal must be above 0 minutes");
  if (target_of(make.out) == Target::gguf)
    fail_usage(
        "@heal trains, and a run has a folder: give OUT a name that does not end in .gguf, and "
        "convert it afterwards");
  for (const char* name : {"dtype", "quant"})
    if (given.has(name))
      fail_usage("{} does not go with @heal, which writes f32; convert OUT afterwards",
                 field(name));
}

std::string damaged_folder(const std::string& out) { return out + "/pruned"; }

Healed heal(const HealOptions& o, const MakeOptions& make, const std::string& teacher,
            const std::string& data, const Watch& watch) {
  Given given;
  for (const char* name : {"from", "out", "teacher", "data", "minutes", "lr", "tune", "dtype",
                           "teacher_weight", "context", "batch", "threads"})
    given.add(name, GivenBy::caller);
  Training training(run_of(o, make, teacher, data), given);
  std::atomic<bool> stop = false;
  training.fit(0, stop);
  const Progress progress = watch.begin();
  TrainCallbacks callbacks;
  callbacks.on_step = [&](const StepResult& r) {
    progress(r.step, r.steps, "steps of healing");
    if (watch.stopped()) stop = true;
  };
  callbacks.on_alarm = [&](const Alarm& a) {
    watch.tell(message("{}: step {}: {}", a.recovered ? "recovered" : "alarm", a.step, a.text));
  };
  const TrainSummary summary = training.run(callbacks, stop);
  if (summary.interrupted)
    fail(
        "interrupted at step {} of the healing, which is saved: `moe train --resume --out {}` goes "
        "on",
        summary.last.step, make.out);
  return {summary.last.step, summary.last.tokens, summary.last.ce, summary.last.kl.value_or(0),
          o.tune};
}

}  // namespace moe
