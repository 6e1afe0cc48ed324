// Sessions of the C interface: what is kept is not computed again and changes no bit, and sessions
// of one model in threads of their own get what each gets alone.
#include <moe/moe.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "core/json.h"
#include "core/memory.h"
#include "support/command.h"
#include "support/same_rows.h"

namespace moe::test::session_test {
namespace {

constexpr size_t kVocab = 256;

struct Closer {
  void operator()(moe_session* session) const { moe_session_close(session); }
  void operator()(moe_model* model) const { moe_close(model); }
};
using SessionPtr = std::unique_ptr<moe_session, Closer>;

int end_at_first(void*, const char*, size_t) { return 1; }

class ApiSession : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = new TempFolder;
    put(*shared_ / "text.txt", small_text());
    const Json options = {{"data", *shared_ / "text.txt"},
                          {"out", folder()},
                          {"width", 16},
                          {"heads", 2},
                          {"layers", 2},
                          {"experts", 4},
                          {"top_k", 2},
                          {"context", 128},
                          {"batch", 2},
                          {"steps", 4},
                          {"threads", 2},
                          {"expert-width", 16}};
    ASSERT_EQ(moe_train(options.dump().c_str(), nullptr, nullptr, nullptr), MOE_OK)
        << moe_last_error();
  }
  static void TearDownTestSuite() { delete shared_; }
  void SetUp() override { model_ = load("{\"threads\": 1, \"dtype\": \"f32\"}"); }

  static std::string folder() { return *shared_ / "m"; }
  // Another model of the same shape; where it lies.
  static std::string train_again(const std::string& name, int seed, const char* tokenizer) {
    const std::string out = *shared_ / name;
    const Json options = {{"data", *shared_ / "text.txt"},
                          {"out", out},
                          {"width", 16},
                          {"heads", 2},
                          {"layers", 1},
                          {"experts", 4},
                          {"top_k", 2},
                          {"context", 128},
                          {"batch", 2},
                          {"steps", 2},
                          {"threads", 2},
                          {"seed", seed},
                          {"tokenizer", tokenizer}};
    EXPECT_EQ(moe_train(options.dump().c_str(), nullptr, nullptr, nullptr), MOE_OK)
        << moe_last_error();
    return out;
  }
  // Options and a draft that always guesses: what was hardly trained is never sure.
  static std::string with_draft(Json options, const std::string& draft) {
    options.update({{"draft", draft}, {"draft_min_p", 0}});
    return options.dump();
  }
  static std::unique_ptr<moe_model, Closer> load(const char* options) {
    moe_model* model = nullptr;
    EXPECT_EQ(moe_load(&model, folder().c_str(), options), MOE_OK) << moe_last_error();
    return std::unique_ptr<moe_model, Closer>(model);
  }
  static SessionPtr open(moe_model* model, const char* options = nullptr) {
    moe_session* session = nullptr;
    EXPECT_EQ(moe_session_open(&session, model, options), MOE_OK) << moe_last_error();
    return SessionPtr(session);
  }
  static std::vector<int32_t> ids_of(const std::string& text) {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  static std::vector<float> prefill(moe_session* session, const std::string& text,
                                    size_t rows = 1) {
    std::vector<float> logits(rows * kVocab);
    const std::vector<int32_t> ids = ids_of(text);
    EXPECT_EQ(moe_session_prefill(session, ids.data(), ids.size(), rows, logits.data()), MOE_OK)
        << moe_last_error();
    return logits;
  }
  static Json generate(moe_session* session, const std::string& prompt, const char* options) {
    char* json = nullptr;
    EXPECT_EQ(moe_session_generate(session, prompt.data(), prompt.size(), options, nullptr, nullptr,
                                   &json),
              MOE_OK)
        << moe_last_error();
    const Json reply = json == nullptr ? Json() : Json::parse(json);
    moe_free(json);
    return reply;
  }
  // moe_generate in the same model.
  Json generate_whole(const std::string& prompt, const char* options) {
    char* json = nullptr;
    EXPECT_EQ(
        moe_generate(model_.get(), prompt.data(), prompt.size(), options, nullptr, nullptr, &json),
        MOE_OK)
        << moe_last_error();
    const Json reply = Json::parse(json);
    moe_free(json);
    return reply;
  }
  std::vector<float> logits_of(const std::string& text) {
    std::vector<float> logits(text.size() * kVocab);
    const std::vector<int32_t> ids = ids_of(text);
    EXPECT_EQ(moe_logits(model_.get(), ids.data(), ids.size(), logits.data()), MOE_OK)
        << moe_last_error();
    return logits;
  }
  static void expect_usage(moe_status status, const std::string& part) {
    EXPECT_EQ(status, MOE_USAGE);
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, moe_last_error());
  }

  static inline TempFolder* shared_ = nullptr;
  std::unique_ptr<moe_model, Closer> model_;
};

TEST_F(ApiSession, PrefillsInPiecesToTheBitsOfOne) {
  const std::string text = "the router sends each token";
  const std::vector<float> whole = logits_of(text);
  const SessionPtr session = open(model_.get());
  prefill(session.get(), text.substr(0, 10));
  EXPECT_EQ(moe_session_length(session.get()), 10u);
  const std::vector<int32_t> more = ids_of(text.substr(10, 5));
  ASSERT_EQ(moe_session_prefill(session.get(), more.data(), more.size(), 0, nullptr), MOE_OK)
      << moe_last_error();
  const std::vector<float> last = prefill(session.get(), text.substr(15), 3);
  EXPECT_EQ(moe_session_length(session.get()), text.size());
  EXPECT_TRUE(same_rows(last, std::span(whole).last(3 * kVocab)));
}

TEST_F(ApiSession, GoesOnWithWhatItWrote) {
  if (!ops::products_keep_row_bits(DType::f32))
    GTEST_SKIP() << "rows agree to 1e-5 only, so a draw may differ";
  const SessionPtr session = open(model_.get());
  const Json first = generate(session.get(), "line ", "{\"tokens\": 12, \"seed\": 3}");
  EXPECT_EQ(first, generate_whole("line ", "{\"tokens\": 12, \"seed\": 3}"));
  EXPECT_EQ(moe_session_length(session.get()), 17u);
  // The text so far, and what is said now, is a prompt like any other.
  std::string said = "line ";
  for (const int32_t id : first.at("ids")) said += static_cast<char>(id);
  const Json second = generate(session.get(), " to", "{\"tokens\": 9, \"seed\": 4}");
  const Json whole = generate_whole(said + " to", "{\"tokens\": 9, \"seed\": 4}");
  EXPECT_EQ(second.at("ids"), whole.at("ids"));
  EXPECT_EQ(second.at("prompt_ids"), whole.at("prompt_ids"));
  EXPECT_EQ(second.at("prompt"), " to");
  // Without a prompt it goes on where it is; and what stands behind a place can be taken back.
  const size_t held = moe_session_length(session.get());
  const Json third = generate(session.get(), "", "{\"tokens\": 5, \"seed\": 5}");
  ASSERT_EQ(moe_session_truncate(session.get(), held), MOE_OK);
  EXPECT_EQ(generate(session.get(), "", "{\"tokens\": 5, \"seed\": 5}"), third);
  ASSERT_EQ(moe_session_truncate(session.get(), 0), MOE_OK);
  EXPECT_EQ(generate(session.get(), "line ", "{\"tokens\": 12, \"seed\": 3}"), first);
}

TEST_F(ApiSession, LogitsFollowWhatWasWritten) {
  const SessionPtr session = open(model_.get());
  const Json reply =
      generate(session.get(), "line ", "{\"tokens\": 6, \"prompt_lookup\": 4, \"temperature\": 0}");
  std::string said = "line ";
  for (const int32_t id : reply.at("ids")) said += static_cast<char>(id);
  const std::vector<float> whole = logits_of(said + "x");
  EXPECT_TRUE(same_rows(prefill(session.get(), "x"), std::span(whole).last(kVocab)));
}

TEST_F(ApiSession, EndsWhereItIsFull) {
  const SessionPtr session = open(model_.get(), "{\"capacity\": 20}");
  const Json reply = generate(session.get(), "line ", "{\"tokens\": 100}");
  EXPECT_EQ(reply.at("tokens"), 15);
  EXPECT_EQ(reply.at("finish"), "length");
  EXPECT_EQ(generate(session.get(), "", "{\"tokens\": 100}").at("tokens"), 0);
  const std::vector<int32_t> ids = ids_of("abc");
  EXPECT_EQ(moe_session_prefill(session.get(), ids.data(), ids.size(), 0, nullptr), MOE_FAILED);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "its capacity is 20; truncate it, or open one with a larger capacity",
                      moe_last_error());
  EXPECT_EQ(moe_session_length(session.get()), 20u) << "as it was";
  ASSERT_EQ(moe_session_truncate(session.get(), 17), MOE_OK);
  EXPECT_EQ(moe_session_prefill(session.get(), ids.data(), ids.size(), 0, nullptr), MOE_OK)
      << moe_last_error();
}

// The model itself is a draft whose guesses are right, another one changes nothing either.
TEST_F(ApiSession, ADraftGuessesAndTheTextStaysTheSame) {
  if (!ops::products_keep_row_bits(DType::f32))
    GTEST_SKIP() << "rows agree to 1e-5 only, so a draw may differ";
  const std::string other = train_again("other", 7, "bytes");
  for (const std::string& draft : {folder(), other})
    for (const int seed : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{}, seed {}", draft, seed));
      Json how = {{"tokens", 30}, {"seed", seed}};
      const SessionPtr plain = open(model_.get()),
                       guessed = open(model_.get(), with_draft({{"threads", 1}}, draft).c_str());
      // The second text follows the first, the third stands in place of the second.
      for (const char* prompt : {"line ", " and", " or"}) {
        if (prompt == std::string(" or"))
          for (moe_session* session : {plain.get(), guessed.get()})
            ASSERT_EQ(moe_session_truncate(session, 35), MOE_OK) << moe_last_error();
        Json want = generate(plain.get(), prompt, how.dump().c_str()),
             got = generate(guessed.get(), prompt, how.dump().c_str());
        EXPECT_LE(got["accepted"], got["proposed"]);
        if (draft == folder()) EXPECT_GT(got["accepted"], 10);
        else if (prompt == std::string("line ")) EXPECT_GT(got["proposed"], 0);
        EXPECT_EQ(want["proposed"], 0);
        EXPECT_EQ(got["ids"], want["ids"]);
        EXPECT_EQ(got["text"], want["text"]);
        EXPECT_EQ(got["prompt_ids"], want["prompt_ids"]);
      }
      EXPECT_EQ(generate_whole("line ", with_draft(how, draft).c_str()).at("ids"),
                generate_whole("line ", how.dump().c_str()).at("ids"));
    }
}

TEST_F(ApiSession, ADraftOutlivesTheModelThatOpenedIt) {
  const SessionPtr session = open(model_.get(), with_draft({{"threads", 1}}, folder()).c_str());
  const std::vector<float> whole = logits_of("the router");
  model_.reset();
  EXPECT_GT(generate(session.get(), "line ", "{\"tokens\": 20}").at("proposed"), 0);
  ASSERT_EQ(moe_session_truncate(session.get(), 0), MOE_OK) << moe_last_error();
  EXPECT_TRUE(same_rows(prefill(session.get(), "the router"), std::span(whole).last(kVocab)));
}

TEST_F(ApiSession, SaysWhyADraftCannotGuess) {
  moe_session* session = nullptr;
  char* json = nullptr;
  const std::string of_words = train_again("of-words", 1, "bpe:270");
  const auto refused = [&](const Json& options, const std::string& part) {
    const std::string text = options.dump();
    expect_usage(moe_session_open(&session, model_.get(), text.c_str()), part);
    EXPECT_EQ(session, nullptr);
    expect_usage(moe_generate(model_.get(), "line ", 5, text.c_str(), nullptr, nullptr, &json),
                 part);
    EXPECT_EQ(json, nullptr);
  };
  refused({{"draft", of_words}}, "so both need one vocabulary");
  refused({{"draft", folder()}, {"draft_tokens", 65}}, "draft_tokens is 65");
  refused({{"draft_tokens", 4}}, "draft_tokens is of a draft model: add draft MODEL");
  refused({{"draft_min_p", 0.5}}, "draft_min_p is of a draft model: add draft MODEL");
  const std::string absent = with_draft(Json::object(), *shared_ / "absent");
  EXPECT_EQ(moe_session_open(&session, model_.get(), absent.c_str()), MOE_FAILED);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "absent", moe_last_error());
  const std::string both = with_draft({{"prompt_lookup", 4}}, folder());
  expect_usage(moe_generate(model_.get(), "line ", 5, both.c_str(), nullptr, nullptr, &json),
               "prompt_lookup and draft both guess what comes next");
  const SessionPtr held = open(model_.get(), with_draft(Json::object(), folder()).c_str());
  expect_usage(
      moe_session_generate(held.get(), "a", 1, "{\"prompt_lookup\": 4}", nullptr, nullptr, nullptr),
      "prompt_lookup and draft both guess what comes next");
}

// What a call that failed has read is as if it had not been.
TEST_F(ApiSession, AFailureLeavesItAsItWas) {
  const SessionPtr session = open(model_.get());
  prefill(session.get(), "the ");
  const std::vector<int32_t> wrong = {'a', 'b', 256};
  std::vector<float> logits(kVocab);
  EXPECT_EQ(moe_session_prefill(session.get(), wrong.data(), wrong.size(), 1, logits.data()),
            MOE_FAILED);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "256", moe_last_error());
  EXPECT_EQ(moe_session_length(session.get()), 4u);
  const std::vector<float> whole = logits_of("the road");
  EXPECT_TRUE(same_rows(prefill(session.get(), "road"), std::span(whole).last(kVocab)));
}

TEST_F(ApiSession, ACallbackEndsATextThatThenGoesOn) {
  const SessionPtr session = open(model_.get());
  char* json = nullptr;
  ASSERT_EQ(moe_session_generate(session.get(), "line ", 5, "{\"tokens\": 40}", end_at_first,
                                 nullptr, &json),
            MOE_OK)
      << moe_last_error();
  const Json reply = Json::parse(json);
  moe_free(json);
  EXPECT_EQ(reply.at("finish"), "interrupted");
  EXPECT_EQ(moe_session_length(session.get()), 5 + reply.at("tokens").get<size_t>());
  EXPECT_EQ(generate(session.get(), "", "{\"tokens\": 3}").at("tokens"), 3);
}

TEST_F(ApiSession, OutlivesItsModel) {
  const std::vector<float> whole = logits_of("the router");
  const SessionPtr session = open(model_.get());
  model_.reset();
  EXPECT_TRUE(same_rows(prefill(session.get(), "the router"), std::span(whole).last(kVocab)));
}

TEST_F(ApiSession, WhatHasNoMeaningIsSaidInOneLine) {
  moe_session* session = nullptr;
  expect_usage(moe_session_open(nullptr, model_.get(), nullptr),
               "moe_session_open: session is NULL");
  expect_usage(moe_session_open(&session, nullptr, nullptr), "moe_session_open: model is NULL");
  expect_usage(moe_session_open(&session, model_.get(), "{\"capacty\": 3}"),
               "did you mean \"capacity\"?");
  expect_usage(moe_session_open(&session, model_.get(), "{\"capacity\": -1}"), "capacity is -1");
  expect_usage(moe_session_open(&session, model_.get(), "{\"cache_dtype\": \"int4\"}"),
               "cache_dtype is \"int4\"");
  expect_usage(moe_session_open(&session, model_.get(), "{\"routing\": \"threshold\"}"),
               "threshold");
  EXPECT_EQ(session, nullptr);
  const SessionPtr held = open(model_.get());
  float logit = 0;
  const int32_t id = 1;
  expect_usage(moe_session_prefill(nullptr, &id, 1, 0, nullptr),
               "moe_session_prefill: session is NULL");
  expect_usage(moe_session_prefill(held.get(), &id, 0, 0, nullptr), "at least one id");
  expect_usage(moe_session_prefill(held.get(), &id, 1, 2, &logit),
               "logits of 2 ids are asked for where 1 are given");
  expect_usage(moe_session_prefill(held.get(), &id, 1, 1, nullptr),
               "moe_session_prefill: logits is NULL");
  expect_usage(moe_session_generate(nullptr, "", 0, nullptr, nullptr, nullptr, nullptr),
               "moe_session_generate: session is NULL");
  expect_usage(moe_session_generate(held.get(), "", 0, nullptr, nullptr, nullptr, nullptr),
               "nothing to continue");
  expect_usage(moe_session_generate(held.get(), "a", 1, "{\"cache_dtype\": \"f16\"}", nullptr,
                                    nullptr, nullptr),
               "cache_dtype is a session's own: give it to the call that opens it");
  expect_usage(
      moe_session_generate(held.get(), "a", 1, "{\"draft\": \"x\"}", nullptr, nullptr, nullptr),
      "draft is a session's own: give it to the call that opens it");
  expect_usage(moe_session_truncate(nullptr, 0), "moe_session_truncate: session is NULL");
  expect_usage(moe_session_truncate(held.get(), 1),
               "holds 0 ids, fewer than the 1 that are to stay");
  EXPECT_EQ(moe_session_length(nullptr), 0u);
  moe_session_close(nullptr);
}

TEST_F(ApiSession, TakesTheOptionsThatAreTold) {
  const auto told = [](const char* function) {
    char* json = nullptr;
    EXPECT_EQ(moe_options(function, &json), MOE_OK) << moe_last_error();
    const Json rows = Json::parse(json);
    moe_free(json);
    return rows;
  };
  Json own = Json::object();
  for (const Json& row : told("session_open")) own[row["name"].get<std::string>()] = row["default"];
  EXPECT_EQ(own.size(), 8u) << own.dump();
  const SessionPtr session = open(model_.get(), own.dump().c_str());
  Json options = Json::object();
  for (const Json& row : told("session_generate")) {
    options[row["name"].get<std::string>()] = row["default"];
    EXPECT_FALSE(own.contains(row["name"])) << row["name"];
  }
  options["tokens"] = 3;
  EXPECT_EQ(generate(session.get(), "line ", options.dump().c_str()).at("tokens"), 3);
}

// Each session that is open has its cache promised, whether it is filled or not.
TEST_F(ApiSession, WhatDoesNotFitIsNotOpened) {
  const auto little = load("{\"memory\": \"1M\"}");
  moe_session* session = nullptr;
  EXPECT_EQ(moe_session_open(&session, little.get(), nullptr), MOE_FAILED);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "open the session with a smaller \"capacity\"",
                      moe_last_error());

  // Two caches of 128 MiB fit beside what the process holds, three do not: 2 layers, keys and
  // values of 16 numbers of 4 bytes.
  const int64_t tokens = (int64_t{128} << 20) / (2 * 2 * 16 * 4);
  const auto some =
      load(fmt::format("{{\"memory\": \"{}\", \"pack_memory\": \"1M\", \"dtype\": \"f32\"}}",
                       taken_memory() + (int64_t{370} << 20))
               .c_str());
  const std::string options = fmt::format("{{\"capacity\": {}}}", tokens);
  const SessionPtr first = open(some.get(), options.c_str()),
                   second = open(some.get(), options.c_str());
  EXPECT_EQ(moe_session_open(&session, some.get(), options.c_str()), MOE_FAILED);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "sessions 256 MiB", moe_last_error());
}

// Of texts no longer than the context a draft's cache is as large as the session's own here.
TEST_F(ApiSession, ADraftsCacheIsPromisedToo) {
  const auto some =
      load(fmt::format("{{\"memory\": \"{}\", \"pack_memory\": \"1M\", \"dtype\": \"f32\"}}",
                       taken_memory() + (int64_t{64} << 20))
               .c_str());
  const auto promised = [&](const std::string& options) {
    const SessionPtr session = open(some.get(), options.c_str());
    moe_session* none = nullptr;
    EXPECT_EQ(moe_session_open(&none, some.get(), "{\"capacity\": 10000000}"), MOE_FAILED);
    const std::string said = moe_last_error();
    const size_t at = said.find("sessions ");
    return at == std::string::npos ? said : said.substr(at, said.find(',', at) - at);
  };
  EXPECT_EQ(promised("{}"), "sessions 32.0 KiB");  // 128 tokens of 256 bytes
  EXPECT_EQ(promised(with_draft(Json::object(), folder())), "sessions 64.0 KiB");
}

// Two sessions of one model, each in a thread of its own, and the model itself beside them: the
// bits of one after the other. A model that nobody has used yet, so that the threads meet where
// weights are packed.
TEST_F(ApiSession, OfOneModelInThreadsGetTheBitsOfOneAfterTheOther) {
  const auto work = [](moe_model* model, const std::string& prompt) {
    const SessionPtr session = open(model);
    std::vector<float> logits = prefill(session.get(), prompt, prompt.size());
    const Json reply = generate(session.get(), " and", "{\"tokens\": 30, \"seed\": 7}");
    const std::vector<float> more = prefill(session.get(), "once more");
    logits.insert(logits.end(), more.begin(), more.end());
    return std::pair(logits, reply.dump());
  };
  const std::vector<std::string> prompts = {"the router sends each token",
                                            "line 7: to two experts"};
  std::vector<std::pair<std::vector<float>, std::string>> want;
  for (const std::string& prompt : prompts) want.push_back(work(model_.get(), prompt));
  const Json want_whole = generate_whole("line ", "{\"tokens\": 30, \"seed\": 1}");
  for (int round = 0; round < 4; ++round) {
    const auto model = load("{\"threads\": 1, \"dtype\": \"f32\"}");
    std::vector<std::pair<std::vector<float>, std::string>> got(prompts.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < prompts.size(); ++i)
      threads.emplace_back([&, i] { got[i] = work(model.get(), prompts[i]); });
    char* json = nullptr;
    EXPECT_EQ(moe_generate(model.get(), "line ", 5, "{\"tokens\": 30, \"seed\": 1}", nullptr,
                           nullptr, &json),
              MOE_OK)
        << moe_last_error();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(Json::parse(json), want_whole);
    moe_free(json);
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(got[i].first, want[i].first) << "thread " << i << " of round " << round;
      EXPECT_EQ(got[i].second, want[i].second);
    }
  }
}

}  // namespace
}  // namespace moe::test::session_test
