// OpenAI's Responses API: requests as chat completions, replies whole and in events, what is
// refused, and that a server answers it with the text of a chat.
#include "serve/responses.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/files.h"
#include "support/served.h"

namespace moe::test::responses_test {
namespace {

Json as_chat(const Json& request) {
  return Json::parse(serve::responses_as_chat(ordered(request)).text());
}

TEST(Responses, BecomeAChatCompletion) {
  const Json chat = as_chat(Json::parse(R"({
    "model": "gpt", "max_output_tokens": 99, "temperature": 0.5, "top_p": 0.9, "stream": true,
    "store": true, "previous_response_id": null, "background": false, "n": 3,
    "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}},
             "verbosity": "low"},
    "tools": [{"type": "function", "name": "f", "description": "Finds", "strict": true,
               "parameters": {"type": "object"}}, {"type": "web_search"}],
    "tool_choice": {"type": "function", "name": "f"},
    "instructions": "Be brief.",
    "input": [
      {"role": "developer", "content": "Be polite."},
      {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Where?"}]},
      {"type": "reasoning", "id": "rs_1", "summary": [],
       "content": [{"type": "reasoning_text", "text": "Look."}]},
      {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
       "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}]},
      {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\": 1}"},
      {"type": "function_call_output", "call_id": "c1", "output": "Here"}]})"));
  EXPECT_EQ(chat, Json::parse(R"({
    "model": "gpt", "max_tokens": 99, "temperature": 0.5, "top_p": 0.9, "stream": true,
    "stream_options": {"include_usage": true},
    "chat_template_kwargs": {"reasoning_effort": "low"},
    "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
    "tools": [{"type": "function", "function":
      {"name": "f", "description": "Finds", "parameters": {"type": "object"}}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "messages": [
      {"role": "system", "content": [{"type": "text", "text": "Be brief."},
                                     {"type": "text", "text": "Be polite."}]},
      {"role": "user", "content": "Where?"},
      {"role": "assistant", "reasoning_content": "Look.", "content": "Let me see.", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "Here"}]})"));
}

TEST(Responses, OfATextAreOfTheUser) {
  const Json chat =
      as_chat({{"input", "Hello"}, {"text", {{"format", {{"type", "json_object"}}}}}});
  EXPECT_EQ(chat["messages"], Json({{{"role", "user"}, {"content", "Hello"}}}));
  EXPECT_EQ(chat["response_format"], Json({{"type", "json_object"}}));
  const Json choice = {{"input", "Hello"}, {"tools", {{{"type", "function"}, {"name", "f"}}}}};
  EXPECT_EQ(as_chat(with(choice, {{"tool_choice", "required"}}))["tool_choice"], "required");
  EXPECT_FALSE(as_chat(with(choice, {{"tool_choice", "none"}})).contains("tools"));
  EXPECT_EQ(as_chat(with(choice, {{"parallel_tool_calls", false}}))["parallel_tool_calls"], false);
}

// OpenAI's own items of reasoning have the text in the one or the other, and an empty list beside.
TEST(Responses, TakeAThoughtOrItsSummary) {
  const auto thought = [](const Json& content, const Json& summary) {
    const Json item = {{"type", "reasoning"}, {"content", content}, {"summary", summary}};
    const Json chat =
        as_chat({{"input", Json::array({item, {{"role", "user"}, {"content", "x"}}})}});
    return chat["messages"][0].value("reasoning_content", "");
  };
  const Json content = Json::array({{{"type", "reasoning_text"}, {"text", "Look."}}}),
             summary = Json::array({{{"type", "summary_text"}, {"text", "It looks."}}});
  EXPECT_EQ(thought(content, summary), "Look.");
  EXPECT_EQ(thought(Json::array(), summary), "It looks.");
  EXPECT_EQ(thought(nullptr, summary), "It looks.");
  EXPECT_EQ(thought(Json::array(), Json::array()), "");
}

// What the request's own variables say stands before its effort.
TEST(Responses, PassVariablesOfTheTemplate) {
  const Json chat = as_chat({{"input", "Hello"},
                             {"reasoning", {{"effort", "low"}}},
                             {"chat_template_kwargs", {{"reasoning_effort", "high"}, {"a", 1}}}});
  EXPECT_EQ(chat["chat_template_kwargs"], Json({{"reasoning_effort", "high"}, {"a", 1}}));
  EXPECT_EQ(
      as_chat({{"input", "Hello"}, {"reasoning", {{"effort", "none"}}}})["chat_template_kwargs"],
      Json({{"reasoning_effort", "none"}, {"enable_thinking", false}, {"thinking", false}}));
}

// {the request, what the message says}
TEST(Responses, RefuseByName) {
  const auto item = [](const Json& given) { return Json{{"input", Json::array({given})}}; };
  const auto part = [&](const Json& given) {
    return item({{"role", "user"}, {"content", Json::array({given})}});
  };
  const std::vector<std::pair<Json, std::string>> wrong = {
      {Json::object(), "input is missing"},
      {{{"input", Json::array()}}, "input is empty"},
      {{{"input", 1}}, "input must be a string"},
      {item("x"), "input[0] must be an object"},
      {item({{"role", "tool"}, {"content", "x"}}), "input[0].role: \"tool\""},
      {item({{"type", "item_reference"}, {"id", "x"}}), "input[0].type: \"item_reference\""},
      {item({{"type", "function_call"}, {"name", "f"}}), "input[0].call_id is missing"},
      {part({{"type", "input_image"}}), "input[0].content[0].type: \"input_image\""},
      {part({{"type", "input_file"}}), "input[0].content[0].type: \"input_file\""},
      {{{"input", "x"}, {"instructions", 1}}, "instructions must be a string"},
      {{{"input", "x"}, {"tools", {{{"name", "f"}}}}}, "tools[0].type is missing"},
      {{{"input", "x"}, {"tool_choice", {{"type", "web_search"}}}},
       "tool_choice.type: \"web_search\""},
      {{{"input", "x"}, {"text", {{"format", "json"}}}}, "text.format must be an object"}};
  for (const auto& row : wrong) {
    const OrderedJson request = ordered(row.first);
    EXPECT_FAILS(serve::responses_as_chat(request), row.second) << row.first;
  }
}

// A completion of a chat as ReplyWriter says it, and the chunks of the same one.
Json call(int index) {
  return {{"index", index},
          {"id", "call_" + std::to_string(index)},
          {"type", "function"},
          {"function", {{"name", "f"}, {"arguments", "{\"b\":1}"}}}};
}
const Json kUsage = {{"prompt_tokens", 70},
                     {"completion_tokens", 9},
                     {"prompt_tokens_details", {{"cached_tokens", 64}}}};

Json completion(const Json& choices, const Json& usage = kUsage) {
  return {
      {"id", "chatcmpl-7"}, {"created", 5}, {"model", "m"}, {"choices", choices}, {"usage", usage}};
}
Json chunk(const Json& delta, const Json& finish = nullptr) {
  return completion(Json::array({{{"delta", delta}, {"finish_reason", finish}}}), nullptr);
}

const OrderedJson kAsked = {{"input", "x"}, {"temperature", 0.5}, {"instructions", "Be brief."}};

TEST(Responses, AReplyIsItems) {
  const Json message = {{"content", "Let me see."},
                        {"reasoning_content", "Hm."},
                        {"tool_calls", Json::array({call(0)})}};
  const Json reply = Json::parse(serve::responses_style(kAsked)->whole(
      completion(Json::array({{{"message", message}, {"finish_reason", "tool_calls"}}}))));
  EXPECT_EQ(reply["output"], Json::parse(R"([
    {"id": "rs_7_0", "type": "reasoning", "status": "completed", "summary": [],
     "content": [{"type": "reasoning_text", "text": "Hm."}]},
    {"id": "msg_7_1", "type": "message", "status": "completed", "role": "assistant",
     "content": [
       {"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []}]},
    {"id": "fc_7_2", "type": "function_call", "status": "completed", "call_id": "call_0",
     "name": "f", "arguments": "{\"b\":1}"}])"));
  EXPECT_EQ(reply["id"], "resp_7");
  EXPECT_EQ(reply["object"], "response");
  EXPECT_EQ(reply["status"], "completed");
  EXPECT_EQ(reply["incomplete_details"], nullptr);
  EXPECT_EQ(reply["temperature"], 0.5);
  EXPECT_EQ(reply["instructions"], "Be brief.");
  EXPECT_EQ(reply["tools"], Json::array());
  EXPECT_EQ(reply["usage"]["input_tokens"], 70);
  EXPECT_EQ(reply["usage"]["input_tokens_details"]["cached_tokens"], 64);
  EXPECT_EQ(reply["usage"]["total_tokens"], 79);
}

TEST(Responses, TellTheTokensOfThoughts) {
  const auto reasoning = [](const Json& usage) {
    const Json choice = {{"message", {{"content", ""}, {"reasoning_content", "Hm."}}},
                         {"finish_reason", "stop"}};
    const Json reply = Json::parse(
        serve::responses_style(kAsked)->whole(completion(Json::array({choice}), usage)));
    EXPECT_EQ(reply["output"].size(), 1u) << "a reply that only thinks";
    EXPECT_EQ(reply["usage"]["output_tokens"], 9);
    return reply["usage"]["output_tokens_details"]["reasoning_tokens"];
  };
  EXPECT_EQ(reasoning(kUsage), 0);
  EXPECT_EQ(reasoning(with(kUsage, {{"completion_tokens_details", {{"reasoning_tokens", 7}}}})), 7);
}

TEST(Responses, AReplyThatWasCutIsIncomplete) {
  const auto style = serve::responses_style(kAsked);
  std::string body = style->chunk(chunk({{"content", "Once"}}));
  body += style->chunk(chunk({}, "length"));
  body += style->chunk(completion(Json::array()));
  body += style->end();
  const Json last = named_events_of(body).back();
  EXPECT_EQ(last["type"], "response.incomplete");
  EXPECT_EQ(last["response"]["status"], "incomplete");
  EXPECT_EQ(last["response"]["incomplete_details"], Json({{"reason", "max_output_tokens"}}));
  EXPECT_EQ(last["response"]["output"][0]["status"], "incomplete");
  EXPECT_EQ(last["response"]["usage"]["output_tokens"], 9);
}

TEST(Responses, AStreamIsEventsOfItems) {
  const auto style = serve::responses_style(kAsked);
  std::string body = style->chunk(chunk({{"role", "assistant"}, {"content", ""}}));
  body += style->chunk(chunk({{"reasoning_content", "Hm."}}));
  body += style->chunk(chunk({{"content", "Let"}}));
  body += style->chunk(chunk({{"content", " me."}}));
  body += style->chunk(chunk({{"tool_calls", Json::array({call(0), call(1)})}}, "tool_calls"));
  body += style->chunk(completion(Json::array()));
  body += style->end();
  const std::vector<Json> events = named_events_of(body);
  std::vector<std::string> types;
  for (const Json& event : events) {
    EXPECT_EQ(event["sequence_number"], types.size());
    types.push_back(event["type"].get<std::string>().substr(sizeof("response.") - 1));
  }
  EXPECT_EQ(types, (std::vector<std::string>{"created",
                                             "in_progress",
                                             "output_item.added",
                                             "content_part.added",
                                             "reasoning_text.delta",
                                             "reasoning_text.done",
                                             "content_part.done",
                                             "output_item.done",
                                             "output_item.added",
                                             "content_part.added",
                                             "output_text.delta",
                                             "output_text.delta",
                                             "output_text.done",
                                             "content_part.done",
                                             "output_item.done",
                                             "output_item.added",
                                             "function_call_arguments.delta",
                                             "function_call_arguments.done",
                                             "output_item.done",
                                             "output_item.added",
                                             "function_call_arguments.delta",
                                             "function_call_arguments.done",
                                             "output_item.done",
                                             "completed"}));
  EXPECT_EQ(events[0]["response"]["status"], "in_progress");
  EXPECT_EQ(events[0]["response"]["output"], Json::array());
  EXPECT_EQ(events[8]["item"]["content"], Json::array());
  EXPECT_EQ(events[11]["delta"], " me.");
  EXPECT_EQ(events[11]["item_id"], events[8]["item"]["id"]);
  EXPECT_EQ(events[12]["text"], "Let me.");
  EXPECT_EQ(events[17]["arguments"], "{\"b\":1}");
  EXPECT_EQ(events[19]["output_index"], 3);
  EXPECT_EQ(events[23]["response"]["output"][1], events[14]["item"]);
  const Json failed = named_events_of(style->failure({500, "no"}))[0];
  EXPECT_EQ(failed["type"], "response.failed");
  EXPECT_EQ(failed["response"]["error"]["message"], "no");
}

TEST(Responses, AreAnsweredAsAChatIs) {
  ServedModel s;
  const Json chat = s.ask(
      "/v1/chat/completions",
      {{"messages",
        {{{"role", "system"}, {"content", "Be brief."}}, {{"role", "user"}, {"content", "Hello"}}}},
       {"max_tokens", 12},
       {"seed", 3}});
  const Json ask = {
      {"instructions", "Be brief."}, {"input", "Hello"}, {"max_output_tokens", 12}, {"seed", 3}};
  const Json reply = s.ask("/v1/responses", ask);
  ASSERT_EQ(reply["output"].size(), 1u) << reply;
  EXPECT_EQ(reply["output"][0]["content"][0]["text"], chat["choices"][0]["message"]["content"]);
  EXPECT_EQ(reply["status"], "incomplete");
  EXPECT_EQ(reply["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
  std::string text;
  for (const Json& event :
       named_events_of(s.post("/v1/responses", with(ask, {{"stream", true}})).body))
    if (event["type"] == "response.output_text.delta") text += event["delta"].get<std::string>();
  EXPECT_EQ(reply["output"][0]["content"][0]["text"], text);
}

// Fields have the names that they have there.
TEST(Responses, AreRefusedInOpenAIsForm) {
  ServedModel s;
  const auto refused = [&](const Json& more, const std::string& part) {
    const HttpReply reply =
        s.post("/v1/responses", with({{"input", "Hello"}, {"max_output_tokens", 4}}, more));
    EXPECT_EQ(reply.status, 400) << reply.body;
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_NE(error["message"].get<std::string>().find(part), std::string::npos) << error;
    return error["param"];
  };
  for (const char* field : {"previous_response_id", "conversation", "prompt"})
    EXPECT_EQ(refused({{field, "x"}}, std::string(field) + " is not supported"), field);
  EXPECT_EQ(refused({{"background", true}}, "background is not supported"), "background");
  EXPECT_EQ(refused({{"top_logprobs", 3}}, "top_logprobs is not supported"), "top_logprobs");
  EXPECT_EQ(refused({{"include", {"reasoning.encrypted_content", "message.output_text.logprobs"}}},
                    "message.output_text.logprobs is not supported"),
            "include");
  EXPECT_EQ(s.post("/v1/responses", {{"input", "Hello"},
                                     {"max_output_tokens", 4},
                                     {"include", {"reasoning.encrypted_content"}},
                                     {"background", false},
                                     {"top_logprobs", 0},
                                     {"store", false},
                                     {"truncation", "auto"}})
                .status,
            200);
  EXPECT_EQ(refused({{"top_p", 2}}, "top_p"), "top_p");
  EXPECT_EQ(refused({{"max_output_tokens", "x"}}, "max_output_tokens: "), "max_output_tokens");
  EXPECT_EQ(refused({{"text", {{"format", {{"type", "xml"}}}}}}, "\"xml\" is not known"),
            "text.format");
  EXPECT_EQ(refused({{"instructions", "Hi"}, {"input", "<|im_end|>"}}, "input holds <|im_end|>"),
            "input");
  EXPECT_EQ(refused({{"input", std::string(1100, 'x')}}, "texts of 1024 tokens"), "input");
  EXPECT_EQ(refused({{"tool_choice", "required"}}, "there are no tools"), "tool_choice");
}

}  // namespace
}  // namespace moe::test::responses_test
