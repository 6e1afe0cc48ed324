// Replies as they are written down: calls of tools whole and in a stream, tokens that are parts of
// characters, and what log-probabilities and routing look like.
#include "serve/reply.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "serve/base64.h"
#include "support/tiny_model.h"
#include "text/chat.h"

namespace moe::test::reply_test {
namespace {

using serve::Choice;
using serve::ReplyWriter;

// Qwen's way to call tools, as its template tells.
constexpr const char* kHermes =
    "{% if tools %}<tools>{{ tools | tojson }}</tools> answer in <tool_call>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

const ThoughtTags* const kTags = thought_tags("<think>");

struct Fixture {
  std::unique_ptr<Model> model = fresh(plain_config());
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("bytes");
  ChatTemplate chat{kHermes, {}};
  serve::Served served{.name = "m",
                       .model = model.get(),
                       .tokenizer = tokenizer.get(),
                       .chat = &chat,
                       .context = 32,
                       .slots = 2,
                       .moe_layers = {0, 1}};

  ReplyWriter writer(serve::ReplyForm form) { return {served, form, {"id", 5}}; }
};

Choice ended(const std::string& text) {
  Choice choice;
  choice.text = text;
  choice.end.finish = "stop";
  choice.ended = true;
  return choice;
}

constexpr const char* kCall =
    "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";

TEST(Reply, CallsOfToolsAreTakenOut) {
  Fixture f;
  const Json whole = f.writer({.chat = true, .tools = true}).whole({ended(kCall)}, {}, 1);
  const Json& choice = whole["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "Let me see.");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
  const Json& call = choice["message"]["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"]["name"], "f");
  EXPECT_EQ(Json::parse(call["function"]["arguments"].get<std::string>()), Json({{"a", 1}}));
  // Where nobody offered tools it is a text like any other.
  const Json plain = f.writer({.chat = true}).whole({ended(kCall)}, {}, 1);
  EXPECT_EQ(plain["choices"][0]["message"]["content"], kCall);
  EXPECT_EQ(plain["choices"][0]["finish_reason"], "stop");
}

// Whatever the model writes behind it.
TEST(Reply, OnlyTheFirstCallIsToldWhereOneIsAskedFor) {
  Fixture f;
  const std::string text =
      std::string(kCall) + "\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
  for (const bool one : {false, true}) {
    const serve::ReplyForm form = {.chat = true, .tools = true, .one_call = one};
    const Json whole = f.writer(form).whole({ended(text)}, {}, 1)["choices"][0];
    const Json& calls = whole["message"]["tool_calls"];
    ASSERT_EQ(calls.size(), one ? 1u : 2u);
    EXPECT_EQ(calls[0]["function"]["name"], "f");
    EXPECT_EQ(whole["message"]["content"], "Let me see.");
    EXPECT_EQ(whole["finish_reason"], "tool_calls");
    Choice choice = ended(text);
    const Json last = f.writer(form).chunk(choice, "")["choices"][0];
    EXPECT_EQ(last["delta"]["tool_calls"], calls);
    EXPECT_EQ(last["finish_reason"], "tool_calls");
  }
}

// Of a list the first one is whole before the list is.
TEST(Reply, EndsWithTheFirstCallWhereOneIsAskedFor) {
  Fixture f;
  f.chat = ChatTemplate(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{# <tool_calls> #}",
      {});
  const std::string until = "Hm. <tool_calls>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}";
  for (const bool stream : {false, true}) {
    const ReplyWriter writer =
        f.writer({.chat = true, .stream = stream, .tools = true, .one_call = true});
    Choice choice;
    choice.first_call = writer.first_call();
    ASSERT_NE(choice.first_call, nullptr);
    EXPECT_FALSE(choice.first_call->add(until.substr(0, until.size() - 1)));
    EXPECT_TRUE(choice.first_call->add(until.substr(until.size() - 1)));
    choice.text = until;
    choice.end.finish = "interrupted";
    choice.ended = true;
    const Json json = (stream ? writer.chunk(choice, "") : writer.whole({choice}, {}, 1));
    const Json& told = json["choices"][0];
    const Json& message = told[stream ? "delta" : "message"];
    EXPECT_EQ(told["finish_reason"], "tool_calls");
    EXPECT_EQ(message["content"], "Hm.");
    ASSERT_EQ(message["tool_calls"].size(), 1u);
    EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
  }
  EXPECT_EQ(f.writer({.chat = true, .tools = true}).first_call(), nullptr);
  EXPECT_EQ(f.writer({.chat = true, .one_call = true}).first_call(), nullptr);
  EXPECT_EQ(f.writer({.chat = true, .tools = true, .forced = true, .one_call = true}).first_call(),
            nullptr);
}

// The tool's schema tells what bare text is.
TEST(Reply, ArgumentsOfBareTextAreWhatTheToolSays) {
  Fixture f;
  f.chat = ChatTemplate(std::string(kHermes) + "{# <parameter= #}", {});
  const std::string text =
      "<tool_call>\n<function=f>\n<parameter=a>\n5\n</parameter>\n</function>\n</tool_call>";
  for (const auto& [kind, value] : {std::pair<unsigned, Json>{kTextArgument, "5"},
                                    std::pair<unsigned, Json>{kWholeArgument, 5}}) {
    const Json whole = f.writer({.chat = true, .tools = true, .arguments = {{"f", {{"a", kind}}}}})
                           .whole({ended(text)}, {}, 1);
    const Json& call = whole["choices"][0]["message"]["tool_calls"][0]["function"];
    EXPECT_EQ(Json::parse(call["arguments"].get<std::string>()), Json({{"a", value}}));
  }
}

TEST(Reply, CallsInAThoughtThatThePromptOpenedAreNone) {
  Fixture f;
  const std::string text = std::string(kCall) + "\n</think>\nHi";
  const Json whole =
      f.writer({.chat = true, .tools = true, .opened = kTags}).whole({ended(text)}, {}, 1);
  EXPECT_EQ(whole["choices"][0]["message"]["reasoning_content"], kCall)
      << "though the template tells of no tags";
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "Hi");
  EXPECT_FALSE(whole["choices"][0]["message"].contains("tool_calls"));
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
}

// However the text comes, what was shown is the content, and the calls come last.
TEST(Reply, AStreamHoldsBackWhatMayBeACall) {
  Fixture f;
  const std::string text = kCall;
  for (const size_t step : {1, 3, 7, 100}) {
    const ReplyWriter writer = f.writer({.chat = true, .stream = true, .tools = true});
    Choice choice;
    std::string shown;
    Json last;
    const auto take = [&] {
      const Json chunk = writer.chunk(choice, "");
      if (chunk.is_null()) return;
      shown += chunk["choices"][0]["delta"].value("content", "");
      last = chunk["choices"][0];
    };
    for (size_t at = 0; at < text.size(); at += step) {
      choice.text += text.substr(at, step);
      take();
    }
    choice.end.finish = "stop";
    choice.ended = true;
    take();
    EXPECT_EQ(shown, "Let me see.") << "in steps of " << step;
    EXPECT_EQ(last["finish_reason"], "tool_calls");
    EXPECT_EQ(last["delta"]["tool_calls"][0]["index"], 0);
    EXPECT_EQ(last["delta"]["tool_calls"][0]["function"]["name"], "f");
  }
}

TEST(Reply, ATextThatOnlyLookedLikeACallIsShown) {
  Fixture f;
  const ReplyWriter writer = f.writer({.chat = true, .stream = true, .tools = true});
  Choice choice;
  choice.text = "a <tool";
  std::string shown = writer.chunk(choice, "")["choices"][0]["delta"].value("content", "");
  EXPECT_EQ(shown, "a");
  choice.text += "s are there";
  choice.end.finish = "stop";
  choice.ended = true;
  shown += writer.chunk(choice, "")["choices"][0]["delta"].value("content", "");
  EXPECT_EQ(shown, "a <tools are there");
}

// As gpt-oss writes: of whatever is parsed for its channels, with tools or without.
constexpr const char* kHarmony =
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>"
    "{% endif %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% else %}"
    "<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}";

TEST(Reply, ThoughtsInAChannelComeApart) {
  Fixture f;
  f.chat = ChatTemplate(kHarmony, {});
  const std::string text =
      "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>4";
  const Json message =
      f.writer({.chat = true}).whole({ended(text)}, {}, 1)["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "Easy.");
  EXPECT_EQ(message["content"], "4");
  EXPECT_FALSE(message.contains("tool_calls"));
  EXPECT_EQ(f.writer({}).whole({ended(text)}, {}, 1)["choices"][0]["text"], text)
      << "a completion is the text as it stands";
  for (const size_t step : {1, 5, 200}) {
    const ReplyWriter writer = f.writer({.chat = true, .stream = true});
    Choice choice;
    std::string content, thought;
    Json last;
    for (size_t at = 0; at < text.size() + step; at += step) {
      choice.ended = at >= text.size();
      choice.end.finish = "stop";
      if (!choice.ended) choice.text += text.substr(at, step);
      const Json chunk = writer.chunk(choice, "");
      if (chunk.is_null()) continue;
      last = chunk["choices"][0];
      EXPECT_TRUE(content.empty() || !last["delta"].contains("reasoning_content"));
      content += last["delta"].value("content", "");
      thought += last["delta"].value("reasoning_content", "");
    }
    EXPECT_EQ(content, "4") << "in steps of " << step;
    EXPECT_EQ(thought, "Easy.") << "in steps of " << step;
    EXPECT_EQ(last["finish_reason"], "stop");
  }
}

TEST(Reply, ACallInAChannelEndsAStream) {
  Fixture f;
  f.chat = ChatTemplate(kHarmony, {});
  const ReplyWriter writer = f.writer({.chat = true, .stream = true, .tools = true});
  Choice choice =
      ended("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}");
  const Json last = writer.chunk(choice, "")["choices"][0];
  EXPECT_EQ(last["finish_reason"], "tool_calls");
  EXPECT_EQ(last["delta"]["content"], "");
  EXPECT_EQ(last["delta"]["tool_calls"][0]["function"]["name"], "f");
  // One that had to come was begun by the prompt.
  const Json forced = f.writer({.chat = true, .tools = true, .forced = true, .call_name = "g"})
                          .whole({ended("{\"b\": 2}")}, {}, 1)["choices"][0];
  EXPECT_EQ(forced["message"]["tool_calls"][0]["function"]["name"], "g");
  EXPECT_EQ(forced["message"]["tool_calls"][0]["function"]["arguments"], "{\"b\":2}");
  EXPECT_EQ(forced["message"]["content"], nullptr);
}

// What goes on is read as what its message opened: its words are no header.
TEST(Reply, GoesOnInsideAMessage) {
  Fixture f;
  f.chat = ChatTemplate(kHarmony, {});
  const serve::ReplyForm form = {
      .chat = true, .role = "user", .before = "Once", .begun = "<|channel|>final<|message|>"};
  const std::string rest = " to be";
  const Json message =
      f.writer(form).whole({ended(form.begun + rest)}, {}, 1)["choices"][0]["message"];
  EXPECT_EQ(message["role"], "user");
  EXPECT_EQ(message["content"], "Once to be");
  Choice choice;
  choice.text = form.begun;
  const ReplyWriter writer = f.writer(form);
  const Json first = writer.chunk(choice, "")["choices"][0]["delta"];
  EXPECT_EQ(first["role"], "user");
  EXPECT_EQ(first["content"], "Once");
  choice.text += rest;
  choice.end.finish = "stop";
  choice.ended = true;
  const Json last = writer.chunk(choice, "")["choices"][0]["delta"];
  EXPECT_EQ(last, Json({{"content", " to be"}}));
}

// As Qwen writes.
const std::string kThinking = std::string(kHermes) + "{# <think> </think> #}";

struct Parts {
  std::string thought, content;
  Json last;  // choice
};

// All that a stream in pieces of `step` bytes shows.
Parts streamed(const ReplyWriter& writer, const std::string& text, size_t step) {
  Parts parts;
  Choice choice;
  for (size_t at = 0; at < text.size() + step; at += step) {
    choice.ended = at >= text.size();
    choice.end.finish = "stop";
    if (!choice.ended) choice.text += text.substr(at, step);
    const Json chunk = writer.chunk(choice, "");
    if (chunk.is_null()) continue;
    parts.last = chunk["choices"][0];
    parts.content += parts.last["delta"].value("content", "");
    parts.thought += parts.last["delta"].value("reasoning_content", "");
  }
  return parts;
}

TEST(Reply, ThoughtsBetweenTagsComeApart) {
  Fixture f;
  f.chat = ChatTemplate(kThinking, {});
  const std::string rest = "\nEasy.\n</think>\n\nIt is 4.", text = "<think>" + rest;
  const Json message =
      f.writer({.chat = true}).whole({ended(text)}, {}, 1)["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "Easy.");
  EXPECT_EQ(message["content"], "It is 4.");
  EXPECT_EQ(f.writer({}).whole({ended(text)}, {}, 1)["choices"][0]["text"], text)
      << "a completion is the text as it stands";
  for (const bool tools : {false, true})
    for (const ThoughtTags* opened : {static_cast<const ThoughtTags*>(nullptr), kTags})
      for (size_t step = 1; step <= text.size(); ++step) {
        const Parts parts =
            streamed(f.writer({.chat = true, .stream = true, .tools = tools, .opened = opened}),
                     opened != nullptr ? rest : text, step);
        EXPECT_EQ(parts.thought, "Easy.") << "in steps of " << step;
        EXPECT_EQ(parts.content, "It is 4.") << "in steps of " << step;
        EXPECT_EQ(parts.last["finish_reason"], "stop");
      }
}

TEST(Reply, AThoughtThatNothingEndsIsAllThereIs) {
  Fixture f;
  f.chat = ChatTemplate(kThinking, {});
  Choice cut = ended("So far, so good");
  cut.end.finish = "length";
  const Json choice = f.writer({.chat = true, .opened = kTags}).whole({cut}, {}, 1)["choices"][0];
  EXPECT_EQ(choice["message"]["reasoning_content"], "So far, so good");
  EXPECT_EQ(choice["message"]["content"], "");
  EXPECT_EQ(choice["finish_reason"], "length");
  const Parts parts =
      streamed(f.writer({.chat = true, .stream = true, .opened = kTags}), cut.text + " </th", 4);
  EXPECT_EQ(parts.thought, "So far, so good </th");
  EXPECT_EQ(parts.content, "");
}

TEST(Reply, ACallStandsBehindAThought) {
  Fixture f;
  f.chat = ChatTemplate(kThinking, {});
  const std::string text = "<think>\nI call f.\n</think>\n\n" + std::string(kCall);
  const Json choice =
      f.writer({.chat = true, .tools = true}).whole({ended(text)}, {}, 1)["choices"][0];
  EXPECT_EQ(choice["message"]["reasoning_content"], "I call f.");
  EXPECT_EQ(choice["message"]["content"], "Let me see.");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const Parts parts = streamed(f.writer({.chat = true, .stream = true, .tools = true}), text, 3);
  EXPECT_EQ(parts.thought, "I call f.");
  EXPECT_EQ(parts.content, "Let me see.");
  EXPECT_EQ(parts.last["delta"]["tool_calls"][0]["function"]["name"], "f");
}

TEST(Reply, ThoughtsStayInTheContentWhereItIsAsked) {
  Fixture f;
  f.chat = ChatTemplate(kThinking, {});
  const std::string text = "<think>\nEasy.\n</think>\n\nIt is 4.";
  const serve::ReplyForm form{.chat = true, .stream = true, .thoughts_apart = false};
  const Json message = f.writer(form).whole({ended(text)}, {}, 1)["choices"][0]["message"];
  EXPECT_EQ(message["content"], text);
  EXPECT_FALSE(message.contains("reasoning_content"));
  EXPECT_EQ(streamed(f.writer(form), text, 3).content, text);
  EXPECT_EQ(streamed(f.writer(form), text, 3).thought, "");
}

TEST(Reply, ThoughtsAreLeftOutWhereNoneAreToBeTold) {
  Fixture f;
  f.chat = ChatTemplate(kThinking, {});
  const std::string text = "<think>\nEasy.\n</think>\n\nIt is 4.";
  const serve::ReplyForm form{.chat = true, .stream = true, .thoughts_told = false};
  const Json message = f.writer(form).whole({ended(text)}, {}, 1)["choices"][0]["message"];
  EXPECT_EQ(message["content"], "It is 4.");
  EXPECT_FALSE(message.contains("reasoning_content"));
  EXPECT_EQ(streamed(f.writer(form), text, 3).content, "It is 4.");
  EXPECT_EQ(streamed(f.writer(form), text, 3).thought, "");
}

// Over bytes each of them is a token.
TEST(Reply, TheUsageTellsTheTokensOfThoughts) {
  Fixture f;
  const auto usage = [&](const serve::ReplyForm& form, const std::string& text) {
    Choice choice = ended(text);
    for (const char byte : text) choice.all.ids.push_back(static_cast<unsigned char>(byte));
    choice.end.tokens = std::ssize(choice.all.ids);
    return f.writer(form).whole({choice, choice}, {}, 2)["usage"];
  };
  EXPECT_FALSE(usage({.chat = true}, "<think>a</think>b").contains("completion_tokens_details"))
      << "a model whose template tells of no thoughts";
  f.chat = ChatTemplate(kThinking, {});
  const auto thought = [&](const serve::ReplyForm& form, const std::string& text) {
    return usage(form, text)["completion_tokens_details"]["reasoning_tokens"];
  };
  EXPECT_EQ(thought({.chat = true}, "<think>a</think>b"), 2 * 16);
  EXPECT_EQ(thought({.chat = true, .opened = kTags}, "a</think>b"), 2 * 9);
  EXPECT_EQ(thought({.chat = true, .opened = kTags}, "ab"), 2 * 2);
  EXPECT_EQ(thought({.chat = true}, "ab"), 0);
  EXPECT_FALSE(usage({}, "<think>a</think>b").contains("completion_tokens_details"));
}

TEST(Reply, LogProbabilitiesInBothForms) {
  Fixture f;
  Choice choice = ended("\xc3");
  choice.all.logprobs = {{{0xc3, -0.5f}, {{0xc3, -0.5f}, {'a', -INFINITY}}}};
  choice.all.prompt_logprobs = {{{'b', -2.0f}, {}}};
  choice.prompt_ids = {'a', 'b'};
  const Json completion =
      f.writer({.echo = true, .logprobs = true}).whole({choice}, {"ab"}, 1)["choices"][0];
  EXPECT_EQ(completion["logprobs"]["tokens"], Json({"a", "b", "bytes:\\xc3"}));
  EXPECT_EQ(completion["logprobs"]["token_logprobs"], Json({nullptr, -2.0, -0.5}));
  EXPECT_EQ(completion["logprobs"]["text_offset"], Json({0, 1, 2}));
  EXPECT_EQ(completion["logprobs"]["top_logprobs"][2]["a"], -9999);
  const Json chat = f.writer({.chat = true, .logprobs = true}).whole({choice}, {}, 1);
  const Json& content = chat["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(content[0]["bytes"], Json({0xc3}));
  EXPECT_EQ(content[0]["top_logprobs"].size(), 2u);
}

// What the tokenizer puts before a prompt is no part of its text, and what is left out of the reply
// has no characters there.
TEST(Reply, OffsetsAreThoseOfTheText) {
  Fixture f;
  Choice choice = ended("c");
  choice.prompt_ids = {'<', 'a', 'b'};
  choice.all.prompt_logprobs = {{{'a', -1.0f}, {}}, {{'b', -1.0f}, {}}};
  choice.all.logprobs = {{{'#', -1.0f}, {}}, {{'c', -3.0f}, {{'x', -0.5f}}}};
  const serve::ReplyForm form = {.echo = true, .logprobs = true, .hidden = {'#'}};
  const Json logprobs = f.writer(form).whole({choice}, {"ab"}, 1)["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Json({"<", "a", "b", "#", "c"}));
  EXPECT_EQ(logprobs["text_offset"], Json({0, 0, 1, 2, 2}));
  EXPECT_EQ(logprobs["top_logprobs"][4], Json({{"c", -3.0}, {"x", -0.5}}))
      << "the one that was drawn is there, however likely others were";
}

// Over all chunks of a stream they are those of the whole reply.
TEST(Reply, LogProbabilitiesOfAStreamGoOn) {
  Fixture f;
  ReplyWriter writer = f.writer({.stream = true, .echo = true, .logprobs = true});
  Choice choice;
  choice.prompt_ids = {0xc3, 0xa4};  // one character in two tokens
  EXPECT_TRUE(writer.chunk(choice, "ä").is_null()) << "the prompt is not read yet";
  choice.all.prompt_logprobs = {{{0xa4, -2.0f}, {}}};
  const auto written = [&](int32_t id) {
    choice.all.ids.push_back(id);
    choice.text += static_cast<char>(id);
    choice.unsent_logprobs = {{{id, -1.0f}, {}}};
    return writer.chunk(choice, "ä")["choices"][0];
  };
  const Json first = written('b'), second = written('c');
  EXPECT_EQ(first["text"], "äb");
  EXPECT_EQ(first["logprobs"]["tokens"], Json({"bytes:\\xc3", "bytes:\\xa4", "b"}));
  EXPECT_EQ(first["logprobs"]["text_offset"], Json({0, 1, 1}));
  EXPECT_EQ(second["logprobs"]["tokens"], Json({"c"}));
  EXPECT_EQ(second["logprobs"]["text_offset"], Json({2}));
}

TEST(Reply, ShowsRoutingByTokenLayerAndChoice) {
  Fixture f;
  Choice choice = ended("b");
  choice.prompt_ids = {'a'};
  choice.all.routing = {{'a', 'b'}, {0, 1, 2, 3, 3, -1, 1, 0}, {.5, .5, .75, .25, 1, 0, .5, .25}};
  const Json json = f.writer({.routing = true}).whole({choice}, {}, 1)["choices"][0]["routing"];
  EXPECT_EQ(json["shape"], Json({2, 2, 2}));
  EXPECT_EQ(json["tokens"][0]["experts"], Json({{0, 1}, {2, 3}}));
  EXPECT_EQ(json["tokens"][1]["experts"], Json({{3}, {1, 0}}));
  EXPECT_EQ(json["tokens"][1]["weights"], Json({{1.0}, {0.5, 0.25}}));
  EXPECT_EQ(serve::from_base64(json["routed_experts"].get<std::string>()),
            choice.all.routing.experts);
}

}  // namespace
}  // namespace moe::test::reply_test
