// What may be taken of memory by work that runs models: the same options and messages for all of
// it.
#pragma once

#include <span>
#include <string>

#include "core/json.h"
#include "core/watch.h"
#include "infer/memory_plan.h"
#include "options/common.h"

namespace moe {

struct MemoryOptions {
  MemoryLimits limits;
  bool show = false;     // say what is estimated
  bool hot_set = false;  // say it in any case
};
// The limits and what to show; `packs`: a model reads text forward.
void add_memory(FieldList&, MemoryOptions&, bool packs = true);
void add_show_memory(FieldList&, bool& show);
// Of the work that writes text.
void add_hot_set(FieldList&, MemoryOptions&);

// Sets what packed copies may take, before the models run, and tells where the weights do not fit
// the memory. True: they do not. Throws OutOfMemory where the rest does not fit; `advice`, with its
// fields marked, says what to lower. `path`: of the first model; `beside`: what else will be taken.
bool prepare_memory(const std::string& path, std::span<const ForwardUse>, const MemoryNeed& beside,
                    const MemoryOptions&, const std::string& advice, const Watch&);
inline bool prepare_memory(const std::string& path, const ForwardUse& use, const MemoryNeed& beside,
                           const MemoryOptions& options, const std::string& advice,
                           const Watch& watch) {
  return prepare_memory(path, std::span(&use, 1), beside, options, advice, watch);
}
// Throws what prepare_memory would, for a model whose turn comes later.
void check_forwards(const std::string& path, std::span<const ForwardUse>, const MemoryNeed& beside,
                    const MemoryLimits&, const std::string& advice);
// Throws where work without a forward does not fit; tells what is estimated where the options ask.
void check_memory(const MemoryNeed&, const MemoryOptions&, const std::string& advice, const Watch&);

// Tells where so many tokens in one text are more than the model was made for; with learned
// positions there are no more.
void tell_of_context(const ModelConfig&, int64_t tokens, const Watch&);

// A line for each share.
void tell_hot_set(const HotSet&, const Watch&);
Json to_json(const HotSet&);

}  // namespace moe
