#include "jobs/forward_memory.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/memory.h"
#include "core/words.h"

namespace moe {

void add_memory(FieldList& list, MemoryOptions& o, bool packs) {
  add_memory_limits(list, o.limits, packs);
  add_show_memory(list, o.show);
}

void add_show_memory(FieldList& list, bool& show) {
  list.add("show_memory", show,
           "say on standard error how much memory is estimated, by part; pages of mapped files do "
           "not count");
}

void add_hot_set(FieldList& list, MemoryOptions& o) {
  list.add("hot_set", o.hot_set,
           "say on standard error how few experts took most of the tokens; without it only for a "
           "model larger than memory");
}

void check_memory(const MemoryNeed& need, const MemoryOptions& o, const std::string& advice,
                  const Watch& watch) {
  if (o.show) watch.tell("memory: " + describe(need, taken_memory()));
  check_memory(need, o.limits, advice);
}

bool prepare_memory(const std::string& path, std::span<const ForwardUse> uses,
                    const MemoryNeed& beside, const MemoryOptions& o, const std::string& advice,
                    const Watch& watch) {
  if (o.show)
    watch.tell("memory: " + describe(plan_memory(uses, beside, o.limits).need, taken_memory()));
  const MemoryPlan plan = settle_memory(uses, beside, o.limits, advice);
  if (!plan.larger_than_memory()) return false;
  const auto size = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  watch.tell(
      message("note: {} holds {} of weights and {} of memory are free: the rest is read from the "
              "disk whenever it is needed. Packed copies may take {} (@pack_memory)",
              path, size(plan.weights), size(plan.available), size(plan.packed)));
  return true;
}

void check_forwards(const std::string& path, std::span<const ForwardUse> uses,
                    const MemoryNeed& beside, const MemoryLimits& limits,
                    const std::string& advice) {
  check_memory_of(path,
                  [&] { check_memory(plan_memory(uses, beside, limits).need, limits, advice); });
}

void tell_of_context(const ModelConfig& config, int64_t tokens, const Watch& watch) {
  if (tokens > config.context && !config.ends_at_context())
    watch.tell(
        fmt::format("note: {} tokens in one text are more than the {} that the model was made for; "
                    "what it makes of those beyond them is worse",
                    tokens, config.context));
}

void tell_hot_set(const HotSet& hot, const Watch& watch) {
  if (hot.experts == 0)
    return watch.tell("hot set: the model is dense, every weight is used by every token");
  if (hot.rows == 0) return watch.tell("hot set: no token was read, so no expert was used");
  const auto size = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  for (const HotSet::Part& part : hot.parts)
    watch.tell(fmt::format("hot set: {} of {} experts ({} of {}) took {:.0f}% of the tokens",
                           part.experts, hot.experts, size(part.bytes), size(hot.bytes),
                           100 * part.share));
}

Json to_json(const HotSet& hot) {
  Json parts = Json::array();
  for (const HotSet::Part& part : hot.parts)
    parts.push_back({{"share", part.share}, {"experts", part.experts}, {"bytes", part.bytes}});
  return {{"experts", hot.experts}, {"bytes", hot.bytes}, {"rows", hot.rows}, {"parts", parts}};
}

}  // namespace moe
