// config.json of a stranger. What is accepted must be writable, and be read back as the same.
#include <string>

#include "fuzz/fuzz.h"
#include "hub/folder/config_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::string written;
  moe::fuzz::accept_or_refuse([&] {
    const moe::ModelConfig config = moe::parse_config(text, "fuzz");
    try {
      written = moe::config_to_json(config);
      moe::fuzz::demand(moe::config_to_json(moe::parse_config(written, "written")) == written);
    } catch (const moe::Error&) {
      moe::fuzz::demand(false);
    }
  });
  return 0;
}
