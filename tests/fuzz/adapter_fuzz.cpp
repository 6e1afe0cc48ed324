// Adapters in PEFT's form: the configuration before the first NUL byte, behind it the tensors
// (safetensors_file of fuzz.h), hung on a small model and merged. One that is accepted changes
// numbers and nothing else.
#include "hub/adapter.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fuzz/fuzz.h"
#include "hub/configs.h"
#include "model/adapters.h"

namespace moe::fuzz {
namespace {

void merge(std::string_view config, std::span<const std::byte> tensors) {
  accept_or_refuse([&] {
    const Safetensors file = Safetensors::from_bytes(tensors, "fuzz");
    Model model(test::small_olmoe());
    const auto before = model.params().size();
    const AttachedAdapter merged =
        attach_adapter(model, parse_json(config, "fuzz"), "fuzz", file, 1);
    merge_terms(model, 1);
    demand(model.params().size() == before && merged.matrices >= 0 && merged.whole >= 0);
    for (const Param* param : model.params())
      demand(param->value.dtype == DType::f32 && param->present());
  });
}

}  // namespace
}  // namespace moe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const uint8_t* nul = std::find(data, data + size, uint8_t{0});
  const auto rest = static_cast<size_t>(data + size - nul);
  if (rest < 2) return 0;
  moe::fuzz::merge({reinterpret_cast<const char*>(data), static_cast<size_t>(nul - data)},
                   moe::fuzz::safetensors_file(nul + 1, rest - 1));
  return 0;
}
