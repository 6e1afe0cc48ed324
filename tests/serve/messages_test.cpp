// Anthropic's Messages API: requests as chat completions, replies whole and in events, what is
// refused and how, and that a server answers both APIs with the same text.
#include "serve/messages.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/files.h"
#include "support/served.h"

namespace moe::test::messages_test {
namespace {

Json as_chat(const Json& request) {
  return Json::parse(serve::messages_as_chat(ordered(request)).text());
}

const Json kUser = {{"role", "user"}, {"content", "Hello"}};
const Json kAsk = {{"model", "any"}, {"max_tokens", 12}, {"seed", 3}, {"messages", {kUser}}};

TEST(Messages, BecomeAChatCompletion) {
  const Json chat = as_chat(Json::parse(R"({
    "model": "claude", "max_tokens": 99, "temperature": 0.5, "top_p": 0.9, "top_k": 4,
    "stream": true, "stop_sequences": ["END"], "metadata": {"user_id": "u"},
    "thinking": {"type": "enabled", "budget_tokens": 1024}, "n": 3,
    "output_config": {"effort": "low",
                      "format": {"type": "json_schema", "schema": {"type": "object"}}},
    "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
               {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "f", "description": "Finds", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "tool", "name": "f"},
    "messages": [
      {"role": "user", "content": "Where?"},
      {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Look.", "signature": "s"},
        {"type": "redacted_thinking", "data": "xx"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1, "a": [2]}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "Here"}]},
        {"type": "text", "text": "And now?"}]}]})"));
  EXPECT_EQ(chat, Json::parse(R"({
    "model": "claude", "max_tokens": 99, "temperature": 0.5, "top_p": 0.9, "top_k": 4,
    "stream": true, "stream_options": {"include_usage": true}, "stop": ["END"],
    "chat_template_kwargs": {"reasoning_effort": "low", "thinking_budget": 1024,
                             "enable_thinking": true, "thinking": true},
    "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
    "tools": [{"type": "function", "function":
      {"name": "f", "description": "Finds", "parameters": {"type": "object"}}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "messages": [
      {"role": "system", "content": "Be brief."},
      {"role": "user", "content": "Where?"},
      {"role": "assistant", "reasoning_content": "Look.", "content": "Let me see.", "tool_calls": [
        {"id": "t1", "type": "function",
         "function": {"name": "f", "arguments": {"b": 1, "a": [2]}}}]},
      {"role": "tool", "tool_call_id": "t1", "content": "Here"},
      {"role": "user", "content": "And now?"}]})"));
}

// Which had a field of its own before.
TEST(Messages, HaveAFormat) {
  const auto schema = [](const char* type) {
    return Json{{"type", "json_schema"}, {"schema", {{"type", type}}}};
  };
  const Json older = with(kAsk, {{"output_format", schema("array")}});
  const auto type_in = [](const Json& chat) {
    return chat["response_format"]["json_schema"]["schema"]["type"];
  };
  EXPECT_EQ(type_in(as_chat(older)), "array");
  EXPECT_EQ(type_in(as_chat(with(older, {{"output_config", {{"format", schema("object")}}}}))),
            "object");
}

// What this server alone knows, and what is no field of a message at all.
TEST(Messages, PassTheServersOwnFields) {
  const Json own = {{"chat_template_kwargs", {{"a", 1}}},
                    {"ignore_eos", true},
                    {"min_p", 0.1},
                    {"reasoning_format", "none"}};
  const Json chat = as_chat(with({{"messages", {kUser}}, {"routing", true}, {"echo", true}}, own));
  for (const auto& [key, value] : own.items()) EXPECT_EQ(chat.value(key, Json()), value) << key;
  EXPECT_FALSE(chat.contains("routing") || chat.contains("echo"));
}

TEST(Messages, OfOneRoleSideBySideAreOne) {
  const Json call = {{"type", "tool_use"}, {"id", "t"}, {"name", "f"}, {"input", Json::object()}};
  const Json chat = as_chat({{"messages",
                              {kUser,
                               {{"role", "user"}, {"content", "Are you there?"}},
                               {{"role", "assistant"}, {"content", {call}}},
                               {{"role", "assistant"}, {"content", {call}}}}}});
  ASSERT_EQ(chat["messages"].size(), 2u);
  EXPECT_EQ(chat["messages"][0]["content"], Json({{{"type", "text"}, {"text", "Hello"}},
                                                  {{"type", "text"}, {"text", "Are you there?"}}}));
  EXPECT_EQ(chat["messages"][1]["content"], nullptr);
  EXPECT_EQ(chat["messages"][1]["tool_calls"].size(), 2u);
}

TEST(Messages, ChooseTools) {
  const auto chosen = [](const Json& choice) {
    return as_chat({{"messages", {kUser}},
                    {"tools", {{{"name", "f"}, {"input_schema", Json::object()}}}},
                    {"tool_choice", choice}});
  };
  EXPECT_FALSE(chosen({{"type", "auto"}}).contains("tool_choice"));
  EXPECT_EQ(chosen({{"type", "any"}})["tool_choice"], "required");
  EXPECT_FALSE(chosen({{"type", "none"}}).contains("tools"));
  EXPECT_FALSE(chosen({{"type", "none"}}).contains("tool_choice"));
  EXPECT_FALSE(chosen({{"type", "any"}}).contains("parallel_tool_calls"));
  EXPECT_EQ(chosen({{"type", "auto"}, {"disable_parallel_tool_use", true}})["parallel_tool_calls"],
            false);
}

TEST(Messages, RefuseANameThatIsNearlyOne) {
  try {
    serve::messages_as_chat(ordered(with(kAsk, {{"temprature", 1}})));
    ADD_FAILURE() << "it was passed over";
  } catch (const serve::ApiError& e) {
    EXPECT_EQ(e.status, 400);
    EXPECT_EQ(e.param, "temprature");
  }
  EXPECT_NO_THROW(serve::messages_as_chat(ordered(with(kAsk, {{"metadata", Json::object()}}))));
}

// {patch of the request, what the message says}
TEST(Messages, RefuseByName) {
  const auto said = [](const Json& block, const char* role = "user") {
    return Json{{"messages", {{{"role", role}, {"content", {block}}}}}};
  };
  const std::vector<std::pair<Json, std::string>> wrong = {
      {{{"messages", nullptr}}, "messages is missing"},
      {{{"messages", "Hello"}}, "messages must be a list"},
      {{{"messages", {{{"role", "tool"}, {"content", "x"}}}}}, "messages[0].role: \"tool\""},
      {{{"messages", {{{"role", "user"}}}}}, "messages[0].content is missing"},
      {{{"messages", {{{"role", "user"}, {"content", 1}}}}},
       "messages[0].content must be a string"},
      {said({{"type", "image"}, {"source", Json::object()}}),
       "messages[0].content[0].type: \"image\" is not known here"},
      {said({{"type", "tool_use"}}), "messages[0].content[0].type: \"tool_use\""},
      {said({{"type", "tool_result"}}, "assistant"),
       "messages[0].content[0].type: \"tool_result\""},
      {said({{"type", "tool_use"}, {"id", "t"}, {"name", "f"}, {"input", "x"}}, "assistant"),
       "messages[0].content[0].input must be an object"},
      {said({{"type", "tool_result"}, {"tool_use_id", "t"}, {"content", {{{"type", "image"}}}}}),
       "messages[0].content[0].content[0].type: \"image\""},
      {{{"system", 1}}, "system must be a string"},
      {{{"system", {{{"type", "image"}}}}}, "system[0].type: \"image\""},
      {{{"tools", {{{"name", "f"}}}}}, "tools[0].input_schema is missing"},
      {{{"tools", {{{"type", "web_search_20250305"}, {"name", "web_search"}}}}},
       "tools[0].type: \"web_search_20250305\""},
      {{{"tool_choice", "any"}}, "tool_choice must be an object"},
      {{{"tool_choice", {{"type", "required"}}}}, "tool_choice.type: \"required\""},
      {{{"tool_choice", {{"type", "any"}, {"disable_parallel_tool_use", 1}}}},
       "tool_choice.disable_parallel_tool_use must be true or false"},
      {{{"output_config", {{"format", {{"type", "xml"}}}}}}, "output_config.format.type: \"xml\""},
      {{{"output_format", {{"type", "xml"}}}}, "output_format.type: \"xml\""}};
  for (const auto& row : wrong) {
    const Json request = with(kAsk, row.first);
    EXPECT_FAILS(serve::messages_as_chat(ordered(request)), row.second) << row.first;
  }
}

// A completion of a chat as ReplyWriter says it, and the chunks of the same one.
const Json kCall = {{"index", 0},
                    {"id", "call_7_0"},
                    {"type", "function"},
                    {"function", {{"name", "f"}, {"arguments", "{\"b\":1,\"a\":2}"}}}};
const Json kUsage = {{"prompt_tokens", 70},
                     {"completion_tokens", 9},
                     {"total_tokens", 79},
                     {"prompt_tokens_details", {{"cached_tokens", 64}}}};

Json completion(const Json& choice, const Json& usage = kUsage) {
  Json reply = {{"id", "chatcmpl-7"}, {"created", 5}, {"model", "m"}, {"choices", Json::array()}};
  if (!choice.is_null()) reply["choices"].push_back(choice);
  reply["usage"] = usage;
  return reply;
}
Json chunk(const Json& delta, const Json& finish = nullptr) {
  return completion({{"delta", delta}, {"finish_reason", finish}}, nullptr);
}

TEST(Messages, AReplyIsBlocks) {
  const Json message = {{"role", "assistant"},
                        {"content", "Let me see."},
                        {"reasoning_content", "Hm."},
                        {"tool_calls", {kCall}}};
  const std::string whole = serve::messages_style(70)->whole(completion(
      {{"message", message}, {"finish_reason", "tool_calls"}, {"stop_reason", nullptr}}));
  EXPECT_EQ(Json::parse(whole), Json::parse(R"({
    "id": "msg_7", "type": "message", "role": "assistant", "model": "m",
    "content": [{"type": "thinking", "thinking": "Hm.", "signature": "moe.cpp"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "call_7_0", "name": "f", "input": {"a": 2, "b": 1}}],
    "stop_reason": "tool_use", "stop_sequence": null,
    "usage": {"input_tokens": 6, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 64,
              "output_tokens": 9}})"));
  EXPECT_NE(whole.find("\"input\":{\"b\":1,\"a\":2}"), std::string::npos) << "the keys' order";
}

TEST(Messages, AReplySaysWhyItEnded) {
  const auto ended = [](const Json& finish, const Json& stop) {
    const Json reply = Json::parse(serve::messages_style(1)->whole(
        completion({{"message", {{"role", "assistant"}, {"content", ""}}},
                    {"finish_reason", finish},
                    {"stop_reason", stop}})));
    EXPECT_EQ(reply["content"], Json::array());
    return Json{reply["stop_reason"], reply["stop_sequence"]};
  };
  EXPECT_EQ(ended("stop", nullptr), Json({"end_turn", nullptr}));
  EXPECT_EQ(ended("stop", "END"), Json({"stop_sequence", "END"}));
  EXPECT_EQ(ended("length", nullptr), Json({"max_tokens", nullptr}));
}

TEST(Messages, AStreamIsEventsOfBlocks) {
  const auto style = serve::messages_style(70);
  std::string body = style->chunk(chunk({{"role", "assistant"}, {"content", ""}}));
  body += style->chunk(chunk({{"reasoning_content", "Hm"}}));
  body += style->chunk(chunk({{"reasoning_content", "."}}));
  body += style->chunk(chunk({{"content", "Let"}}));
  body += style->chunk(chunk({{"content", " me."}}));
  Json second = kCall;
  second["index"] = 1;
  body += style->chunk(chunk({{"tool_calls", {kCall, second}}}, "tool_calls"));
  body += style->chunk(completion(nullptr));
  body += style->end();
  const std::vector<Json> events = named_events_of(body);
  std::vector<std::string> types;
  for (const Json& event : events) types.push_back(event["type"]);
  const std::string start = "content_block_start", delta = "content_block_delta",
                    stop = "content_block_stop";
  EXPECT_EQ(types, (std::vector<std::string>{"message_start", start, delta, delta, delta, stop,
                                             start, delta, delta, stop, start, delta, stop, start,
                                             delta, stop, "message_delta", "message_stop"}));
  EXPECT_EQ(events[0]["message"]["id"], "msg_7");
  EXPECT_EQ(events[0]["message"]["content"], Json::array());
  EXPECT_EQ(events[0]["message"]["stop_reason"], nullptr);
  EXPECT_EQ(events[0]["message"]["usage"]["input_tokens"], 70);
  EXPECT_EQ(events[1]["content_block"],
            Json({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}));
  EXPECT_EQ(events[2]["delta"], Json({{"type", "thinking_delta"}, {"thinking", "Hm"}}));
  EXPECT_EQ(events[4]["delta"], Json({{"type", "signature_delta"}, {"signature", "moe.cpp"}}));
  EXPECT_EQ(events[6]["index"], 1);
  EXPECT_EQ(events[8]["delta"], Json({{"type", "text_delta"}, {"text", " me."}}));
  EXPECT_EQ(events[10]["content_block"]["input"], Json::object());
  EXPECT_EQ(events[11]["delta"],
            Json({{"type", "input_json_delta"}, {"partial_json", "{\"b\":1,\"a\":2}"}}));
  EXPECT_EQ(events[15]["index"], 3);
  EXPECT_EQ(events[16]["delta"], Json({{"stop_reason", "tool_use"}, {"stop_sequence", nullptr}}));
  EXPECT_EQ(events[16]["usage"]["input_tokens"], 6);
  EXPECT_EQ(events[16]["usage"]["cache_read_input_tokens"], 64);
  EXPECT_EQ(named_events_of(style->ping())[0]["type"], "ping");
  const Json failure = named_events_of(style->failure({500, "no"}))[0];
  EXPECT_EQ(failure,
            Json::parse(R"({"type": "error", "error": {"type": "api_error", "message": "no"}})"));
}

TEST(Messages, AreAnsweredAsAChatIs) {
  ServedModel s;
  const Json system = {{"role", "system"}, {"content", "Be brief."}};
  const Json chat = s.ask("/v1/chat/completions",
                          {{"messages", {system, kUser}}, {"max_tokens", 12}, {"seed", 3}});
  const Json ask = with(kAsk, {{"system", "Be brief."}});
  const Json reply = s.ask("/v1/messages", ask);
  EXPECT_EQ(reply["content"][0]["text"], chat["choices"][0]["message"]["content"]);
  EXPECT_EQ(reply["stop_reason"], "max_tokens");
  EXPECT_EQ(reply["model"], "tiny");
  EXPECT_EQ(reply["usage"]["input_tokens"].get<int64_t>() +
                reply["usage"]["cache_read_input_tokens"].get<int64_t>(),
            chat["usage"]["prompt_tokens"].get<int64_t>());
  EXPECT_EQ(reply["usage"]["output_tokens"], 12);
  EXPECT_EQ(s.ask("/v1/messages/count_tokens", ask)["input_tokens"],
            chat["usage"]["prompt_tokens"]);
  const HttpReply streamed = s.post("/v1/messages", with(ask, {{"stream", true}}));
  EXPECT_NE(streamed.head.find("Content-Type: text/event-stream"), std::string::npos);
  std::string text;
  for (const Json& event : named_events_of(streamed.body))
    if (event["type"] == "content_block_delta") text += event["delta"]["text"].get<std::string>();
  EXPECT_EQ(reply["content"][0]["text"], text);
}

TEST(Messages, EndWithTheStopSequenceThatCame) {
  ServedModel s;
  const Json ask = with(kAsk, {{"logit_bias", {{"65", 100}}}, {"stop_sequences", {"never", "A"}}});
  const Json reply = s.ask("/v1/messages", ask);
  EXPECT_EQ(reply["stop_reason"], "stop_sequence");
  EXPECT_EQ(reply["stop_sequence"], "A");
  const Json chat =
      s.ask("/v1/completions", {{"prompt", "x"}, {"logit_bias", {{"65", 100}}}, {"stop", "A"}});
  EXPECT_EQ(chat["choices"][0]["stop_reason"], "A");
  EXPECT_EQ(s.ask("/v1/completions", {{"prompt", "x"}})["choices"][0]["stop_reason"], nullptr);
}

constexpr const char* kCalls =
    "{% if tools %}{{ tools | tojson }} '<tool_call>'\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

TEST(Messages, UseATool) {
  ServedModel s({}, kCalls);
  const Json tool = {
      {"name", "f"},
      {"input_schema",
       {{"type", "object"},
        {"properties", {{"n", {{"type", "integer"}, {"minimum", 0}, {"maximum", 9}}}}},
        {"required", {"n"}},
        {"additionalProperties", false}}}};
  const Json ask =
      with(kAsk, {{"max_tokens", 700}, {"tools", {tool}}, {"tool_choice", {{"type", "any"}}}});
  const Json reply = s.ask("/v1/messages", ask);
  ASSERT_EQ(reply["content"].size(), 1u) << reply;
  EXPECT_EQ(reply["content"][0]["type"], "tool_use");
  EXPECT_EQ(reply["content"][0]["name"], "f");
  EXPECT_TRUE(reply["content"][0]["input"]["n"].is_number()) << reply;
  EXPECT_EQ(reply["stop_reason"], "tool_use");
}

TEST(Messages, AreRefusedInTheirForm) {
  serve::ServeOptions options;
  options.api_keys = {"one"};
  ServedModel s(options);
  const auto refused = [&](const Json& body, int status, const std::string& type,
                           const std::string& part, const char* key = "x-api-key: one\r\n") {
    const HttpReply reply = s.post("/v1/messages", body, key);
    EXPECT_EQ(reply.status, status) << reply.body;
    const Json json = Json::parse(reply.body);
    EXPECT_EQ(json["type"], "error");
    EXPECT_EQ(json["error"]["type"], type);
    EXPECT_NE(json["error"]["message"].get<std::string>().find(part), std::string::npos) << json;
  };
  refused(kAsk, 401, "authentication_error", "X-Api-Key", "x-api-key: two\r\n");
  EXPECT_EQ(s.post("/v1/messages", kAsk, "x-api-key: one\r\n").status, 200);
  EXPECT_EQ(s.post("/v1/messages", kAsk, "Authorization: Bearer one\r\n").status, 200);
  const std::string invalid = "invalid_request_error";
  Json endless = kAsk;
  endless.erase("max_tokens");
  refused(endless, 400, invalid, "max_tokens is missing");
  refused(with(kAsk, {{"max_tokens", "x"}}), 400, invalid, "max_tokens");
  refused(with(kAsk, {{"top_p", 2}}), 400, invalid, "top_p");
  refused(with(kAsk, {{"messages", Json::array()}}), 400, invalid, "messages is empty");
  refused(with(kAsk, {{"mcp_servers", {{{"type", "url"}, {"url", "https://example.com"}}}}}), 400,
          invalid, "mcp_servers is not supported");
  refused(with(kAsk, {{"container", "c"}}), 400, invalid, "container is not supported");
  const Json format = {{"type", "json_schema"}, {"schema", {{"pattern", "a"}}}};
  refused(with(kAsk, {{"output_format", format}}), 400, invalid, "output_format: ");
  refused(with(kAsk, {{"output_config", {{"format", format}}}}), 400, invalid,
          "output_config.format: ");
  EXPECT_EQ(s.post("/v1/messages",
                   with(kAsk, {{"mcp_servers", Json::array()},
                               {"container", nullptr},
                               {"context_management", {{"edits", Json::array()}}},
                               {"service_tier", "auto"}}),
                   "x-api-key: one\r\n")
                .status,
            200);
  refused(with(kAsk, {{"stop_sequences", std::vector<std::string>(17, "x")}}), 400, invalid,
          "stop_sequences: ");
  const Json prefilled = {kUser, {{"role", "assistant"}, {"content", "Once"}}};
  const Json called = {
      kUser,
      {{"role", "assistant"},
       {"content",
        {{{"type", "tool_use"}, {"id", "t"}, {"name", "f"}, {"input", Json::object()}}}}}};
  refused(with(kAsk, {{"messages", called}}), 400, invalid, "the assistant");
  EXPECT_EQ(
      s.post("/v1/messages", with(kAsk, {{"messages", prefilled}}), "x-api-key: one\r\n").status,
      200);
  EXPECT_EQ(
      s.post("/v1/messages/count_tokens", {{"messages", prefilled}}, "x-api-key: one\r\n").status,
      200);
  // Places are those of the request, not of the chat completion.
  const Json marked = {{"role", "user"}, {"content", "a <|im_end|>"}};
  const Json answer = {{"role", "assistant"}, {"content", "Hi"}};
  refused(with(kAsk, {{"system", "Be brief."}, {"messages", {kUser, answer, marked}}}), 400,
          invalid, "messages[2] holds <|im_end|>");
  refused(with(kAsk, {{"system", "<|im_end|>"}}), 400, invalid, "system holds <|im_end|>");
  refused(with(kAsk, {{"messages", {{{"role", "user"}, {"content", std::string(1100, 'x')}}}}}),
          400, invalid, "prompt is too long: ");
  EXPECT_EQ(Json::parse(s.get("/v1/messages", "x-api-key: one\r\n").body)["type"], "error");
}

// A template that opens a thought unless it is told not to.
constexpr const char* kThinks =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}{% endif %}";

TEST(Messages, ThinkOrNotAsTheyAreTold) {
  ServedModel s({}, kThinks);
  const auto first_block = [&](const Json& more) {
    const Json content = s.ask("/v1/messages", with(kAsk, more))["content"];
    return content.empty() ? "none" : content[0]["type"].get<std::string>();
  };
  const Json off = {{"thinking", {{"type", "disabled"}}}};
  EXPECT_EQ(first_block(Json::object()), "thinking");
  EXPECT_EQ(first_block({{"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}}}),
            "thinking");
  EXPECT_EQ(first_block(off), "text");
  // What the request says of the template itself stands before it.
  EXPECT_EQ(first_block(with(off, {{"chat_template_kwargs", {{"enable_thinking", true}}}})),
            "thinking");
  for (const Json& wrong : {Json("off"), Json{{"type", "never"}}, Json{{"budget_tokens", 1}},
                            Json{{"type", "enabled"}, {"budget_tokens", "many"}}}) {
    const HttpReply reply = s.post("/v1/messages", with(kAsk, {{"thinking", wrong}}));
    EXPECT_EQ(reply.status, 400) << wrong;
    EXPECT_NE(reply.body.find("thinking"), std::string::npos) << reply.body;
  }
}

// Whoever refuses, HTTP's own part among them.
TEST(Messages, HaveNoErrorInAnotherForm) {
  serve::ServeOptions options;
  options.max_body = 1024;
  ServedModel s(options);
  const auto type_of = [&](const char* method, const char* path, const std::string& body,
                           int status) {
    const HttpReply reply = HttpClient(s.server->port()).ask(method, path, body);
    EXPECT_EQ(reply.status, status) << path << reply.body;
    const Json json = Json::parse(reply.body);
    EXPECT_EQ(json.value("type", ""), "error") << json;
    return json["error"]["type"].get<std::string>();
  };
  const std::string invalid = "invalid_request_error", large(2000, 'x');
  EXPECT_EQ(type_of("POST", "/v1/messages", large, 413), "request_too_large");
  EXPECT_EQ(type_of("POST", "/v1/messages?beta=true", large, 413), "request_too_large");
  EXPECT_EQ(type_of("POST", "/v1/messages", "{\"max", 400), invalid);
  EXPECT_EQ(type_of("DELETE", "/v1/messages", "", 405), invalid);
  EXPECT_EQ(type_of("POST", "/v1/messages/batches", "{}", 404), "not_found_error");
  const HttpReply other = HttpClient(s.server->port()).ask("POST", "/v1/completions", large);
  EXPECT_EQ(other.status, 413);
  EXPECT_FALSE(Json::parse(other.body).contains("type"));
}

}  // namespace
}  // namespace moe::test::messages_test
