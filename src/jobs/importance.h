// What a quantised file's errors are weighed by: measured on a text, or read from a file.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/watch.h"
#include "hub/error_shares.h"
#include "hub/hub.h"
#include "hub/importance.h"
#include "jobs/calibration.h"
#include "jobs/forward_memory.h"
#include "options/read.h"

namespace moe {

struct ImportanceOptions {
  CalibrationOptions calibration;
  std::string imatrix;       // a file to read it from; empty: none
  std::string save_imatrix;  // a file to write what was measured to; empty: none
  bool gptq = false;         // rounding errors are made good

  bool asked() const { return !calibration.text.empty() || !imatrix.empty(); }
};
FieldList fields(ImportanceOptions&);
// Fails (usage) on what does not go together.
void check_given(const ImportanceOptions&, const Given&);

struct MeasuredImportance {
  Importance importance;
  std::string from;                          // the text, or the file
  std::optional<double> perplexity;          // of the calibration text
  std::shared_ptr<ErrorShares> shares = {};  // where they were asked for
};
// Of a model that is going to be a GGUF; options.asked(). What was measured is saved where that is
// asked for. `judge`: the text that will judge the result, which may not be the calibration text;
// null: none.
MeasuredImportance find_importance(const ImportanceOptions&, LoadedModel&, const std::string& in,
                                   const VerifyText* judge, int threads, const MemoryOptions&,
                                   const Watch&);

}  // namespace moe
