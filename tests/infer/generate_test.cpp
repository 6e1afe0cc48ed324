// Generation: what ends a text, what may be shown of it, that a seed decides it, and which routings
// can write.
#include "infer/generate.h"

#include <cstring>
#include <numeric>

#include "ops/ops.h"
#include "support/files.h"
#include "support/param_named.h"
#include "support/routings.h"
#include "support/same_rows.h"
#include "support/tiny_model.h"
#include "text/utf8.h"

namespace moe::test::generate_test {
namespace {

// Bytes in; out comes "<id>" for every token, so that a text tells its tokens and every stop string
// spans several. Its end is any id one likes.
class SpelledTokenizer : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 256; }
  std::string spec() const override { return "spelled"; }
  std::vector<int32_t> encode(std::string_view text) const override {
    return make_tokenizer("bytes")->encode(text);
  }
  std::string piece(int32_t id) const override { return fmt::format("<{}>", id); }
  std::string to_json() const override { return ""; }
};

template <class F>
std::string usage_message_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), Error::Kind::usage) << e.what();
    return e.what();
  }
  return "nothing was thrown";
}
// As EXPECT_FAILS, and the user is told to ask otherwise.
#define EXPECT_USAGE(statement, part) \
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, usage_message_of([&] { statement; }))

struct Fixture {
  std::unique_ptr<Model> model;
  moe::Run run;
  SpelledTokenizer tokenizer;
  GenerateOptions options;

  explicit Fixture(ModelConfig config = plain_config(), int threads = 2) : run(threads) {
    config.init.std = 0.3f;  // logits far enough apart that texts differ
    model = fresh(config);
    options.max_tokens = 12;
    options.sampler.seed = 5;
    options.sampler.temperature = 1;
  }
  Generated generate(const std::string& prompt = "Once",
                     std::vector<std::string>* pieces = nullptr) {
    std::string shown;
    Generated out =
        moe::generate(*model, run, tokenizer, prompt, options, [&](const std::string& text) {
          EXPECT_NE(text, "");
          if (pieces) pieces->push_back(text);
          shown += text;
          return true;
        });
    EXPECT_EQ(shown, out.text) << "what was shown is the text";
    return out;
  }
};

std::vector<int32_t> drawn_ids(int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(
        static_cast<int32_t>(uniform_index(RngKey::from_seed(2), static_cast<uint64_t>(i), 256)));
  return ids;
}

std::vector<float> copy(std::span<const float> x) { return {x.begin(), x.end()}; }

TEST(Generate, ADenseModelRunsToo) {
  ModelConfig config = plain_config();
  config.routing = default_options(find_recipe("dense"), 1, 1, 0);
  Fixture f(config);
  EXPECT_EQ(f.generate().tokens, 12);
}

TEST(Generate, IsTheLoopOfSessionAndSampler) {
  Fixture f;
  const Generated out = f.generate("Once");
  EXPECT_EQ(out.prompt_tokens, 4);
  EXPECT_EQ(out.tokens, 12);
  EXPECT_EQ(out.finish, "length");

  moe::Run run(2);
  Session session(*f.model, run, 20);
  Sampler sampler(f.options.sampler);
  std::vector<int32_t> ids = f.tokenizer.encode("Once");
  std::string want;
  for (int i = 0; i < 12; ++i) {
    ids = {sampler.next(session.prefill(ids))};
    want += f.tokenizer.piece(ids[0]);
  }
  EXPECT_EQ(out.text, want);
}

TEST(Generate, TheSeedDecides) {
  Fixture f;
  const std::string first = f.generate().text;
  EXPECT_EQ(f.generate().text, first);
  Fixture one_thread(plain_config(), 1);
  EXPECT_EQ(one_thread.generate().text, first);
  f.options.sampler.seed = 6;
  EXPECT_NE(f.generate().text, first);
}

TEST(Generate, EndsBeforeTheFirstStopString) {
  Fixture f;
  const std::string whole = f.generate().text;
  // A stop that begins in one token, covers the next and ends in a third.
  const size_t at = whole.find('>', whole.size() / 2) - 1,
               length = whole.find('>', whole.find('>', at + 2) + 1) - at;
  const std::string stop = whole.substr(at, length);
  ASSERT_EQ(whole.find(stop), at) << whole;
  f.options.stop = {"never", whole.substr(at + 1, length), stop};
  const Generated out = f.generate();
  EXPECT_EQ(out.finish, "stop");
  EXPECT_EQ(out.text, whole.substr(0, at));
  EXPECT_LT(out.tokens, 12);
}

TEST(Generate, WhatOnlyBeginsAStopStringIsHeldBackAndThenShown) {
  Fixture f;
  const std::string whole = f.generate().text;
  // its beginning is still open when the text ends
  f.options.stop = {whole.substr(whole.size() - 8) + "x"};
  std::vector<std::string> pieces;
  const Generated out = f.generate("Once", &pieces);
  EXPECT_EQ(out.text, whole);
  EXPECT_EQ(out.finish, "length");
  EXPECT_GE(pieces.back().size(), 8u);
}

TEST(Generate, EndsAtTheTokenizersEnd) {
  Fixture f;
  const std::string whole = f.generate().text;
  const size_t third = whole.find('<', whole.find('<', 1) + 1);
  f.tokenizer.set_special({.eos = std::stoi(whole.substr(third + 1))});
  const Generated out = f.generate();
  EXPECT_EQ(out.finish, "stop");
  EXPECT_EQ(out.text, whole.substr(0, whole.find(f.tokenizer.piece(*f.tokenizer.eos_id()))));
  EXPECT_LE(out.tokens, 3);
}

TEST(Generate, EndsWhenTheListenerSaysSo) {
  Fixture f;
  int calls = 0;
  const Generated out = moe::generate(*f.model, f.run, f.tokenizer, "Once", f.options,
                                      [&](const std::string&) { return ++calls < 3; });
  EXPECT_EQ(out.finish, "interrupted");
  EXPECT_EQ(out.tokens, 3);
}

TEST(Generate, AnInterruptedTextIsWhatWasShown) {
  Fixture f;
  f.options.stop = {">!"};  // every token ends in what may begin it
  std::string shown;
  const Generated out =
      moe::generate(*f.model, f.run, f.tokenizer, "Once", f.options, [&](const std::string& text) {
        shown += text;
        return shown.size() < 8;
      });
  EXPECT_EQ(out.finish, "interrupted");
  EXPECT_EQ(out.text, shown);
}

TEST(Generate, NoTokensIsAText) {
  Fixture f;
  f.options.max_tokens = 0;
  const Generated out = f.generate();
  EXPECT_EQ(out.text, "");
  EXPECT_EQ(out.tokens, 0);
  EXPECT_EQ(out.finish, "length");
}

TEST(Generate, RefusesWhatHasNoMeaning) {
  Fixture f;
  EXPECT_FAILS(f.generate(""), "prompt");
  f.options.stop = {""};
  EXPECT_FAILS(f.generate(), "stop");
  f.options.stop = {};
  for (const int64_t n : {int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    f.options.max_tokens = n;
    EXPECT_FAILS(f.generate(), "tokens is");
  }
}

TEST(Generate, GuessesNothingWhereNothingCanBeTakenBack) {
  ModelConfig config = plain_config();
  config.linear = {
      .key_heads = 1, .value_heads = 1, .key_width = 4, .value_width = 4, .conv_width = 2};
  config.linear_layers = {0};
  EXPECT_FAILS(check_guessing(config, {.prompt_lookup = 3}), "cannot be taken back");
  check_guessing(plain_config(), {.prompt_lookup = 3});
  check_guessing(config, {});
}

ModelConfig routed_config(const char* recipe) {
  ModelConfig config = plain_config();
  config.routing = small_routing(recipe, 4, 2);
  return config;
}

void set_thresholds(Model& model, float value) {
  for (const char* name : {"layers.0.ffn.router.threshold", "layers.1.ffn.router.threshold"}) {
    Param* p = param_named(model, name);
    ASSERT_NE(p, nullptr);
    std::fill_n(p->value.as<float>(), p->value.numel(), value);
    p->touched();
  }
}

TEST(Generate, EveryCausalRecipeWritesByDefault) {
  for (const RoutingOptions& routing : small_routings(4, 2)) {
    ModelConfig config = plain_config();
    config.routing = routing;
    Fixture f(config);
    if (default_eval(routing) == EvalRouting::dropless)
      EXPECT_EQ(f.generate().tokens, 12) << routing.recipe;
    else EXPECT_FAILS(f.generate(), routing.recipe);
  }
}

TEST(Generate, ExpertChoiceHasToBeAskedForItsThresholds) {
  Fixture f(routed_config("expert-choice"));
  set_thresholds(*f.model, 0.3f);
  EXPECT_USAGE(f.generate(), "routing threshold");
  EXPECT_FAILS(f.generate(), "later tokens");
  f.options.session.routing = EvalRouting::as_trained;
  EXPECT_USAGE(f.generate(), "routing threshold");
  f.options.session.routing = EvalRouting::dropless;
  EXPECT_USAGE(f.generate(), "expert-choice");
  f.options.session.routing = EvalRouting::threshold;
  const Generated out = f.generate();
  EXPECT_EQ(out.tokens, 12);
  set_thresholds(*f.model, 0.9f);
  EXPECT_NE(f.generate().text, out.text) << "the thresholds decide";

  // By thresholds no token feels a later one, so pieces give the bits of the whole.
  set_thresholds(*f.model, 0.3f);
  const std::vector<int32_t> ids = drawn_ids(50);
  Session whole(*f.model, f.run, 50),
      pieces(*f.model, f.run, 50, {.routing = EvalRouting::threshold});
  const std::vector<float> want = copy(whole.prefill(ids));
  pieces.prefill(std::span(ids).first(17));
  EXPECT_TRUE(same_rows(copy(pieces.prefill(std::span(ids).subspan(17))), want));
}

TEST(Generate, ASoftmaxOverTokensCannotBeContinued) {
  Fixture f(routed_config("expert-choice-notes"));
  EXPECT_USAGE(f.generate(), "can be scored but not continued");
  for (const EvalRouting routing : {EvalRouting::as_trained, EvalRouting::threshold}) {
    f.options.session.routing = routing;
    EXPECT_USAGE(f.generate(), "expert-choice-notes");
  }
}

TEST(Generate, ARoutingWithBuffersIsRefused) {
  for (const char* recipe : {"gshard", "switch", "nanomoe"}) {
    Fixture f(routed_config(recipe));
    f.options.session.routing = EvalRouting::as_trained;
    EXPECT_USAGE(f.generate(), "routing dropless");
    f.options.session.routing = EvalRouting::dropless;
    const std::string text = f.generate().text;
    f.options.session.routing = {};
    EXPECT_EQ(f.generate().text, text) << recipe;
  }
  Fixture f(routed_config("olmoe"));
  // it never drops, so nothing is seen that comes later
  f.options.session.routing = EvalRouting::as_trained;
  EXPECT_EQ(f.generate().tokens, 12);
  f.options.session.routing = EvalRouting::threshold;
  EXPECT_USAGE(f.generate(), "threshold");
}

// Learned positions end with the context, 32 here.
TEST(Generate, StopsWhereTheModelsTextsEnd) {
  ModelConfig config = plain_config();
  config.positions = Positions::learned;
  Fixture f(config);
  f.options.max_tokens = 100;
  const Generated out = f.generate("Once");
  EXPECT_EQ(out.tokens, 32 - 4 + 1);
  EXPECT_EQ(out.finish, "length");
  EXPECT_EQ(f.generate(std::string(32, 'a')).tokens, 1);
  EXPECT_FAILS(f.generate(std::string(33, 'a')),
               "the prompt has 33 tokens, but the model has learned positions for 32 tokens only; "
               "shorten the prompt");
  EXPECT_EQ(text_capacity(config, 4, 10), 13);
  EXPECT_EQ(text_capacity(config, 4, 1 << 24), 32);
  EXPECT_EQ(text_capacity(plain_config(), 4, 100), 103);
}

// So do texts beyond which rotary frequencies would change.
TEST(Generate, StopsWhereFrequenciesWouldChange) {
  ModelConfig config = plain_config();
  config.rope_scaling = {.kind = RopeScaling::Kind::dynamic, .factor = 2};
  Fixture f(config);
  f.options.max_tokens = 100;
  const Generated out = f.generate("Once");
  EXPECT_EQ(out.tokens, 32 - 4 + 1);
  EXPECT_EQ(out.finish, "length");
  EXPECT_FAILS(f.generate(std::string(33, 'a')),
               "the prompt has 33 tokens, but beyond 32 tokens the rotary frequencies of the model "
               "change with the length of the text, which is not done here; shorten the prompt");
}

// Where a GPU does not do what attention does beyond so many tokens; elsewhere nothing ends there.
TEST(Generate, OnAGpuTextsEndWhereAttentionWouldBeSparse) {
  ModelConfig config = plain_config();
  config.context = 100;
  config.sparse.top = 24;
  EXPECT_EQ(text_capacity(config, 4, 10, true), 13);
  EXPECT_EQ(text_capacity(config, 4, 100, true), 24);
  EXPECT_EQ(text_capacity(config, 4, 100, false), 103);
  EXPECT_FAILS(text_capacity(config, 25, 1, true),
               "the prompt has 25 tokens, but beyond 24 tokens the attention of the model is "
               "sparse, which a GPU does not do here; shorten the prompt");
  EXPECT_EQ(context_for(config, 0, true), 24);
  EXPECT_EQ(context_for(config, 24, true), 24);
  EXPECT_FAILS(context_for(config, 25, true), "context is 25, but beyond 24 tokens");
  EXPECT_EQ(context_for(config, 0, false), 100);
  EXPECT_EQ(context_for(config, 300, false), 300);
  EXPECT_FAILS(context_for(config, -1, false), "context is -1");
  config.sparse = {};
  EXPECT_EQ(context_for(config, 0, true), 100);
  EXPECT_EQ(text_capacity(config, 4, 100, true), 103);
}

// Half of all bytes are parts of longer characters, in no sensible order.
TEST(Generate, ShowsWholeCharactersOnly) {
  Fixture f;
  f.options.max_tokens = 1500;
  f.options.sampler.temperature = 3;
  f.options.sampler.top_k = 0;
  f.options.sampler.top_p = 1;
  f.options.sampler.min_p = 0;
  int long_characters = 0, replaced = 0;
  const auto bytes = make_tokenizer("bytes");
  const Generated out =
      moe::generate(*f.model, f.run, *bytes, "Once", f.options, [&](const std::string& text) {
        for (std::string_view rest = text; !rest.empty();) {
          const Utf8Step step = utf8_step(rest);
          EXPECT_EQ(step.kind, Utf8Step::Kind::character);
          const bool replacement = rest.starts_with("\xEF\xBF\xBD");
          replaced += replacement;
          long_characters += !replacement && step.length > 1;
          rest.remove_prefix(static_cast<size_t>(step.length));
        }
        return true;
      });
  EXPECT_GT(long_characters, 5) << "the draw must contain some, or it proves nothing";
  EXPECT_GT(replaced, 5);
}

TEST(Generate, ReadingOfALongPromptCanBeEnded) {
  Fixture f;
  using Counts = std::vector<std::pair<int64_t, int64_t>>;
  Counts asked;
  const int64_t chunk = prompt_chunk(), all = 2 * chunk + 276;
  const Generated out = moe::generate(
      *f.model, f.run, f.tokenizer, std::string(static_cast<size_t>(all), 'a'), f.options,
      [](const std::string&) { return true; },
      [&](int64_t done, int64_t total) {
        asked.emplace_back(done, total);
        return asked.size() < 3;
      });
  EXPECT_EQ(asked, (Counts{{0, all}, {chunk, all}, {2 * chunk, all}}));
  EXPECT_EQ(out.finish, "interrupted");
  EXPECT_EQ(out.read_tokens, 2 * chunk);
  EXPECT_EQ(out.tokens, 0);
  EXPECT_EQ(out.text, "");
  ASSERT_EQ(out.expert_rows.size(), 2u) << "what was read counts";
  const auto rows = [&](size_t layer) {
    return std::accumulate(out.expert_rows[layer].begin(), out.expert_rows[layer].end(),
                           int64_t{0});
  };
  EXPECT_EQ(rows(0), 2 * chunk * 2);
  EXPECT_EQ(rows(1), 0) << "no logits were wanted, so the last layer left keys and values alone";
}

}  // namespace
}  // namespace moe::test::generate_test
