#include "cli/memory.h"

#include <nlohmann/json.hpp>

#include "cli/screen.h"
#include "core/memory.h"

namespace moe::cli {

void add_memory_options(CLI::App& app, MemoryFlags& f) {
  app.add_option(
      "--pack-memory", f.packed,
      "what copies of a file's weights in the layout of the products may take, as in 4G; what does not fit is packed anew at each use. Default: half of "
      "the free memory");
  app.add_flag("--hot-set", f.hot_set, "say on standard error how few experts took most of the tokens; without it only for a model larger than memory");
}

bool prepare_memory(const std::string& path, Model& model, const MemoryFlags& f, const SessionOptions& options, DType dtype, int64_t tokens) {
  const MemoryPlan plan = plan_memory(model, available_memory(), cache_bytes(model.config(), cache_dtype(options, model, dtype), tokens));
  model.pack_budget().limit = f.packed.empty() ? plan.packed : parse_bytes(f.packed, "--pack-memory");
  if (!plan.larger_than_memory()) return false;
  const auto size = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  tell(
      "note: {} holds {} of weights and {} of memory are free: the rest is read from the disk whenever it is needed. Packed copies may take {} (--pack-memory)\n",
      path, size(plan.weights), size(plan.available), size(model.pack_budget().limit));
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
