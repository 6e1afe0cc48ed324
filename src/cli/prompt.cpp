#include "cli/prompt.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cli/screen.h"
#include "core/error.h"
#include "core/file.h"
#include "core/nearest.h"
#include "text/utf8.h"

namespace moe::cli {
namespace {

constexpr const char* kStandardInput = "-";
constexpr size_t kMostBytes = size_t{64} << 20;

std::string read_standard_input() {
  if (isatty(STDIN_FILENO) == 1) tell("type the text to continue; Ctrl-D on a line of its own ends it\n");
  std::string text;
  for (;;) {
    char part[1 << 16];
    const ssize_t n = ::read(STDIN_FILENO, part, sizeof part);
    if (n == 0) return text;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("standard input cannot be read: {}", std::strerror(errno));
    text.append(part, static_cast<size_t>(n));
    if (text.size() > kMostBytes) fail("standard input is longer than {}, which no prompt is", human_bytes(static_cast<double>(kMostBytes)));
  }
}

void check_text(std::string_view text, const std::string& where) {
  if (text.empty()) fail("{} is empty; a prompt has at least one character", where);
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text.substr(at));
    if (text[at] == '\0' || step.kind != Utf8Step::Kind::character)
      fail("{} is no text: its byte {} is {}; a prompt is UTF-8", where, at, text[at] == '\0' ? "NUL" : "part of no character");
    at += static_cast<size_t>(step.length);
  }
}

}  // namespace

FieldList fields(PromptFlags& f) {
  FieldList list;
  list.add("prompt", f.text, "the text to continue; - reads it from standard input").also({"p"});
  list.add("file", f.file, "a file with the text to continue; one line end at its end is left out").also({"f"});
  return list;
}

std::string read_prompt(const PromptFlags& f, const Given& given) {
  const bool has_text = given.has("prompt"), has_file = given.has("file");
  if (has_text && has_file) fail_usage("--prompt and --file both say what to continue; give one of them");
  if (!has_text && !has_file) fail_usage("there is nothing to continue: give --prompt TEXT, --prompt - to read it from standard input, or --file FILE");
  if (has_text && f.text.empty()) fail_usage("the prompt is empty; give at least one character with -p, as in -p \"Once\"");
  if (has_text && f.text != kStandardInput) return f.text;
  const bool from_input = has_text || f.file == kStandardInput;
  const std::string where = from_input ? "standard input" : printable(f.file);
  std::string text = from_input ? read_standard_input() : read_text(f.file, kMostBytes);
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  check_text(text, where);
  return text;
}

}  // namespace moe::cli
