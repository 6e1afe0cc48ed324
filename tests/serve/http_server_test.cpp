// HTTP by itself: what a client may send and in which pieces, what is refused, and that somebody
// who goes is noticed.
#include "serve/http_server.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <new>
#include <thread>

#include "support/files.h"
#include "support/http_client.h"

namespace moe::test::http_server_test {
namespace {

using serve::Exchange;
using serve::HttpOptions;

HttpOptions small_options() {
  HttpOptions o;
  o.port = 0;
  o.max_body = 1000;
  o.read_seconds = 1;
  o.idle_seconds = 1;
  return o;
}

// Answers with what it was asked; /stream piece by piece; /keep is kept for the test; for /throw
// there is no memory.
class HttpServerTest : public ::testing::Test {
 protected:
  explicit HttpServerTest(const HttpOptions& options = small_options())
      : server_(
            options, [this](std::shared_ptr<Exchange> e) { handle(std::move(e)); },
            [](int status, const std::string& message, std::string_view path) {
              return std::to_string(status) + " " + std::string(path) + " " + message;
            }),
        thread_([this] { server_.run(); }) {}
  ~HttpServerTest() override {
    server_.stop();
    thread_.join();
  }

  void handle(std::shared_ptr<Exchange> e) {
    const serve::HttpRequest& r = e->request();
    if (r.path == "/throw") throw std::bad_alloc();
    if (r.path == "/keep") {
      const std::lock_guard lock(mutex_);
      kept_ = std::move(e);
    } else if (r.path == "/stream") {
      e->begin(200, "text/plain", {});
      std::thread([e] {
        for (const char* piece : {"one ", "", "two ", "three"}) e->write(piece);
        e->finish();
      }).detach();
    } else if (r.path != "/forget") {
      e->send(200, "text/plain", r.method + " " + r.path + " " + r.body,
              {{"X-Client", r.client}, {"X-Asked", std::string(r.header("x-ask"))}});
    }
  }
  std::shared_ptr<Exchange> kept() {
    for (int i = 0; i < 1000; ++i) {
      {
        const std::lock_guard lock(mutex_);
        if (kept_) return std::move(kept_);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return nullptr;
  }
  template <class F>
  static bool soon(F&& f) {
    for (int i = 0; i < 1000; ++i) {
      if (f()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  HttpClient client() { return HttpClient(server_.port()); }

  std::mutex mutex_;
  std::shared_ptr<Exchange> kept_;
  serve::HttpServer server_;
  std::thread thread_;
};

TEST_F(HttpServerTest, AnswersOneRequestAfterTheOther) {
  HttpClient c = client();
  const HttpReply first = c.ask("GET", "/a?b=c", "", "X-Ask: why\r\n");
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(first.body, "GET /a ");
  EXPECT_NE(first.head.find("X-Client: 127.0.0.1\r\n"), std::string::npos);
  EXPECT_NE(first.head.find("X-Asked: why\r\n"), std::string::npos);
  EXPECT_EQ(c.ask("POST", "/b", "text").body, "POST /b text");
  EXPECT_EQ(c.ask("POST", "/c", std::string(1000, 'x')).body, "POST /c " + std::string(1000, 'x'));
  const HttpReply head = c.ask("HEAD", "/d");
  EXPECT_NE(head.head.find("Content-Length: 8\r\n"), std::string::npos);
  EXPECT_EQ(c.ask("GET", "/e").body, "GET /e ");
}

TEST_F(HttpServerTest, TakesRequestsInAnyPieces) {
  HttpClient c = client();
  for (const char byte : std::string("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"))
    c.send(std::string(1, byte));
  EXPECT_EQ(c.receive().body, "POST /x abc");
  // Two at once, the second while the first is answered.
  c.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(c.receive().body, "GET /1 ");
  EXPECT_EQ(c.receive().body, "GET /2 ");
  c.send(
      "POST /y HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n"
      "0\r\n\r\n");
  EXPECT_EQ(c.receive().body, "POST /y abc");
  c.send("POST /z HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(c.receive().status, 100);
  c.send("hi");
  EXPECT_EQ(c.receive().body, "POST /z hi");
}

TEST_F(HttpServerTest, WritesPieceByPiece) {
  HttpClient c = client();
  const HttpReply reply = c.ask("GET", "/stream");
  EXPECT_NE(reply.head.find("Transfer-Encoding: chunked"), std::string::npos);
  EXPECT_EQ(reply.body, "one two three");
  EXPECT_EQ(c.ask("GET", "/stream").body, "one two three");
}

TEST_F(HttpServerTest, OldClientsGetAnEndInsteadOfChunks) {
  HttpClient c = client();
  c.send("GET /stream HTTP/1.0\r\n\r\n");
  const HttpReply reply = c.receive();
  EXPECT_EQ(reply.head.find("chunked"), std::string::npos);
  EXPECT_EQ(reply.body, "one two three");
  EXPECT_TRUE(c.ended());
}

TEST_F(HttpServerTest, RefusesInFormAndCloses) {
  const std::string head = "POST /x HTTP/1.1\r\nHost: a\r\n";
  const auto status = [&](const std::string& bytes) {
    HttpClient c = client();
    c.send(bytes);
    const HttpReply reply = c.receive();
    EXPECT_EQ(reply.body.substr(0, 3), std::to_string(reply.status));
    EXPECT_TRUE(c.ended());
    return reply.status;
  };
  EXPECT_EQ(status("no HTTP at all\r\n\r\n"), 400);
  EXPECT_EQ(status(head + "Content-Length: 1001\r\n\r\n"), 413);
  EXPECT_EQ(status(head + "Content-Length: 1001\r\n\r\n" + std::string(1001, 'x')), 413);
  EXPECT_EQ(status(head + "Transfer-Encoding: chunked\r\n\r\nfff\r\n" + std::string(4095, 'x')),
            413);
  EXPECT_EQ(status(head + "Content-Length: 99999999999999999999999\r\n\r\n"), 400);
  EXPECT_EQ(status(head + "X-Long: " + std::string(20000, 'x') + "\r\n\r\n"), 431);
  EXPECT_EQ(status(head + "Content-Length: 10\r\n\r\nslow"), 408);
}

TEST_F(HttpServerTest, WhoIsIdleIsLeft) {
  HttpClient c = client();
  EXPECT_TRUE(c.ended());
  HttpClient after = client();
  EXPECT_EQ(after.ask("GET", "/x").status, 200);
  EXPECT_TRUE(after.ended());
}

TEST_F(HttpServerTest, NoticesWhoGoes) {
  HttpClient c = client();
  c.send("GET /keep HTTP/1.1\r\nHost: a\r\n\r\n");
  const std::shared_ptr<Exchange> e = kept();
  ASSERT_TRUE(e);
  EXPECT_FALSE(e->gone());
  EXPECT_EQ(server_.open_requests(), 1);
  c.close();
  EXPECT_TRUE(soon([&] { return e->gone(); }));
  e->send(200, "text/plain", "nobody reads this", {});
  EXPECT_TRUE(soon([&] { return server_.open_requests() == 0; }));
}

// A stream may be silent for longer than a piece may take to be sent.
TEST_F(HttpServerTest, NoticesWhoGoesLongAfterTheLastPiece) {
  HttpClient c = client();
  c.send("GET /keep HTTP/1.1\r\nHost: a\r\n\r\n");
  const std::shared_ptr<Exchange> e = kept();
  ASSERT_TRUE(e);
  e->begin(200, "text/plain", {});
  e->write("one ");
  EXPECT_TRUE(c.more());
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_FALSE(e->gone());
  c.close();
  EXPECT_TRUE(soon([&] { return e->gone(); }));
}

TEST_F(HttpServerTest, AnAnswerThatIsForgottenIsAnError) {
  HttpClient c = client();
  EXPECT_EQ(c.ask("GET", "/forget").status, 500);
}

TEST_F(HttpServerTest, AHandlerThatThrowsIsAnErrorOfItsRequestAlone) {
  HttpClient c = client(), other = client();
  EXPECT_EQ(c.ask("GET", "/throw").status, 500);
  EXPECT_EQ(c.ask("GET", "/a").body, "GET /a ");
  EXPECT_EQ(other.ask("GET", "/b").body, "GET /b ");
  EXPECT_TRUE(soon([&] { return server_.open_requests() == 0; }));
}

TEST_F(HttpServerTest, AClosedDoorLetsNobodyIn) {
  HttpClient c = client();
  c.send("GET /keep HTTP/1.1\r\nHost: a\r\n\r\n");
  const std::shared_ptr<Exchange> e = kept();
  ASSERT_TRUE(e);
  server_.close_door();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  e->send(200, "text/plain", "the last one", {});
  EXPECT_EQ(c.receive().body, "the last one");
  EXPECT_TRUE(c.ended());
}

TEST(HttpServer, SaysWhereItCannotListen) {
  HttpOptions options = small_options();
  const auto nothing = [](std::shared_ptr<Exchange>) {};
  const auto no_body = [](int, const std::string&, std::string_view) { return std::string(); };
  const serve::HttpServer first(options, nothing, no_body);
  options.port = first.port();
  EXPECT_FAILS(serve::HttpServer(options, nothing, no_body),
               "cannot listen on 127.0.0.1:" + std::to_string(first.port()));
  options.port = 70000;
  EXPECT_FAILS(serve::HttpServer(options, nothing, no_body), "port is 70000");
}

}  // namespace
}  // namespace moe::test::http_server_test
