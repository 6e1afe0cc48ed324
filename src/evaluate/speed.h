// How fast a model reads a prompt and writes tokens. Repeats are measured one at a time, so that
// several models can take turns and what else the machine does meets them alike.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "infer/session.h"

namespace moe {

// The middle one; of an even number the higher of the two.
double median(std::vector<double> x);
// Of slow[i] / fast[i], which were measured one after the other.
double median_ratio(const std::vector<double>& slow, const std::vector<double>& fast);

struct SpeedOptions {
  int64_t prompt = 512;  // tokens read, drawn at random
  int64_t tokens = 128;  // tokens written
  int64_t repeats = 3;
  uint64_t seed = 1;  // of the tokens
};

// Throws (usage), naming the field, on values outside their range and on more positions than a
// model has learned.
// `prompt`: what the length of the prompt is called.
void validate(const SpeedOptions&, const char* prompt = "prompt");
void validate(const SpeedOptions&, const ModelConfig&);

struct Speed {
  int64_t prompt = 0, tokens = 0;
  std::vector<double> prompt_seconds, decode_seconds;  // of each repeat
  int64_t decode_joins = 0;  // that threads waited for each other while the tokens of a repeat were
                             // written (core/threads.h)

  // Tokens a second: the median of the repeats.
  double prompt_rate() const { return static_cast<double>(prompt) / median(prompt_seconds); }
  double decode_rate() const { return static_cast<double>(tokens) / median(decode_seconds); }
  double joins_per_token() const {
    return static_cast<double>(decode_joins) / static_cast<double>(tokens);
  }
};

// How many times as fast `after` is as `before`: the median over the repeats of the ratio within
// one, in which both were measured next to each other.
struct SpeedUp {
  double prompt = 1, decode = 1;
};
SpeedUp speed_up(const Speed& before, const Speed& after);

// Measures one model; the session must have room for prompt + tokens, and it and the model must
// outlive this.
class SpeedProbe {
 public:
  SpeedProbe(const Model&, Session&, const SpeedOptions&);
  // Reads prompts that are not counted until one finds every expert packed. Tells when the first of
  // them is read.
  void warm_up(const std::function<void()>& on_first = {});
  // One repeat, of ids of its own, so that no expert is met more often than chance has it.
  void measure();
  const Speed& speed() const { return speed_; }

 private:
  std::vector<int32_t> next_ids();

  const Model& model_;
  Session& session_;
  SpeedOptions options_;
  int64_t drawn_ = 0;  // prompts so far
  Speed speed_;
};

// Warms all up, then measures each in turn, every second round backwards. `progress` is told how
// many of all repeats are done.
void measure_in_turns(std::span<SpeedProbe> probes, int64_t repeats,
                      const std::function<void(int64_t done, int64_t total)>& progress = {});

}  // namespace moe
