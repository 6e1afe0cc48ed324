// Steps over rows of many sequences: each gets the bits that it gets alone, whatever stands beside
// it and wherever its blocks lie; and runners of one model in threads of their own get the bits of
// one after the other.
#include "infer/model_runner.h"

#include <deque>
#include <thread>

#include "hub/configs.h"
#include "infer/generate.h"
#include "ops/memory.h"
#include "support/bound_model.h"
#include "support/files.h"
#include "support/routings.h"
#include "support/same_rows.h"
#include "support/tiny_model.h"

namespace moe::test::model_runner_test {
namespace {

using Ids = std::vector<int32_t>;
using Logits = std::vector<float>;

constexpr int64_t kVocab = 256;

std::unique_ptr<Model> model_of(const RoutingOptions& routing) {
  ModelConfig config = plain_config();
  config.routing = routing;
  config.init.std = 0.3f;  // logits far enough apart that texts differ
  return fresh(config);
}

SessionOptions options_of(const RoutingOptions& routing) {
  SessionOptions options;
  if (default_eval(routing) == EvalRouting::threshold) options.routing = EvalRouting::threshold;
  return options;
}

Ids text(int64_t length, uint64_t seed) {
  Ids ids;
  for (int64_t i = 0; i < length; ++i)
    ids.push_back(static_cast<int32_t>(
        uniform_index(RngKey::from_seed(seed), static_cast<uint64_t>(i), kVocab)));
  return ids;
}

Logits copy(std::span<const float> x) { return {x.begin(), x.end()}; }

// Logits [N,V] after every token of a text that has a model for itself.
Logits alone(Model& model, Run& run, const Ids& ids, const SessionOptions& options) {
  Session session(model, run, std::ssize(ids), options);
  return copy(session.prefill(ids, std::ssize(ids)));
}

// A text of a runner's, and the logits after each of its tokens so far.
struct Sequence {
  int32_t slot;
  Ids ids;
  Logits logits;
  int64_t held() const { return std::ssize(logits) / kVocab; }
};

// Reads the next `count` tokens of each; 0: it takes no part in the step.
void step_all(ModelRunner& runner, std::vector<Sequence>& sequences,
              const std::vector<int64_t>& count) {
  std::vector<StepRows> rows;
  int64_t wanted = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const Sequence& q = sequences[s];
    const int64_t n = std::min(count[s], std::ssize(q.ids) - q.held());
    if (n > 0)
      rows.push_back(
          {q.slot, std::span(q.ids).subspan(static_cast<size_t>(q.held()), static_cast<size_t>(n)),
           n});
    wanted += n;
  }
  Logits logits(static_cast<size_t>(wanted * kVocab));
  runner.step(logits, rows);
  const float* from = logits.data();
  for (const StepRows& r : rows)
    for (Sequence& q : sequences)
      if (q.slot == r.slot) {
        q.logits.insert(q.logits.end(), from, from + std::ssize(r.ids) * kVocab);
        from += std::ssize(r.ids) * kVocab;
      }
}

class Steps : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (GetParam() == DType::bf16 && !ops::products_keep_row_bits(DType::bf16))
      GTEST_SKIP() << "products here do not keep the bits of a row, and rounding to bf16 in "
                      "between can make another choice of experts of that";
  }
};

TEST_P(Steps, ASequenceGetsTheBitsThatItGetsAlone) {
  int recipes = 0;
  for (const RoutingOptions& routing : small_routings(4, 2)) {
    const SessionOptions options = options_of(routing);
    if (!not_causal_because(routing, options.routing.value_or(default_eval(routing))).empty())
      continue;
    ++recipes;
    const auto model = model_of(routing);
    moe::Run run(2, GetParam());
    ModelRunner runner(*model, run, 1024, options);
    std::vector<Sequence> all;
    for (const int64_t length : {150, 3, 65, 70})
      all.push_back({runner.cache().open(), text(length, static_cast<uint64_t>(length)), {}});
    // Prompts in chunks beside single tokens, in turns that differ from step to step; the short
    // text ends before the others.
    for (int64_t i = 0; i < 100; ++i)
      step_all(runner, all, {i < 3 ? 40 : 1, i % 2, i < 2 ? 1 : 31 - i % 30, i == 5 ? 64 : 1});
    for (const Sequence& s : all) {
      ASSERT_EQ(s.held(), std::ssize(s.ids));
      EXPECT_TRUE(same_rows(s.logits, alone(*model, run, s.ids, options), GetParam()))
          << routing.recipe << ", text of " << s.ids.size();
    }
  }
  EXPECT_GE(recipes, 8);
}

TEST_P(Steps, BlocksThatCameBackChangeNoBit) {
  const RoutingOptions routing = small_routing("olmoe", 4, 2);
  const auto model = model_of(routing);
  moe::Run run(2, GetParam());
  ModelRunner runner(*model, run, 448);
  std::vector<Sequence> all;
  const auto open = [&](int64_t length, uint64_t seed) {
    all.push_back({runner.cache().open(), text(length, seed), {}});
  };
  for (const uint64_t seed : {1, 2, 3}) open(100, seed);
  step_all(runner, all, {70, 20, 30});
  // The first ends, and two grow into its blocks and those that truncating frees.
  runner.cache().close(all[0].slot);
  all.erase(all.begin());
  runner.cache().truncate(all[0].slot, 11);
  all[0].logits.resize(11 * kVocab);
  std::fill(all[0].ids.begin() + 11, all[0].ids.end(), 77);
  open(130, 4);
  for (const int64_t n : {60, 7, 64, 1, 90}) step_all(runner, all, {n, 1 + n / 2, n});
  EXPECT_EQ(runner.cache().available(), 0);
  for (const Sequence& s : all) {
    ASSERT_EQ(s.held(), std::ssize(s.ids));
    EXPECT_TRUE(same_rows(s.logits, alone(*model, run, s.ids, {}), GetParam()))
        << "slot " << s.slot;
  }
}

INSTANTIATE_TEST_SUITE_P(compute, Steps, ::testing::Values(DType::f32, DType::bf16));

TEST(Step, GivesTheLogitsThatAreAskedFor) {
  const auto model = model_of(small_routing("olmoe", 4, 2));
  moe::Run run(2);
  ModelRunner runner(*model, run, 256);
  const int32_t a = runner.cache().open(), b = runner.cache().open(), c = runner.cache().open();
  const Ids x = text(20, 1), y = text(9, 2), z = text(5, 3);
  const std::vector<StepRows> rows = {{a, x, 2}, {b, y, 0}, {c, z, 1}};
  Logits logits(3 * kVocab);
  runner.step(logits, rows);
  const Logits of_a = alone(*model, run, x, {}), of_c = alone(*model, run, z, {});
  EXPECT_TRUE(same_rows(std::span(logits).first(2 * kVocab), std::span(of_a).last(2 * kVocab)));
  EXPECT_TRUE(same_rows(std::span(logits).last(kVocab), std::span(of_c).last(kVocab)));
  EXPECT_EQ(runner.cache().length(b), 9);
}

// Where somebody looks at the routing the last block is run for all rows; else for those alone
// whose logits are asked for, beside the keys and values that the others leave. Both give the same
// bits, in the step and in those that follow.
TEST(Step, LeavesTheLastBlockOutForRowsThatNobodyReads) {
  const std::function<void(int64_t, const MoeLayerSaved&)> looks = [](int64_t,
                                                                      const MoeLayerSaved&) {};
  int cut = 0, whole = 0;
  std::vector<NamedConfig> all = small_configs();
  for (const NamedConfig& family : small_families()) all.push_back(family);
  for (NamedConfig& of : all) {
    of.config.init.std = 0.3f;
    const SessionOptions options = options_of(of.config.routing);
    if (of.config.moe_layer_count() > 0 &&
        !not_causal_because(of.config.routing,
                            options.routing.value_or(default_eval(of.config.routing)))
             .empty())
      continue;
    const auto model = fresh(of.config);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      if (dtype == DType::bf16 && !ops::products_keep_row_bits(dtype)) continue;
      moe::Run run(2, dtype);
      std::vector<Logits> logits;
      const auto vocab = static_cast<size_t>(of.config.vocab);
      int64_t counted[2] = {0, 0};
      for (const bool looked_at : {true, false}) {
        ModelRunner runner(*model, run, 512, options);
        const int32_t a = runner.cache().open(), b = runner.cache().open();
        Logits& got = logits.emplace_back(7 * vocab);
        const auto step = [&](size_t at, const std::vector<StepRows>& rows) {
          runner.step(std::span(got).subspan(at * vocab), rows,
                      {.on_routing = looked_at ? &looks : nullptr});
        };
        const auto ids = [&](int64_t n, uint64_t seed) {
          Ids some = text(n, seed);
          for (int32_t& id : some) id %= static_cast<int32_t>(vocab);
          return some;
        };
        const Ids x = ids(9, 1), y = ids(5, 2), z = ids(4, 3), one = ids(1, 4);
        step(0, {{a, x, 2}, {b, y, 0}});
        step(2, {{a, z, 0}});
        step(2, {{a, one, 1}, {b, z, 3}});
        step(6, {{b, one, 1}});
        for (const auto& layer : runner.expert_rows())
          for (const int64_t n : layer) counted[looked_at] += n;
      }
      EXPECT_TRUE(same_rows(logits[1], logits[0], dtype)) << of.name << " " << name_of(dtype);
      if (of.config.is_moe(of.config.layers - 1)) ++(counted[0] < counted[1] ? cut : whole);
    }
  }
  EXPECT_GT(cut, 30);
  EXPECT_LT(whole, cut);
}

TEST(Step, ThatFailsChangesNothing) {
  const auto model = model_of(small_routing("olmoe", 4, 2));
  moe::Run run(1);
  ModelRunner runner(*model, run, 128);
  const int32_t a = runner.cache().open(), b = runner.cache().open();
  const Ids few = text(10, 1), many = text(65, 2), wrong = {5, 256};
  Logits logits(kVocab);
  EXPECT_FAILS(runner.step(logits, std::vector<StepRows>{{a, few, 1}, {b, many, 0}}),
               "end or truncate another sequence");
  EXPECT_FAILS(runner.step(logits, std::vector<StepRows>{{a, few, 0}, {b, wrong, 1}}),
               "token id 256 is outside the vocabulary of 256");
  EXPECT_EQ(runner.cache().length(a), 0);
  EXPECT_EQ(runner.cache().length(b), 0);
  EXPECT_EQ(runner.cache().available(), 128);
  EXPECT_NO_THROW(runner.step(logits, std::vector<StepRows>{{a, few, 0}, {b, few, 1}}));
}

TEST(CacheDtype, IsHalvesWhereWeightsAreQuantised) {
  const auto model = fresh(plain_config());
  EXPECT_EQ(cache_dtype({}, *model, DType::f32), DType::f32);
  EXPECT_EQ(cache_dtype({}, *model, DType::bf16), DType::bf16);
  for (Param* param : model->params()) param->value.dtype = DType::q8_0;
  EXPECT_EQ(cache_dtype({}, *model, DType::f32),
            ops::has_bf16_products() ? DType::bf16 : DType::f16);
  EXPECT_EQ(cache_dtype({.cache_dtype = DType::f32}, *model, DType::f32), DType::f32);
}

TEST(Step, RefusesARoutingThatFeelsLaterTokens) {
  const auto model = model_of(small_routing("expert-choice", 4, 2));
  moe::Run run(1);
  EXPECT_FAILS(ModelRunner(*model, run, 64, {.routing = EvalRouting::as_trained}), "later tokens");
}

// Sessions of one runner share its cache, and each says what is wrong with it alone.
TEST(Sessions, ShareARunner) {
  const auto model = model_of(small_routing("olmoe", 4, 2));
  moe::Run run(2);
  ModelRunner runner(*model, run, 192);
  const Ids x = text(90, 1), y = text(60, 2);
  std::optional<Session> first(std::in_place, runner, 100);
  Session second(runner, 100);
  first->prefill(std::span(x).first(40));
  const Logits of_y = copy(second.prefill(y)),
               of_x = copy(first->prefill(std::span(x).subspan(40)));
  EXPECT_TRUE(same_rows(of_x, copy(Session(*model, run, 90).prefill(x))));
  EXPECT_TRUE(same_rows(of_y, copy(Session(*model, run, 60).prefill(y))));
  EXPECT_FAILS(second.prefill(text(41, 3)),
               "holds 60 tokens and 41 are to follow, but its capacity is 100");
  EXPECT_FAILS(second.prefill(text(30, 3)), "0 blocks are free where 1 are needed");
  EXPECT_EQ(second.length(), 60);
  first.reset();
  EXPECT_NO_THROW(second.prefill(text(30, 3)));
}

// A text that a server writes.
struct Request {
  Ids prompt;
  GenerateOptions options;
  int32_t slot = 0;
  std::optional<Generation> generation;
  int64_t read = 0;  // of the prompt
  std::string shown;

  // In the next step: of the prompt, whose last token alone gives logits, or what was drawn.
  StepRows rows() const {
    const std::span<const int32_t> drawn = generation->next();
    if (!drawn.empty()) return {slot, drawn, std::ssize(drawn)};
    const auto from = static_cast<size_t>(read);
    const auto ids = std::span(prompt).subspan(from, std::min<size_t>(16, prompt.size() - from));
    return {slot, ids, read + std::ssize(ids) < std::ssize(prompt) ? 0 : 1};
  }
};

// What a server does: requests that come and go share the steps, prompts beside drawn tokens and
// the guesses of prompt lookup, and each text is the one that generate() writes.
TEST(Generations, ThatShareStepsWriteWhatEachWritesAlone) {
  if (!ops::products_keep_row_bits(DType::f32))
    GTEST_SKIP() << "rows agree to 1e-5 only, so a draw may differ";
  const auto model = model_of(small_routing("olmoe", 4, 2));
  const auto tokenizer = make_tokenizer("bytes");
  moe::Run run(2);
  ModelRunner runner(*model, run, 1024);
  std::deque<Request> requests;
  for (const uint64_t i : {0, 1, 2, 3}) {
    Request& r = requests.emplace_back();
    r.prompt =
        tokenizer->encode(std::string(1 + 40 * i, 'a') + "the router sends the router sends");
    r.options.max_tokens = i == 2 ? 250 : static_cast<int64_t>(20 + 15 * i);
    r.options.sampler.seed = i;
    // the likeliest tokens soon come back to what was said
    r.options.sampler.temperature = i == 2 ? 0 : 1;
    r.options.prompt_lookup = i == 2 ? 8 : 0;
    if (i == 1) r.options.stop = {"e"};
    r.slot = runner.cache().open();
    r.generation.emplace(*tokenizer, r.prompt, r.options, [&r](const std::string& piece) {
      r.shown += piece;
      return true;
    });
  }
  std::vector<Generated> texts(requests.size());
  for (size_t running = requests.size(); running > 0;) {
    std::vector<StepRows> rows;
    std::vector<size_t> of;
    int64_t wanted = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (!requests[i].generation) continue;
      rows.push_back(requests[i].rows());
      of.push_back(i);
      wanted += rows.back().logits;
    }
    Logits logits(static_cast<size_t>(wanted * kVocab));
    runner.step(logits, rows);
    std::span<const float> rest = logits;
    for (size_t j = 0; j < rows.size(); ++j) {
      Request& r = requests[of[j]];
      if (r.generation->next().empty()) r.read += std::ssize(rows[j].ids);
      if (rows[j].logits == 0) continue;
      const auto size = static_cast<size_t>(rows[j].logits * kVocab);
      const bool goes_on = r.generation->take(rest.first(size));
      rest = rest.subspan(size);
      if (goes_on) {
        runner.cache().truncate(r.slot, runner.cache().length(r.slot) - r.generation->rejected());
        continue;
      }
      texts[of[j]] = r.generation->finish();
      r.generation.reset();
      runner.cache().close(r.slot);
      --running;
    }
  }
  EXPECT_EQ(runner.cache().available(), runner.cache().capacity());
  for (size_t i = 0; i < requests.size(); ++i) {
    const Request& r = requests[i];
    Session session(*model, run, std::ssize(r.prompt) + 300);
    const Generated want =
        generate(session, *tokenizer, r.prompt, r.options, [](const std::string&) { return true; });
    EXPECT_EQ(texts[i].ids, want.ids) << i;
    EXPECT_EQ(texts[i].text, want.text) << i;
    EXPECT_EQ(texts[i].finish, want.finish) << i;
    EXPECT_EQ(texts[i].accepted, want.accepted) << i;
    EXPECT_EQ(r.shown, want.text) << i;
  }
  EXPECT_GT(texts[2].accepted, 0);
}

// ---- threads ------------------------------------------------------------------------------------

// What a thread makes of its text: a prompt, and some tokens that follow it one by one.
Logits read_and_go_on(Model& model, DType compute, const Ids& ids) {
  moe::Run run(1, compute);
  Session session(model, run, std::ssize(ids));
  const size_t prompt = ids.size() * 3 / 4;
  Logits all = copy(session.prefill(std::span(ids).first(prompt)));
  for (size_t i = prompt; i < ids.size(); ++i) {
    const std::span<const float> next = session.decode(std::span(ids).subspan(i, 1));
    all.insert(all.end(), next.begin(), next.end());
  }
  return all;
}

class Threads : public ::testing::TestWithParam<std::pair<const char*, DType>> {};

// Each round has a model whose weights nobody has packed yet, so that the threads meet where copies
// are made; a budget for some of them makes the threads compete for it.
TEST_P(Threads, OfOneModelGetTheBitsOfOneAfterTheOther) {
  const auto [storage, weights] = GetParam();
  const auto master = model_of(small_routing("olmoe", 8, 2));
  const auto make = [&, owned = storage == std::string("owned"), weights = weights] {
    return owned ? model_of(small_routing("olmoe", 8, 2)) : bound_like(*master, weights);
  };
  const std::vector<std::pair<DType, Ids>> texts = {
      {DType::f32, text(24, 1)}, {DType::f32, text(17, 2)}, {DType::bf16, text(20, 3)}};
  std::vector<Logits> want;
  const auto one_after_another = make();
  for (const auto& [compute, ids] : texts)
    want.push_back(read_and_go_on(*one_after_another, compute, ids));
  for (int round = 0; round < 12; ++round) {
    const auto model = make();
    const int64_t all = ops::copies_taken(one_after_another->params()), limit = round % 3 == 0 ? all
                                                                                : round % 3 == 1
                                                                                    ? all / 2
                                                                                    : 0;
    ops::limit_copies(model->params(), limit);
    std::vector<Logits> got(texts.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < texts.size(); ++i)
      threads.emplace_back(
          [&, i] { got[i] = read_and_go_on(*model, texts[i].first, texts[i].second); });
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < texts.size(); ++i)
      EXPECT_EQ(got[i], want[i]) << "thread " << i << " of round " << round;
    EXPECT_LE(ops::copies_taken(model->params()), limit);
  }
}

INSTANTIATE_TEST_SUITE_P(
    weights, Threads,
    ::testing::Values(std::pair("owned", DType::f32), std::pair("bound", DType::f32),
                      std::pair("bound", DType::bf16), std::pair("bound", DType::q8_0)),
    [](const auto& which) {
      return std::string(which.param.first) + "_" + std::string(name_of(which.param.second));
    });

}  // namespace
}  // namespace moe::test::model_runner_test
