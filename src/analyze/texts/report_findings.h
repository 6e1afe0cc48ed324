// What a report says in words: what the model is, what stands out in its routing. Plain text, not
// yet escaped.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "analyze/data/report.h"

namespace moe {

// A figure of the strip on top: "Parameters", "2.69M", "924k active for a token".
struct Fact {
  std::string name, value, more;
};
std::vector<Fact> facts_of(const RoutingReport&, const TrainingHistory*);

// "4 MoE layers of 8 experts, 2 for each token; recipe olmoe".
std::string subtitle_of(const RoutingReport&);

// What is wrong, the worst first: a collapsed router, dead experts, dropped choices, alarms of the
// run. Stands before everything else that is said.
std::vector<std::string> troubles_of(const RoutingReport&, const TrainingHistory*);

// Sentences, the most telling first; none where nothing was measured. No expert of a layer that is
// in trouble is praised for a specialty.
std::vector<std::string> findings_of(const RoutingReport&);

}  // namespace moe
