// What two texts share, line by line.
#include "text/common_lines.h"

#include <gtest/gtest.h>

namespace moe::common_lines_test {
namespace {

TEST(CommonLines, AreCountedByTheirBytesWhereverTheyStand) {
  const std::string a(30, 'a'), b(60, 'b'), c(90, 'c');
  EXPECT_DOUBLE_EQ(shared_lines(a + "\n" + b + "\n", a + "\n" + b), 1);
  EXPECT_DOUBLE_EQ(shared_lines(a + "\n" + b, c + "\n" + b + "\n" + a), 1) << "in any order";
  EXPECT_DOUBLE_EQ(shared_lines(a + "\n" + b, c + "\n  " + b + "\r\n"), 60.0 / 90);
  EXPECT_DOUBLE_EQ(shared_lines(a, b), 0);
  EXPECT_DOUBLE_EQ(shared_lines(a, ""), 0);
  EXPECT_DOUBLE_EQ(shared_lines("", a), 0);
}

TEST(CommonLines, ShortOnesTellNothing) {
  const std::string a(30, 'a'), b(30, 'b');
  EXPECT_DOUBLE_EQ(shared_lines("}\n" + a + "\n}\n", b + "\n}\n}\n"), 0);
  EXPECT_DOUBLE_EQ(shared_lines("a\nb\n", "b\n"), 0.5) << "where there are no others, they count";
}

TEST(CommonLines, SentencesOfOneLineAreLines) {
  const std::string a = "This is the first of the sentences. ",
                    b = "Here stands another one that is long.";
  EXPECT_DOUBLE_EQ(shared_lines(a + b, "Put in front, so that no line is the same. " + a + b), 1);
}

TEST(CommonLines, ATextOfOneLongLineIsCutAtWords) {
  std::string text, other;
  for (int i = 0; i < 4000; ++i)
    text += "word" + std::to_string(i * 7919 % 4001) + " ",
        other += "next" + std::to_string(i * 7919 % 4001) + " ";
  EXPECT_GT(shared_lines(text, "in front of it " + text), 0.95);
  EXPECT_EQ(shared_lines(text, other), 0);
}

// Where each part looked for the end of the sentence again, this would take minutes.
TEST(CommonLines, ALongLineIsFoundAgain) {
  std::string text;
  while (text.size() < size_t{16} << 20) text += "word" + std::to_string(text.size() * 7919) + " ";
  EXPECT_EQ(shared_lines(text, text), 1);
}

}  // namespace
}  // namespace moe::common_lines_test
