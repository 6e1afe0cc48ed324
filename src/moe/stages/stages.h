// The stages a router is made of. Each is a variant; each member carries its own parameters and nothing reads another stage's. Order:
//   noise -> logits -> score -> select -> weigh -> second -> capacity -> weigh over the kept,   and beside them the auxiliary losses.
// A member names itself (kName) and lists its parameters (fields), so that JSON, `moe recipes` and the tests need no list of their own
// (moe/recipes/spec_json.h).
#pragma once

#include "moe/losses/aux_loss.h"
#include "moe/stages/capacity.h"
#include "moe/stages/logits.h"
#include "moe/stages/noise.h"
#include "moe/stages/score.h"
#include "moe/stages/select.h"
#include "moe/stages/weigh.h"
