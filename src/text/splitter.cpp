// PCRE2 with Unicode properties, compiled to machine code where the processor allows. The compiled
// patterns are shared by all threads; what a match writes to is made for each call.
#include "text/splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/error.h"
#include "core/nearest.h"
#include "text/linear_patterns.h"
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
// of steps, but some go back over a long run: \s*[\r\n]+ over spaces that no line end follows. Such
// places may take more, all of a text together so many steps a byte.
constexpr uint32_t kMatchLimit = 1 << 18, kMostMatchLimit = uint32_t{1} << 31;
constexpr uint64_t kStepsAByte = 64;
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
  Owned<pcre2_code> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_USE_OFFSET_LIMIT, &error, &at,
                    context.get()));
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
  uint64_t spare_steps;
  explicit Scratch(size_t text_size) : spare_steps(kStepsAByte * text_size) {
    if (!data || !context) fail("there is no memory to split a text");
    pcre2_set_match_limit(context.get(), kMatchLimit);
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

int match_from(const pcre2_code* code, std::string_view text, size_t from, const Scratch& scratch) {
  return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                     PCRE2_NO_UTF_CHECK, scratch.data.get(), scratch.context.get());
}

// A match that begins at `at`, paid for from what is spare.
int match_at_any_cost(const pcre2_code* code, std::string_view text, size_t at, Scratch& scratch) {
  pcre2_set_offset_limit(scratch.context.get(), at);
  int found = match_from(code, text, at, scratch);
  for (uint32_t limit = kMatchLimit; found == PCRE2_ERROR_MATCHLIMIT && limit < kMostMatchLimit;) {
    limit *= 2;
    if (limit > scratch.spare_steps) break;
    scratch.spare_steps -= limit;
    pcre2_set_match_limit(scratch.context.get(), limit);
    found = match_from(code, text, at, scratch);
  }
  pcre2_set_match_limit(scratch.context.get(), kMatchLimit);
  pcre2_set_offset_limit(scratch.context.get(), PCRE2_UNSET);
  return found;
}

// The first match from `from` on. Which place took too many steps is not told, so those that
// follow are tried one by one.
int find_match(const pcre2_code* code, std::string_view text, size_t from, Scratch& scratch) {
  int found = match_from(code, text, from, scratch);
  if (found != PCRE2_ERROR_MATCHLIMIT) return found;
  for (size_t at = from; at < text.size(); ++at) {
    if (!begins_character(text[at])) continue;
    found = match_at_any_cost(code, text, at, scratch);
    if (found != PCRE2_ERROR_NOMATCH) break;
  }
  return found;
}

using Emit = std::function<void(std::string_view)>;

// `text` is valid UTF-8.
void split_by(const std::vector<Owned<pcre2_code>>& codes, size_t level, std::string_view text,
              Scratch& scratch, const Emit& emit) {
  if (text.empty()) return;
  if (level == codes.size()) return emit(text);
  size_t done = 0;
  while (done < text.size()) {
    const int found = find_match(codes[level].get(), text, done, scratch);
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
  for (const std::string& pattern : linear_patterns(patterns))
    patterns_->codes.push_back(compile(pattern));
}
Splitter::~Splitter() = default;
Splitter::Splitter(Splitter&&) noexcept = default;
Splitter& Splitter::operator=(Splitter&&) noexcept = default;

void Splitter::split(std::string_view text, const Emit& emit) const {
  Scratch scratch(text.size());
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
