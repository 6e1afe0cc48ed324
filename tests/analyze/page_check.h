// What must hold of every page and picture of a report: markup that is well-formed, numbers that
// are numbers.
#pragma once

#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/utf8.h"

namespace moe::test {

// What is wrong with a page's markup, or "": tags that are not closed in order, attributes without
// quotes, a stray '<', bytes that are no UTF-8. The inside of <style> and <script> is skipped, as a
// browser skips it.
inline std::string fault_of(std::string_view page) {
  static const std::set<std::string_view> kVoid = {"meta", "link", "!DOCTYPE"};
  for (std::string_view rest = page; !rest.empty();) {
    const Utf8Step step = utf8_step(rest);
    if (step.kind != Utf8Step::Kind::character) return "no UTF-8";
    const auto c = static_cast<unsigned char>(rest[0]);
    if (c < 0x20 && c != '\n') return "a control character";
    rest.remove_prefix(static_cast<size_t>(step.length));
  }
  std::vector<std::string_view> open;
  const auto near = [&](size_t at) { return std::string(page.substr(at, 90)); };
  for (size_t at = page.find('<'); at != std::string_view::npos; at = page.find('<', at)) {
    const size_t start = at++;
    const bool closing = page[at] == '/';
    at += closing;
    const size_t name_end = std::min(page.find_first_of(" />\n", at), page.size());
    const std::string_view name = page.substr(at, name_end - at);
    if (name.empty() || (!std::isalpha(static_cast<unsigned char>(name[0])) && name[0] != '!'))
      return "a stray '<': " + near(start);
    at = name_end;
    bool empty = false, quoted = false;
    for (; at < page.size() && (quoted || page[at] != '>'); ++at) {
      if (page[at] == '"') quoted = !quoted;
      if (page[at] == '<') return "a '<' inside a tag: " + near(start);
      empty = page[at] == '/';
    }
    if (at == page.size()) return "a tag without end: " + near(start);
    if (closing) {
      if (open.empty() || open.back() != name) return "closes what is not open: " + near(start);
      open.pop_back();
    } else if (!empty && !kVoid.contains(name)) {
      open.push_back(name);
      if (name == "style" || name == "script") at = std::min(page.find("</", at), page.size());
    }
  }
  return open.empty() ? "" : "never closed: " + std::string(open.back());
}

inline size_t count(std::string_view text, std::string_view part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + part.size()))
    ++n;
  return n;
}

// The page without its style, its script and its packed numbers.
inline std::string markup_of(const std::string& page) {
  std::string out = page;
  for (const std::string tag : {"style", "script"})
    for (size_t at; (at = out.find("<" + tag + ">")) != std::string::npos;) {
      const size_t end = out.find("</" + tag + ">", at);
      out.erase(at, end - at + tag.size() + 3);
    }
  // Values of large maps, one letter each.
  for (size_t at; (at = out.find(" data-v=")) != std::string::npos;)
    out.erase(at, out.find('"', at + 9) + 1 - at);
  return out;
}

// Where a value that is no number was printed as fmt prints it, or "".
inline std::string unprintable_number(const std::string& text) {
  const auto letter = [&](size_t at) {
    return at < text.size() && std::isalpha(static_cast<unsigned char>(text[at]));
  };
  for (const char* word : {"nan", "inf"})
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
      if (!letter(at - 1) && !letter(at + 3)) return text.substr(at - 20, 60);
  return "";
}

inline bool has_card(const std::string& page, const std::string& id) {
  return page.find("id=\"" + id + "\"") != std::string::npos;
}

}  // namespace moe::test
