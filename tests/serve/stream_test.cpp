// What keeps a stream open while nothing of the reply comes: comments, and Anthropic's pings.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "serve/server.h"
#include "support/served.h"

namespace moe::test::stream_test {
namespace {

// Longer than what a step reads of a prompt, so that steps go by before a token comes. The reply is
// all A.
const std::string kLong(1100, 'x');  // longer than a step
const Json kSix = {{"max_tokens", 6}, {"logit_bias", {{"65", 100}}}, {"stream", true}};
const Json kChat = with(kSix, {{"messages", {{{"role", "user"}, {"content", kLong}}}}});

serve::ServeOptions quiet_for(double seconds) {
  serve::ServeOptions options;
  options.quiet_seconds = seconds;
  return options;
}

// Of a model with room for it.
struct ServedLong : ServedModel {
  explicit ServedLong(double seconds) : ServedModel(quiet_for(seconds), "", {}, config()) {}
  static ModelConfig config() {
    ModelConfig config = served_config();
    config.context = 2048;
    return config;
  }
};

// Lines that begin with a colon are comments, which clients pass over; an empty line ends them, as
// it ends events. Gives the stream without them.
std::string without_comments(const std::string& body, int64_t& comments) {
  std::string rest;
  size_t at = 0;
  comments = 0;
  for (size_t end; (end = body.find("\n\n", at)) != std::string::npos; at = end + 2) {
    const std::string block = body.substr(at, end - at);
    if (!block.starts_with(':')) {
      rest += block + "\n\n";
      continue;
    }
    ++comments;
    EXPECT_EQ(block.find_first_of("\r\n"), std::string::npos) << "one line: " << block;
  }
  EXPECT_EQ(at, body.size()) << "the last block is whole";
  return rest;
}

std::string text_of(const std::vector<Json>& events) {
  std::string text;
  for (const Json& event : events)
    for (const Json& choice : event["choices"])
      text += choice.contains("text") ? choice["text"].get<std::string>()
                                      : choice["delta"].value("content", "");
  return text;
}

// Before each step it has been silent for as long as nothing.
TEST(Stream, SaysThatItGoesOnWhereNothingComes) {
  ServedLong soon(0), late(1e6);
  for (const auto& [path, asked] :
       {std::pair("/v1/chat/completions", kChat),
        std::pair("/v1/completions", with(kSix, {{"prompt", kLong}}))}) {
    const HttpReply reply = soon.post(path, asked);
    EXPECT_EQ(reply.status, 200);
    EXPECT_NE(reply.head.find("Content-Type: text/event-stream"), std::string::npos);
    int64_t comments = 0, none = 0;
    EXPECT_EQ(text_of(events_of(without_comments(reply.body, comments))), "AAAAAA");
    EXPECT_GE(comments, 2) << "one before the rest of the prompt is read, one before each token";
    EXPECT_EQ(text_of(events_of(without_comments(late.post(path, asked).body, none))), "AAAAAA");
    EXPECT_EQ(none, 0) << path;
  }
}

// The reply has not begun for the client before its first chunk, which says the role.
TEST(Stream, OfAChatBeginsWithTheRole) {
  ServedLong s(0);
  const std::string body = s.post("/v1/chat/completions", kChat).body;
  const size_t second = body.find("\n\n") + 2;
  EXPECT_TRUE(body.starts_with("data: ")) << body;
  EXPECT_NE(body.substr(0, second).find("\"role\":\"assistant\""), std::string::npos) << body;
  EXPECT_EQ(body[second], ':') << "the prompt is longer than a step";
}

TEST(Stream, OfMessagesHasEventsInPlaceOfComments) {
  for (const double seconds : {0.0, 1e6}) {
    ServedLong s(seconds);
    int64_t comments = 0, pings = 0;
    const std::string body = without_comments(s.post("/v1/messages", kChat).body, comments);
    EXPECT_EQ(comments, 0);
    const std::vector<Json> events = named_events_of(body);
    for (const Json& event : events) pings += event["type"] == "ping";
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(events[0]["type"], "message_start");
    EXPECT_EQ(events.back()["type"], "message_stop");
    if (seconds > 0) EXPECT_EQ(pings, 0);
    else EXPECT_GE(pings, 2);
  }
}

TEST(Stream, OfAResponseHasComments) {
  ServedLong s(0);
  int64_t comments = 0;
  const std::vector<Json> events = named_events_of(without_comments(
      s.post("/v1/responses", with(kSix, {{"input", kLong}, {"max_output_tokens", 6}})).body,
      comments));
  EXPECT_GE(comments, 2);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events[0]["type"], "response.created");
  EXPECT_EQ(events.back()["type"], "response.incomplete");
}

TEST(Stream, WaitsTenSecondsUnlessATestSaysOtherwise) {
  EXPECT_EQ(serve::ServeOptions().quiet_seconds, 10) << "as docs/server.md says";
}

}  // namespace
}  // namespace moe::test::stream_test
