// Requests of OpenAI's form: what is read is written by a template that shows all of it, or
// refused.
#include "text/chat_request.h"

#include <string>

#include "fuzz/fuzz.h"
#include "text/chat.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moe;
  static const ChatTemplate shows_all(
      "{{ tools | tojson }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
      "{{ m.name }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
      "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}{{ mood }}",
      {});
  const std::string text(reinterpret_cast<const char*>(data), size);
  fuzz::accept_or_refuse([&] {
    const ChatRequest request = parse_chat_request(text, "fuzz");
    const std::string written = shows_all.render(request);
    const size_t messages = request.messages.sequence()->items.size();
    size_t ends = 0;
    for (size_t at = written.find("<|end|>"); at != std::string::npos;
         at = written.find("<|end|>", at + 1))
      ++ends;
    fuzz::demand(ends == messages);  // nobody ended a message from inside
    fuzz::demand(shows_all.render(request) == written);
  });
  return 0;
}
