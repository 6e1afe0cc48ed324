// The body of `moe quiz`: models answer the same questions, which are made of a text.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"
#include "evaluate/mean.h"
#include "evaluate/quiz.h"
#include "infer/options.h"
#include "jobs/forward_memory.h"

namespace moe {

struct QuizJob {
  std::string text;
  std::vector<std::string> models;
  QuizOptions quiz;
  ComputeOptions compute;
  MemoryOptions memory;
};
// But for the models.
FieldList fields(QuizJob&);

struct QuizResult {
  std::string model;
  Mean continuation, word;  // share of the questions that were answered right
  // Less what the first model has, question by question; 0 for the first.
  Mean continuation_change, word_change;
};
struct QuizReply {
  std::string text;
  QuizOptions quiz;
  std::vector<QuizResult> models;
};
QuizReply quiz_models(const QuizJob&, const Watch&);
Json to_json(const QuizReply&);

}  // namespace moe
