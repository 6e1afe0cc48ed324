// How the forms become two documents each.
#include "text/preference_pair.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "core/error.h"
#include "text/utf8.h"

namespace moe {
namespace {

[[noreturn]] void fail_same(const JsonReader& object) {
  fail(
      "{}: \"chosen\" and \"rejected\" are the same, so there is nothing to prefer; leave the pair "
      "out",
      object.where());
}

bool is_list(const JsonReader& object, const char* field) {
  return object.has(field) && object.value(field).is_array();
}

// Where two texts of no given prompt begin to be replies: at their first difference, a space before
// it taken along, as tokens begin with one.
size_t common_beginning(std::string_view a, std::string_view b) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  auto at = static_cast<size_t>(end - a.begin());
  const auto inside_character = [&](std::string_view text) {
    return at < text.size() && !begins_character(text[at]);
  };
  while (at > 0 && (inside_character(a) || inside_character(b))) --at;
  return at > 0 && a[at - 1] == ' ' ? at - 1 : at;
}

Document plain_text(std::string text, size_t prompt_bytes) {
  Document document;
  document.all_trained = false;
  document.is_plain = true;
  if (prompt_bytes < text.size())
    document.trained = {{static_cast<int64_t>(prompt_bytes), static_cast<int64_t>(text.size())}};
  document.text = std::move(text);
  return document;
}

Document pair_of_texts(const JsonReader& object) {
  if (is_list(object, "prompt"))
    fail(
        "{}: \"prompt\" is a list of messages, \"chosen\" and \"rejected\" are strings; give all "
        "three the same form",
        object.where());
  const auto prompt = object.get<std::string>("prompt", "");
  std::string chosen = prompt + object.get<std::string>("chosen"),
              rejected = prompt + object.get<std::string>("rejected");
  if (chosen == rejected) fail_same(object);
  for (const auto& [field, text] : {std::pair("chosen", &chosen), std::pair("rejected", &rejected)})
    if (text->empty())
      fail("{}: \"{}\" is empty, and so is the prompt; leave the pair out", object.where(), field);
  const size_t replies = object.has("prompt") ? prompt.size() : common_beginning(chosen, rejected);
  Document pair = plain_text(std::move(chosen), replies);
  pair.rejected.push_back(plain_text(std::move(rejected), replies));
  return pair;
}

bool same_message(const Message& a, const Message& b) {
  return a.role == b.role && a.content == b.content;
}

int64_t count_replies(std::span<const Message> messages) {
  return std::count_if(messages.begin(), messages.end(),
                       [](const Message& m) { return m.role == "assistant"; });
}

// Of a dialogue whose first `prompt` messages are the prompt: replies among those are read only.
Document answered(const JsonReader& object, const char* field, std::span<const Message> messages,
                  size_t prompt, const DialogueWriter& write) {
  try {
    const int64_t before = count_replies(messages.first(prompt)), all = count_replies(messages);
    if (all == before)
      fail("no message behind the prompt has the role \"assistant\", so there is no reply");
    Document document = write(messages);
    if (static_cast<int64_t>(document.trained.size()) != all)
      fail(
          "the model's chat template does not keep its {} replies apart, so those of the prompt "
          "cannot be told from the others",
          all);
    document.trained.erase(document.trained.begin(), document.trained.begin() + before);
    return document;
  } catch (const Error& e) {
    fail("{}: \"{}\": {}", object.where(), field, e.what());
  }
}

Document pair_of_dialogues(const JsonReader& object, const DialogueWriter& write) {
  std::vector<Message> chosen = messages_of(object, "chosen"),
                       rejected = messages_of(object, "rejected");
  size_t prompt = 0;
  if (is_list(object, "prompt")) {
    const std::vector<Message> asked = messages_of(object, "prompt");
    prompt = asked.size();
    for (std::vector<Message>* reply : {&chosen, &rejected})
      reply->insert(reply->begin(), asked.begin(), asked.end());
  } else {
    const auto [end, other] =
        std::mismatch(chosen.begin(), chosen.end(), rejected.begin(), rejected.end(), same_message);
    prompt = static_cast<size_t>(end - chosen.begin());
    if (prompt == 0)
      fail(
          "{}: \"chosen\" and \"rejected\" begin with different messages; a pair answers one "
          "prompt, in front of both or in \"prompt\"",
          object.where());
  }
  if (std::equal(chosen.begin(), chosen.end(), rejected.begin(), rejected.end(), same_message))
    fail_same(object);
  Document pair = answered(object, "chosen", chosen, prompt, write);
  pair.rejected.push_back(answered(object, "rejected", rejected, prompt, write));
  return pair;
}

}  // namespace

bool is_pair(const JsonReader& object) {
  if (!object.has("chosen") && !object.has("rejected")) return false;
  for (const char* field : {"chosen", "rejected"})
    if (!object.has(field))
      fail("{}: \"{}\" is missing; a preference pair has \"chosen\" and \"rejected\"",
           object.where(), field);
  for (const char* field : {"text", "messages"})
    if (object.has(field))
      fail("{}: \"{}\" stands beside \"chosen\" and \"rejected\"; a line is a document or a pair",
           object.where(), field);
  return true;
}

Document pair_of(const JsonReader& object, const DialogueWriter& write) {
  const bool lists = is_list(object, "chosen");
  if (lists != is_list(object, "rejected"))
    fail(
        "{}: one of \"chosen\" and \"rejected\" is a list of messages, the other is not; give both "
        "the same form",
        object.where());
  return lists ? pair_of_dialogues(object, write) : pair_of_texts(object);
}

std::vector<Message> messages_of(const JsonReader& object, const char* field) {
  std::vector<Message> messages;
  for (const JsonReader& message : object.objects(field))
    messages.push_back({message.get<std::string>("role"), message.get<std::string>("content")});
  return messages;
}

}  // namespace moe
