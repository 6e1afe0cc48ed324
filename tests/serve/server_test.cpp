// A server as its clients see it: replies whole and in streams, many at once, refusals in OpenAI's
// form, routing shown and replayed, and its end.
#include "serve/server.h"

#include <algorithm>
#include <chrono>

#include "infer/generate.h"
#include "ops/ops.h"
#include "serve/base64.h"
#include "support/files.h"
#include "support/served.h"

namespace moe::test::server_test {
namespace {

const Json kOnce = {{"prompt", "Once upon a time"}, {"max_tokens", 12}, {"seed", 7}};

TEST(Server, WritesWhatGenerateWrites) {
  ServedModel s;
  const Json reply = s.ask("/v1/completions", kOnce);
  GenerateOptions options;
  options.max_tokens = 12;
  options.sampler = {.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 7};
  moe::Run run(2);
  const Generated expected = generate(*s.loaded.model, run, *s.loaded.tokenizer, "Once upon a time",
                                      options, [](const std::string&) { return true; });
  EXPECT_EQ(reply["choices"][0]["text"], expected.text);
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(reply["choices"][0]["logprobs"], nullptr);
  EXPECT_EQ(reply["object"], "text_completion");
  EXPECT_EQ(reply["model"], "tiny");
  EXPECT_EQ(reply["usage"]["prompt_tokens"], 16);
  EXPECT_EQ(reply["usage"]["completion_tokens"], 12);
  // Without a seed each reply is drawn anew.
  Json unseeded = kOnce;
  unseeded.erase("seed");
  EXPECT_NE(s.ask("/v1/completions", unseeded)["choices"][0]["text"],
            s.ask("/v1/completions", unseeded)["choices"][0]["text"]);
}

TEST(Server, TakesNoLongerTextsThanItsModelCan) {
  ModelConfig config = plain_config();  // of a context of 32
  serve::ServeOptions options;
  options.context = 64;
  EXPECT_EQ(context_for(config, options.context, false), 64);
  config.positions = Positions::learned;
  EXPECT_FAILS(context_for(config, options.context, false),
               "context is 64, but the model has learned positions for 32 tokens only");
  options.context = 0;
  EXPECT_EQ(context_for(config, options.context, false), 32);
}

TEST(Server, AStreamSaysTheSame) {
  ServedModel s;
  const std::string whole = s.ask("/v1/completions", kOnce)["choices"][0]["text"];
  const HttpReply reply =
      s.post("/v1/completions",
             with(kOnce, {{"stream", true}, {"stream_options", {{"include_usage", true}}}}));
  EXPECT_NE(reply.head.find("Content-Type: text/event-stream"), std::string::npos);
  const std::vector<Json> events = events_of(reply.body);
  ASSERT_GE(events.size(), 4u);
  std::string text;
  for (size_t i = 0; i + 1 < events.size(); ++i)
    text += events[i]["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(text, whole);
  EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(events.back()["choices"], Json::array());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 12);
}

TEST(Server, ChatsByTheTemplate) {
  ServedModel s;
  const Json messages = {{{"role", "system"}, {"content", "Be brief."}},
                         {{"role", "user"}, {"content", "Hello"}}};
  const std::string prompt = s.ask("/apply-template", {{"messages", messages}})["prompt"];
  EXPECT_EQ(prompt,
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
            "<|im_start|>assistant\n");
  const Json chat =
      s.ask("/v1/chat/completions", {{"messages", messages}, {"max_tokens", 12}, {"seed", 3}});
  EXPECT_EQ(chat["object"], "chat.completion");
  EXPECT_EQ(chat["choices"][0]["message"]["role"], "assistant");
  const Json text = s.ask("/v1/completions", {{"prompt", prompt}, {"max_tokens", 12}, {"seed", 3}});
  EXPECT_EQ(chat["choices"][0]["message"]["content"], text["choices"][0]["text"]);
  const std::vector<Json> events =
      events_of(s.post("/v1/chat/completions",
                       {{"messages", messages}, {"max_tokens", 12}, {"seed", 3}, {"stream", true}})
                    .body);
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
  // It goes when the prompt is accepted, before there is any text.
  EXPECT_EQ(events[0]["choices"][0]["delta"]["content"], "");
  std::string joined;
  for (const Json& event : events) joined += event["choices"][0]["delta"].value("content", "");
  EXPECT_EQ(chat["choices"][0]["message"]["content"], joined);
}

TEST(Server, SeveralPromptsAndChoices) {
  ServedModel s;
  const Json reply =
      s.ask("/v1/completions",
            with(kOnce, {{"prompt", {"Once upon a time", "The end"}}, {"n", 3}, {"echo", true}}));
  ASSERT_EQ(reply["choices"].size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(reply["choices"][i]["index"], i);
    const std::string prompt = i < 3 ? "Once upon a time" : "The end";
    const std::string text = reply["choices"][i]["text"];
    EXPECT_EQ(text.substr(0, prompt.size()), prompt);
    const Json alone =
        s.ask("/v1/completions", with(kOnce, {{"prompt", prompt}, {"seed", 7 + i % 3}}));
    EXPECT_EQ(alone["choices"][0]["text"], text.substr(prompt.size()));
  }
  EXPECT_EQ(reply["usage"]["prompt_tokens"], 16 + 7);
  EXPECT_EQ(reply["usage"]["completion_tokens"], 6 * 12);
}

// Each choice begins with its own prompt, once.
TEST(Server, AStreamEchoesEachPromptOnce) {
  ServedModel s;
  const Json ask =
      with(kOnce, {{"prompt", {"Once upon a time", "The end"}}, {"n", 2}, {"echo", true}});
  std::vector<std::string> streamed(4);
  for (const Json& event : events_of(s.post("/v1/completions", with(ask, {{"stream", true}})).body))
    for (const Json& choice : event["choices"])
      streamed.at(choice["index"].get<size_t>()) += choice["text"].get<std::string>();
  const Json whole = s.ask("/v1/completions", ask);
  for (size_t i = 0; i < streamed.size(); ++i)
    EXPECT_EQ(streamed[i], whole["choices"][i]["text"]) << i;
  EXPECT_TRUE(streamed[3].starts_with("The end"));
}

// A request names an adapter where it names the model; any other name is the model's.
TEST(Server, WritesWithTheAdapterThatIsNamed) {
  ServedModel plain, served({}, "", {"formal", "brief"});
  const auto written = [](ServedModel& by, const char* model) {
    const Json reply = by.ask("/v1/completions", {{"model", model},
                                                  {"prompt", "What is a router?"},
                                                  {"max_tokens", 24},
                                                  {"temperature", 0}});
    return std::pair(reply["model"].get<std::string>(),
                     reply["choices"][0]["text"].get<std::string>());
  };
  const auto none = written(served, "gpt-4"), formal = written(served, "formal"),
             brief = written(served, "brief");
  EXPECT_EQ(none.first, "tiny");
  EXPECT_EQ(formal.first, "formal");
  EXPECT_EQ(none, written(plain, "tiny"));
  EXPECT_NE(formal.second, none.second);
  EXPECT_NE(formal.second, brief.second);
  EXPECT_EQ(written(served, "formal"), formal);
  const Json models = Json::parse(served.get("/v1/models").body)["data"];
  ASSERT_EQ(models.size(), 3u);
  EXPECT_EQ(models[1]["id"], "formal");
  EXPECT_EQ(models[1]["parent"], "tiny");
  EXPECT_EQ(Json::parse(served.get("/v1/models/brief").body)["id"], "brief");
  EXPECT_EQ(served.get("/v1/models/none").status, 404);
}

TEST(Server, EndsWhereItIsAsked) {
  ServedModel s;
  const std::string text = s.ask("/v1/completions", kOnce)["choices"][0]["text"];
  // A character of one byte, as half of another could not be asked for.
  const auto found =
      std::find_if(text.begin() + 4, text.end(), [](char c) { return c > ' ' && c < 127; });
  ASSERT_NE(found, text.end());
  const std::string stop(1, *found);
  const Json reply = s.ask("/v1/completions", with(kOnce, {{"stop", {"never this", stop}}}));
  EXPECT_EQ(reply["choices"][0]["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "stop");
  const Json biased =
      s.ask("/v1/completions", with(kOnce, {{"logit_bias", {{"65", 100}}}, {"max_tokens", 4}}));
  EXPECT_EQ(biased["choices"][0]["text"], "AAAA");
}

TEST(Server, WritesByASchema) {
  ServedModel s;
  const Json schema = {{"type", "object"},
                       {"properties",
                        {{"b", {{"type", "integer"}, {"minimum", 10}, {"maximum", 99}}},
                         {"a", {{"enum", {"yes", "no"}}}}}},
                       {"required", {"a", "b"}},
                       {"additionalProperties", false}};
  const Json format = {{"type", "json_schema"},
                       {"json_schema", {{"name", "it"}, {"schema", schema}}}};
  for (int seed = 0; seed < 5; ++seed) {
    const Json reply = s.ask(
        "/v1/completions",
        {{"prompt", "Say"}, {"max_tokens", 200}, {"seed", seed}, {"response_format", format}});
    const Json value = Json::parse(reply["choices"][0]["text"].get<std::string>());
    EXPECT_TRUE(value["a"] == "yes" || value["a"] == "no") << value;
    EXPECT_GE(value["b"].get<int64_t>(), 10);
    EXPECT_LE(value["b"].get<int64_t>(), 99);
    EXPECT_EQ(reply["choices"][0]["finish_reason"], "stop");
  }
  const Json beside =
      s.ask("/v1/completions",
            {{"prompt", "Say"},
             {"max_tokens", 200},
             {"response_format", {{"type", "json_object"}, {"schema", {{"const", {{"a", 1}}}}}}}});
  EXPECT_EQ(Json::parse(beside["choices"][0]["text"].get<std::string>()), Json({{"a", 1}}));
  // Which is an object where the schema says nothing of its kind.
  for (const Json& untold : {Json::object(), Json{{"description", "x"}}}) {
    const Json object =
        s.ask("/v1/completions",
              {{"prompt", "Say"},
               {"max_tokens", 1},
               {"logit_bias", {{std::to_string('{'), -100}, {std::to_string('1'), 100}}},
               {"response_format", {{"type", "json_object"}, {"schema", untold}}}});
    EXPECT_EQ(object["choices"][0]["text"], "{") << untold;
  }
  const Json any =
      s.ask("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "Say"}}}},
                                     {"max_tokens", 30},
                                     {"seed", 1},
                                     {"response_format", {{"type", "json_object"}}}});
  EXPECT_EQ(any["choices"][0]["message"]["content"].get<std::string>().substr(0, 1), "{");
}

// A template that tells the form of calls by its mark.
std::string calling_template(const std::string& mark) {
  return "{% if tools %}{{ tools | tojson }} '" + mark +
         "'\n{% endif %}"
         "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
         "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
}
constexpr const char* kHermesMark = "<tool_call>";
constexpr const char* kLlama3Mark = "{\"name\": function name, \"parameters\": ";

// The arguments of the one call that had to come; tools of these names, all with `parameters`.
// What is allowed to end ends, and else a number comes where one may.
Json forced_arguments(ServedModel& s, const std::vector<std::string>& names,
                      const Json& parameters) {
  Json tools = Json::array();
  for (const std::string& name : names)
    tools.push_back(
        {{"type", "function"}, {"function", {{"name", name}, {"parameters", parameters}}}});
  const Json reply = s.ask("/v1/chat/completions",
                           {{"messages", {{{"role", "user"}, {"content", "Go"}}}},
                            {"tools", tools},
                            {"tool_choice", "required"},
                            {"logit_bias", {{std::to_string('}'), 100}, {std::to_string('0'), 90}}},
                            {"seed", 1}});
  if (!reply.contains("choices")) return nullptr;
  const Json calls = reply["choices"][0]["message"].value("tool_calls", Json::array());
  EXPECT_EQ(calls.size(), 1u) << reply;
  if (calls.size() != 1) return nullptr;
  return Json::parse(calls[0]["function"]["arguments"].get<std::string>());
}

// In each family's form the reply is a call, whatever the model would rather have said.
TEST(Server, CallsAToolWhereItHasTo) {
  for (const std::string mark :
       {kHermesMark, "[TOOL_CALLS]", kLlama3Mark, "<parameter=", "<|tool_call>"}) {
    ServedModel s({}, calling_template(mark));
    const auto tool = [](const std::string& name) {
      return Json{
          {"type", "function"},
          {"function",
           {{"name", name},
            {"parameters",
             {{"type", "object"},
              {"properties", {{"n", {{"type", "integer"}, {"minimum", 0}, {"maximum", 9}}}}},
              {"required", {"n"}},
              {"additionalProperties", false}}}}}};
    };
    Json body = {{"messages", {{{"role", "user"}, {"content", "Go"}}}},
                 {"tools", {tool("first"), tool("second")}},
                 {"tool_choice", "required"},
                 {"seed", 1}};
    const Json any = s.ask("/v1/chat/completions", body)["choices"][0];
    EXPECT_EQ(any["finish_reason"], "tool_calls") << mark << any;
    body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "second"}}}};
    const Json call = s.ask("/v1/chat/completions", body)["choices"][0]["message"]["tool_calls"][0];
    EXPECT_EQ(call["function"]["name"], "second");
    EXPECT_TRUE(Json::parse(call["function"]["arguments"].get<std::string>())["n"].is_number());
    body["stream"] = true;
    std::string content;
    Json streamed;
    for (const Json& event : events_of(s.post("/v1/chat/completions", body).body)) {
      content += event["choices"][0]["delta"].value("content", "");
      if (event["choices"][0]["delta"].contains("tool_calls"))
        streamed = event["choices"][0]["delta"]["tool_calls"][0];
    }
    EXPECT_EQ(content, "");
    EXPECT_EQ(streamed["function"], call["function"]);
    body["tool_choice"]["function"]["name"] = "third";
    EXPECT_EQ(s.post("/v1/chat/completions", body).status, 400);
    body["tool_choice"] = "none";
    body.erase("stream");
    EXPECT_FALSE(
        s.ask("/v1/chat/completions", body)["choices"][0]["message"].contains("tool_calls"));
  }
  ServedModel plain;
  EXPECT_EQ(
      plain
          .post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "Go"}}}},
                                         {"tool_choice", "required"}})
          .status,
      400);
}

// Nothing that nobody sees is written. The schema has the model write two calls, in a form whose
// calls stand in a JSON text as they are.
TEST(Server, StopsBehindTheFirstCallWhereOneIsAskedFor) {
  ServedModel s({}, calling_template("<function_calls>"));
  const std::string first = "<function_calls>f(a=1)",
                    both = first + "</function_calls><function_calls>g()</function_calls>";
  const Json body = {
      {"messages", {{{"role", "user"}, {"content", "Go"}}}},
      {"tools", Json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}})},
      {"response_format",
       {{"type", "json_schema"}, {"json_schema", {{"schema", {{"const", both}}}}}}},
      {"seed", 1}};
  const Json all = s.ask("/v1/chat/completions", body);
  ASSERT_EQ(all["choices"][0]["message"]["tool_calls"].size(), 2u) << all;
  EXPECT_EQ(all["usage"]["completion_tokens"], both.size() + 2) << "a byte each, and two quotes";
  const Json asked = with(body, {{"parallel_tool_calls", false}});
  const Json one = s.ask("/v1/chat/completions", asked);
  const Json& choice = one["choices"][0];
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u) << one;
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"],
            all["choices"][0]["message"]["tool_calls"][0]["function"]);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(one["usage"]["completion_tokens"], first.size() + 1);
  const std::vector<Json> events =
      events_of(s.post("/v1/chat/completions", with(asked, {{"stream", true}})).body);
  ASSERT_FALSE(events.empty());
  const Json& last = events.back()["choices"][0];
  EXPECT_EQ(last["finish_reason"], "tool_calls");
  ASSERT_EQ(last["delta"]["tool_calls"].size(), 1u);
  EXPECT_EQ(last["delta"]["tool_calls"][0]["function"],
            choice["message"]["tool_calls"][0]["function"]);
}

TEST(Server, ArgumentsAreAnObjectWhereTheirSchemaDoesNotSay) {
  ServedModel s({}, calling_template(kHermesMark));
  for (const Json& parameters : {Json::object(), Json(), Json{{"description", "x"}}})
    EXPECT_EQ(forced_arguments(s, {"f"}, parameters), Json::object()) << parameters;
}

// A $ref in the parameters of a tool leads from there, not from what a call is made of around them.
TEST(Server, ParametersReferWithinThemselves) {
  const Json digit = {{"type", "integer"}, {"minimum", 0}, {"maximum", 9}};
  const Json point = {{"type", "object"},
                      {"properties", {{"x", digit}}},
                      {"required", {"x"}},
                      {"additionalProperties", false}};
  const Json by_name = {{"$id", "https://example.com/point"},
                        {"$ref", "#/$defs/Point"},
                        {"$defs", {{"Point", point}}}};
  const Json to_itself = {
      {"type", "object"},
      {"properties", {{"n", digit}, {"o", {{"$ref", "#/properties/n"}}}, {"p", {{"$ref", "#"}}}}},
      {"required", {"n", "o"}},
      {"additionalProperties", false}};
  for (const char* mark : {kHermesMark, kLlama3Mark}) {
    ServedModel s({}, calling_template(mark));
    for (const std::vector<std::string>& names :
         {std::vector<std::string>{"first"}, std::vector<std::string>{"first", "second"}}) {
      EXPECT_EQ(forced_arguments(s, names, by_name), Json({{"x", 0}})) << mark;
      EXPECT_EQ(forced_arguments(s, names, to_itself), Json({{"n", 0}, {"o", 0}})) << mark;
    }
  }
}

// A template that opens a thought in the prompt, which a model of random weights does not end.
const std::string kOpensThought =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>"
    "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}{# <tool_call> #}";

TEST(Server, ThoughtsAreApartUnlessItIsAskedOtherwise) {
  const Json body = {
      {"messages", {{{"role", "user"}, {"content", "Go"}}}}, {"max_tokens", 20}, {"seed", 1}};
  const auto message = [](ServedModel& s, const Json& asked) {
    return s.ask("/v1/chat/completions", asked)["choices"][0]["message"];
  };
  serve::ServeOptions options;
  options.reasoning_format = "none";
  ServedModel s({}, kOpensThought), none(options, kOpensThought);
  const std::string text = message(none, body)["content"],
                    thought = message(s, body)["reasoning_content"];
  EXPECT_NE(thought, "");
  EXPECT_NE(text.find(thought), std::string::npos);
  EXPECT_EQ(message(s, body)["content"], "");
  EXPECT_FALSE(message(none, body).contains("reasoning_content"));
  EXPECT_EQ(message(s, with(body, {{"reasoning_format", "none"}})), message(none, body));
  EXPECT_EQ(message(none, with(body, {{"reasoning_format", "auto"}})), message(s, body));
  EXPECT_EQ(
      s.ask("/v1/chat/completions", body)["usage"]["completion_tokens_details"]["reasoning_tokens"],
      20);
  std::string streamed;
  for (const Json& event :
       events_of(s.post("/v1/chat/completions", with(body, {{"stream", true}})).body)) {
    streamed += event["choices"][0]["delta"].value("reasoning_content", "");
    EXPECT_EQ(event["choices"][0]["delta"].value("content", ""), "");
  }
  EXPECT_EQ(streamed, thought);
  const HttpReply wrong =
      s.post("/v1/chat/completions", with(body, {{"reasoning_format", "nine"}}));
  EXPECT_EQ(wrong.status, 400);
  EXPECT_EQ(Json::parse(wrong.body)["error"]["param"], "reasoning_format");
  options.reasoning_format = "nine";
  EXPECT_FAILS(validate(options), "reasoning_format");
}

TEST(Server, AThoughtIsSentBackToTheTemplate) {
  ServedModel s({}, kOpensThought);
  EXPECT_EQ(s.ask("/apply-template",
                  {{"messages",
                    {{{"role", "user"}, {"content", "q"}},
                     {{"role", "assistant"}, {"content", "a"}, {"reasoning_content", "hm"}},
                     {{"role", "user"}, {"content", "r"}}}}})["prompt"],
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>hm</think>a<|im_end|>\n"
            "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n<think>\n");
}

// A thought that the prompt opened ends before what has to come.
TEST(Server, WhatHasToComeIsNoThought) {
  ServedModel s({}, kOpensThought);
  const Json messages = {{{"role", "user"}, {"content", "Go"}}};
  const std::string prompt = s.ask("/apply-template", {{"messages", messages}})["prompt"];
  const Json digit = {{"type", "integer"}, {"minimum", 0}, {"maximum", 9}};
  const Json reply =
      s.ask("/v1/chat/completions",
            {{"messages", messages},
             {"seed", 1},
             {"response_format",
              {{"type", "json_schema"}, {"json_schema", {{"name", "it"}, {"schema", digit}}}}}});
  const Json& message = reply["choices"][0]["message"];
  EXPECT_TRUE(Json::parse(message["content"].get<std::string>()).is_number()) << message;
  EXPECT_FALSE(message.contains("reasoning_content"));
  EXPECT_EQ(reply["usage"]["prompt_tokens"], (prompt + "\n</think>\n\n").size());
  EXPECT_EQ(forced_arguments(s, {"f"}, Json::object()), Json::object());
}

// What lm-evaluation-harness asks.
TEST(Server, TellsLogProbabilitiesOfThePrompt) {
  ServedModel s;
  const Json reply = s.ask("/v1/completions", {{"prompt", {{72, 101, 108, 108, 111}}},
                                               {"max_tokens", 1},
                                               {"logprobs", 1},
                                               {"echo", true},
                                               {"temperature", 0},
                                               {"seed", 1234}});
  const Json& logprobs = reply["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"].size(), 6u);
  EXPECT_EQ(logprobs["tokens"][1], "e");
  EXPECT_EQ(logprobs["text_offset"][5], 5);
  ASSERT_EQ(logprobs["token_logprobs"].size(), 6u);
  EXPECT_EQ(logprobs["token_logprobs"][0], nullptr);
  EXPECT_LT(logprobs["token_logprobs"][1].get<double>(), 0);
  // The last one was drawn as the likeliest, so the two are one number.
  EXPECT_EQ(logprobs["top_logprobs"][5].begin().value(), logprobs["token_logprobs"][5]);
  const Json only = s.ask(
      "/v1/completions", {{"prompt", "Hello"}, {"max_tokens", 0}, {"logprobs", 0}, {"echo", true}});
  EXPECT_EQ(only["choices"][0]["text"], "Hello");
  EXPECT_EQ(only["choices"][0]["logprobs"]["token_logprobs"].size(), 5u);
  EXPECT_EQ(only["choices"][0]["logprobs"]["token_logprobs"][3], logprobs["token_logprobs"][3]);
}

TEST(Server, ShowsRoutingAndReplaysIt) {
  ServedModel s;
  const Json plain = s.ask("/v1/completions", kOnce);
  EXPECT_FALSE(plain["choices"][0].contains("routing"));
  const Json shown =
      s.ask("/v1/completions", with(kOnce, {{"routing", true}, {"return_routed_experts", true}}));
  const Json& choice = shown["choices"][0];
  EXPECT_EQ(choice["text"], plain["choices"][0]["text"]);
  const Json& routing = choice["routing"];
  EXPECT_EQ(routing["layers"], Json({0, 1}));
  EXPECT_EQ(routing["num_experts"], 4);
  EXPECT_EQ(routing["top_k"], 2);
  EXPECT_EQ(routing["prompt_tokens"], 16);
  EXPECT_EQ(routing["shape"], Json({27, 2, 2}));
  ASSERT_EQ(routing["tokens"].size(), 27u);
  EXPECT_EQ(routing["tokens"][0]["text"], "O");
  EXPECT_EQ(choice["routed_experts"], routing["routed_experts"]);
  std::vector<int32_t> numbers = serve::from_base64(routing["routed_experts"].get<std::string>());
  EXPECT_EQ(numbers[2], routing["tokens"][0]["experts"][1][0]);

  const auto replayed = [&](const std::vector<int32_t>& experts) {
    const Json replay = {{"routed_experts", serve::to_base64(experts)}, {"shape", {27, 2, 2}}};
    return s.ask("/v1/completions", with(kOnce, {{"replay", replay}}))["choices"][0]["text"];
  };
  EXPECT_EQ(plain["choices"][0]["text"], replayed(numbers));
  for (int32_t& expert : numbers) expert = (expert + 1) % 4;
  EXPECT_NE(replayed(numbers), plain["choices"][0]["text"]);
  // A stream brings the same tokens, one chunk later than their text.
  std::vector<Json> tokens;
  for (const Json& event : events_of(
           s.post("/v1/completions", with(kOnce, {{"routing", true}, {"stream", true}})).body))
    if (event["choices"][0].contains("routing"))
      for (const Json& token : event["choices"][0]["routing"]["tokens"]) tokens.push_back(token);
  EXPECT_EQ(Json(tokens), routing["tokens"]);
  const Json experts = Json::parse(s.get("/experts").body);
  EXPECT_EQ(experts["rows"].size(), 2u);
  EXPECT_GT(experts["rows"][0][0].get<int64_t>() + experts["rows"][0][1].get<int64_t>(), 0);
}

TEST(Server, ASecondRequestFindsWhatTheFirstRead) {
  ServedModel s;
  const std::string beginning(300, 'a');
  const Json body = {{"prompt", beginning + "b"}, {"max_tokens", 3}, {"seed", 1}};
  const Json first = s.ask("/v1/completions", body), again = s.ask("/v1/completions", body);
  EXPECT_EQ(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(again["usage"]["prompt_tokens_details"]["cached_tokens"], 256);
  EXPECT_EQ(again["choices"][0]["text"], first["choices"][0]["text"]);
}

// {field, value, what the message says}
TEST(Server, RefusesByNameInOpenAIsForm) {
  ServedModel s;
  const std::string far(1100, 'x');
  const std::vector<std::tuple<std::string, Json, std::string>> wrong = {
      {"prompt", 3, "prompt must be a text"},
      {"prompt", Json::array(), "prompt must be"},
      {"prompt", {{1, 2}, {3, 256}}, "has the id 256"},
      {"prompt", {{-1}}, "has the id -1"},
      {"prompt", "", "no tokens"},
      {"prompt", far, "takes texts of 1024 tokens"},
      {"max_tokens", -1, "max_tokens"},
      {"max_tokens", "many", "max_tokens"},
      {"temperature", -1, "temperature"},
      {"temperature", {{"a", 1}}, "temperature"},
      {"top_p", 2, "top_p"},
      {"n", 17, "\"n\""},
      {"stop", {1, 2}, "stop"},
      {"seed", 1.5, "seed"},
      {"logprobs", 21, "logprobs"},
      {"logit_bias", {{"999", 1}}, "'999' is no token id"},
      {"logit_bias", {{"1", 101}}, "-100 to 100"},
      {"stream", "yes", "stream"},
      {"stream_options", 1, "stream_options"},
      {"suffix", "end", "suffix is not supported"},
      {"response_format", "x", "response_format"},
      {"response_format", {{"type", "yaml"}}, "\"yaml\" is not known"},
      {"response_format", {{"type", "json_schema"}}, "json_schema"},
      {"response_format", {{"type", "json_object"}, {"schema", 1}}, "schema"},
      {"response_format",
       {{"type", "json_schema"}, {"json_schema", {{"schema", {{"pattern", "a"}}}}}},
       "#/pattern is not supported"},
      {"replay", {{"shape", {1, 2, 3}}, {"routed_experts", ""}}, "those of this model"},
      {"replay", {{"shape", {1, 2, 2}}, {"routed_experts", "%%%%"}}, "base64"},
      {"replay", {{"shape", {1, 2, 2}}, {"routed_experts", "AAAAAA=="}}, "do not make 1 tokens"}};
  for (const auto& [field, value, part] : wrong) {
    const HttpReply reply = s.post("/v1/completions", with(kOnce, {{field, value}}));
    EXPECT_EQ(reply.status, 400) << field << ": " << reply.body;
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_NE(error["message"].get<std::string>().find(part), std::string::npos) << error;
    EXPECT_EQ(error["type"], "invalid_request_error");
  }
  EXPECT_EQ(
      Json::parse(s.post("/v1/completions", with(kOnce, {{"top_p", 2}})).body)["error"]["param"],
      "top_p");
  HttpClient c(s.server->port());
  for (const char* body : {"{\"prompt\":", "[]", "\"\xff\xfe\"", "{\"prompt\": \"\xff\"}"}) {
    const HttpReply reply = c.ask("POST", "/v1/completions", body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_TRUE(Json::parse(reply.body)["error"]["message"].is_string());
  }
  EXPECT_EQ(c.ask("GET", "/v1/completions").status, 405);
  EXPECT_EQ(c.ask("GET", "/nothing").status, 404);
  EXPECT_EQ(c.ask("GET", "/v1/models/other").status, 404);
  // And none of it has harmed anything.
  EXPECT_EQ(s.ask("/v1/completions", kOnce)["choices"][0]["finish_reason"], "length");
}

// Not a 5xx, which OpenAI's clients would ask again.
TEST(Server, SaysThatItMakesNoEmbeddings) {
  ServedModel s;
  const HttpReply reply = s.post("/v1/embeddings", {{"input", "Hi"}, {"model", "tiny"}});
  EXPECT_EQ(reply.status, 404);
  const Json error = Json::parse(reply.body)["error"];
  EXPECT_EQ(error["type"], "not_found_error");
  const std::string message = error["message"];
  for (const char* part : {"text only", "no /v1/embeddings", "/v1/chat/completions", "/tokenize"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
  for (const char* part : {"/metrics", "did you mean", "\n"})
    EXPECT_EQ(message.find(part), std::string::npos) << message;
}

// Clients of Ollama's API, and base URLs with a part too few.
TEST(Server, NamesThePathThatIsMeant) {
  ServedModel s;
  const auto told = [&](const char* path) -> std::string {
    const HttpReply reply = s.post(path, {{"prompt", "Hi"}});
    EXPECT_EQ(reply.status, 404) << path;
    return Json::parse(reply.body)["error"]["message"];
  };
  EXPECT_EQ(told("/api/chat"),
            "there is no /api/chat here; this server has OpenAI's API, where /v1/chat/completions "
            "comes nearest");
  EXPECT_EQ(told("/chat/completions"),
            "there is no /chat/completions here; did you mean \"/v1/chat/completions\"?");
}

TEST(Server, OfADenseModelReplaysNothing) {
  ModelConfig config = ServedModel::served_config();
  config.routing = default_options(find_recipe("dense"), 1, 1, 0);
  ServedModel s({}, "", {}, config);
  for (const Json& shape : {Json{0, 0, 0}, Json{1, 2, 2}}) {
    const HttpReply reply = s.post(
        "/v1/completions", with(kOnce, {{"replay", {{"shape", shape}, {"routed_experts", ""}}}}));
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], "replay");
  }
}

// Models whose tables are padded have rows that stand for no text.
TEST(Server, KnowsNoTokensBeyondTheTokenizers) {
  ModelConfig config = ServedModel::served_config();
  config.vocab = 300;
  ServedModel s({}, "", {}, config);
  for (const Json& more : {Json{{"prompt", {299}}}, Json{{"prompt", {256}}, {"echo", true}},
                           Json{{"logit_bias", {{"299", 100}}}}}) {
    const HttpReply reply = s.post("/v1/completions", with(kOnce, more));
    EXPECT_EQ(reply.status, 400) << reply.body;
  }
  // Whatever their logits are, none of them is drawn.
  for (int seed = 0; seed < 4; ++seed)
    s.ask("/v1/completions", with(kOnce, {{"max_tokens", 64}, {"seed", seed}, {"n", 2}}));
  // Nor is one an alternative of what was.
  s.ask("/v1/completions", with(kOnce, {{"logprobs", 20}, {"echo", true}}));
  s.ask("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
                                 {"max_tokens", 12},
                                 {"seed", 7},
                                 {"logprobs", true},
                                 {"top_logprobs", 20}});
  const Json told = s.ask("/v1/completions", with(kOnce, {{"prompt_logprobs", 20}}));
  for (const Json& by_id : told["choices"][0]["prompt_logprobs"]) {
    if (by_id.is_null()) continue;  // the first token's
    EXPECT_GE(by_id.size(), 20u);
    for (const auto& [id, each] : by_id.items()) {
      EXPECT_LT(std::stoi(id), 256);
      EXPECT_LE(each["rank"], 256);
    }
  }
}

// A small body must not become a large request.
TEST(Server, RefusesWhatWouldMultiply) {
  ServedModel s;
  const auto refusal = [&](const Json& more) {
    const HttpReply reply = s.post("/v1/completions", with(kOnce, more));
    EXPECT_EQ(reply.status, 400);
    return Json::parse(reply.body)["error"]["message"].get<std::string>();
  };
  EXPECT_NE(refusal({{"stop", std::string(5000, 'x')}, {"n", 16}}).find("5000 bytes"),
            std::string::npos);
  EXPECT_NE(refusal({{"prompt", Json(65, "a")}, {"n", 16}}).find("1024 texts"), std::string::npos);
}

TEST(Server, KnowsItsTokens) {
  ServedModel s;
  const Json tokens = s.ask("/tokenize", {{"content", "Hi"}, {"with_pieces", true}})["tokens"];
  EXPECT_EQ(tokens, Json({{{"id", 72}, {"piece", "H"}}, {{"id", 105}, {"piece", "i"}}}));
  EXPECT_EQ(s.ask("/tokenize", {{"prompt", "Hi"}})["tokens"], Json({72, 105}));
  EXPECT_EQ(s.ask("/detokenize", {{"tokens", {72, 105}}})["content"], "Hi");
  EXPECT_EQ(s.post("/detokenize", {{"tokens", {72, 999}}}).status, 400);
  EXPECT_TRUE(Json::parse(s.get("/tokenizer_info").body)["chat_template"].is_string());
  const Json models = Json::parse(s.get("/v1/models").body);
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["meta"]["num_experts"], 4);
  EXPECT_EQ(Json::parse(s.get("/v1/models/tiny").body)["id"], "tiny");
  const std::string metrics = s.get("/metrics").body;
  EXPECT_NE(metrics.find("moe_requests_total{path=\"/tokenize\",status=\"200\"} 2"),
            std::string::npos)
      << metrics;
}

TEST(Server, ManyAtOnceAreEachWhatTheyAreAlone) {
  if (!ops::products_keep_row_bits(DType::f32))
    GTEST_SKIP() << "products here do not keep the bits of a row";
  serve::ServeOptions options;
  options.parallel = 6;
  ServedModel s(options);
  const auto body = [](int i) {
    return Json{{"prompt", std::string(static_cast<size_t>(1 + i * 17 % 150), 'a')},
                {"max_tokens", 10},
                {"seed", i},
                {"temperature", i % 2}};
  };
  std::vector<std::string> alone(24), together(24);
  for (int i = 0; i < 24; ++i)
    alone[static_cast<size_t>(i)] = s.ask("/v1/completions", body(i))["choices"][0]["text"];
  std::vector<std::thread> clients;
  for (int i = 0; i < 24; ++i)
    clients.emplace_back([&, i] {
      if (i % 4 == 0) {  // somebody who goes
        HttpClient c(s.server->port());
        const std::string text = with(body(i), {{"max_tokens", 400}}).dump();
        c.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
               std::to_string(text.size()) + "\r\n\r\n" + text);
        std::this_thread::sleep_for(std::chrono::milliseconds(i));
        c.close();
      }
      together[static_cast<size_t>(i)] = s.ask("/v1/completions", body(i))["choices"][0]["text"];
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(together, alone);
}

TEST(Server, SaysThatTooManyWait) {
  serve::ServeOptions options;
  options.parallel = 1;
  options.queue = 1;
  ServedModel s(options);
  const Json body = {{"prompt", "a"}, {"max_tokens", 200}, {"ignore_eos", true}, {"stream", true}};
  std::vector<std::unique_ptr<HttpClient>> clients;
  int refused = 0;
  for (int i = 0; i < 6; ++i) {
    clients.push_back(std::make_unique<HttpClient>(s.server->port()));
    const std::string text = body.dump();
    clients.back()->send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                         std::to_string(text.size()) + "\r\n\r\n" + text);
  }
  for (const auto& client : clients) {
    const HttpReply reply = client->receive();
    if (reply.status == 200) continue;
    ++refused;
    EXPECT_EQ(reply.status, 429) << reply.body;
    EXPECT_NE(reply.head.find("Retry-After: "), std::string::npos);
  }
  EXPECT_GT(refused, 0);
}

TEST(Server, DrainsBeforeItEnds) {
  ServedModel s;
  HttpClient c(s.server->port()), later(s.server->port());
  EXPECT_EQ(later.ask("GET", "/health").status, 200);
  const std::string text =
      Json{{"prompt", "a"}, {"max_tokens", 300}, {"ignore_eos", true}, {"stream", true}}.dump();
  c.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
         std::to_string(text.size()) + "\r\n\r\n" + text);
  ASSERT_TRUE(c.more());
  std::thread end([&] { s.server->drain(20); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const HttpReply reply = c.receive();
  EXPECT_EQ(events_of(reply.body).back()["choices"][0]["finish_reason"], "length");
  end.join();
  s.thread.join();
}

}  // namespace
}  // namespace moe::test::server_test
