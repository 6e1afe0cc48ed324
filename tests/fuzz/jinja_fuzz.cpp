// Chat templates. What is read either renders within its bounds or is refused.
#include <string>

#include "fuzz/fuzz.h"
#include "text/chat_template.h"
#include "text/jinja/jinja.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moe;
  const std::string source(reinterpret_cast<const char*>(data), size);
  constexpr size_t kMostBytes = size_t{1} << 20;
  fuzz::accept_or_refuse([&] {
    const jinja::Template parsed(source);
    jinja::List messages;
    for (const char* role : {"system", "user", "assistant"})
      messages.emplace_back(jinja::Dict{{{"role", role}, {"content", " A <b> \xC3\xA9\n"}}});
    const jinja::Variables variables = {{"messages", messages},
                                        {"tools", {}},
                                        {"bos_token", "<s>"},
                                        {"add_generation_prompt", true}};
    const jinja::RenderOptions bounds{.now = 0, .most_steps = 20'000, .most_bytes = kMostBytes};
    const jinja::Rendered once = parsed.render(variables, bounds);
    fuzz::demand(once.text.size() <= kMostBytes);
    for (const auto& [begin, end] : once.generations)
      fuzz::demand(begin <= end && end <= once.text.size());
    fuzz::demand(parsed.render(variables, bounds).text == once.text);
  });
  return 0;
}
