// The newer fields of a chat completion: what a template gets of them, and what is refused.
#include "serve/chat_fields.h"

#include <gtest/gtest.h>

#include "serve/api_error.h"
#include "support/files.h"
#include "text/chat_template.h"

namespace moe::test::chat_fields_test {
namespace {

// Passes over roles that it does not know, as many do.
const ChatTemplate& old_template() {
  static const ChatTemplate made(
      "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}<|{{ m.role }}|>"
      "{{ m.content }}<|end|>{% endif %}{% endfor %}",
      {});
  return made;
}

ChatRequest request_of(const std::string& body) {
  return serve::read_chat_request(body, "request body");
}
std::string written(const std::string& messages) {
  return old_template().render(request_of("{\"messages\": " + messages + "}"));
}

TEST(ChatFields, ADeveloperIsTheSystem) {
  EXPECT_EQ(written(R"([{"content": "Be brief.", "role": "developer"},
                        {"role": "user", "content": "developer"}])"),
            "<|system|>Be brief.<|end|><|user|>developer<|end|>");
}

TEST(ChatFields, PartsOfInputAndOutputAreTexts) {
  EXPECT_EQ(written(R"([{"role": "user", "content": [{"type": "input_text", "text": "a"},
                                                     {"type": "text", "text": "b"}]},
                        {"role": "assistant", "content": [{"type": "output_text", "text": "c"}]},
                        {"role": "user", "content": "d"}])"),
            "<|user|>a\nb<|end|><|assistant|>c<|end|><|user|>d<|end|>");
  EXPECT_FAILS(written(R"([{"role": "user", "content": [{"type": "input_image"}]}])"),
               "messages[0].content[0].type is \"input_image\", and only");
}

// Whatever stands where it should not is refused by its name, as it was before anything was put
// into other words.
TEST(ChatFields, LeaveWhatIsOfAnotherForm) {
  EXPECT_FAILS(request_of("[1]"), "the request must be an object");
  EXPECT_FAILS(request_of("{\"messages\": {\"role\": \"developer\"}}"), "messages must be a list");
  EXPECT_FAILS(written("[\"developer\"]"), "messages[0] must be an object");
  EXPECT_FAILS(written(R"([{"role": ["developer"]}])"), "messages[0].role must be a string");
  EXPECT_FAILS(written(R"([{"role": "user", "content": ["text"]}])"),
               "messages[0].content[0] must be an object");
  EXPECT_FAILS(written(R"([{"role": "user", "content": [{"type": 1}]}])"),
               "messages[0].content[0].type must be a string");
  EXPECT_FAILS(request_of("{"), "request body");
}

// Shows what it was told of thoughts: how hard, and what it has of the two switches.
std::string told(const std::string& fields) {
  static const ChatTemplate shows(
      "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
      "{{ reasoning_effort | default('unsaid') }} {{ enable_thinking | default('unsaid') }} "
      "{{ thinking | default('unsaid') }}",
      {});
  const std::string text =
      shows.render(request_of(R"({"messages": [{"role": "user", "content": "a"}])" + fields + "}"));
  return text.substr(text.rfind('>') + 1);
}

TEST(ChatFields, AnEffortIsTheTemplatesVariable) {
  EXPECT_EQ(told(""), "unsaid unsaid unsaid");
  EXPECT_EQ(told(R"(, "reasoning_effort": null)"), "unsaid unsaid unsaid");
  for (const std::string effort : {"minimal", "low", "medium", "high", "xhigh"})
    EXPECT_EQ(told(R"(, "reasoning_effort": ")" + effort + '"'), effort + " unsaid unsaid");
  EXPECT_EQ(told(R"(, "reasoning_effort": "none")"), "none False False");
}

TEST(ChatFields, VariablesStandBeforeAnEffort) {
  EXPECT_EQ(told(R"(, "reasoning_effort": "none", "chat_template_kwargs":
                    {"reasoning_effort": "high", "thinking": true})"),
            "high False True");
  EXPECT_FAILS(told(R"(, "reasoning_effort": "low", "chat_template_kwargs": [])"),
               "chat_template_kwargs must be an object");
}

// As the APIs of DeepSeek, GLM and Qwen say whether to think.
TEST(ChatFields, ThinkingIsTheTemplatesSwitch) {
  const std::string on = "unsaid True True", off = "unsaid False False";
  EXPECT_EQ(told(R"(, "thinking": {"type": "enabled"})"), on);
  EXPECT_EQ(told(R"(, "thinking": {"type": "disabled"})"), off);
  for (const std::string left : {"adaptive", "auto"})
    EXPECT_EQ(told(R"(, "thinking": {"type": ")" + left + R"("})"), "unsaid unsaid unsaid");
  EXPECT_EQ(told(R"(, "thinking": null, "enable_thinking": null)"), "unsaid unsaid unsaid");
  EXPECT_EQ(told(R"(, "enable_thinking": true)"), on);
  EXPECT_EQ(told(R"(, "enable_thinking": false)"), off);
  // Before an effort, and behind what is said of the template itself.
  EXPECT_EQ(told(R"(, "reasoning_effort": "none", "thinking": {"type": "enabled"})"),
            "none True True");
  EXPECT_EQ(told(R"(, "thinking": {"type": "enabled"},
                    "chat_template_kwargs": {"enable_thinking": false})"),
            "unsaid False True");
}

// As vLLM has them.
TEST(ChatFields, DocumentsAndThoughtsGoToTheTemplate) {
  const ChatTemplate shows(
      "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{{ m.reasoning_content }}"
      "{% endfor %}{% if documents %}{% for d in documents %}[{{ d.title }}]{% endfor %}{% endif "
      "%}",
      {});
  const auto told_by = [&](const std::string& thought, const std::string& more) {
    const std::string text = shows.render(request_of(
        R"({"messages": [{"role": "assistant", "content": "a")" + thought + "}]" + more + "}"));
    return text.substr(text.rfind('>') + 1);
  };
  EXPECT_EQ(told_by("", R"(, "documents": [{"title": "A"}, {"title": "B"}])"), "[A][B]");
  EXPECT_EQ(told_by("", R"(, "documents": [])"), "");
  EXPECT_FAILS(told_by("", R"(, "documents": [{"title": "<|end|>"}])"), "<|end|>");
  EXPECT_EQ(told_by(R"(, "reasoning": "t")", ""), "t");
  EXPECT_EQ(told_by(R"(, "reasoning": "t", "reasoning_content": "u")", ""), "u");
  EXPECT_EQ(told_by(R"(, "reasoning": "t", "reasoning_content": null)", ""), "t");
  EXPECT_EQ(told_by(R"(, "reasoning": null)", ""), "");
  try {
    told_by("", R"(, "documents": "A")");
    ADD_FAILURE();
  } catch (const serve::ApiError& e) {
    EXPECT_EQ(e.param, "documents");
  }
}

TEST(ChatFields, AnEffortIsAText) {
  for (const std::string wrong : {"\"\"", "3", "[\"low\"]", "true"}) {
    try {
      told(", \"reasoning_effort\": " + wrong);
      ADD_FAILURE() << wrong;
    } catch (const serve::ApiError& e) {
      EXPECT_EQ(e.status, 400);
      EXPECT_EQ(e.param, "reasoning_effort");
      EXPECT_EQ(e.message,
                R"(reasoning_effort must be a text such as "none", "low" or "high", not )" + wrong);
    }
  }
}

}  // namespace
}  // namespace moe::test::chat_fields_test
