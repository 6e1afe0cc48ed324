// What the fields of a chat completion ask of the engine and of the reply.
#include "serve/request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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

}  // namespace
}  // namespace moe::test::request_test
