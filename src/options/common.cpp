#include "options/common.h"

#include <nlohmann/json.hpp>

#include "core/threads.h"

namespace moe {

FieldValue bytes_of(std::optional<int64_t>& x, const char* name) {
  const auto set = [&x, name](const Json& text) { x = parse_bytes(text.get<std::string>(), name); };
  return {Field::Kind::text, [&x] { return x ? Json(*x) : Json(); }, set};
}

void add_threads(FieldList& list, int& threads) { list.add("threads", threads, "0: all cores"); }

namespace {
const std::vector<std::string> kDevices = {"cpu", "cuda"};
}
std::string_view name_of(DeviceKind kind) { return kDevices[static_cast<size_t>(kind)]; }

FieldEntry add_device(FieldList& list, DeviceKind& device) {
  return list.add_choice("device", device, kDevices,
                         "cpu, or cuda: the first CUDA device (docs/cuda.md)");
}

int thread_count(int asked) {
  constexpr int kMost = 1024;
  if (asked < 0 || asked > kMost)
    fail_usage("@threads is {}; it must be 0 (all cores) to {}", asked, kMost);
  return asked > 0 ? asked : available_threads();
}

void add_memory_limits(FieldList& list, MemoryLimits& limits, bool packs) {
  list.add("memory", bytes_of(limits.all, "memory"),
           "what this may take in all, as in 30G: more is refused before it starts. Default: what "
           "is free");
  if (!packs) return;
  list.add("pack_memory", bytes_of(limits.packed, "pack_memory"),
           "what copies of a file's weights in the layout of the products may take, as in 4G; what "
           "does not fit is packed anew at each use. Default: half of "
           "the free memory");
}

}  // namespace moe
