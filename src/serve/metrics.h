// What a server counts, as Prometheus reads it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"

namespace moe::serve {

// Counts of observations up to each of the bounds, as Prometheus' histograms are.
class Histogram {
 public:
  void observe(double seconds);
  // Its lines under `name`.
  std::string lines(const std::string& name, const std::string& help) const;

 private:
  static constexpr std::array kBounds = {0.005, 0.01, 0.025, 0.05, 0.1,  0.25,
                                         0.5,   1.0,  2.5,   5.0,  10.0, 60.0};  // seconds
  std::array<int64_t, kBounds.size() + 1> counts_{};
  double sum_ = 0;
};

// Its functions may be called from any thread.
class Metrics {
 public:
  // `layers`: of the model, those that route, in order.
  explicit Metrics(std::vector<int64_t> layers) : layers_(std::move(layers)) {}

  void count_request(const std::string& path, int status);
  // A text that was read: its prompt, and how much of that was found read already.
  void count_prompt(int64_t tokens, int64_t cached);
  // Tokens of a text that a draft guessed, and how many of them came.
  void count_guesses(int64_t drafted, int64_t accepted);
  void observe_first_token(double seconds);
  // Tokens of a reply that came together, and the time since those before.
  void observe_tokens(int64_t tokens, double seconds);
  // After a step: texts that wait and that are under way, and the rows of each expert [E] of each
  // MoE layer since the start.
  void set_load(int64_t waiting, int64_t active,
                const std::vector<std::vector<int64_t>>& expert_rows);

  std::string prometheus() const;
  // {"layers": [...], "rows": [[...]...]}
  Json experts() const;

 private:
  mutable std::mutex mutex_;
  std::vector<int64_t> layers_;
  std::map<std::pair<std::string, int>, int64_t> requests_;  // by path and status
  int64_t prompt_tokens_ = 0, cached_tokens_ = 0, written_tokens_ = 0, drafted_tokens_ = 0,
          accepted_tokens_ = 0, waiting_ = 0, active_ = 0;
  Histogram first_token_, per_token_;
  std::vector<std::vector<int64_t>> expert_rows_;
};

}  // namespace moe::serve
