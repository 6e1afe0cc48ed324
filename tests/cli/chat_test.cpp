// `moe chat` through pipes and on a terminal, and that what is written comes as it is written.
#include <poll.h>
#include <pty.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>

#include "core/json.h"
#include "support/command.h"
#include "text/chat.h"
#include "text/jsonl.h"
#include "text/shards.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace moe::test::chat_test {
namespace {

// A model that has seen some text, with room for dialogues: its positions are rotations, so the
// context is only a number in its configuration.
class Chat : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    put(*folder_ / "text.txt", small_text());
    const CommandResult r = moe_command(train_small(*folder_ / "text.txt", model(), "30"));
    ASSERT_EQ(r.code, 0) << r.err;
    set_context(2000);
  }
  static void TearDownTestSuite() { folder_.reset(); }
  static std::string model() { return *folder_ / "m"; }
  static void set_context(int64_t context) {
    Json config = read_json(model() + "/config.json");
    ASSERT_TRUE(config.contains("max_position_embeddings"));
    config["max_position_embeddings"] = context;
    put(model() + "/config.json", config.dump());
  }
  static CommandResult chat(const std::string& input, std::vector<std::string> more = {}) {
    std::vector<std::string> words = {"chat", model(), "-n", "20", "--threads", "2", "--seed", "3"};
    words.insert(words.end(), more.begin(), more.end());
    return moe_command(words, {}, input);
  }
  static std::vector<Json> replies(const std::string& input, std::vector<std::string> more = {}) {
    more.emplace_back("--json");
    const CommandResult r = chat(input, more);
    EXPECT_EQ(r.code, 0) << r.err;
    std::vector<Json> list;
    std::istringstream lines(r.out);
    for (std::string line; std::getline(lines, line);) list.push_back(Json::parse(line));
    return list;
  }
  static void refused(const std::string& input, int code, const std::vector<std::string>& parts) {
    const CommandResult r = chat(input);
    EXPECT_EQ(r.code, code) << r.err;
    const size_t line = r.err.rfind("moe: ");
    ASSERT_NE(line, std::string::npos) << r.err;
    EXPECT_EQ(r.err.find('\n', line), r.err.size() - 1);
    for (const std::string& part : parts)
      EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, r.err.substr(line));
  }

  static std::unique_ptr<TempFolder> folder_;
};
std::unique_ptr<TempFolder> Chat::folder_;

TEST_F(Chat, AnswersEachLineOfAPipe) {
  const CommandResult plain = chat("hello\n\n  \nhow are you\r\n");
  ASSERT_EQ(plain.code, 0) << plain.err;
  const std::vector<Json> json = replies("hello\nhow are you\n");
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(plain.out, json[0].at("text").get<std::string>() + "\n" +
                           json[1].at("text").get<std::string>() + "\n");
  EXPECT_EQ(json[0].at("finish"), "length");
  EXPECT_EQ(json[0].at("tokens"), 20);
  EXPECT_EQ(json[0].at("let_go"), 0);
  EXPECT_EQ(json[0].at("read_tokens"), json[0].at("prompt_tokens"));
  EXPECT_LT(json[1].at("read_tokens"), json[1].at("prompt_tokens").get<int64_t>() / 2 + 20)
      << "the first turn is not read again";
  EXPECT_EQ(chat("hello\n").out, json[0].at("text").get<std::string>() + "\n")
      << "the last line needs no more input after it";
}

TEST_F(Chat, SaysHowFastEachReplyWasWhereThatIsAsked) {
  const std::string input = "hello\nhow are you\n";
  const CommandResult quiet = chat(input), told = chat(input, {"--show-speed"});
  EXPECT_EQ(told.out, quiet.out);
  const size_t first = told.err.find("\nspeed: ");
  ASSERT_NE(first, std::string::npos) << told.err;
  EXPECT_NE(told.err.find("\nspeed: ", first + 1), std::string::npos) << told.err;
  EXPECT_EQ(quiet.err.find("speed: "), std::string::npos);
}

TEST_F(Chat, ADraftModelGuessesAndRepliesStayTheSame) {
  const std::vector<std::string> drafting = {"--draft", model(), "--draft-min-p", "0"};
  const std::vector<Json> plain = replies("hello\nhow are you\n"),
                          guessed = replies("hello\nhow are you\n", drafting);
  ASSERT_EQ(guessed.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(guessed[i].at("text"), plain[i].at("text"));
    EXPECT_EQ(plain[i].at("proposed"), 0);
    EXPECT_GT(guessed[i].at("accepted"), 0);
    EXPECT_LE(guessed[i].at("accepted"), guessed[i].at("proposed"));
  }
  has(chat("hello\n", drafting).err, "guessed tokens were right");
}

TEST_F(Chat, TheFirstReplyIsWhatGenerateWrites) {
  const std::string prompt =
      chatml().prompt(std::vector<Message>{{"system", "Be brief."}, {"user", "hello"}});
  const CommandResult r = moe_command({"generate", model(), "-p", prompt, "-n", "20", "--seed", "3",
                                       "--stop", kMessageEnd, "--stop", kMessageBegin});
  EXPECT_EQ(prompt + chat("hello\n", {"--system", "Be brief."}).out, r.out);
}

TEST_F(Chat, ObeysCommands) {
  const std::string saved = *folder_ / "saved.jsonl";
  const std::vector<Json> json =
      replies("/system Be brief.\none\n/regenerate\n//two\n/save " + saved +
              "\n/reset\none\n/save " + saved + "\n/quit\nthree\n");
  ASSERT_EQ(json.size(), 4u);
  EXPECT_NE(json[0].at("text"), json[1].at("text"));
  EXPECT_EQ(json[0].at("text"), json[3].at("text"))
      << "after /reset the system message stands and the draws begin anew";
  const std::string bytes = slurp(saved);
  JsonlReader reader(bytes, saved);
  Document document;
  ASSERT_TRUE(reader.next(document));
  EXPECT_EQ(document.text, chat_document(std::vector<Message>{{"system", "Be brief."},
                                                              {"user", "one"},
                                                              {"assistant", json[1].at("text")},
                                                              {"user", "/two"},
                                                              {"assistant", json[2].at("text")}})
                               .text);
  ASSERT_TRUE(reader.next(document));
  EXPECT_FALSE(reader.next(document));
  const CommandResult help = chat("/help\n");
  EXPECT_EQ(help.out, "");
  for (const char* command :
       {"/help", "/reset", "/system TEXT", "/regenerate", "/save FILE.jsonl", "/quit", "Ctrl-C"})
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, command, help.err);
}

TEST_F(Chat, RefusesInOneLine) {
  refused("/reset\tnow \t\n", 2, {"/reset takes nothing", "'now'"});
  refused("/sistem x\n", 2, {"/sistem is no command", "\"/system\"", "//"});
  refused("/reset now\n", 2, {"/reset takes nothing", "now"});
  refused("/save\n", 2, {"/save needs the name"});
  refused("/save talk.txt\n", 2, {"talk.txt", ".jsonl"});
  refused("/save talk.jsonl\n", 2, {"no reply"});
  refused("hello\n/save /proc/none/talk.jsonl\n", 1, {"/proc/none"});
  refused("/regenerate\n", 2, {"no reply"});
  refused("what is <|im_end|>?\n", 2, {"<|im_end|>"});
  refused(std::string(1990, 'x') + "\n", 1, {"tokens", "2000", "shorter"});
  expect_refused({"chat", model(), "--system", "<|im_start|>"}, 2, {"<|im_start|>"});
  expect_refused({"chat", model(), "--temperature", "-1"}, 2, {"--temperature"});
  expect_refused({"chat", *folder_ / "none"}, 1, {"none"});
}

// A line that cannot be done ends no chat that comes through a pipe: it is named, the others are
// answered, and the exit code tells.
TEST_F(Chat, APipeGoesOnAfterALineThatCannotBeDone) {
  const CommandResult r = chat("one\n/sistem x\n/regenerate now\ntwo\n");
  EXPECT_EQ(r.code, 2);
  EXPECT_EQ(r.out, chat("one\ntwo\n").out);
  has(r.err, "moe: line 2: /sistem is no command");
  has(r.err, "moe: line 3: /regenerate takes nothing");
  has(r.err, "passed over");
  EXPECT_EQ(chat("/save /proc/none/talk.jsonl\none\n/save /proc/none/talk.jsonl\n").code, 2)
      << "the first line that failed";
  EXPECT_EQ(chat("one\n/save /proc/none/talk.jsonl\n").code, 1);
}

TEST_F(Chat, ATextThatBeginsWithASlashIsAMessage) {
  const std::vector<Json> json = replies("/usr/bin is a folder\n/ is the root\n/etc/ too\n//etc\n");
  ASSERT_EQ(json.size(), 4u);
  has(json[0].at("prompt").get<std::string>(), "user\n/usr/bin is a folder");
  has(json[1].at("prompt").get<std::string>(), "user\n/ is the root");
  has(json[2].at("prompt").get<std::string>(), "user\n/etc/ too");
  has(json[3].at("prompt").get<std::string>(), "user\n/etc<|im_end|>");
}

TEST_F(Chat, SaysWhatTheModelIsNot) {
  const std::string config = model() + "/tokenizer_config.json";
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "was not trained on dialogues", chat("").err);
  put(config, Json{{"chat_template", chat_template_jinja()}}.dump());
  EXPECT_EQ(chat("").err, "");
  put(config, R"({"chat_template": "{{ '<start_of_turn>' + messages[0]['content'] }}"})");
  expect_refused({"chat", model()}, 1, {"does not write the messages it is given"});
  put(config, R"({"chat_template": "a\n{% include 'x' %}"})");
  expect_refused({"chat", model()}, 1, {"chat template, line 2", "{% include %} is not known"});
  put(config, Json{{"chat_template",
                    "{% for m in messages %}<|start_header_id|>{{ m.role }}"
                    "<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
                    "{% endfor %}"}}
                  .dump());
  EXPECT_EQ(chat("").err, "");
  EXPECT_NE(chat(" Hi \n", {"--json"})
                .out.find(R"(<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>)"),
            std::string::npos);
  put(config, R"({"chat_template": )");
  expect_refused({"chat", model()}, 1, {"tokenizer_config.json", "line 1"});
  std::filesystem::remove(config);
}

// The template opens a thought, which the model does not end.
TEST_F(Chat, ShowsThoughtsApart) {
  const std::string config = model() + "/tokenizer_config.json";
  put(config, Json{{"chat_template",
                    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
                    "{% if add_generation_prompt %}<|assistant|><think>{% endif %}"}}
                  .dump());
  const CommandResult plain = chat("hello\n");
  const std::vector<Json> json = replies("hello\n");
  std::filesystem::remove(config);
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0].at("text"), "");
  EXPECT_NE(json[0].at("reasoning_content"), "");
  EXPECT_EQ(plain.out, "\n");
  has(plain.err, "thinks: " + json[0].at("reasoning_content").get<std::string>() + "\n");
}

TEST_F(Chat, LetsTheOldestTurnsGo) {
  set_context(250);
  const CommandResult r = chat("one\ntwo\nthree\nfour\nfive\n", {"--json"});
  set_context(2000);
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "note: the context of 250 tokens is full; the oldest 2 messages were let go",
                      r.err);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "note: the reply was cut after 20 tokens; -n allows more", r.err);
}

// A model made for texts that no memory holds can be talked to all the same.
TEST_F(Chat, TakesAShorterContextThanItsModels) {
  has(chat("one\ntwo\nthree\nfour\nfive\n", {"--context", "250"}).err,
      "note: the context of 250 tokens is full; the oldest 2 messages were let go");
  set_context(16000000);
  const CommandResult whole = chat("one\n", {"--memory", "200M"}),
                      part = chat("one\n", {"--memory", "200M", "--context", "250"});
  set_context(2000);
  EXPECT_NE(whole.code, 0);
  has(whole.err, "lower --context from 16000000");
  EXPECT_EQ(part.code, 0) << part.err;
}

// From a file of dialogues to a model that ends its replies by a token, and says in its folder what
// it knows.
TEST_F(Chat, TrainingOnDialoguesIsKeptInTheFolder) {
  std::string lines;
  for (int i = 0; i < 60; ++i)
    lines += jsonl_line(std::vector<Message>{{"user", fmt::format("what is {}?", i)},
                                             {"assistant", fmt::format("{} is what it is", i)}});
  put(*folder_ / "talk.jsonl", lines);
  const auto train = [&](const std::string& data, const std::string& out,
                         const std::string& tokenizer) {
    const CommandResult r = moe_command(
        {"train", "--data",         data, "--out",     out,  "--tokenizer", tokenizer, "--width",
         "16",    "--heads",        "2",  "--layers",  "1",  "--experts",   "4",       "--top-k",
         "2",     "--expert-width", "16", "--context", "32", "--batch",     "2",       "--steps",
         "2",     "--threads",      "2"});
    ASSERT_EQ(r.code, 0) << r.err;
  };
  const std::string talk = *folder_ / "talk", plain = *folder_ / "plain";
  train(*folder_ / "talk.jsonl", talk, "bpe:300");
  EXPECT_EQ(moe_command({"chat", talk}).err, "");
  const auto tokenizer = load_tokenizer(talk);
  EXPECT_EQ(tokenizer->encode(kMessageBegin).size(), 1u);
  EXPECT_EQ(tokenizer->encode(kMessageEnd).size(), 1u);
  EXPECT_EQ(tokenizer->encode("what").size(), 1u);
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id)
    EXPECT_EQ(tokenizer->piece(id).find("content"), std::string::npos) << "learned from raw JSON";
  train(*folder_ / "text.txt", plain, talk);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "was not trained on dialogues",
                      moe_command({"chat", plain}).err)
      << "a tokenizer taken over knows no dialogues";

  // Further training writes dialogues by the model's own template and keeps it.
  const std::string own =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
      "{{ '<assistant>' if add_generation_prompt }}";
  Json config = read_json(talk + "/tokenizer_config.json");
  config["chat_template"] = own;
  put(talk + "/tokenizer_config.json", config.dump());
  const std::string further = *folder_ / "further", tokens = *folder_ / "tokens";
  const auto train_further = [&](const std::string& data, const std::string& out) {
    return moe_command({"train", "--data", data, "--out", out, "--from", talk, "--context", "32",
                        "--batch", "2", "--steps", "1", "--threads", "2"});
  };
  const CommandResult trained = train_further(*folder_ / "talk.jsonl", further);
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(chat_template_of(*load_tokenizer(further)), own);
  const CommandResult tokenized = moe_command(
      {"tokenize", "--data", *folder_ / "talk.jsonl", "--tokenizer", talk, "--out", tokens});
  ASSERT_EQ(tokenized.code, 0) << tokenized.err;
  EXPECT_EQ(chat_template_of(*load_tokenizer(tokens)), own);
  int64_t bytes = 0;
  for (int i = 0; i < 60; ++i)
    bytes += static_cast<int64_t>(
        fmt::format("<user>what is {0}?</user><assistant>{0} is what it is</assistant>", i).size());
  EXPECT_EQ(read_tokens_index(tokens).bytes(), bytes);
  put(*folder_ / "bad.jsonl",
      jsonl_line(std::vector<Message>{{"user", "a"}, {"assistant", "b</user>"}}));
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "bad.jsonl: line 1: message 2 holds </user>",
                      train_further(*folder_ / "bad.jsonl", further + "2").err);
}

// A process whose output comes through a pipe that keeps its writes apart, or through a terminal on
// which can be typed.
class Child {
 public:
  Child(const std::vector<std::string>& words, bool terminal) {
    std::vector<char*> argv = {const_cast<char*>(MOE_BINARY)};
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    if (terminal) {
      pid_ = forkpty(&fd_, nullptr, nullptr, nullptr);
    } else {
      int ends[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
      pid_ = fork();
      if (pid_ == 0) dup2(ends[1], STDOUT_FILENO);
      close(ends[1]);
      fd_ = ends[0];
    }
    if (pid_ == 0) {
      execv(MOE_BINARY, argv.data());
      _exit(127);
    }
  }
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(fd_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  // What comes next, through a pipe what one write wrote; nothing at the end.
  std::string read_some() const {
    pollfd wait{fd_, POLLIN, 0};
    if (poll(&wait, 1, 60'000) <= 0) return "";
    std::string bytes(size_t{1} << 20, '\0');
    const ssize_t n = ::read(fd_, bytes.data(), bytes.size());
    bytes.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return bytes;
  }
  // Everything up to and with `part`, or to the end.
  std::string read_until(const std::string& part) const {
    std::string all;
    while (all.find(part) == std::string::npos) {
      const std::string more = read_some();
      if (more.empty()) break;
      all += more;
    }
    return all;
  }
  void type(const std::string& text) const {
    EXPECT_EQ(write(fd_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void signal(int number) const { kill(pid_, number); }
  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  int fd_ = -1;
};

// Every character is written as soon as it is there. So many tokens are asked for that they cannot
// be done when the reader stops them.
TEST_F(Chat, GenerateStreamsWholeCharactersThroughAPipe) {
  Child child({"generate", model(), "-p", "line", "-n", "1000000", "--temperature", "3", "--top-k",
               "0", "--top-p", "1", "--min-p", "0"},
              false);
  std::string text;
  for (int write = 0; write < 100; ++write) {
    const std::string piece = child.read_some();
    ASSERT_NE(piece, "");
    EXPECT_LT(piece.size(), 16u);
    for (std::string_view rest = piece; !rest.empty();) {
      const Utf8Step step = utf8_step(rest);
      ASSERT_EQ(step.kind, Utf8Step::Kind::character);
      rest.remove_prefix(static_cast<size_t>(step.length));
    }
    text += piece;
  }
  child.signal(SIGINT);
  for (std::string piece = child.read_some(); !piece.empty(); piece = child.read_some())
    text += piece;
  EXPECT_EQ(child.wait(), 0);
  EXPECT_TRUE(text.starts_with("line"));
  EXPECT_LT(text.size(), 1000000u) << "it was interrupted";
}

// Reading this prompt takes many times longer.
TEST_F(Chat, CtrlCNeedNotWaitForALongPrompt) {
  Child child({"generate", model(), "-p", std::string(120000, 'x'), "-n", "1", "--threads", "2"},
              false);
  usleep(300000);
  child.signal(SIGINT);
  EXPECT_EQ(child.wait(), 128 + SIGINT);
}

TEST_F(Chat, ALongPromptShowsHowFarItIsRead) {
  Child child({"generate", model(), "-p", std::string(120000, 'x'), "-n", "1", "--threads", "2"},
              true);
  has(child.read_until("tokens of the prompt read"), "/120000  tokens of the prompt read");
  child.type("\x03");
  has(child.read_until("moe: interrupted"), "\r\nmoe: interrupted");
  EXPECT_EQ(child.wait(), 128 + SIGINT);
}

TEST_F(Chat, CtrlCEndsAReplyAndThenTheChat) {
  set_context(200000);
  Child child({"chat", model(), "-n", "150000", "--threads", "2"}, true);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "a context of 200000 tokens. /help lists",
                      child.read_until("> "));
  child.type("hello\n");
  const std::string echo = child.read_until("\n");
  if (echo.ends_with("\n")) EXPECT_NE(child.read_some(), "") << "the reply has begun";
  child.type("\x03");
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "> ", child.read_until("> ")) << "the chat goes on";
  child.type("/wrong\n");
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "moe: /wrong is no command",
                      child.read_until("\n> "));
  child.type("\x03");
  EXPECT_EQ(child.wait(), 128 + SIGINT);
  set_context(2000);
}

// The system message is long enough that it is still being read.
TEST_F(Chat, CtrlCWhileAMessageIsReadTakesItBack) {
  set_context(200000);
  Child child({"chat", model(), "--system", std::string(120000, 'x'), "--threads", "2"}, true);
  child.read_until("> ");
  child.type("hello\n");
  child.read_until("\n");
  usleep(300000);
  child.type("\x03");
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "interrupted while the message was being read",
                      child.read_until("> "));
  child.type("/regenerate\n");
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "there is no reply yet", child.read_until("\n> "));
  child.type("\x04");
  EXPECT_EQ(child.wait(), 0);
  set_context(2000);
}

TEST_F(Chat, CtrlDEndsTheChat) {
  Child child({"chat", model()}, true);
  child.read_until("> ");
  child.type("\x04");
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace moe::test::chat_test
