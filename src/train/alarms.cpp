// The thresholds, each with its reason, and the table of kinds with what to try (which names only
// options that mean something for the recipe: alarm_advice.cpp).
#include "train/alarms.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/order.h"
#include "core/words.h"
#include "train/alarm_advice.h"

namespace moe {
namespace {

// Healthy runs of every recipe stay under 0.3 (collapse) and 0.6 (one-sided) once settled, runs
// without balance loss at too high a rate above 0.75 and 0.9.
constexpr double kCollapsed = 0.7, kNotCollapsed = 0.5;
constexpr double kLoadMemory = 20;  // steps that the running mean of the load reaches back
// Steps after the warm-up, or as many as it took: healthy runs of a hundred steps lose their
// balance in it (97% to one expert of 16) and find it again by then.
constexpr int64_t kSettling = 50;
constexpr int64_t kRouterPatience = 20, kDeadPatience = 50;
// One in so many, at least two: of healthy runs' experts one in eight stays without tokens for 20
// steps, of failing ones' one in three.
constexpr int64_t kManyDead = 4;
constexpr double kSameFavourites = 0.8;  // of what the favourites of each step get
constexpr double kOneSided = 0.85, kNotOneSided = 0.65;
constexpr double kDead = 0.01, kAlive = 0.05;  // of an even share
constexpr double kZTimes = 3,
                 // times its lowest, times (ln E)^2, which it is where all logits are 0
    kZOverEven = 2;
constexpr double kDropsMore = 0.15;  // of all choices, above the lowest share
constexpr double kDropsMost = 0.6;   // of the choices that would find room if they were even;
                                     // healthy runs of small batches stay under 0.5
constexpr int64_t kFigurePatience = 20;
// of the usual loss, and nats: curves can be very smooth
constexpr double kSpikeDeviations = 6, kLeastDeviation = 0.02;
constexpr int64_t kSpikePatience = 3;
constexpr double kDiverging = 1.15, kConverging = 1.05, kDivergingNats = 0.2;
// of the loss; of ln V, what knowing nothing costs
constexpr double kStalledGain = 0.01, kLearnedLittle = 0.6;
constexpr double kGradientTimes = 5;
constexpr size_t kUsualSteps = 50, kLevelSteps = 20, kLongSteps = 200, kLeastLongSteps = 60;
constexpr int64_t kNewNormal = 100;  // what has been strange for so long is what is usual now

std::string percent(double share) { return fmt::format("{:.3g}%", 100 * share); }

// "expert 3", "experts 3, 5 and 6"
std::string experts_in_words(const std::vector<int64_t>& experts) {
  if (experts.size() == 1) return fmt::format("expert {}", experts[0]);
  constexpr size_t kMost = 8;
  if (experts.size() > kMost)
    return fmt::format("{} experts ({}, ...)", experts.size(),
                       fmt::join(experts.begin(), experts.begin() + kMost, ", "));
  return fmt::format("experts {} and {}", fmt::join(experts.begin(), experts.end() - 1, ", "),
                     experts.back());
}

// How far a share is on the way from what is even (0) to the most there can be (1).
double way(double share, double even, double most) { return (share - even) / (most - even); }

// What the `few` largest shares are together.
double top_share(std::vector<double> load, int64_t few) {
  const auto end = load.begin() + std::min<std::ptrdiff_t>(few, std::ssize(load));
  std::partial_sort(load.begin(), end, load.end(), std::greater<>());
  return std::accumulate(load.begin(), end, 0.0);
}

}  // namespace

const std::vector<AlarmInfo>& alarm_table() {
  static const std::vector<AlarmInfo> table = {
      {AlarmKind::collapsed_router, "collapsed-router"},
      {AlarmKind::one_sided_router, "one-sided-router"},
      {AlarmKind::dead_expert, "dead-expert"},
      {AlarmKind::rising_z, "rising-z-loss"},
      {AlarmKind::rising_drops, "rising-drop-rate"},
      {AlarmKind::loss_spike, "loss-spike"},
      {AlarmKind::diverging_loss, "diverging-loss"},
      {AlarmKind::stalled_loss, "stalled-loss"},
      {AlarmKind::exploding_gradient, "exploding-gradient"},
  };
  return table;
}

std::string_view name_of(AlarmKind kind) { return alarm_table()[static_cast<size_t>(kind)].name; }

void RecentValues::push(double x) {
  values_.push_back(x);
  if (values_.size() > most_) values_.pop_front();
}
double RecentValues::median() const { return middle_of({values_.begin(), values_.end()}); }
double RecentValues::oldest(size_t n) const {
  return middle_of({values_.begin(),
                    values_.begin() + static_cast<std::ptrdiff_t>(std::min(n, values_.size()))});
}
double RecentValues::newest(size_t n) const {
  return middle_of(
      {values_.end() - static_cast<std::ptrdiff_t>(std::min(n, values_.size())), values_.end()});
}
double RecentValues::deviation() const {
  const double middle = median();
  std::vector<double> distances;
  for (double x : values_) distances.push_back(std::abs(x - middle));
  return 1.4826 * middle_of(std::move(distances));
}

Latch::Turn Latch::update(bool bad, bool good, int64_t patience) {
  run_ = (on_ ? good : bad) ? run_ + 1 : 0;
  if (run_ < patience) return Turn::none;
  run_ = 0;
  on_ = !on_;
  return on_ ? Turn::fired : Turn::recovered;
}

Watcher::Watcher(const ModelConfig& config, const TrainOptions& options)
    : options_(options),
      config_(config),
      settled_at_(options.warmup.value_or(0) + std::max(options.warmup.value_or(0), kSettling)),
      ce_{RecentValues(kUsualSteps), {}},
      gradient_{RecentValues(kUsualSteps), {}},
      z_(kLevelSteps),
      drops_(kLevelSteps),
      level_(kLevelSteps),
      long_level_(std::clamp(static_cast<size_t>(std::max<int64_t>(options.steps, 0)) / 4,
                             kLeastLongSteps, kLongSteps)) {
  if (config.moe_layer_count() == 0) return;
  routing_ = train_spec(config.routing);
  can_be_uneven_ = needs_logits(routing_->select) && !experts_choose(routing_->select) &&
                   !is_fixed(routing_->logits);  // that of neurons is as uneven as they are
}

std::vector<Alarm> Watcher::feed(const StepResult& r) {
  said_.clear();
  step_ = r.step;
  layers_.resize(r.layers.size());
  if (can_be_uneven_)
    for (size_t i = 0; i < r.layers.size(); ++i) watch_layer(r.layers[i], layers_[i]);
  if (!r.layers.empty()) {
    watch_z(r.z);
    watch_drops(r.dropped);
  }
  // A step without a target (all of it a prompt) has neither a loss nor a gradient of one.
  if (r.predicted == 0) return said_;
  watch_loss(r.loss());
  watch_level(r.loss(), r.lr);
  watch_gradient(r.grad_norm);
  return said_;
}

void Watcher::watch_layer(const LayerLoad& now, Layer& layer) {
  if (layer.load.empty()) {
    layer.load = now.load;
    layer.top = top_share(now.load, config_.routing.top_k);
    layer.dead.resize(now.load.size());
    layer.quiet.resize(now.load.size());
  }
  for (size_t e = 0; e < layer.load.size(); ++e)
    layer.load[e] += (now.load[e] - layer.load[e]) / kLoadMemory;
  layer.top += (top_share(now.load, config_.routing.top_k) - layer.top) / kLoadMemory;
  // Where a token takes most of the experts anyway, an uneven load is no collapse.
  if (2 * config_.routing.top_k <= std::ssize(layer.load)) watch_few(now.layer, layer);
  watch_dead(now, layer);
}

void Watcher::watch_few(int64_t number, Layer& layer) {
  const int64_t chosen = config_.routing.top_k;
  std::vector<int64_t> few = falling_order(layer.load);
  const int64_t favourite = few[0];
  few.resize(static_cast<size_t>(chosen));
  std::sort(few.begin(), few.end());
  double top = 0;
  for (int64_t e : few) top += layer.load[static_cast<size_t>(e)];
  const double even = 1 / static_cast<double>(layer.load.size()), k = static_cast<double>(chosen),
               largest = layer.load[static_cast<size_t>(favourite)];
  const bool settled = step_ > settled_at_;

  const double collapse = way(layer.top, k * even, 1);
  const auto turn = layer.collapse.update(settled && collapse >= kCollapsed,
                                          collapse < kNotCollapsed, kRouterPatience);
  if (turn == Latch::Turn::fired) {
    // Where the favourites change from step to step, none of them has a large share over many.
    const bool changing = top < kSameFavourites * layer.top;
    say(AlarmKind::collapsed_router, number, changing ? std::vector<int64_t>{} : few,
        fmt::format(
            "layer {} sends {} of its choices to {} (even would be {}): the router is collapsing",
            number, percent(changing ? layer.top : top),
            changing ? fmt::format("{} at a time, not always the same", counted(chosen, "expert"))
                     : experts_in_words(few),
            percent(k * even)));
  }
  if (turn == Latch::Turn::recovered)
    say_over(AlarmKind::collapsed_router, number,
             fmt::format("layer {} spreads its choices again", number));

  if (chosen == 1) return;  // the same as a collapse
  const double one_sided = way(largest, even, 1 / k);
  const auto sided =
      layer.one_sided.update(settled && one_sided >= kOneSided && !layer.collapse.on(),
                             one_sided < kNotOneSided, kRouterPatience);
  if (sided == Latch::Turn::fired)
    say(AlarmKind::one_sided_router, number, {favourite},
        fmt::format("layer {} sends {} of its choices to expert {} (even would be {}, every token "
                    "once {}): the router has gone one-sided",
                    number, percent(largest), favourite, percent(even), percent(1 / k)));
  if (sided == Latch::Turn::recovered)
    say_over(AlarmKind::one_sided_router, number,
             fmt::format("layer {} no longer sends nearly every token to one expert", number));
}

void Watcher::watch_dead(const LayerLoad& now, Layer& layer) {
  const int64_t number = now.layer;
  std::vector<int64_t> dead;
  const double even = 1 / static_cast<double>(layer.load.size());
  const double dead_below = kDead * even, alive_above = kAlive * even;
  int64_t quiet = 0;
  for (size_t e = 0; e < layer.load.size(); ++e) {
    // A collapsed router has dead experts by definition; they are not worth an alarm of their own.
    const bool judged = step_ > settled_at_ && !layer.collapse.on();
    const bool alive = layer.load[e] > alive_above;
    layer.dead[e].update(judged && layer.load[e] < dead_below, alive, kDeadPatience);
    layer.quiet[e] = judged && now.load[e] < dead_below ? layer.quiet[e] + 1 : 0;
    quiet += layer.quiet[e] >= kRouterPatience;
  }
  const bool many = quiet >= 2 && kManyDead * quiet >= std::ssize(layer.load);
  int64_t lasted = kDeadPatience;
  for (size_t e = 0; e < layer.load.size(); ++e) {
    if (many && layer.quiet[e] >= kRouterPatience && !layer.dead[e].on()) {
      layer.dead[e].fire();
      lasted = kRouterPatience;
    }
    if (layer.dead[e].on()) dead.push_back(static_cast<int64_t>(e));
  }
  // Where one dies after the other, an alarm each would bury the rest.
  if (std::ssize(dead) > 0 && std::ssize(dead) >= 2 * layer.told_dead) {
    layer.told_dead = std::ssize(dead);
    say(AlarmKind::dead_expert, number, dead,
        fmt::format("layer {} has sent {} of its {} experts next to nothing for {} steps: {} dead",
                    number, dead.size(), layer.dead.size(), lasted,
                    experts_in_words(dead) + (dead.size() > 1 ? " are" : " is")));
  } else if (dead.empty() && layer.told_dead > 0) {
    layer.told_dead = 0;
    say_over(AlarmKind::dead_expert, number,
             fmt::format("layer {}: all of its experts get tokens", number));
  }
}

void Watcher::watch_z(double z) {
  z_.push(z);
  if (!z_.full()) return;
  const double level = z_.median();
  lowest_z_ = std::min(lowest_z_.value_or(level), level);
  const double zero_logits = std::pow(std::log(static_cast<double>(routing_->experts)), 2);
  const auto above = [&](double share) {
    return level > share * kZTimes * *lowest_z_ && level > share * kZOverEven * zero_logits;
  };
  const auto turn = z_high_.update(step_ > settled_at_ && above(1), !above(0.7), kFigurePatience);
  if (turn == Latch::Turn::fired)
    say(AlarmKind::rising_z, -1, {},
        fmt::format(
            "the z-loss is {:.3g}, at its lowest it was {:.3g}: the router's logits are growing",
            level, *lowest_z_));
  if (turn == Latch::Turn::recovered)
    say_over(AlarmKind::rising_z, -1, fmt::format("the z-loss is down to {:.3g}", level));
}

void Watcher::watch_drops(double dropped) {
  drops_.push(dropped);
  if (!drops_.full()) return;
  const double level = drops_.median();
  lowest_drops_ = std::min(lowest_drops_.value_or(level), level);
  const double more = level - *lowest_drops_;
  const auto* buffer = routing_ ? std::get_if<BufferCapacity>(&routing_->capacity) : nullptr;
  const double even =
      buffer ? double{buffer->factor} /
                   static_cast<double>(buffer->count_choices ? 1 : config_.routing.top_k)
             : 1;
  const double room = std::min(1.0, even), most = 1 - room + kDropsMost * room;
  const auto turn =
      drops_high_.update(step_ > settled_at_ && (more >= kDropsMore || level >= most),
                         more < kDropsMore / 2 && level < most - kDropsMore / 2, kRouterPatience);
  if (turn == Latch::Turn::fired)
    say(AlarmKind::rising_drops, -1, {},
        fmt::format(
            "{} of the choices find their expert full, at the lowest it was {}: the load {} uneven",
            percent(level), percent(*lowest_drops_), more >= kDropsMore ? "has become" : "is"));
  if (turn == Latch::Turn::recovered)
    say_over(AlarmKind::rising_drops, -1,
             fmt::format("the dropped share is down to {}", percent(level)));
}

void Watcher::learn(Held& held, double x, bool ordinary) {
  held.strange = ordinary ? 0 : held.strange + 1;
  if (ordinary) held.usual.push(x);
  if (held.strange < kNewNormal) return;
  held = {RecentValues(kUsualSteps), {}};
}

void Watcher::watch_loss(double ce) {
  if (!ce_.usual.full()) return ce_.usual.push(ce);
  const double usual = ce_.usual.median(),
               deviation = std::max(ce_.usual.deviation(), kLeastDeviation * std::max(usual, 1.0));
  const double above = (ce - usual) / deviation;
  const auto turn =
      ce_.latch.update(above > kSpikeDeviations, above < kSpikeDeviations / 2, kSpikePatience);
  if (turn == Latch::Turn::fired)
    say(AlarmKind::loss_spike, -1, {},
        fmt::format(
            "the loss jumped to {:.3f} from the {:.3f} of the steps before ({:.0f} deviations)", ce,
            usual, above));
  if (turn == Latch::Turn::recovered)
    say_over(AlarmKind::loss_spike, -1, fmt::format("the loss is down to {:.3f} again", ce));
  learn(ce_, ce, above <= kSpikeDeviations);
}

void Watcher::watch_level(double ce, double lr) {
  level_.push(ce);
  long_level_.push(ce);
  if (!level_.full()) return;
  const double level = level_.median();
  if (!best_level_ || level < *best_level_) {
    best_level_ = level;
    best_step_ = step_;
  }
  const auto turn = diverging_.update(
      level > std::max(kDiverging * *best_level_, *best_level_ + kDivergingNats),
      level < std::max(kConverging * *best_level_, *best_level_ + kDivergingNats / 2),
      kFigurePatience);
  if (turn == Latch::Turn::fired)
    say(AlarmKind::diverging_loss, -1, {},
        fmt::format("the loss is about {:.3f} and was {:.3f} at step {}: it diverges", level,
                    *best_level_, best_step_));
  if (turn == Latch::Turn::recovered)
    say_over(AlarmKind::diverging_loss, -1, fmt::format("the loss is back at {:.3f}", level));

  const auto span = static_cast<int64_t>(long_level_.size());
  if (!long_level_.full() || step_ <= options_.warmup.value_or(0) + span) return;
  const double before = long_level_.oldest(long_level_.size() / 4),
               after = long_level_.newest(long_level_.size() / 4);
  const bool little = after > kLearnedLittle * std::log(static_cast<double>(config_.vocab));
  const bool still = std::abs(after - before) < kStalledGain * before,
             falling = after < (1 - 2 * kStalledGain) * before;
  const auto stall = stalled_.update(little && still && lr > options_.lr / 2 && !diverging_.on(),
                                     falling || !little, kFigurePatience);
  if (stall == Latch::Turn::fired)
    say(AlarmKind::stalled_loss, -1, {},
        fmt::format("the loss is about {:.3f}, {} steps ago it was {:.3f}: hardly anything is "
                    "being learned",
                    after, span, before));
  if (stall == Latch::Turn::recovered)
    say_over(AlarmKind::stalled_loss, -1, fmt::format("the loss falls again, to {:.3f}", after));
}

void Watcher::watch_gradient(double norm) {
  if (!gradient_.usual.full()) return gradient_.usual.push(norm);
  const double usual = gradient_.usual.median(), times = norm / std::max(usual, 1e-30);
  const auto turn =
      gradient_.latch.update(times > kGradientTimes, times < kGradientTimes / 2, kSpikePatience);
  if (turn == Latch::Turn::fired)
    say(AlarmKind::exploding_gradient, -1, {},
        fmt::format("the gradient's norm is {:.3g}, {:.0f} times its usual {:.3g}", norm, times,
                    usual));
  if (turn == Latch::Turn::recovered)
    say_over(AlarmKind::exploding_gradient, -1,
             fmt::format("the gradient's norm is down to {:.3g}", norm));
  learn(gradient_, norm, times <= kGradientTimes);
}

void Watcher::say(AlarmKind kind, int64_t layer, std::vector<int64_t> experts,
                  const std::string& seen) {
  const std::string tries =
      advice(kind, {config_, options_, routing_ ? &*routing_ : nullptr, step_});
  said_.push_back({kind, step_, layer, std::move(experts), false,
                   tries.empty() ? seen : seen + "; try " + tries});
}

void Watcher::say_over(AlarmKind kind, int64_t layer, std::string text) {
  said_.push_back({kind, step_, layer, {}, true, std::move(text)});
}

}  // namespace moe
