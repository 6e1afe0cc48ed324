#include "text/source.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "core/nearest.h"
#include "core/words.h"
#include "text/jsonl.h"
#include "text/shards.h"
#include "text/utf8.h"

namespace moe {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSample = size_t{1} << 20;
constexpr size_t kLongestRun = size_t{16} << 20;
// that a document is cut into for the split: at least this, at most twice
constexpr size_t kBlock = size_t{4} << 10;
constexpr std::string_view kBlanks = " \t\r\n\v\f";

bool hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files;
  try {
    for (auto it = fs::recursive_directory_iterator(folder);
         it != fs::recursive_directory_iterator(); ++it) {
      if (hidden(it->path())) it.disable_recursion_pending();
      else if (it->is_regular_file()) files.push_back(it->path().string());
      else if (it->is_directory() && holds_tokens(it->path().string()))
        fail_usage("{} holds tokens, not text; name that folder itself", it->path().string());
    }
  } catch (const fs::filesystem_error& e) {
    fail("cannot read the folder {}: {}", folder, e.code().message());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Opens a file and hands it on; false when it was passed over.
bool visit_file(const std::string& path, bool named, const SourceVisitor& visit, Skipped& skipped) {
  MappedFile file(path);
  if (file.size() == 0) {
    if (named) fail("{} is empty; a text file is needed", path);
    ++skipped.empty;
    return false;
  }
  int64_t broken = 0;
  if (const std::string reason = binary_reason(file.text(), &broken); !reason.empty()) {
    if (named) fail("{} looks binary ({}); a text file in UTF-8 is needed", path, reason);
    ++skipped.binary;
    return false;
  }
  if (broken > 0 && ++skipped.broken == 1) skipped.first_broken = path;
  visit.text({path, readable_name(fs::path(path).stem().string()), std::move(file)});
  return true;
}

void visit_folder(const std::string& folder, const SourceVisitor& visit, Skipped& skipped) {
  for (const char* part : {"train", "valid"})
    if (holds_tokens(folder + "/" + part))
      fail_usage(
          "{} holds tokens in two parts; name one of them: {}/train, or {}/valid, which is held "
          "out",
          folder, folder, folder);
  const Skipped before = skipped;
  bool any = false;
  for (const std::string& path : files_below(folder))
    any |= visit_file(path, false, visit, skipped);
  if (!any)
    fail(
        "there is no text in the folder {}: {} binary and {} empty files were passed over, and "
        "hidden ones",
        folder, skipped.binary - before.binary, skipped.empty - before.empty);
}

// The last place up to `end` where no character is cut.
size_t whole_characters(std::string_view text, size_t begin, size_t end) {
  size_t cut = end;
  while (cut < text.size() && cut > begin + 1 && end - cut < 3 && !begins_character(text[cut]))
    --cut;
  return cut;
}

// Where the block that begins at `at` ends: behind the first blank line from kBlock on, else the
// last line end before twice that, else there. White space where it begins, and behind `solid`,
// where the document's last character ends, does not count: a file ends with a line end where a
// line of JSON has none.
size_t block_end(std::string_view text, size_t at, size_t solid) {
  const size_t from = text.find_first_not_of(kBlanks, at);
  if (from >= solid || solid - from <= kBlock) return text.size();
  const size_t most = std::min(solid, from + 2 * kBlock);
  // No search leaves it: a document may be one line.
  const std::string_view block = text.substr(from, most - from);
  for (size_t i = block.find('\n', kBlock); i < block.size(); i = block.find('\n', i + 1)) {
    size_t next = i + 1;
    if (next < block.size() && block[next] == '\r') ++next;
    if (next < block.size() && block[next] == '\n') return from + next + 1;
  }
  const size_t line = block.rfind('\n');
  if (line != std::string_view::npos) return from + line + 1;
  return whole_characters(text, from, most);
}

// Hands out a text in parts [begin, end) as long as they can be, each on one side. Documents end at
// `mark`, which belongs to the one before, unless it is empty.
void each_side(std::string_view text, std::string_view mark, double share,
               const std::function<void(size_t begin, size_t end, bool held_out)>& emit) {
  size_t begin = 0;
  bool side = false;
  for (size_t at = 0; at < text.size();) {
    const size_t found = mark.empty() ? std::string_view::npos : text.find(mark, at);
    const bool last = found == std::string_view::npos;
    const std::string_view document = text.substr(0, last ? text.size() : found);
    const size_t solid = document.find_last_not_of(kBlanks) + 1;
    while (at < document.size()) {
      const size_t end = block_end(document, at, solid);
      // What is white throughout stays with what was before it.
      const bool held = document.find_first_not_of(kBlanks, at) < end
                            ? is_held_out(document.substr(at, end - at), share)
                            : side;
      if (at > begin && held != side) {
        emit(begin, at, side);
        begin = at;
      }
      side = held;
      at = end;
    }
    if (!last) at = document.size() + mark.size();
  }
  if (begin < text.size()) emit(begin, text.size(), side);
}

// [begin, end) in parts short enough to be encoded in one go.
void emit_text(std::string_view text, size_t begin, size_t end, bool held_out,
               const std::function<void(TextRun&&)>& emit) {
  while (begin < end) {
    size_t cut = end;
    if (end - begin > kLongestRun) {
      const size_t line = text.substr(begin, kLongestRun).rfind('\n');
      cut = line != std::string_view::npos && line > 0
                ? begin + line + 1
                : whole_characters(text, begin, begin + kLongestRun);
    }
    TextRun run;
    run.view = text.substr(begin, cut - begin);
    run.ends_document = cut == end;
    run.held_out = held_out;
    emit(std::move(run));
    begin = cut;
  }
}

TextRun run_of(Document&& document) {
  TextRun run;
  run.held = std::move(document.text);
  run.owns = true;
  run.all_trained = document.all_trained;
  run.trained = std::move(document.trained);
  run.add_begin = document.is_plain;
  // a dialogue ends with its last message's mark
  run.add_end = run.all_trained || document.is_plain;
  return run;
}

// Both texts are on one side.
void emit_pair(Document&& chosen, double hold_out, const std::function<void(TextRun&&)>& emit) {
  Document rejected = std::move(chosen.rejected.front());
  const bool held_out = is_held_out(chosen.text + rejected.text, hold_out);
  for (Document* document : {&chosen, &rejected}) {
    TextRun run = run_of(std::move(*document));
    run.in_pair = true;
    run.held_out = held_out;
    emit(std::move(run));
  }
}

void emit_document(Document&& document, double hold_out,
                   const std::function<void(TextRun&&)>& emit) {
  if (!document.rejected.empty()) return emit_pair(std::move(document), hold_out, emit);
  if (!document.all_trained || hold_out <= 0) {
    TextRun run = run_of(std::move(document));
    run.held_out = is_held_out(run.held, hold_out);
    return emit(std::move(run));
  }
  each_side(document.text, "", hold_out, [&](size_t begin, size_t end, bool held_out) {
    TextRun run;
    run.held = document.text.substr(begin, end - begin);
    run.owns = true;
    run.add_end = end == document.text.size();
    run.held_out = held_out;
    emit(std::move(run));
  });
}

void each_line(const std::string& path, std::string_view bytes, const Tokenizer& tokenizer,
               double hold_out, Pairs pairs, const std::function<void(TextRun&&)>& emit) {
  JsonlReader reader(bytes, path, dialogue_writer(tokenizer),
                     pairs == Pairs::taken ? pair_writer(tokenizer) : nullptr);
  Document document;
  while (reader.next(document)) {
    emit_document(std::move(document), hold_out, emit);
    document = {};
  }
}

}  // namespace

std::vector<std::string> describe(const Skipped& skipped) {
  std::vector<std::string> lines;
  if (skipped.binary + skipped.empty > 0)
    lines.push_back(
        fmt::format("passed over {} binary and {} empty files", skipped.binary, skipped.empty));
  if (skipped.broken > 0)
    lines.push_back(
        fmt::format("{} with bytes that are no UTF-8, such as {}, read as they are; of Latin-1, "
                    "`iconv -f latin1 -t utf8` makes UTF-8",
                    counted(skipped.broken, "file"), printable(skipped.first_broken)));
  return lines;
}

std::string binary_reason(std::string_view bytes, int64_t* broken_bytes) {
  const std::string_view sample = bytes.substr(0, kSample);
  if (const size_t nul = sample.find('\0'); nul != std::string_view::npos)
    return fmt::format("a NUL byte at offset {}", nul);
  int64_t broken = 0;
  for (std::string_view rest = sample; !rest.empty();) {
    const Utf8Step step = utf8_step(rest);
    if (step.kind == Utf8Step::Kind::cut) break;
    if (step.kind == Utf8Step::Kind::broken) broken += step.length;
    rest.remove_prefix(static_cast<size_t>(step.length));
  }
  if (broken_bytes != nullptr) *broken_bytes = broken;
  if (broken * 10 <= std::ssize(sample)) return "";
  return fmt::format("{} of its first {} bytes are not valid UTF-8", broken, sample.size());
}

// FNV-1a, finished as SplitMix64 is, so that short contents spread over the whole range.
bool is_held_out(std::string_view content, double share) {
  if (share <= 0) return false;
  Fnv1a sum;
  for (const char c : content)
    if (kBlanks.find(c) == std::string_view::npos) sum.add_byte(static_cast<unsigned char>(c));
  uint64_t hash = sum.value;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
  hash ^= hash >> 31;
  return static_cast<double>(hash >> 11) * 0x1p-53 < share;
}

Skipped each_source(const std::vector<std::string>& paths, const SourceVisitor& visit) {
  if (paths.empty()) fail_usage("no text was named; give files or folders with @data");
  Skipped skipped;
  for (const std::string& path : paths) {
    std::error_code unreadable;  // visit_file says what is wrong with the path
    if (!fs::is_directory(path, unreadable)) visit_file(path, true, visit, skipped);
    else if (holds_tokens(path)) visit.tokens(path);
    else visit_folder(path, visit, skipped);
  }
  return skipped;
}

int64_t source_bytes(const std::vector<std::string>& paths) {
  int64_t bytes = 0;
  const auto add = [&](const std::string& path) {
    std::error_code unreadable;
    const uintmax_t size = fs::file_size(path, unreadable);
    if (!unreadable) bytes += static_cast<int64_t>(size);
  };
  for (const std::string& path : paths) {
    std::error_code unreadable;
    if (!fs::is_directory(path, unreadable)) add(path);
    else
      for (const std::string& file : files_below(path)) add(file);
  }
  return bytes;
}

void each_run(const std::string& path, std::string_view text, const Tokenizer& tokenizer,
              double hold_out, Pairs pairs, const std::function<void(TextRun&&)>& emit) {
  if (is_jsonl(path)) return each_line(path, text, tokenizer, hold_out, pairs, emit);
  if (hold_out <= 0) return emit_text(text, 0, text.size(), false, emit);
  const std::string mark = tokenizer.eos_id() ? tokenizer.piece(*tokenizer.eos_id()) : "";
  each_side(text, mark, hold_out, [&](size_t begin, size_t end, bool held_out) {
    emit_text(text, begin, end, held_out, emit);
  });
}

}  // namespace moe
