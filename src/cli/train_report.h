// The page that `moe train` leaves beside a model.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "model/model.h"
#include "text/corpus.h"
#include "text/tokenizer.h"

namespace moe::cli {

// Most tokens that are looked at of such texts.
int64_t report_tokens(const Corpus& texts, int64_t context);

// Looks at the model on part of each domain of `texts`, reads OUT/metrics.jsonl and writes OUT/report.html, whose path it returns: a few seconds for a small
// model. `texts`: held-out where there are some, else what was trained on. `progress` is told how many windows of how many are done. Fails when the texts are
// too short to look at or the page cannot be written.
std::string write_report(Model&, const Tokenizer&, const Corpus& texts, const std::string& out, int threads, DType dtype,
                         const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace moe::cli
