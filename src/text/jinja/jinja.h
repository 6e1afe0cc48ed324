// The language of published chat templates: Jinja as transformers runs it (jinja2's sandbox with
// trim_blocks, lstrip_blocks, loop controls and {% generation %}), without files, inheritance and
// what no template uses. What is not known is refused by its name and line; nothing is guessed.
// Time, depth and memory are bounded, so a template may come from anyone.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace moe::jinja {

using Variables = std::vector<std::pair<std::string, Value>>;

struct RenderOptions {
  std::time_t now = 0;  // for strftime_now, local time
  int64_t most_steps = 2'000'000;
  size_t most_bytes = size_t{64} << 20;  // of all texts and lists made on the way
};

struct Rendered {
  std::string text;
  // Where {% generation %} ... {% endgeneration %} stands in the text: [begin, end) in bytes.
  std::vector<std::pair<size_t, size_t>> generations;
};

class Template {
 public:
  // Fails, naming the line, where `source` is no template or has what is not known here.
  explicit Template(std::string_view source);
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  // Fails, naming the line, where a value has no such use, a bound is reached, or the template
  // itself refuses (raise_exception). May be called from several threads.
  Rendered render(const Variables&, const RenderOptions&) const;

 private:
  struct Tree;
  std::unique_ptr<const Tree> tree_;
};

}  // namespace moe::jinja
