// One model held against another, as `moe compare` and the verbs that convert do it: what is measured, how it is printed, and the page.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analyze/data/conversion_report.h"
#include "cli/memory.h"
#include "evaluate/options.h"
#include "hub/hub.h"
#include "infer/options.h"

namespace moe::cli {

struct CompareFlags {
  std::string text;                     // empty: nothing is compared
  CompareOptions options{.window = 0};  // 0: the default
  SpeedOptions speed;
  bool no_speed = false;
  std::string html;
  int64_t top_k_experts = 0;  // of the model after
  ComputeOptions compute;
  MemoryFlags memory;
};
// How it is measured. In a `group` that verifies what was made, where windows may mean those of another text, the names of the first two begin with verify_.
FieldList measuring_fields(CompareFlags&, const std::string& group = "");

// The text as tokens of a model, and the rule of windows that both models can be read by; fails where the text has not one window, before anything is measured.
struct ComparedText {
  std::vector<int32_t> ids;
  CompareOptions options;
};
ComparedText read_compared_text(const CompareFlags&, const LoadedModel&);

// The model that others are held against, and its name.
struct NamedModel {
  std::string name;
  LoadedModel& loaded;
};

// Everything that is measured of two models alone; the caller adds how the second was made. `interrupted` ends the message when Ctrl-C comes: "; OUT is
// written".
ConversionReport compare_models(const NamedModel& before, const NamedModel& after, const CompareFlags&, const ComparedText&,
                                const std::string& interrupted = "");

void print_report(const ConversionReport&);
void write_page(const std::string& path, const ConversionReport&);

}  // namespace moe::cli
