#include "train/pace.h"

#include <algorithm>

namespace moe {
namespace {

constexpr size_t kFewest = 20, kMost = 1000;  // steps of the mean
constexpr double kSeconds = 20;
// of a step: its backward computes twice as much (model/cost.h)
constexpr double kForwardShare = 1.0 / 3;

// Multiples of `every` in (after, until].
int64_t multiples(int64_t every, int64_t after, int64_t until) {
  return every > 0 ? until / every - after / every : 0;
}

}  // namespace

Agenda agenda_after(const TrainOptions& o, int64_t step, bool evaluated) {
  // The last step is evaluated and saved in any case.
  const auto with_last = [&](int64_t every) {
    return step < o.steps ? multiples(every, step, o.steps - 1) + 1 : 0;
  };
  return {o.steps - step, evaluated ? with_last(o.eval_every.value_or(0)) : 0,
          with_last(o.save_every)};
}

Pace::Pace(const TrainOptions& o, int64_t evaluated, int64_t afterwards)
    : step_tokens_(static_cast<double>(rows_of(o) * o.accumulate * o.context)),
      evaluated_(evaluated),
      afterwards_(afterwards) {}

void Pace::took_step(double seconds) {
  if (taken_++ == 1) last_.clear(), sum_ = 0;  // the first was cold
  last_.push_back(seconds);
  sum_ += seconds;
  while (last_.size() > kMost || (last_.size() > kFewest && sum_ - last_.front() >= kSeconds)) {
    sum_ -= last_.front();
    last_.pop_front();
  }
}

double Pace::step() const { return last_.empty() ? 0 : sum_ / static_cast<double>(last_.size()); }

double Pace::read(int64_t tokens) const {
  if (tokens == 0) return 0;
  if (evaluation_)
    return *evaluation_ * static_cast<double>(tokens) / static_cast<double>(evaluated_);
  return step() * kForwardShare * static_cast<double>(tokens) / step_tokens_;
}

double Pace::seconds_left(const TrainOptions& o, int64_t done) const {
  const Agenda left = agenda_after(o, done, evaluated_ > 0);
  const double other = taken_ > 0 ? other_ / static_cast<double>(taken_) : 0;
  return static_cast<double>(left.steps) * (step() + other) +
         static_cast<double>(left.evaluations) * read(evaluated_) +
         static_cast<double>(left.saves) * save_ + read(afterwards_);
}

// By halving: more steps never take less time.
int64_t Pace::steps_within(double seconds, TrainOptions o, int64_t done) const {
  int64_t fits = done + 1, exceeds = kMostSteps + 1;
  while (exceeds - fits > 1) {
    o.steps = fits + (exceeds - fits) / 2;
    (seconds_left(o, done) <= seconds ? fits : exceeds) = o.steps;
  }
  return fits;
}

}  // namespace moe
