// Alarms: what somebody who watches the figures of a training run would say aloud, and what they
// would try. A watcher is fed with every step; its thresholds are relative to the recipe (K of E)
// and to the run's own past, and nothing is said before it has lasted for several steps. It reads
// figures and changes none.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/trainer.h"

namespace moe {

enum class AlarmKind {
  collapsed_router,
  one_sided_router,
  dead_expert,
  rising_z,
  rising_drops,
  loss_spike,
  diverging_loss,
  stalled_loss,
  exploding_gradient
};

// A row of the table; docs/training.md says what each means and when it is said.
struct AlarmInfo {
  AlarmKind kind;
  std::string_view name;  // as metrics.jsonl spells it
};
const std::vector<AlarmInfo>& alarm_table();  // in the order of the enum
std::string_view name_of(AlarmKind);

struct Alarm {
  AlarmKind kind{};
  int64_t step = 0;
  int64_t layer = -1;            // -1: it concerns the whole model
  std::vector<int64_t> experts;  // that it concerns
  bool recovered = false;        // it is over; counts as no alarm
  std::string text;  // what was seen, and for an alarm what to try, fields marked; without the step
};

// The last values of a figure.
class RecentValues {
 public:
  explicit RecentValues(size_t most) : most_(most) {}
  void push(double x);
  void clear() { values_.clear(); }
  size_t size() const { return values_.size(); }
  bool full() const { return size() == most_; }
  double median() const;          // of at least one value
  double oldest(size_t n) const;  // median of the n oldest
  double newest(size_t n) const;
  double deviation() const;  // 1.4826 times the median distance from the median: the standard
                             // deviation of normal values

 private:
  size_t most_;
  std::deque<double> values_;
};

// On after `patience` bad steps in a row, off after as many good ones.
class Latch {
 public:
  enum class Turn { none, fired, recovered };
  Turn update(bool bad, bool good, int64_t patience);
  // On at once.
  void fire() { on_ = true, run_ = 0; }
  bool on() const { return on_; }

 private:
  bool on_ = false;
  int64_t run_ = 0;
};

class Watcher {
 public:
  // `options` resolved.
  Watcher(const ModelConfig&, const TrainOptions& options);
  // Steps in order; usually returns nothing.
  std::vector<Alarm> feed(const StepResult&);

 private:
  struct Layer {
    std::vector<double> load;  // [E] running mean
    // running mean of what the K busiest experts of each step get, whichever they are
    double top = 0;
    Latch collapse, one_sided;
    std::vector<Latch> dead;     // [E]
    std::vector<int64_t> quiet;  // [E] steps in a row without tokens to speak of, once it is judged
    int64_t told_dead = 0;       // how many the last alarm named
  };
  // A figure that is held against what is usual for it; the usual is learned from the steps that
  // are not out of the ordinary.
  struct Held {
    RecentValues usual;
    Latch latch;
    int64_t strange = 0;  // steps in a row out of the ordinary
  };

  void watch_layer(const LayerLoad&, Layer&);
  void watch_few(int64_t number, Layer&);
  void watch_dead(const LayerLoad&, Layer&);
  void watch_z(double z);
  void watch_drops(double dropped);
  void watch_loss(double ce);
  void watch_level(double ce, double lr);
  void watch_gradient(double norm);
  void learn(Held&, double x, bool ordinary);
  void say(AlarmKind, int64_t layer, std::vector<int64_t> experts, const std::string& seen);
  void say_over(AlarmKind, int64_t layer, std::string text);

  TrainOptions options_;
  ModelConfig config_;
  std::optional<RoutingSpec> routing_;  // of training; absent for a dense model
  bool can_be_uneven_ = false;  // a router that learns decides how many tokens an expert gets
  int64_t settled_at_ = 0;      // until then the router is not judged
  int64_t step_ = 0;
  std::vector<Alarm> said_;
  std::vector<Layer> layers_;
  Held ce_, gradient_;
  RecentValues z_, drops_, level_, long_level_;
  std::optional<double> lowest_z_, lowest_drops_, best_level_;
  int64_t best_step_ = 0;
  Latch z_high_, drops_high_, diverging_, stalled_;
};

}  // namespace moe
