#include "cli/memory.h"

#include <nlohmann/json.hpp>

#include "cli/screen.h"
#include "core/memory.h"

namespace moe::cli {

void add_memory(FieldList& list, MemoryFlags& f, bool packs) {
  add_memory_limits(list, f.limits, packs);
  add_show_memory(list, f.show);
}

void add_show_memory(FieldList& list, bool& show) {
  list.add("show_memory", show, "say on standard error how much memory is foretold, by part; pages of mapped files do not count");
}

void add_hot_set(FieldList& list, MemoryFlags& f) {
  list.add("hot_set", f.hot_set, "say on standard error how few experts took most of the tokens; without it only for a model larger than memory");
}

void check_memory(const MemoryNeed& need, const MemoryFlags& f, const std::string& advice) {
  if (f.show) tell("memory: {}\n", describe(need, taken_memory()));
  moe::check_memory(need, f.limits, advice);
}

bool prepare_memory(const std::string& path, std::span<const ForwardUse> uses, const MemoryNeed& beside, const MemoryFlags& f, const std::string& advice) {
  if (f.show) tell("memory: {}\n", describe(plan_memory(uses, beside, f.limits).need, taken_memory()));
  const MemoryPlan plan = settle_memory(uses, beside, f.limits, advice);
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
