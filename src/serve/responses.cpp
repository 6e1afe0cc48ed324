#include "serve/responses.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "serve/refused_fields.h"

namespace moe::serve {
namespace {

constexpr RefusedField kKeptNowhere[] = {
    {"previous_response_id", "no response is kept here; send the whole dialogue as input"},
    {"conversation", "no dialogue is kept here; send all of it as input"},
    {"prompt", "no prompts are kept here; send the text as input"},
    {"background", "no response is kept here to be asked for later"},
    {"top_logprobs", "/v1/chat/completions tells log-probabilities"}};
constexpr const char* kLogprobs = "message.output_text.logprobs";

// What else may be included is of tools that are not here, or is kept from no client.
void check_included(const RequestField& request) {
  if (request.find("include") == nullptr) return;
  const RequestField include = request.at("include").list();
  for (size_t i = 0; i < include.json.size(); ++i)
    if (include.at(i).text() == kLogprobs)
      throw ApiError{400,
                     fmt::format("include: {} is not supported: /v1/chat/completions tells "
                                 "log-probabilities",
                                 kLogprobs),
                     "include"};
}

// The texts of a reasoning item's list, one after the other.
void add_thoughts(const RequestField& item, const char* key, const char* type, ChatBody& chat) {
  for (const std::string& text : texts_of(item.at(key), {type})) chat.add_thought(text, item.name);
}

void add_item(const RequestField& item, ChatBody& chat) {
  const std::vector<std::string>& parts = text_part_types();
  const bool typed = item.object().find("type") != nullptr;
  if (typed)
    item.at("type").only({"message", "reasoning", "function_call", "function_call_output"});
  const std::string type = typed ? item.at("type").text() : "message";
  if (type == "message") {
    const RequestField role = item.at("role");
    role.only({"user", "assistant", "system", "developer"});
    for (const std::string& text : texts_of(item.at("content"), parts))
      chat.add_text(template_role(role.text()), text, item.name);
  } else if (type == "function_call") {
    // One after the other, so that what is missing is named in this order.
    const std::string id = item.at("call_id").text(), name = item.at("name").text(),
                      arguments = item.at("arguments").text();
    chat.add_call(id, name, arguments, item.name);
  } else if (type == "function_call_output") {
    chat.add_result(item.at("call_id").text(), texts_of(item.at("output"), parts), item.name);
  } else if (const OrderedJson* said = item.find("content"); said != nullptr && !said->empty()) {
    add_thoughts(item, "content", "reasoning_text", chat);
  } else if (item.find("summary") != nullptr) {
    add_thoughts(item, "summary", "summary_text", chat);
  }
}

void add_input(const RequestField& request, ChatBody& chat) {
  if (request.find("instructions") != nullptr)
    chat.add_text("system", request.at("instructions").text(), "instructions");
  const RequestField input = request.at("input");
  if (input.json.is_string()) return chat.add_text("user", input.text(), input.name);
  if (!input.json.is_array()) fail_usage("input must be a string or a list of items");
  if (input.json.empty()) fail_usage("input is empty; a dialogue needs at least one message");
  for (size_t i = 0; i < input.json.size(); ++i) add_item(input.at(i), chat);
}

// Tools that OpenAI runs itself, or whose input is no JSON, which agents offer beside their
// functions, are left out: the model just does not have them.
void add_functions(const RequestField& request, ChatBody& chat) {
  if (request.find("tools") == nullptr) return;
  const RequestField tools = request.at("tools").list();
  for (size_t i = 0; i < tools.json.size(); ++i) {
    const RequestField tool = tools.at(i).object();
    if (tool.at("type").text() == "function") chat.add_tool(tool, "parameters");
  }
}

void add_functions_and_choice(const RequestField& request, ChatBody& chat) {
  const OrderedJson* choice = request.find("tool_choice");
  if (choice != nullptr && *choice == "none") return;
  add_functions(request, chat);
  if (choice == nullptr || *choice == "auto") return;
  if (!choice->is_object()) return chat.set("tool_choice", *choice);
  const RequestField function = request.at("tool_choice");
  function.at("type").only({"function"});
  chat.choose_tool(function.at("name").text());
}

void add_text_format(const RequestField& request, ChatBody& chat) {
  if (request.find("text") == nullptr || request.at("text").object().find("format") == nullptr)
    return;
  const RequestField format = request.at("text").at("format").object();
  OrderedJson out = {{"type", format.at("type").text()}};
  if (format.find("schema") != nullptr) out["json_schema"] = {{"schema", *format.find("schema")}};
  chat.set("response_format", std::move(out));
}

class ResponsesStyle : public BlockStyle {
 public:
  explicit ResponsesStyle(const OrderedJson& request);
  std::string failure(const ApiError& e) override;

 protected:
  void begin() override {
    tell_response("response.created");
    tell_response("response.in_progress");
  }
  void open(const std::string& id, const std::string& name) override;
  void write(const std::string& piece) override;
  void close() override;
  void stop() override {
    tell_response(finish() == "length" ? "response.incomplete" : "response.completed");
  }
  OrderedJson object() const override;

 private:
  // Events: of the response, of the item that is open, of what is in it.
  void tell(const char* type, OrderedJson fields);
  void tell_response(const char* type) { tell(type, {{"response", object()}}); }
  void tell_item(const char* type) {
    tell(type, {{"output_index", index()}, {"item", output_.back()}});
  }
  void tell_inside(const std::string& type, const char* name, const OrderedJson& value);

  int64_t index() const { return std::ssize(output_) - 1; }
  // Of the item that is open: what it holds, and what its text, or its arguments, are called.
  OrderedJson& inside() {
    return block() == Block::call ? output_.back() : output_.back()["content"][0];
  }
  const char* key() const { return block() == Block::call ? "arguments" : "text"; }
  const char* events_name() const {
    if (block() == Block::call) return "response.function_call_arguments";
    return block() == Block::text ? "response.output_text" : "response.reasoning_text";
  }

  OrderedJson asked_, output_ = OrderedJson::array(), error_;
  int64_t sequence_ = 0;
};

ResponsesStyle::ResponsesStyle(const OrderedJson& request)
    : asked_({{"instructions", nullptr},
              {"max_output_tokens", nullptr},
              {"metadata", OrderedJson::object()},
              {"parallel_tool_calls", true},
              {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
              {"temperature", 1.0},
              {"text", {{"format", {{"type", "text"}}}}},
              {"tool_choice", "auto"},
              {"tools", OrderedJson::array()},
              {"top_p", 1.0}}) {
  for (auto& [key, value] : asked_.items())
    if (const auto found = request.find(key); found != request.end() && !found->is_null())
      value = *found;
}

void ResponsesStyle::tell(const char* type, OrderedJson fields) {
  OrderedJson event = {{"type", type}, {"sequence_number", sequence_++}};
  event.update(fields);
  send(event);
}

void ResponsesStyle::tell_inside(const std::string& type, const char* name,
                                 const OrderedJson& value) {
  OrderedJson fields = {{"item_id", output_.back()["id"]}, {"output_index", index()}};
  if (block() != Block::call) fields["content_index"] = 0;
  fields[name] = value;
  if (type.starts_with("response.output_text")) fields["logprobs"] = OrderedJson::array();
  tell(type.c_str(), std::move(fields));
}

void ResponsesStyle::open(const std::string& id, const std::string& name) {
  const auto item = [&](const char* prefix, const char* type) {
    return OrderedJson{{"id", fmt::format("{}_{}_{}", prefix, head().id, output_.size())},
                       {"type", type},
                       {"status", "in_progress"}};
  };
  OrderedJson opened, part;
  if (block() == Block::call) {
    opened = item("fc", "function_call");
    opened.update({{"call_id", id}, {"name", name}, {"arguments", ""}});
  } else if (block() == Block::text) {
    opened = item("msg", "message");
    opened.update({{"role", "assistant"}, {"content", OrderedJson::array()}});
    part = {{"type", "output_text"},
            {"text", ""},
            {"annotations", OrderedJson::array()},
            {"logprobs", OrderedJson::array()}};
  } else {
    opened = item("rs", "reasoning");
    opened.update({{"summary", OrderedJson::array()}, {"content", OrderedJson::array()}});
    part = {{"type", "reasoning_text"}, {"text", ""}};
  }
  output_.push_back(std::move(opened));
  tell_item("response.output_item.added");
  if (block() == Block::call) return;
  output_.back()["content"].push_back(part);
  tell_inside("response.content_part.added", "part", part);
}

void ResponsesStyle::write(const std::string& piece) {
  inside()[key()].get_ref<std::string&>() += piece;
  tell_inside(fmt::format("{}.delta", events_name()), "delta", piece);
}

void ResponsesStyle::close() {
  tell_inside(fmt::format("{}.done", events_name()), key(), inside()[key()]);
  if (block() != Block::call) tell_inside("response.content_part.done", "part", inside());
  output_.back()["status"] = finish() == "length" ? "incomplete" : "completed";
  tell_item("response.output_item.done");
}

std::string ResponsesStyle::failure(const ApiError& e) {
  error_ = {{"code", e.status == 429 ? "rate_limit_exceeded" : "server_error"},
            {"message", e.message}};
  tell_response("response.failed");
  return sent();
}

OrderedJson ResponsesStyle::object() const {
  const bool cut = finish() == "length";
  const char* status = !error_.is_null()  ? "failed"
                       : finish().empty() ? "in_progress"
                       : cut              ? "incomplete"
                                          : "completed";
  OrderedJson response = {{"id", "resp_" + head().id},
                          {"object", "response"},
                          {"created_at", head().created},
                          {"status", status},
                          {"error", error_},
                          {"incomplete_details", nullptr},
                          {"model", head().model},
                          {"output", output_},
                          {"previous_response_id", nullptr},
                          {"store", false},
                          {"truncation", "disabled"},
                          {"usage", nullptr}};
  if (cut) response["incomplete_details"] = {{"reason", "max_output_tokens"}};
  if (!finish().empty())
    response["usage"] = {
        {"input_tokens", usage().prompt},
        {"input_tokens_details", {{"cached_tokens", usage().cached}, {"cache_write_tokens", 0}}},
        {"output_tokens", usage().written},
        {"output_tokens_details", {{"reasoning_tokens", usage().thought}}},
        {"total_tokens", usage().prompt + usage().written}};
  response.update(asked_);
  return response;
}

}  // namespace

ChatBody responses_as_chat(const OrderedJson& request) {
  if (!request.is_object()) fail_usage("the request must be an object");
  const RequestField fields{request, ""};
  refuse_fields(request, kKeptNowhere);
  check_included(fields);
  ChatBody chat(request, {{"max_tokens", "max_output_tokens"},
                          {"response_format", "text.format"},
                          {"messages", "input"},
                          {"prompt", "input"}});
  add_input(fields, chat);
  add_functions_and_choice(fields, chat);
  add_text_format(fields, chat);
  if (const OrderedJson* tokens = fields.find("max_output_tokens")) chat.set("max_tokens", *tokens);
  if (fields.find("reasoning") != nullptr && fields.at("reasoning").object().find("effort"))
    chat.think_so_hard(fields.at("reasoning").at("effort").text());
  return chat;
}

std::unique_ptr<ReplyStyle> responses_style(const OrderedJson& request) {
  return std::make_unique<ResponsesStyle>(request);
}

ParsedRequest read_responses(std::string_view body, const Served& served) {
  const OrderedJson request = parse_ordered_json(body, "request body");
  ParsedRequest parsed = responses_as_chat(request).read(served);
  parsed.style = responses_style(request);
  return parsed;
}

}  // namespace moe::serve
