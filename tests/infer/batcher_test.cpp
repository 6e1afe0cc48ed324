// Texts that share the steps of one runner: each is what it is alone, whatever stands beside it;
// clients take turns, texts that go are forgotten, and what cannot be done is refused at the door.
#include "infer/batcher.h"

#include <array>
#include <cmath>

#include "core/error.h"
#include "ops/ops.h"
#include "support/bound_model.h"
#include "support/files.h"
#include "support/same_rows.h"
#include "support/tiny_model.h"

namespace moe::test::batcher_test {
namespace {

constexpr int64_t kContext = 400;

std::vector<int32_t> some_ids(int64_t count, uint64_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>(
        uniform_index(RngKey::from_seed(seed), static_cast<uint64_t>(i), 256)));
  return ids;
}

// Choices to replay; of four experts each becomes the one that stands so many places further on.
std::shared_ptr<const std::vector<int32_t>> shared(std::vector<int32_t> experts, int32_t more = 0) {
  for (int32_t& expert : experts)
    if (more > 0) expert = (expert + more) % 4;
  return std::make_shared<const std::vector<int32_t>>(std::move(experts));
}

// What came of a text.
struct Outcome {
  std::string text, finish;
  std::vector<int32_t> ids;
  std::vector<TokenLogprobs> logprobs, prompt_logprobs;
  TokenRouting routing;
  int64_t read = 0;
  std::string error;
  bool ended = false;
};

// Logits of products in tiles, of bf16 and of quantised weights, differ by what stands beside, so
// machines that have them prove f32 only.
struct Numbers {
  const char* name;
  DType compute, weights;
};

class BatcherTest : public ::testing::TestWithParam<Numbers> {
 protected:
  BatcherTest() : run_(2, GetParam().compute), tokenizer_(make_tokenizer("bytes")) {
    ModelConfig config = plain_config();
    config.context = kContext;
    config.init.std = 0.3f;  // logits far enough apart that texts differ
    owned_ = fresh(config);
    model_ = GetParam().weights == DType::f32 ? std::move(owned_)
                                              : bound_like(*owned_, GetParam().weights);
  }
  void SetUp() override {
    if (!ops::products_keep_row_bits(GetParam().compute) ||
        (is_quantised(GetParam().weights) && ops::quantised_products_in_tiles()))
      GTEST_SKIP() << "products here do not keep the bits of a row";
  }

  // Two drawn adapters, each of which changes what is written.
  void draw_adapters(AdapterChoice& choice) {
    for (uint64_t which : {1u, 2u}) {
      const auto adapters = std::make_shared<Adapters>();
      for (Param* p : model_->params())
        if (p->is_matrix() && p->layer >= 0 && p->part != Part::router)
          adapters->add(*p, {2}, false);
      for (const auto& adapter : adapters->all())
        for (Param* half : {&adapter->a, &adapter->b})
          for (int64_t i = 0; i < half->value.numel(); ++i)
            half->value.as<float>()[i] =
                0.1f * normal(RngKey::from_seed(which), static_cast<uint64_t>(i));
      EXPECT_EQ(choice.add(adapters), static_cast<int32_t>(which));
    }
  }

  TextRequest request(std::vector<int32_t> prompt, uint64_t seed, float temperature = 1) {
    TextRequest r;
    r.prompt = std::move(prompt);
    r.options.max_tokens = 20 + static_cast<int64_t>(seed % 7);
    r.options.sampler.seed = seed;
    r.options.sampler.temperature = temperature;
    return r;
  }

  void add(Batcher& batcher, TextRequest r, Outcome& out) {
    r.on_progress = [&out](const TextProgress& p) {
      out.text += p.text;
      out.ids.insert(out.ids.end(), p.ids.begin(), p.ids.end());
      out.logprobs.insert(out.logprobs.end(), p.logprobs.begin(), p.logprobs.end());
      out.prompt_logprobs.insert(out.prompt_logprobs.end(), p.prompt_logprobs.begin(),
                                 p.prompt_logprobs.end());
      out.routing.ids.insert(out.routing.ids.end(), p.routing.ids.begin(), p.routing.ids.end());
      out.routing.experts.insert(out.routing.experts.end(), p.routing.experts.begin(),
                                 p.routing.experts.end());
      out.routing.weights.insert(out.routing.weights.end(), p.routing.weights.begin(),
                                 p.routing.weights.end());
    };
    r.on_end = [&out](const Generated& g, const std::exception_ptr& error) {
      EXPECT_FALSE(out.ended);
      out.ended = true;
      out.finish = g.finish;
      out.read = g.read_tokens;
      if (!error) return;
      try {
        std::rethrow_exception(error);
      } catch (const Error& e) {
        out.error = e.what();
      }
    };
    batcher.add(std::move(r));
  }

  Outcome alone(const TextRequest& r, AdapterChoice* adapters = nullptr) {
    ModelRunner runner(*model_, run_, 4096);
    runner.set_adapters(adapters);
    Batcher batcher(runner, *tokenizer_, 1, kContext);
    Outcome out;
    add(batcher, r, out);
    while (batcher.step()) {
    }
    return out;
  }

  moe::Run run_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Model> owned_, model_;  // what is bound views the owned one's norms
};

TEST_P(BatcherTest, AloneATextIsWhatGenerateWrites) {
  const TextRequest r = request(some_ids(70, 1), 3);
  Session session(*model_, run_, kContext);
  const Generated expected =
      generate(session, *tokenizer_, r.prompt, r.options, [](const std::string&) { return true; });
  const Outcome out = alone(r);
  EXPECT_EQ(out.ids, expected.ids);
  EXPECT_EQ(out.text, expected.text);
  EXPECT_EQ(out.finish, expected.finish);
}

TEST_P(BatcherTest, ATextIsTheSameAmongOthers) {
  std::vector<TextRequest> requests;
  for (uint64_t i = 0; i < 32; ++i) {
    std::vector<int32_t> prompt = some_ids(i % 3 == 0 ? 200 : 5 + static_cast<int64_t>(i) * 9,
                                           i % 3 == 0 ? 100 : i);  // every third begins alike
    if (i % 3 == 0) prompt.push_back(static_cast<int32_t>(i));
    requests.push_back(request(prompt, i, i % 2 == 0 ? 0.0f : 1.0f));
    requests.back().client = std::to_string(i % 4);
  }
  ModelRunner runner(*model_, run_, 2048);  // so few that some have to wait
  Batcher batcher(runner, *tokenizer_, 8, kContext);
  std::vector<Outcome> outcomes(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) add(batcher, requests[i], outcomes[i]);
  while (batcher.step()) {
  }
  int64_t shared = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Outcome expected = alone(requests[i]);
    ASSERT_TRUE(outcomes[i].ended) << i;
    EXPECT_EQ(outcomes[i].error, "") << i;
    EXPECT_EQ(outcomes[i].ids, expected.ids) << i;
    EXPECT_EQ(outcomes[i].text, expected.text) << i;
    if (outcomes[i].read < std::ssize(requests[i].prompt)) ++shared;
  }
  EXPECT_EQ(shared, 10);  // all but the first of those that begin alike
  EXPECT_EQ(batcher.active(), 0);
}

// Texts that begin alike and are written with one adapter, with another and with none, side by
// side: nothing that one adapter read serves another.
TEST_P(BatcherTest, EachTextHasItsAdapter) {
  AdapterChoice choice;
  draw_adapters(choice);
  ModelRunner runner(*model_, run_, 4096);
  runner.set_adapters(&choice);
  Batcher batcher(runner, *tokenizer_, 6, kContext);
  std::vector<TextRequest> requests;
  for (int32_t i = 0; i < 9; ++i) {
    std::vector<int32_t> prompt = some_ids(200, 7);
    prompt.push_back(i);
    requests.push_back(request(prompt, 3, 0));
    requests.back().adapter = i % 3;
  }
  std::vector<Outcome> outcomes(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) add(batcher, requests[i], outcomes[i]);
  while (batcher.step()) {
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(outcomes[i].error, "") << i;
    EXPECT_EQ(outcomes[i].ids, alone(requests[i], &choice).ids) << i;
    EXPECT_EQ(outcomes[i].read < std::ssize(requests[i].prompt), i >= 3) << i;
  }
  EXPECT_NE(outcomes[0].ids, outcomes[1].ids);
  EXPECT_NE(outcomes[1].ids, outcomes[2].ids);
  TextRequest wrong = request(some_ids(5, 1), 1);
  wrong.adapter = 3;
  EXPECT_THROW(batcher.check(wrong), Error);
  choice.choose(0);
  for (const Param* p : model_->params()) EXPECT_EQ(p->term, nullptr) << p->name;
  EXPECT_EQ(alone(requests[0]).ids, outcomes[0].ids);
}

TEST_P(BatcherTest, LogprobsAreOfTheModelsLogits) {
  TextRequest r = request(some_ids(130, 4), 1);
  r.top_logprobs = 3;
  r.prompt_logprobs = true;
  const Outcome out = alone(r);
  std::vector<int32_t> ids = r.prompt;
  ids.insert(ids.end(), out.ids.begin(), out.ids.end());
  Session session(*model_, run_, kContext);
  const std::span<const float> logits = session.prefill(ids, std::ssize(ids));  // [n,V]
  ASSERT_EQ(std::ssize(out.prompt_logprobs), std::ssize(r.prompt) - 1);
  ASSERT_EQ(out.logprobs.size(), out.ids.size());
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    const TokenLogprobs& got =
        i + 1 < r.prompt.size() ? out.prompt_logprobs[i] : out.logprobs[i + 1 - r.prompt.size()];
    const float* row = logits.data() + i * 256;
    double sum = 0;
    for (int v = 0; v < 256; ++v) sum += std::exp(static_cast<double>(row[v]));
    EXPECT_EQ(got.token.id, ids[i + 1]);
    EXPECT_NEAR(got.token.logprob, row[ids[i + 1]] - std::log(sum), 1e-4);
    ASSERT_EQ(got.top.size(), 3u);
    EXPECT_GE(got.top[0].logprob, got.top[1].logprob);
    const auto likeliest = std::max_element(row, row + 256) - row;
    EXPECT_EQ(got.top[0].id, likeliest);
    // lm-evaluation-harness asks whether the token is the likeliest by comparing the two.
    if (got.top[0].id == got.token.id) EXPECT_EQ(got.top[0].logprob, got.token.logprob);
  }
}

TEST_P(BatcherTest, RoutingIsShownAndReplayed) {
  TextRequest r = request(some_ids(90, 5), 6);
  r.routing = true;
  const Outcome shown = alone(r);
  const int64_t tokens = std::ssize(shown.routing.ids);
  std::vector<int32_t> read = r.prompt;
  read.insert(read.end(), shown.ids.begin(), shown.ids.end() - 1);
  EXPECT_EQ(shown.routing.ids, read);
  ASSERT_EQ(std::ssize(shown.routing.experts), tokens * 2 * 2);  // 2 layers, 2 experts a token
  for (size_t i = 0; i < shown.routing.experts.size(); i += 2) {
    EXPECT_NE(shown.routing.experts[i], shown.routing.experts[i + 1]);
    EXPECT_NEAR(shown.routing.weights[i] + shown.routing.weights[i + 1], 1, 1) << "of a softmax";
  }
  r.recorded = shared(shown.routing.experts);
  const Outcome again = alone(r);
  EXPECT_EQ(again.ids, shown.ids);
  EXPECT_EQ(again.routing.experts, shown.routing.experts);
  r.recorded = shared(shown.routing.experts, 1);
  const Outcome other = alone(r);
  EXPECT_NE(other.ids, shown.ids);
  const std::span<const int32_t> taken(other.routing.experts);
  EXPECT_TRUE(std::ranges::equal(taken.first(r.recorded->size()), *r.recorded));
}

// They are read, and are no part of the text. Three x guess a fourth, which brings a fifth, and
// those a sixth, which ends the text before its guess.
TEST_P(BatcherTest, RoutingIsNotShownOfGuessesThatCameToNothing) {
  TextRequest r = request(std::vector<int32_t>(40, 'a'), 6);
  r.routing = true;
  r.options.sampler.logit_bias = {{'x', 1000.0f}};
  r.options.stop = {std::string(6, 'x')};
  const Outcome plain = alone(r);
  r.options.prompt_lookup = 8;
  const Outcome guessed = alone(r);
  EXPECT_EQ(guessed.ids, std::vector<int32_t>(6, 'x'));
  EXPECT_EQ(guessed.routing.ids, plain.routing.ids);
  EXPECT_EQ(guessed.routing.experts, plain.routing.experts);
  EXPECT_EQ(guessed.routing.weights, plain.routing.weights);
}

TEST_P(BatcherTest, WhatIsReplayedLeavesOthersAlone) {
  TextRequest r = request(some_ids(90, 5), 2);
  r.routing = true;
  r.recorded = shared(alone(r).routing.experts, 1);
  TextRequest plain = request(some_ids(90, 5), 2);
  ModelRunner runner(*model_, run_, 4096);
  Batcher batcher(runner, *tokenizer_, 4, kContext);
  Outcome replayed, first, second;
  add(batcher, plain, first);
  add(batcher, r, replayed);
  while (batcher.step()) {
  }
  add(batcher, plain, second);  // finds the first one's tokens, not those of the replay
  while (batcher.step()) {
  }
  EXPECT_EQ(replayed.ids, alone(r).ids);
  EXPECT_EQ(first.ids, alone(plain).ids);
  EXPECT_EQ(second.ids, first.ids);
  EXPECT_LT(second.read, first.read);
}

TEST_P(BatcherTest, ClientsTakeTurns) {
  ModelRunner runner(*model_, run_, 4096);
  Batcher batcher(runner, *tokenizer_, 1, kContext);
  std::vector<Outcome> greedy(5);
  for (uint64_t i = 0; i < greedy.size(); ++i) {
    TextRequest r = request(some_ids(10, i), i);
    r.client = "greedy";
    add(batcher, std::move(r), greedy[i]);
  }
  TextRequest r = request(some_ids(10, 9), 9);
  r.client = "modest";
  Outcome modest;
  add(batcher, std::move(r), modest);
  while (!modest.ended) ASSERT_TRUE(batcher.step());
  EXPECT_EQ(std::count_if(greedy.begin(), greedy.end(), [](const Outcome& o) { return o.ended; }),
            1);
}

TEST_P(BatcherTest, WhoGoesIsForgotten) {
  ModelRunner runner(*model_, run_, 512);
  Batcher batcher(runner, *tokenizer_, 4, kContext);
  bool wanted = true;
  Outcome gone, waiting;
  for (Outcome* out : {&gone, &waiting}) {
    TextRequest r = request(some_ids(300, 1), 1);
    r.options.max_tokens = 90;
    r.wanted = [&] { return wanted; };
    add(batcher, std::move(r), *out);
  }
  for (int i = 0; i < 5; ++i) batcher.step();
  EXPECT_EQ(batcher.active(), 1);
  EXPECT_EQ(batcher.waiting(), 1);
  wanted = false;
  EXPECT_FALSE(batcher.step());
  EXPECT_EQ(gone.finish, "interrupted");
  EXPECT_EQ(waiting.finish, "interrupted");
  Outcome next;
  add(batcher, request(some_ids(350, 2), 1), next);  // takes the room of those that went
  while (batcher.step()) {
  }
  EXPECT_EQ(next.error, "");
  EXPECT_EQ(next.ids, alone(request(some_ids(350, 2), 1)).ids);
}

// Guesses that were right behind the place do not count.
TEST_P(BatcherTest, ATextGoesOnForAsLongAsItIsTold) {
  const TextRequest r = request(some_ids(40, 3), 5);
  const Outcome whole = alone(r);
  std::vector<int32_t> before;
  for (const int64_t lookup : {0, 8}) {
    TextRequest cut = r;
    cut.options.prompt_lookup = lookup;
    std::string seen;
    cut.goes_on = [&](const std::string& piece) {
      seen += piece;
      return seen.size() < 4;
    };
    const Outcome out = alone(cut);
    EXPECT_EQ(out.finish, "interrupted");
    EXPECT_EQ(out.text, seen);
    EXPECT_GE(out.text.size(), 4u);
    EXPECT_TRUE(whole.text.starts_with(out.text));
    ASSERT_LT(out.ids.size(), whole.ids.size());
    EXPECT_TRUE(std::equal(out.ids.begin(), out.ids.end(), whole.ids.begin()));
    if (lookup > 0) EXPECT_EQ(out.ids, before);
    before = out.ids;
  }
}

// A text that may fill the context takes no room beyond it, as its last token is not read.
TEST_P(BatcherTest, AsManyTextsAsThereAreContextsRunAtOnce) {
  ModelRunner runner(*model_, run_, 256);
  Batcher batcher(runner, *tokenizer_, 2, 128);
  std::vector<Outcome> out(2);
  for (uint64_t i = 0; i < 2; ++i) {
    TextRequest r = request(some_ids(10, i + 1), i + 1);
    r.options.max_tokens = 1000;
    add(batcher, r, out[i]);
  }
  batcher.step();
  EXPECT_EQ(batcher.active(), 2);
  while (batcher.step()) {
  }
  for (const Outcome& one : out) {
    EXPECT_EQ(one.error, "");
    EXPECT_EQ(std::ssize(one.ids), 128 - 10 + 1);
  }
}

// A text that reads what an earlier one had read, and more, hangs its own blocks under the earlier
// one's; those must not keep it from the room that it was promised.
TEST_P(BatcherTest, WhatAnEarlierTextReadGivesWay) {
  ModelRunner runner(*model_, run_, 384);
  Batcher batcher(runner, *tokenizer_, 2, 384);
  Outcome first, second;
  TextRequest r = request(some_ids(256, 1), 1);
  r.options.max_tokens = 1;
  add(batcher, r, first);
  while (batcher.step()) {
  }
  r.prompt = some_ids(256, 1);
  const std::vector<int32_t> more = some_ids(64, 2);
  r.prompt.insert(r.prompt.end(), more.begin(), more.end());
  r.options.max_tokens = 60;
  r.routing = true;
  add(batcher, r, second);
  while (batcher.step()) {
  }
  EXPECT_EQ(second.error, "");
  EXPECT_EQ(std::ssize(second.ids), 60);
}

TEST_P(BatcherTest, RefusesAtTheDoor) {
  ModelRunner runner(*model_, run_, 4096);
  Batcher batcher(runner, *tokenizer_, 4, kContext);
  Outcome none;
  EXPECT_FAILS(add(batcher, request({}, 1), none), "no tokens");
  EXPECT_FAILS(add(batcher, request({3, 256}, 1), none), "token 2 of the prompt has the id 256");
  EXPECT_FAILS(add(batcher, request(some_ids(401, 1), 1), none), "a text may have 400");
  TextRequest r = request(some_ids(3, 1), 1);
  r.recorded = shared({1, 2, 3});
  EXPECT_FAILS(add(batcher, r, none), "each token has 2 x 2");
  r.recorded = shared({1, 1, 3, 2});
  EXPECT_FAILS(add(batcher, r, none), "replay");
  EXPECT_FALSE(batcher.step());
}

// The row of one token is no number: the text that reads it ends with an error, the one beside it
// is not harmed.
TEST_P(BatcherTest, AFailureEndsItsTextOnly) {
  const Tensor& embedding = model_->find(Part::embedding, ParamKind::weight)->value;
  if (embedding.dtype != DType::f32) GTEST_SKIP() << "the embedding is quantised";
  embedding.row<float>(7)[0] = NAN;
  ModelRunner runner(*model_, run_, 1024);
  Batcher batcher(runner, *tokenizer_, 4, kContext);
  Outcome broken, fine;
  std::vector<int32_t> ids(70, 3);
  const TextRequest plain = request(ids, 1);
  ids[65] = 7;
  add(batcher, request(ids, 1), broken);
  add(batcher, plain, fine);
  while (batcher.step()) {
  }
  EXPECT_NE(broken.error, "");
  EXPECT_EQ(fine.error, "");
  EXPECT_EQ(fine.ids, alone(plain).ids);
}

// Of linear attention a failing step takes back all that a text has read.
TEST_P(BatcherTest, AFailureLeavesTheStatesOfOthers) {
  if (GetParam().weights != DType::f32) GTEST_SKIP() << "the embedding is quantised";
  ModelConfig config = model_->config();
  config.attention_gate = config.norm_offset = true;
  config.linear = {
      .key_heads = 1, .value_heads = 2, .key_width = 8, .value_width = 12, .conv_width = 4};
  config.linear_layers = {0};
  model_ = fresh(config);
  model_->find(Part::embedding, ParamKind::weight)->value.row<float>(7)[0] = NAN;
  TextRequest plain = request(std::vector<int32_t>(70, 3), 1);
  plain.options.sampler.logit_bias = {{7, -INFINITY}};
  const Outcome expected = alone(plain);
  ASSERT_EQ(expected.error, "");
  ModelRunner runner(*model_, run_, 1024);
  Batcher batcher(runner, *tokenizer_, 4, kContext);
  Outcome fine, broken;
  add(batcher, plain, fine);
  while (fine.ids.size() < 3) batcher.step();
  add(batcher, request({1, 2, 7}, 1), broken);
  while (batcher.step()) {
  }
  EXPECT_NE(broken.error, "");
  EXPECT_EQ(fine.error, "");
  EXPECT_EQ(fine.ids, expected.ids);
}

// A text that ends among its guesses leaves the keys of those that came to nothing; what was drawn
// in their place has none, for whoever goes on from there.
TEST_P(BatcherTest, GuessesThatCameToNothingAreNotFoundAgain) {
  constexpr int32_t kDrawn = 7, kGuessed = 9;
  std::vector<int32_t> prompt = some_ids(2 * ops::kKeyBlock - 2, 1);
  std::replace(prompt.begin(), prompt.end(), kDrawn, kGuessed);
  std::copy_n(std::array{kDrawn, kDrawn, kGuessed, kGuessed}.begin(), 4, prompt.begin() + 20);
  prompt.back() = kDrawn;
  TextRequest r = request(prompt, 1, 0);
  r.options.prompt_lookup = 8;
  r.options.sampler.logit_bias = {{kDrawn, 1000.0f}};
  r.options.stop = {std::string(2, kDrawn)};  // of a block's last token
  ModelRunner runner(*model_, run_, 1024);
  Batcher batcher(runner, *tokenizer_, 1, kContext);
  Outcome first, second;
  add(batcher, r, first);
  while (batcher.step()) {
  }
  ASSERT_EQ(first.ids, std::vector<int32_t>(2, kDrawn));
  prompt.insert(prompt.end(), {kDrawn, kDrawn, 3, 4});
  TextRequest on = request(prompt, 1, 0);
  on.top_logprobs = 0;
  add(batcher, on, second);
  while (batcher.step()) {
  }
  const Outcome expected = alone(on);
  EXPECT_EQ(second.ids, expected.ids);
  ASSERT_EQ(second.logprobs.size(), expected.logprobs.size());
  for (size_t i = 0; i < second.logprobs.size(); ++i)
    EXPECT_EQ(second.logprobs[i].token.logprob, expected.logprobs[i].token.logprob) << i;
}

// Where experts are neurons a prompt is read by all of them, unless it is shown which a token
// takes.
TEST_P(BatcherTest, TheNeuronsThatAreShownAreThoseThatWorked) {
  if (GetParam().weights != DType::f32) GTEST_SKIP() << "the model here is f32";
  ModelConfig config = model_->config();
  config.expert_width = 1;
  config.routing = default_options(find_recipe("sketch"), config.dense_width, 6, 2);
  model_ = fresh(config);
  for (Param* p : model_->params())
    if (is_sketch(*p))
      for (int64_t i = 0; i < p->value.numel(); ++i)
        p->value.as<float>()[i] = normal(RngKey::from_seed(3), static_cast<uint64_t>(i));
  TextRequest plain = request(some_ids(90, 5), 6), r = plain;
  for (TextRequest* one : {&plain, &r}) one->top_logprobs = 0;
  r.routing = true;
  const Outcome shown = alone(r);
  r.recorded = shared(shown.routing.experts);
  const Outcome again = alone(r);
  EXPECT_EQ(again.ids, shown.ids);
  EXPECT_EQ(again.logprobs.at(0).token.logprob, shown.logprobs.at(0).token.logprob);
  // Who only reads such a prompt later reads it as if that had not been.
  const Outcome expected = alone(plain);
  for (const bool routing : {true, false}) {
    r = plain;
    (routing ? r.routing : r.prompt_logprobs) = true;
    ModelRunner runner(*model_, run_, 1024);
    Batcher batcher(runner, *tokenizer_, 1, kContext);
    Outcome first, second;
    for (const auto& [text, out] : {std::pair{&r, &first}, {&plain, &second}}) {
      add(batcher, *text, *out);
      while (batcher.step()) {
      }
    }
    EXPECT_EQ(second.ids, expected.ids);
    EXPECT_EQ(second.logprobs.at(0).token.logprob, expected.logprobs.at(0).token.logprob);
  }
}

// Two that begin as one that is being read wait for it, but not where that was read long before.
TEST_P(BatcherTest, WhatIsBeingReadIsNotReadTwice) {
  ModelRunner runner(*model_, run_, 4096);
  Batcher batcher(runner, *tokenizer_, 8, kContext);
  const auto ending = [](int32_t last) {
    std::vector<int32_t> ids = some_ids(300, 1);
    ids.push_back(last);
    return ids;
  };
  std::vector<Outcome> first(3), later(3);
  for (int32_t i = 0; i < 3; ++i)
    add(batcher, request(ending(i), 1), first[static_cast<size_t>(i)]);
  batcher.step();
  EXPECT_EQ(batcher.active(), 1);
  while (batcher.step()) {
  }
  for (int32_t i = 0; i < 3; ++i)
    add(batcher, request(ending(i + 10), 1), later[static_cast<size_t>(i)]);
  batcher.step();
  EXPECT_EQ(batcher.active(), 3);
  while (batcher.step()) {
  }
  EXPECT_EQ(first[0].read, 301);
  for (const Outcome* out : {&first[1], &first[2], &later[0], &later[1], &later[2]})
    EXPECT_EQ(out->read, 301 - 256);
}

INSTANTIATE_TEST_SUITE_P(Numbers, BatcherTest,
                         ::testing::Values(Numbers{"f32", DType::f32, DType::f32},
                                           Numbers{"bf16", DType::bf16, DType::f32},
                                           Numbers{"q8_0", DType::f32, DType::q8_0}),
                         [](const auto& numbers) { return std::string(numbers.param.name); });

}  // namespace
}  // namespace moe::test::batcher_test
