// One model held against another on a text: the body of `moe compare`, and what the conversions
// measure of what they made.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "analyze/data/conversion_report.h"
#include "evaluate/options.h"
#include "hub/hub.h"
#include "infer/options.h"
#include "jobs/forward_memory.h"
#include "options/read.h"

namespace moe {

struct CompareJob {
  std::string text;                     // empty: nothing is compared
  std::vector<std::string> others;      // further texts, of two files only
  std::vector<std::string> also;        // further models after, of two files only
  CompareOptions options{.window = 0};  // 0: the default
  SpeedOptions speed;
  bool no_speed = false;
  std::string html, pictures;  // a page, and a folder of its charts; empty: none
  int64_t top_k_experts = 0;   // of the model after
  ComputeOptions compute;
  MemoryOptions memory;
};
// How it is measured. In a `group` that verifies what was made, where windows may mean those of
// another text, the names of the first two begin with verify_.
FieldList measuring_fields(CompareJob&, const std::string& group = "");
// Fails (usage) on options of the speeds where they are left out.
void check_speed_options(const CompareJob&, const Given&);

// The text as tokens of a model, and the rule of windows that both models can be read by; fails
// where the text has not one window, whose option is `window`, before anything is measured.
struct ComparedText {
  std::string name;
  std::vector<int32_t> ids;
  CompareOptions options;
};
ComparedText read_compared_text(const std::string& text, const CompareJob&, const LoadedModel&,
                                std::string_view window = "window");

// The model that others are held against, and its name.
struct NamedModel {
  std::string name;
  LoadedModel& loaded;
};

// Everything that is measured of two models alone, on one text or on several; the caller adds how
// the second was made. `interrupted` ends the message when the work is stopped: "; OUT is written".
ConversionReport compare_models(const NamedModel& before, const NamedModel& after,
                                const CompareJob&, std::span<const ComparedText>, const Watch&,
                                const std::string& interrupted = "");
// Of two files, with the page that was asked for.
ConversionReport compare_files(const std::string& before, const std::string& after, CompareJob,
                               const Watch&);

}  // namespace moe
