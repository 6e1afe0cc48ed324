// The learning rate as a function of the step; the formulas stand in the header.
#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace moe {
namespace {

// The last step before the rate falls, in a run of `steps`.
int64_t fall_after(const TrainOptions& o, int64_t steps) {
  const int64_t warmup = o.warmup.value_or(0);
  if (o.schedule != ScheduleKind::wsd) return warmup;
  return std::max<int64_t>(warmup, steps - std::llround(o.cooldown * static_cast<double>(steps)));
}

// How far the rate has fallen: 0 before, 1 at the end. Each time the run was planned anew it went
// on from where it was, and falls to 1 at the new end.
double progress(const TrainOptions& o, int64_t step) {
  double t = 0;
  int64_t from = 0;
  const auto go_on = [&](int64_t to, int64_t end) {
    const int64_t begin = std::max(from, fall_after(o, end));
    if (to > begin)
      t += (1 - t) * static_cast<double>(to - begin) / static_cast<double>(end - begin);
    from = std::max(from, to);
  };
  for (const Replan& replan : o.replans) {
    go_on(std::min(step, replan.until), replan.steps);
    if (step <= replan.until) return t;
  }
  go_on(step, o.steps);
  return t;
}

}  // namespace

int64_t stable_until(const TrainOptions& o) {
  if (o.schedule == ScheduleKind::constant) return std::numeric_limits<int64_t>::max();
  if (o.schedule != ScheduleKind::wsd) return 0;
  int64_t from = 0;  // up to here it was stable by the plans so far
  for (const Replan& replan : o.replans) {
    const int64_t fall = std::max(from, fall_after(o, replan.steps));
    if (replan.until > fall) return fall;
    from = replan.until;
  }
  return std::max(from, fall_after(o, o.steps));
}

double learning_rate(const TrainOptions& o, int64_t step) {
  const int64_t warmup = o.warmup.value_or(0);
  const double low = o.min_lr.value_or(0);
  if (step <= warmup) return o.lr * static_cast<double>(step) / static_cast<double>(warmup);
  const double t = progress(o, step);
  switch (o.schedule) {
    case ScheduleKind::cosine:
      return low + (o.lr - low) * 0.5 * (1 + std::cos(std::numbers::pi * t));
    case ScheduleKind::linear: return o.lr + (low - o.lr) * t;
    case ScheduleKind::constant: return o.lr;
    case ScheduleKind::wsd: return low + (o.lr - low) * (1 - std::sqrt(t));
  }
  return o.lr;
}

}  // namespace moe
