// NFC, what is put in front and replaced, and the way back to the text.
#include "text/normalizer.h"

#include <gtest/gtest.h>

#include <chrono>

namespace moe::test::normalizer_test {
namespace {

using Kind = NormalizerStep::Kind;
using Steps = std::vector<NormalizerStep>;

const Steps kNfc = {{Kind::nfc, "", ""}};
const Steps kLlama = {{Kind::prepend, "", "\u2581"}, {Kind::replace, " ", "\u2581"}};

TEST(Normalizer, ComposesAsUnicodeSays) {
  EXPECT_EQ(normalize(kNfc, "a\u0308\u0301"), "\u00E4\u0301");
  EXPECT_EQ(normalize(kNfc, "a\u0301\u0323"), "\u1EA1\u0301") << "the mark below goes first";
  EXPECT_EQ(normalize(kNfc, "\u1100\u1161\u11A8"), "\uAC01");
  EXPECT_EQ(normalize(kNfc, "\u212B \u2126 \u0344"), "\u00C5 \u03A9 \u0308\u0301");
  EXPECT_EQ(normalize(kNfc, "\u0958"), "\u0915\u093C") << "excluded from composition";
  EXPECT_EQ(normalize(kNfc, "plain \u00E9 \u4E2D\r\n\n"), "plain \u00E9 \u4E2D\r\n\n");
  EXPECT_EQ(normalize(kNfc, "e\xFF\u0301\xE2\x82"), "e\xFF\u0301\xE2\x82")
      << "broken bytes part what stands beside them";
  EXPECT_EQ(normalize(kNfc, "\xCC"), "\xCC");
  EXPECT_EQ(normalize(kNfc, ""), "");
}

TEST(Normalizer, MarksInAnyOrderTakeNoQuadraticTime) {
  std::string marks = "a";
  for (int i = 0; i < 200000; ++i) marks += i % 2 ? "\u0323" : "\u0301";
  const auto start = std::chrono::steady_clock::now();
  const std::string composed = normalize(kNfc, marks);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  EXPECT_EQ(composed.substr(0, 5), "\u1EA1\u0323");
}

TEST(Normalizer, PrependsAndReplaces) {
  EXPECT_EQ(normalize(kLlama, " a b"), "\u2581\u2581a\u2581b");
  EXPECT_EQ(normalize(kLlama, ""), "");
}

TEST(Normalizer, LeadsBackToTheText) {
  SourceMap map;
  EXPECT_EQ(normalize(kLlama, "a bc d", &map), "\u2581a\u2581bc\u2581d");
  EXPECT_EQ(map.source(0), 0u);
  EXPECT_EQ(map.source(3), 0u);
  EXPECT_EQ(map.source(4), 1u);   // the mark of the first space
  EXPECT_EQ(map.source(7), 2u);   // b
  EXPECT_EQ(map.source(8), 3u);   // c
  EXPECT_EQ(map.source(12), 5u);  // d
  SourceMap lines;
  EXPECT_EQ(normalize(kNfc, "e\u0301x\nab\n", &lines), "\u00E9x\nab\n");
  EXPECT_EQ(lines.source(4), 5u) << "exact from each line on";
  EXPECT_EQ(lines.source(5), 6u);
  EXPECT_EQ(SourceMap().source(7), 7u);
}

}  // namespace
}  // namespace moe::test::normalizer_test
