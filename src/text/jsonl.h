// JSON Lines as a source of documents: one object a line, {"text": "..."}, {"messages": [{"role":
// "...", "content": "..."}, ...]} or a preference pair (text/preference_pair.h); other keys are
// passed over, and so are empty lines and empty texts. Bytes are untrusted.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "text/chat.h"
#include "text/document.h"

namespace moe {

class JsonlReader {
 public:
  // `bytes` outlive the reader; `where` (the file's path) opens every message. `write_pair`: for
  // the dialogues of preference pairs; null: pairs are refused, for who has no use for them.
  JsonlReader(std::string_view bytes, std::string where, DialogueWriter write = chat_document,
              DialogueWriter write_pair = chat_document);
  // The next document, false at the end. Fails naming file, line and what is wrong with it; a
  // dialogue that holds no reply is wrong too, as nothing could be learned from it.
  bool next(Document& document);
  int64_t line() const { return line_; }  // of the document last handed out, from 1

 private:
  std::string_view rest_;
  std::string where_;
  DialogueWriter write_, write_pair_;
  int64_t line_ = 0;
};

// A dialogue as a line that a reader takes, with its newline. Bytes that are no UTF-8 become
// U+FFFD.
std::string jsonl_line(std::span<const Message>);

// Whether a path is read as JSON Lines: it ends in .jsonl or .ndjson.
bool is_jsonl(std::string_view path);

}  // namespace moe
