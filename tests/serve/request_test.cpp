// What the fields of a chat completion ask of the engine and of the reply.
#include "serve/request.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "serve/api_error.h"
#include "support/served.h"
#include "support/tiny_model.h"
#include "text/chat.h"

namespace moe::test::request_test {
namespace {

struct Fixture {
  std::unique_ptr<Model> model = fresh(plain_config());
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("bytes");
  serve::Served served{.name = "m",
                       .model = model.get(),
                       .tokenizer = tokenizer.get(),
                       .chat = &chatml(),
                       .context = 512,
                       .slots = 2,
                       .moe_layers = {0, 1}};

  serve::ParsedRequest read(const Json& more) const {
    const Json body = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
    return serve::read_chat(with(body, more).dump(), served);
  }
};

TEST(Request, TheNewerNameOfMaxTokensStandsBeforeTheOlder) {
  const Fixture f;
  const auto tokens = [&](const Json& more) { return f.read(more).texts[0].options.max_tokens; };
  EXPECT_EQ(tokens(Json::object()), 512);
  EXPECT_EQ(tokens({{"max_tokens", 12}}), 12);
  EXPECT_EQ(tokens({{"max_completion_tokens", 5}}), 5);
  EXPECT_EQ(tokens({{"max_tokens", 12}, {"max_completion_tokens", 5}}), 5);
  EXPECT_EQ(tokens({{"max_tokens", 3}, {"max_completion_tokens", 6}}), 6);
  EXPECT_EQ(tokens({{"max_tokens", 3}, {"max_completion_tokens", nullptr}}), 3);
}

TEST(Request, OneCallIsToldWhereNoneMayComeBesideIt) {
  const Fixture f;
  EXPECT_FALSE(f.read(Json::object()).form.one_call);
  EXPECT_FALSE(f.read({{"parallel_tool_calls", true}}).form.one_call);
  EXPECT_TRUE(f.read({{"parallel_tool_calls", false}}).form.one_call);
}

TEST(Request, RefusesAFieldByItsName) {
  const Fixture f;
  for (const auto& [field, value] : {std::pair<std::string, Json>{"max_tokens", -1},
                                     {"max_completion_tokens", "many"},
                                     {"parallel_tool_calls", "no"},
                                     {"repetition_penalty", 0},
                                     {"modalities", {"text", "audio"}},
                                     {"modalities", "audio"},
                                     {"thinking", "off"},
                                     {"thinking", {{"type", "never"}}},
                                     {"enable_thinking", "no"},
                                     {"top_logprobs", 3},
                                     {"reasoning_effort", 3}}) {
    try {
      // Beside a value that stands before it.
      f.read(with({{"max_completion_tokens", 5}}, {{field, value}}));
      ADD_FAILURE() << field;
    } catch (const serve::ApiError& e) {
      EXPECT_EQ(e.status, 400);
      EXPECT_EQ(e.param, field);
    }
  }
}

// What a request asks for and does not get: its name, and a part of what has its place.
TEST(Request, RefusesWhatWouldBeMisread) {
  const Fixture f;
  const auto refused = [&](bool chat, const std::string& field, const Json& value) -> std::string {
    try {
      if (chat) f.read({{field, value}});
      else serve::read_completion(Json({{"prompt", "Hi"}, {field, value}}).dump(), f.served);
    } catch (const serve::ApiError& e) {
      EXPECT_EQ(e.status, 400);
      EXPECT_EQ(e.param, field);
      return e.message;
    }
    return "";
  };
  const std::vector<std::tuple<std::string, Json, std::string>> of_both = {
      {"guided_json", {{"type", "object"}}, "response_format"},
      {"guided_choice", {"yes", "no"}, "response_format"},
      {"structured_outputs", {{"regex", "a+"}}, "response_format"},
      {"grammar", "root ::= \"a\"", "response_format"},
      {"json_schema", Json::object(), "response_format"},
      {"bad_words", {"never"}, "logit_bias"},
      {"use_beam_search", true, "temperature 0"}};
  const std::vector<std::tuple<std::string, Json, std::string>> of_chats = {
      {"functions", Json::array({{{"name", "f"}}}), "send tools"},
      {"function_call", "auto", "send tools and tool_choice"},
      {"chat_template", "{{ messages }}", "the model's own template"},
      {"audio", {{"voice", "a"}}, "text only"},
      {"web_search_options", Json::object(), "nothing is searched here"}};
  for (const auto& [field, value, part] : of_both)
    for (const bool chat : {false, true})
      EXPECT_NE(refused(chat, field, value).find(part), std::string::npos) << field;
  for (const auto& [field, value, part] : of_chats)
    EXPECT_NE(refused(true, field, value).find(part), std::string::npos) << field;
  for (const bool chat : {false, true}) {
    EXPECT_NE(refused(chat, "best_of", 2).find("n says how many"), std::string::npos);
    EXPECT_EQ(refused(chat, "best_of", 1), "");
  }
  // What asks for nothing is no wish.
  for (const Json& nothing : {Json(), Json(false), Json(0), Json(""), Json::array()})
    for (const char* field : {"guided_json", "bad_words", "functions"})
      EXPECT_EQ(refused(true, field, nothing), "") << field << nothing;
  EXPECT_EQ(refused(true, "guided_json", Json::object()), "");
  EXPECT_EQ(refused(true, "structured_outputs", Json::object()), "");
  for (const bool chat : {false, true}) {
    EXPECT_EQ(refused(chat, "prompt_logprobs", nullptr), "");
    EXPECT_EQ(refused(chat, "prompt_logprobs", 0), "") << "the prompt's own tokens";
    EXPECT_NE(refused(chat, "prompt_logprobs", -1), "") << "the whole vocabulary";
  }
  for (const Json& nothing : {Json::array(), Json::object(), Json()})
    EXPECT_TRUE(f.read({{"logit_bias", nothing}}).texts[0].options.sampler.logit_bias.empty());
  EXPECT_EQ(refused(true, "function_call", "none"), "");
  EXPECT_EQ(refused(false, "suffix", false), "");
  EXPECT_NE(refused(true, "guided_regex", "none"), "") << "a word like any other";
  EXPECT_EQ(refused(true, "modalities", Json::array({"text"})), "");
}

// A wish that a slip of the finger would have passed over.
TEST(Request, RefusesANameThatIsNearlyOne) {
  const Fixture f;
  const auto refused = [&](bool chat, const Json& more) -> std::string {
    try {
      if (chat) f.read(more);
      else serve::read_completion(with({{"prompt", "Hi"}}, more).dump(), f.served);
    } catch (const serve::ApiError& e) {
      EXPECT_EQ(e.status, 400);
      EXPECT_EQ(e.param, more.begin().key());
      return e.message;
    }
    return "";
  };
  for (const bool chat : {false, true}) {
    EXPECT_EQ(refused(chat, {{"temprature", 0}}),
              "temprature is not known here; did you mean \"temperature\"?");
    EXPECT_NE(refused(chat, {{"max_token", 5}}).find("\"max_tokens\""), std::string::npos);
    EXPECT_NE(refused(chat, {{"maxTokens", 5}}).find("\"max_tokens\""), std::string::npos);
    EXPECT_NE(refused(chat, {{"Stream", true}}).find("\"stream\""), std::string::npos);
    for (const Json& passed_over : {Json{{"max_token", 5}, {"max_tokens", 6}},
                                    {{"temprature", 0}, {"temperature", nullptr}},
                                    {{"top_a", 0.5}},
                                    {{"models", {"a", "b"}}},
                                    {{"max_new_tokens", 5}},
                                    {{"user", "me"}, {"store", true}, {"metadata", "none"}}})
      EXPECT_EQ(refused(chat, passed_over), "") << passed_over;
  }
  EXPECT_NE(refused(true, {{"max_completion_token", 5}}).find("\"max_completion_tokens\""),
            std::string::npos);
}

Json talk(const char* role, const char* last) {
  return {
      {"messages", {{{"role", "user"}, {"content", "Hi"}}, {{"role", role}, {"content", last}}}}};
}

// As vLLM has it: the reply is what follows, and of the role of the last message.
TEST(Request, AReplyMayGoOnWithTheLastMessage) {
  const Fixture f;
  const auto prompt = [&](const serve::ParsedRequest& r) {
    return f.tokenizer->decode(r.texts[0].prompt);
  };
  const Json on = {{"continue_final_message", true}};
  const serve::ParsedRequest plain = f.read(with(talk("assistant", "Once"), on));
  EXPECT_TRUE(prompt(plain).ends_with("<|im_start|>assistant\nOnce"));
  EXPECT_EQ(plain.form.role, "assistant");
  EXPECT_EQ(plain.form.before, "");
  EXPECT_FALSE(plain.texts[0].options.stop.empty());
  const Json echo = with(on, {{"echo", true}});
  EXPECT_EQ(f.read(with(talk("assistant", "Once"), echo)).form.before, "Once");
  EXPECT_EQ(f.read(with(talk("user", "And you"), on)).form.role, "user");
  EXPECT_EQ(f.read(with(talk("assistant", "Once"), {{"echo", true}})).form.before, "Once");
  EXPECT_EQ(f.read(with(talk("user", "Once"), {{"echo", true}})).form.before, "");
  const serve::ParsedRequest thinks = f.read(with(talk("assistant", "<think>\nI"), on));
  ASSERT_NE(thinks.form.opened, nullptr);
  EXPECT_EQ(thinks.form.opened->close, "</think>");
}

// The model begins a message by itself, which its marks must not end.
TEST(Request, NoMessageIsBegunWhereNoneIsAskedFor) {
  const Fixture f;
  const serve::ParsedRequest r = f.read({{"add_generation_prompt", false}});
  EXPECT_TRUE(f.tokenizer->decode(r.texts[0].prompt).ends_with("Hi<|im_end|>\n"));
  EXPECT_EQ(r.form.role, "user");
  EXPECT_TRUE(r.texts[0].options.stop.empty());
  EXPECT_FALSE(f.read(Json::object()).texts[0].options.stop.empty());
}

TEST(Request, ASeedIsDrawnWhereNoneIsSaid) {
  const Fixture f;
  const auto seed = [&](const Json& more) { return f.read(more).texts[0].options.sampler.seed; };
  for (const Json& none : {Json::object(), Json{{"seed", nullptr}}, Json{{"seed", -1}}})
    EXPECT_NE(seed(none), seed(none)) << none;
  for (const int64_t said : {int64_t{0}, int64_t{7}, int64_t{-2}, INT64_MAX})
    EXPECT_EQ(seed({{"seed", said}}), static_cast<uint64_t>(said));
}

TEST(Request, BiasesAreAnObjectOrAListOfPairs) {
  const Fixture f;
  const auto biases = [&](const std::string& given) {
    return f.read(Json::parse(R"({"logit_bias": )" + given + "}"))
        .texts[0]
        .options.sampler.logit_bias;
  };
  using Biases = std::vector<std::pair<int32_t, float>>;
  EXPECT_EQ(biases(R"({"65": -2.5})"), (Biases{{65, -2.5f}}));
  EXPECT_EQ(biases("[[65, -2.5], [66, false]]"), (Biases{{65, -2.5f}, {66, -INFINITY}}));
  for (const char* wrong : {"[65]", "[[65]]", "[[\"A\", 1]]", "[[999, 1]]", "[[-1, 1]]",
                            "[[65, true]]", "[[65, 101]]", "5", R"({"65": true})"}) {
    try {
      biases(wrong);
      ADD_FAILURE() << wrong;
    } catch (const serve::ApiError& e) {
      EXPECT_EQ(e.param, "logit_bias") << wrong;
    }
  }
}

// Those that other servers give the same thing.
TEST(Request, TakesOtherNames) {
  const Fixture f;
  const auto penalty = [&](const Json& more) {
    return f.read(more).texts[0].options.sampler.repeat_penalty;
  };
  EXPECT_EQ(penalty(Json::object()), 1.0f);
  EXPECT_EQ(penalty({{"repetition_penalty", 1.5}}), 1.5f);
  EXPECT_EQ(penalty({{"repetition_penalty", 1.5}, {"repeat_penalty", 1.25}}), 1.25f);
  const auto tokens = [&](const Json& more) { return f.read(more).texts[0].options.max_tokens; };
  EXPECT_EQ(tokens({{"n_predict", 7}}), 7);
  EXPECT_EQ(tokens({{"n_predict", 7}, {"max_tokens", 3}}), 3);
  EXPECT_GT(tokens({{"n_predict", -1}}), 1000);
}

}  // namespace
}  // namespace moe::test::request_test
