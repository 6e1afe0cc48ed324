// The body of `moe prune`: from a model's file to that of the model without the experts that do
// least on a text.
#pragma once

#include <optional>

#include "convert/prune.h"
#include "jobs/calibration.h"
#include "jobs/heal.h"
#include "jobs/new_model.h"

namespace moe {

struct PruneJob : MakeOptions {
  PruneOptions options;
  CalibrationOptions calibration;
  std::string verify;  // a text that the models are scored on; empty: none
  HealOptions heal;
};
FieldList fields(PruneJob&);
// Fails (usage) on what does not go together; asked first.
void check_given(const PruneJob&, const Given&);

struct PruneReply : Made {
  std::vector<PrunedLayer> layers;
  Saliency saliency = Saliency::output;
  struct Verified {
    VerifyText text;
    double before = 0, after = 0;  // perplexity
    std::optional<double> healed;
  };
  std::optional<Verified> verified;
  std::optional<Healed> healed;
};
PruneReply prune_model(const PruneJob&, const Watch&);
Json to_json(const PruneReply&, const Spelling& spell = {});

}  // namespace moe
