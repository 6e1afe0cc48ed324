// What the routers of a model do on texts: the body of `moe inspect MODEL --text`, and of the page
// that `moe train` leaves beside a model.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "analyze/data/routing_stats.h"
#include "core/json.h"
#include "jobs/forward_memory.h"
#include "options/read.h"
#include "text/corpus.h"

namespace moe {

struct InspectTextJob {
  std::string model;
  std::vector<std::string> texts;
  // an earlier checkpoint; a page; a folder for its charts; empty: none
  std::string against, html, pictures;
  RoutingStatsOptions stats;
  std::optional<DType> dtype;  // absent: natural_dtype
  int threads = 0;
  MemoryOptions memory;
};
// But for the model and the dtype.
FieldList fields(InspectTextJob&);
// Fails (usage) where a field asks for something that only a text gives.
void check_given(const InspectTextJob&, const Given&);

struct InspectedText {
  RoutingReport report;
  std::optional<TrainingHistory> history;  // where the folder has a metrics.jsonl
};
// Writes the page and the pictures too, where they were asked for.
InspectedText inspect_text(const InspectTextJob&, const Watch&);
// As "routing" and "history".
void add_to_json(Json& reply, const InspectedText&);

// Most tokens that are looked at of such texts.
int64_t report_tokens(const Corpus& texts, int64_t context);

// Looks at the model on part of each domain of `texts`, in windows as long as what it was trained
// on, which need no more memory than that did, reads OUT/metrics.jsonl and writes OUT/report.html,
// whose path it returns: a few seconds for a small model. `texts`: held-out where there are some,
// else what was trained on. `progress` is told how many windows of how many are done. Fails when
// the texts are too short to look at or the page cannot be written.
std::string write_report(Model&, const Tokenizer&, const Corpus& texts, int64_t window,
                         const std::string& out, int threads, DType dtype,
                         const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace moe
