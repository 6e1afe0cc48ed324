#include "serve/chat_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/nearest.h"
#include "serve/api_error.h"

namespace moe::serve {
namespace {

constexpr const char* kEffort = "reasoning_effort";  // both the field and the variable
constexpr const char* kNoEffort = "none";
// Fields, and variables too: Qwen's, GLM's and most others' switch, and DeepSeek's and Granite's.
constexpr const char *kSwitch = "enable_thinking", *kThinking = "thinking";

// The text of a key; null: there is none, or it is no text, which is left for chat_request() to
// refuse.
std::string* text_of_key(OrderedJson& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? nullptr : found->get_ptr<std::string*>();
}

void take_text_parts(OrderedJson& message) {
  const auto content = message.find("content");
  if (content == message.end() || !content->is_array()) return;
  const std::vector<std::string>& types = text_part_types();
  for (OrderedJson& part : *content)
    if (std::string* type = text_of_key(part, "type");
        type != nullptr && std::find(types.begin(), types.end(), *type) != types.end())
      *type = "text";
}

void take_effort(OrderedJson& completion) {
  const auto given = completion.find(kEffort);
  if (given == completion.end() || given->is_null()) return;
  const auto* effort = given->get_ptr<const std::string*>();
  if (effort == nullptr || effort->empty())
    throw ApiError{400,
                   message("{} must be a text such as \"none\", \"low\" or \"high\", not {}",
                           kEffort, printable(one_line_json(*given), 40)),
                   kEffort};
  set_effort(completion, std::string(*effort));
}

// What newer vLLM calls a thought.
void take_thought(OrderedJson& message) {
  const auto thought = message.find("reasoning");
  if (thought == message.end() || !thought->is_string()) return;
  const OrderedJson text = *thought;
  OrderedJson& known = message["reasoning_content"];
  if (known.is_null()) known = text;
}

// An object, or Qwen's true and false.
void take_switches(OrderedJson& completion) {
  if (const auto given = completion.find(kThinking);
      given != completion.end() && !given->is_null()) {
    const OrderedJson thinking = *given;
    try {
      take_thinking(completion, {thinking, kThinking});
    } catch (const Error& e) {
      throw ApiError{400, e.what(), kThinking};
    }
  }
  if (const auto given = completion.find(kSwitch); given != completion.end() && !given->is_null()) {
    if (!given->is_boolean())
      throw ApiError{400, message("{} must be true or false", kSwitch), kSwitch};
    set_thinking(completion, given->get<bool>());
  }
}

}  // namespace

std::string template_role(const std::string& role) { return role == "developer" ? "system" : role; }

const std::vector<std::string>& text_part_types() {
  static const std::vector<std::string> types = {"input_text", "output_text", "text"};
  return types;
}

void set_template_variable(OrderedJson& completion, const char* name, const OrderedJson& value) {
  OrderedJson& variables = completion["chat_template_kwargs"];
  if (variables.is_null()) variables = OrderedJson::object();
  // What is no object is refused when it is read.
  if (variables.is_object() && !variables.contains(name)) variables[name] = value;
}

void set_thinking(OrderedJson& completion, bool wanted) {
  for (const char* name : {kSwitch, kThinking}) set_template_variable(completion, name, wanted);
}

void take_thinking(OrderedJson& completion, const RequestField& thinking) {
  const RequestField type = thinking.object().at("type");
  type.only({"enabled", "disabled", "adaptive", "auto"});
  if (const OrderedJson* budget = thinking.find("budget_tokens")) {
    if (!budget->is_number_integer() || budget->get<int64_t>() < 1)
      fail_usage("{}.budget_tokens must be a whole number of 1 or above", thinking.name);
    if (type.text() == "enabled") set_template_variable(completion, "thinking_budget", *budget);
  }
  if (type.text() == "enabled" || type.text() == "disabled")
    set_thinking(completion, type.text() == "enabled");
}

void set_effort(OrderedJson& completion, const std::string& effort) {
  set_template_variable(completion, kEffort, effort);
  if (effort == kNoEffort) set_thinking(completion, false);
}

ChatRequest read_chat_request(std::string_view body, const std::string& where) {
  OrderedJson request = parse_ordered_json(body, where);
  if (const auto messages = request.find("messages");
      messages != request.end() && messages->is_array())
    for (OrderedJson& message : *messages) {
      if (std::string* role = text_of_key(message, "role")) *role = template_role(*role);
      take_text_parts(message);
      if (message.is_object()) take_thought(message);
    }
  if (const auto given = request.find("documents"); given != request.end() && !given->is_null()) {
    const OrderedJson documents = *given;
    if (!documents.is_array()) throw ApiError{400, "documents must be a list", "documents"};
    if (!documents.empty()) set_template_variable(request, "documents", documents);
  }
  take_switches(request);
  take_effort(request);
  return chat_request(request);
}

}  // namespace moe::serve
