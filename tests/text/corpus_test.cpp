// Gathering tokens from files and folders: order, domains, what is passed over and what is refused.
#include "text/corpus.h"

#include <numeric>

#include "support/files.h"

namespace moe::test::corpus_test {
namespace {

std::string text_of(const Corpus& corpus) {
  std::vector<int32_t> ids(static_cast<size_t>(corpus.size()));
  corpus.fill(0, corpus.size(), ids.data());
  return make_tokenizer("bytes")->decode(ids);
}

// Two ids a byte: stands for any tokenizer whose ids are not bytes.
class PairTokenizer : public Tokenizer {
 public:
  explicit PairTokenizer(int64_t vocab) : vocab_(vocab) {}
  int64_t vocab_size() const override { return vocab_; }
  std::string spec() const override { return "pairs"; }
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (const char c : text) {
      ids.push_back(static_cast<int32_t>(vocab_ - 1));
      ids.push_back(static_cast<unsigned char>(c));
    }
    return ids;
  }
  std::string piece(int32_t) const override { return ""; }
  std::string to_json() const override { return ""; }

 private:
  int64_t vocab_;
};

class CorpusTest : public ::testing::Test {
 protected:
  TempFolder folder_;
  std::unique_ptr<Tokenizer> bytes_ = make_tokenizer("bytes");
};

TEST_F(CorpusTest, FilesInTheOrderGiven) {
  put(folder_ / "english.txt", "hello ");
  put(folder_ / "german.txt", "grüße");
  const Corpus corpus({folder_ / "german.txt", folder_ / "english.txt"}, *bytes_);
  EXPECT_EQ(text_of(corpus), "grüßehello ");
  EXPECT_EQ(corpus.size(), 13);
  EXPECT_EQ(corpus.bytes(), 13);
  ASSERT_EQ(corpus.files().size(), 2u);
  EXPECT_EQ(corpus.files()[0].domain, "german");
  EXPECT_EQ(corpus.files()[1].begin, 7);
  EXPECT_EQ(corpus.files()[1].end, 13);
}

TEST_F(CorpusTest, WindowsCrossFilesSmallAndMapped) {
  std::string large(200'000, ' ');
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>('a' + i * i % 26);
  put(folder_ / "1", "first");
  put(folder_ / "2", large);
  put(folder_ / "3", "third");
  const Corpus corpus({folder_ / "1", folder_ / "2", folder_ / "3"}, *bytes_);
  const std::string whole = "first" + large + "third";
  ASSERT_EQ(corpus.size(), static_cast<int64_t>(whole.size()));
  EXPECT_EQ(text_of(corpus), whole);
  for (const int64_t start :
       {int64_t{0}, int64_t{3}, int64_t{5}, int64_t{199'995}, corpus.size() - 12}) {
    std::vector<int32_t> ids(12);
    corpus.fill(start, 12, ids.data());
    EXPECT_EQ(bytes_->decode(ids), whole.substr(static_cast<size_t>(start), 12)) << start;
    EXPECT_EQ(corpus.at(start), whole[static_cast<size_t>(start)]);
  }
  std::vector<int32_t> ids(12);
  EXPECT_FAILS(corpus.fill(corpus.size() - 11, 12, ids.data()), "were asked for");
  EXPECT_FAILS(corpus.at(-1), "were asked for");
}

TEST_F(CorpusTest, FoldersAreWalkedInOrder) {
  put(folder_ / "b/2.txt", "[b2]");
  put(folder_ / "a.txt", "[a]");
  put(folder_ / "b/1.txt", "[b1]");
  put(folder_ / "c/d/e.md", "[e]");
  put(folder_ / ".hidden", "no");
  put(folder_ / ".git/config", "no");
  put(folder_ / "b/.secret", "no");
  put(folder_ / "empty.txt", "");
  put(folder_ / "image.png", std::string("\x89PNG\0\0", 6));
  const Corpus corpus({folder_.path()}, *bytes_);
  EXPECT_EQ(text_of(corpus), "[a][b1][b2][e]");
  EXPECT_EQ(corpus.skipped().binary, 1);
  EXPECT_EQ(corpus.skipped().empty, 1);
  EXPECT_EQ(corpus.skipped().broken, 0);
}

TEST_F(CorpusTest, BadInputIsRefusedInOneLine) {
  put(folder_ / "empty.txt", "");
  put(folder_ / "nul.bin", std::string("text\0text", 9));
  put(folder_ / "noise.bin", std::string(1000, '\xFE'));
  std::filesystem::create_directory(folder_ / "none");
  EXPECT_FAILS(Corpus({folder_ / "missing.txt"}, *bytes_), "missing.txt: No such file");
  EXPECT_FAILS(Corpus({folder_ / "empty.txt"}, *bytes_), "empty.txt is empty");
  EXPECT_FAILS(Corpus({folder_ / "nul.bin"}, *bytes_), "looks binary (a NUL byte at offset 4)");
  EXPECT_FAILS(Corpus({folder_ / "noise.bin"}, *bytes_),
               "1000 of its first 1000 bytes are not valid UTF-8");
  EXPECT_FAILS(Corpus({folder_ / "none"}, *bytes_), "there is no text in the folder");
  EXPECT_FAILS(Corpus({folder_.path()}, *bytes_), "2 binary and 1 empty");
  EXPECT_FAILS(Corpus(std::vector<std::string>{}, *bytes_), "data");
}

TEST_F(CorpusTest, OtherTokenizersAreHeldInTheirWidth) {
  put(folder_ / "1", "ab");
  put(folder_ / "2", "c");
  for (const int64_t vocab : {300, 65'536, 100'000}) {
    const Corpus corpus({folder_ / "1", folder_ / "2"}, PairTokenizer(vocab));
    ASSERT_EQ(corpus.size(), 6);
    EXPECT_EQ(corpus.bytes(), 3);
    std::vector<int32_t> ids(6);
    corpus.fill(0, 6, ids.data());
    const auto top = static_cast<int32_t>(vocab - 1);
    EXPECT_EQ(ids, (std::vector<int32_t>{top, 'a', top, 'b', top, 'c'}));
    EXPECT_EQ(corpus.files()[1].begin, 4);
  }
}

// Latin-1 is taken for what it may be meant as, and said.
TEST(Corpus, SaysWhatIsNoUtf8) {
  const TempFolder folder;
  put(folder / "good.txt", "Straße");
  put(folder / "latin.txt", "eine lange Zeile, in der das meiste ASCII ist, sch\xF6n");
  const Corpus corpus({folder.path()}, *make_tokenizer("bytes"));
  EXPECT_EQ(corpus.skipped().broken, 1);
  const std::vector<std::string> lines = describe(corpus.skipped());
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].starts_with("1 file with bytes that are no UTF-8, such as ")) << lines[0];
  EXPECT_NE(lines[0].find("latin.txt"), std::string::npos);
}

TEST(BinaryReason, TextInItsManyForms) {
  EXPECT_EQ(binary_reason(""), "");
  EXPECT_EQ(binary_reason("plain\r\n\ttext\x1b[0m"), "");
  EXPECT_EQ(binary_reason("grüße 😀"), "");
  EXPECT_EQ(binary_reason("Latin-1: Stra\xDF"
                          "e, sch\xF6n, aber das meiste ist ASCII"),
            "");
  EXPECT_EQ(binary_reason("cut in the middle \xE2\x82"), "");
  EXPECT_NE(binary_reason(std::string("\xFF\xFEu\0t\0f\0", 8)), "");
  // What is not looked at any more cannot make it binary.
  EXPECT_EQ(binary_reason(std::string(1 << 20, 'a') + std::string(1, '\0')), "");
}

TEST(Corpus, OfIds) {
  std::vector<int32_t> ids(100);
  std::iota(ids.begin(), ids.end(), 1000);
  Corpus corpus(ids);
  const Corpus moved(std::move(corpus));
  EXPECT_EQ(moved.size(), 100);
  EXPECT_EQ(moved.at(99), 1099);
}

}  // namespace
}  // namespace moe::test::corpus_test
