// What of a text may be shown while its tokens come, and where it ends.
#include "infer/text_stream.h"

#include "support/files.h"

namespace moe::test::text_stream_test {
namespace {

// Pushes bytes one by one and returns the pieces that came of each.
std::vector<std::string> push_all(TextStream& stream, const std::string& text) {
  std::vector<std::string> pieces;
  for (const char c : text) pieces.push_back(stream.push(static_cast<unsigned char>(c)));
  return pieces;
}

using Pieces = std::vector<std::string>;

TEST(TextStream, ShowsWholeCharacters) {
  const auto bytes = make_tokenizer("bytes");
  TextStream stream(*bytes, {});
  EXPECT_EQ(push_all(stream, "a\xC3\xBC\xE2"), (Pieces{"a", "", "\xC3\xBC", ""}));
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD") << "a character that was cut";
  EXPECT_EQ(stream.shown(), "a\xC3\xBC\xEF\xBF\xBD");
  EXPECT_FALSE(stream.ended());
}

TEST(TextStream, HoldsBackWhatMayBeginAStopString) {
  const auto bytes = make_tokenizer("bytes");
  TextStream stream(*bytes, {"end", "nd of"});
  EXPECT_EQ(push_all(stream, "been en"), (Pieces{"b", "", "e", "", "en ", "", ""}));
  EXPECT_EQ(stream.push('x'), "enx");
  EXPECT_EQ(stream.push('e'), "");
  EXPECT_EQ(stream.finish(), "e");
  EXPECT_EQ(stream.shown(), "been enxe");
}

TEST(TextStream, EndsBeforeTheFirstStopString) {
  const auto bytes = make_tokenizer("bytes");
  TextStream stream(*bytes, {"never", "nd"});
  push_all(stream, "the en");
  EXPECT_FALSE(stream.ended());
  EXPECT_EQ(stream.push('d'), "");
  EXPECT_TRUE(stream.ended());
  EXPECT_EQ(stream.shown(), "the e");
  EXPECT_EQ(stream.stop(), "nd");
}

// What stands before it is the text, though it began another one too.
TEST(TextStream, ShowsAllBeforeAStopString) {
  const auto bytes = make_tokenizer("bytes");
  TextStream stream(*bytes, {"en!", "n"});
  push_all(stream, "the e");
  EXPECT_EQ(stream.push('n'), "e");
  EXPECT_TRUE(stream.ended());
  EXPECT_EQ(stream.shown(), "the e");
  EXPECT_EQ(stream.stop(), "n");
}

// Whatever was shown before, the first stop string of the text ends it, of several there the
// longest.
TEST(TextStream, EndsWhereTheWholeTextWould) {
  const auto bytes = make_tokenizer("bytes");
  const std::vector<std::string> stops = {"aab", "ba", "bab", "abba"};
  for (uint32_t drawn = 0; drawn < 1u << 12; ++drawn) {
    std::string text;
    for (int i = 0; i < 12; ++i) text += (drawn >> i & 1) != 0 ? 'a' : 'b';
    // Of the shortest beginning that has any.
    std::string want = text, stop;
    for (size_t size = 1; size <= text.size() && stop.empty(); ++size)
      for (size_t at = 0; at < size && stop.empty(); ++at)
        for (const std::string& each : stops)
          if (text.substr(0, size).compare(at, each.size(), each) == 0 &&
              each.size() > stop.size()) {
            want = text.substr(0, at);
            stop = each;
          }
    TextStream stream(*bytes, stops);
    for (const char c : text)
      if (!stream.ended()) stream.push(static_cast<unsigned char>(c));
    if (!stream.ended()) stream.finish();
    EXPECT_EQ(stream.shown(), want) << text;
    EXPECT_EQ(stream.stop(), stop) << text;
  }
}

TEST(TextStream, EndsWithTheTokenizersEnd) {
  const auto bytes = make_tokenizer("bytes");
  bytes->set_special({.eos = 'z'});
  TextStream stream(*bytes, {});
  push_all(stream, "ab");
  EXPECT_EQ(stream.push('z'), "");
  EXPECT_TRUE(stream.ended());
  EXPECT_EQ(stream.stop(), "");
  EXPECT_EQ(stream.shown(), "ab");
  // What might have begun a stop string did not.
  TextStream held(*bytes, {"###"});
  push_all(held, "in C#");
  EXPECT_EQ(held.shown(), "in C");
  EXPECT_EQ(held.push('z'), "#");
  EXPECT_EQ(held.shown(), "in C#");
}

TEST(TextStream, EndsWithATokenThatIsNamed) {
  const auto bytes = make_tokenizer("bytes");
  bytes->set_special({.eos = 'z'});
  for (const bool kept : {false, true}) {
    TextStream stream(*bytes, {"###"},
                      {.stop_ids = {'x', 'y'},
                       .kept_ids = kept ? std::vector<int32_t>{'y'} : std::vector<int32_t>{}});
    push_all(stream, "a#");
    EXPECT_FALSE(stream.ended());
    stream.push('y');
    EXPECT_TRUE(stream.ended());
    EXPECT_EQ(stream.stop_id(), 'y');
    EXPECT_EQ(stream.stop(), "");
    EXPECT_EQ(stream.shown(), kept ? "a#y" : "a#");
  }
  TextStream own(*bytes, {}, {.stop_ids = {'x'}, .kept_ids = {'z'}});
  push_all(own, "az");
  EXPECT_EQ(own.stop_id(), std::nullopt) << "its own end is no stop of the caller's";
  EXPECT_EQ(own.shown(), "az");
}

TEST(TextStream, KeepsTheStopsThatAreToStay) {
  const auto bytes = make_tokenizer("bytes");
  for (const size_t kept : {0, 1}) {
    TextStream first(*bytes, {"nd", "s"}, {.kept_stops = kept});
    push_all(first, "the end");
    EXPECT_EQ(first.shown(), kept == 1 ? "the end" : "the e");
    TextStream second(*bytes, {"nd", "s"}, {.kept_stops = kept});
    push_all(second, "less");
    EXPECT_EQ(second.shown(), "le") << "of the second it is asked nowhere";
  }
}

TEST(TextStream, LeavesOutWhatIsHidden) {
  const auto bytes = make_tokenizer("bytes");
  TextStream stream(*bytes, {"#", "ab"}, {.kept_stops = 1, .hidden = {'#', '@'}});
  EXPECT_EQ(push_all(stream, "@x@a"), (Pieces{"", "x", "", ""}));
  EXPECT_FALSE(stream.ended());
  EXPECT_EQ(stream.push('#'), "a") << "a stop all the same";
  EXPECT_TRUE(stream.ended());
  EXPECT_EQ(stream.stop(), "#");
  EXPECT_EQ(stream.shown(), "xa");
}

TEST(TextStream, LooksForNoStopBeforeThereAreEnoughTokens) {
  const auto bytes = make_tokenizer("bytes");
  TextStream stream(*bytes, {"ab"}, {.hidden = {'#'}, .min_tokens = 3});
  push_all(stream, "aba");
  EXPECT_FALSE(stream.ended());
  EXPECT_EQ(stream.shown(), "ab") << "the last may begin one";
  stream.push('b');
  EXPECT_TRUE(stream.ended()) << "the fourth token makes one whole";
  EXPECT_EQ(stream.shown(), "ab");
  TextStream none(*bytes, {"ab"}, {.min_tokens = 4});
  push_all(none, "ababx");
  EXPECT_FALSE(none.ended());
  EXPECT_EQ(none.shown(), "ababx");
}

}  // namespace
}  // namespace moe::test::text_stream_test
