// Shards: what is written is what the text itself gives, nothing is half there, and what is damaged
// or does not fit is refused.
#include "text/shards.h"

#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <new>

#include "support/files.h"
#include "text/bpe_train.h"
#include "text/loader.h"
#include "text/tokenize.h"

namespace moe::test::shards_test {
namespace {

class Shards : public ::testing::Test {
 protected:
  Shards() {
    put(folder_ / "in/english.txt",
        repeated("the cat and the dog <|endoftext|> sat\n\non the mat. ", 30000));
    put(folder_ / "in/german.txt", repeated("der Hund und die Katze, groß\n", 60000));
    std::string lines;
    for (int i = 0; i < 500; ++i) {
      lines += R"({"messages": [{"role": "user", "content": "count to )" + std::to_string(i) +
               R"("}, {"role": "assistant", "content": "1 2 3 )" + std::to_string(i) +
               "\"}]}\n{\"text\": \"line " + std::to_string(i) + "\"}\n";
    }
    put(folder_ / "in/talk.jsonl", lines);
  }
  static std::string repeated(const std::string& unit, size_t bytes) {
    std::string text;
    for (int i = 0; text.size() < bytes; ++i) text += unit + std::to_string(i);
    return text;
  }
  TokenizeResult make(const Tokenizer& tokenizer, const std::string& out, double hold_out = 0,
                      int64_t shard_tokens = 20'000) const {
    return tokenize(
        {.paths = {folder_ / "in"}, .out = out, .hold_out = hold_out, .shard_tokens = shard_tokens},
        tokenizer, {});
  }
  std::unique_ptr<Tokenizer> bpe() const {
    return choose_tokenizer("bpe:300", {folder_ / "in/english.txt"});
  }

  TempFolder folder_;
  std::unique_ptr<Tokenizer> bytes_ = make_tokenizer("bytes");
};

void expect_same(const Corpus& a, const Corpus& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(a.bytes(), b.bytes());
  EXPECT_EQ(a.documents(), b.documents());
  EXPECT_EQ(a.untrained(), b.untrained());
  ASSERT_EQ(a.files().size(), b.files().size());
  for (size_t i = 0; i < a.files().size(); ++i) {
    EXPECT_EQ(a.files()[i].domain, b.files()[i].domain);
    EXPECT_EQ(a.files()[i].path, b.files()[i].path);
    EXPECT_EQ(a.files()[i].end, b.files()[i].end);
  }
  const BatchShape shape{.context = 64, .batch = 4, .accumulate = 2};
  for (const Mix& mix : {Mix{}, Mix{{"talk", 2}, {"german", 0}}}) {
    const BatchPlan of_a(a, shape, Shuffle::epoch, 1, mix), of_b(b, shape, Shuffle::epoch, 1, mix);
    TextBatch batch_a, batch_b;
    for (int64_t step = 0; step < 40; ++step) {
      of_a.fill(a, step, 1, batch_a);
      of_b.fill(b, step, 1, batch_b);
      ASSERT_EQ(batch_a.ids, batch_b.ids);
      ASSERT_EQ(batch_a.targets, batch_b.targets);
      ASSERT_EQ(batch_a.positions, batch_b.positions);
      ASSERT_EQ(batch_a.bounds, batch_b.bounds);
    }
  }
}

TEST_F(Shards, GiveTheBatchesOfTheTextItself) {
  const auto learned = bpe();
  for (const Tokenizer* tokenizer : {bytes_.get(), learned.get()})
    for (const int64_t shard_tokens : {20'000, 1 << 20}) {
      const std::string out = folder_ / fmt::format("{}{}", tokenizer->spec(), shard_tokens);
      const TokenizeResult result = make(*tokenizer, out, 0, shard_tokens);
      EXPECT_EQ(result.train.shards.size() > 1, shard_tokens == 20'000);
      const Corpus text({folder_ / "in"}, *tokenizer), shards({out}, *load_tokenizer(out));
      EXPECT_GT(text.untrained(), 0);
      EXPECT_GT(text.documents(), 1000);
      expect_same(text, shards);
      EXPECT_EQ(result.train.tokens(), text.size());
    }
}

TEST_F(Shards, AreSplitAsTheTextIs) {
  const auto learned = bpe();
  make(*learned, folder_ / "out", 0.2);
  const SplitCorpus text = Corpus::split({folder_ / "in"}, *learned, 0.2);
  expect_same(text.train, Corpus({folder_ / "out/train"}, *learned));
  expect_same(text.held_out, Corpus({folder_ / "out/valid"}, *learned));
  EXPECT_FAILS(Corpus({folder_ / "out"}, *learned),
               "holds tokens in two parts; name one of them: " + folder_ / "out/train" + ", or ");
  EXPECT_FAILS(Corpus::split({folder_ / "out/train"}, *learned, 0.2), "cannot be split any more");
  EXPECT_FAILS(make(*learned, folder_ / "again", 1e-9), "leaves nothing held out");
  EXPECT_EQ(folder_.entries(), (std::vector<std::string>{"in", "out"}));
}

TEST_F(Shards, WideIdsAreKeptWhole) {
  class Wide : public Tokenizer {
   public:
    int64_t vocab_size() const override { return 100'000; }
    std::string spec() const override { return "wide"; }
    std::vector<int32_t> encode(std::string_view text) const override {
      std::vector<int32_t> ids;
      for (const char c : text) ids.push_back(99'999 - static_cast<unsigned char>(c));
      return ids;
    }
    std::string piece(int32_t id) const override {
      return std::string(1, static_cast<char>(99'999 - id));
    }
    std::string to_json() const override { return "{}"; }
  };
  const Wide wide;
  make(wide, folder_ / "out");
  expect_same(Corpus({folder_ / "in"}, wide), Corpus({folder_ / "out"}, wide));
}

TEST_F(Shards, ThreadsChangeNothing) {
  const auto learned = bpe();
  for (const int threads : {1, 2, 5})
    tokenize({.paths = {folder_ / "in"},
              .out = folder_ / std::to_string(threads),
              .threads = threads,
              .shard_tokens = 30'000},
             *learned, {});
  for (const std::string& name :
       {std::string("00000.tokens"), std::string("00001.tokens"), std::string(kTokensIndex)}) {
    EXPECT_EQ(slurp(folder_ / "1/" + name), slurp(folder_ / "2/" + name)) << name;
    EXPECT_EQ(slurp(folder_ / "1/" + name), slurp(folder_ / "5/" + name)) << name;
  }
}

TEST_F(Shards, AnotherTokenizerIsRefusedAndTheSameWrittenOtherwiseIsNot) {
  const auto learned = bpe();
  make(*learned, folder_ / "out");
  EXPECT_FAILS(Corpus({folder_ / "out"}, *bytes_), "tokens of another tokenizer (bpe, ");
  const std::string json = slurp(folder_ / "out/tokenizer.json");
  put(folder_ / "out/tokenizer.json", "\n" + json + "\n");
  EXPECT_NO_THROW(Corpus({folder_ / "out"}, *learned));
  // A folder of texts in which tokens lie.
  EXPECT_FAILS(Corpus({folder_.path()}, *bytes_),
               "holds tokens, not text; name that folder itself");
  // A file that merely has the name of an index.
  put(folder_ / "plain/tokens.json", "{\"tokens\": 3}");
  EXPECT_EQ(Corpus({folder_ / "plain"}, *bytes_).size(), 13);
}

TEST_F(Shards, WhatStopsLeavesNothing) {
  const auto before = folder_.entries();
  EXPECT_FAILS(
      tokenize({.paths = {folder_ / "in"}, .out = folder_ / "out", .shard_tokens = 10'000}, *bytes_,
               [](int64_t done, int64_t) {
                 if (done > 40'000) fail("stopped");
               }),
      "stopped");
  EXPECT_EQ(folder_.entries(), before);
  put(folder_ / "in/zz.jsonl", "{\"text\": 3}\n");
  EXPECT_FAILS(make(*bytes_, folder_ / "out"), "zz.jsonl");
  EXPECT_EQ(folder_.entries(), before);
  std::filesystem::remove(folder_ / "in/zz.jsonl");
  // What a killed process left is taken over.
  put(folder_ / ".out.tokenize/00000.tokens", "torn");
  int64_t last = 0, all = 0;
  tokenize({.paths = {folder_ / "in"}, .out = folder_ / "out/"}, *bytes_,
           [&](int64_t done, int64_t total) {
             EXPECT_GE(done, last);
             last = done;
             all = total;
           });
  EXPECT_GT(last, 0);
  EXPECT_LE(last, all);
  EXPECT_EQ(Corpus({folder_ / "out"}, *bytes_).size(), Corpus({folder_ / "in"}, *bytes_).size());
  EXPECT_FALSE(std::filesystem::exists(folder_ / ".out.tokenize"));
  EXPECT_FAILS(make(*bytes_, folder_ / "out"), "is there already");
  EXPECT_FAILS(make(*bytes_, folder_ / "in/english.txt"), "is there already");
  EXPECT_FAILS(tokenize({.paths = {folder_ / "out"}, .out = folder_ / "more"}, *bytes_, {}),
               "holds tokens already");
}

// A full disk, for which the limit on the size of files stands.
TEST_F(Shards, AFullDiskLeavesNothing) {
  struct rlimit old {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small { 5000, old.rlim_max };
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = message_of([&] { make(*bytes_, folder_ / "out"); });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_NE(message.find("cannot write"), std::string::npos) << message;
  EXPECT_EQ(folder_.entries(), (std::vector<std::string>{"in"}));
}

TEST_F(Shards, DamageIsFoundWhereItIsMet) {
  make(*bytes_, folder_ / "out", 0, 1 << 20);
  const std::string path = folder_ / "out/00000.tokens", good = slurp(path);
  const auto refused = [&](const std::string& content, const std::string& part) {
    put(path, content);
    const std::string message = message_of([&] { Corpus({folder_ / "out"}, *bytes_); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_NE(message.find("00000.tokens"), std::string::npos) << message;
  };
  refused("", "cut off");
  refused(good.substr(0, good.size() - 8), "cut off");
  refused(good.substr(8), "its contents need");
  for (size_t word = 1; word < 8; ++word) {
    std::string bad = good;
    bad[bad.size() - 64 + word * 8] ^= 1;
    refused(bad, "damaged");
  }
  // The ends of documents are looked at when a row comes there.
  put(path, good);
  const Shard shard = [&] {
    static std::vector<char> kept;
    kept.assign(good.begin(), good.end());
    return read_shard(std::as_bytes(std::span(kept)), "kept");
  }();
  ASSERT_GT(shard.ends.size(), 2u);
  const auto at = static_cast<size_t>(reinterpret_cast<const char*>(shard.ends.data()) -
                                      static_cast<const char*>(shard.ids));
  std::string bad = good;
  std::memset(bad.data() + at, 0xff, 4 * shard.ends.size());
  put(path, bad);
  const Corpus corpus({folder_ / "out"}, *bytes_);
  EXPECT_FAILS(corpus.document_end(0), "documents' ends are damaged");
  bad = good;
  std::memset(bad.data() + at + 4 * shard.ends.size(), 0x01, 8 * shard.untrained.size());
  put(path, bad);
  const Corpus masked({folder_ / "out"}, *bytes_);
  std::vector<uint8_t> trained(static_cast<size_t>(masked.size()));
  EXPECT_FAILS(masked.fill_trained(0, masked.size(), trained.data()), "spans are damaged");
}

TEST_F(Shards, AnIndexThatLiesIsRefused) {
  make(*bytes_, folder_ / "out", 0, 1 << 20);
  const std::string path = folder_ / ("out/" + std::string(kTokensIndex)), good = slurp(path);
  const auto refused = [&](const std::string& from, const std::string& to,
                           const std::string& part) {
    std::string bad = good;
    const size_t at = bad.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    put(path, bad.replace(at, from.size(), to));
    EXPECT_FAILS(Corpus({folder_ / "out"}, *bytes_), part);
  };
  refused("\"00000.tokens\"", "\"../in/english.txt\"", "no name of a shard");
  refused("\"00000.tokens\"", "\"00001.tokens\"", "00001.tokens: No such file");
  refused("\"version\": 1", "\"version\": 2", "this program reads version 1");
  refused("\"documents\": 1", "\"documents\": 2", "the folder is damaged");
  refused("\"untrained\": ", "\"untrained\": -", "untrained");
  refused("\"tokens\": ", "\"tokens\": 1", "it is damaged");
  std::filesystem::remove(folder_ / "out/tokenizer.json");
  put(path, good);
  EXPECT_FAILS(Corpus({folder_ / "out"}, *bytes_), "tokenizer.json");
}

// Anonymous memory is limited to what the process has and 48 MiB; text and shards are 192 MiB each.
TEST_F(Shards, LargerThanMemory) {
#ifdef MOE_SANITIZED
  GTEST_SKIP() << "the sanitizer's own memory would count, and it aborts where memory ends";
#endif
  const std::string unit =
      repeated("The river runs past the old stone mill, and nobody asks why. \n", 1 << 20)
          .substr(0, 1 << 20);
  std::filesystem::remove_all(folder_ / "in");
  std::string lines;
  for (int file = 0; file < 2; ++file) {
    std::filesystem::create_directories(folder_ / "in");
    std::ofstream out(folder_ / ("in/" + std::to_string(file) + ".txt"), std::ios::binary);
    for (int i = 0; i < 96; ++i) out << unit;
  }
  struct rlimit old {};
  ASSERT_EQ(getrlimit(RLIMIT_DATA, &old), 0);
  const auto used = [] {
    int64_t pages[6] = {};
    std::ifstream in("/proc/self/statm");
    for (int64_t& x : pages) in >> x;
    return pages[5] * sysconf(_SC_PAGESIZE);  // data and stack
  };
  const struct rlimit limited { static_cast<rlim_t>(used() + (int64_t{48} << 20)), old.rlim_max };
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &limited), 0);
  // The limit bites, or this proves nothing.
  EXPECT_THROW(std::vector<char>(size_t{64} << 20), std::bad_alloc);
  make(*bytes_, folder_ / "out", 0, 1 << 24);
  const Corpus corpus({folder_ / "out"}, *bytes_);
  EXPECT_EQ(corpus.size(), int64_t{192} << 20);
  std::vector<int32_t> ids(1 << 20);
  int64_t sum = 0, want = 0;
  for (int64_t at = 0; at < corpus.size(); at += 1 << 20) {
    corpus.fill(at, 1 << 20, ids.data());
    for (const int32_t id : ids) sum += id;
  }
  for (const char c : unit) want += 192 * static_cast<unsigned char>(c);
  EXPECT_EQ(sum, want);
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &old), 0);
}

}  // namespace
}  // namespace moe::test::shards_test
