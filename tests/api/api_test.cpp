// The C interface: the same bits and the same JSON as the command, a message for whatever is wrong,
// callbacks that end what they watch, threads apart.
#include <moe/moe.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "api/call.h"
#include "core/json.h"
#include "hub/hub.h"
#include "support/command.h"
#include "support/environment.h"
#include "support/tiny_model.h"

namespace moe::test::api_test {
namespace {

namespace fs = std::filesystem;

// A JSON object of options for moe_train, the smallest run.
Json run_options(const std::string& text, const std::string& out) {
  return {{"data", text}, {"out", out},   {"width", 16},  {"heads", 2},
          {"layers", 2},  {"experts", 4}, {"top_k", 2},   {"context", 16},
          {"batch", 2},   {"steps", 4},   {"threads", 2}, {"expert-width", 16}};
}

std::vector<std::string> as_flags(const Json& options) {
  std::vector<std::string> words = {"train"};
  for (const auto& [key, value] : options.items()) {
    std::string flag = "--" + key;
    std::replace(flag.begin(), flag.end(), '_', '-');
    words.insert(words.end(), {flag, value.is_string() ? value.get<std::string>() : value.dump()});
  }
  return words;
}

std::string take(char* text) {
  const std::string copy = text == nullptr ? "" : text;
  moe_free(text);
  return copy;
}

int keep_line(void* lines, const char* json) {
  static_cast<std::vector<std::string>*>(lines)->push_back(json);
  return 0;
}
int end_at_second(void* lines, const char* json) {
  keep_line(lines, json);
  return static_cast<std::vector<std::string>*>(lines)->size() == 2;
}
int keep_text(void* text, const char* piece, size_t bytes) {
  static_cast<std::string*>(text)->append(piece, bytes);
  return 0;
}
int end_at_first(void* text, const char* piece, size_t bytes) {
  keep_text(text, piece, bytes);
  return 1;
}

std::string command_json(const std::vector<std::string>& words) {
  const CommandResult r = moe_command(words);
  EXPECT_EQ(r.code, 0) << r.err;
  return r.out.empty() ? "" : r.out.substr(0, r.out.size() - 1);  // without the newline
}

class Api : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = new TempFolder;
    put(text_file(), small_text());
    const std::string options = run_options(text_file(), folder()).dump();
    ASSERT_EQ(moe_train(options.c_str(), nullptr, nullptr, nullptr), MOE_OK) << moe_last_error();
  }
  static void TearDownTestSuite() { delete shared_; }
  void SetUp() override {
    ASSERT_EQ(moe_load(&model_, folder().c_str(), "{\"threads\": 2}"), MOE_OK) << moe_last_error();
  }
  void TearDown() override { moe_close(model_); }

  static std::string text_file() { return *shared_ / "text.txt"; }
  static std::string folder() { return *shared_ / "m"; }
  // The ids of the text's first `count` bytes.
  static std::vector<int32_t> first_ids(size_t count) {
    const std::string text = slurp(text_file()).substr(0, count);
    return {text.begin(), text.end()};
  }
  std::string generated(const char* options, moe_on_text on_text = nullptr, void* user = nullptr) {
    char* json = nullptr;
    EXPECT_EQ(moe_generate(model_, "line ", 5, options, on_text, user, &json), MOE_OK)
        << moe_last_error();
    return take(json);
  }
  static void expect_usage(moe_status status, const std::string& part) {
    EXPECT_EQ(status, MOE_USAGE);
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, moe_last_error());
    EXPECT_EQ(std::string(moe_last_error()).find('\n'), std::string::npos);
  }

  static inline TempFolder* shared_ = nullptr;
  moe_model* model_ = nullptr;
  TempFolder folder_;
};

TEST_F(Api, TrainsToTheBitsOfTheCommandAndTellsEachStep) {
  std::vector<std::string> lines;
  char* json = nullptr;
  Json options = run_options(text_file(), folder_ / "api");
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const moe_status status = moe_train(options.dump().c_str(), keep_line, &lines, &json);
  EXPECT_EQ(::testing::internal::GetCapturedStdout() + ::testing::internal::GetCapturedStderr(), "")
      << "a library does not print";
  ASSERT_EQ(status, MOE_OK) << moe_last_error();
  const Json reply = Json::parse(take(json));
  EXPECT_EQ(reply.at("out"), folder_ / "api");
  EXPECT_EQ(reply.at("step"), 4);
  EXPECT_EQ(reply.at("interrupted"), false);
  std::string told;
  for (const std::string& line : lines) told += line + "\n";
  EXPECT_EQ(told, slurp(folder_ / "api/metrics.jsonl"));
  EXPECT_EQ(lines.size(), 4u);

  options["out"] = folder_ / "command";
  ASSERT_EQ(moe_command(as_flags(options)).code, 0);
  EXPECT_EQ(slurp(folder_ / "api/model.safetensors"), slurp(folder_ / "command/model.safetensors"));
  EXPECT_EQ(slurp(folder_ / "api/config.json"), slurp(folder_ / "command/config.json"));
}

TEST_F(Api, ACallbackEndsTrainingAndResumeGoesOnToTheSameBits) {
  std::vector<std::string> lines;
  char* json = nullptr;
  Json options = run_options(text_file(), folder_ / "m");
  ASSERT_EQ(moe_train(options.dump().c_str(), end_at_second, &lines, &json), MOE_OK)
      << moe_last_error();
  Json reply = Json::parse(take(json));
  EXPECT_EQ(reply.at("step"), 2);
  EXPECT_EQ(reply.at("interrupted"), true);

  EXPECT_EQ(moe_train(options.dump().c_str(), nullptr, nullptr, &json), MOE_FAILED);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "resume", moe_last_error());
  options["resume"] = true;
  ASSERT_EQ(moe_train(options.dump().c_str(), keep_line, &lines, &json), MOE_OK)
      << moe_last_error();
  EXPECT_EQ(Json::parse(take(json)).at("interrupted"), false);
  EXPECT_EQ(lines.size(), 4u);
  EXPECT_EQ(slurp(folder_ / "m/model.safetensors"), slurp(folder() + "/model.safetensors"));

  ASSERT_EQ(moe_train(options.dump().c_str(), keep_line, &lines, &json), MOE_OK)
      << moe_last_error();  // nothing is left to do
  reply = Json::parse(take(json));
  EXPECT_EQ(reply.at("step"), 4);
  EXPECT_TRUE(reply.at("ce").is_null());
  EXPECT_EQ(lines.size(), 4u);
}

TEST_F(Api, GeneratesWhatTheCommandDoes) {
  std::string streamed;
  const std::string json =
      generated("{\"tokens\": 40, \"seed\": 3, \"top_k\": 12, \"stop\": [\"zzz\", \"[end]\"]}",
                keep_text, &streamed);
  EXPECT_EQ(json, command_json({"generate", folder(), "-p", "line ", "-n", "40", "--seed", "3",
                                "--top-k", "12", "--threads", "2", "--json"}));
  EXPECT_EQ(Json::parse(json).at("text"), streamed);
  EXPECT_EQ(Json::parse(json).at("tokens"), 40);
  EXPECT_EQ(generated(nullptr), generated(""));
  EXPECT_EQ(generated(nullptr), generated("{\"stop\": [], \"top_k\": null}"));
}

TEST_F(Api, ACallbackEndsAText) {
  std::string streamed;
  const Json reply = Json::parse(generated("{\"tokens\": 40}", end_at_first, &streamed));
  EXPECT_EQ(reply.at("finish"), "interrupted");
  EXPECT_LT(reply.at("tokens"), 5);  // as many bytes as a character may have
  EXPECT_FALSE(streamed.empty());
}

TEST_F(Api, ScoresAsTheCommandDoes) {
  const std::string text = slurp(text_file());
  const std::vector<int32_t> ids = first_ids(text.size());
  std::vector<float> logprobs(ids.size());
  char* json = nullptr;
  ASSERT_EQ(moe_score(model_, ids.data(), ids.size(), "{\"window\": 16, \"windows\": 5}",
                      logprobs.data(), &json),
            MOE_OK)
      << moe_last_error();
  const std::vector<std::string> words = {"score",     folder(), "--text",    text_file(),
                                          "--window",  "16",     "--windows", "5",
                                          "--threads", "2",      "--json"};
  EXPECT_EQ(take(json), command_json(words));

  std::vector<std::string> per_token = words;
  per_token.push_back("--per-token");
  const Json wanted = Json::parse(command_json(per_token)).at("logprobs");
  ASSERT_EQ(wanted.size(), 80u);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i >= wanted.size() || wanted[i].is_null()) EXPECT_TRUE(std::isnan(logprobs[i])) << i;
    else EXPECT_EQ(logprobs[i], static_cast<float>(wanted[i].get<double>())) << i;
  }
}

TEST_F(Api, LogitsAreThoseOfTheScore) {
  const std::vector<int32_t> ids = first_ids(32);
  const auto vocab = static_cast<size_t>(moe_size(model_, "vocab"));
  std::vector<float> logits(ids.size() * vocab), logprobs(ids.size());
  ASSERT_EQ(moe_logits(model_, ids.data(), ids.size(), logits.data()), MOE_OK) << moe_last_error();
  ASSERT_EQ(moe_score(model_, ids.data(), ids.size(), "{\"window\": 32}", logprobs.data(), nullptr),
            MOE_OK)
      << moe_last_error();
  for (size_t n = 0; n + 1 < ids.size(); ++n) {
    double sum = 0;
    for (size_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(logits[n * vocab + v]));
    EXPECT_NEAR(logits[n * vocab + static_cast<size_t>(ids[n + 1])] - std::log(sum),
                logprobs[n + 1], 1e-5)
        << n;
  }
}

// Where experts choose, an evaluation takes what reaches the learned thresholds: a token may have
// any number of experts, and the slots it leaves free are -1.
TEST_F(Api, RoutingFillsChosenSlotsOnly) {
  const std::vector<int32_t> ids = first_ids(24);
  for (const char* recipe : {"mixtral", "expert-choice"}) {
    SCOPED_TRACE(recipe);
    Json options = run_options(text_file(), folder_ / recipe);
    options["recipe"] = recipe;
    ASSERT_EQ(moe_train(options.dump().c_str(), nullptr, nullptr, nullptr), MOE_OK)
        << moe_last_error();
    moe_model* model = nullptr;
    ASSERT_EQ(moe_load(&model, (folder_ / recipe).c_str(), nullptr), MOE_OK) << moe_last_error();
    const auto slots = static_cast<size_t>(moe_size(model, "slots")),
               rows = static_cast<size_t>(moe_size(model, "moe_layers")) * ids.size();
    std::vector<int32_t> experts(rows * slots, 99);
    std::vector<float> weights(experts.size(), 99);
    ASSERT_EQ(moe_routing(model, ids.data(), ids.size(), experts.data(), weights.data()), MOE_OK)
        << moe_last_error();
    size_t empty = 0;
    for (size_t row = 0; row < rows; ++row) {
      double sum = 0;
      std::vector<bool> seen(4);
      for (size_t i = row * slots; i < (row + 1) * slots; ++i) {
        sum += weights[i];
        ASSERT_TRUE(experts[i] >= -1 && experts[i] < 4) << experts[i];
        EXPECT_EQ(experts[i] == -1, weights[i] == 0);
        if (experts[i] == -1) ++empty;
        else EXPECT_FALSE(seen[static_cast<size_t>(experts[i])]) << "an expert twice";
        if (experts[i] >= 0) seen[static_cast<size_t>(experts[i])] = true;
      }
      if (recipe == std::string("mixtral")) EXPECT_NEAR(sum, 1, 1e-6);
    }
    EXPECT_EQ(empty > 0, recipe == std::string("expert-choice"));
    moe_close(model);
  }
}

TEST_F(Api, TextGoesToIdsAndBackByteByByte) {
  for (const std::string& text : {std::string("plain"), std::string("a\0b", 3),
                                  std::string("\xC3\x28 broken \xF0\x9F"), std::string()}) {
    int32_t* ids = nullptr;
    size_t count = 7, bytes = 7;
    char* back = nullptr;
    ASSERT_EQ(moe_encode(model_, text.data(), text.size(), &ids, &count), MOE_OK)
        << moe_last_error();
    EXPECT_EQ(count, text.size());
    ASSERT_EQ(moe_decode(model_, ids, count, &back, &bytes), MOE_OK) << moe_last_error();
    EXPECT_EQ(std::string(back, bytes), text);
    EXPECT_EQ(back[bytes], '\0');
    moe_free(ids);
    moe_free(back);
  }
}

TEST_F(Api, InspectRecipesAndRouteReplyAsTheCommand) {
  char* json = nullptr;
  ASSERT_EQ(moe_inspect(model_, &json), MOE_OK) << moe_last_error();
  const std::string inspected = take(json);
  EXPECT_EQ(inspected, command_json({"inspect", folder(), "--json"}));
  for (const char* name : {"vocab", "context", "width", "layers", "moe_layers", "experts", "slots"})
    EXPECT_EQ(Json::parse(inspected).at(name), moe_size(model_, name)) << name;
  EXPECT_EQ(moe_size(model_, "height"), -1);
  EXPECT_EQ(moe_size(nullptr, "vocab"), -1);

  ASSERT_EQ(moe_recipes(&json), MOE_OK) << moe_last_error();
  EXPECT_EQ(take(json), command_json({"recipes", "--json"}));

  const std::string numbers =
      R"({"logits": [[2, 1, 0, -1], [1.5, 1.5, 0.5, 0], [3, -1, 2, 0]], "coef": {"balance": 0.5}})";
  put(folder_ / "in.json", numbers);
  Json input = Json::parse(numbers);
  input.update({{"recipe", "switch"}, {"capacity_factor", 1.5}});
  ASSERT_EQ(moe_route(input.dump().c_str(), &json), MOE_OK) << moe_last_error();
  EXPECT_EQ(take(json), command_json({"route", "--logits", folder_ / "in.json", "--recipe",
                                      "switch", "--capacity-factor", "1.5", "--json"}));
  ASSERT_EQ(
      moe_route(
          R"({"recipe": "switch", "cases": [{"logits": [[1, 2]]}, {"logits": [[2, 1]], "seed": 4}]})",
          &json),
      MOE_OK)
      << moe_last_error();
  EXPECT_EQ(Json::parse(take(json)).at("cases").size(), 2u);
  const std::string plain = R"({"recipe": "mixtral", "logits": [[2, 1, 0, -1]]})";
  ASSERT_EQ(moe_route(plain.c_str(), &json), MOE_OK) << moe_last_error();
  const std::string by_default = take(json);
  ASSERT_EQ(
      moe_route(
          R"({"recipe": "mixtral", "logits": [[2, 1, 0, -1]], "top_k": null, "capacity_factor": []})",
          &json),
      MOE_OK)
      << moe_last_error();
  EXPECT_EQ(take(json), by_default) << "null and an empty list stand for the default";
}

// No name that the input may have is taken for a mistyped flag.
TEST_F(Api, EveryNameOfARoutingInputIsLetThrough) {
  for (const char* key :
       {"logits", "x", "weight", "noise_weight", "ids", "noise", "bias", "threshold", "sequences",
        "step_counts", "draw", "seed", "coef", "dweights", "sigma", "cases"}) {
    char* json = nullptr;
    moe_route(Json({{key, "?"}}).dump().c_str(), &json);
    EXPECT_EQ(std::string(moe_last_error()).find("not known"), std::string::npos)
        << moe_last_error();
    moe_free(json);
  }
}

TEST_F(Api, SavesAFolderThatLoads) {
  ASSERT_EQ(moe_save(model_, (folder_ / "f32").c_str(), nullptr), MOE_OK) << moe_last_error();
  ASSERT_EQ(moe_save(model_, (folder_ / "bf16").c_str(), "{\"dtype\": \"bf16\"}"), MOE_OK)
      << moe_last_error();
  EXPECT_LT(fs::file_size(folder_ / "bf16/model.safetensors"),
            fs::file_size(folder_ / "f32/model.safetensors"));
  const std::string before = generated("{\"seed\": 5}");
  moe_close(model_);
  ASSERT_EQ(moe_load(&model_, (folder_ / "f32").c_str(), "{\"threads\": 1, \"dtype\": null}"),
            MOE_OK)
      << moe_last_error();
  EXPECT_EQ(generated("{\"seed\": 5}"), before);
  expect_usage(moe_save(model_, (folder_ / "no").c_str(), "{\"dtype\": \"int4\"}"),
               "known are f32, bf16");
  EXPECT_FALSE(fs::exists(folder_ / "no"));
}

TEST_F(Api, SavesBesideNobodysWeights) {
  const TempFolder theirs;
  put(theirs / "pytorch_model.bin", "x");
  EXPECT_EQ(moe_save(model_, theirs.path().c_str(), nullptr), MOE_FAILED);
  EXPECT_NE(std::string(moe_last_error()).find("pytorch_model.bin"), std::string::npos)
      << moe_last_error();
  EXPECT_FALSE(fs::exists(theirs / "model.safetensors"));
}

// A caller gave names of a JSON object, not flags, and reads those in what is refused.
TEST_F(Api, MessagesNameKeywordsNotFlags) {
  char* json = nullptr;
  const auto says = [&](const std::string& options, const std::string& part) {
    expect_usage(moe_generate(model_, "a", 1, options.c_str(), nullptr, nullptr, &json), part);
    EXPECT_EQ(std::string(moe_last_error()).find("--"), std::string::npos) << moe_last_error();
  };
  says(R"({"top_p": 2})", "top_p is 2");
  says(R"({"top-p": 2})", "top_p is 2");
  says(R"({"tokens": -1})", "tokens is -1");
  says(R"({"prompt_lookup": 1000})", "prompt_lookup is 1000");
  says(R"({"cache_dtype": "int4"})", "cache_dtype is \"int4\"");
  says(R"({"topk": 2})", "did you mean \"top_k\"?");
  Json options = run_options(text_file(), folder_ / "refused");
  const auto refused = [&](const char* key, const Json& value, const std::string& part) {
    Json asked = options;
    asked[key] = value;
    expect_usage(moe_train(asked.dump().c_str(), nullptr, nullptr, &json), part);
    EXPECT_EQ(std::string(moe_last_error()).find("--"), std::string::npos) << moe_last_error();
  };
  refused("kv_heads", 3, "kv_heads must divide heads");
  refused("top_k", 9, "top_k");
  refused("min_lr", -1, "min_lr");
  refused("lr_times", Json{{"expert", 2}}, "lr_times");
  // A name that only looks like a flag, and a command in backticks, stay as they are.
  moe_model* other = nullptr;
  EXPECT_EQ(moe_load(&other, (folder_ / "a--top-k").c_str(), nullptr), MOE_FAILED);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "a--top-k", moe_last_error());
  Environment environment;
  environment.set("MOE_CACHE", folder_ / "cache");
  EXPECT_EQ(moe_load(&other, "smollm2", nullptr), MOE_FAILED);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "`moe get smollm2` fetches it", moe_last_error());
}

TEST_F(Api, WhatHasNoMeaningIsSaidInOneLine) {
  char something = 0;
  char* json = &something;
  expect_usage(moe_generate(model_, "a", 1, "{\"temprature\": 1}", nullptr, nullptr, &json),
               "did you mean \"temperature\"?");
  EXPECT_EQ(json, nullptr);
  expect_usage(moe_generate(model_, "a", 1, "{\"temprature\": null}", nullptr, nullptr, &json),
               "did you mean \"temperature\"?");
  expect_usage(moe_generate(model_, "a", 1, "{\"threads\": 1}", nullptr, nullptr, &json),
               "no option is called \"threads\"");
  expect_usage(moe_generate(model_, "a", 1, "{\"help\": true}", nullptr, nullptr, &json),
               "no option is called \"help\"");
  expect_usage(moe_generate(model_, "a", 1, "{\"tokens\": \"many\"}", nullptr, nullptr, &json),
               "many");
  expect_usage(moe_generate(model_, "a", 1, "{\"temperature\": -1}", nullptr, nullptr, &json),
               "temperature");
  expect_usage(moe_generate(model_, "a", 1, "[]", nullptr, nullptr, &json), "object");
  expect_usage(moe_generate(model_, "", 0, nullptr, nullptr, nullptr, &json),
               "nothing to continue");
  EXPECT_EQ(moe_generate(model_, "a", 1, "{\"tokens\": ", nullptr, nullptr, &json), MOE_FAILED);
  expect_usage(moe_train("{\"out\": \"x\"}", nullptr, nullptr, &json), "data");
  expect_usage(moe_train("{\"out\": \"x\", \"presett\": \"tiny\"}", nullptr, nullptr, &json),
               "did you mean \"preset\"?");
  expect_usage(moe_route("{\"recip\": \"switch\", \"logits\": [[1]]}", &json),
               "did you mean \"recipe\"?");
  expect_usage(moe_route("{\"recipe\": \"swich\", \"logits\": [[1]]}", &json), "switch");
  expect_usage(moe_route("[]", &json), "object");
  moe_model* none = model_;
  expect_usage(moe_load(&none, folder().c_str(), "{\"dtype\": \"f64\"}"), "f64");
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(moe_load(&none, (folder_ / "absent").c_str(), nullptr), MOE_FAILED);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "absent", moe_last_error());
  EXPECT_EQ(moe_load(&none, "not\nhere \xc3\xbc", nullptr), MOE_FAILED);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "not?here \xc3\xbc: ", moe_last_error());
  expect_usage(moe_load(&none, "", nullptr), "moe_load: folder is empty");
  expect_usage(moe_save(model_, "", nullptr), "moe_save: folder is empty");
  expect_usage(moe_generate(model_, "a", 1, "{\"tokens\": 1.5}", nullptr, nullptr, &json),
               "\"tokens\" is 1.5; a whole number is needed");
  expect_usage(moe_generate(model_, "a", 1, "{\"temperature\": \"hot\"}", nullptr, nullptr, &json),
               "\"temperature\" is \"hot\"; a number is needed");
  const int32_t outside[] = {1, 256};
  std::vector<float> logits(512);
  EXPECT_EQ(moe_logits(model_, outside, 2, logits.data()), MOE_FAILED);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "256", moe_last_error());
  expect_usage(moe_logits(model_, outside, 0, logits.data()), "at least one id");
  expect_usage(moe_logits(model_, nullptr, 0, nullptr), "at least one id");
  expect_usage(moe_routing(model_, nullptr, 0, nullptr, nullptr), "at least one id");
}

TEST_F(Api, WhatDoesNotFitFailsBeforeItStarts) {
  moe_model* little = nullptr;
  ASSERT_EQ(moe_load(&little, folder().c_str(), "{\"memory\": \"1M\", \"pack-memory\": \"1K\"}"),
            MOE_OK)
      << moe_last_error();
  const int32_t ids[] = {1, 2, 3, 4};
  std::vector<float> logits(4 * 256);
  EXPECT_EQ(moe_logits(little, ids, 4, logits.data()), MOE_FAILED);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "more of memory", moe_last_error());
  EXPECT_EQ(moe_generate(little, "a", 1, nullptr, nullptr, nullptr, nullptr), MOE_FAILED);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "left of memory", moe_last_error());
  EXPECT_EQ(moe_score(little, ids, 4, "{\"window\": 4}", nullptr, nullptr), MOE_FAILED);
  moe_close(little);
  ASSERT_EQ(moe_load(&little, folder().c_str(), "{\"pack_memory\": \"1K\"}"), MOE_OK)
      << moe_last_error();
  EXPECT_EQ(moe_logits(little, ids, 4, logits.data()), MOE_OK) << moe_last_error();
  moe_close(little);
  expect_usage(moe_load(&little, folder().c_str(), "{\"memory\": \"lots\"}"), "lots");
}

// A text takes no memory beyond the positions that there are, however long it may be: 32 here,
// where as many tokens as are asked for would take 8 GiB.
TEST_F(Api, ATextTakesNoMoreThanItsLearnedPositions) {
  const TempFolder learned;
  ModelConfig config = plain_config();
  config.positions = Positions::learned;
  save_model(learned / "m", *fresh(config), *make_tokenizer("bytes"));
  moe_model* model = nullptr;
  ASSERT_EQ(moe_load(&model, (learned / "m").c_str(), "{\"memory\": \"4G\"}"), MOE_OK)
      << moe_last_error();
  char* json = nullptr;
  EXPECT_EQ(moe_generate(model, "Once", 4, "{\"tokens\": 16777216}", nullptr, nullptr, &json),
            MOE_OK)
      << moe_last_error();
  EXPECT_EQ(parse_json(take(json), "reply").at("tokens"), 32 - 4 + 1);
  moe_close(model);
}

// A binding makes its signatures of them, so every one that is told must be taken, under each of
// its names.
TEST_F(Api, TellsTheOptionsOfItsFunctions) {
  for (const char* function : {"train", "load", "save", "generate", "session_open",
                               "session_generate", "score", "route"}) {
    char* json = nullptr;
    ASSERT_EQ(moe_options(function, &json), MOE_OK) << moe_last_error();
    const Json rows = Json::parse(take(json));
    EXPECT_FALSE(rows.empty()) << function;
    for (const Json& row : rows)
      for (const char* key :
           {"name", "also", "kind", "help", "unit", "group", "default", "values", "required"})
        EXPECT_TRUE(row.contains(key)) << row.dump();
    if (function != std::string("generate")) continue;
    for (const Json& row : rows) {
      Json options = {{"tokens", 3}};
      if (row["name"] != "tokens") options[row["name"].get<std::string>()] = row["default"];
      EXPECT_EQ(Json::parse(generated(options.dump().c_str())).at("tokens"), 3) << options.dump();
    }
  }
  EXPECT_EQ(generated("{\"max_new_tokens\": 5, \"repetition_penalty\": 1.5}"),
            generated("{\"tokens\": 5, \"repeat_penalty\": 1.5}"));
  char* json = nullptr;
  expect_usage(moe_options("generat", &json),
               "no function with options is called \"generat\"; did you mean \"generate\"?");
  expect_usage(moe_options(nullptr, &json), "moe_options: function is NULL");
  expect_usage(moe_options("train", nullptr), "moe_options: json is NULL");
}

TEST_F(Api, NullIsRefusedByName) {
  char* json = nullptr;
  int32_t* ids = nullptr;
  size_t count = 0;
  const int32_t id = 1;
  float number = 0;
  int32_t expert = 0;
  moe_model* loaded = nullptr;
  expect_usage(moe_load(nullptr, "x", nullptr), "moe_load: model is NULL");
  expect_usage(moe_load(&loaded, nullptr, nullptr), "moe_load: folder is NULL");
  expect_usage(moe_save(nullptr, "x", nullptr), "moe_save: model is NULL");
  expect_usage(moe_save(model_, nullptr, nullptr), "moe_save: folder is NULL");
  expect_usage(moe_inspect(nullptr, &json), "moe_inspect: model is NULL");
  expect_usage(moe_inspect(model_, nullptr), "moe_inspect: json is NULL");
  expect_usage(moe_encode(nullptr, "a", 1, &ids, &count), "moe_encode: model is NULL");
  expect_usage(moe_encode(model_, nullptr, 1, &ids, &count), "moe_encode: text is NULL");
  expect_usage(moe_encode(model_, "a", 1, nullptr, &count), "moe_encode: ids is NULL");
  expect_usage(moe_encode(model_, "a", 1, &ids, nullptr), "moe_encode: count is NULL");
  expect_usage(moe_decode(nullptr, &id, 1, &json, &count), "moe_decode: model is NULL");
  expect_usage(moe_decode(model_, nullptr, 1, &json, &count), "moe_decode: ids is NULL");
  expect_usage(moe_decode(model_, &id, 1, nullptr, &count), "moe_decode: text is NULL");
  expect_usage(moe_generate(nullptr, "a", 1, nullptr, nullptr, nullptr, &json),
               "moe_generate: model is NULL");
  expect_usage(moe_generate(model_, nullptr, 1, nullptr, nullptr, nullptr, &json),
               "moe_generate: prompt is NULL");
  expect_usage(moe_score(nullptr, &id, 1, nullptr, nullptr, &json), "moe_score: model is NULL");
  expect_usage(moe_score(model_, nullptr, 1, nullptr, nullptr, &json), "moe_score: ids is NULL");
  expect_usage(moe_logits(nullptr, &id, 1, &number), "moe_logits: model is NULL");
  expect_usage(moe_logits(model_, nullptr, 1, &number), "moe_logits: ids is NULL");
  expect_usage(moe_logits(model_, &id, 1, nullptr), "moe_logits: logits is NULL");
  expect_usage(moe_routing(nullptr, &id, 1, &expert, &number), "moe_routing: model is NULL");
  expect_usage(moe_routing(model_, nullptr, 1, &expert, &number), "moe_routing: ids is NULL");
  expect_usage(moe_routing(model_, &id, 1, nullptr, &number), "moe_routing: experts is NULL");
  expect_usage(moe_routing(model_, &id, 1, &expert, nullptr), "moe_routing: weights is NULL");
  expect_usage(moe_route(nullptr, &json), "moe_route: input is NULL");
  expect_usage(moe_route("{}", nullptr), "moe_route: json is NULL");
  expect_usage(moe_recipes(nullptr), "moe_recipes: json is NULL");
  moe_close(nullptr);
  moe_free(nullptr);
}

TEST_F(Api, NothingIsThrownThroughIt) {
  EXPECT_EQ(api::guarded([] { throw std::bad_alloc(); }), MOE_FAILED);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "out of memory", moe_last_error());
  EXPECT_EQ(api::guarded([] { throw std::out_of_range("far"); }), MOE_FAILED);
  EXPECT_STREQ(moe_last_error(), "far");
  EXPECT_EQ(api::guarded([] { throw 7; }), MOE_FAILED);
}

// A failure leaves the handle as it was, and its message in its own thread only.
TEST_F(Api, ThreadsHaveModelsAndMessagesApart) {
  const std::string alone = generated("{\"tokens\": 60, \"seed\": 9}");
  expect_usage(moe_route("[]", nullptr), "moe_route");
  const std::string before = moe_last_error();
  std::vector<std::string> texts(2), messages(2);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 2; ++t)
    threads.emplace_back([&, t] {
      moe_model* model = nullptr;
      char* json = nullptr;
      if (moe_load(&model, folder().c_str(), t == 0 ? "{\"threads\": 1}" : "{\"threads\": 2}") !=
          MOE_OK)
        return;
      for (int repeat = 0; repeat < 3; ++repeat) {
        const int32_t outside = 1000 + static_cast<int32_t>(t);
        std::vector<float> logits(256);
        moe_logits(model, &outside, 1, logits.data());
        messages[t] = moe_last_error();
        moe_generate(model, "line ", 5, "{\"tokens\": 60, \"seed\": 9}", nullptr, nullptr, &json);
        texts[t] = take(json);
      }
      moe_close(model);
    });
  for (std::thread& thread : threads) thread.join();
  for (size_t t = 0; t < 2; ++t) {
    EXPECT_EQ(texts[t], alone) << t;
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, std::to_string(1000 + t), messages[t]);
  }
  EXPECT_EQ(moe_last_error(), before);
}

}  // namespace
}  // namespace moe::test::api_test
