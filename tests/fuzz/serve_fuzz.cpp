// Bodies of requests as a server reads them: whatever they say becomes texts that a model can be
// asked for, or is refused.
#include "serve/request.h"

#include <string>
#include <vector>

#include "fuzz/fuzz.h"
#include "serve/api_error.h"
#include "serve/base64.h"
#include "serve/messages.h"
#include "serve/responses.h"
#include "text/chat.h"

namespace moe::fuzz {
namespace {

constexpr int64_t kContext = 64;

// Over bytes; a model of two layers whose experts are named by small numbers.
const serve::Served& served() {
  static const auto tokenizer = make_tokenizer("bytes");
  static const Model model([] {
    ModelConfig c;
    c.vocab = 256;
    c.width = 16;
    c.layers = 2;
    c.heads = c.kv_heads = 2;
    c.head_width = 8;
    c.context = kContext;
    c.dense_width = c.expert_width = 16;
    c.routing = default_options(find_recipe("olmoe"), 4, 2, 2);
    return c;
  }());
  static const serve::Served s{.name = "fuzz",
                               .model = &model,
                               .tokenizer = tokenizer.get(),
                               .chat = &chatml(),
                               .tokens = std::make_shared<grammar::TokenTable>(*tokenizer),
                               .context = kContext,
                               .slots = 2,
                               .moe_layers = {0, 1}};
  return s;
}

void check(const serve::ParsedRequest& request) {
  demand(request.choices >= 1 && !request.texts.empty() && request.texts.size() <= 1024);
  demand(request.texts.size() % static_cast<size_t>(request.choices) == 0);
  for (const TextRequest& text : request.texts) {
    validate(text.options);
    demand(std::ssize(text.prompt) < kContext);
    demand(text.top_logprobs >= -1 && text.top_logprobs <= 20);
    demand(!text.recorded || text.recorded->size() % 4 == 0);
    if (text.grammar) grammar::Constraint(text.grammar, text.tokens).allows('{');
  }
}

template <class F>
void answer_or_refuse(F&& f) {
  accept_or_refuse([&] {
    try {
      f();
    } catch (const serve::ApiError& e) {
      demand(e.status >= 400 && e.status < 500 && !e.message.empty());
      demand(serve::body_of(e).starts_with("{\"error\":"));
    }
  });
}

}  // namespace
}  // namespace moe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moe;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const serve::Served& served = fuzz::served();
  fuzz::answer_or_refuse([&] { fuzz::check(serve::read_completion(body, served)); });
  fuzz::answer_or_refuse([&] { fuzz::check(serve::read_chat(body, served)); });
  fuzz::answer_or_refuse([&] { serve::chat_prompt(body, served); });
  fuzz::answer_or_refuse([&] { fuzz::check(serve::read_messages(body, served)); });
  fuzz::answer_or_refuse([&] { fuzz::check(serve::read_responses(body, served)); });
  fuzz::answer_or_refuse([&] { fuzz::demand(serve::count_messages(body, served) > 0); });
  fuzz::answer_or_refuse([&] {
    const std::vector<int32_t> numbers = serve::from_base64(body);
    fuzz::demand(serve::from_base64(serve::to_base64(numbers)) == numbers);
  });
  return 0;
}
