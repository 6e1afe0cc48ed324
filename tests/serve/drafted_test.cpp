// A server with a draft model: whatever is asked for, its replies are those of one without.
#include "infer/memory_plan.h"
#include "ops/ops.h"
#include "serve/server.h"
#include "support/files.h"
#include "support/served.h"

namespace moe::test::drafted_test {
namespace {

const Json kOnce = {{"prompt", "Once upon a time"}, {"max_tokens", 40}};
const Json kSchema = {{"type", "object"},
                      {"properties",
                       {{"b", {{"type", "integer"}, {"minimum", 10}, {"maximum", 99}}},
                        {"a", {{"enum", {"yes", "no"}}}}}},
                      {"required", {"a", "b"}},
                      {"additionalProperties", false}};

std::vector<Json> completions() {
  return {
      kOnce,
      with(kOnce, {{"temperature", 0}}),
      with(kOnce, {{"logprobs", 2}, {"echo", true}}),
      with(kOnce, {{"routing", true}, {"return_routed_experts", true}}),
      with(kOnce, {{"stop", {"e", "t", "a"}}}),
      with(kOnce, {{"n", 3}, {"frequency_penalty", 0.5}}),
      with(kOnce, {{"n", 6}}),
      with(kOnce, {{"model", "formal"}}),
      with(kOnce,
           {{"max_tokens", 200},
            {"response_format",
             {{"type", "json_schema"}, {"json_schema", {{"name", "it"}, {"schema", kSchema}}}}}})};
}

int64_t counted(ServedModel& s, const std::string& name) {
  const std::string metrics = s.get("/metrics").body, mark = "\n" + name + " ";
  const size_t at = metrics.find(mark);
  EXPECT_NE(at, std::string::npos) << metrics;
  return at == std::string::npos ? -1 : std::stoll(metrics.substr(at + mark.size()));
}

class Drafted : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!ops::products_keep_row_bits(DType::f32))
      GTEST_SKIP() << "rows agree to 1e-5 only, so a draw may differ";
  }
  static std::unique_ptr<ServedModel> served(uint64_t draft = 0) {
    const ModelConfig config = ServedModel::served_config();
    return std::make_unique<ServedModel>(serve::ServeOptions(), "",
                                         std::vector<std::string>{"formal"}, config,
                                         draft > 0 ? fresh(config, draft) : nullptr);
  }
};

// The model's own weights guess right, others wrong.
TEST_F(Drafted, AReplyIsWhatItIsWithoutADraft) {
  const auto plain = served(), right = served(7), wrong = served(99);
  for (const Json& body : completions())
    for (const int seed : {1, 2}) {
      const Json asked = with(body, {{"seed", seed}});
      SCOPED_TRACE(asked.dump());
      const Json want = plain->ask("/v1/completions", asked);
      for (ServedModel* s : {right.get(), wrong.get()}) {
        const Json got = s->ask("/v1/completions", asked);
        EXPECT_EQ(got["choices"], want["choices"]);
        EXPECT_EQ(got["usage"]["completion_tokens"], want["usage"]["completion_tokens"]);
      }
    }
  EXPECT_EQ(counted(*plain, "moe_drafted_tokens_total"), 0);
  for (ServedModel* s : {right.get(), wrong.get()}) {
    const int64_t drafted = counted(*s, "moe_drafted_tokens_total"),
                  accepted = counted(*s, "moe_accepted_tokens_total");
    EXPECT_GT(drafted, accepted) << "a schema, an adapter and other weights were not foreseen";
    if (s == right.get()) EXPECT_GT(accepted, 200);
  }
}

TEST_F(Drafted, AStreamSaysTheSame) {
  const auto plain = served(), s = served(7);
  const Json asked = with(kOnce, {{"seed", 3}, {"routing", true}});
  const Json want = plain->ask("/v1/completions", asked)["choices"][0];
  std::string text;
  Json tokens = Json::array();
  for (const Json& event :
       events_of(s->post("/v1/completions", with(asked, {{"stream", true}})).body)) {
    const Json& choice = event["choices"][0];
    text += choice["text"].get<std::string>();
    if (choice.contains("routing"))
      for (const Json& token : choice["routing"]["tokens"]) tokens.push_back(token);
  }
  EXPECT_EQ(text, want["text"]);
  EXPECT_EQ(tokens, want["routing"]["tokens"]);
  EXPECT_GT(counted(*s, "moe_accepted_tokens_total"), 20);
}

TEST_F(Drafted, CallsAToolAsItDoesWithout) {
  const auto plain = served(), s = served(7);
  const Json tool = {{"type", "function"},
                     {"function", {{"name", "first"}, {"parameters", kSchema}}}};
  for (const int seed : {1, 2}) {
    const Json asked = {{"messages", {{{"role", "user"}, {"content", "Go"}}}},
                        {"response_format", {{"type", "json_object"}}},
                        {"max_tokens", 40},
                        {"seed", seed}};
    EXPECT_EQ(s->ask("/v1/chat/completions", asked)["choices"],
              plain->ask("/v1/chat/completions", asked)["choices"]);
  }
  // ChatML's own form has none, so the template that is asked for one has to be another.
  const std::string calls =
      "{% if tools %}{{ tools | tojson }} '<tool_call>'\n{% endif %}"
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  ServedModel caller({}, calls),
      drafted({}, calls, {}, ServedModel::served_config(), fresh(ServedModel::served_config()));
  for (const int seed : {1, 2}) {
    const Json asked = {{"messages", {{{"role", "user"}, {"content", "Go"}}}},
                        {"tools", Json::array({tool})},
                        {"tool_choice", "required"},
                        {"seed", seed}};
    const auto function = [&](ServedModel& by) {
      return by.ask("/v1/chat/completions",
                    asked)["choices"][0]["message"]["tool_calls"][0]["function"];
    };
    EXPECT_EQ(function(drafted), function(caller));
  }
  EXPECT_GT(counted(drafted, "moe_drafted_tokens_total"), 0);
}

// What a draft takes a token leaves fewer for the cache.
TEST(CacheTokens, CountTheDraftsToo) {
  const ModelConfig config = ServedModel::served_config();
  serve::ServeOptions options;
  options.parallel = 1000;
  const int64_t token = cache_bytes(config, DType::f32, 1), free = 20000 * token;
  EXPECT_EQ(serve::cache_tokens_of(config, options, DType::f32, free), 10000);
  EXPECT_EQ(serve::cache_tokens_of(config, options, DType::f32, free, false, token), 5000);
}

}  // namespace
}  // namespace moe::test::drafted_test
