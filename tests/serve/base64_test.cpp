// Whole numbers as text: their bytes' order, and what holds no whole numbers.
#include "serve/base64.h"

#include "core/error.h"
#include "support/files.h"

namespace moe::test::base64_test {
namespace {

using serve::from_base64;
using serve::to_base64;

TEST(Base64OfNumbers, IsLittleEndianInt32) {
  EXPECT_EQ(to_base64({}), "");
  EXPECT_EQ(to_base64(std::vector<int32_t>{0x626f6f66, 0x72616f62}), "Zm9vYmJvYXI=");  // "foobboar"
  EXPECT_EQ(from_base64("Zm9vYg=="), std::vector<int32_t>{0x626f6f66});
}

TEST(Base64OfNumbers, ComeBackAsTheyWere) {
  std::vector<int32_t> numbers;
  for (int32_t i = 0; i < 50; ++i) {
    EXPECT_EQ(from_base64(to_base64(numbers)), numbers);
    numbers.push_back(i % 3 == 0 ? -i * 40503 : i * 0x01010101);
  }
}

TEST(Base64OfNumbers, RefusesOtherBytes) {
  EXPECT_FAILS(from_base64("Zm9v"), "no whole numbers");
  EXPECT_FAILS(from_base64("Zm9"), "no base64");
}

}  // namespace
}  // namespace moe::test::base64_test
