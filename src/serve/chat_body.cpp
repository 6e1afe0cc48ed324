#include "serve/chat_body.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iterator>

#include "serve/refused_fields.h"

namespace moe::serve {
namespace {

// Fields that are called the same in OpenAI's chat completions and in the other APIs, or that are
// this server's own.
constexpr const char* kShared[] = {"model",
                                   "stream",
                                   "temperature",
                                   "top_p",
                                   "top_k",
                                   "min_p",
                                   "seed",
                                   "repeat_penalty",
                                   "repetition_penalty",
                                   "logit_bias",
                                   "frequency_penalty",
                                   "ignore_eos",
                                   "parallel_tool_calls",
                                   "presence_penalty",
                                   "chat_template_kwargs",
                                   "reasoning_format"};
constexpr std::string_view kMessages = "messages[", kContent = ".content";

OrderedJson content_of(const std::vector<std::string>& texts) {
  if (texts.empty()) return "";
  if (texts.size() == 1) return texts[0];
  OrderedJson parts = OrderedJson::array();
  for (const std::string& text : texts) parts.push_back({{"type", "text"}, {"text", text}});
  return parts;
}

}  // namespace

ChatBody::ChatBody(const OrderedJson& request, Names names) : names_(std::move(names)) {
  std::vector<std::string> given;
  for (const auto& [key, value] : request.items()) given.push_back(key);
  refuse_misspelled(given, std::vector<std::string>(std::begin(kShared), std::end(kShared)));
  for (const char* key : kShared)
    if (const auto found = request.find(key); found != request.end()) set(key, *found);
  // The last chunk of a stream then has what the other APIs' last events say.
  set("stream_options", {{"include_usage", true}});
}

ChatBody::Said& ChatBody::said_by(const std::string& role, const std::string& from) {
  if (messages_.empty() || messages_.back().role != role || role == "tool")
    messages_.push_back({role, from, {}, {}, {}});
  return messages_.back();
}

void ChatBody::add_text(const std::string& role, const std::string& text, const std::string& from) {
  Said& message = said_by(role, from);
  if (!text.empty()) message.texts.push_back(text);
}

void ChatBody::add_thought(const std::string& text, const std::string& from) {
  Said& message = said_by("assistant", from);
  if (!message.thought.empty()) message.thought += '\n';
  message.thought += text;
}

void ChatBody::add_call(const std::string& id, const std::string& name,
                        const OrderedJson& arguments, const std::string& from) {
  said_by("assistant", from)
      .calls.push_back({{"id", id},
                        {"type", "function"},
                        {"function", {{"name", name}, {"arguments", arguments}}}});
}

void ChatBody::add_result(const std::string& id, const std::vector<std::string>& texts,
                          const std::string& from) {
  Said& message = said_by("tool", from);
  message.answers = id;
  message.texts = texts;
}

void ChatBody::add_tool(const RequestField& tool, const char* schema) {
  OrderedJson function = {{"name", tool.at("name").text()}};
  if (tool.find("description") != nullptr) function["description"] = tool.at("description").text();
  if (tool.find(schema) != nullptr) function["parameters"] = tool.at(schema).object().json;
  body_["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
}

void ChatBody::choose_tool(const std::string& name) {
  set("tool_choice", {{"type", "function"}, {"function", {{"name", name}}}});
}

std::string ChatBody::text() const {
  OrderedJson body = body_, messages = OrderedJson::array();
  for (const Said& said : messages_) {
    OrderedJson message = {{"role", said.role}};
    if (said.role == "tool") message["tool_call_id"] = said.answers;
    if (!said.thought.empty()) message["reasoning_content"] = said.thought;
    message["content"] = content_of(said.texts);
    if (!said.calls.empty()) {
      if (said.texts.empty()) message["content"] = nullptr;
      message["tool_calls"] = said.calls;
    }
    messages.push_back(std::move(message));
  }
  body["messages"] = std::move(messages);
  return body.dump();
}

ApiError ChatBody::in_own_words(ApiError error) const {
  std::string& message = error.message;
  const auto renamed = std::find_if(names_.begin(), names_.end(),
                                    [&](const auto& name) { return name.first == error.param; });
  const size_t close = message.find(']');
  if (message.starts_with(kMessages) && close != std::string::npos) {
    // Their numbers are those of the chat completion.
    const size_t number = std::strtoul(message.c_str() + kMessages.size(), nullptr, 10);
    std::string rest = message.substr(close + 1);
    if (rest.starts_with(kContent)) rest.erase(0, kContent.size());
    if (number < messages_.size()) message = messages_[number].from + rest;
  } else if (renamed != names_.end() && error.param != "messages") {
    message.insert(0, renamed->second + ": ");
  }
  if (renamed != names_.end()) error.param = renamed->second;
  return error;
}

template <class Read>
auto ChatBody::reading(Read&& read) const {
  try {
    return read(text());
  } catch (...) {
    ApiError error = api_error(std::current_exception());
    if (error.status == 500) error.status = 400;  // as for every request that is read
    throw in_own_words(std::move(error));
  }
}

ParsedRequest ChatBody::read(const Served& served) const {
  return reading([&](const std::string& body) { return read_chat(body, served); });
}

std::string ChatBody::prompt(const Served& served) const {
  return reading([&](const std::string& body) { return chat_prompt(body, served); });
}

std::vector<std::string> texts_of(const RequestField& content,
                                  const std::vector<std::string>& types) {
  if (content.json.is_string()) return {content.text()};
  if (!content.json.is_array())
    fail_usage("{} must be a string, or a list of parts of the type \"{}\"", content.name,
               types.front());
  std::vector<std::string> texts;
  for (size_t i = 0; i < content.json.size(); ++i) {
    const RequestField part = content.at(i).object();
    part.at("type").only(types);
    texts.push_back(part.at("text").text());
  }
  return texts;
}

}  // namespace moe::serve
