// The learning rate as a function of the step; the formulas stand in the header.
#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace moe {
namespace {

// How far the run is between warm-up (0) and end (1). Each time it was planned anew it went on from
// where it was, and falls to 1 at the new end.
double progress(const TrainOptions& o, int64_t step, int64_t warmup) {
  double t = 0;
  int64_t from = warmup;
  const auto go_on = [&](int64_t to, int64_t end) {
    if (to <= from) return;
    t += (1 - t) * static_cast<double>(to - from) / static_cast<double>(end - from);
    from = to;
  };
  for (const Replan& replan : o.replans) {
    go_on(std::min(step, replan.until), replan.steps);
    if (step <= replan.until) return t;
  }
  go_on(step, o.steps);
  return t;
}

}  // namespace

double learning_rate(const TrainOptions& o, int64_t step) {
  const int64_t warmup = o.warmup.value_or(0);
  const double low = o.min_lr.value_or(0);
  if (step <= warmup) return o.lr * static_cast<double>(step) / static_cast<double>(warmup);
  const double t = progress(o, step, warmup);
  switch (o.schedule) {
    case ScheduleKind::cosine:
      return low + (o.lr - low) * 0.5 * (1 + std::cos(std::numbers::pi * t));
    case ScheduleKind::linear: return o.lr + (low - o.lr) * t;
    case ScheduleKind::constant: return o.lr;
  }
  return o.lr;
}

}  // namespace moe
