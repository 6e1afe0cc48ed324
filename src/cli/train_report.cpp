#include "cli/train_report.h"

#include <algorithm>

#include "analyze/data/history.h"
#include "analyze/data/routing_stats.h"
#include "analyze/pages/html_report.h"
#include "core/file.h"
#include "text/loader.h"

namespace moe::cli {
namespace {

constexpr int64_t kTokens = 20'000;  // of each domain

}  // namespace

int64_t report_tokens(const Corpus& texts, int64_t context) {
  return std::min(texts.size(), kTokens * static_cast<int64_t>(domain_shares(texts, context, {}).size()));
}

std::string write_report(Model& model, const Tokenizer& tokenizer, const Corpus& texts, const std::string& out, int threads, DType dtype,
                         const std::function<void(int64_t, int64_t)>& progress) {
  Run run(threads, dtype);
  RoutingReport report = routing_report(model, run, tokenizer, texts, {.tokens = kTokens}, nullptr, progress);
  report.model = out;
  if (!report.moe_layers.empty()) report.routing = name_of(default_eval(model.config().routing));
  const std::optional<TrainingHistory> history = read_history(out);
  const std::string path = out + "/report.html";
  write_atomically(path, html_report(report, history ? &*history : nullptr));
  return path;
}

}  // namespace moe::cli
