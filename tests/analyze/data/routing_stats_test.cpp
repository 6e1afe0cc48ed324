// The report of real forwards: laws that hold whatever the weights are, for every kind of recipe;
// what is looked at of the texts; and what is refused.
#include "analyze/data/routing_stats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "analyze/data/domains.h"
#include "analyze/texts/pieces.h"
#include "analyze/texts/tables.h"
#include "evaluate/score.h"
#include "support/files.h"
#include "support/tiny_model.h"

namespace moe::test::routing_stats_test {
namespace {

constexpr double kTight = 1e-9;

// Two texts of 300 and 700 bytes, the second in French, so that characters take two tokens.
struct Texts {
  TempFolder folder;
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("bytes");
  std::string first, second;
  std::unique_ptr<Corpus> corpus;

  Texts() {
    while (first.size() < 300) first += "the router sends each token to two experts. ";
    while (second.size() < 700) second += "l'été dernier, où étaient les élèves ? ";
    first.resize(300);
    second.resize(700);
    put(folder / "english.txt", first);
    put(folder / "french.txt", second);
    corpus = std::make_unique<Corpus>(std::vector<std::string>{folder.path()}, *tokenizer);
  }
};

ModelConfig config_of(const std::string& recipe, int64_t experts = 4, int64_t k = 2) {
  ModelConfig c = plain_config();
  c.routing =
      recipe == "dense" ? RoutingOptions{} : default_options(find_recipe(recipe), experts, k, 2);
  if (recipe == "dense") c.dense_first = c.layers;
  return c;
}

// Weights that are not close to even, so that experts differ.
std::unique_ptr<Model> strong(const ModelConfig& config, uint64_t seed = 7) {
  std::unique_ptr<Model> model = fresh(config, seed);
  for (Param* p : model->params())
    if (p->name.find("router") != std::string::npos && p->value.dtype == DType::f32)
      for (int64_t i = 0; i < p->value.numel(); ++i) p->value.as<float>()[i] *= 20;
  return model;
}

RoutingReport report_of(Model& model, const Texts& texts, RoutingStatsOptions options = {},
                        Model* earlier = nullptr) {
  moe::Run run(2);
  return routing_report(model, run, *texts.tokenizer, *texts.corpus, options, earlier);
}

double sum(const std::vector<double>& x) { return std::accumulate(x.begin(), x.end(), 0.0); }

TEST(RoutingStats, LawsOfTokenChoice) {
  const Texts texts;
  for (const char* recipe : {"olmoe", "deepseek-v3", "mixtral", "hash"}) {
    SCOPED_TRACE(recipe);
    const int64_t k = 2, experts = 8;
    const auto model = strong(config_of(recipe, experts, k));
    const RoutingReport r = report_of(*model, texts);
    ASSERT_EQ(r.moe_layers.size(), 2u);
    EXPECT_EQ(r.window, 32);
    EXPECT_EQ(r.slots, k);
    EXPECT_EQ(r.domains[0].tokens, 288);  // whole windows of 32
    EXPECT_EQ(r.domains[1].tokens, 672);
    for (const LayerStats& s : r.moe_layers) {
      EXPECT_EQ(std::accumulate(s.counts.begin(), s.counts.end(), int64_t{0}), 960 * k);
      EXPECT_NEAR(sum(s.load), 1, kTight);
      EXPECT_NEAR(sum(s.mass), 1, kTight);
      EXPECT_NEAR(sum(s.domain.at), 2 * k, kTight);
      EXPECT_NEAR(
          sum(s.coactivation.at), static_cast<double>(experts * k),
          experts * 1.0 * (s.dead > 0) + kTight);  // a row sums to K where its expert was chosen
      EXPECT_EQ(s.dropped, 0);
      EXPECT_EQ(s.unrouted, 0);
      // the mean of maxima is at least the maximum of the mean
      EXPECT_GE(s.max_vio_batch, s.max_vio - kTight);
      EXPECT_EQ(s.router_entropy.has_value(), std::string(recipe) != "hash");
      if (s.router_entropy) {
        EXPECT_GT(*s.router_entropy, 0);
        EXPECT_LT(*s.router_entropy, 1);
        EXPECT_LE(*s.top_score, 1);
      }
      // an id always goes to its experts
      if (std::string(recipe) == "hash") EXPECT_EQ(s.vocabulary_input, 1);
      else EXPECT_LE(s.vocabulary_input, 1);
      EXPECT_FALSE(s.saturation);
    }
  }
}

// A token takes hundreds of neurons: what grows with their square, or by id, is left out.
TEST(RoutingStats, NeuronsAreCountedWithoutPairsAndIds) {
  const Texts texts;
  ModelConfig c = plain_config();
  c.expert_width = 1;
  c.routing = default_options(find_recipe("sketch"), c.dense_width, 20, 2);
  const auto model = fresh(c);
  for (Param* p : model->params())
    if (is_sketch(*p))
      for (int64_t i = 0; i < p->value.numel(); ++i)
        p->value.as<float>()[i] = normal(RngKey::from_seed(3), static_cast<uint64_t>(i));
  const RoutingReport r = report_of(*model, texts);
  EXPECT_TRUE(r.by_neuron);
  EXPECT_EQ(r.experts, 48);
  EXPECT_TRUE(r.samples.empty());
  for (const LayerStats& s : r.moe_layers) {
    EXPECT_EQ(std::accumulate(s.counts.begin(), s.counts.end(), int64_t{0}), 960 * 20);
    EXPECT_NEAR(sum(s.domain.at), 2 * 20, kTight);
    EXPECT_GT(s.max_vio, 0);
    EXPECT_TRUE(s.coactivation.at.empty());
    EXPECT_TRUE(s.favourites.empty());
    EXPECT_FALSE(s.vocabulary_input);
    EXPECT_FALSE(s.router_entropy);
  }
  const RoutingReport same = report_of(*model, texts, {}, model.get());
  EXPECT_EQ(same.moe_layers[0].saturation, 1);
}

TEST(RoutingStats, ExpertsThatChoose) {
  const Texts texts;
  const auto model = strong(config_of("expert-choice"));
  for (Param* p : model->params())
    if (p->name.find("threshold") != std::string::npos)
      for (int64_t e = 0; e < 4; ++e) p->value.as<float>()[e] = 0.3f;
  const RoutingReport by_threshold = report_of(*model, texts);
  const RoutingReport as_trained = report_of(*model, texts, {.routing = EvalRouting::as_trained});
  EXPECT_EQ(as_trained.slots, 4);
  for (const LayerStats& s : as_trained.moe_layers) {
    EXPECT_EQ(s.max_vio, 0);  // every expert takes as many
    EXPECT_FALSE(s.margin);
    EXPECT_NEAR(sum(s.domain.at), 2 * 2, kTight);
  }
  for (const LayerStats& s : by_threshold.moe_layers) EXPECT_GT(s.unrouted, 0);
  const SampleText& sample = by_threshold.samples[0];
  EXPECT_EQ(sample.experts[0].size(), sample.pieces.size() * 4);
}

// As many as were asked for, in every figure that counts a token's experts.
TEST(RoutingStats, MoreExpertsThanTheModels) {
  const Texts texts;
  const auto model = strong(config_of("olmoe", 8, 2));
  const RoutingReport own = report_of(*model, texts),
                      r = report_of(*model, texts, {.top_k_experts = 4});
  EXPECT_EQ(r.top_k, 4);
  EXPECT_EQ(r.slots, 4);
  const int64_t expert = 3 * 32 * 48;
  EXPECT_EQ(r.parameters, own.parameters);
  EXPECT_EQ(r.active_parameters - own.active_parameters, 2 * 2 * expert) << "two more, two layers";
  for (const LayerStats& s : r.moe_layers)
    for (int64_t d = 0; d < s.domain.rows; ++d) {
      double row = 0;
      for (int64_t e = 0; e < s.domain.cols; ++e) row += s.domain(d, e);
      EXPECT_NEAR(row, 4, kTight);
    }
  const std::string tables = routing_tables(r, nullptr);
  for (const char* part : {"of 8 experts, 4 chosen a token", "(50.0% when even)"})
    EXPECT_NE(tables.find(part), std::string::npos) << part << "\n" << tables;
  EXPECT_GT(reporting_bytes(model->config(), {.top_k_experts = 4}, 32, 1),
            reporting_bytes(model->config(), {}, 32, 1));
}

TEST(RoutingStats, DropsOfCapacityAreCounted) {
  const Texts texts;
  ModelConfig config = config_of("nanomoe");
  config.routing.capacity_factor_eval = 0.5f;
  const auto model = strong(config);
  EXPECT_EQ(report_of(*model, texts).moe_layers[0].dropped, 0);
  const RoutingReport r = report_of(*model, texts, {.routing = EvalRouting::as_trained});
  EXPECT_GT(r.moe_layers[0].dropped, 0);
  const SampleText& sample = r.samples[1];
  const auto unsent = std::count(sample.experts[0].begin(), sample.experts[0].end(), -1);
  EXPECT_GT(unsent, 0);
  for (size_t i = 0; i < sample.experts[0].size(); ++i)
    EXPECT_EQ(sample.weights[0][i] == 0, sample.experts[0][i] < 0);
}

TEST(RoutingStats, DenseModelHasNoLayers) {
  const Texts texts;
  const auto model = fresh(config_of("dense"));
  const RoutingReport r = report_of(*model, texts);
  EXPECT_TRUE(r.moe_layers.empty());
  EXPECT_GT(r.domains[0].nats_per_token, 0);
  EXPECT_TRUE(r.samples[0].experts.empty());
}

TEST(RoutingStats, LossIsThatOfScore) {
  const Texts texts;
  const auto model = strong(config_of("olmoe"));
  const RoutingReport r = report_of(*model, texts);
  moe::Run run(2);
  const Score s =
      score(*model, run, *texts.tokenizer, texts.tokenizer->encode(texts.second), {.window = 32});
  EXPECT_NEAR(r.domains[1].nats_per_token, s.nats_per_token, kTight);
}

TEST(RoutingStats, SamplesAreThePieceInTheMiddle) {
  const Texts texts;
  const auto model = strong(config_of("olmoe"));
  const RoutingReport r = report_of(*model, texts, {.sample = 20});
  ASSERT_EQ(r.samples.size(), 2u);
  std::string text;
  for (const std::string& piece : r.samples[1].pieces) text += piece;
  // 21 windows of 32: the one in the middle is number 10.
  EXPECT_EQ(text, texts.second.substr(10 * 32, 20));
  EXPECT_EQ(r.samples[1].pieces.size(), 20u);
  EXPECT_EQ(r.samples[1].nll.size(), 20u);
  EXPECT_EQ(r.samples[1].nll[0], 0);
  EXPECT_GT(r.samples[1].nll[1], 0);
}

TEST(RoutingStats, CapSpreadsWindowsOverTheText) {
  const Texts texts;
  const auto model = strong(config_of("olmoe"));
  const RoutingReport r = report_of(*model, texts, {.tokens = 100, .sample = 32});
  EXPECT_EQ(r.domains[1].tokens, 96);  // 3 of 21 windows: 0, 7 and 14
  std::string text;
  for (const std::string& piece : r.samples[1].pieces) text += piece;
  EXPECT_EQ(text, texts.second.substr(7 * 32, 32));
  EXPECT_EQ(report_of(*model, texts, {.tokens = 1}).domains[0].tokens, 32);
  // shorter than a window: one of its own length
  EXPECT_EQ(report_of(*model, texts, {.window = 500}).domains[0].tokens, 300);
}

TEST(RoutingStats, SaturationAgainstItselfAndAnother) {
  const Texts texts;
  const auto model = strong(config_of("olmoe")), other = strong(config_of("olmoe"), 8);
  EXPECT_EQ(*report_of(*model, texts, {}, model.get()).moe_layers[1].saturation, 1);
  const double s = *report_of(*model, texts, {}, other.get()).moe_layers[1].saturation;
  EXPECT_GT(s, 0);
  EXPECT_LT(s, 1);
  const auto larger = fresh(config_of("olmoe", 8));
  EXPECT_FAILS(report_of(*model, texts, {}, larger.get()), "8 experts, the model has 4");
}

TEST(RoutingStats, SameTextsGiveTheSameBits) {
  const Texts texts;
  const auto model = strong(config_of("olmoe"));
  moe::Run one(1), two(2);
  const RoutingReport a = routing_report(*model, one, *texts.tokenizer, *texts.corpus, {}),
                      b = routing_report(*model, two, *texts.tokenizer, *texts.corpus, {});
  for (size_t l = 0; l < 2; ++l) {
    EXPECT_EQ(a.moe_layers[l].mass, b.moe_layers[l].mass);
    EXPECT_EQ(a.moe_layers[l].router_entropy, b.moe_layers[l].router_entropy);
    EXPECT_EQ(a.moe_layers[l].coactivation.at, b.moe_layers[l].coactivation.at);
  }
}

TEST(RoutingStats, RefusesWhatHasNoMeaning) {
  const Texts texts;
  const auto model = fresh(config_of("olmoe"));
  EXPECT_FAILS(report_of(*model, texts, {.window = 1}), "window is 1");
  EXPECT_FAILS(report_of(*model, texts, {.tokens = -1}), "tokens is -1");
  put(texts.folder / "x.txt", "a");
  const Corpus corpus({texts.folder / "x.txt"}, *texts.tokenizer);
  moe::Run run(1);
  EXPECT_FAILS(routing_report(*model, run, *texts.tokenizer, corpus, {}), "less than two tokens");
}

TEST(Domains, ManyFilesBecomeFoldersAndThenOthers) {
  const TempFolder folder;
  const auto tokenizer = make_tokenizer("bytes");
  for (const int folders : {3, 20})
    for (int i = 0; i < 20; ++i) {
      const std::string name = folder / std::to_string(folders) + "/" + std::to_string(i % folders);
      std::filesystem::create_directories(name);
      put(name + "/" + std::to_string(i) + ".txt", std::string(static_cast<size_t>(i + 1), 'x'));
    }
  const Corpus by_folder({folder / "3"}, *tokenizer);
  const std::vector<TextDomain> three = domains_of(by_folder);
  ASSERT_EQ(three.size(), 3u);
  EXPECT_EQ(three[0].tokens, 1 + 4 + 7 + 10 + 13 + 16 + 19);
  const Corpus many({folder / "20"}, *tokenizer);
  const std::vector<TextDomain> sixteen = domains_of(many);
  ASSERT_EQ(sixteen.size(), kMaxDomains);
  EXPECT_EQ(sixteen.back().name, "others");
  EXPECT_EQ(sixteen.back().tokens, 1 + 2 + 3 + 4 + 5);  // the 15 largest stand alone
}

TEST(Domains, ReadAsOneText) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "a");
  std::filesystem::create_directories(folder / "b");
  put(folder / "a/same.txt", "hello ");
  put(folder / "a/z.txt", "other");
  put(folder / "b/same.txt", "world");
  const auto tokenizer = make_tokenizer("bytes");
  const Corpus corpus({folder.path()}, *tokenizer);
  const std::vector<TextDomain> domains = domains_of(corpus);
  ASSERT_EQ(domains.size(), 2u);
  EXPECT_EQ(domains[0].tokens, 11);
  std::vector<int32_t> ids(7);
  domains[0].fill(corpus, 3, 7, ids.data());
  EXPECT_EQ(tokenizer->decode(ids), "lo worl");
}

TEST(Pieces, NoCharacterIsCutAtTheEnds) {
  const auto tokenizer = make_tokenizer("bytes");
  const auto part = [&](const std::string& text) {
    const auto ids = tokenizer->encode(text);
    const auto [begin, end] = whole_characters(*tokenizer, ids);
    return text.substr(begin, end - begin);
  };
  EXPECT_EQ(part("aé€b"), "aé€b");
  const std::string text = "é€𝄞";  // of 2, 3 and 4 bytes
  EXPECT_EQ(part(text.substr(1)), "€𝄞");
  EXPECT_EQ(part(text.substr(3)), "𝄞");
  EXPECT_EQ(part(text.substr(6) + "a"), "a");
  EXPECT_EQ(part(text.substr(0, 8)), "é€");
  EXPECT_EQ(part(text.substr(0, 6)), "é€");
  EXPECT_EQ(part(text.substr(0, 4)), "é");
  EXPECT_EQ(part("\x80\x80\x80\x80\x80 no UTF-8"), "\x80\x80\x80\x80\x80 no UTF-8");
  EXPECT_EQ(part(""), "");
}

TEST(Pieces, LoneBytesAreWrittenOut) {
  EXPECT_EQ(shown_alone("\xC3"), "0xC3");
  EXPECT_EQ(shown_alone("\xC3\xA9\n\xFF"), "\xC3\xA9\n0xFF");
  EXPECT_EQ(shown_alone("\xE2\x82"), "0xE20x82");
  const auto tokenizer = make_tokenizer("bytes");
  EXPECT_EQ(shown_in_row(*tokenizer, tokenizer->encode("a\xC3\xA9\xE2")),
            (std::vector<std::string>{"a", "", "\xC3\xA9", "\xEF\xBF\xBD"}));
}

}  // namespace
}  // namespace moe::test::routing_stats_test
