// The body of `moe merge`: from the files of several dense models, with prompts that stand for
// each, to that of one whose experts they are.
#pragma once

#include "convert/merge.h"
#include "jobs/new_model.h"
#include "options/read.h"

namespace moe {

struct MergeJob : MakeOptions {  // `in` is the base
  MergeOptions options;
  std::vector<std::string> experts;  // MODEL or MODEL:PROMPTS
  std::string recipe;  // empty: the one of models with the same attention, renormalised
  int64_t top_k = 2;
};
FieldList fields(MergeJob&);
// Fails (usage) on what does not go together; asked first.
void check_given(const MergeJob&, const Given&);

struct MergeReply : Made {
  Gates gates = Gates::hidden;
  std::vector<MergedLayer> layers;
  std::vector<std::string> notes;
};
MergeReply merge_models(const MergeJob&, const Watch&);
Json to_json(const MergeReply&, const Spelling& spell = {});

// "1.23", "infinite"
std::string condition_in_words(double condition);

}  // namespace moe
