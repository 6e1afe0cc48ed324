// The body of `moe upcycle`: from a dense model's file to that of the model whose experts are
// copies of its FFNs.
#pragma once

#include "convert/logit_difference.h"
#include "convert/upcycle.h"
#include "jobs/new_model.h"
#include "moe/recipes/wanted_routing.h"
#include "options/read.h"

namespace moe {

struct UpcycleJob : MakeOptions {
  // without a recipe it is the one of models with the same attention, renormalised
  WantedRouting routing;
  UpcycleOptions options;
};
FieldList fields(UpcycleJob&);
// Fails (usage) on what does not go together; asked first.
void check_given(const UpcycleJob&, const Given&);

struct UpcycleReply : Made {
  int64_t granularity = 1;
  double weight_sum = 1, down_scale = 1;
  std::string why_not_exact;   // as in Upcycled
  LogitDifference difference;  // of the two models, on a short text
};
UpcycleReply upcycle_model(const UpcycleJob&, const Watch&);
Json to_json(const UpcycleReply&, const Spelling& spell = {});

}  // namespace moe
