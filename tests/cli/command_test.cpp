// The command as a user meets it: what it writes, that the same command gives the same bytes
// however often it is interrupted, and one clear line where it cannot do what was asked. Hostile
// model files are in model_files_test.cpp.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "hub/hub.h"
#include "support/command.h"
#include "text/tokenizer.h"

namespace moe::test::command_test {
namespace {

namespace fs = std::filesystem;

class Command : public ::testing::Test {
 protected:
  Command() { put(text_, small_text(200)); }
  // The smallest run, with `more` in place of or after the options it names.
  std::vector<std::string> train(const std::string& out, std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {"train", "--out", out};
    const std::vector<std::pair<std::string, std::string>> usual = {
        {"--data", text_},  {"--width", "16"}, {"--heads", "2"},         {"--layers", "2"},
        {"--experts", "4"}, {"--top-k", "2"},  {"--expert-width", "16"}, {"--context", "16"},
        {"--batch", "2"},   {"--steps", "3"},  {"--threads", "2"}};
    for (const auto& [flag, value] : usual)
      if (std::find(more.begin(), more.end(), flag) == more.end())
        words.insert(words.end(), {flag, value});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  void train_ok(const std::string& out, std::vector<std::string> more = {}) const {
    const CommandResult r = moe_command(train(out, std::move(more)));
    ASSERT_EQ(r.code, 0) << r.err;
  }
  // A refused run leaves nothing: no folder, or an empty one.
  void refused(const std::vector<std::string>& more, int code,
               const std::vector<std::string>& parts) const {
    const std::string out = folder_ / "refused";
    expect_refused(train(out, more), code, parts);
    EXPECT_TRUE(!fs::exists(out) || fs::is_empty(out)) << "something was left in OUT";
    fs::remove_all(out);
  }

  TempFolder folder_;
  std::string text_ = folder_ / "text.txt";
};

TEST_F(Command, TrainWritesAModelAndItsMetrics) {
  const CommandResult r = moe_command(train(folder_ / "m", {"--json"}));
  ASSERT_EQ(r.code, 0) << r.err;
  const Json reply = Json::parse(r.out);
  EXPECT_EQ(reply.at("step"), 3);
  EXPECT_EQ(reply.at("tokens"), 96);
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"})
    EXPECT_TRUE(fs::exists(folder_ / "m/" + name)) << name;
  std::istringstream metrics(slurp(folder_ / "m/metrics.jsonl"));
  int step = 0;
  for (std::string line; std::getline(metrics, line);) {
    const Json m = Json::parse(line);
    EXPECT_EQ(m.at("step"), ++step);
    EXPECT_EQ(m.at("tokens"), 32 * step);
    for (const char* key : {"seconds", "ce", "balance", "z", "grad_norm", "lr", "tokens_per_second",
                            "dropped", "max_vio"})
      EXPECT_TRUE(m.at(key).is_number()) << key;
    EXPECT_GT(m.at("grad_norm"), 0);
    ASSERT_EQ(m.at("layers").size(), 2u);
    for (const Json& layer : m.at("layers")) {
      ASSERT_EQ(layer.at("load").size(), 4u);
      double load = 0;
      for (const Json& share : layer.at("load")) load += share.get<double>();
      EXPECT_NEAR(load, 1, 1e-6);
      EXPECT_GE(layer.at("max_vio"), 0);
    }
  }
  EXPECT_EQ(step, 3);
}

TEST_F(Command, LearnsATokenizerAndCountsItsBytes) {
  const std::string out = folder_ / "bpe";
  train_ok(out, {"--tokenizer", "bpe:270"});
  const auto tokenizer = load_tokenizer(out);
  EXPECT_EQ(tokenizer->spec(), "bpe");
  const CommandResult r =
      moe_command({"score", out, "--text", text_, "--window", "16", "--per-token", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const Json score = Json::parse(r.out);
  const auto ids = score.at("ids").get<std::vector<int32_t>>();
  EXPECT_EQ(tokenizer->decode(ids), slurp(text_).substr(0, tokenizer->decode(ids).size()));
  double nats = 0, bytes = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (score.at("logprobs")[i].is_null()) continue;
    nats -= score.at("logprobs")[i].get<double>();
    bytes += static_cast<double>(tokenizer->piece(ids[i]).size());
  }
  EXPECT_GT(bytes, 1.1 * static_cast<double>(ids.size()));
  EXPECT_NEAR(score.at("bits_per_byte").get<double>(), nats / bytes / std::log(2.0), 1e-6);
  train_ok(folder_ / "taken", {"--tokenizer", out});
  EXPECT_EQ(slurp(folder_ / "taken/tokenizer.json"), slurp(out + "/tokenizer.json"));
  refused({"--tokenizer", "bpe:12"}, 2, {"bpe:12", "from 257"});
}

// The weights' shape and recipe stay as they are; what the losses are multiplied by does not belong
// to them.
TEST_F(Command, StartsFromOtherWeights) {
  const std::string first = folder_ / "first", out = folder_ / "second";
  train_ok(first);
  const auto from = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"train", "--from", first, "--data", text_, "--out", out, "--context",
                               "16", "--batch", "2", "--schedule", "constant", "--warmup", "0",
                               "--threads", "2", "--no-report"});
    return more;
  };
  for (const auto& [flag, value] : std::map<std::string, std::string>{
           {"--layers", "7"}, {"--recipe", "switch"}, {"--stages", "{}"}, {"--dropout", "0.1"}}) {
    expect_refused(from({flag, value}), 2, {"--from brings its model, so " + flag});
    EXPECT_FALSE(fs::exists(out));
  }
  expect_refused(from({"--tokenizer", "bytes"}), 2, {"--from brings the tokenizer"});
  expect_refused(from({"--device-loss", "0.5"}), 2,
                 {"recipe 'olmoe' has no such loss", "--device-loss"});
  ASSERT_EQ(moe_command(from({"--balance", "0.5", "--steps", "2"})).code, 0);
  EXPECT_EQ(load_model(out).model->config().routing.coef.balance, 0.5f);
  EXPECT_EQ(load_model(out).model->config().routing.coef.z,
            load_model(first).model->config().routing.coef.z);
  expect_refused(from({"--balance", "0.25", "--steps", "4", "--resume"}), 2,
                 {"cannot resume", "router_aux_loss_coef"});
  for (const char* same : {"4", "6"})
    EXPECT_EQ(moe_command(from({"--balance", "0.5", "--steps", same, "--resume"})).code, 0);
  EXPECT_EQ(moe_command(from({"--steps", "7", "--resume"})).code, 0);
}

TEST_F(Command, TheOtherVerbsReadIt) {
  train_ok(folder_ / "m");
  const CommandResult score = moe_command({"score", folder_ / "m", "--text", text_, "--window",
                                           "16", "--windows", "3", "--json", "--per-token"});
  ASSERT_EQ(score.code, 0) << score.err;
  const Json s = Json::parse(score.out);
  EXPECT_EQ(s.at("tokens"), 45);
  EXPECT_NEAR(s.at("perplexity").get<double>(), std::exp(s.at("nats_per_token").get<double>()),
              1e-9);
  EXPECT_GT(s.at("bits_per_byte"), 0);
  EXPECT_EQ(s.at("ids").size(), 48u);
  for (size_t i = 0; i < 48; ++i) EXPECT_EQ(s.at("logprobs")[i].is_null(), i % 16 == 0) << i;

  const std::vector<std::string> generate = {"generate", folder_ / "m", "-p",     "The",
                                             "-n",       "20",          "--seed", "3"};
  const CommandResult text = moe_command(generate);
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_TRUE(text.out.starts_with("The"));
  EXPECT_TRUE(text.err.starts_with("note: 22 tokens in one text are more than the 16 "))
      << text.err;
  EXPECT_EQ(moe_command(generate).out, text.out);
  std::vector<std::string> as_json = generate;
  as_json.push_back("--json");
  const Json g = Json::parse(moe_command(as_json).out);
  EXPECT_EQ(g.at("tokens"), 20);
  EXPECT_EQ(g.at("finish"), "length");
  EXPECT_EQ("The" + g.at("text").get<std::string>() + "\n", text.out);

  const CommandResult inspect = moe_command({"inspect", folder_ / "m", "--json"});
  ASSERT_EQ(inspect.code, 0) << inspect.err;
  const Json i = Json::parse(inspect.out);
  EXPECT_GT(i.at("parameters").at("total"), i.at("parameters").at("active"));
  EXPECT_EQ(moe_command({"inspect", folder_ / "m"}).code, 0);
}

TEST_F(Command, TheSameCommandWritesTheSameBytes) {
  train_ok(folder_ / "a");
  train_ok(folder_ / "b");
  train_ok(folder_ / "c", {"--seed", "2"});
  const std::string model = slurp(folder_ / "a/model.safetensors");
  EXPECT_EQ(slurp(folder_ / "b/model.safetensors"), model);
  EXPECT_NE(slurp(folder_ / "c/model.safetensors"), model);
}

// The first run gets Ctrl-C once it has made some steps; so many are asked for that it cannot be
// done by then.
TEST_F(Command, InterruptedAndResumedIsUninterrupted) {
  for (const std::string dtype : {"f32", "bf16"}) {
    const std::string out = folder_ / "broken-" + dtype, whole = folder_ / "whole-" + dtype;
    const std::vector<std::string> options = {"--steps",   "1500", "--batch",  "1",
                                              "--dtype",   dtype,  "--recipe", "nanomoe",
                                              "--dropout", "0.1"};
    const CommandResult r = moe_command(train(out, options), [&](pid_t child) {
      for (int wait = 0;
           wait < 3000 && slurp(out + "/metrics.jsonl").find("\"step\":20,") == std::string::npos;
           ++wait)
        usleep(2000);
      kill(child, SIGINT);
    });
    EXPECT_EQ(r.code, 130) << r.err;
    ASSERT_NE(r.err.find("interrupted"), std::string::npos) << r.err;
    ASSERT_EQ(moe_command({"inspect", out}).code, 0);
    std::vector<std::string> again = options;
    again.push_back("--resume");
    train_ok(out, again);
    train_ok(whole, options);
    EXPECT_TRUE(slurp(out + "/model.safetensors") == slurp(whole + "/model.safetensors")) << dtype;
    const std::string metrics = slurp(out + "/metrics.jsonl");
    EXPECT_EQ(std::count(metrics.begin(), metrics.end(), '\n'), 1500);
  }
}

// As a shell runs it, with `streams` redirected. Standard error lands in err.
int in_shell(const std::vector<std::string>& words, const std::string& streams) {
  std::string line = fmt::format("'{}'", MOE_BINARY);
  for (const std::string& word : words) line += fmt::format(" '{}'", word);
  const int status = std::system(fmt::format("{} {}", line, streams).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST_F(Command, OutputThatIsLostIsAFailure) {
  const std::string out = folder_ / "m", err = folder_ / "err";
  train_ok(out);
  const std::vector<std::vector<std::string>> commands = {
      {"--help"},
      {"man"},
      {"recipes", "--json"},
      {"generate", out, "-p", "x", "-n", "3"},
      {"score", out, "--text", text_, "--json"}};
  for (const auto& words : commands) {
    EXPECT_EQ(in_shell(words, "</dev/null >/dev/null 2>/dev/null"), 0) << words[0];
    EXPECT_EQ(in_shell(words, fmt::format("</dev/null >/dev/full 2>'{}'", err)), 1) << words[0];
    const std::string said = slurp(err);
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, "moe: standard output could not be written", said)
        << words[0];
    EXPECT_EQ(said.find("cannot write to file"), std::string::npos) << said;
  }
}

// A run of days is not lost because its log is: on a full disk, or with no standard error, whose
// number a file of the run must not get.
TEST_F(Command, LogThatIsLostEndsNoRun) {
  train_ok(folder_ / "usual");
  for (const std::string streams : {"2>/dev/full", "2>&-", "<&- >&- 2>&-"}) {
    const std::string out = folder_ / "deaf";
    EXPECT_EQ(in_shell(train(out), streams), 0) << streams;
    EXPECT_TRUE(slurp(out + "/model.safetensors") == slurp(folder_ / "usual/model.safetensors"))
        << streams;
    std::istringstream metrics(slurp(out + "/metrics.jsonl"));
    for (std::string line; std::getline(metrics, line);)
      EXPECT_TRUE(Json::accept(line)) << streams << ": " << line;
    fs::remove_all(out);
  }
  EXPECT_EQ(in_shell({"wrong"}, "2>/dev/full"), 2);
}

TEST_F(Command, HelpNamesEveryOption) {
  const CommandResult all = moe_command({"--help"});
  EXPECT_EQ(all.code, 0);
  for (const char* verb : {"train", "tokenize", "generate", "chat", "score", "upcycle", "merge",
                           "prune", "inspect", "recipes", "route", "bench"})
    EXPECT_NE(all.out.find(verb), std::string::npos) << verb;
  const std::vector<std::pair<std::string, std::string>> promised = {
      {"train",
       "data out preset recipe layers width heads kv-heads experts top-k expert-width "
       "shared-experts moe-every dense-first capacity-factor balance z-loss "
       "tokenizer mix hold-out "
       "memory show-memory context batch accumulate steps lr lr-times warmup min-lr weight-decay "
       "clip seed dtype recompute shuffle eval-data eval-every save-every resume from config json "
       "stages "
       "expert-groups groups-kept routed-scaling-factor balance-over importance-loss load-loss "
       "device-loss communication-loss"},
      {"tokenize", "data tokenizer out hold-out threads json"},
      {"generate",
       "prompt temperature top-k top-p min-p repeat-penalty seed stop routing top-k-experts "
       "prompt-lookup draft draft-tokens draft-min-p dtype cache-dtype pack-memory hot-set threads "
       "json"},
      {"chat",
       "system tokens temperature top-k top-p min-p repeat-penalty seed stop routing top-k-experts "
       "prompt-lookup draft draft-tokens draft-min-p dtype cache-dtype pack-memory hot-set threads "
       "json"},
      {"score",
       "memory pack-memory show-memory text window windows routing top-k-experts dtype json "
       "per-token"},
      {"inspect", "memory pack-memory show-memory json preset top-k-experts"},
      {"bench",
       "prompt tokens repeats seed top-k-experts dtype cache-dtype pack-memory hot-set threads "
       "json"},
      {"route",
       "recipe stages experts top-k capacity-factor expert-groups groups-kept "
       "routed-scaling-factor eval logits seed draw json"},
      {"upcycle",
       "experts top-k granularity recipe layers noise noise-share down-scale seed dtype threads "
       "json"},
      {"merge", "base expert gates top-k recipe seed dtype threads json"},
      {"prune",
       "memory pack-memory show-memory experts calibration windows window saliency verify dtype "
       "threads json"},
      {"recipes", "json"}};
  for (const auto& [verb, options] : promised) {
    const CommandResult help = moe_command({verb, "--help"});
    EXPECT_EQ(help.code, 0);
    EXPECT_EQ(help.err, "");
    std::istringstream words(options);
    for (std::string option; words >> option;)
      EXPECT_NE(help.out.find("--" + option), std::string::npos) << verb << " --" << option;
  }
  const CommandResult version = moe_command({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_TRUE(version.out.starts_with("moe ")) << version.out;
}

TEST_F(Command, RefusesRatesOfNoPart) {
  refused({"--lr-times", "experst=3"}, 2, {"--lr-times experst=3", "\"experts\""});
  refused({"--lr-times", "experts=0"}, 2, {"--lr-times experts=0", "above 0"});
  refused({"--lr-times", "experts"}, 2, {"PART=FACTOR", "experts=3"});
  for (const char* key : {"lr-times", "lr_times"}) {
    put(folder_ / "rates.json", fmt::format(R"({{"{}": {{"experst": 3}}}})", key));
    refused({"--config", folder_ / "rates.json"}, 2, {"--lr-times experst=3"});
  }
}

TEST_F(Command, RefusesDataThatIsNoText) {
  put(folder_ / "empty.txt", "");
  put(folder_ / "binary.txt", std::string("abc\0def", 7));
  put(folder_ / "short.txt", "0123456789abcdef");  // 16 bytes; a row of 16 needs 17
  put(folder_ / "images/picture.png", std::string(100, '\0'));
  refused({"--data", folder_ / "none.txt"}, 1, {"none.txt"});
  refused({"--data", folder_ / "empty.txt"}, 1, {"empty.txt", "empty"});
  refused({"--data", folder_ / "binary.txt"}, 1, {"binary.txt", "NUL", "3"});
  refused({"--data", folder_ / "images"}, 1, {"images", "1 binary"});
  refused({"--data", folder_ / "short.txt"}, 1, {"16 tokens", "17", "--context"});
  refused({"--eval-data", folder_ / "empty.txt"}, 1, {"empty.txt"});
}

TEST_F(Command, RefusesModelsThatCannotBe) {
  refused({"--heads", "3"}, 2, {"16", "--heads"});
  refused({"--top-k", "5"}, 2, {"5", "4", "--top-k"});
  refused({"--recipe", "mixtral", "--top-k", "1"}, 2, {"gradient"});
  refused({"--layers", "-2"}, 2, {"-2", "--layers"});
  refused({"--layers", "9000000000000"}, 2, {"--layers"});
  refused({"--balance", "nan"}, 2, {"--balance"});
}

TEST_F(Command, RefusesNumbersThatAreNone) {
  refused({"--steps", "0"}, 2, {"--steps", "0"});
  refused({"--steps", "-3"}, 2, {"--steps", "-3"});
  refused({"--batch", "-1"}, 2, {"--batch", "-1"});
  refused({"--lr", "abc"}, 2, {"--lr", "abc"});
  refused({"--lr", "-0.1"}, 2, {"--lr"});
  refused({"--lr"}, 2, {"--lr needs a value"});
  refused({"--steps", "abc"}, 2, {"--steps: 'abc' is given; it takes a whole number"});
  refused({"--heads", "2", "--heads", "4"}, 2, {"--heads is given more than once"});
  refused({"--bias", "maybe"}, 2, {"--bias", "true or false"});
  refused({"--width", "1.5"}, 2, {"--width", "1.5"});
  refused({"--seed", "99999999999999999999999"}, 2, {"--seed"});
  refused({"--seed", "-1"}, 2, {"--seed", "-1", "from 0 to"});
}

TEST_F(Command, OffersTheNearestName) {
  refused({"--recipe", "olmo"}, 2, {"olmo", "\"olmoe\""});
  refused({"--preset", "tinny"}, 2, {"tinny", "\"tiny\""});
  refused({"--widht", "16"}, 2, {"--widht", "\"--width\""});
  refused({"--architecture", "olmo"}, 2, {"\"olmoe\""});
  refused({"--tokenizer", "byte"}, 2, {"\"bytes\""});
  put(folder_ / "run.json", R"({"layres": 2})");
  refused({"--config", folder_ / "run.json"}, 2, {"run.json", "\"layres\"", "\"layers\""});
  // What other programs call it is known too.
  refused({"--batch_size", "16"}, 2, {"--batch_size", "moe calls it --batch;"});
  refused({"--learning-rate=1"}, 2, {"moe calls it --lr;"});
  refused({"--model", "m"}, 2, {"moe calls it --from;"});
  refused({"text.txt"}, 2, {"'text.txt' has no meaning here; is it meant for --data?"});
  expect_refused({"generate", "-m", "m", "-p", "x"}, 2, {"'-m'", "MODEL stands without a flag"});
  expect_refused({"generate", "m", "hello"}, 2, {"'hello'", "is it meant for --prompt?"});
  expect_refused({"serve", "m", "--n-gpu-layers", "9"}, 2, {"moe calls it --device cuda;"});
  expect_refused({"convert", "m", "x.gguf", "--outtype", "f16"}, 2, {"moe calls it --dtype, or"});
  expect_refused({"convert", "m", "--outfile", "x.gguf"}, 2, {"OUT stands without a flag"});
  // Not -h and -n with something behind them.
  expect_refused({"serve", "-hf", "a/b"}, 2, {"'-hf'", "MODEL stands without a flag"});
  expect_refused({"generate", "m", "-p", "x", "-ngl", "9"}, 2, {"'-ngl'", "it --device cuda;"});
  expect_refused({"generate", "m", "-p", "x", "-ngl"}, 2, {"'-ngl'"});
  // What is called otherwise in another verb, and what nobody has to ask for.
  refused({"--out_dir=x"}, 2, {"moe calls it --out;"});
  refused({"-f", "x"}, 2, {"'-f'", "moe calls it --data;"});
  expect_refused({"score", "m", "-f", "x"}, 2, {"'-f'", "moe calls it --text;"});
  expect_refused({"score", "m", "--chunks", "4"}, 2, {"moe calls it --windows;"});
  expect_refused({"serve", "m", "--max-model-len=9"}, 2, {"moe calls it --context;"});
  expect_refused({"chat", "m", "-c", "512"}, 2, {"moe calls it --context;"});
  expect_refused({"generate", "m", "-p", "x", "-c", "512"}, 2, {"'-c'", "leave it out: room is"});
  expect_refused({"generate", "m", "-p", "x", "-fa"}, 2, {"'-fa'", "leave it out: there is no"});
  expect_refused({"serve", "m", "--jinja"}, 2, {"leave it out: the chat template"});
  expect_refused({"-v"}, 2, {"moe calls it --version"});
  expect_refused({"--verison"}, 2, {"\"--version\""});
  expect_refused({"generate", folder_.path(), "-p", "x", "--temp", "0"}, 2, {"\"--temperature\""});
  expect_refused({"trian"}, 2, {"trian", "\"train\""});
  expect_refused({"score", folder_.path(), "--txt", "x"}, 2, {"--txt", "\"--text\""});
}

TEST_F(Command, RefusesFoldersItMayNotWrite) {
  train_ok(folder_ / "m");
  const std::string before = slurp(folder_ / "m/model.safetensors");
  expect_refused(train(folder_ / "m"), 1, {folder_ / "m", "--resume", "--out"});
  EXPECT_EQ(slurp(folder_ / "m/model.safetensors"), before);
  expect_refused(train(text_ + "/inside"), 1, {"text.txt/inside", "--out"});
  expect_refused(train("/proc/moe-cannot-be-here"), 1, {"/proc/moe-cannot-be-here", "--out"});
}

TEST_F(Command, RefusesWhatGenerateAndScoreCannotDo) {
  train_ok(folder_ / "m");
  const std::string m = folder_ / "m";
  expect_refused({"generate", folder_ / "none", "-p", "x"}, 1, {"none", "config.json"});
  expect_refused({"generate", "two\nlines", "-p", "x"}, 1, {"two?lines"});
  expect_refused({"generate", text_, "-p", "x"}, 1, {"text.txt", "folder"});
  expect_refused({"generate", m, "-p", ""}, 2, {"prompt", "-p"});
  expect_refused({"generate", m}, 2, {"--prompt"});
  expect_refused({"generate", m, "-p", "x", "-n", "-1"}, 2, {"--tokens", "-1"});
  expect_refused({"generate", m, "-p", "x", "-n", "9000000000000000000"}, 2, {"--tokens"});
  expect_refused({"generate", m, "-p", "x", "--temperature", "-1"}, 2, {"--temperature"});
  expect_refused({"generate", m, "-p", "x", "--threads", "-1"}, 2, {"--threads"});
  put(folder_ / "short.txt", "too short");
  expect_refused({"score", m, "--text", folder_ / "short.txt", "--window", "16"}, 1,
                 {"9 tokens", "16", "--window"});
  expect_refused({"score", m, "--text", folder_ / "none.txt"}, 1, {"none.txt"});
  expect_refused({"score", m, "--text", text_, "--window", "1"}, 2, {"--window"});
  expect_refused({"inspect", folder_ / "none"}, 1, {"none: there is no such folder"});
}

}  // namespace
}  // namespace moe::test::command_test
