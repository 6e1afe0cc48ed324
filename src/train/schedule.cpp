// The learning rate as a function of the step; the formulas stand in the header.
#include "train/schedule.h"

#include <cmath>
#include <numbers>

namespace moe {

double learning_rate(const TrainOptions& o, int64_t step) {
  const int64_t warmup = o.warmup.value_or(0);
  const double low = o.min_lr.value_or(0);
  if (step <= warmup) return o.lr * static_cast<double>(step) / static_cast<double>(warmup);
  const double t = static_cast<double>(step - warmup) / static_cast<double>(o.steps - warmup);
  switch (o.schedule) {
    case ScheduleKind::cosine: return low + (o.lr - low) * 0.5 * (1 + std::cos(std::numbers::pi * t));
    case ScheduleKind::linear: return o.lr + (low - o.lr) * t;
    case ScheduleKind::constant: return o.lr;
  }
  return o.lr;
}

}  // namespace moe
