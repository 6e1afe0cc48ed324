// NFC and NFKC are the work of utf8proc's tables (Unicode 15), line by line: a line without a
// character from U+0300 on is composed already.
#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <functional>

#include "core/error.h"
#include "text/charsmap.h"
#include "text/utf8.h"

namespace moe {
namespace {

using Places = std::vector<SourceMap::Place>;

// U+0300 begins with this byte; no character below it is changed by NFC or joins with one before
// it.
constexpr unsigned char kFirstMark = 0xCC;
constexpr unsigned char kFirstCompatible = 0xC2;  // no-break space, U+00A0, becomes a space
// of one character's decomposition; Unicode's longest has 4
constexpr utf8proc_ssize_t kMostParts = 32;

void decompose(utf8proc_int32_t code, bool compatible, std::vector<utf8proc_int32_t>& codes) {
  utf8proc_int32_t parts[kMostParts];
  int boundary = 0;
  const auto n =
      utf8proc_decompose_char(code, parts, kMostParts,
                              static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                             (compatible ? UTF8PROC_COMPAT : 0)),
                              &boundary);
  if (n < 0 || n > kMostParts) fail("a character cannot be decomposed: {}", utf8proc_errmsg(n));
  codes.insert(codes.end(), parts, parts + n);
}

// Marks in canonical order. Sorted here: utf8proc's own ordering takes quadratic time for a text of
// marks.
void order_marks(std::vector<utf8proc_int32_t>& codes) {
  const auto rank = [](utf8proc_int32_t code) {
    return utf8proc_get_property(code)->combining_class;
  };
  for (size_t i = 0; i < codes.size();) {
    if (rank(codes[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < codes.size() && rank(codes[end]) != 0) ++end;
    std::stable_sort(codes.begin() + static_cast<int64_t>(i),
                     codes.begin() + static_cast<int64_t>(end),
                     [&](utf8proc_int32_t a, utf8proc_int32_t b) { return rank(a) < rank(b); });
    i = end;
  }
}

// `text` is valid UTF-8.
void compose(std::string_view text, bool compatible, std::string& out) {
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t code = 0;
    at += static_cast<size_t>(
        utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                         static_cast<utf8proc_ssize_t>(text.size() - at), &code));
    decompose(code, compatible, codes);
  }
  order_marks(codes);
  const auto n =
      utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (n < 0) fail("a text cannot be composed: {}", utf8proc_errmsg(n));
  for (utf8proc_ssize_t i = 0; i < n; ++i) {
    utf8proc_uint8_t bytes[4];
    const auto length = utf8proc_encode_char(codes[static_cast<size_t>(i)], bytes);
    out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
  }
}

// One line: what is valid UTF-8 is composed, the rest copied.
void compose_line(std::string_view line, bool compatible, std::string& out) {
  const unsigned char first = compatible ? kFirstCompatible : kFirstMark;
  if (std::none_of(line.begin(), line.end(),
                   [&](char c) { return static_cast<unsigned char>(c) >= first; })) {
    out += line;
    return;
  }
  while (!line.empty()) {
    size_t valid = 0;
    Utf8Step step{Utf8Step::Kind::cut, 0};
    while (valid < line.size() &&
           (step = utf8_step(line.substr(valid))).kind == Utf8Step::Kind::character)
      valid += static_cast<size_t>(step.length);
    compose(line.substr(0, valid), compatible, out);
    line.remove_prefix(valid);
    if (line.empty()) return;
    out += line.substr(0, static_cast<size_t>(step.length));
    line.remove_prefix(static_cast<size_t>(step.length));
  }
}

std::string composed(std::string_view text, bool compatible, Places* places) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    compose_line(text.substr(at, end - at), compatible, out);
    at = end;
    if (places) places->push_back({out.size(), at});
  }
  return out;
}

std::string replace(std::string_view text, std::string_view what, std::string_view with,
                    Places* places) {
  std::string out;
  for (size_t at = 0;;) {
    const size_t found = text.find(what, at);
    out += text.substr(at, found - at);
    if (found == std::string_view::npos) return out;
    out += with;
    at = found + what.size();
    if (places) places->push_back({out.size(), at});
  }
}

std::string squeeze(std::string_view text, std::string_view with, Places* places) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_not_of(' ', at), text.size());
    if (end < at + 2) {
      out += text[at++];
      continue;
    }
    out += with;
    at = end;
    if (places) places->push_back({out.size(), at});
  }
  return out;
}

// The character in front, and its code; a byte that is none has -1.
std::pair<std::string_view, utf8proc_int32_t> first_character(std::string_view text) {
  const Utf8Step step = utf8_step(text);
  if (step.kind != Utf8Step::Kind::character) return {text.substr(0, 1), -1};
  utf8proc_int32_t code = -1;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), step.length, &code);
  return {text.substr(0, static_cast<size_t>(step.length)), code};
}

bool is_white_space(int32_t code) {
  constexpr int32_t kOthers[] = {' ', 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000};
  return (code >= 9 && code <= 13) || (code >= 0x2000 && code <= 0x200A) ||
         std::find(std::begin(kOthers), std::end(kOthers), code) != std::end(kOthers);
}

std::string strip_left(std::string_view text, Places* places) {
  size_t at = 0;
  while (const size_t length = white_space_in_front(text.substr(at))) at += length;
  if (places) places->push_back({0, at});
  return std::string(text.substr(at));
}

std::string strip_right(std::string_view text) {
  size_t end = 0;
  for (size_t at = 0; at < text.size();) {
    const auto [character, code] = first_character(text.substr(at));
    at += character.size();
    if (!is_white_space(code)) end = at;
  }
  return std::string(text.substr(0, end));
}

// As huggingface/tokenizers:normalizers/precompiled.rs has it, which is not what SentencePiece
// does: a cluster (what a reader takes for one character) of under 6 bytes becomes what its
// shortest prefix in the map becomes, and loses the rest; of a longer one each character is looked
// for.
std::string precompiled(std::string_view text, const Charsmap& map, Places* places) {
  constexpr size_t kShort = 6;
  std::string out;
  const auto replaced = [&](std::string_view part) {
    const auto match = map.shortest(part);
    if (!match) return false;
    out += match->becomes;
    if (places) {
      const auto end = static_cast<size_t>(part.data() - text.data()) + part.size();
      places->push_back({out.size(), end});
    }
    return true;
  };
  for (size_t at = 0; at < text.size();) {
    auto [character, code] = first_character(text.substr(at));
    size_t end = at + character.size();
    for (utf8proc_int32_t state = 0; end < text.size() && code >= 0;) {
      const auto [next, next_code] = first_character(text.substr(end));
      if (next_code < 0 || utf8proc_grapheme_break_stateful(code, next_code, &state)) break;
      end += next.size();
      code = next_code;
    }
    const std::string_view cluster = text.substr(at, end - at);
    if (cluster.size() >= kShort || !replaced(cluster))
      for (size_t i = 0; i < cluster.size();) {
        const std::string_view one = first_character(cluster.substr(i)).first;
        if (!replaced(one)) out += one;
        i += one.size();
      }
    at = end;
  }
  return out;
}

// google/sentencepiece:src/normalizer.cc, Normalize.
std::string sentencepiece(std::string_view text, const NormalizerStep& step, Places* places) {
  const Charsmap map(step.what);
  std::string out;
  bool after_space = step.trims;
  if (step.prepends && !text.empty()) out += kSpaceMark;
  const size_t front = out.size();
  for (size_t at = 0; at < text.size();) {
    const auto match = map.longest(text.substr(at));
    const auto [character, code] = first_character(text.substr(at));
    std::string_view becomes = match ? match->becomes : code < 0 ? "\uFFFD" : character;
    at += match ? match->length : character.size();
    while (after_space && becomes.starts_with(' ')) becomes.remove_prefix(1);
    for (const char c : becomes)
      if (c == ' ') out += kSpaceMark;
      else out += c;
    if (!becomes.empty()) after_space = step.trims && becomes.ends_with(' ');
    if (places) places->push_back({out.size(), at});
  }
  if (!step.trims) return out;
  while (out.size() >= front + kSpaceMark.size() && out.ends_with(kSpaceMark))
    out.resize(out.size() - kSpaceMark.size());
  if (out.size() == front) out.clear();
  return out;
}

}  // namespace

size_t white_space_in_front(std::string_view text) {
  if (text.empty()) return 0;
  const auto [character, code] = first_character(text);
  return is_white_space(code) ? character.size() : 0;
}

size_t SourceMap::source(size_t at) const {
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    const auto after = std::upper_bound(step->places.begin(), step->places.end(), at,
                                        [](size_t a, const Place& p) { return a < p.to; });
    const Place before = after == step->places.begin() ? Place{0, 0} : after[-1];
    const size_t most = after == step->places.end() ? step->length : after->from;
    at = std::min(before.from + (at - before.to), most);
  }
  return earlier_ ? earlier_->source(earlier_at_ + at) : at;
}

std::string normalize(const std::vector<NormalizerStep>& steps, std::string_view text,
                      SourceMap* map) {
  std::string out(text);
  for (const NormalizerStep& step : steps) {
    Places places;
    Places* wanted = map ? &places : nullptr;
    const size_t length = out.size();
    switch (step.kind) {
      case NormalizerStep::Kind::nfc: out = composed(out, false, wanted); break;
      case NormalizerStep::Kind::nfkc: out = composed(out, true, wanted); break;
      case NormalizerStep::Kind::prepend:
        if (out.empty()) break;
        out.insert(0, step.with);
        places.push_back({step.with.size(), 0});
        break;
      case NormalizerStep::Kind::replace: out = replace(out, step.what, step.with, wanted); break;
      case NormalizerStep::Kind::squeeze: out = squeeze(out, step.with, wanted); break;
      case NormalizerStep::Kind::strip_left: out = strip_left(out, wanted); break;
      case NormalizerStep::Kind::strip_right: out = strip_right(out); break;
      case NormalizerStep::Kind::precompiled:
        out = precompiled(out, Charsmap(step.what), wanted);
        break;
      case NormalizerStep::Kind::sentencepiece: out = sentencepiece(out, step, wanted); break;
    }
    if (map) map->add_step(std::move(places), length);
  }
  return out;
}

}  // namespace moe
