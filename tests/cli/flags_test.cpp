// Where an option's value comes from (flag, then --config, then preset, then default), and what the
// flags make of a model.

#include <CLI/CLI.hpp>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/flags.h"
#include "core/json.h"
#include "jobs/presets.h"
#include "jobs/run_options.h"
#include "support/files.h"
#include "text/bpe_train.h"

namespace moe::test::flags_test {
namespace {

// Parses as `moe train` does.
struct Line : RunOptions {
  Given given;

  explicit Line(std::vector<std::string> words) {
    CLI::App app;
    cli::add_flags(app, fields(static_cast<RunOptions&>(*this)), given);
    std::reverse(words.begin(), words.end());
    app.parse(words);
    FieldList list = fields(static_cast<RunOptions&>(*this));
    apply_files(list, *this, given);
  }
  ModelConfig config(int64_t vocab = 256) const { return make_config(model, vocab, train.context); }
};

std::string config_file(const TempFolder& folder, const std::string& json) {
  put(folder / "run.json", json);
  return folder / "run.json";
}

TEST(Options, FlagsWinOverConfigAndConfigOverPreset) {
  const TempFolder folder;
  const Line line({"--preset", "tiny", "--config",
                   config_file(folder, R"({"width": 64, "batch": 3, "lr": 0.5})"), "--batch", "2"});
  EXPECT_EQ(line.train.batch, 2);
  EXPECT_EQ(line.model.width, 64);
  EXPECT_EQ(line.train.lr, 0.5);
  // What neither flag nor file names is the preset's.
  const auto tiny = std::find_if(presets().begin(), presets().end(),
                                 [](const Preset& preset) { return preset.name == "tiny"; });
  EXPECT_EQ(line.train.steps, parse_json(tiny->json, "tiny").at("steps").get<int64_t>());
  EXPECT_NE(line.train.steps, TrainOptions().steps);
  EXPECT_EQ(line.train.accumulate, TrainOptions().accumulate);
}

// Every verb that takes presets takes all that they say, their tokenizer too.
TEST(Options, APresetMayNameItsTokenizer) {
  EXPECT_EQ(Line({"--preset", "tiny"}).tokenizer, "bpe:4096");
  EXPECT_EQ(Line({"--preset", "tiny", "--tokenizer", "bytes"}).tokenizer, "bytes");
  EXPECT_EQ(Line({"--layers", "2"}).tokenizer, "bytes");
  EXPECT_EQ(vocabulary_of("bpe:4096"), 4096);
  EXPECT_EQ(vocabulary_of("bytes"), 256);
}

TEST(Options, AFlagGivenWithItsDefaultStillWins) {
  const TempFolder folder;
  EXPECT_EQ(Line({"--preset", "tiny", "--steps", "1000"}).train.steps, 1000);
}

TEST(Options, StreamsAreMixedUnlessItIsSaidOtherwise) {
  const TempFolder folder;
  EXPECT_FALSE(Line({"--preset", "tiny"}).config().hyper.present());
  const ModelConfig mixed = Line({"--preset", "tiny", "--streams", "4"}).config();
  EXPECT_EQ(mixed.hyper.streams, 4);
  EXPECT_TRUE(mixed.hyper.mixes);
  EXPECT_FALSE(
      Line({"--preset", "tiny", "--streams", "4", "--mix-streams", "false"}).config().hyper.mixes);
  EXPECT_FAILS(Line({"--preset", "tiny", "--mix-streams", "true"}).config(), "give streams too");
}

// What a file sets gives way to a flag that leaves it no meaning, as to one of the same name.
TEST(Options, WhatAFileSetsGivesWayToAFlag) {
  const TempFolder folder;
  const TrainOptions none;
  const TrainOptions timed = Line({"--preset", "nanomoe", "--minutes", "5"}).train;
  EXPECT_EQ(timed.steps, none.steps);
  EXPECT_EQ(timed.minutes, 5);
  EXPECT_EQ(timed.context, 1024) << "the rest is the preset's";
  // A warm-up as long as the run, and a last rate above the highest one, were meant for others.
  // What fits stays.
  EXPECT_FALSE(Line({"--preset", "nanomoe", "--steps", "10"}).train.warmup);
  EXPECT_EQ(Line({"--preset", "nanomoe", "--steps", "2001"}).train.warmup, 2000);
  EXPECT_FALSE(Line({"--preset", "nanomoe", "--lr", "1e-5"}).train.min_lr);
  EXPECT_EQ(Line({"--preset", "nanomoe", "--lr", "6e-5"}).train.min_lr, 6e-5);
  // --config stands between: above a preset, below the command line.
  const auto config = [&](const char* json) {
    return std::vector<std::string>{"--preset", "nanomoe", "--config", config_file(folder, json)};
  };
  EXPECT_EQ(Line(config(R"({"minutes": 3})")).train.steps, none.steps);
  EXPECT_FALSE(Line(config(R"({"steps": 20})")).train.warmup);
  std::vector<std::string> words = config(R"({"minutes": 3, "warmup": 30})");
  words.insert(words.end(), {"--steps", "20"});
  const TrainOptions steps = Line(words).train;
  EXPECT_EQ(steps.steps, 20);
  EXPECT_EQ(steps.minutes, 0);
  EXPECT_FALSE(steps.warmup);
  // Two of the same file, or two flags, are left to be refused.
  EXPECT_EQ(Line(config(R"({"steps": 10, "warmup": 30})")).train.warmup, 30);
  EXPECT_EQ(Line({"--preset", "nanomoe", "--steps", "10", "--warmup", "30"}).train.warmup, 30);
  const TrainOptions both = Line(config(R"({"steps": 10, "minutes": 3})")).train;
  EXPECT_EQ(both.steps, 10);
  EXPECT_EQ(both.minutes, 3);
  // So with a recipe that leaves experts or a top-k no meaning.
  EXPECT_EQ(Line({"--preset", "tiny", "--recipe", "dense"}).config().moe_layer_count(), 0);
  EXPECT_EQ(Line({"--preset", "tiny", "--recipe", "switch"}).config().routing.top_k, 1);
  EXPECT_EQ(Line({"--preset", "tiny", "--recipe", "olmoe"}).config().routing.experts, 16);
}

TEST(Options, WholeNumbersWithAnExponent) {
  for (const auto& [word, number] : {std::pair{"1e6", "1000000"},
                                     {"1E3", "1000"},
                                     {"2.5e2", "250"},
                                     {"1.50e1", "15"},
                                     {"3.0", "3"},
                                     {"100e-2", "1"},
                                     {"-1e3", "-1000"},
                                     {"1e+2", "100"},
                                     {"0e5", "0"},
                                     {"18446744073709551615.0", "18446744073709551615"}})
    EXPECT_EQ(whole_number(word), number);
  // Left as they are, for the option to refuse.
  for (const char* word : {"1.5", "1e-1", "15", "-3", "", "e", "e6", ".", "1e", "1e1000000", "1.e",
                           "0x10", "1e2e3", "ten", "nan", "1e9x"})
    EXPECT_EQ(whole_number(word), word);
  const TempFolder folder;
  EXPECT_EQ(Line({"--config", config_file(folder, R"({"steps": 1e6, "batch": 4.0, "seed": 1e3})")})
                .train.steps,
            1000000);
  EXPECT_FAILS(Line({"--config", config_file(folder, R"({"steps": 1.5})")}),
               "\"steps\" is 1.5; a whole number is needed");
}

TEST(Options, ConfigTakesEveryKindOfValue) {
  const TempFolder folder;
  const Line line(
      {"--config",
       config_file(
           folder,
           R"({"recompute": true, "decay_all": false, "moe-layers": [0, 2], "dtype": "bf16", "shuffle": "none",
                                                       "schedule": "linear", "seed": 9, "tied": true, "shared_gate": true, "min-lr": 1e-5, "layers": 4})")});
  EXPECT_TRUE(line.train.recompute);
  EXPECT_FALSE(line.train.decay_all);
  EXPECT_EQ(line.model.moe_layers, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(line.train.dtype, DType::bf16);
  EXPECT_EQ(line.train.shuffle, Shuffle::none);
  EXPECT_EQ(line.train.schedule, ScheduleKind::linear);
  EXPECT_EQ(line.train.seed, 9u);
  EXPECT_EQ(line.model.tied, true);
  EXPECT_EQ(line.model.shared_gate, true);
  EXPECT_EQ(line.train.min_lr, 1e-5);
  const Line empty(
      {"--config", config_file(folder, R"({"moe-layers": [], "lr_times": {}, "layers": 2})")});
  EXPECT_TRUE(empty.model.moe_layers.empty());
  EXPECT_TRUE(empty.train.lr_times.empty());
  EXPECT_EQ(empty.model.layers, 2);
  EXPECT_EQ(Line({"--moe-layers", "1,3"}).model.moe_layers, (std::vector<int64_t>{1, 3}));
}

// So that the sizes in a config.json of Hugging Face can be copied.
TEST(Options, ConfigTakesHuggingFacesNames) {
  const TempFolder folder;
  const auto with = [&](const char* json) { return Line({"--config", config_file(folder, json)}); };
  const Line line = with(
      R"({"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2, "num_local_experts": 6,
                             "num_experts_per_tok": 3, "moe_intermediate_size": 48, "tie_word_embeddings": true, "hidden_act": "gelu", "learning_rate": 0.5})");
  const ModelConfig c = line.config();
  EXPECT_EQ(c.layers, 3);
  EXPECT_EQ(c.width, 64);
  EXPECT_EQ(c.heads, 8);
  EXPECT_EQ(c.kv_heads, 2);
  EXPECT_EQ(c.routing.experts, 6);
  EXPECT_EQ(c.routing.top_k, 3);
  EXPECT_EQ(c.expert_width, 48);
  EXPECT_TRUE(c.tied);
  EXPECT_EQ(c.act, ops::Act::gelu);
  EXPECT_EQ(line.train.lr, 0.5);
  EXPECT_FAILS(with(R"({"hidden_size": 64, "width": 32})"),
               "\"hidden_size\" and \"width\" are names of the same option");
  EXPECT_EQ(Line({"--config", config_file(folder, R"({"hidden_size": 64})"), "--width", "32"})
                .model.width,
            32)
      << "flags win whatever a file calls it";
}

TEST(Options, ConfigNamesItsFileAndTheNearestOption) {
  const TempFolder folder;
  const auto with = [&](const char* json) { return Line({"--config", config_file(folder, json)}); };
  EXPECT_FAILS(with(R"({"layres": 2})"), "layers");
  EXPECT_FAILS(with(R"({"layres": 2})"), "run.json");
  EXPECT_FAILS(with(R"({"preset": "tiny"})"), "command line");
  EXPECT_FAILS(with(R"({"config": "x"})"), "command line");
  EXPECT_FAILS(with(R"({"layers": "four"})"), "\"layers\" is \"four\"; a whole number is needed");
  EXPECT_FAILS(with(R"({"layers": 2.5})"), "\"layers\" is 2.5; a whole number is needed");
  EXPECT_FAILS(with(R"({"threads": 99999999999})"),
               "\"threads\" is 99999999999, which is out of range");
  EXPECT_FAILS(with(R"({"layers": [1, 2]})"), "layers takes one value");
  EXPECT_FAILS(with(R"({"layers": []})"), "layers takes one value");
  EXPECT_FAILS(with(R"({"layers": null})"), "layers");
  EXPECT_FAILS(with(R"({"layers": {"a": 1}})"), "layers");
  EXPECT_FAILS(with(R"([1])"), "object");
  EXPECT_FAILS(with(R"({"layers": 1)"), "line 1");
  EXPECT_FAILS(with(R"({"dtype": "f23"})"), "f32");
  EXPECT_FAILS(Line({"--config", folder / "none.json"}), "none.json");
  EXPECT_FAILS(Line({"--preset", "tinny"}), "tiny");
}

TEST(Options, EveryPresetIsAModel) {
  ASSERT_FALSE(presets().empty());
  for (const Preset& preset : presets()) {
    const Line line({"--preset", preset.name});
    validate(resolved(line.train));
    EXPECT_EQ(line.config().context, line.train.context) << preset.name;
  }
}

TEST(MakeConfig, FillsInWhatFollowsFromTheRest) {
  const ModelConfig c =
      Line({"--recipe", "olmoe", "--width", "64", "--heads", "4", "--experts", "8", "--top-k", "2",
            "--expert-width", "24", "--shared-experts", "2", "--kv-heads", "2"})
          .config(300);
  EXPECT_EQ(c.vocab, 300);
  EXPECT_EQ(c.head_width, 16);
  EXPECT_EQ(c.kv_heads, 2);
  EXPECT_EQ(c.expert_width, 24);
  EXPECT_EQ(c.shared_width, 24);
  EXPECT_EQ(c.routing.recipe, "olmoe");
  EXPECT_EQ(c.routing.experts, 8);
  EXPECT_EQ(c.norm, NormKind::rms);
  const ModelConfig dense = Line({"--recipe", "dense", "--width", "64"}).config();
  EXPECT_EQ(dense.moe_layer_count(), 0);
  EXPECT_EQ(
      Line({"--recipe", "switch", "--layers", "4", "--moe-every", "2"}).config().moe_layer_count(),
      2);
}

// Every one that its help names, in the order of ops::Act.
TEST(MakeConfig, TakesEveryActivation) {
  RunOptions o;
  const std::string help = fields(o).at("activation").help;
  for (const char* name :
       {"silu", "gelu", "gelu_tanh", "relu", "swiglu_oai", "sigmoid", "relu2", "swiglu_10"}) {
    EXPECT_NE(help.find(name), std::string::npos) << name;
    const ModelConfig c = Line({"--activation", name}).config();
    EXPECT_EQ(activation_names().at(static_cast<size_t>(c.act)), name);
  }
  EXPECT_EQ(Line({"--activation", "sigmoid"}).config().act, ops::Act::sigmoid);
}

// Shared experts are the recipe's unless the flags say otherwise, and count towards the width that
// a token meets.
TEST(MakeConfig, SharedExpertsAreTheRecipes) {
  const Recipe& v2 = find_recipe("deepseek-v2");
  ASSERT_GT(v2.shared.experts, 0);
  const std::vector<std::string> size = {"--width",   "96", "--heads", "4",
                                         "--experts", "16", "--top-k", "6"};
  const auto config = [&](std::vector<std::string> words) {
    words.insert(words.end(), size.begin(), size.end());
    return Line(words).config();
  };
  const ModelConfig c = config({"--recipe", "deepseek-v2"});
  EXPECT_EQ(c.shared_experts, v2.shared.experts);
  EXPECT_EQ(c.shared_width, c.expert_width * v2.shared.widths);
  EXPECT_EQ(c.expert_width, 32);  // 8/3 * 96 = 256 over 6 + 2
  EXPECT_EQ(config({"--recipe", "deepseek-v2", "--shared-experts", "0"}).shared_experts, 0);
  // 256 / 6, to a multiple of 16
  EXPECT_EQ(config({"--recipe", "deepseek-v2", "--shared-experts", "0"}).expert_width, 48);
  // of the dense FFN that was asked for
  EXPECT_EQ(config({"--recipe", "mixtral", "--dense-width", "384"}).expert_width, 64);
  EXPECT_EQ(config({"--recipe", "deepseek-v2", "--shared-width", "24"}).shared_width, 24);
  EXPECT_EQ(config({"--recipe", "olmoe"}).shared_experts, 0);
  const Recipe& qwen = find_recipe("qwen2-moe");
  const ModelConfig q = config({"--recipe", "qwen2-moe"});
  EXPECT_TRUE(qwen.shared.gate && q.shared_gate);
  EXPECT_EQ(q.shared_width, q.expert_width * qwen.shared.widths);
  const TempFolder folder;
  EXPECT_FALSE(config({"--recipe", "qwen2-moe", "--config",
                       config_file(folder, R"({"shared_gate": false})")})
                   .shared_gate);
}

TEST(MakeConfig, RoutingFlagsReachTheStages) {
  const std::vector<std::string> v3 = {"--recipe", "deepseek-v3", "--experts",
                                       "16",       "--top-k",     "4"};
  const auto config = [](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return Line(words).config();
  };
  const RoutingSpec grouped = train_spec(
      config(v3, {"--expert-groups", "8", "--groups-kept", "3", "--routed-scaling-factor", "1.5"})
          .routing);
  EXPECT_EQ(std::get<GroupedTopK>(grouped.select).groups, 8);
  EXPECT_EQ(std::get<GroupedTopK>(grouped.select).keep, 3);
  EXPECT_EQ(std::get<ChosenScores>(grouped.weigh).scale, 1.5f);
  const RoutingSpec ungrouped = train_spec(config(v3, {"--expert-groups", "1"}).routing);
  // not the share of the recipe's eight
  EXPECT_EQ(std::get<GroupedTopK>(ungrouped.select).keep, 1);
  const std::vector<std::string> olmoe = {"--recipe", "olmoe", "--experts", "8", "--top-k", "2"};
  EXPECT_EQ(
      train_spec(config(olmoe, {"--balance-over", "sequence"}).routing).losses.balance->scope.kind,
      Scope::Kind::sequence);
  EXPECT_EQ(train_spec(config(olmoe, {"--balance-over", "step"}).routing).losses.balance->shares,
            BalanceLoss::Shares::step);
  EXPECT_EQ(config(olmoe, {"--balance", "0.5", "--z-loss", "0.25"}).routing.coef.balance, 0.5f);
  const ModelConfig shazeer = config({"--recipe", "shazeer", "--experts", "8"},
                                     {"--importance-loss", "0.5", "--load-loss", "0.25"});
  EXPECT_EQ(shazeer.routing.coef.importance, 0.5f);
  EXPECT_EQ(shazeer.routing.coef.load, 0.25f);
  const ModelConfig v2 = config({"--recipe", "deepseek-v2", "--experts", "16", "--top-k", "4"},
                                {"--device-loss", "0.5", "--communication-loss", "0.25"});
  EXPECT_EQ(v2.routing.coef.device, 0.5f);
  EXPECT_EQ(v2.routing.coef.communication, 0.25f);
}

// The file, the JSON itself, and the JSON inside a --config file name the same stages; the model
// keeps them complete, without a base.
TEST(MakeConfig, StagesOfTheCustomRecipe) {
  const TempFolder folder;
  const std::string text = R"({"base": "switch", "capacity": {"type": "buffer", "factor": 2}})";
  put(folder / "stages.json", text);
  const std::vector<std::string> size = {"--experts", "8", "--top-k", "1"};
  const auto config = [&](std::vector<std::string> words) {
    words.insert(words.end(), size.begin(), size.end());
    return Line(words).config();
  };
  const ModelConfig c = config({"--recipe", "custom", "--stages", folder / "stages.json"});
  EXPECT_EQ(c.routing.recipe, "custom");
  EXPECT_EQ(c.routing.stages.find("base"), std::string::npos) << c.routing.stages;
  const RoutingSpec spec = train_spec(c.routing);
  EXPECT_TRUE(std::holds_alternative<InputJitter>(spec.noise));
  EXPECT_EQ(std::get<BufferCapacity>(spec.capacity).factor, 2);
  EXPECT_EQ(config({"--stages", text}).routing.stages, c.routing.stages);
  EXPECT_EQ(
      config({"--config", config_file(folder, R"({"recipe": "custom", "stages": )" + text + "}")})
          .routing.stages,
      c.routing.stages);
  // Stages win over the recipe of a file that is read later.
  EXPECT_EQ(config({"--preset", "tiny", "--stages", text}).routing.stages, c.routing.stages);
  EXPECT_EQ(
      config({"--preset", "tiny", "--config", config_file(folder, R"({"stages": )" + text + "}")})
          .routing.stages,
      c.routing.stages);
}

TEST(MakeConfig, RefusesWhatDoesNotFitAndNamesTheFlag) {
  const auto refused = [](std::vector<std::string> words, const char* part) {
    try {
      const Line line(std::move(words));
      line.config();
      ADD_FAILURE() << part << ": let through";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), Error::Kind::usage);
      EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, cli::in_flags(e.marked()));
    }
  };
  refused({"--width", "50", "--heads", "4"}, "--heads");
  refused({"--heads", "0"}, "--heads");
  refused({"--layers", "9000000000000"}, "--layers");
  refused({"--layers", "-1"}, "--layers");
  refused({"--width", "9000000000000000000"}, "--width");
  refused({"--width", "16000000", "--experts", "16000000", "--expert-width", "16000000",
           "--dense-width", "8"},
          "parameters");
  refused({"--kv-heads", "3"}, "--kv-heads");
  refused({"--experts", "4", "--top-k", "5"}, "--top-k");
  refused({"--recipe", "mixtral", "--top-k", "1"}, "gradient");
  refused({"--recipe", "dense", "--experts", "4"}, "dense");
  refused({"--recipe", "olmo"}, "olmoe");
  refused({"--architecture", "olmo"}, "olmoe");
  refused({"--activation", "sulu"}, "silu");
  refused({"--moe-every", "0"}, "--moe-every");
  refused({"--balance", "nan"}, "--balance");
  refused({"--balance", "-1"}, "--balance");
  refused({"--z-loss", "inf"}, "--z-loss");
  refused({"--recipe", "olmoe", "--capacity-factor", "1.25"}, "never drops");
  refused({"--recipe", "olmoe", "--stages", "{}"}, "custom");
  refused({"--recipe", "custom"}, "--stages");
  refused({"--recipe", "olmoe", "--expert-groups", "4"}, "--expert-groups");
  refused({"--recipe", "deepseek-v3", "--experts", "16", "--top-k", "4", "--expert-groups", "3"},
          "1, 2, 4, 8, 16");
  refused({"--recipe", "olmoe", "--routed-scaling-factor", "2"}, "deepseek");
  refused({"--recipe", "olmoe", "--balance-over", "sequense"}, "\"sequence\"");
  refused({"--recipe", "hash", "--experts", "8", "--balance-over", "step"}, "--balance-over");
  refused({"--recipe", "mixtral", "--load-loss", "0.1"}, "--load-loss");
  refused({"--recipe", "expert-choice", "--experts", "8", "--balance", "0.1"}, "--balance");
  refused({"--recipe", "hash", "--experts", "8", "--z-loss", "0.1"}, "--z-loss");
}

}  // namespace
}  // namespace moe::test::flags_test
