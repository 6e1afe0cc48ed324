// Adapters in llama.cpp's form, hung on a small model and merged. One that is accepted changes
// numbers and nothing else.
#include "hub/adapter_gguf.h"

#include "fuzz/fuzz.h"
#include "hub/configs.h"
#include "model/adapters.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  moe::fuzz::accept_or_refuse([&] {
    const moe::Gguf file =
        moe::Gguf::from_bytes({reinterpret_cast<const std::byte*>(data), size}, "fuzz");
    moe::Model model(moe::test::small_olmoe());
    moe::fuzz::demand(moe::attach_gguf_adapter(model, file).matrices > 0);
    moe::merge_terms(model, 1);
    for (const moe::Param* param : model.params())
      moe::fuzz::demand(param->value.dtype == moe::DType::f32 && param->present());
  });
  return 0;
}
