// NFC is the work of utf8proc's tables (Unicode 15), line by line: a line without a character from
// U+0300 on is composed already.
#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <functional>

#include "core/error.h"
#include "text/utf8.h"

namespace moe {
namespace {

using Places = std::vector<SourceMap::Place>;

// U+0300 begins with this byte; no character below it is changed by NFC or joins with one before
// it.
constexpr unsigned char kFirstMark = 0xCC;
// of one character's decomposition; Unicode's longest has 4
constexpr utf8proc_ssize_t kMostParts = 32;

void decompose(utf8proc_int32_t code, std::vector<utf8proc_int32_t>& codes) {
  utf8proc_int32_t parts[kMostParts];
  int boundary = 0;
  const auto n = utf8proc_decompose_char(
      code, parts, kMostParts, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE),
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
void compose(std::string_view text, std::string& out) {
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t code = 0;
    at += static_cast<size_t>(
        utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                         static_cast<utf8proc_ssize_t>(text.size() - at), &code));
    decompose(code, codes);
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
void compose_line(std::string_view line, std::string& out) {
  if (std::none_of(line.begin(), line.end(),
                   [](char c) { return static_cast<unsigned char>(c) >= kFirstMark; })) {
    out += line;
    return;
  }
  while (!line.empty()) {
    size_t valid = 0;
    Utf8Step step{Utf8Step::Kind::cut, 0};
    while (valid < line.size() &&
           (step = utf8_step(line.substr(valid))).kind == Utf8Step::Kind::character)
      valid += static_cast<size_t>(step.length);
    compose(line.substr(0, valid), out);
    line.remove_prefix(valid);
    if (line.empty()) return;
    out += line.substr(0, static_cast<size_t>(step.length));
    line.remove_prefix(static_cast<size_t>(step.length));
  }
}

std::string to_nfc(std::string_view text, Places* places) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    compose_line(text.substr(at, end - at), out);
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

}  // namespace

size_t SourceMap::source(size_t at) const {
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    const auto after = std::upper_bound(step->places.begin(), step->places.end(), at,
                                        [](size_t a, const Place& p) { return a < p.to; });
    const Place before = after == step->places.begin() ? Place{0, 0} : after[-1];
    const size_t most = after == step->places.end() ? step->length : after->from;
    at = std::min(before.from + (at - before.to), most);
  }
  return at;
}

SourceMap SourceMap::behind(const SourceMap& earlier, size_t at, const SourceMap& later) {
  SourceMap map = earlier;
  map.add_step({{0, at}}, std::string::npos);
  map.steps_.insert(map.steps_.end(), later.steps_.begin(), later.steps_.end());
  return map;
}

std::string normalize(const std::vector<NormalizerStep>& steps, std::string_view text,
                      SourceMap* map) {
  std::string out(text);
  for (const NormalizerStep& step : steps) {
    Places places;
    const size_t length = out.size();
    switch (step.kind) {
      case NormalizerStep::Kind::nfc: out = to_nfc(out, map ? &places : nullptr); break;
      case NormalizerStep::Kind::prepend:
        if (out.empty()) break;
        out.insert(0, step.with);
        places.push_back({step.with.size(), 0});
        break;
      case NormalizerStep::Kind::replace:
        out = replace(out, step.what, step.with, map ? &places : nullptr);
        break;
    }
    if (map) map->add_step(std::move(places), length);
  }
  return out;
}

}  // namespace moe
