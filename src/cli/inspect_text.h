// `moe inspect MODEL --text FILE...`: what the routers do on texts, as a table, as JSON and as a page.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analyze/data/routing_stats.h"
#include "core/json.h"
#include "jobs/forward_memory.h"
#include "options/read.h"
#include "tensor/dtype.h"

namespace moe::cli {

struct TextFlags {
  std::vector<std::string> texts;
  std::string against, html, pictures;
  RoutingStatsOptions stats;
  int threads = 0;
  MemoryOptions memory;
};

FieldList fields(TextFlags&);
// A usage error where a flag asks for something that only a text gives.
void check_text_options(const TextFlags& flags, const Given& given);

// `dtype` absent: natural_dtype. Looks at the model on the texts and writes the page when one was asked for. Adds "routing" and, where the folder has a
// metrics.jsonl, "history" to `json`; without one (null) the tables go to the screen.
void inspect_text(const std::string& model, const TextFlags& flags, std::optional<DType> dtype, Json* json);

}  // namespace moe::cli
