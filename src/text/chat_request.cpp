#include "text/chat_request.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "core/nearest.h"
#include "text/request_field.h"

namespace moe {
namespace {

constexpr size_t kMostArguments = size_t{16} << 20;

const std::vector<std::string>& request_roles() {
  static const std::vector<std::string> roles = {"system", "developer", "user", "assistant",
                                                 "tool"};
  return roles;
}

std::string joined_parts(const RequestField& content) {
  std::string all;
  for (size_t i = 0; i < content.json.size(); ++i) {
    const RequestField part = content.at(i).object();
    const RequestField type = part.at("type");
    if (type.text() != "text")
      fail_usage("{} is \"{}\", and only parts of the type \"text\" can be read", type.name,
                 printable(type.text(), kShownName));
    if (i > 0) all += '\n';
    all += part.at("text").text();
  }
  return all;
}

void check_calls(const RequestField& calls) {
  calls.list();
  for (size_t i = 0; i < calls.json.size(); ++i) {
    const RequestField call = calls.at(i).object();
    call.text_if_there("id");
    if (call.find("type") != nullptr) call.at("type").only({"function"});
    const RequestField function = call.at("function").object();
    function.at("name").text();
    const OrderedJson* arguments = function.find("arguments");
    if (arguments != nullptr && !arguments->is_string() && !arguments->is_object())
      fail_usage("{}.arguments must be a string or an object", function.name);
  }
}

// Checks a message in form and gives what its content is for the template; nothing for None.
std::optional<std::string> checked_content(const RequestField& message) {
  const RequestField role = message.at("role");
  role.only(request_roles());
  message.text_if_there("name");
  message.text_if_there("tool_call_id");
  if (message.find("function_call") != nullptr)
    fail_usage("{}.function_call is not known here; tool_calls has its place", message.name);
  const bool assistant = role.text() == "assistant";
  bool calls = false;
  if (message.find("tool_calls") != nullptr) {
    const RequestField given = message.at("tool_calls");
    check_calls(given);
    calls = !given.json.empty();
    if (calls && !assistant) fail_usage("{} is for the role \"assistant\" only", given.name);
  }
  if (message.find("content") == nullptr) {
    if (calls) return std::nullopt;
    if (assistant && message.json.contains("content")) return "";
  }
  const RequestField content = message.at("content");
  if (content.json.is_array()) return joined_parts(content);
  if (!content.json.is_string())
    fail_usage("{} must be a string, or a list of parts of the type \"text\"", content.name);
  return content.text();
}

jinja::Value checked_message(const RequestField& message) {
  const std::optional<std::string> content = checked_content(message);
  const jinja::Value text = content ? jinja::Value(*content) : jinja::Value();
  jinja::Dict out;
  bool written = false;
  for (const auto& [key, value] : message.json.items()) {
    if (key == "content") {
      out.entries.emplace_back(key, text);
      written = true;
    } else if (key != "tool_calls" || !value.empty()) {
      out.entries.emplace_back(key, jinja::from_json(value));
    }
  }
  if (!written) out.entries.emplace_back("content", text);
  return out;
}

void check_tool(const RequestField& tool) {
  tool.object().at("type").only({"function"});
  const RequestField function = tool.at("function").object();
  function.at("name").text();
  function.text_if_there("description");
  if (function.find("parameters") != nullptr) function.at("parameters").object();
}

// What the values refuse, such as depth, is the client's doing.
template <class Make>
auto as_usage(const std::string& name, Make&& make) {
  try {
    return make();
  } catch (const Error& e) {
    if (e.kind() == Error::Kind::usage) throw;
    fail_usage("{}{}{}", name, name.empty() ? "" : ": ", e.what());
  }
}

jinja::Variables extra_of(const RequestField& extra) {
  static constexpr std::string_view kOwn[] = {"messages", "tools", "add_generation_prompt",
                                              "bos_token", "eos_token"};
  extra.object();
  jinja::Variables out;
  for (const auto& [key, value] : extra.json.items()) {
    if (std::find(std::begin(kOwn), std::end(kOwn), key) != std::end(kOwn))
      fail_usage("{}.{} cannot be set there", extra.name, key);
    out.emplace_back(key, jinja::from_json(value));
  }
  return out;
}

void refuse_marks_in(const jinja::Value& x, std::span<const std::string> marks,
                     const std::string& name) {
  const auto check = [&](const std::string& text) {
    for (const std::string& mark : marks)
      if (text.find(mark) != std::string::npos)
        fail_usage("{} holds {}, which parts messages and may not stand inside one",
                   printable(name, 200), printable(mark));
  };
  if (x.text()) check(*x.text());
  if (x.sequence())
    for (size_t i = 0; i < x.sequence()->items.size(); ++i)
      refuse_marks_in(x.sequence()->items[i], marks, fmt::format("{}[{}]", name, i));
  if (x.dict())
    for (const auto& [key, value] : x.dict()->entries) {
      const std::string inside = fmt::format("{}.{}", name, to_text(key));
      refuse_marks_in(key, marks, inside);
      refuse_marks_in(value, marks, inside);
    }
}

// ---- styles -------------------------------------------------------------------------------------

jinja::Value arguments_in_style(const jinja::Value& given, bool as_text) {
  if (given.none()) return as_text ? jinja::Value("{}") : jinja::Value(jinja::Dict{});
  if (as_text) return given.text() ? given : jinja::Value(to_json(given, {}));
  if (given.text() == nullptr) return given;
  try {
    const OrderedJson parsed = parse_ordered_json(*given.text(), "arguments", kMostArguments);
    return parsed.is_object() ? jinja::from_json(parsed) : given;
  } catch (const Error&) {
    return given;  // a model may have written them, and templates can show what is no JSON
  }
}

jinja::Dict with_entry(const jinja::Dict& all, const char* key, jinja::Value value) {
  jinja::Dict out = all;
  for (auto& entry : out.entries)
    if (entry.first == jinja::Value(key)) {
      entry.second = std::move(value);
      return out;
    }
  out.entries.emplace_back(key, std::move(value));
  return out;
}

std::string text_of_entry(const jinja::Dict& dict, const char* key) {
  const jinja::Value* value = dict.find(key);
  return value == nullptr || value->text() == nullptr ? "" : *value->text();
}

// The same nine letters for the same id, by FNV-1a.
std::string nine_letters(const std::string& id) {
  constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyz";
  constexpr size_t kSize = 9;
  const auto is_letter = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  if (id.size() == kSize && std::all_of(id.begin(), id.end(), is_letter)) return id;
  Fnv1a hash;
  hash.add(id.data(), id.size());
  std::string letters;
  for (; letters.size() < kSize; hash.value /= kLetters.size())
    letters += kLetters[hash.value % kLetters.size()];
  return letters;
}

// Puts a dialogue's ids of calls into the form that a template takes, and those that results name
// into the same.
class CallNames {
 public:
  explicit CallNames(CallIds form) : form_(form) {}

  jinja::Dict of_call(const jinja::Dict& call, const std::string& function) {
    if (form_ == CallIds::as_given) return call;
    const std::string given = text_of_entry(call, "id");
    std::string id = given;
    if (form_ == CallIds::nine_letters)
      id = nine_letters(given.empty() ? fmt::format("call {}", calls_) : given);
    else if (!given.starts_with("functions."))
      id = fmt::format("functions.{}:{}", function, calls_);
    ++calls_;
    renamed_[given] = id;
    return with_entry(call, "id", id);
  }
  jinja::Dict of_result(const jinja::Dict& message) const {
    const std::string given = text_of_entry(message, "tool_call_id");
    if (form_ == CallIds::as_given || given.empty()) return message;
    const auto found = renamed_.find(given);
    if (found != renamed_.end()) return with_entry(message, "tool_call_id", found->second);
    return form_ == CallIds::nine_letters ? with_entry(message, "tool_call_id", nine_letters(given))
                                          : message;
  }

 private:
  CallIds form_;
  int64_t calls_ = 0;
  std::map<std::string, std::string> renamed_;
};

jinja::Value call_in_style(const jinja::Value& call, const CallStyle& style, CallNames& names) {
  const jinja::Dict& function = *call.dict()->find("function")->dict();
  const jinja::Value* given = function.find("arguments");
  return with_entry(names.of_call(*call.dict(), text_of_entry(function, "name")), "function",
                    with_entry(function, "arguments",
                               arguments_in_style(given == nullptr ? jinja::Value() : *given,
                                                  style.arguments_as_text)));
}

// A template of this style refuses a message with calls that has both a content and a thought.
jinja::Dict with_thinking(const jinja::Dict& message) {
  const auto given = [&](const char* key) -> const jinja::Value* {
    const jinja::Value* value = message.find(key);
    return value == nullptr || !value->truth() ? nullptr : value;
  };
  const jinja::Value* thought = given("reasoning_content");
  if (thought == nullptr || given("thinking") || (given("tool_calls") && given("content")))
    return message;
  return with_entry(message, "thinking", *thought);
}

}  // namespace

ChatRequest chat_request(const OrderedJson& body) {
  if (!body.is_object()) fail_usage("the request must be an object");
  const auto of_body = [&](const char* key) -> std::optional<RequestField> {
    const auto found = body.find(key);
    if (found == body.end() || found->is_null()) return std::nullopt;
    return RequestField{*found, key};
  };
  ChatRequest request;
  const std::optional<RequestField> messages = of_body("messages");
  if (!messages) fail_usage("messages is missing");
  if (messages->list().json.empty()) fail_usage("messages is empty; a dialogue needs at least one");
  jinja::List list;
  for (size_t i = 0; i < messages->json.size(); ++i) {
    const RequestField message = messages->at(i).object();
    list.push_back(as_usage(message.name, [&] { return checked_message(message); }));
  }
  request.messages = as_usage("messages", [&] { return jinja::Value(std::move(list)); });
  if (const std::optional<RequestField> tools = of_body("tools");
      tools && !tools->list().json.empty()) {
    for (size_t i = 0; i < tools->json.size(); ++i) check_tool(tools->at(i));
    request.tools = as_usage("tools", [&] { return jinja::from_json(tools->json); });
  }
  if (const std::optional<RequestField> extra = of_body("chat_template_kwargs"))
    request.extra = as_usage(extra->name, [&] { return extra_of(*extra); });
  if (const std::optional<RequestField> ask = of_body("add_generation_prompt")) {
    if (!ask->json.is_boolean()) fail_usage("{} must be true or false", ask->name);
    request.ask = ask->json.get<bool>();
  }
  if (const std::optional<RequestField> on = of_body("continue_final_message")) {
    if (!on->json.is_boolean()) fail_usage("{} must be true or false", on->name);
    request.goes_on = on->json.get<bool>();
  }
  if (!request.goes_on) return request;
  if (request.ask && of_body("add_generation_prompt"))
    fail_usage(
        "continue_final_message goes on with the last message, and add_generation_prompt begins "
        "another; only one can be true");
  request.ask = false;
  return request;
}

std::string of_last_message(const ChatRequest& request, const char* key) {
  return text_of_entry(*request.messages.sequence()->items.back().dict(), key);
}

jinja::Value with_last_content(const ChatRequest& request, std::string_view text) {
  jinja::List messages = request.messages.sequence()->items;
  const jinja::Dict& last = *messages.back().dict();
  if (const jinja::Value* content = last.find("content"); content == nullptr || !content->text())
    fail_usage("messages[{}] has no content, so there is nothing to go on with",
               messages.size() - 1);
  if (const jinja::Value* calls = last.find("tool_calls"); calls != nullptr && calls->truth())
    fail_usage("messages[{}] calls tools behind its content, so there is nothing to go on with",
               messages.size() - 1);
  messages.back() =
      with_entry(last, "content", fmt::format("{}{}", of_last_message(request, "content"), text));
  return messages;
}

jinja::Variables parse_template_variables(const std::string& json) {
  constexpr const char* kName = "chat_template_kwargs";
  if (json.empty()) return {};
  try {
    return extra_of({parse_ordered_json(json, kName), kName});
  } catch (const Error& e) {
    fail_usage("@chat_template_kwargs: {}", e.what());
  }
}

ChatRequest parse_chat_request(const std::string& text, const std::string& where) {
  return chat_request(as_usage("", [&] { return parse_ordered_json(text, where); }));
}

void refuse_marks(const ChatRequest& request, std::span<const std::string> marks) {
  refuse_marks_in(request.messages, marks, "messages");
  refuse_marks_in(request.tools, marks, "tools");
  for (const auto& [name, value] : request.extra)
    refuse_marks_in(value, marks, "chat_template_kwargs." + name);
}

jinja::Value styled(const jinja::Value& messages, const CallStyle& style) {
  jinja::List out;
  CallNames names(style.ids);
  for (const jinja::Value& given : messages.sequence()->items) {
    const jinja::Value message =
        names.of_result(style.thinking ? with_thinking(*given.dict()) : *given.dict());
    const jinja::Value* calls = message.dict()->find("tool_calls");
    if (calls == nullptr || calls->sequence() == nullptr) {
      out.push_back(message);
      continue;
    }
    jinja::List shaped;
    for (const jinja::Value& call : calls->sequence()->items)
      shaped.push_back(call_in_style(call, style, names));
    jinja::Dict made = with_entry(*message.dict(), "tool_calls", std::move(shaped));
    const jinja::Value* content = made.find("content");
    if (content == nullptr || !content->truth())
      made = with_entry(made, "content", style.empty_content ? jinja::Value("") : jinja::Value());
    out.emplace_back(std::move(made));
  }
  return out;
}

}  // namespace moe
