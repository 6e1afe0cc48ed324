#include "analyze/texts/pieces.h"

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

// A character has at most four bytes, so at most three tokens can be parts of one that is cut.
WholeCharacters whole_characters(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  constexpr size_t kFollowing = 3;
  const auto goes_on = [&](int32_t id) {
    const std::string piece = tokenizer.piece(id);
    return !piece.empty() && !begins_character(piece[0]);
  };
  const auto is_cut = [&](std::span<const int32_t> some) {
    StreamDecoder decoder(tokenizer);
    for (const int32_t id : some) decoder.push(id);
    return !decoder.finish().empty();
  };
  WholeCharacters part{0, ids.size()};
  while (part.begin < ids.size() && part.begin <= kFollowing && goes_on(ids[part.begin]))
    ++part.begin;
  if (part.begin > kFollowing || part.begin == ids.size()) part.begin = 0;
  for (size_t cut = 0; cut <= kFollowing && part.begin + cut < ids.size(); ++cut)
    if (!is_cut(ids.subspan(part.begin, ids.size() - cut - part.begin))) {
      part.end = ids.size() - cut;
      break;
    }
  return part;
}

}  // namespace moe
