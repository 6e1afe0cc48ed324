// Flags and messages about memory: the same for every verb that runs a model.
#pragma once

#include <CLI/App.hpp>
#include <span>
#include <string>

#include "core/json.h"
#include "infer/memory_plan.h"
#include "infer/session.h"

namespace moe::cli {

struct MemoryFlags {
  std::string all;       // --memory; empty: what is free
  std::string packed;    // --pack-memory; empty: half of what is free
  bool show = false;     // say what is foretold
  bool hot_set = false;  // print it in any case
};
// --memory, and where a model reads text forward --pack-memory; for the library too.
void add_memory_limits(CLI::App& app, MemoryFlags& flags, bool packs = true);
// --show-memory, for the command.
void add_show_memory(CLI::App& app, MemoryFlags& flags);
// Both.
void add_memory_options(CLI::App& app, MemoryFlags& flags, bool packs = true);
// --hot-set, of the verbs that write text.
void add_hot_set_option(CLI::App& app, MemoryFlags& flags);

// Usage errors name the flag.
MemoryLimits memory_limits(const MemoryFlags&);

// What a session that reads `tokens` and holds at most `capacity` takes of a model.
ForwardUse session_use(Model&, const SessionOptions&, DType dtype, int64_t tokens, int64_t capacity);

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
