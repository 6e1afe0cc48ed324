// The option lists of what is measured of a model on a text.
#pragma once

#include "evaluate/score.h"
#include "evaluate/speed.h"
#include "options/fields.h"

namespace moe {

// A window of 0, which is no option for score(), stands for default_window.
FieldList fields(ScoreOptions&);
FieldList fields(SpeedOptions&);

}  // namespace moe
