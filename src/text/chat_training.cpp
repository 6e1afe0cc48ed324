// Dialogues to train on, by a model's own template.
#include <algorithm>
#include <optional>

#include "core/error.h"
#include "text/chat_template.h"

namespace moe {
namespace {

constexpr std::time_t kDayOfDocuments = 1721995200;  // noon of 26 July 2024

void add_span(std::vector<ByteSpan>& spans, size_t begin, size_t end) {
  if (begin < end) spans.push_back({static_cast<int64_t>(begin), static_cast<int64_t>(end)});
}

// Of {% generation %}: what lies in another one, or goes on behind it, is one with it.
std::vector<ByteSpan> spans_of(std::vector<std::pair<size_t, size_t>> generations) {
  std::sort(generations.begin(), generations.end());
  std::vector<ByteSpan> spans;
  for (const auto& [begin, end] : generations)
    if (!spans.empty() && static_cast<int64_t>(begin) <= spans.back().end)
      spans.back().end = std::max(spans.back().end, static_cast<int64_t>(end));
    else add_span(spans, begin, end);
  return spans;
}

// Behind the first of `stops` in text[from, ...). At `message_end` where that comes before: it
// stands there because more messages follow, and a reply does not end with it.
std::optional<size_t> behind_stop(const std::string& text, const std::vector<std::string>& stops,
                                  std::string_view message_end, size_t from) {
  size_t at = message_end.empty() ? std::string::npos : text.find(message_end, from), end = at;
  for (const std::string& stop : stops)
    if (const size_t found = text.find(stop, from); found < at) {
      at = found;
      end = found + stop.size();
    }
  return at == std::string::npos ? std::nullopt : std::optional(end);
}

std::string without_space(std::string_view text) {
  std::string out;
  std::copy_if(text.begin(), text.end(), std::back_inserter(out), [](char c) {
    return std::string_view(" \t\r\n").find(c) == std::string_view::npos;
  });
  return out;
}

}  // namespace

Document ChatTemplate::document(std::span<const Message> messages) const {
  check(messages);
  jinja::Rendered whole = run(messages, false, kDayOfDocuments);
  Document document;
  document.all_trained = false;
  document.text = std::move(whole.text);
  document.trained = spans_of(std::move(whole.generations));
  if (!document.trained.empty()) return document;
  const std::string& text = document.text;
  const ReplyChannels* channels = reply_channels(calls_);
  const std::string message_end = channels == nullptr ? "" : channels->message_end;
  size_t done = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "assistant") continue;
    const std::string prompt = run(messages.first(i), true, kDayOfDocuments).text;
    if (prompt.size() < done || !text.starts_with(prompt))
      fail(
          "message {}: the model's chat template does not write the dialogue as it writes the "
          "prompt for this reply: it changes what came before, or opens the reply with more",
          i + 1);
    const size_t begin = prompt.size();
    std::optional<size_t> end = behind_stop(text, ends_, message_end, begin);
    if (!end && i + 1 == messages.size() && !ends_.empty()) {
      // Some templates write the end with the next message only.
      document.text += ends_.front();
      end = text.size();
    } else if (!end) {
      const std::string so_far = run(messages.first(i + 1), false, kDayOfDocuments).text;
      if (text.starts_with(so_far)) end = so_far.size();
    }
    const auto reply = [&] { return std::string_view(text).substr(begin, *end - begin); };
    if (!end || *end < begin ||
        without_space(reply()).find(without_space(messages[i].content)) == std::string::npos)
      fail(
          "message {}: the model's chat template writes this reply otherwise than it stands, or "
          "leaves out a part, such as a thought, once more messages follow",
          i + 1);
    add_span(document.trained, begin, *end);
    done = *end;
  }
  return document;
}

}  // namespace moe
