// JSON schemas, and texts under them: a schema, a NUL byte, bytes that are written as far as they
// may be. What is allowed at last can be completed, within a bounded number of bytes where what
// closes is taken first.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "fuzz/fuzz.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/states.h"
#include "text/grammar/token_mask.h"

namespace {

using namespace moe;

const std::shared_ptr<const grammar::TokenTable>& tokens() {
  static const auto table = std::make_shared<const grammar::TokenTable>(*make_tokenizer("bytes"));
  return table;
}

// Some byte may always follow, and where the text may end it is JSON. At most `most` are tried.
void complete(grammar::Constraint& constraint, std::string text, int most) {
  for (; !constraint.may_end(); --most) {
    if (most == 0) return;
    int32_t chosen = -1;
    for (const char closer : std::string_view("\"}]0125-"))
      if (chosen < 0 && constraint.allows(static_cast<uint8_t>(closer)))
        chosen = static_cast<uint8_t>(closer);
    for (int32_t id = 255; chosen < 0 && id >= 0; --id)
      if (constraint.allows(id)) chosen = id;
    fuzz::demand(chosen >= 0);
    constraint.accept(chosen);
    text += static_cast<char>(chosen);
  }
  fuzz::demand(nlohmann::json::accept(text));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(all.find('\0'), size);
  fuzz::accept_or_refuse([&] {
    const auto grammar = grammar::json_schema_grammar(all.substr(0, cut), "schema");
    grammar::Constraint constraint(grammar, tokens());
    grammar::States states(grammar);
    grammar::StateId state = states.start();
    std::string text;
    for (const char c : all.substr(std::min(cut + 1, size)).substr(0, 2000)) {
      const auto byte = static_cast<uint8_t>(c);
      const bool allowed = constraint.allows(byte);
      fuzz::demand(allowed == (states.next(state, byte) != grammar::kDead));
      if (!allowed) continue;
      constraint.accept(byte);
      state = states.next(state, byte);
      fuzz::demand(constraint.may_end() == states.complete(state));
      text += c;
      states.begin_work();
    }
    complete(constraint, text, 300);
  });
  return 0;
}
