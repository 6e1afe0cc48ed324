// The body of `moe prune`: from a model's file to that of the model without the experts that do
// least on a text.
#pragma once

#include <optional>

#include "convert/prune.h"
#include "jobs/calibration.h"
#include "jobs/new_model.h"

namespace moe {

struct PruneJob : MakeOptions {
  PruneOptions options;
  CalibrationOptions calibration;
  std::string verify;  // a text that both models are scored on; empty: none
};
FieldList fields(PruneJob&);

struct PruneReply : Made {
  std::vector<PrunedLayer> layers;
  Saliency saliency = Saliency::output;
  struct Verified {
    VerifyText text;
    double before = 0, after = 0;  // perplexity
  };
  std::optional<Verified> verified;
};
PruneReply prune_model(const PruneJob&, const Watch&);
Json to_json(const PruneReply&, const Spelling& spell = {});

}  // namespace moe
