// Fields that many verbs have, and what they come to.
#pragma once

#include "core/device_kind.h"
#include "core/memory.h"
#include "options/fields.h"

namespace moe {

// "threads", and how many that is: 0 means all cores.
void add_threads(FieldList&, int& threads);
int thread_count(int asked);

// "device": what computes.
std::string_view name_of(DeviceKind);
FieldEntry add_device(FieldList&, DeviceKind& device);

// Bytes as people write them, 30G; messages name the field.
FieldValue bytes_of(std::optional<int64_t>&, const char* name);

// "memory", and where a model reads text forward "pack_memory".
void add_memory_limits(FieldList&, MemoryLimits&, bool packs = true);

}  // namespace moe
