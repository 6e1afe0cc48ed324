// Flags and messages about models that are larger than memory: the same for the verbs that write text.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "core/json.h"
#include "infer/memory_plan.h"
#include "infer/session.h"

namespace moe::cli {

struct MemoryFlags {
  std::string packed;    // --pack-memory; empty: half of what is free
  bool hot_set = false;  // print it in any case
};
void add_memory_options(CLI::App& app, MemoryFlags& flags);

// Sets what packed copies may take, before the model runs, and says on standard error where the weights do not fit the memory. `tokens`: most that the session
// will hold; `dtype`: of the products. True: they do not fit.
bool prepare_memory(const std::string& path, Model&, const MemoryFlags&, const SessionOptions&, DType dtype, int64_t tokens);

// The hot set, a line for each share, on standard error; and as JSON.
void tell_hot_set(const HotSet&);
Json to_json(const HotSet&);

}  // namespace moe::cli
