// Which key a request has, and which requests are of one client.
#include "serve/caller.h"

#include <gtest/gtest.h>

namespace moe::test::caller_test {
namespace {

using serve::client_of, serve::key_of;
using Keys = std::vector<std::string>;

serve::HttpRequest asked(const serve::Headers& headers, const std::string& address = "10.0.0.1") {
  serve::HttpRequest request;
  request.headers = headers;
  request.client = address;
  return request;
}

TEST(Caller, HasAKeyInEitherHeader) {
  const Keys keys = {"one", "two"};
  EXPECT_EQ(key_of(asked({{"authorization", "Bearer two"}}), keys), "two");
  EXPECT_EQ(key_of(asked({{"x-api-key", "one"}}), keys), "one");
  EXPECT_EQ(key_of(asked({{"authorization", "Bearer none"}, {"x-api-key", "one"}}), keys), "one");
  EXPECT_EQ(key_of(asked({{"authorization", "Bearer two"}, {"x-api-key", "none"}}), keys), "two");
  for (const serve::Headers& headers :
       {serve::Headers{}, serve::Headers{{"authorization", "two"}},
        serve::Headers{{"authorization", "Bearer "}}, serve::Headers{{"x-api-key", ""}},
        serve::Headers{{"x-api-key", "on"}}, serve::Headers{{"x-api-key", "onee"}},
        serve::Headers{{"x-api-key", "oneone"}}, serve::Headers{{"x-api-key", "Bearer one"}}})
    EXPECT_EQ(key_of(asked(headers), keys), "");
  EXPECT_EQ(key_of(asked({{"x-api-key", "one"}}), {}), "");
}

TEST(Caller, IsOneClientByTheKeyThatLetItIn) {
  const Keys keys = {"one", "two"};
  const std::string client = client_of(asked({{"x-api-key", "one"}}), keys);
  EXPECT_EQ(client_of(asked({{"authorization", "Bearer one"}}, "10.0.0.2"), keys), client);
  for (const char* made_up : {"Bearer a", "Bearer b", "Basic c"})
    EXPECT_EQ(client_of(asked({{"authorization", made_up}, {"x-api-key", "one"}}), keys), client);
  EXPECT_EQ(client_of(asked({{"authorization", "Bearer one"}, {"x-api-key", "a"}}), keys), client);
  EXPECT_NE(client_of(asked({{"x-api-key", "two"}}), keys), client);
}

TEST(Caller, OfAServerWithoutKeysIsWhoItSaysElseItsAddress) {
  EXPECT_EQ(client_of(asked({}), {}), "10.0.0.1");
  EXPECT_EQ(client_of(asked({{"x-api-key", "me"}}), {}), "me");
  EXPECT_EQ(client_of(asked({{"authorization", "Bearer me"}}), {}), "me");
}

}  // namespace
}  // namespace moe::test::caller_test
