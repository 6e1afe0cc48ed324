// What Prometheus reads: counters, gauges, and histograms whose buckets add up.
#include "serve/metrics.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace moe::test::metrics_test {
namespace {

TEST(Metrics, AreWhatPrometheusReads) {
  serve::Metrics m({1, 3});
  m.count_request("/v1/completions", 200);
  m.count_request("/v1/completions", 200);
  m.count_request("/v1/completions", 429);
  m.count_prompt(100, 64);
  m.count_guesses(7, 4);
  m.count_guesses(2, 1);
  m.observe_first_token(0.3);
  m.observe_tokens(2, 0.04);
  m.observe_tokens(1, 0);  // the first one of a reply follows none
  m.set_load(5, 8, {{1, 2}, {3, 4}});
  const std::string text = m.prometheus();
  const auto has = [&](const std::string& line) {
    EXPECT_NE(text.find("\n" + line + "\n"), std::string::npos) << line << "\n" << text;
  };
  has("moe_requests_total{path=\"/v1/completions\",status=\"200\"} 2");
  has("moe_requests_total{path=\"/v1/completions\",status=\"429\"} 1");
  has("moe_prompt_tokens_total 100");
  has("moe_cached_prompt_tokens_total 64");
  has("moe_generated_tokens_total 3");
  has("moe_drafted_tokens_total 9");
  has("moe_accepted_tokens_total 5");
  has("moe_texts_waiting 5");
  has("moe_texts_active 8");
  has("moe_first_token_seconds_bucket{le=\"0.25\"} 0");
  has("moe_first_token_seconds_bucket{le=\"0.5\"} 1");
  has("moe_first_token_seconds_bucket{le=\"+Inf\"} 1");
  has("moe_token_seconds_count 2");
  has("moe_expert_rows_total{layer=\"3\",expert=\"1\"} 4");
  has("# TYPE moe_token_seconds histogram");
  EXPECT_EQ(m.experts(), Json({{"layers", {1, 3}}, {"rows", {{1, 2}, {3, 4}}}}));
}

}  // namespace
}  // namespace moe::test::metrics_test
