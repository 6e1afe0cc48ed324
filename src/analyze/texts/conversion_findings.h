// What the report of a conversion says in words and in a table; the screen and the page say the
// same. Plain text, not yet escaped.
#pragma once

#include <string>
#include <vector>

#include "analyze/data/conversion_report.h"
#include "analyze/texts/report_findings.h"

namespace moe {

// A figure of both models and what became of it: "perplexity", "18.63", "27.91", "1.498×".
struct ComparedRow {
  std::string key;  // of its definition (analyze/data/definitions.h)
  std::string name, before, after, change;
};
// What they predict on a text; what they cost, speed first and then size; and both.
std::vector<ComparedRow> prediction_rows(const Comparison&);
std::vector<ComparedRow> cost_rows(const ConversionReport&);
std::vector<ComparedRow> compared_rows(const ConversionReport&);

// How far the predictions are apart, in one line.
std::string distance_line(const Comparison&);

// The strip on top of the page: quality and speed side by side.
std::vector<Fact> facts_of(const ConversionReport&);
// Sentences, the most telling first.
std::vector<std::string> findings_of(const ConversionReport&);
std::string subtitle_of(const ConversionReport&);

// A MoE layer's balance from its counts: max / mean - 1, and the experts with less than a hundredth
// of the mean.
struct LoadBalance {
  double max_vio = 0;
  int64_t dead = 0;
};
LoadBalance balance_of(const LayerChoices&);

std::string ratio(double x);  // 1.21×

}  // namespace moe
