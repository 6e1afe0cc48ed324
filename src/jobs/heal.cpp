#include "jobs/heal.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "jobs/training.h"
#include "ops/ops.h"
#include "text/corpus.h"
#include "train/alarms.h"

namespace moe {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kContext = 512, kStepTokens = 4096;

int64_t context_of(const ModelConfig& config) { return std::min(kContext, config.context); }

std::vector<std::string> texts_of(const HealOptions& o, const std::string& calibration) {
  return o.data.empty() ? std::vector<std::string>{calibration} : o.data;
}

// The run of `moe train` that heals.
RunOptions run_of(const HealOptions& o, const MakeOptions& make, const std::string& teacher,
                  const std::string& calibration) {
  RunOptions run;
  run.from = damaged_folder(make.out);
  run.out = make.out;
  run.teacher = teacher;
  run.data = texts_of(o, calibration);
  run.memory = make.memory.limits;
  run.train.minutes = o.minutes;
  run.train.lr = o.lr;
  run.train.tune = o.tune;
  run.train.teacher_weight = o.teacher_weight;
  run.train.threads = make.threads;
  run.train.dtype = ops::has_bf16_products() ? DType::bf16 : DType::f32;
  run.train.context = context_of(read_model_config(run.from));
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
  if (!(o.minutes > 0) || std::isinf(o.minutes))
    fail_usage("@heal is {} minutes; it must be above 0, and finite", o.minutes);
  if (!(o.lr > 0) || std::isinf(o.lr))
    fail_usage("@heal_lr is {}; it must be above 0, and finite", o.lr);
  if (!(o.teacher_weight > 0 && o.teacher_weight <= 1))
    fail_usage("@heal_teacher_weight is {}; it must be above 0 and at most 1", o.teacher_weight);
  if (target_of(make.out) == Target::gguf)
    fail_usage(
        "@heal trains, and a run has a folder: give OUT a name that does not end in .gguf, and "
        "convert it afterwards");
  for (const char* name : {"dtype", "quant"})
    if (given.has(name))
      fail_usage("{} does not go with @heal, which writes f32; convert OUT afterwards",
                 field(name));
}

void check_heal_texts(const HealOptions& o, const MakeOptions& make, const std::string& calibration,
                      const LoadedModel& model) {
  const char* name = o.data.empty() ? "calibration" : "heal_data";
  const std::vector<std::string> texts = texts_of(o, calibration);
  const Corpus corpus(texts, *model.tokenizer);
  // a row and the target of its last token
  if (const int64_t needed = context_of(model.model->config()) + 1; corpus.size() < needed)
    fail("{} {} has {} tokens, and healing reads rows of {}: give a longer text", field(name),
         fmt::join(texts, " "), corpus.size(), needed - 1);
  check_outside(make.out, texts, name, "OUT");
}

std::string damaged_folder(const std::string& out) { return out + "/pruned"; }

Damaged::Damaged(const std::string& out) : folder_(damaged_folder(out)) {
  std::error_code unseen;
  for (fs::path p = fs::absolute(out, unseen); !p.empty() && !fs::exists(p, unseen);
       p = p.parent_path())
    made_.push_back(p.string());
}

Damaged::~Damaged() {
  if (is_kept_) return;
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
  for (const std::string& p : made_) fs::remove(p, ignored);  // only if nothing else came into it
}

void Healed::took(const StepResult& r) {
  steps = r.step;
  tokens = r.tokens;
  if (std::isnan(r.ce)) return;
  ce = r.ce;
  kl = r.kl;
}

Json to_json(const Healed& h) {
  Json json = {{"steps", h.steps}, {"tokens", h.tokens}, {"tuned", name_of(h.tune)}};
  if (h.ce) json["ce"] = *h.ce;
  if (h.kl) json["kl"] = *h.kl;
  return json;
}

Healed heal(const HealOptions& o, const MakeOptions& make, const std::string& teacher,
            const std::string& calibration, Damaged& damaged, const Watch& watch) {
  Given given;
  for (const char* name : {"from", "out", "teacher", "data", "minutes", "lr", "tune", "dtype",
                           "teacher_weight", "context", "batch", "threads"})
    given.add(name, GivenBy::caller);
  Training training(run_of(o, make, teacher, calibration), given);
  std::atomic<bool> stop = false;
  training.fit(0, stop);
  const Progress progress = watch.begin();
  Healed healed;
  healed.tune = o.tune;
  TrainCallbacks callbacks;
  callbacks.on_step = [&](const StepResult& r) {
    healed.took(r);
    progress(r.step, r.steps, "steps of healing");
    if (watch.stopped()) stop = true;
  };
  callbacks.on_alarm = [&](const Alarm& a) {
    watch.tell(message("{}: step {}: {}", a.recovered ? "recovered" : "alarm", a.step, a.text));
  };
  damaged.keep();
  const TrainSummary summary = training.run(callbacks, stop);
  if (summary.interrupted)
    fail(
        "interrupted at step {} of the healing, which is saved: `moe train --resume --out {}` goes "
        "on",
        summary.last.step, make.out);
  return healed;
}

}  // namespace moe
