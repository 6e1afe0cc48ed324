// JSON Lines and the dialogues and preference pairs in them: what is learned from lies within the
// text, and is a reply with its end.
#include "text/jsonl.h"

#include <string>
#include <vector>

#include "fuzz/fuzz.h"
#include "text/chat.h"

namespace moe::fuzz {
namespace {

void check(const Document& document) {
  const std::string_view text = document.text;
  demand(!text.empty());
  demand(document.all_trained == document.trained.empty());
  int64_t done = 0;
  for (const ByteSpan span : document.trained) {
    demand(done < span.begin && span.begin < span.end &&
           span.end < static_cast<int64_t>(text.size()));
    const auto begin = static_cast<size_t>(span.begin), end = static_cast<size_t>(span.end);
    demand(text.substr(0, begin).ends_with("<|im_start|>assistant\n"));
    const std::string_view reply = text.substr(begin, end - begin);
    demand(reply.ends_with(kMessageEnd) &&
           reply.find(kMessageEnd) == reply.size() - std::string_view(kMessageEnd).size());
    done = span.end;
  }
}

// A text as it stands: its end is the reply, unless that is empty.
void check_plain(const Document& document) {
  demand(!document.text.empty() && !document.all_trained && document.trained.size() <= 1);
  for (const ByteSpan span : document.trained)
    demand(0 <= span.begin && span.begin < span.end &&
           span.end == static_cast<int64_t>(document.text.size()));
}

void check_any(const Document& document) {
  if (document.rejected.empty()) return check(document);
  demand(document.rejected.size() == 1);
  const Document& rejected = document.rejected.front();
  demand(document.text != rejected.text && document.is_plain == rejected.is_plain);
  for (const Document* one : {&document, &rejected})
    if (one->is_plain) check_plain(*one);
    else check(*one);
}

}  // namespace
}  // namespace moe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moe;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  fuzz::accept_or_refuse([&] {
    JsonlReader reader(bytes, "fuzz.jsonl");
    int64_t line = 0;
    for (Document document; reader.next(document); line = reader.line()) {
      fuzz::demand(reader.line() > line);
      fuzz::check_any(document);
    }
  });
  const size_t cut = bytes.find('\n');
  const std::vector<Message> messages = {{"user", std::string(bytes.substr(0, cut))},
                                         {std::string(bytes.substr(0, 9)), std::string(bytes)}};
  fuzz::accept_or_refuse([&] {
    const std::string prompt = chatml().prompt(std::span(messages).first(1));
    const std::string whole = chat_document(messages).text;
    fuzz::demand(messages[1].role != "assistant" || whole.starts_with(prompt));
    const Document direct = chat_document(messages), rendered = chatml().document(messages);
    fuzz::demand(direct.text == rendered.text && direct.trained.size() == rendered.trained.size());
    for (size_t i = 0; i < direct.trained.size(); ++i)
      fuzz::demand(direct.trained[i].begin == rendered.trained[i].begin &&
                   direct.trained[i].end == rendered.trained[i].end);
    const std::string line = jsonl_line(messages);
    JsonlReader reader(line, "fuzz.jsonl");
    Document document;
    fuzz::demand(messages[1].role != "assistant" || reader.next(document));
  });
  fuzz::accept_or_refuse([&] {
    const auto tokenizer = make_tokenizer("bytes");
    tokenizer->set_config_json(std::string(bytes));
    mark_dialogues(*tokenizer, dialogues_of(*tokenizer) != Dialogues::chatml);
    fuzz::demand(dialogues_of(*tokenizer) != Dialogues::other);
  });
  return 0;
}
