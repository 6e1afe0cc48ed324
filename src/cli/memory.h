// Flags and messages about memory: the same for every verb that runs a model.
#pragma once

#include <span>
#include <string>

#include "core/json.h"
#include "infer/memory_plan.h"
#include "options/common.h"

namespace moe::cli {

struct MemoryFlags {
  MemoryLimits limits;
  bool show = false;     // say what is foretold
  bool hot_set = false;  // print it in any case
};
// The limits and what to show; `packs`: a model reads text forward.
void add_memory(FieldList&, MemoryFlags& flags, bool packs = true);
void add_show_memory(FieldList&, bool& show);
// Of the verbs that write text.
void add_hot_set(FieldList&, MemoryFlags& flags);

// Sets what packed copies may take, before the models run, and says on standard error where the weights do not fit the memory. True: they do not. Throws
// OutOfMemory where the rest does not fit; `advice` says what to lower. `path`: of the first model; `beside`: what else will be taken.
bool prepare_memory(const std::string& path, std::span<const ForwardUse>, const MemoryNeed& beside, const MemoryFlags&, const std::string& advice);
inline bool prepare_memory(const std::string& path, const ForwardUse& use, const MemoryNeed& beside, const MemoryFlags& flags, const std::string& advice) {
  return prepare_memory(path, std::span(&use, 1), beside, flags, advice);
}
// Throws where work without a forward does not fit; says what is foretold where --show-memory asks.
void check_memory(const MemoryNeed&, const MemoryFlags&, const std::string& advice);

// The hot set, a line for each share, on standard error; and as JSON.
void tell_hot_set(const HotSet&);
Json to_json(const HotSet&);

}  // namespace moe::cli
