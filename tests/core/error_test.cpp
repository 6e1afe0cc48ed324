// Messages name fields of options; whoever shows them spells the names.
#include "core/error.h"

#include <gtest/gtest.h>

namespace moe::error_test {
namespace {

std::string as_flag(std::string_view name) { return "--" + std::string(name); }

TEST(Error, FieldsAreSpelledByWhoeverShowsThem) {
  try {
    fail_usage("@min_lr is {}, above @lr {}; lower @min_lr", 2.5, 1);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), Error::Kind::usage);
    EXPECT_STREQ(e.what(), "min_lr is 2.5, above lr 1; lower min_lr");
    EXPECT_EQ(spelled(e.marked(), as_flag), "--min_lr is 2.5, above --lr 1; lower --min_lr");
  }
}

TEST(Error, ArgumentsAreNoFieldsUnlessTheyAreMarked) {
  EXPECT_EQ(spelled(message("{} and {}", "a@b.c @lr", field("top_k")), as_flag),
            "a@b.c @lr and --top_k");
  EXPECT_EQ(spelled(marked("@, @1 and @Lr are none, @lr is"), as_flag),
            "@, @1 and @Lr are none, --lr is");
  // What only looks like a mark, in the name of a file, stays as it is.
  for (const char* odd : {"\x01", "\x02", "\x01lr", "\x01Lr\x02", "\x01\x02", "lr\x02"})
    EXPECT_EQ(spelled(odd, as_flag), odd);
}

}  // namespace
}  // namespace moe::error_test
