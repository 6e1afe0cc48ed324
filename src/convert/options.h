// The option lists of the conversions that make one model out of others.
#pragma once

#include "convert/carve.h"
#include "convert/merge.h"
#include "convert/prune.h"
#include "convert/upcycle.h"
#include "options/fields.h"

namespace moe {

FieldList fields(CarveOptions&);
// Without the routing, which is said in fields of its own (moe/recipes/wanted_routing.h).
FieldList fields(UpcycleOptions&);
FieldList fields(PruneOptions&);
FieldList fields(MergeOptions&);

}  // namespace moe
