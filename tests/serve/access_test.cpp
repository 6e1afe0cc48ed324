// Who may ask a server: keys, origins, names of the machine, and which paths are counted.
#include "serve/server.h"
#include "support/served.h"

namespace moe::test::access_test {
namespace {

TEST(Access, LetsInWhoMay) {
  serve::ServeOptions options;
  options.api_keys = {"one", "two"};
  options.cors = "http://friend.example";
  ServedModel s(options);
  EXPECT_EQ(s.get("/health").status, 200);
  EXPECT_EQ(s.get("/").status, 200);
  EXPECT_EQ(s.get("/v1/models").status, 401);
  EXPECT_EQ(s.get("/v1/models", "Authorization: Bearer on\r\n").status, 401);
  EXPECT_EQ(s.get("/v1/models", "Authorization: Bearer two\r\n").status, 200);
  const HttpReply friendly = s.get("/health", "Origin: http://friend.example\r\n");
  EXPECT_EQ(friendly.status, 200);
  EXPECT_NE(friendly.head.find("Access-Control-Allow-Origin: http://friend.example\r\n"),
            std::string::npos);
  EXPECT_EQ(s.get("/health", "Origin: http://evil.example\r\n").status, 403);
  const HttpReply allowed =
      HttpClient(s.server->port())
          .ask("OPTIONS", "/v1/completions", "", "Origin: http://friend.example\r\n");
  EXPECT_EQ(allowed.status, 204);
  EXPECT_EQ(allowed.head.find("Content-Length"), std::string::npos);
}

// Nobody can fill the counts with paths, nor write in them.
TEST(Access, CountsPathsThatItHas) {
  serve::ServeOptions options;
  options.api_keys = {"one"};
  ServedModel s(options);
  for (const char* path : {"/v1/models/a", "/v1/models/b"}) EXPECT_EQ(s.get(path).status, 401);
  EXPECT_EQ(HttpClient(s.server->port()).ask("OPTIONS", "/a\"b").status, 204);
  const std::string metrics = s.get("/metrics", "Authorization: Bearer one\r\n").body;
  EXPECT_NE(metrics.find("{path=\"/v1/models/*\",status=\"401\"} 2"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("{path=\"other\",status=\"204\"} 1"), std::string::npos) << metrics;
  EXPECT_EQ(metrics.find("a\"b"), std::string::npos) << metrics;
}

TEST(Access, KnowsWhenAnybodyMayAsk) {
  serve::ServeOptions options;
  EXPECT_FALSE(serve::is_open(options));
  options.host = "0.0.0.0";
  EXPECT_TRUE(serve::is_open(options));
  options.api_keys = {"one"};
  EXPECT_FALSE(serve::is_open(options));
}

TEST(Access, OnLoopbackIsAskedByNoOtherName) {
  ServedModel s;
  HttpClient c(s.server->port());
  c.send("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n");
  EXPECT_EQ(c.receive().status, 403);
  HttpClient other(s.server->port());
  other.send("GET /v1/models HTTP/1.1\r\nHost: 127.evil.example\r\n\r\n");
  EXPECT_EQ(other.receive().status, 403);
  HttpClient number(s.server->port());
  number.send("GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n");
  EXPECT_EQ(number.receive().status, 200);
  EXPECT_EQ(s.get("/health", "Origin: http://evil.example\r\n").status, 403);
  EXPECT_EQ(s.get("/health", "Origin: http://localhost\r\n").status, 200);
}

}  // namespace
}  // namespace moe::test::access_test
