// A line is parsed by the strict parser of core/json.h, so duplicate keys, deep nesting and broken
// UTF-8 are refused with their place.
#include "text/jsonl.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "core/nearest.h"
#include "text/preference_pair.h"

namespace moe {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr size_t kShownKeys = 12;

[[noreturn]] void fail_without_text(const JsonReader& object) {
  std::vector<std::string> keys = object.keys();
  if (keys.size() > kShownKeys) keys.resize(kShownKeys);
  fail(
      "{}: an object needs \"text\" (a string), \"messages\" (a list of role and content) or "
      "\"chosen\" and \"rejected\"; this one has {}",
      object.where(),
      keys.empty() ? "no keys" : printable(fmt::format("{}", fmt::join(keys, ", ")), 400));
}

[[noreturn]] void fail_pairs(const std::string& path) {
  fail(
      "{} holds preference pairs, which only @data and @eval_data of `moe train` take; name a file "
      "of texts or dialogues",
      path);
}

Document dialogue_of(const JsonReader& object, const DialogueWriter& write) {
  const std::vector<Message> messages = messages_of(object, "messages");
  try {
    Document document = write(messages);
    if (document.trained.empty())
      fail("no message has the role \"assistant\", so there is no reply to learn");
    return document;
  } catch (const Error& e) {
    fail("{}: {}", object.where(), e.what());
  }
}

Document document_of(const Json& line, const std::string& path, const std::string& where,
                     const DialogueWriter& write, const DialogueWriter& write_pair) {
  const JsonReader object(line, where);
  if (is_pair(object)) {
    if (!write_pair) fail_pairs(path);
    return pair_of(object, write_pair);
  }
  const bool text = object.has("text"), messages = object.has("messages");
  if (text && messages)
    fail("{}: \"text\" and \"messages\" are both there; a document is one of them", where);
  if (messages) return dialogue_of(object, write);
  if (!text) fail_without_text(object);
  Document document;
  document.text = object.get<std::string>("text");
  return document;
}

}  // namespace

JsonlReader::JsonlReader(std::string_view bytes, std::string where, DialogueWriter write,
                         DialogueWriter write_pair)
    : rest_(bytes),
      where_(std::move(where)),
      write_(std::move(write)),
      write_pair_(std::move(write_pair)) {
  if (rest_.starts_with(kByteOrderMark)) rest_.remove_prefix(kByteOrderMark.size());
}

bool JsonlReader::next(Document& document) {
  while (!rest_.empty()) {
    const std::string_view line = rest_.substr(0, rest_.find('\n'));
    rest_.remove_prefix(std::min(line.size() + 1, rest_.size()));
    ++line_;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}: line {}", where_, line_);
    if (line.size() > kJsonMaxBytes)
      fail("{}: it has {} bytes; a line may have {}", where, line.size(), kJsonMaxBytes);
    document = document_of(parse_json(line, where_, kJsonMaxBytes, static_cast<size_t>(line_)),
                           where_, where, write_, write_pair_);
    if (!document.text.empty()) return true;
  }
  return false;
}

std::string jsonl_line(std::span<const Message> messages) {
  OrderedJson list = OrderedJson::array();  // the role comes first, as people write it
  for (const Message& message : messages)
    list.push_back({{"role", message.role}, {"content", message.content}});
  return one_line_json(OrderedJson{{"messages", list}}) + "\n";
}

bool is_jsonl(std::string_view path) {
  return path.ends_with(".jsonl") || path.ends_with(".ndjson");
}

}  // namespace moe
