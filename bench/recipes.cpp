// Every routing recipe on the same text, as bytes: the model of the preset tiny, its active FFN
// width the same in each row, trained for 300 steps on the default corpus.
//   bench_recipes [steps=300] [folder=data/corpus] [recipe...]
//     folder holds train/ and valid/; prints one table, a line as soon as a recipe is done
// Exits with 1 where a loss is not finite or does not fall.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "jobs/run_options.h"
#include "text/tokenizer.h"
#include "train/trainer.h"

namespace {

using namespace moe;

constexpr int64_t kActiveWidth = 512;  // of the preset: 2 experts of width 256
constexpr int64_t kMostTopK = 4;       // of 16 experts, the same share as 2 of 8
constexpr double kDead = 0.01;         // below this share of the mean load an expert is dead

struct Arguments {
  std::string steps = "300", folder = "data/corpus";
  std::vector<std::string> names;
};

Arguments parse(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c); }))
      a.steps = word;
    else if (word.find('/') != std::string::npos) a.folder = word;
    else a.names.emplace_back(find_recipe(word).name);
  }
  if (a.names.empty())
    for (const Recipe& r : recipes()) a.names.emplace_back(r.name);
  return a;
}

// A custom row that no published one is: sigmoid scores balanced by the selection bias alone (arXiv
// 2408.15664).
constexpr const char* kStages =
    R"({"score": "sigmoid", "select": {"type": "top_k", "bias": true}, "weigh": {"type": "scores", "renormalise": "before_drop"}})";

struct Setting {
  int64_t experts = 1, top_k = 1;
  ModelConfig model;
  TrainOptions train;
};

// As `moe train --preset tiny --recipe NAME ...` has it.
Setting setting(const Recipe& r, const std::string& steps, int64_t vocab) {
  Setting s;
  s.top_k = std::min(r.default_top_k, kMostTopK);
  s.experts = !r.has_router() ? 1 : s.top_k > 2 ? 16 : 8;
  const int64_t units = s.top_k + r.shared.experts * r.shared.widths,
                width = (kActiveWidth / units + 15) / 16 * 16;
  Json options = {{"preset", "tiny"},           {"steps", steps},   {"recipe", r.name},
                  {"experts", s.experts},       {"top_k", s.top_k}, {"expert_width", width},
                  {"dense_width", kActiveWidth}};
  if (r.name == kCustom) options["stages"] = kStages;
  SetupOptions setup;
  FieldList list = fields(setup);
  Given given = read_caller_options(list, options, "bench");
  apply_files(list, setup, given);
  s.train = setup.train;
  s.train = resolved(s.train);
  s.model = make_config(setup.model, vocab, s.train.context);
  return s;
}

// Means over the last sixth of the run.
struct Figures {
  double first_ce = 0, ce = 0, balance = 0, max_vio = 0, dropped = 0, ms = 0;
  std::vector<std::vector<double>> load;  // of each MoE layer's experts
  int64_t dead = 0, experts = 0;

  void add(const StepResult& r, double share) {
    ce += share * r.ce, balance += share * r.balance, max_vio += share * r.max_vio,
        dropped += share * r.dropped;
    load.resize(r.layers.size());
    for (size_t l = 0; l < load.size(); ++l) {
      load[l].resize(r.layers[l].load.size());
      for (size_t e = 0; e < load[l].size(); ++e) load[l][e] += share * r.layers[l].load[e];
    }
  }
  void count_dead() {
    for (const std::vector<double>& layer : load)
      for (const double x : layer) dead += x * static_cast<double>(layer.size()) < kDead, ++experts;
  }
};

bool run(const Recipe& r, const Arguments& a, const Tokenizer& tokenizer, const Corpus& corpus,
         const Corpus& held_out) {
  const Setting s = setting(r, a.steps, tokenizer.vocab_size());
  Model model(s.model);
  model.initialise(s.train.seed);
  Trainer trainer(model, s.train, corpus);
  const int64_t window = std::max<int64_t>(1, s.train.steps / 6);
  Figures f;
  for (int64_t i = 0; i < s.train.steps; ++i) {
    const StepResult step = trainer.step();
    if (i < window) f.first_ce += step.ce / static_cast<double>(window);
    if (i >= s.train.steps - window) f.add(step, 1 / static_cast<double>(window));
    f.ms = 1e3 * step.seconds / static_cast<double>(step.step);
    if (step.step % 50 == 0)
      fmt::print(stderr, "{}: step {} ce {:.3f}\n", r.name, step.step, step.ce);
  }
  f.count_dead();
  const double held_out_ce = trainer.evaluate(held_out);
  const bool routed = r.has_router(),
             causal = !routed ||
                      not_causal_because(s.model.routing, default_eval(s.model.routing)).empty();
  const bool good = std::isfinite(f.ce) && std::isfinite(held_out_ce) &&
                    (s.train.steps < 2 * window + 1 || f.ce < f.first_ce);
  const auto shown = [&](bool has, double x, int digits) {
    return has ? fmt::format("{:.{}f}", x, digits) : std::string("-");
  };
  fmt::print("| {} | {} | {:.4f} | {:.4f}{} | {} | {} | {} | {} | {:.1f} |{}\n", r.name,
             routed ? fmt::format("{} of {}", s.top_k, s.experts) : "-", f.ce, held_out_ce,
             causal ? "" : " (not causal)", shown(f.balance != 0, f.balance, 3),
             shown(routed, f.max_vio, 2), routed ? fmt::format("{} of {}", f.dead, f.experts) : "-",
             routed ? fmt::format("{:.1f}%", 100 * f.dropped) : "-", f.ms,
             good ? "" : " FAILED: the loss did not fall");
  std::fflush(stdout);
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  bool good = true;
  try {
    const Arguments a = parse(argc, argv);
    const auto tokenizer = make_tokenizer("bytes");
    const Corpus corpus({a.folder + "/train"}, *tokenizer),
        held_out({a.folder + "/valid"}, *tokenizer);
    fmt::print(
        "preset tiny, {} steps; means of the last sixth of them; dead: under {:.0f}% of the mean "
        "load\n\n| recipe | K of E | train CE | held-out CE | balance "
        "| "
        "MaxVio | dead experts | dropped | ms a step |\n|---|---|---|---|---|---|---|---|---|\n",
        a.steps, 100 * kDead);
    for (const std::string& name : a.names) {
      try {
        good &= run(find_recipe(name), a, *tokenizer, corpus, held_out);
      } catch (const Error& e) {
        fmt::print("| {} | FAILED: {} |\n", name, e.what());
        good = false;
      }
    }
  } catch (const std::exception& e) {
    fmt::print(stderr, "bench_recipes: {}\n", e.what());
    return 2;
  }
  return good ? 0 : 1;
}
