// The C++ face over the C interface. Its names live in an inline namespace, so that they meet the
// internal ones in this program without harm; only files that see both must name it.
#include "support/files.h"

#include <moe/moe.hpp>

#include <cmath>
#include <optional>

namespace {

namespace cpp = moe::api1;

class Cpp : public ::testing::Test {
 protected:
  Cpp() {
    std::string text;
    for (int i = 0; i < 60; ++i)
      text += "line " + std::to_string(i) + ": the router sends each token to two experts\n";
    moe::test::put(folder_ / "text.txt", text);
  }
  cpp::Options options(const std::string& out) const {
    return {{"data", std::vector<std::string>{folder_ / "text.txt"}},
            {"out", folder_ / out},
            {"width", 16},
            {"heads", 2},
            {"layers", int64_t{2}},
            {"experts", 4},
            {"top_k", 2},
            {"context", 16},
            {"batch", 2},
            {"steps", 3},
            {"lr", 2e-3},
            {"tied", true},
            {"threads", 2}};
  }

  moe::test::TempFolder folder_;
};

TEST_F(Cpp, TrainsLoadsAndGenerates) {
  int steps = 0;
  const std::string reply = cpp::train(options("m"), [&](const std::string& metrics) {
    return cpp::number(metrics, "step") == ++steps;
  });
  EXPECT_EQ(steps, 3);
  EXPECT_EQ(cpp::number(reply, "step"), 3);

  cpp::Model model = cpp::Model::load(folder_ / "m", {{"threads", 2}});
  std::string streamed;
  const cpp::Generated out =
      model.generate("line \"tokens\":7", {{"tokens", 30}, {"seed", 1}, {"temperature", 0.7f}},
                     [&](std::string_view piece) {
                       streamed += piece;
                       return true;
                     });
  EXPECT_EQ(out.text, streamed);
  EXPECT_EQ(out.tokens, 30);
  EXPECT_EQ(out.prompt_tokens, 15);
  EXPECT_EQ(out.finish, "length");
  EXPECT_EQ(model.generate("a", {{"tokens", 30}}, [](std::string_view) { return false; }).finish,
            "interrupted");

  const std::vector<int32_t> ids = model.encode("the router\tsends \"each\"");
  EXPECT_EQ(model.decode(ids), "the router\tsends \"each\"");
  const cpp::Score score = model.score(ids, {{"window", 8}});
  EXPECT_EQ(score.windows, 2);
  EXPECT_EQ(score.tokens, 14);
  EXPECT_NEAR(score.perplexity, std::exp(score.nats_per_token), 1e-9);
  EXPECT_TRUE(std::isnan(score.logprobs[0]) && score.logprobs[1] < 0 &&
              std::isnan(score.logprobs.back()));
  EXPECT_EQ(model.logits(ids).size(), ids.size() * 256);
  const cpp::Routing routing = model.routing(ids);
  EXPECT_EQ(routing.layers, 2);
  EXPECT_EQ(routing.slots, 2);
  EXPECT_NE(routing.expert(1, 3, 0), routing.expert(1, 3, 1));
  EXPECT_GT(routing.weight(1, 3, 0), 0);

  model.save(folder_ / "copy", {{"dtype", "bf16"}});
  cpp::Model copy = std::move(model);
  copy = cpp::Model::load(folder_ / "copy");
  EXPECT_EQ(cpp::number(copy.inspect(), "experts"), 4);
  EXPECT_THROW(model.logits(ids), cpp::Error) << "its model was moved away";
}

TEST_F(Cpp, ASessionKeepsItsText) {
  cpp::train(options("m"));
  std::optional<cpp::Model> model = cpp::Model::load(folder_ / "m", {{"threads", 1}});
  const cpp::Generated whole = model->generate("line ", {{"tokens", 8}, {"seed", 1}});
  cpp::Session session = model->session({{"capacity", 100}});
  const std::vector<int32_t> ids = model->encode("lin");
  const std::vector<float> rows = session.prefill(ids, 2);
  EXPECT_EQ(rows.size(), 2u * 256);
  model.reset();  // the session keeps the weights
  std::string streamed;
  const cpp::Generated out =
      session.generate("e ", {{"tokens", 8}, {"seed", 1}}, [&](std::string_view piece) {
        streamed += piece;
        return true;
      });
  EXPECT_EQ(out.text, whole.text);
  EXPECT_EQ(streamed, whole.text);
  EXPECT_EQ(out.prompt_tokens, 5);
  EXPECT_EQ(session.length(), 13u);
  session.truncate(3);
  EXPECT_EQ(session.length(), 3u);
  EXPECT_THROW(session.truncate(4), cpp::Error);
  EXPECT_THROW(session.generate(
                   "a", {}, [](std::string_view) -> bool { throw std::out_of_range("enough"); }),
               std::out_of_range);
  cpp::Session moved = std::move(session);
  EXPECT_TRUE(moved.prefill(ids, 0).empty());
  EXPECT_THROW(session.prefill(ids), cpp::Error) << "it was moved away";
}

TEST_F(Cpp, WhatFailsIsThrown) {
  try {
    cpp::Model::load(folder_ / "absent");
    FAIL();
  } catch (const cpp::Error& error) {
    EXPECT_EQ(error.status(), MOE_FAILED);
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, "absent", error.what());
  }
  EXPECT_THROW(cpp::route("{\"recip\": 1}"), cpp::Error);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "\"experts\":[[0,1]]",
                      cpp::route("{\"recipe\": \"mixtral\", \"logits\": [[2, 1, 0, -1]]}"));
  EXPECT_THROW(cpp::train(cpp::Options::from_json("{\"stepps\": 3}")), cpp::Error);
  EXPECT_GT(cpp::recipes().size(), 1000u);
}

TEST_F(Cpp, OptionsAreAJsonObject) {
  EXPECT_EQ(cpp::Options().json(), "{}");
  EXPECT_EQ(cpp::Options({{"a", 1}}).add({"b", "x"}).json(), R"({"a":1,"b":"x"})");
  EXPECT_EQ(cpp::Options::from_json(R"({"a": 1})").add({"b", 2}).json(), R"({"a": 1,"b":2})");
  EXPECT_EQ(cpp::Options::from_json("{ }\n").add({"b", 2}).add({"c", true}).json(),
            R"({"b":2,"c":true})");
  EXPECT_EQ(cpp::Options::from_json("[1]").json(), "[1]")
      << "the library says what is wrong with it";
  EXPECT_THROW(cpp::Options::from_json("[1]").add({"b", 2}), cpp::Error);
  EXPECT_THROW(cpp::Options({{"lr", std::nan("")}}), cpp::Error);
}

// What a callback throws comes out where the call was made, and the run it ended is saved.
TEST_F(Cpp, CallbacksMayThrow) {
  EXPECT_THROW(cpp::train(options("m"),
                          [](const std::string&) -> bool { throw std::out_of_range("enough"); }),
               std::out_of_range);
  cpp::Model model = cpp::Model::load(folder_ / "m");
  EXPECT_THROW(
      model.generate("a", {}, [](std::string_view) -> bool { throw std::out_of_range("enough"); }),
      std::out_of_range);
}

}  // namespace
