#include "serve/metrics.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace moe::serve {
namespace {

std::string heading(const std::string& name, const char* type, const std::string& help) {
  return fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

std::string number(const std::string& name, const char* type, const std::string& help,
                   int64_t value) {
  return heading(name, type, help) + fmt::format("{} {}\n", name, value);
}

}  // namespace

void Histogram::observe(double seconds) {
  size_t i = 0;
  while (i < kBounds.size() && seconds > kBounds[i]) ++i;
  ++counts_[i];
  sum_ += seconds;
}

std::string Histogram::lines(const std::string& name, const std::string& help) const {
  std::string out = heading(name, "histogram", help);
  int64_t total = 0;
  for (size_t i = 0; i < kBounds.size(); ++i)
    out += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, kBounds[i], total += counts_[i]);
  total += counts_.back();
  return out + fmt::format("{}_bucket{{le=\"+Inf\"}} {}\n{}_sum {}\n{}_count {}\n", name, total,
                           name, sum_, name, total);
}

void Metrics::count_request(const std::string& path, int status) {
  const std::lock_guard lock(mutex_);
  ++requests_[{path, status}];
}

void Metrics::count_prompt(int64_t tokens, int64_t cached) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += tokens;
  cached_tokens_ += cached;
}

void Metrics::count_guesses(int64_t drafted, int64_t accepted) {
  const std::lock_guard lock(mutex_);
  drafted_tokens_ += drafted;
  accepted_tokens_ += accepted;
}

void Metrics::observe_first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  first_token_.observe(seconds);
}

void Metrics::observe_tokens(int64_t tokens, double seconds) {
  const std::lock_guard lock(mutex_);
  written_tokens_ += tokens;
  if (seconds > 0)
    for (int64_t i = 0; i < tokens; ++i) per_token_.observe(seconds / static_cast<double>(tokens));
}

void Metrics::set_load(int64_t waiting, int64_t active,
                       const std::vector<std::vector<int64_t>>& expert_rows) {
  const std::lock_guard lock(mutex_);
  waiting_ = waiting;
  active_ = active;
  expert_rows_ = expert_rows;
}

Json Metrics::experts() const {
  const std::lock_guard lock(mutex_);
  return {{"layers", layers_}, {"rows", expert_rows_}};
}

std::string Metrics::prometheus() const {
  const std::lock_guard lock(mutex_);
  std::string out = heading("moe_requests_total", "counter", "Requests answered.");
  for (const auto& [key, count] : requests_)
    out += fmt::format("moe_requests_total{{path=\"{}\",status=\"{}\"}} {}\n", key.first,
                       key.second, count);
  out += number("moe_prompt_tokens_total", "counter", "Tokens of prompts.", prompt_tokens_);
  out += number("moe_cached_prompt_tokens_total", "counter",
                "Tokens of prompts that were found in the prefix cache.", cached_tokens_);
  out += number("moe_generated_tokens_total", "counter", "Tokens written.", written_tokens_);
  out += number("moe_drafted_tokens_total", "counter", "Tokens that a draft model guessed.",
                drafted_tokens_);
  out += number("moe_accepted_tokens_total", "counter", "Of these, those that were written.",
                accepted_tokens_);
  out += number("moe_texts_waiting", "gauge", "Texts that wait for their turn.", waiting_);
  out += number("moe_texts_active", "gauge", "Texts under way.", active_);
  out += first_token_.lines("moe_first_token_seconds", "From the request to its first token.");
  out += per_token_.lines("moe_token_seconds", "Between two tokens of a reply.");
  out += heading("moe_expert_rows_total", "counter", "Rows that an expert computed.");
  for (size_t i = 0; i < expert_rows_.size(); ++i)
    for (size_t e = 0; e < expert_rows_[i].size(); ++e)
      out += fmt::format("moe_expert_rows_total{{layer=\"{}\",expert=\"{}\"}} {}\n", layers_[i], e,
                         expert_rows_[i][e]);
  return out;
}

}  // namespace moe::serve
