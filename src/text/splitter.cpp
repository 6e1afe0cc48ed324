// PCRE2 with Unicode properties, compiled to machine code where the processor allows. The compiled
// patterns are shared by all threads; what a match writes to is made for each call.
#include "text/splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/error.h"
#include "core/nearest.h"
#include "text/pattern.h"
#include "text/utf8.h"

namespace moe {

struct FreePcre2 {
  void operator()(pcre2_code* x) const { pcre2_code_free(x); }
  void operator()(pcre2_compile_context* x) const { pcre2_compile_context_free(x); }
  void operator()(pcre2_match_context* x) const { pcre2_match_context_free(x); }
  void operator()(pcre2_match_data* x) const { pcre2_match_data_free(x); }
  void operator()(pcre2_jit_stack* x) const { pcre2_jit_stack_free(x); }
};

namespace {

// Bounds what one hostile expression can cost at one place. The expressions in use need a handful
// of steps.
constexpr uint32_t kMatchLimit = 1 << 18;
constexpr size_t kJitStackFirst = size_t{32} << 10;
constexpr size_t kJitStackMost = size_t{8} << 20;

template <class T>
using Owned = std::unique_ptr<T, FreePcre2>;

std::string message_of(int error) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

Owned<pcre2_code> compile(const std::string& pattern) {
  const std::string translated = to_pcre2(pattern);
  const Owned<pcre2_compile_context> context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t at = 0;
  Owned<pcre2_code> code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                       translated.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE,
                                       &error, &at, context.get()));
  if (!code)
    fail("its pattern \"{}\" is not understood: {}", printable(pattern), message_of(error));
  uint32_t matches_nothing = 0;
  pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &matches_nothing);
  if (matches_nothing) fail("its pattern \"{}\" can match nothing at all", printable(pattern));
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // where it cannot, pcre2_match interprets
  return code;
}

// What the matches of one call write to.
struct Scratch {
  Owned<pcre2_match_data> data{pcre2_match_data_create(1, nullptr)};
  Owned<pcre2_match_context> context{pcre2_match_context_create(nullptr)};
  Owned<pcre2_jit_stack> stack{pcre2_jit_stack_create(kJitStackFirst, kJitStackMost, nullptr)};
  Scratch() {
    if (!data || !context) fail("there is no memory to split a text");
    pcre2_set_match_limit(context.get(), kMatchLimit);
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

using Emit = std::function<void(std::string_view)>;

// `text` is valid UTF-8.
void split_by(const std::vector<Owned<pcre2_code>>& codes, size_t level, std::string_view text,
              Scratch& scratch, const Emit& emit) {
  if (text.empty()) return;
  if (level == codes.size()) return emit(text);
  size_t done = 0;
  while (done < text.size()) {
    const int found =
        pcre2_match(codes[level].get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    done, PCRE2_NO_UTF_CHECK, scratch.data.get(), scratch.context.get());
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0)
      fail("the tokenizer's pattern cannot be matched against this text: {}", message_of(found));
    const size_t* place = pcre2_get_ovector_pointer(scratch.data.get());
    const size_t begin = place[0], end = place[1];
    if (begin < done || end <= begin)
      fail("the tokenizer's pattern matched nothing at byte {}", done);
    split_by(codes, level + 1, text.substr(done, begin - done), scratch, emit);
    split_by(codes, level + 1, text.substr(begin, end - begin), scratch, emit);
    done = end;
  }
  split_by(codes, level + 1, text.substr(done), scratch, emit);
}

}  // namespace

struct Splitter::Patterns {
  std::vector<Owned<pcre2_code>> codes;
};

Splitter::Splitter(const std::vector<std::string>& patterns)
    : patterns_(std::make_unique<Patterns>()) {
  for (const std::string& pattern : patterns) patterns_->codes.push_back(compile(pattern));
}
Splitter::~Splitter() = default;
Splitter::Splitter(Splitter&&) noexcept = default;
Splitter& Splitter::operator=(Splitter&&) noexcept = default;

void Splitter::split(std::string_view text, const Emit& emit) const {
  Scratch scratch;
  while (!text.empty()) {
    size_t valid = 0, broken = 0;
    while (valid < text.size()) {
      const Utf8Step step = utf8_step(text.substr(valid));
      if (step.kind != Utf8Step::Kind::character) break;
      valid += static_cast<size_t>(step.length);
    }
    while (valid + broken < text.size()) {
      const Utf8Step step = utf8_step(text.substr(valid + broken));
      if (step.kind == Utf8Step::Kind::character) break;
      broken += static_cast<size_t>(step.length);
    }
    split_by(patterns_->codes, 0, text.substr(0, valid), scratch, emit);
    if (broken > 0) emit(text.substr(valid, broken));
    text.remove_prefix(valid + broken);
  }
}

}  // namespace moe
