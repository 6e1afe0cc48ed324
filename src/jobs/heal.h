// Some minutes of training behind a conversion that took something from a model, with the model
// that it came from as the teacher.
#pragma once

#include <string>
#include <vector>

#include "core/watch.h"
#include "jobs/new_model.h"
#include "options/read.h"
#include "train/options.h"

namespace moe {

struct HealOptions {
  double minutes = 0;             // 0: none
  std::vector<std::string> data;  // texts; empty: what the conversion was calibrated on
  double lr = 1e-3;
  double teacher_weight = 0.9;
  Tune tune = Tune::all;  // all, or adapters
};
FieldList fields(HealOptions&);
// Fails (usage) where OUT or its type do not go with it; asked before the conversion.
void check_heal(const HealOptions&, const MakeOptions&, const Given&);

// Where the damaged model lies while it is healed, and stays: OUT itself is the run's folder.
std::string damaged_folder(const std::string& out);

struct Healed {
  int64_t steps = 0, tokens = 0;
  double ce = 0, kl = 0;  // of the last step, nats per token
  Tune tune = Tune::all;
};
// Trains the model in damaged_folder(out) on `data`; `teacher` is a model's path. Where it is
// interrupted the run is saved, and the error says how it goes on.
Healed heal(const HealOptions&, const MakeOptions&, const std::string& teacher,
            const std::string& data, const Watch&);

}  // namespace moe
