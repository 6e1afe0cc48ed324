#include "serve/chat_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace moe::serve {
namespace {

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

}  // namespace

std::string template_role(const std::string& role) { return role == "developer" ? "system" : role; }

const std::vector<std::string>& text_part_types() {
  static const std::vector<std::string> types = {"input_text", "output_text", "text"};
  return types;
}

ChatRequest read_chat_request(std::string_view body, const std::string& where) {
  OrderedJson request = parse_ordered_json(body, where);
  if (const auto messages = request.find("messages");
      messages != request.end() && messages->is_array())
    for (OrderedJson& message : *messages) {
      if (std::string* role = text_of_key(message, "role")) *role = template_role(*role);
      take_text_parts(message);
    }
  return chat_request(request);
}

}  // namespace moe::serve
