// How long the parts of a run take, and so how long what is left of it will: for the time that is
// shown, and for --minutes. Reads no clock; it is told seconds.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "train/options.h"

namespace moe {

// What a run has still to do.
struct Agenda {
  int64_t steps = 0, evaluations = 0, saves = 0;
};
// After `step` of options.steps. `evaluated`: there is held-out text. Options resolved.
Agenda agenda_after(const TrainOptions&, int64_t step, bool evaluated);

class Pace {
 public:
  // `evaluated`: tokens that an evaluation reads, 0 where there is none; `afterwards`: tokens that
  // are read once the run is over (a report).
  Pace(const TrainOptions&, int64_t evaluated, int64_t afterwards = 0);

  void took_step(double seconds);
  void took_evaluation(double seconds) { evaluation_ = seconds; }
  void took_save(double seconds) { save_ = seconds; }
  // Beside the steps, whatever it was: samples.
  void took_other(double seconds) { other_ += seconds; }

  bool knows() const { return taken_ > 0; }
  int64_t steps_seen() const { return taken_; }
  // A step now: the mean of the last ones, some 20 or of 20 seconds, whichever are more, without
  // the run's first where there are others: it finds memory and caches cold.
  double step() const;
  // From `step` to the end of the run and of what comes after it.
  double seconds_left(const TrainOptions&, int64_t step) const;
  // How many steps the whole run may have for that to be `seconds`; at least step + 1.
  int64_t steps_within(double seconds, TrainOptions, int64_t step) const;

 private:
  double read(int64_t tokens) const;  // forward only, before any evaluation was timed

  double step_tokens_;
  int64_t evaluated_, afterwards_;
  std::deque<double> last_;
  double sum_ = 0;  // of last_
  int64_t taken_ = 0;
  std::optional<double> evaluation_;
  double save_ = 0, other_ = 0;
};

}  // namespace moe
