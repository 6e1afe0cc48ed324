// Requests of OpenAI's form: what is refused and by which name, and what reaches the template.
#include "text/chat_request.h"

#include <nlohmann/json.hpp>

#include "support/files.h"
#include "text/chat.h"

namespace moe::test::chat_request_test {
namespace {

ChatRequest request_of(const std::string& text) { return parse_chat_request(text, "request"); }
ChatRequest messages_of(const std::string& list) {
  return request_of("{\"messages\": " + list + "}");
}

// Writes every message with all it holds, then the tools and one more variable.
const ChatTemplate& shows_all() {
  static const ChatTemplate made(
      "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
      "{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}<|end|>{% endfor %}"
      "{% if tools %}{{ tools | tojson }}{% endif %}"
      "{% if add_generation_prompt %}<|assistant|>{% endif %}{{ mood }}",
      {});
  return made;
}

TEST(ChatRequest, WritesMessagesToolsAndVariablesInTheirOrder) {
  const std::string tool =
      R"({"type": "function", "function": {"name": "f", "strict": false, "description": "d", )"
      R"("parameters": {"type": "object", "properties": {"z": {}, "a": {"minimum": 1.0}}}}})";
  const ChatRequest request = request_of(
      R"({"model": "x", "messages": [{"content": "s", "role": "developer"},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}],
      "chat_template_kwargs": {"mood": "calm"}, "tools": [)" +
      tool + "]}");
  EXPECT_EQ(shows_all().render(request),
            "<|developer|>s<|end|><|user|>a\nb<|end|><|assistant|>c<|end|><|user|>d<|end|>[" +
                tool + "]<|assistant|>calm");
  EXPECT_EQ(shows_all().render(request_of(
                R"({"messages": [{"role": "user", "content": "a"}], "tools": [],
                    "add_generation_prompt": false})")),
            "<|user|>a<|end|>");
  const ChatRequest plain = messages_of(R"([{"role": "user", "content": "a"}])");
  EXPECT_EQ(chatml().render(plain), chatml().prompt(std::vector<Message>{{"user", "a"}}));
}

std::string call_with(const std::string& content, const std::string& arguments) {
  return R"([{"role": "user", "content": "q"}, {"role": "assistant", )" + content +
         R"("tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": )" +
         arguments + R"(}}]}, {"role": "tool", "tool_call_id": "1", "content": "r"}])";
}

TEST(ChatRequest, ArgumentsAreAnObjectForTheTemplate) {
  const auto written = [](const std::string& arguments) {
    return shows_all().render(messages_of(call_with("\"content\": \"\", ", arguments)));
  };
  const std::string object = written(R"("{\"z\": 1, \"a\": [true]}")");
  EXPECT_NE(object.find(R"("arguments": {"z": 1, "a": [true]})"), std::string::npos) << object;
  EXPECT_EQ(written(R"({"z": 1, "a": [true]})"), object);
  EXPECT_NE(written("null").find(R"("arguments": {})"), std::string::npos);
  for (const char* broken : {R"("{\"z\": ")", R"("[1]")", R"("{\"z\": 1, \"z\": 2}")"})
    EXPECT_NE(written(broken).find(std::string("\"arguments\": ") + broken), std::string::npos);
}

TEST(ChatRequest, EveryTemplateGetsCallsAsItTakesThem) {
  const std::string before =
      "{% for m in messages %}<|{{ m.role }}|>"
      "{% for c in m.tool_calls or [] %}{% set f = c.function %}";
  const std::string after = "{% endfor %}{{ m.content if CONTENT }}<|end|>{% endfor %}";
  const auto written = [&](const std::string& call, const std::string& content) {
    std::string source = before + call + after;
    source.replace(source.find("CONTENT"), 7, content);
    const std::string text =
        ChatTemplate(source, {}).render(messages_of(call_with("", R"("{\"a\":1}")")));
    const size_t from = text.find("<|assistant|>") + 13;
    return text.substr(from, text.find("<|end|>", from) - from);
  };
  EXPECT_EQ(written("{{ f.arguments | tojson }}", "m.content"), R"({"a": 1})");
  EXPECT_EQ(written("{{ 'x' + f.arguments }}", "true"), R"(x{"a":1})");
  EXPECT_EQ(written("{{ f.arguments }}", "true"), R"({"a":1})");
  EXPECT_EQ(written("{{ f.arguments | tojson }}", "true"), R"({"a": 1})");  // no "None"
  EXPECT_EQ(written("{{ f.arguments | tojson if m.content is none }}", "m.content"), R"({"a": 1})");
  EXPECT_EQ(written("{{ 'x' + f.arguments if m.content is none }}", "m.content"), R"(x{"a":1})");
  EXPECT_EQ(written("", "m.content + ''"), "");  // writes no calls, and takes texts only
}

TEST(ChatRequest, NamesTheFieldThatIsWrong) {
  EXPECT_FAILS(request_of("{}"), "messages is missing");
  EXPECT_FAILS(request_of("[]"), "must be an object");
  EXPECT_FAILS(request_of("{\"messages\": 1}"), "messages must be a list");
  EXPECT_FAILS(messages_of("[]"), "messages is empty");
  EXPECT_FAILS(messages_of("[1]"), "messages[0] must be an object");
  EXPECT_FAILS(messages_of("[{}]"), "messages[0].role is missing");
  EXPECT_FAILS(messages_of(R"([{"role": 1, "content": ""}])"), "messages[0].role must be a string");
  EXPECT_FAILS(messages_of(R"([{"role": "usr", "content": ""}])"),
               "messages[0].role: \"usr\" is not known here; did you mean");
  for (const char* role : {"user", "system", "developer", "tool", "assistant"})
    EXPECT_FAILS(messages_of(R"([{"role": ")" + std::string(role) + "\"}]"),
                 "messages[0].content is missing");
  EXPECT_FAILS(messages_of(R"([{"role": "user", "content": null}])"), "messages[0].content is");
  EXPECT_NO_THROW(messages_of(R"([{"role": "assistant", "content": null}])"));
  EXPECT_FAILS(messages_of(R"([{"role": "user", "content": {}}])"),
               "messages[0].content must be a string, or a list of parts");
  EXPECT_FAILS(messages_of(R"([{"role": "user", "content": [{"type": "image_url"}]}])"),
               "messages[0].content[0].type is \"image_url\", and only");
  EXPECT_FAILS(messages_of(R"([{"role": "user", "content": [{"type": "text"}]}])"),
               "messages[0].content[0].text is missing");
  EXPECT_FAILS(messages_of(R"([{"role": "user", "content": "", "name": 1}])"),
               "messages[0].name must be a string");
  EXPECT_FAILS(messages_of(R"([{"role": "user", "content": "", "tool_calls":
               [{"function": {"name": "f"}}]}])"),
               "messages[0].tool_calls is for the role \"assistant\" only");
  EXPECT_FAILS(messages_of(R"([{"role": "assistant", "content": "", "function_call": {}}])"),
               "messages[0].function_call is not known");
  const auto call = [](const std::string& inside) {
    return messages_of(R"([{"role": "assistant", "tool_calls": [)" + inside + "]}]");
  };
  EXPECT_FAILS(call("{}"), "messages[0].tool_calls[0].function is missing");
  EXPECT_FAILS(call(R"({"function": {}})"), "messages[0].tool_calls[0].function.name is missing");
  EXPECT_FAILS(call(R"({"type": "custom", "function": {"name": "f"}})"),
               "messages[0].tool_calls[0].type: \"custom\" is not known");
  EXPECT_FAILS(call(R"({"function": {"name": "f", "arguments": 1}})"),
               "messages[0].tool_calls[0].function.arguments must be");
  const auto with = [](const std::string& key, const std::string& value) {
    return request_of(R"({"messages": [{"role": "user", "content": "a"}], ")" + key +
                      "\": " + value + "}");
  };
  EXPECT_FAILS(with("tools", R"([{"type": "function"}])"), "tools[0].function is missing");
  EXPECT_FAILS(with("tools", R"([{"type": "retrieval"}])"), "tools[0].type: \"retrieval\"");
  EXPECT_FAILS(with("tools", R"([{"type": "function", "function": {"name": "f",
               "parameters": []}}])"),
               "tools[0].function.parameters must be an object");
  EXPECT_FAILS(with("chat_template_kwargs", R"({"bos_token": ""})"),
               "chat_template_kwargs.bos_token cannot be set");
  EXPECT_FAILS(with("chat_template_kwargs", R"({"a": 18446744073709551615})"), "64 bits");
  EXPECT_FAILS(with("add_generation_prompt", "1"), "add_generation_prompt must be true or false");
  EXPECT_FAILS(request_of("{\"messages\": 1, \"messages\": 2}"), "stands twice");
  EXPECT_FAILS(request_of("{"), "request: line 1");
}

TEST(ChatRequest, NoTextMayHoldAMark) {
  const auto refuses = [](const std::string& body, const std::string& field) {
    EXPECT_FAILS(shows_all().render(request_of(body)), field + " holds <|end|>");
  };
  const std::string user = R"({"role": "user", "content": "a"})";
  for (const char* role : {"user", "system", "developer", "tool", "assistant"})
    refuses(R"({"messages": [)" + user + R"(, {"role": ")" + role + R"(", "content": "<|end|>"}]})",
            "messages[1].content");
  refuses(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "<|e"},
             {"type": "text", "text": "<|end|>"}]}]})",
          "messages[0].content");
  refuses("{\"messages\": " + call_with("", R"("{\"a\": \"<|end|>\"}")") + "}",
          "messages[1].tool_calls[0].function.arguments");
  refuses(R"({"messages": [)" + user + R"(], "tools": [{"type": "function", "function":
             {"name": "f", "description": "<|end|>"}}]})",
          "tools[0].function.description");
  refuses(R"({"messages": [)" + user + R"(], "chat_template_kwargs": {"mood": ["<|end|>"]}})",
          "chat_template_kwargs.mood[0]");
}

// Two calls and what came of them, under ids of other servers' kind.
ChatRequest calls_with(const std::string& first, const std::string& second) {
  const auto call = [](const std::string& id, const char* name) {
    return R"({"type": "function", "id": ")" + id + R"(", "function": {"name": ")" + name +
           R"(", "arguments": "{}"}})";
  };
  const auto result = [](const std::string& id) {
    return R"({"role": "tool", "content": "r", "tool_call_id": ")" + id + "\"}";
  };
  return request_of(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant",
                        "tool_calls": [)" +
                    call(first, "f") + ", " + call(second, "g") + "]}, " + result(first) + ", " +
                    result(second) + "]}");
}

TEST(ChatRequest, IdsOfCallsAreThoseThatTheModelKnows) {
  const auto made = [](const std::string& mark) {
    return ChatTemplate(
        "{# " + mark +
            " #}{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}"
            "{{ c.function.name }}={{ c.id }};{% endfor %}{% elif m.role == 'tool' %}{{ "
            "m.tool_call_id }}"
            ";{% else %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}",
        {});
  };
  const auto told = [](const ChatTemplate& t, const ChatRequest& request) {
    const std::string text = t.render(request);
    return text.substr(text.find("f="));
  };
  const ChatRequest others = calls_with("call_abc", "toolu_01");
  EXPECT_EQ(told(made("<tool_call>"), others), "f=call_abc;g=toolu_01;call_abc;toolu_01;");
  EXPECT_EQ(told(made("<|tool_call_begin|>"), others),
            "f=functions.f:0;g=functions.g:1;functions.f:0;functions.g:1;");
  EXPECT_EQ(told(made("<|tool_call_begin|>"), calls_with("functions.f:7", "x")),
            "f=functions.f:7;g=functions.g:1;functions.f:7;functions.g:1;");
  const ChatTemplate mistral = made("[TOOL_CALLS]");
  EXPECT_EQ(told(mistral, calls_with("Abcdefgh1", "abcdefgh2")),
            "f=Abcdefgh1;g=abcdefgh2;Abcdefgh1;abcdefgh2;");
  const std::string text = told(mistral, others);  // f=123456789;g=123456789;...
  ASSERT_EQ(text.size(), 2u * 12 + 2u * 10);
  EXPECT_EQ(text.substr(2, 9), text.substr(24, 9));
  EXPECT_EQ(text.substr(14, 9), text.substr(34, 9));
  EXPECT_NE(text.substr(2, 9), text.substr(14, 9));
}

TEST(ChatRequest, WhatTheTemplateRefusesIsTheClientsError) {
  const ChatTemplate t(
      "{% for m in messages %}{% if m.role == 'developer' %}{{ raise_exception('no such role') }}"
      "{% endif %}[{{ m.content }}]{% endfor %}",
      {});
  try {
    t.render(messages_of(R"([{"role": "developer", "content": "a"}])"));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), Error::Kind::usage);
    EXPECT_NE(std::string(e.what()).find("the template refuses: no such role"), std::string::npos);
  }
}

}  // namespace
}  // namespace moe::test::chat_request_test
