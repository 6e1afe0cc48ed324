// Scoring: the rule of windows (DESIGN.md section 4), against tokens fed one by one through a
// session.
#include "evaluate/score.h"

#include <cmath>
#include <numbers>

#include "infer/session.h"
#include "support/files.h"
#include "support/param_named.h"
#include "support/routings.h"
#include "support/tiny_model.h"

namespace moe::test::score_test {
namespace {

constexpr int64_t kWindow = 10;

// Pieces of 1, 2 or 3 bytes, so that bits per byte are not bits per token.
class UnevenTokenizer : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 256; }
  std::string spec() const override { return "uneven"; }
  std::vector<int32_t> encode(std::string_view) const override { return {}; }
  std::string piece(int32_t id) const override {
    return std::string(static_cast<size_t>(1 + id % 3), 'x');
  }
  std::string to_json() const override { return ""; }
};

struct Fixture {
  std::unique_ptr<Model> model;
  moe::Run run{2};
  UnevenTokenizer tokenizer;
  ScoreOptions options;
  std::vector<int32_t> ids;

  explicit Fixture(int64_t tokens = 3 * kWindow + 7) {
    ModelConfig config = plain_config();
    config.init.std = 0.3f;
    model = fresh(config);
    options.window = kWindow;
    for (int64_t i = 0; i < tokens; ++i)
      ids.push_back(
          static_cast<int32_t>(uniform_index(RngKey::from_seed(4), static_cast<uint64_t>(i), 256)));
  }
  Score score() { return moe::score(*model, run, tokenizer, ids, options); }

  // -log p of each token but a window's first.  [windows][window - 1]
  std::vector<std::vector<double>> token_by_token(int64_t windows) {
    std::vector<std::vector<double>> out;
    for (int64_t w = 0; w < windows; ++w) {
      Session session(*model, run, kWindow);
      out.emplace_back();
      for (int64_t i = 0; i + 1 < kWindow; ++i) {
        const std::span<const float> logits =
            session.prefill(std::span(ids).subspan(static_cast<size_t>(w * kWindow + i), 1));
        double sum = 0;
        for (const float x : logits) sum += std::exp(static_cast<double>(x));
        out.back().push_back(
            std::log(sum) -
            logits[static_cast<size_t>(ids[static_cast<size_t>(w * kWindow + i + 1)])]);
      }
    }
    return out;
  }
};

TEST(Score, IsTheMeanOverWindowsOfWhatASessionSays) {
  Fixture f;
  const Score s = f.score();
  EXPECT_EQ(s.windows, 3);
  EXPECT_EQ(s.tokens, 3 * (kWindow - 1));
  double mean = 0, total = 0;
  int64_t bytes = 0;
  for (const auto& window : f.token_by_token(3))
    for (const double nll : window) {
      total += nll;
      mean += nll / (kWindow - 1) / 3;
    }
  for (int64_t i = 0; i < 3 * kWindow; ++i)
    if (i % kWindow != 0) bytes += 1 + f.ids[static_cast<size_t>(i)] % 3;
  EXPECT_NEAR(s.nats_per_token, mean, 1e-5);
  EXPECT_DOUBLE_EQ(s.perplexity, std::exp(s.nats_per_token));
  EXPECT_EQ(s.bytes, bytes);
  EXPECT_NEAR(s.bits_per_byte, total / std::numbers::ln2 / static_cast<double>(bytes), 1e-5);
}

// A row's result does not depend on how many rows there are, so the bits are the same.
TEST(Score, InChunksThroughACacheToo) {
  Fixture f;
  f.options.per_token = true;
  const Score whole = f.score();
  for (const int64_t chunk : {1, 3, 10, 64}) {
    f.options.chunk = chunk;
    EXPECT_EQ(f.score().logprobs, whole.logprobs) << chunk;
  }
  f.options.chunk = -1;
  EXPECT_FAILS(f.score(), "chunk is -1");
  f.options.chunk = 1;
  f.options.on_routing = [](int64_t, int64_t, const MoeLayer::Saved&) {};
  EXPECT_FAILS(f.score(), "leave chunk out");
}

TEST(Score, PerTokenBeginsEveryWindowWithNothing) {
  Fixture f;
  EXPECT_TRUE(f.score().ids.empty());
  f.options.per_token = true;
  const Score s = f.score();
  const auto want = f.token_by_token(3);
  ASSERT_EQ(s.ids.size(), static_cast<size_t>(3 * kWindow));
  ASSERT_EQ(s.logprobs.size(), s.ids.size());
  for (size_t i = 0; i < s.ids.size(); ++i) {
    const size_t w = i / kWindow, place = i % kWindow;
    EXPECT_EQ(s.ids[i], f.ids[i]);
    ASSERT_EQ(s.logprobs[i].has_value(), place != 0) << i;
    if (place > 0) EXPECT_NEAR(*s.logprobs[i], -want[w][place - 1], 1e-5) << i;
  }
}

TEST(Score, DropsTheRemainderAndWhatTheLimitLeaves) {
  Fixture with(3 * kWindow + 7), without(3 * kWindow);
  EXPECT_EQ(with.score().nats_per_token, without.score().nats_per_token);
  with.options.windows = 2;
  const Score two = with.score();
  EXPECT_EQ(two.windows, 2);
  EXPECT_EQ(two.tokens, 2 * (kWindow - 1));
  EXPECT_NE(two.nats_per_token, without.score().nats_per_token);
  with.options.windows = 99;
  EXPECT_EQ(with.score().windows, 3);
}

TEST(Score, WindowsDoNotSeeEachOther) {
  Fixture a, b;
  for (int64_t i = 0; i < kWindow; ++i) b.ids[static_cast<size_t>(i)] = 7;
  a.options.per_token = b.options.per_token = true;
  const Score one = a.score(), other = b.score();
  for (size_t i = kWindow; i < one.logprobs.size(); ++i)
    EXPECT_EQ(one.logprobs[i], other.logprobs[i]);
  EXPECT_NE(one.logprobs[1], other.logprobs[1]);
}

TEST(Score, RoutesAsAskedAndByDefaultWithoutLookingAhead) {
  Fixture f(3 * kWindow);
  ModelConfig config = f.model->config();
  config.routing = small_routing("expert-choice", 4, 2);
  f.model = fresh(config);
  for (const char* name : {"layers.0.ffn.router.threshold", "layers.1.ffn.router.threshold"}) {
    Param* p = param_named(*f.model, name);
    ASSERT_NE(p, nullptr);
    std::fill_n(p->value.as<float>(), p->value.numel(), 0.3f);
    p->touched();
  }
  const double by_default = f.score().nats_per_token;
  f.options.routing = EvalRouting::threshold;
  EXPECT_EQ(f.score().nats_per_token, by_default);
  f.options.routing = EvalRouting::as_trained;
  EXPECT_NE(f.score().nats_per_token, by_default);
  f.options.routing = EvalRouting::dropless;
  EXPECT_FAILS(f.score(), "experts choose");

  config.routing = small_routing("switch", 4, 2);
  config.routing.capacity_factor_eval = 0.1f;  // four tokens of ten at most
  f.model = fresh(config);
  f.options.routing = {};
  const double dropless = f.score().nats_per_token;
  f.options.routing = EvalRouting::dropless;
  EXPECT_EQ(f.score().nats_per_token, dropless);
  f.options.routing = EvalRouting::as_trained;
  EXPECT_NE(f.score().nats_per_token, dropless);
}

TEST(Score, TellsItsProgress) {
  Fixture f;
  std::vector<std::pair<int64_t, int64_t>> told;
  moe::score(*f.model, f.run, f.tokenizer, f.ids, f.options,
             [&](int64_t done, int64_t total) { told.emplace_back(done, total); });
  EXPECT_EQ(told, (std::vector<std::pair<int64_t, int64_t>>{{1, 3}, {2, 3}, {3, 3}}));
}

TEST(Score, RefusesATextShorterThanAWindowAndWindowsOfNothing) {
  Fixture f(kWindow - 1);
  EXPECT_FAILS(
      f.score(),
      "the text has 9 tokens, less than one window of 10; give a longer text, or window 9");
  const ScoredNames verify{.text = "a.txt", .window = ""};
  EXPECT_EQ(message_of([&] { scored_windows(9, {.window = 10}, verify); }),
            "a.txt has 9 tokens, less than one window of 10; give a longer text");
  EXPECT_EQ(message_of([&] { scored_windows(1, {.window = 10}); }),
            "the text has 1 token, less than one window of 10; give a longer text")
      << "no window has room for one";
  Fixture enough(kWindow);
  EXPECT_EQ(enough.score().windows, 1);
  for (const int64_t window : {int64_t{1}, int64_t{0}, int64_t{-5}}) {
    enough.options.window = window;
    EXPECT_FAILS(enough.score(), "window");
  }
  enough.options.window = kWindow;
  enough.options.windows = -1;
  EXPECT_FAILS(enough.score(), "windows");
}

}  // namespace
}  // namespace moe::test::score_test
