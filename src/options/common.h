// Fields that many verbs have, and what they come to.
#pragma once

#include "core/memory.h"
#include "options/fields.h"

namespace moe {

// "threads", and how many that is: 0 means all cores.
void add_threads(FieldList&, int& threads);
int thread_count(int asked);

// "memory", and where a model reads text forward "pack_memory".
void add_memory_limits(FieldList&, MemoryLimits&, bool packs = true);

}  // namespace moe
