// Bytes as text: RFC 4648's test vectors, every length, and what is no base64.
#include "core/base64.h"

#include "core/error.h"
#include "support/files.h"

namespace moe::test::base64_test {
namespace {

TEST(Base64, IsThatOfTheRfc) {
  const char* vectors[][2] = {{"", ""},
                              {"f", "Zg=="},
                              {"fo", "Zm8="},
                              {"foo", "Zm9v"},
                              {"foob", "Zm9vYg=="},
                              {"fooba", "Zm9vYmE="},
                              {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : vectors) {
    EXPECT_EQ(to_base64(bytes), text);
    EXPECT_EQ(from_base64(text), bytes);
  }
}

TEST(Base64, EveryByteComesBack) {
  std::string bytes;
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(from_base64(to_base64(bytes)), bytes);
    bytes += static_cast<char>(i * 7);
  }
}

TEST(Base64, RefusesWhatIsNone) {
  EXPECT_FAILS(from_base64("Zm9"), "no base64");
  EXPECT_FAILS(from_base64("Zm=v"), "no base64");
  EXPECT_FAILS(from_base64("Z==="), "no base64");
  EXPECT_FAILS(from_base64("Zm9vY!=="), "no digit");
}

}  // namespace
}  // namespace moe::test::base64_test
