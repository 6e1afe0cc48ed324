// Sessions: chunks against one piece in bits, going back, what a new prompt finds already read, and
// what does not fit.
#include "infer/session.h"

#include "support/files.h"
#include "support/routings.h"
#include "support/same_rows.h"
#include "support/tiny_model.h"

namespace moe::test::session_test {
namespace {

using Ids = std::vector<int32_t>;

std::unique_ptr<Model> drawn_model(const RoutingOptions& routing = plain_config().routing) {
  ModelConfig config = plain_config();
  config.routing = routing;
  config.init.std = 0.3f;  // logits far enough apart
  return fresh(config);
}

Ids drawn_ids(int64_t count) {
  Ids ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(
        static_cast<int32_t>(uniform_index(RngKey::from_seed(2), static_cast<uint64_t>(i), 256)));
  return ids;
}

std::vector<float> copy(std::span<const float> x) { return {x.begin(), x.end()}; }

TEST(Session, ChunksGiveTheBitsOfOnePiece) {
  const auto model = drawn_model();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    moe::Run run(2, dtype);
    const int64_t count = prompt_chunk() + 89;
    const Ids ids = drawn_ids(count);
    Session whole(*model, run, count), chunks(*model, run, count), single(*model, run, 40);
    const std::vector<float> want = copy(whole.prefill(ids));
    std::vector<float> got;
    for (size_t at = 0, n = 1; at < ids.size(); at += n, n = n * 3 + 1)
      got = copy(chunks.prefill(std::span(ids).subspan(at, std::min(n, ids.size() - at))));
    EXPECT_TRUE(same_rows(got, want, dtype)) << name_of(dtype);
    EXPECT_EQ(chunks.length(), count);

    Session prefix(*model, run, 40);
    const std::vector<float> want_prefix = copy(prefix.prefill(std::span(ids).first(40)));
    for (size_t i = 0; i < 40; ++i) got = copy(single.decode(std::span(ids).subspan(i, 1)));
    EXPECT_TRUE(same_rows(got, want_prefix, dtype)) << name_of(dtype) << ", one token at a time";
    EXPECT_FALSE(same_rows(want, want_prefix, dtype));
  }
}

TEST(Session, LogitsGoWhereTheCallerWantsThem) {
  const auto model = drawn_model();
  moe::Run run(2, DType::f32);
  const int64_t count = prompt_chunk() + 89;
  const Ids ids = drawn_ids(count);
  Session whole(*model, run, count), into(*model, run, count);
  for (const int64_t rows : {count, int64_t{90}, int64_t{1}}) {
    const std::vector<float> want = copy(whole.prefill(ids, rows));
    std::vector<float> got(static_cast<size_t>(rows * model->config().vocab));
    into.prefill_into(got, ids);
    EXPECT_EQ(got, want) << rows;
    EXPECT_EQ(into.length(), count);
    whole.truncate(0);
    into.truncate(0);
  }
  std::vector<float> none;
  EXPECT_FAILS(into.prefill_into(none, ids), "logits of 0 tokens are asked for");
  std::vector<float> more(static_cast<size_t>(3 * model->config().vocab));
  EXPECT_FAILS(into.prefill_into(more, std::span(ids).first(2)), "logits of 3 tokens");
}

// A text turns by what it may grow to, not by what it holds so far.
TEST(Session, OfTwoSetsOfFrequenciesTurnsByItsCapacity) {
  ModelConfig config = plain_config();
  config.init.std = 0.3f;
  const auto pairs = static_cast<size_t>(config.head_width / 2);
  config.rope_scaling = {.kind = RopeScaling::Kind::longrope,
                         .original_context = 100,
                         .attention_factor = 1.1f,
                         .long_attention_factor = 1.2f,
                         .short_factors = std::vector<float>(pairs, 1),
                         .long_factors = std::vector<float>(pairs, 3)};
  const auto model = fresh(config);
  moe::Run run(2, DType::f32);
  const Ids ids = drawn_ids(150);
  Session whole(*model, run, 150), single(*model, run, 150), shorter(*model, run, 100);
  const std::vector<float> want = copy(whole.prefill(std::span(ids).first(100)));
  std::vector<float> got;
  for (size_t i = 0; i < 100; ++i) got = copy(single.decode(std::span(ids).subspan(i, 1)));
  EXPECT_TRUE(same_rows(got, want, DType::f32));
  EXPECT_FALSE(same_rows(copy(shorter.prefill(std::span(ids).first(100))), want, DType::f32));

  // Without a cache the sequences of a batch turn each by its own length, whatever the others are.
  const auto last_hidden = [&](const std::vector<Ids>& texts) {
    Ids all, positions;
    std::vector<int64_t> bounds = {0};
    for (const Ids& text : texts) {
      for (size_t i = 0; i < text.size(); ++i) positions.push_back(static_cast<int32_t>(i));
      all.insert(all.end(), text.begin(), text.end());
      bounds.push_back(std::ssize(all));
    }
    const RoutingSpec spec = eval_spec(config.routing);
    ModelSaved saved;
    model->forward(run, {.batch = {all, positions, bounds}, .routing = &spec}, saved);
    const float* row = saved.hidden.row<float>(std::ssize(all) - 1);
    return std::vector<float>(row, row + config.width);
  };
  const Ids first(ids.begin(), ids.begin() + 40);
  EXPECT_TRUE(same_rows(last_hidden({ids, first}), last_hidden({first}), DType::f32));
  EXPECT_TRUE(same_rows(last_hidden({first, ids}), last_hidden({ids}), DType::f32));
}

// By where a token stands in its text, however many are read at once.
TEST(Session, QueriesGrowTokenByTokenAsInOnePiece) {
  ModelConfig config = plain_config();
  config.init.std = 0.3f;
  const auto still = fresh(config);
  config.query_growth = {.beta = 0.6f, .context = 8};
  const auto model = fresh(config);
  moe::Run run(2, DType::f32);
  const Ids ids = drawn_ids(40);
  Session whole(*model, run, 40), single(*model, run, 40), plain(*still, run, 40);
  const std::vector<float> want = copy(whole.prefill(ids));
  std::vector<float> got;
  for (size_t i = 0; i < ids.size(); ++i) got = copy(single.decode(std::span(ids).subspan(i, 1)));
  EXPECT_TRUE(same_rows(got, want, DType::f32));
  EXPECT_FALSE(same_rows(copy(plain.prefill(ids)), want, DType::f32));
}

ModelConfig linear_config() {
  ModelConfig config = plain_config();
  config.init.std = 0.3f;
  config.attention_gate = config.norm_offset = true;
  config.linear = {
      .key_heads = 1, .value_heads = 2, .key_width = 8, .value_width = 12, .conv_width = 4};
  config.linear_layers = {0};
  return config;
}

ModelConfig scan_config() {
  ModelConfig config = plain_config();
  config.init.std = 0.3f;
  config.scan = {
      .heads = 4, .groups = 2, .width = 8, .states = 12, .conv_width = 4, .conv_bias = true};
  config.scan_layers = {0};
  return config;
}

ModelConfig selective_config() {
  ModelConfig config = plain_config();
  config.init.std = 0.3f;
  config.scan = {.heads = 70,
                 .groups = 1,
                 .width = 1,
                 .states = 12,
                 .conv_width = 4,
                 .conv_bias = true,
                 .step_rank = 5};
  config.scan_layers = {0};
  return config;
}

ModelConfig halves_config() {
  ModelConfig config = scan_config();
  config.layers = 4;
  config.mixer_only_layers = {0, 2};
  config.ffn_only_layers = {1, 3};
  return config;
}

ModelConfig lightning_config() {
  ModelConfig config = plain_config();
  config.init.std = 0.3f;
  config.norm_placement = NormPlacement::carried;
  config.lightning_layers = {0};
  return config;
}

class SessionOfStates : public testing::TestWithParam<ModelConfig (*)()> {};

TEST_P(SessionOfStates, GoesOnAndForgetsAllOrNothing) {
  const auto model = fresh(GetParam()());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    moe::Run run(2, dtype);
    const int64_t count = prompt_chunk() + 89;
    const Ids ids = drawn_ids(count);
    Session whole(*model, run, count), chunks(*model, run, count);
    const std::vector<float> want = copy(whole.prefill(ids));
    std::vector<float> got;
    for (size_t at = 0, n = 1; at < ids.size(); at += n, n = n * 3 + 1)
      got = copy(chunks.prefill(std::span(ids).subspan(at, std::min(n, ids.size() - at))));
    EXPECT_TRUE(same_rows(got, want, dtype)) << name_of(dtype);

    chunks.truncate(count);
    EXPECT_EQ(chunks.length(), count);
    chunks.truncate(count - 1);
    EXPECT_EQ(chunks.length(), 0);
    EXPECT_TRUE(same_rows(copy(chunks.prefill(ids)), want, dtype)) << "read again";
    // A text that goes on is kept; of any other nothing is.
    Ids longer = ids;
    longer.push_back(3);
    EXPECT_EQ(whole.keep_prefix(longer), count);
    longer[0] ^= 1;
    EXPECT_EQ(whole.keep_prefix(longer), 0);
  }
}

TEST_P(SessionOfStates, IsReadAgainBehindAFailure) {
  const auto model = fresh(GetParam()());
  moe::Run run(2);
  const Ids ids = drawn_ids(20);
  Session session(*model, run, 40);
  session.prefill(ids);
  const Ids wrong = {1, 9999};
  EXPECT_THROW(session.decode(wrong), Error);
  EXPECT_EQ(session.length(), 0);
}

INSTANTIATE_TEST_SUITE_P(LinearAttentionAndStateSpaces, SessionOfStates,
                         testing::Values(linear_config, scan_config, selective_config,
                                         halves_config, lightning_config));

// The id decides the expert, wherever the token stands.
TEST(Session, HashRoutingInChunksGivesTheBitsOfOnePiece) {
  const auto model = drawn_model(small_routing("hash", 4, 2));
  moe::Run run(2);
  const Ids ids = drawn_ids(60);
  Session whole(*model, run, 60), chunks(*model, run, 60);
  const std::vector<float> want = copy(whole.prefill(ids));
  std::vector<float> got;
  for (size_t at = 0; at < ids.size(); at += 13)
    got = copy(chunks.prefill(std::span(ids).subspan(at, std::min<size_t>(13, ids.size() - at))));
  EXPECT_TRUE(same_rows(got, want));
}

TEST(Session, GivesTheLogitsOfTheLastRowsWhateverTheChunks) {
  const auto model = drawn_model();
  moe::Run run(2);
  const int64_t read = prompt_chunk() - 12, count = read + 30;
  const Ids ids = drawn_ids(count);
  Session all(*model, run, count + 10), one(*model, run, count);
  const auto vocab = static_cast<size_t>(model->config().vocab);
  const std::vector<float> rows = copy(all.prefill(ids, 30));  // a chunk ends among them
  ASSERT_EQ(rows.size(), 30 * vocab);
  const auto before = static_cast<size_t>(read);
  one.prefill(std::span(ids).first(before));
  for (size_t r = 0; r < 30; ++r)
    EXPECT_TRUE(same_rows(one.decode(std::span(ids).subspan(before + r, 1)),
                          std::span(rows).subspan(r * vocab, vocab)))
        << "row " << r;
  one.truncate(read);
  EXPECT_TRUE(same_rows(one.decode(std::span(ids).subspan(before)), rows)) << "all in one forward";
  EXPECT_FAILS(all.prefill(Ids{1, 2}, 3), "3 tokens");
}

TEST(Session, GoesBack) {
  const auto model = drawn_model();
  moe::Run run(2);
  Session wandered(*model, run, 20), straight(*model, run, 20);
  wandered.prefill(Ids{1, 2, 3, 4, 5, 6});
  wandered.truncate(3);
  EXPECT_EQ(wandered.length(), 3);
  const std::vector<float> got = copy(wandered.prefill(Ids{9, 8}));
  EXPECT_TRUE(same_rows(got, straight.prefill(Ids{1, 2, 3, 9, 8})));
}

TEST(Session, ANewPromptKeepsWhatItAgreesWith) {
  const auto model = drawn_model();
  const auto tokenizer = make_tokenizer("bytes");
  moe::Run run(2);
  Session kept(*model, run, 64);
  int64_t computed = 0;
  const std::vector<std::pair<std::string, int64_t>> steps = {
      {"the router", 10}, {"the router sends", 6},
      {"the road", 2},    {"the road", 1},
      {"the", 1},         {"a", 1},
      {"a b c", 4}};
  for (const auto& [text, fresh_tokens] : steps) {
    Session whole(*model, run, 64);
    const Ids ids = tokenizer->encode(text);
    const auto held = static_cast<size_t>(kept.keep_prefix(ids));
    EXPECT_TRUE(same_rows(kept.prefill(std::span(ids).subspan(held)), whole.prefill(ids))) << text;
    EXPECT_EQ(kept.length(), static_cast<int64_t>(text.size()));
    EXPECT_EQ(kept.computed() - computed, fresh_tokens) << text;
    computed = kept.computed();
  }
  EXPECT_EQ(kept.keep_prefix({}), 0);
  EXPECT_FAILS(kept.prefill({}), "nothing to continue from");
}

TEST(Session, RefusesNothingAndTooMuch) {
  const auto model = drawn_model();
  moe::Run run(1);
  Session session(*model, run, 3);
  EXPECT_FAILS(session.prefill({}), "prompt");
  EXPECT_FAILS(session.prefill(Ids{1, 2, 3, 4}),
               "the session holds 0 tokens and 4 are to follow, but its capacity is 3; truncate "
               "it, or open one with a larger");
  EXPECT_FAILS(session.prefill(Ids{256}), "256");
  EXPECT_EQ(session.length(), 0);
  EXPECT_NO_THROW(session.prefill(Ids{1, 2, 3}));
}

}  // namespace
}  // namespace moe::test::session_test
