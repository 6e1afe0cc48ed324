// The files that hold text, and what each gives to be encoded: the documents of JSON Lines, plain
// text as it stands. Here it is decided what is held out: by a hash of the content alone, the same
// for all kinds of file, so that adding, renaming or reordering files moves nothing to the other
// side.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/mmap.h"
#include "text/document.h"
#include "text/tokenizer.h"

namespace moe {

struct SourceFile {
  std::string path;
  std::string domain;  // the file's stem, readable_name: "german" of data/german.txt
  MappedFile bytes;
};

// What was met beside good text: passed over inside folders, or read all the same though some of
// its bytes are no UTF-8.
struct Skipped {
  int64_t binary = 0, empty = 0, broken = 0;
  std::string first_broken;
};
// A line about each kind.
std::vector<std::string> describe(const Skipped&);

struct SourceVisitor {
  std::function<void(SourceFile&&)> text;
  // a folder that holds tokens already (text/shards.h)
  std::function<void(const std::string& folder)> tokens;
};

// Visits `paths` in order: files, and folders walked recursively in sorted order (hidden names are
// passed over). A path that is missing, empty or binary fails when it was named directly; inside a
// folder, empty and binary files are skipped and counted.
Skipped each_source(const std::vector<std::string>& paths, const SourceVisitor& visit);

// Bytes of the files that each_source would open; 0 for what cannot be read.
int64_t source_bytes(const std::vector<std::string>& paths);

// Text that is encoded in one go.
struct TextRun {
  std::string_view text() const { return owns ? std::string_view(held) : view; }

  std::string_view view;  // of the file
  std::string held;       // where the file holds it in another form
  bool owns = false;
  bool all_trained = true;  // else only what begins in `trained`
  std::vector<ByteSpan> trained;
  bool ends_document = true;  // false: the document goes on in the next run of the file
  bool add_begin = false;     // bos is put in front of it, where the tokenizer puts it there
  bool add_end = false;  // the tokenizer's end-of-text token is put behind it, where it has one
  bool in_pair = false;  // of a preference pair: the chosen text and, next, the rejected one
  bool held_out = false;
};

// Whether a text may hold preference pairs.
enum class Pairs { refused, taken };

// Hands out a whole file, `bytes` being what lies at `path`, in order; `bytes` outlive the runs.
// Plain text comes in runs of at most 16 MiB, cut at line ends, which bounds the memory of
// encoding. With `hold_out` above 0 every document (a file, what ends at an end-of-text token, a
// line of JSON) is cut into blocks of 4 to 8 KiB at blank lines or line ends, each of which
// is_held_out judges, and a run also ends where the side changes; a dialogue is one block, and so
// is a preference pair.
void each_run(const std::string& path, std::string_view bytes, const Tokenizer& tokenizer,
              double hold_out, Pairs pairs, const std::function<void(TextRun&&)>& emit);

// Whether a block of this content is held out when a `share` of all is. White space does not count.
bool is_held_out(std::string_view content, double share);

// Why these bytes are no text: a NUL byte, or more than a tenth of them outside valid UTF-8. Empty
// for text. Looks at the first MiB; `broken_bytes`: how many there are part of no character.
std::string binary_reason(std::string_view bytes, int64_t* broken_bytes = nullptr);

}  // namespace moe
