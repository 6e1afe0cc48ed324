// Where a reply ends by the fields that vLLM has for it, and which tokens stand in it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "serve/request.h"
#include "support/served.h"

namespace moe::test::ends_test {
namespace {

// Nothing but the letter A is written.
const Json kLetters = {{"prompt", "Once"}, {"max_tokens", 8}, {"logit_bias", {{"65", 100}}}};

struct Reply {
  std::string text, finish;
  Json reason;
  int64_t tokens;
};

Reply written(ServedModel& s, const Json& more) {
  const Json reply = s.ask("/v1/completions", with(kLetters, more));
  const Json& choice = reply["choices"][0];
  return {choice["text"], choice["finish_reason"], choice["stop_reason"],
          reply["usage"]["completion_tokens"]};
}

TEST(Ends, ATokenThatIsNamedEndsTheReply) {
  ServedModel s;
  const Reply plain = written(s, {{"stop_token_ids", {66, 65}}});
  EXPECT_EQ(plain.text, "");
  EXPECT_EQ(plain.finish, "stop");
  EXPECT_EQ(plain.reason, 65);
  EXPECT_EQ(plain.tokens, 1);
  const Reply kept = written(s, {{"stop_token_ids", {65}}, {"include_stop_str_in_output", true}});
  EXPECT_EQ(kept.text, "A");
  EXPECT_EQ(kept.finish, "stop");
  EXPECT_EQ(written(s, {{"stop_token_ids", {66}}}).text, "AAAAAAAA");
}

TEST(Ends, AStopStaysWhereItIsAsked) {
  ServedModel s;
  EXPECT_EQ(written(s, {{"stop", "AA"}}).text, "");
  const Reply kept = written(s, {{"stop", "AA"}, {"include_stop_str_in_output", true}});
  EXPECT_EQ(kept.text, "AA");
  EXPECT_EQ(kept.finish, "stop");
  EXPECT_EQ(kept.reason, "AA");
  EXPECT_EQ(kept.tokens, 2);
}

TEST(Ends, NothingEndsAReplyBeforeItHasEnoughTokens) {
  ServedModel s;
  const Reply by_text = written(s, {{"stop", "A"}, {"min_tokens", 3}});
  EXPECT_EQ(by_text.text, "AAA");
  EXPECT_EQ(by_text.reason, "A");
  EXPECT_EQ(by_text.tokens, 4);
  const Reply by_token = written(s, {{"stop_token_ids", {65}}, {"min_tokens", 3}});
  EXPECT_EQ(by_token.reason, 65);
  EXPECT_EQ(by_token.tokens, 4) << "three others first";
}

TEST(Ends, WhatCannotBeIsRefusedByName) {
  ServedModel s;
  for (const auto& [field, value] : {std::pair<const char*, Json>{"stop_token_ids", {256}},
                                     {"stop_token_ids", {-1}},
                                     {"stop_token_ids", "A"},
                                     {"min_tokens", 9},
                                     {"min_tokens", -1},
                                     {"include_stop_str_in_output", "yes"},
                                     {"skip_special_tokens", 2}}) {
    const HttpReply reply = s.post("/v1/completions", with(kLetters, {{field, value}}));
    EXPECT_EQ(reply.status, 400) << field;
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], field);
  }
}

// In vLLM's form the same numbers as in OpenAI's.
TEST(Ends, LogProbabilitiesOfThePromptAreToldByIds) {
  ServedModel s;
  const Json ask = {{"prompt", {{72, 101, 108, 108, 111}}}, {"max_tokens", 1}, {"seed", 1}};
  const Json echoed = s.ask("/v1/completions", with(ask, {{"echo", true}, {"logprobs", 2}}));
  const Json told = s.ask("/v1/completions", with(ask, {{"prompt_logprobs", 2}}));
  const Json& list = told["choices"][0]["prompt_logprobs"];
  const Json& same = echoed["choices"][0]["logprobs"];
  ASSERT_EQ(list.size(), 5u);
  EXPECT_EQ(list[0], nullptr);
  for (size_t i = 1; i < list.size(); ++i) {
    const Json& own = list[i][i == 1 ? "101" : i == 4 ? "111" : "108"];
    EXPECT_EQ(own["logprob"], same["token_logprobs"][i]) << i;
    EXPECT_EQ(own["decoded_token"], same["tokens"][i]);
    const auto rank = own["rank"].get<int64_t>();
    EXPECT_GE(rank, 1);
    EXPECT_EQ(list[i].size(), rank <= 2 ? 2u : 3u);
    EXPECT_EQ(list[i].size(), same["top_logprobs"][i].size());
  }
  EXPECT_EQ(told["choices"][0]["logprobs"], nullptr);
  const Json chat =
      s.ask("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
                                     {"max_tokens", 1},
                                     {"prompt_logprobs", 0}});
  EXPECT_EQ(chat["prompt_logprobs"].size(), chat["usage"]["prompt_tokens"].get<size_t>());
  EXPECT_EQ(chat["prompt_logprobs"][1].size(), 1u);
  EXPECT_EQ(s.post("/v1/completions", with(ask, {{"prompt_logprobs", 1}, {"stream", true}})).status,
            400);
}

TEST(Ends, TheTokensOfADialogueAreThoseOfItsPrompt) {
  ServedModel s;
  const Json talk = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
  const std::string prompt = s.ask("/apply-template", talk)["prompt"];
  EXPECT_EQ(s.ask("/tokenize", talk)["tokens"],
            s.ask("/tokenize", {{"content", prompt}})["tokens"]);
  const Json open = s.ask(
      "/tokenize", with(talk, {{"add_generation_prompt", false}, {"return_token_strs", true}}));
  EXPECT_LT(open["count"].get<size_t>(), prompt.size());
  EXPECT_EQ(open["token_strs"].size(), open["count"].get<size_t>());
  EXPECT_EQ(open["token_strs"][0], "<");
}

// Bytes, the mark that ends ChatML's messages and another, and a word that is looked for first.
struct Marked {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Model> model;
  serve::Served served;

  explicit Marked(const ChatTemplate& chat) {
    ModelConfig config = plain_config();
    config.vocab = 260;
    model = fresh(config);
    Json json = parse_json(make_tokenizer("bytes")->to_json(), "t");
    json["added_tokens"] = {{{"id", 256}, {"content", "<|im_end|>"}, {"special", true}},
                            {{"id", 257}, {"content", "<x>"}, {"special", true}},
                            {{"id", 258}, {"content", "<y>"}, {"special", false}}};
    tokenizer = parse_tokenizer(json.dump(), "t.json");
    tokenizer->set_special({.eos = 257});
    served = {.name = "m",
              .model = model.get(),
              .tokenizer = tokenizer.get(),
              .chat = &chat,
              .context = 512,
              .slots = 2,
              .moe_layers = {0, 1}};
  }
  GenerateOptions completion(const Json& more) const {
    return serve::read_completion(with({{"prompt", "Hi"}}, more).dump(), served).texts[0].options;
  }
  GenerateOptions chat(const Json& more) const {
    const Json body = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
    return serve::read_chat(with(body, more).dump(), served).texts[0].options;
  }
};
using Ids = std::vector<int32_t>;

TEST(Ends, SpecialTokensAreLeftOutUnlessTheyAreAskedFor) {
  const Marked m(chatml());
  for (const Json& same : {Json::object(), Json{{"skip_special_tokens", true}},
                           Json{{"skip_special_tokens", nullptr}}}) {
    EXPECT_EQ(m.completion(same).rules.hidden, (Ids{256, 257}));
    EXPECT_EQ(m.chat(same).rules.hidden, (Ids{256, 257}));
  }
  const Json shown = {{"skip_special_tokens", false}};
  EXPECT_EQ(m.completion(shown).rules.hidden, Ids());
  EXPECT_EQ(m.chat(shown).rules.hidden, Ids());
  const ChatTemplate thinks(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{# <think> </think> #}",
      {});
  EXPECT_EQ(Marked(thinks).chat(Json::object()).rules.hidden, Ids()) << "some may be its tags";
}

TEST(Ends, TheEndOfATextIsKeptAsVllmKeepsIt) {
  const Marked m(chatml());
  const Json kept = {{"include_stop_str_in_output", true},
                     {"stop", {"a", "b"}},
                     {"stop_token_ids", {65, 256, 257}}};
  EXPECT_EQ(m.completion(kept).rules.kept_ids, Ids{65}) << "the others are special";
  EXPECT_EQ(m.completion(with(kept, {{"skip_special_tokens", false}})).rules.kept_ids,
            (Ids{65, 256, 257}));
  EXPECT_EQ(m.completion(kept).rules.kept_stops, 2u);
  EXPECT_EQ(m.chat(kept).rules.kept_stops, 2u) << "not those of the template";
  EXPECT_GT(m.chat(kept).stop.size(), 2u);
  EXPECT_EQ(m.completion({{"stop_token_ids", {65}}}).rules.kept_ids, Ids());
}

TEST(Ends, AnEchoIsThePromptAsItCame) {
  Marked m(chatml());
  m.tokenizer->set_special({.bos = 256, .eos = 257, .add_bos = true});
  const auto read = [&](const Json& prompt) {
    return serve::read_completion(Json{{"prompt", prompt}, {"echo", true}}.dump(), m.served);
  };
  const serve::ParsedRequest text = read("Hi");
  EXPECT_EQ(text.texts[0].prompt, (Ids{256, 'H', 'i'}));
  EXPECT_EQ(text.echo[0], "Hi");
  EXPECT_EQ(read(Json({256, 72})).echo[0], "<|im_end|>H") << "of ids what they say";
  const serve::ParsedRequest both = read(Json({"a", "b"}));
  ASSERT_EQ(both.echo.size(), 2u);
  EXPECT_EQ(both.echo[1], "b");
}

TEST(Ends, WhatBeginsATextIsThereAsItIsAsked) {
  Marked m(chatml());
  m.tokenizer->set_special({.bos = 257, .add_bos = true});
  const auto completion = [&](const Json& more) {
    return serve::read_completion(with({{"prompt", "H"}}, more).dump(), m.served).texts[0].prompt;
  };
  EXPECT_EQ(completion(Json::object()), (Ids{257, 'H'}));
  EXPECT_EQ(completion({{"add_special_tokens", false}}), Ids{'H'});
  const auto first_of_chat = [&](const Json& more) {
    const Json body = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
    return serve::read_chat(with(body, more).dump(), m.served).texts[0].prompt.at(0);
  };
  EXPECT_NE(first_of_chat(Json::object()), 257);
  EXPECT_EQ(first_of_chat({{"add_special_tokens", true}}), 257);
}

TEST(Ends, AChatsMarksEndItTooEarlyAsTheTokenizersEndDoes) {
  const Marked m(chatml());
  const Json least = {{"min_tokens", 2}, {"stop_token_ids", {65}}};
  EXPECT_EQ(m.completion(least).sampler.ends, (Ids{257, 65}));
  EXPECT_EQ(m.chat(least).sampler.ends, (Ids{256, 257, 65}));
  EXPECT_EQ(m.chat({{"ignore_eos", true}}).sampler.logit_bias.size(), 2u);
  EXPECT_EQ(m.completion({{"ignore_eos", true}}).sampler.logit_bias.size(), 1u);
}

}  // namespace
}  // namespace moe::test::ends_test
