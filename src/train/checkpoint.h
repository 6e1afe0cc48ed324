// What a run leaves on disk so that it can go on: OUT is an ordinary model folder (f32 masters) and
// beside it lies trainer-<step>.safetensors with the moments.
//
// The order of writing makes every moment safe: (1) trainer-S, atomically; (2) config.json,
// tokenizer.json and then model.safetensors, whose rename, carrying "step": S in its metadata, is
// the commit; (3) older trainer files are removed. Killed before (2) is done, the model still says
// the old step and its trainer file is still there; killed before (3), a file too many lies about
// until the next save.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hub/hub.h"
#include "train/trainer.h"

namespace moe {

// Of a run of adapters OUT is a folder of them as PEFT has it (hub/adapter.h), which names the
// model that it started from; adapter_model.safetensors is the commit then.
// trainer-<step>.safetensors has the adapters too, as they are trained.

// Which text a run reads: its length, and a hash over tokens sampled evenly from it, with their
// documents' ends and what of them is learned from.
struct DataPrint {
  int64_t tokens = 0;
  std::string hash;                // 16 hexadecimal digits
  std::vector<std::string> paths;  // for the user; not compared
};
// With a mix the names and sizes of the domains count too.
DataPrint data_print(const Corpus&, const Mix& mix = {});

struct Checkpoint {
  LoadedModel loaded;
  std::string folder;
  int64_t step = 0;
  double seconds = 0;
  TrainOptions options;  // resolved, of the run that wrote it
  DataPrint data;
  std::string from;      // TrainJob::from of the run
  std::string teacher;   // model_print() of its teacher; empty: none
  std::string held_out;  // data_print() of held-out preference pairs; empty: none
  int64_t tokens = 0;    // that it has read
  RunSources sources;    // empty in those of older versions
};

// 16 hexadecimal digits over a model's shape and numbers sampled evenly from each of its parameters
// that lie here as a whole; empty for none.
std::string model_print(const Model* model);

// Whether OUT holds a model (model.safetensors), as a run leaves it.
bool holds_model(const std::string& folder);
// The step that a run was at when it left the model of this folder; nothing where there is none.
std::optional<int64_t> saved_step(const std::string& folder);
// Fails when a new run would overwrite one, or lay its own over somebody's in another form
// (hub/foreign.h).
void check_unused(const std::string& folder);
// Fails where the folder could not be made, or written to, and leaves nothing behind.
void check_writable(const std::string& folder);
void make_folder(const std::string& folder);

// Model and everything but the moments, which restore() reads. Fails when there is nothing to
// resume, when the pair is incomplete or damaged.
// `experts`: whose processes the model's experts are spread over (hub/hub.h). `limits`: of a model
// that adapters hang on, which lies in its file.
Checkpoint load_checkpoint(const std::string& folder, const comm::Group& experts = {},
                           const MemoryLimits& limits = {});
// Refuses, naming each with old and new value, options that change the mathematics: the first half
// of check_resumable, for which no text need be read.
void check_same_options(const Checkpoint&, const TrainOptions& wanted);
// Refuses other data, naming where both lie: the second half.
void check_same_text(const Checkpoint&, const DataPrint& data);
// Whether a run with held-out text has taken all its steps, and a stop cut short the evaluation at
// its end: the line of the last step, in the metrics beside the checkpoint, has none.
bool owes_last_evaluation(const Checkpoint&);
// Refuses, naming each with old and new value: options that change the mathematics, other data, a
// run that is already done; but not one that owes its last evaluation, where it `evaluates`.
// `steps` may change only where the rates so far do not depend on it (train/schedule.h). Absent
// min_lr and warmup stand for the checkpoint's, as do the plans of --minutes.
void check_resumable(const Checkpoint&, const TrainOptions& wanted, const DataPrint& data,
                     bool evaluates);
// Refuses another teacher than the run's, one where there was none, and none where there was one.
void check_same_teacher(const Checkpoint&, const Model* teacher);
// Refuses other held-out preference pairs than the run's, `held_out` being their data_print: what
// the reference says of them was taken when the run began.
void check_same_held_out(const Checkpoint&, const std::string& held_out);
// What the resumed run uses: `wanted`, with the checkpoint's min_lr and warmup where it says none.
// Resolved.
TrainOptions resumed_options(const Checkpoint&, TrainOptions wanted);
// Refuses when the configuration asked for is not the checkpoint's, naming the keys of config.json
// that differ.
void check_same_model(const Checkpoint&, const ModelConfig& wanted);
// Moments, adapters and counters into a trainer made over checkpoint.loaded.model.
void restore(Trainer&, const Checkpoint&);

// What a checkpoint says beside weights and moments.
struct RunFiles {
  DataPrint data;
  std::string from, teacher, held_out;  // as Checkpoint has them
  RunSources sources;
};
// What a run has made so far, for others to read: a model folder, or its adapters. `from` names the
// model that these belong to.
void save_tuned(const std::string& folder, const Trainer&, Model&, const Tokenizer&,
                const std::string& from, const std::map<std::string, std::string>& metadata);
// All processes of the trainer call it, and the first one writes.
void save_checkpoint(const std::string& folder, const Trainer&, Model&, const Tokenizer&,
                     const RunFiles&);

}  // namespace moe
