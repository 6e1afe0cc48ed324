// Some minutes of training behind a conversion that took something from a model, with the model
// that it came from as the teacher.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/watch.h"
#include "hub/hub.h"
#include "jobs/new_model.h"
#include "options/read.h"
#include "train/options.h"
#include "train/trainer.h"

namespace moe {

struct HealOptions {
  double minutes = 0;             // 0: none
  std::vector<std::string> data;  // texts; empty: what the conversion was calibrated on
  double lr = 1e-3;
  double teacher_weight = 0.9;
  Tune tune = Tune::all;  // all, or adapters
};
FieldList fields(HealOptions&);
// Fails (usage) where a value has no meaning, or OUT or its type do not go with it; asked before
// the conversion.
void check_heal(const HealOptions&, const MakeOptions&, const Given&);
// Opens what heals, as tokens of the model that is converted: fails where a text is missing, too
// short or holds preference pairs, and where OUT lies in it. `calibration`: the text that heals
// where no other is named. Asked before the conversion, too.
void check_heal_texts(const HealOptions&, const MakeOptions&, const std::string& calibration,
                      const LoadedModel& model);

// Where the damaged model lies while it is healed, and stays: OUT itself is the run's folder.
std::string damaged_folder(const std::string& out);
// That folder, and those above it that are made for it, while no run stands on it yet: what fails
// before leaves nothing, which would be in the way of the next try. OUT is a name that is free.
class Damaged {
 public:
  explicit Damaged(const std::string& out);
  ~Damaged();
  Damaged(const Damaged&) = delete;
  Damaged& operator=(const Damaged&) = delete;
  void keep() { is_kept_ = true; }

 private:
  std::string folder_;
  std::vector<std::string> made_;  // innermost first
  bool is_kept_ = false;
};

struct Healed {
  int64_t steps = 0, tokens = 0;
  // of the last step that had something to predict, nats per token; absent: none had
  std::optional<double> ce, kl;
  Tune tune = Tune::all;

  void took(const StepResult&);
};
// Without what is not known.
Json to_json(const Healed&);
// Trains the model in damaged_folder(out), which is kept from the first step on; `teacher` is a
// model's path, `calibration` the text where no other is named. Where it is interrupted the run is
// saved, and the error says how it goes on.
Healed heal(const HealOptions&, const MakeOptions&, const std::string& teacher,
            const std::string& calibration, Damaged&, const Watch&);

}  // namespace moe
