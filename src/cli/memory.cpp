#include "cli/memory.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/screen.h"
#include "core/memory.h"

namespace moe::cli {

void add_memory_limits(CLI::App& app, MemoryFlags& f, bool packs) {
  app.add_option("--memory", f.all, "what this may take in all, as in 30G: more is refused before it starts. Default: what is free");
  if (!packs) return;
  app.add_option(
      "--pack-memory", f.packed,
      "what copies of a file's weights in the layout of the products may take, as in 4G; what does not fit is packed anew at each use. Default: half of "
      "the free memory");
}

void add_show_memory(CLI::App& app, MemoryFlags& f) {
  app.add_flag("--show-memory", f.show, "say on standard error how much memory is foretold, by part; pages of mapped files do not count");
}

void add_memory_options(CLI::App& app, MemoryFlags& f, bool packs) {
  add_memory_limits(app, f, packs);
  add_show_memory(app, f);
}

void add_hot_set_option(CLI::App& app, MemoryFlags& f) {
  app.add_flag("--hot-set", f.hot_set, "say on standard error how few experts took most of the tokens; without it only for a model larger than memory");
}

MemoryLimits memory_limits(const MemoryFlags& f) {
  MemoryLimits limits;
  if (!f.all.empty()) limits.all = parse_bytes(f.all, "--memory");
  if (!f.packed.empty()) limits.packed = parse_bytes(f.packed, "--pack-memory");
  return limits;
}

ForwardUse session_use(Model& model, const SessionOptions& options, DType dtype, int64_t tokens, int64_t capacity) {
  return {.model = &model,
          .shape = {.tokens = std::min(tokens, kPromptChunk), .dtype = dtype},
          .routing = options.routing,
          .top_k_experts = options.top_k_experts,
          .cache = cache_bytes(model.config(), cache_dtype(options, model, dtype), capacity)};
}

void check_memory(const MemoryNeed& need, const MemoryFlags& f, const std::string& advice) {
  if (f.show) tell("memory: {}\n", describe(need, taken_memory()));
  moe::check_memory(need, memory_limits(f), advice);
}

bool prepare_memory(const std::string& path, std::span<const ForwardUse> uses, const MemoryNeed& beside, const MemoryFlags& f, const std::string& advice) {
  const MemoryLimits limits = memory_limits(f);
  if (f.show) tell("memory: {}\n", describe(plan_memory(uses, beside, limits).need, taken_memory()));
  const MemoryPlan plan = settle_memory(uses, beside, limits, advice);
  if (!plan.larger_than_memory()) return false;
  const auto size = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  tell(
      "note: {} holds {} of weights and {} of memory are free: the rest is read from the disk whenever it is needed. Packed copies may take {} (--pack-memory)\n",
      path, size(plan.weights), size(plan.available), size(plan.packed));
  return true;
}

void tell_hot_set(const HotSet& hot) {
  if (hot.experts == 0) return tell("hot set: the model is dense, every weight is used by every token\n");
  const auto size = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  for (const HotSet::Part& part : hot.parts)
    tell("hot set: {} of {} experts ({} of {}) took {:.0f}% of the tokens\n", part.experts, hot.experts, size(part.bytes), size(hot.bytes), 100 * part.share);
}

Json to_json(const HotSet& hot) {
  Json parts = Json::array();
  for (const HotSet::Part& part : hot.parts) parts.push_back({{"share", part.share}, {"experts", part.experts}, {"bytes", part.bytes}});
  return {{"experts", hot.experts}, {"bytes", hot.bytes}, {"rows", hot.rows}, {"parts", parts}};
}

}  // namespace moe::cli
