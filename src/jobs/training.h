// A training run from its options to the folder that holds the model: the body of `moe train` and
// of moe_train(). Prints nothing.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/layout.h"
#include "core/watch.h"
#include "hub/hub.h"
#include "jobs/run_options.h"
#include "train/checkpoint.h"
#include "train/run_lock.h"
#include "train/trainer.h"

namespace moe {

// Everything a run needs, read and checked; nothing is written before run(). Owns model, tokenizer
// and texts.
class Training {
 public:
  // `given`: the fields that the caller set; files fill in what is open. Usage errors name the
  // field. The processes of `group` make one each, of the same options and files, and train
  // together; this, fit() and run() are then collective, and the first process alone writes.
  // `watch` is told of what is measured before the first step. `lock`: one that outlives this, for
  // a run that goes on when a process of this one is lost; null: its own.
  Training(RunOptions options, Given given, const comm::Group& group = {}, const Watch& watch = {},
           RunLock* lock = nullptr);

  // The run in OUT was there already and has taken all its steps, and the evaluation at its end
  // where it was to.
  bool is_done() const {
    return checkpoint_ && checkpoint_->step == options_.train.steps && !owes_evaluation_;
  }
  // What is known of that run; its last ce is not and is NaN.
  TrainSummary done() const;
  // With minutes a new run measures first how long a step takes, and settles how many there is time
  // for; before that the number of steps has no meaning.
  bool must_fit() const { return !checkpoint_ && options_.train.minutes > 0; }
  // A run that goes on keeps its steps, whatever minutes were given with it.
  bool passes_over_minutes() const { return checkpoint_ && given_.has("minutes"); }
  // `afterwards`: tokens that a report is going to read; `stop` ends the measuring with an error.
  void fit(int64_t afterwards, const std::atomic<bool>& stop);
  TrainSummary run(const TrainCallbacks&, const std::atomic<bool>& stop);

  const std::string& out() const { return options_.out; }
  const TrainOptions& options() const { return options_.train; }  // resolved
  Model& model() { return *start().model; }
  const Tokenizer& tokenizer() const { return *start().tokenizer; }
  const Corpus& corpus() const { return *corpus_; }  // not when is_done()
  const Corpus* held_out() const {
    return held_out_ ? &*held_out_ : nullptr;
  }                                                  // null: none was given
  Model* teacher() { return teacher_.model.get(); }  // null: there is none
  const std::string& teacher_path() const { return options_.teacher; }
  const std::string& estimated_memory() const {
    return estimated_memory_;
  }  // of its memory, in words; not when is_done()
  const comm::Layout& layout() const { return layout_; }
  bool from_weights() const { return !options_.from.empty(); }
  // Neither the caller nor a file said how fast to learn.
  bool takes_default_rate() const { return !given_.has("lr"); }
  std::optional<int64_t> resumed_from() const {
    return checkpoint_ ? std::optional(checkpoint_->step) : std::nullopt;
  }

 private:
  void prepare(const Watch&);
  // Where it computes and writes: looked at before the text is read.
  void check_place() const;
  // Fails, saying what differs, where a process has other options, texts or weights than the first.
  void check_alike() const;
  const LoadedModel& start() const { return checkpoint_ ? checkpoint_->loaded : fresh_; }
  // Takes from the run in OUT what neither caller nor files say.
  void go_on();
  // Refuses another model than that of the run in OUT, and other weights than it began with.
  void check_same_start();
  void check_tuning() const;
  void look_up_tokens();
  void check_pairs() const;
  void check_same_tokenizer() const;
  void settle_tokenizer();
  LoadedModel new_start() const;
  void check_complete() const;
  void read_teacher();
  void read_texts();

  RunOptions options_;
  Given given_;
  comm::Group group_;
  comm::Layout layout_;
  RunLock own_lock_;
  RunLock& lock_;  // taken before the checkpoint of a folder that is there is read
  std::optional<Checkpoint> checkpoint_;
  bool owes_evaluation_ = false;  // it: that at the end of its run
  LoadedModel fresh_;             // without a checkpoint
  LoadedModel teacher_;           // empty: none
  double began_;                  // seconds of the steady clock
  std::optional<Deadline> deadline_;
  std::optional<int64_t> asked_warmup_, asked_eval_every_;
  double asked_minutes_ = 0;
  bool describes_model_ = false;  // some option or file does
  bool own_tokenizer_ = false;    // the texts are tokens already, whose folder brings it
  std::string estimated_memory_;
  std::optional<Corpus> corpus_, held_out_;
};

}  // namespace moe
