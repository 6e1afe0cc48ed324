// What a GGUF file says of a model and of its tokenizer: any metadata become a config that could be
// built, or an Error.
#include "fuzz/fuzz.h"
#include "hub/gguf/gguf_config.h"
#include "hub/gguf/gguf_vocab.h"

namespace moe::fuzz {
namespace {

void read(std::span<const std::byte> bytes) {
  accept_or_refuse([&] {
    const Gguf file = Gguf::from_bytes(bytes, "fuzz");
    accept_or_refuse([&] {
      const auto [config, architecture, names] = read_gguf_config(file);
      demand(architecture != nullptr && names != nullptr && config.width > 0 && config.layers > 0 &&
             config.layers <= 4096 && config.vocab > 0);
      demand(config.heads % config.kv_heads == 0 && config.moe_layer_count() <= config.layers);
      demand(config.routing.top_k <= config.routing.experts);
      // What was read can be said again.
      demand(!gguf_config_entries(*architecture, config).empty());
    });
    accept_or_refuse([&] {
      const GgmlVocab vocab = read_gguf_vocab(file);
      demand(vocab.scores.empty() || vocab.scores.size() == vocab.tokens.size());
      demand(vocab.types.empty() || vocab.types.size() == vocab.tokens.size());
    });
  });
}

}  // namespace
}  // namespace moe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  moe::fuzz::read(std::as_bytes(std::span(data, size)));
  return 0;
}
