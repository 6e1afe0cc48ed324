// How models write dialogues: families' templates against transformers' own rendering
// (tools/golden/jinja.py), and what is read off them.
#include "text/chat_template.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/files.h"
#include "text/chat.h"

namespace moe::test::chat_template_test {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson golden() {
  return OrderedJson::parse(std::ifstream(std::string(MOE_TEST_DATA) + "/golden/jinja.json"));
}

std::string template_of(const std::string& family) {
  const OrderedJson all = golden();
  for (const OrderedJson& entry : all["families"])
    if (entry["family"] == family) return entry["template"];
  ADD_FAILURE() << family;
  return "";
}
ChatTemplate of(const std::string& family) { return {template_of(family), {"<s>", "</s>"}}; }

bool holds(const std::vector<std::string>& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

TEST(ChatTemplate, WritesWhatTransformersWrites) {
  int64_t written = 0, refused = 0;
  const OrderedJson all = golden();
  for (const OrderedJson& entry : all["families"]) {
    // the golden file has a day of its own
    if (entry["template"].get<std::string>().find("strftime_now") != std::string::npos) continue;
    std::vector<Message> talk;
    for (const OrderedJson& message : entry["messages"])
      talk.push_back({message["role"], message["content"]});
    const ChatTemplate t(entry["template"].get<std::string>(), {"<s>", "</s>"});
    SCOPED_TRACE(entry["family"]);
    if (entry.contains("refused")) {
      EXPECT_FAILS(t.prompt(talk), "");
      ++refused;
    } else {
      EXPECT_EQ(entry["text"], t.prompt(talk));
      ++written;
    }
  }
  EXPECT_GT(written, 40);
  EXPECT_LT(refused, written / 10);
}

TEST(ChatTemplate, ReadsMarksAndStopsOffTheTemplate) {
  struct Case {
    const char* family;
    std::vector<std::string> marks, stops;
  };
  for (const Case& c : std::vector<Case>{
           {"chatml", {"<|im_start|>", "<|im_end|>"}, {"<|im_end|>", "</s>"}},
           {"llama3", {"<|start_header_id|>", "<|eot_id|>", "<s>"}, {"<|eot_id|>"}},
           {"llama2", {"[INST]", "[/INST]", "<s>", "</s>"}, {"[INST]", "[/INST]", "</s>"}},
           {"mistral-v3", {"[INST]", "[/INST]", "</s>"}, {"[INST]", "</s>"}},
           {"deepseek", {"\n\nAssistant:", "</s>"}, {"\n\nAssistant:", "</s>"}},
           {"phi4", {"<|im_start|>", "<|im_sep|>", "<|im_end|>"}, {"<|im_end|>", "</s>"}},
           {"zephyr", {"<|user|>", "<|assistant|>", "</s>"}, {"<|user|>", "</s>"}}}) {
    const ChatTemplate t = of(c.family);
    for (const std::string& mark : c.marks) EXPECT_TRUE(holds(t.marks(), mark)) << c.family << mark;
    for (const std::string& stop : c.stops) EXPECT_TRUE(holds(t.stops(), stop)) << c.family << stop;
  }
  EXPECT_FALSE(holds(of("llama2").marks(), "<|im_end|>"));
  // what a model writes into its replies parts no messages
  const ChatTemplate thinks(
      "{% for m in messages %}<|{{ m.role }}|>{{ '<think></think>' if m.role == 'assistant' }}"
      "{{ m.content }}<|end|>{% endfor %}",
      {});
  EXPECT_EQ(thinks.marks(), (std::vector<std::string>{"<|end|>", "<|user|>", "<|assistant|>"}));
  EXPECT_EQ(thinks.stops(), thinks.marks());
  const ChatTemplate ends_a_thought(
      "{% for m in messages %}<{{ m.role }}>{{ '</think>' if m.role == 'assistant' }}"
      "{{ m.content }}</{{ m.role }}>{% endfor %}",
      {});
  EXPECT_FALSE(holds(ends_a_thought.marks(), "</think>"));
  for (const char* mark : {"<user>", "</user>", "<assistant>", "</assistant>"})
    EXPECT_TRUE(holds(ends_a_thought.marks(), mark)) << mark;
}

TEST(ChatTemplate, MarksMayNotStandInAMessage) {
  const ChatTemplate t = of("llama2");
  for (const std::string mark : {"[INST]", "[/INST]", "<s>", "</s>"})
    EXPECT_FAILS(t.prompt(std::vector<Message>{{"user", "a " + mark}}), "message 1 holds " + mark);
  EXPECT_NO_THROW(t.prompt(std::vector<Message>{{"user", "<|im_end|>"}}));
}

TEST(ChatTemplate, SaysWhatTheTemplateRefuses) {
  const ChatTemplate t(
      "{% for m in messages %}{% if m.role == 'system' %}\n"
      "{{ raise_exception('no system here') }}{% endif %}[{{ m.content }}]{% endfor %}",
      {});
  EXPECT_FAILS(t.prompt(std::vector<Message>{{"system", "a"}, {"user", "b"}}),
               "line 2: the template refuses: no system here");
  EXPECT_FAILS(ChatTemplate("{{ bos_token.x }}", {}), "bos_token is undefined");
  // made for tools only
  const ChatTemplate tools(
      "{% for t in tools %}{% endfor %}{% for m in messages %}[{{ m.content }}]{% endfor %}", {});
  EXPECT_FAILS(tools.prompt(std::vector<Message>{{"user", "b"}}), "None has no items");
  EXPECT_FAILS(ChatTemplate("", {}), "does not write the messages");
  EXPECT_FAILS(ChatTemplate("{{ messages[0].content | pprint }}", {}), "the filter pprint");
}

TEST(ChatTemplate, ATokenizersOwnIsTaken) {
  const auto tokenizer = make_tokenizer("bytes");
  const std::vector<Message> talk = {{"user", "a"}};
  EXPECT_EQ(chat_template(*tokenizer).prompt(talk), chatml().prompt(talk));
  OrderedJson config{{"eos_token", {{"content", "</s>"}}},
                     {"chat_template",
                      {{{"name", "rag"}, {"template", "?"}},
                       {{"name", "default"}, {"template", template_of("tulu")}}}}};
  config["bos_token"] = "<s>";
  tokenizer->set_config_json(config.dump());
  EXPECT_TRUE(holds(chat_template(*tokenizer).stops(), "</s>"));
  EXPECT_TRUE(chat_template(*tokenizer).prompt(talk).ends_with("<|user|>\na\n<|assistant|>\n"));
  // with tools transformers takes another one
  config["chat_template"][0] = {
      {"name", "tool_use"},
      {"template", "<tool_call>{% for m in messages %}{{ m.content }}{% endfor %}"}};
  tokenizer->set_config_json(config.dump());
  const ChatTemplate both = chat_template(*tokenizer);
  EXPECT_EQ(both.calls(), ToolCallForm::hermes);
  EXPECT_TRUE(both.prompt(talk).ends_with("<|user|>\na\n<|assistant|>\n"));
  EXPECT_EQ(both.render(parse_chat_request(R"({"messages": [{"role": "user", "content": "a"}],
                        "tools": [{"type": "function", "function": {"name": "f"}}]})",
                                           "request")),
            "<tool_call>a");
  tokenizer->set_config_json(R"({"chat_template": 1})");
  EXPECT_FAILS(chat_template(*tokenizer), "neither a text nor a list");
}

TEST(ChatTemplate, TakesVariablesForEveryPrompt) {
  ChatTemplate t(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n"
      "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
      "{% endif %}",
      {});
  const std::vector<Message> messages = {{"user", "Hi"}};
  EXPECT_FALSE(t.prompt(messages).ends_with("</think>"));
  t.set_variables(parse_template_variables(R"({"enable_thinking": false})"));
  EXPECT_TRUE(t.prompt(messages).ends_with("<think></think>"));
  const auto asked = [&](const char* more) {
    const std::string body =
        std::string(R"({"messages": [{"role": "user", "content": "Hi"}])") + more + "}";
    return t.render(parse_chat_request(body, "x")).ends_with("</think>");
  };
  EXPECT_TRUE(asked(""));
  EXPECT_FALSE(asked(R"(, "chat_template_kwargs": {"enable_thinking": true})"));
  EXPECT_TRUE(parse_template_variables("").empty());
  EXPECT_FAILS(parse_template_variables(R"({"messages": []})"), "messages cannot be set there");
  EXPECT_FAILS(parse_template_variables("[]"), "must be an object");
  EXPECT_FAILS(parse_template_variables("{"), "chat_template_kwargs: line 1");
  EXPECT_FAILS(t.set_variables(parse_template_variables(R"({"mood": "<|im_end|>"})")),
               "chat_template_kwargs.mood holds <|im_end|>");
}

ChatRequest going_on(const std::string& last, const std::string& more = "") {
  return parse_chat_request(R"({"messages": [{"role": "user", "content": "Tell."}, {"role":
                                "assistant", )" +
                                last + R"(}], "continue_final_message": true)" + more + "}",
                            "request");
}

// The last message is left open where its content ends, as transformers leaves it.
TEST(ChatTemplate, GoesOnWithTheLastMessage) {
  const std::string talk =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ CONTENT }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  const auto made = [&](const std::string& content) {
    std::string jinja = talk;
    return ChatTemplate(jinja.replace(jinja.find("CONTENT"), 7, content), {});
  };
  const std::string before = "<|im_start|>user\nTell.<|im_end|>\n<|im_start|>assistant\n";
  const ChatTemplate plain = made("m.content"), trims = made("m.content | trim");
  const std::string once = R"("content": "Once upon ")";
  EXPECT_EQ(plain.render(going_on(once)), before + "Once upon ");
  EXPECT_EQ(trims.render(going_on(once)), before + "Once upon");
  EXPECT_EQ(plain.render(going_on(once, R"(, "add_generation_prompt": false)")),
            before + "Once upon ");
  EXPECT_EQ(plain.render(going_on(R"("content": "")")), before);
  EXPECT_EQ(plain.render(going_on(R"("content": "Tell.")")), before + "Tell.");
  EXPECT_FAILS(going_on(once, R"(, "add_generation_prompt": true)"), "only one can be true");
  EXPECT_FAILS(parse_chat_request(R"({"messages": [{"role": "user", "content": "a"}],
                                      "continue_final_message": 1})",
                                  "request"),
               "continue_final_message must be true or false");
  const std::string call = R"("tool_calls": [{"type": "function", "function": {"name": "f"}}])";
  EXPECT_FAILS(plain.render(going_on(call)), "messages[1] has no content");
  EXPECT_FAILS(plain.render(going_on(once + ", " + call)), "messages[1] calls tools");
  const ChatTemplate drops = made("m.content.split('upon') | first");
  EXPECT_FAILS(drops.render(going_on(once)), "does not write the last message as it stands");
}

}  // namespace
}  // namespace moe::test::chat_template_test
