// The stages a router is made of. Each is a variant; each member carries its own parameters and nothing reads another stage's. Order:
//   noise -> logits -> score -> select -> weigh -> second -> capacity -> weigh over the kept,   and beside them the auxiliary losses.
// A member names itself (kName) and lists its parameters (fields), so that JSON, `moe recipes` and the tests need no list of their own (moe/spec_json.h).
#pragma once

#include "moe/aux_loss.h"
#include "moe/capacity.h"
#include "moe/logits.h"
#include "moe/noise.h"
#include "moe/score.h"
#include "moe/select.h"
#include "moe/weigh.h"
