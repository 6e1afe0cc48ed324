#include "serve/messages.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "serve/refused_fields.h"

namespace moe::serve {
namespace {

constexpr const char* kMessagesBody = "request body";
// Claude Code's first block of the system text is a line that is another in each request; with it
// no request would begin as the one before, and all of the prompt would be read again.
constexpr std::string_view kBillingLine = "x-anthropic-billing-header:";
// Clients send a thought back only where it is signed; whatever stands there is not looked at.
constexpr const char* kSignature = "moe.cpp";
constexpr RefusedField kNotRunHere[] = {
    {"mcp_servers", "no other server is asked from here; offer what it has as tools"},
    {"container", "no code is run here"}};

void add_system(const RequestField& request, ChatBody& chat) {
  if (request.find("system") == nullptr) return;
  const RequestField system = request.at("system");
  for (const std::string& text : texts_of(system, {"text"}))
    if (!text.empty() && !text.starts_with(kBillingLine))
      chat.add_text("system", text, system.name);
}

void add_block(const RequestField& block, const std::string& role, const std::string& from,
               ChatBody& chat) {
  static const std::vector<std::string> of_assistant = {"text", "thinking", "redacted_thinking",
                                                        "tool_use"};
  static const std::vector<std::string> of_user = {"text", "tool_result"};
  static const std::vector<std::string> of_system = {"text"};
  const RequestField type = block.object().at("type");
  type.only(role == "assistant" ? of_assistant : role == "user" ? of_user : of_system);
  if (type.text() == "text") chat.add_text(role, block.at("text").text(), from);
  if (type.text() == "thinking") chat.add_thought(block.at("thinking").text(), from);
  if (type.text() == "tool_use")
    chat.add_call(block.at("id").text(), block.at("name").text(), block.at("input").object().json,
                  from);
  if (type.text() != "tool_result") return;
  const bool says = block.find("content") != nullptr;
  chat.add_result(block.at("tool_use_id").text(),
                  says ? texts_of(block.at("content"), {"text"}) : std::vector<std::string>{},
                  from);
}

// Claude's API goes on with what the last message begins.
bool ends_with_begun_text(const RequestField& messages) {
  const RequestField last = messages.at(messages.json.size() - 1), content = last.at("content");
  if (last.at("role").text() != "assistant") return false;
  if (content.json.is_string()) return true;
  return !content.json.empty() && content.at(content.json.size() - 1).at("type").text() == "text";
}

void add_messages(const RequestField& request, ChatBody& chat) {
  const RequestField messages = request.at("messages").list();
  for (size_t i = 0; i < messages.json.size(); ++i) {
    const RequestField message = messages.at(i).object();
    message.at("role").only({"user", "assistant", "system"});
    const std::string role = message.at("role").text();
    const RequestField content = message.at("content");
    if (content.json.is_string()) {
      chat.add_text(role, content.text(), message.name);
      continue;
    }
    if (!content.json.is_array())
      fail_usage("{} must be a string or a list of blocks", content.name);
    for (size_t k = 0; k < content.json.size(); ++k)
      add_block(content.at(k), role, message.name, chat);
  }
  if (!messages.json.empty() && ends_with_begun_text(messages))
    chat.set("continue_final_message", true);
}

void add_tools(const RequestField& request, ChatBody& chat) {
  if (request.find("tools") == nullptr) return;
  const RequestField tools = request.at("tools").list();
  for (size_t i = 0; i < tools.json.size(); ++i) {
    const RequestField tool = tools.at(i).object();
    // Others are tools of Anthropic's own: their models know them without a schema.
    if (tool.find("type") != nullptr) tool.at("type").only({"custom"});
    tool.at("input_schema");
    chat.add_tool(tool, "input_schema");
  }
}

void add_tools_and_choice(const RequestField& request, ChatBody& chat) {
  if (request.find("tool_choice") == nullptr) return add_tools(request, chat);
  const RequestField choice = request.at("tool_choice").object(), type = choice.at("type");
  type.only({"auto", "any", "tool", "none"});
  if (type.text() == "none") return;
  add_tools(request, chat);
  if (type.text() == "any") chat.set("tool_choice", "required");
  if (type.text() == "tool") chat.choose_tool(choice.at("name").text());
  const OrderedJson* single = choice.find("disable_parallel_tool_use");
  if (single == nullptr) return;
  if (!single->is_boolean())
    fail_usage("tool_choice.disable_parallel_tool_use must be true or false");
  chat.set("parallel_tool_calls", !single->get<bool>());
}

// {"type": "json_schema", "schema": {...}}
void add_format(const RequestField& format, ChatBody& chat) {
  format.object().at("type").only({"json_schema"});
  chat.set("response_format", {{"type", "json_schema"},
                               {"json_schema", {{"schema", format.at("schema").object().json}}}});
}

// {"effort": TEXT, "format": {...}}; the format had a field of its own before.
void add_output_config(const RequestField& request, ChatBody& chat) {
  if (request.find("output_format") != nullptr) add_format(request.at("output_format"), chat);
  if (request.find("output_config") == nullptr) return;
  const RequestField config = request.at("output_config").object();
  if (config.find("effort") != nullptr)
    chat.set_variable("reasoning_effort", config.at("effort").text());
  if (config.find("format") != nullptr) add_format(config.at("format"), chat);
}

// Which of the two fields says it.
const char* field_of_format(const RequestField& request) {
  const bool newer = request.find("output_config") != nullptr &&
                     request.at("output_config").object().find("format") != nullptr;
  return newer || request.find("output_format") == nullptr ? "output_config.format"
                                                           : "output_format";
}

class MessagesStyle : public BlockStyle {
 public:
  explicit MessagesStyle(int64_t prompt_tokens) : prompt_tokens_(prompt_tokens) {}
  std::string failure(const ApiError& e) override {
    return "event: error\ndata: " + messages_body_of(e) + "\n\n";
  }
  std::string ping() override { return "event: ping\ndata: {\"type\":\"ping\"}\n\n"; }

 protected:
  void begin() override { send({{"type", "message_start"}, {"message", object()}}); }
  void open(const std::string& id, const std::string& name) override;
  void write(const std::string& piece) override;
  void close() override;
  void stop() override;
  OrderedJson object() const override;

 private:
  int64_t index() const { return std::ssize(content_) - 1; }
  void send_delta(OrderedJson delta) {
    send({{"type", "content_block_delta"}, {"index", index()}, {"delta", std::move(delta)}});
  }
  OrderedJson stop_json() const;
  OrderedJson usage_json() const;

  int64_t prompt_tokens_;
  OrderedJson content_ = OrderedJson::array();
  std::string arguments_;  // of the call that is open
};

void MessagesStyle::open(const std::string& id, const std::string& name) {
  OrderedJson opened = {{"type", "text"}, {"text", ""}};
  if (block() == Block::thought)
    opened = {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
  if (block() == Block::call)
    opened = {{"type", "tool_use"}, {"id", id}, {"name", name}, {"input", OrderedJson::object()}};
  content_.push_back(opened);
  arguments_.clear();
  send({{"type", "content_block_start"}, {"index", index()}, {"content_block", opened}});
}

void MessagesStyle::write(const std::string& piece) {
  if (block() == Block::call) {
    arguments_ += piece;
    return send_delta({{"type", "input_json_delta"}, {"partial_json", piece}});
  }
  const bool thinks = block() == Block::thought;
  const char* key = thinks ? "thinking" : "text";
  content_.back()[key].get_ref<std::string&>() += piece;
  send_delta({{"type", thinks ? "thinking_delta" : "text_delta"}, {key, piece}});
}

void MessagesStyle::close() {
  if (block() == Block::thought) {
    content_.back()["signature"] = kSignature;
    send_delta({{"type", "signature_delta"}, {"signature", kSignature}});
  }
  if (block() == Block::call && !arguments_.empty())
    content_.back()["input"] = parse_ordered_json(arguments_, "arguments");
  send({{"type", "content_block_stop"}, {"index", index()}});
}

void MessagesStyle::stop() {
  send({{"type", "message_delta"}, {"delta", stop_json()}, {"usage", usage_json()}});
  send({{"type", "message_stop"}});
}

OrderedJson MessagesStyle::stop_json() const {
  OrderedJson reason, sequence;
  if (finish() == "length") reason = "max_tokens";
  if (finish() == "tool_calls") reason = "tool_use";
  if (finish() == "stop") reason = stopped_by().empty() ? "end_turn" : "stop_sequence";
  if (reason == "stop_sequence") sequence = stopped_by();
  return {{"stop_reason", reason}, {"stop_sequence", sequence}};
}

// What was found in the cache is not counted as input.
OrderedJson MessagesStyle::usage_json() const {
  const bool known = usage().prompt > 0;
  return {{"input_tokens", known ? usage().prompt - usage().cached : prompt_tokens_},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage().cached},
          {"output_tokens", usage().written}};
}

OrderedJson MessagesStyle::object() const {
  OrderedJson message = {{"id", "msg_" + head().id},
                         {"type", "message"},
                         {"role", "assistant"},
                         {"model", head().model},
                         {"content", content_}};
  message.update(stop_json());
  message["usage"] = usage_json();
  return message;
}

}  // namespace

ChatBody messages_as_chat(const OrderedJson& request) {
  const RequestField fields{request, ""};
  if (!request.is_object()) fail_usage("the request must be an object");
  refuse_fields(request, kNotRunHere);
  ChatBody chat(request,
                {{"stop", "stop_sequences"}, {"response_format", field_of_format(fields)}});
  add_system(fields, chat);
  add_messages(fields, chat);
  add_tools_and_choice(fields, chat);
  add_output_config(fields, chat);
  if (fields.find("thinking") != nullptr) chat.think_as(fields.at("thinking"));
  for (const auto& [own, key] :
       {std::pair("max_tokens", "max_tokens"), std::pair("stop_sequences", "stop")})
    if (fields.find(own) != nullptr) chat.set(key, *fields.find(own));
  return chat;
}

std::unique_ptr<ReplyStyle> messages_style(int64_t prompt_tokens) {
  return std::make_unique<MessagesStyle>(prompt_tokens);
}

ParsedRequest read_messages(std::string_view body, const Served& served) {
  const OrderedJson request = parse_ordered_json(body, kMessagesBody);
  const ChatBody chat = messages_as_chat(request);
  const RequestField fields{request, ""};
  fields.at("max_tokens");
  if (request.at("messages").empty())
    fail_usage("messages is empty; a dialogue needs at least one");
  if (request.at("messages").back().at("role") == "assistant" &&
      !ends_with_begun_text(fields.at("messages")))
    fail_usage(
        "messages ends with one of the assistant that ends with no text, so there is nothing to "
        "go on with; the last one must be the user's");
  ParsedRequest parsed = chat.read(served);
  parsed.style = messages_style(parsed.prompt_tokens);
  return parsed;
}

int64_t count_messages(std::string_view body, const Served& served) {
  const ChatBody chat = messages_as_chat(parse_ordered_json(body, kMessagesBody));
  return std::ssize(served.tokenizer->encode(chat.prompt(served)));
}

}  // namespace moe::serve
