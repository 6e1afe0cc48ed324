// `moe serve` as a process: where it listens, that a signal lets it finish, and what it refuses.
#include <chrono>
#include <thread>

#include "support/command.h"
#include "support/http_client.h"

namespace moe::test::serve_test {
namespace {

// A port that nobody has; somebody could take it before it is used, which would fail the test.
int free_port() {
  const int s = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(s, reinterpret_cast<sockaddr*>(&address), size), 0);
  ::getsockname(s, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(s);
  return ntohs(address.sin_port);
}

bool answers(int port) {
  const int s = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool open = ::connect(s, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0;
  ::close(s);
  return open;
}

class Serve : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    put(*folder_ / "text.txt", std::string(4000, 'a') + std::string(4000, 'b'));
    const CommandResult made = moe_command(command_line(
        "train --layers 1 --width 16 --heads 2 --experts 4 --top-k 2 --context 64 --batch 2 "
        "--steps 1 --warmup 0",
        {"--data", *folder_ / "text.txt", "--out", *folder_ / "model"}));
    ASSERT_EQ(made.code, 0) << made.err;
  }
  static void TearDownTestSuite() { delete folder_; }
  static std::string model() { return *folder_ / "model"; }
  static TempFolder* folder_;
};
TempFolder* Serve::folder_ = nullptr;

TEST_F(Serve, AnswersUntilItIsAskedToEnd) {
  const int port = free_port();
  const CommandResult r = moe_command(
      command_line("serve", {model(), "--port", std::to_string(port), "--draft", model(),
                             "--draft-min-p", "0"}),
      [&](pid_t child) {
        for (int i = 0; i < 2000 && !answers(port); ++i)
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        const HttpReply reply = HttpClient(port).ask(
            "POST", "/v1/completions", R"({"prompt": "ab", "max_tokens": 5, "temperature": 0})");
        EXPECT_EQ(reply.status, 200) << reply.body;
        const std::string metrics = HttpClient(port).ask("GET", "/metrics", "").body;
        EXPECT_NE(metrics.find("\nmoe_drafted_tokens_total 3\n"), std::string::npos)
            << "of five the first is not guessed, nor what follows the last guess: " << metrics;
        // A reply is under way when the signal comes.
        HttpClient late(port);
        const std::string body =
            R"({"prompt": "ab", "max_tokens": 60, "ignore_eos": true, "stream": true})";
        late.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                  std::to_string(body.size()) + "\r\n\r\n" + body);
        EXPECT_TRUE(late.more());
        kill(child, SIGTERM);
        EXPECT_NE(late.receive().body.find("[DONE]"), std::string::npos);
      });
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.out, "");
  EXPECT_NE(r.err.find("at / is a page to talk in, at /v1 OpenAI's API"), std::string::npos);
  EXPECT_NE(r.err.find("listening on http://127.0.0.1:" + std::to_string(port) + "\n"),
            std::string::npos)
      << r.err;
}

TEST_F(Serve, RefusesWhatCannotBe) {
  const auto refused = [&](const std::string& line, int code, const std::string& part) {
    std::vector<std::string> words = command_line("serve " + line);
    words.push_back(model());
    const CommandResult r = moe_command(words);
    EXPECT_EQ(r.code, code) << line << ": " << r.err;
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  };
  refused("--port 70000", 2, "--port is 70000");
  refused("--parallel 0", 2, "--parallel is 0");
  refused("--host no.such.host.invalid --port 0", 1, "cannot listen on no.such.host.invalid:0");
  refused("--cache-tokens -1", 2, "--cache-tokens");
  refused("--draft-tokens 4", 2, "--draft-tokens is of a draft model: add --draft MODEL");
  refused("--draft /nothing/here", 1, "/nothing/here");
  EXPECT_EQ(moe_command(command_line("serve", {"/nothing/here"})).code, 1);
}

}  // namespace
}  // namespace moe::test::serve_test
