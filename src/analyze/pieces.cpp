#include "analyze/pieces.h"

#include <fmt/format.h>

#include "text/utf8.h"

namespace moe {

std::string shown_alone(std::string_view bytes) {
  std::string shown;
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    const std::string_view part = bytes.substr(0, static_cast<size_t>(step.length));
    if (step.kind == Utf8Step::Kind::character) shown += part;
    else
      for (const char c : part) shown += fmt::format("0x{:02X}", static_cast<unsigned char>(c));
    bytes.remove_prefix(part.size());
  }
  return shown;
}

std::vector<std::string> shown_in_row(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  StreamDecoder decoder(tokenizer);
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.push_back(decoder.push(id));
  if (!pieces.empty()) pieces.back() += decoder.finish();
  return pieces;
}

}  // namespace moe
