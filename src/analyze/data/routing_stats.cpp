#include "analyze/data/routing_stats.h"

#include <algorithm>
#include <cmath>

#include "analyze/data/domains.h"
#include "analyze/data/layer_counts.h"
#include "analyze/texts/pieces.h"
#include "core/error.h"
#include "core/threads.h"
#include "evaluate/score.h"
#include "infer/eval_routing.h"
#include "model/cost.h"
#include "model/lm_head_chunks.h"
#include "moe/one_sequence.h"

namespace moe {
namespace {

constexpr int64_t kCountedIds = 20000;  // different ones that texts of a usual length hold

template <class T>
std::vector<T> copied(Tensor t) {
  return {t.as<T>(), t.as<T>() + t.rows() * t.cols()};
}

// Scores in [0, 1]: raw logits through a softmax over all experts, those without an upper end over
// their sum, others as they are.
std::vector<float> scores_of(const Router::Saved& router, const RoutingSpec& spec) {
  if (router.scores.empty()) return {};
  std::vector<float> scores = copied<float>(router.scores);
  if (std::holds_alternative<SqrtSoftplusScore>(spec.score)) {
    for (auto row = scores.begin(); row != scores.end(); row += spec.experts) {
      const double total = std::accumulate(row, row + spec.experts, double{ops::kRenormFloor});
      for (int64_t e = 0; e < spec.experts; ++e)
        row[e] = static_cast<float>(double{row[e]} / total);
    }
  }
  if (!std::holds_alternative<RawScore>(spec.score)) return scores;
  for (auto row = scores.begin(); row != scores.end(); row += spec.experts) {
    const float top = *std::max_element(row, row + spec.experts);
    double total = 0;
    for (int64_t e = 0; e < spec.experts; ++e) total += std::exp(double{row[e]} - top);
    for (int64_t e = 0; e < spec.experts; ++e)
      row[e] = static_cast<float>(std::exp(double{row[e]} - top) / total);
  }
  return scores;
}

RoutedRows rows_of(Run& run, const MoeLayer::Saved& layer, const RoutingSpec& spec,
                   bool by_neuron) {
  const Router::Saved& router = layer.router;
  RoutedRows rows{router.choice.rows(), router.choice.cols()};
  rows.choice = copied<int32_t>(router.choice);
  rows.chosen = copied<int32_t>(router.selected);
  // The router keeps what its second-choice policy left only as counts; without randomness the
  // policy says the same again.
  second_forward(run, Tensor(rows.chosen.data(), DType::i32, {rows.tokens, rows.slots}),
                 router.weights, spec.second, RngKey{});
  rows.kept = copied<int32_t>(router.kept);
  rows.weights.resize(rows.choice.size());
  each_kept_pair(layer.plan, router, [&](size_t pair, float w) { rows.weights[pair] = w; });
  if (!by_neuron) rows.scores = scores_of(router, spec);
  return rows;
}

// A model with the stages it is evaluated by, and what it did with the last window it was given.
class Observed {
 public:
  Observed(Model& model, const RoutingStatsOptions& options)
      : model_(model),
        spec_(evaluation_spec(model.config(), options.routing, options.top_k_experts)) {
    const ModelConfig& config = model.config();
    for (int64_t l = 0; l < config.layers; ++l)
      if (config.is_moe(l)) layers.push_back(l);
  }

  // nll [N], the last being 0, and the likeliest next ids [N]; both may be null: only the routing
  // is wanted.
  void look(Run& run, std::span<const int32_t> ids, std::vector<float>* nll,
            std::vector<int32_t>* predicted);

  std::vector<int64_t> layers;   // the number of each MoE layer
  std::vector<RoutedRows> rows;  // of each MoE layer

 private:
  void predict(Run& run, std::vector<int32_t>& predicted, Tensor hidden);

  Model& model_;
  RoutingSpec spec_;
};

void Observed::look(Run& run, std::span<const int32_t> ids, std::vector<float>* nll,
                    std::vector<int32_t>* predicted) {
  const int64_t tokens = std::ssize(ids);
  const OneSequence sequence(tokens);
  rows.clear();
  const std::function<void(int64_t, const MoeLayer::Saved&)> on_routing =
      [&](int64_t, const MoeLayer::Saved& layer) {
        rows.push_back(rows_of(run, layer, spec_, model_.config().by_neuron()));
      };
  ArenaScope scope(run.saved);
  ModelSaved saved;
  model_.forward(run, {.batch = sequence.of(ids), .routing = &spec_, .on_routing = &on_routing},
                 saved);
  if (predicted) predict(run, *predicted, saved.hidden);
  if (!nll) return;
  std::vector<int32_t> targets(ids.begin() + 1, ids.end());
  targets.push_back(ops::kIgnoreTarget);
  nll->resize(ids.size());
  model_.loss_forward(run, Tensor(nll->data(), DType::f32, {tokens}), targets, saved);
}

void Observed::predict(Run& run, std::vector<int32_t>& predicted, Tensor hidden) {
  const int64_t tokens = hidden.rows(), vocab = model_.config().vocab,
                step = logit_chunk_rows(vocab);
  predicted.resize(static_cast<size_t>(tokens));
  for (int64_t begin = 0; begin < tokens; begin += step) {
    const int64_t end = std::min(tokens, begin + step);
    ArenaScope scope(run.saved);
    Tensor logits = run.saved.alloc(DType::f32, {end - begin, vocab});  // [n,V]
    model_.logits(run, logits, hidden.slice_rows(begin, end));
    parallel_for(run.threads, end - begin, 16, [&](int64_t first, int64_t last, int) {
      for (int64_t n = first; n < last; ++n) {
        const float* row = logits.row<float>(n);
        predicted[static_cast<size_t>(begin + n)] = static_cast<int32_t>(
            std::max_element(row, row + vocab) - row);  // the lowest id of equals
      }
    });
  }
}

// Which windows of a domain are looked at: window i of n begins at floor(i * whole / n) * length.
struct Windows {
  int64_t length = 0, whole = 0, count = 0;
  int64_t start(int64_t i) const { return i * whole / count * length; }
};

Windows windows_of(const TextDomain& domain, int64_t window, int64_t tokens) {
  if (domain.tokens < window) return {domain.tokens, 1, 1};
  const int64_t whole = domain.tokens / window;
  return {window, whole, tokens > 0 ? std::clamp<int64_t>(tokens / window, 1, whole) : whole};
}

SampleText sample_of(const std::string& domain, const Tokenizer& tokenizer,
                     std::span<const int32_t> ids, std::span<const float> nll,
                     const std::vector<RoutedRows>& layers) {
  const auto [begin, end] = whole_characters(tokenizer, ids);
  SampleText sample{domain, shown_in_row(tokenizer, ids.subspan(begin, end - begin)), {0}, {}, {}};
  for (size_t n = begin + 1; n < end; ++n) sample.nll.push_back(double{nll[n - 1]});
  for (const RoutedRows& rows : layers) {
    std::vector<int32_t>& experts = sample.experts.emplace_back();
    const auto slots = static_cast<size_t>(rows.slots);
    for (size_t i = begin * slots; i < end * slots; ++i)
      experts.push_back(rows.kept[i] != 0 ? rows.choice[i] : -1);
    sample.weights.emplace_back(rows.weights.begin() + static_cast<int64_t>(begin * slots),
                                rows.weights.begin() + static_cast<int64_t>(end * slots));
  }
  return sample;
}

void check_options(const RoutingStatsOptions& options, const ModelConfig& config) {
  if (options.window != 0 && options.window < 2)
    fail_usage(
        "@window is {}; a window needs at least 2 tokens, one to predict from and one to predict",
        options.window);
  if (config.ends_at_context() && options.window > config.context)
    fail_usage("@window is {}, but {}", options.window, why_texts_end(config));
  if (options.tokens < 0) fail_usage("@tokens is {}; it must be 0 (all) or above", options.tokens);
}

void check_earlier(const ModelConfig& c, const ModelConfig& earlier) {
  const auto differs = [](const char* what, int64_t a, int64_t b) {
    if (a != b)
      fail(
          "@against must name an earlier checkpoint of the same model: it has {} {}, the model has "
          "{}",
          b, what, a);
  };
  differs("layers", c.layers, earlier.layers);
  differs("MoE layers", c.moe_layer_count(), earlier.moe_layer_count());
  differs("experts", c.routing.experts, earlier.routing.experts);
  differs("zero experts", c.routing.zero_experts, earlier.routing.zero_experts);
  if (c.moe_layer_count() > 0) differs("experts a token", c.routing.top_k, earlier.routing.top_k);
  differs("tokens in its vocabulary", c.vocab, earlier.vocab);
  for (int64_t l = 0; l < c.layers; ++l)
    if (c.is_moe(l) != earlier.is_moe(l))
      fail(
          "@against must name an earlier checkpoint of the same model: its layer {} is of another "
          "kind",
          l);
}

RoutingReport empty_report(const ModelConfig& c, const Tokenizer& tokenizer,
                           int64_t top_k_experts) {
  RoutingReport report;
  report.recipe = c.routing.recipe;
  report.tokenizer = tokenizer.spec();
  report.ids_are_bytes = tokenizer.ids_are_bytes();
  report.layers = c.layers;
  report.vocab = c.vocab;
  if (c.moe_layer_count() > 0) {
    report.experts = c.routing.scored();
    report.top_k = experts_taken(c, top_k_experts);
    report.by_neuron = c.by_neuron();
  }
  const ParamCount params = count_params(c, top_k_experts);
  report.parameters = params.total();
  report.active_parameters = params.active();
  return report;
}

}  // namespace

int64_t reporting_bytes(const ModelConfig& c, const RoutingStatsOptions& options, int64_t window,
                        int64_t models) {
  const int64_t logits = std::min(logit_chunk_rows(c.vocab), window) * c.vocab * 4;
  if (c.moe_layer_count() == 0) return logits;
  // RoutedRows
  const int64_t slots = evaluation_spec(c, options.routing, options.top_k_experts).slots(),
                scores = c.by_neuron() ? 0 : c.routing.scored(),
                rows = window * (4 * slots + scores) * 4;
  // IdCounts of what comes in, follows and is predicted
  const int64_t counts =
      c.by_neuron() ? 0 : 3 * std::min(c.vocab, kCountedIds) * (c.routing.scored() * 4 + 8);
  return logits + c.moe_layer_count() * (models * rows + counts);
}

RoutingReport routing_report(Model& model, Run& run, const Tokenizer& tokenizer,
                             const Corpus& corpus, const RoutingStatsOptions& options,
                             Model* earlier,
                             const std::function<void(int64_t, int64_t)>& progress) {
  const ModelConfig& config = model.config();
  check_options(options, config);
  if (earlier) check_earlier(config, earlier->config());
  RoutingReport report = empty_report(config, tokenizer, options.top_k_experts);
  report.window = options.window > 0 ? options.window : default_window(config);
  std::vector<TextDomain> domains = domains_of(corpus);
  std::erase_if(domains, [](const TextDomain& d) { return d.tokens < 2; });
  if (domains.empty())
    fail("the texts have less than two tokens each; there is nothing to predict in them");
  std::vector<Windows> plan;
  int64_t done = 0, total = 0;
  for (const TextDomain& domain : domains)
    total += plan.emplace_back(windows_of(domain, report.window, options.tokens)).count;

  Observed now(model, options);
  std::optional<Observed> before;
  if (earlier) before.emplace(*earlier, options);
  const bool token_choice =
      config.moe_layer_count() > 0 && !experts_choose(train_spec(config.routing).select);
  std::vector<LayerCounts> layers;
  for (const int64_t l : now.layers)
    layers.emplace_back(l, config.routing.scored(), static_cast<int64_t>(domains.size()),
                        token_choice, report.by_neuron);
  std::vector<int32_t> ids, target, predicted;
  std::vector<float> nll;
  for (size_t d = 0; d < domains.size(); ++d) {
    const Windows& windows = plan[d];
    DomainText& text =
        report.domains.emplace_back(DomainText{domains[d].name, windows.count * windows.length, 0});
    for (int64_t w = 0; w < windows.count; ++w) {
      ids.resize(static_cast<size_t>(windows.length));
      domains[d].fill(corpus, windows.start(w), windows.length, ids.data());
      target.assign(ids.begin() + 1, ids.end());
      target.push_back(-1);
      now.look(run, ids, &nll, report.by_neuron ? nullptr : &predicted);
      if (before) before->look(run, ids, nullptr, nullptr);
      parallel_for(run.threads, static_cast<int64_t>(layers.size()), 1,
                   [&](int64_t begin, int64_t end, int) {
                     for (auto l = static_cast<size_t>(begin); l < static_cast<size_t>(end); ++l)
                       layers[l].add(now.rows[l], {ids, target, predicted}, static_cast<int64_t>(d),
                                     before ? &before->rows[l] : nullptr);
                   });
      for (size_t n = 0; n + 1 < ids.size(); ++n) text.nats_per_token += double{nll[n]};
      if (w == windows.count / 2 && !report.by_neuron)
        report.samples.push_back(sample_of(
            text.name, tokenizer,
            std::span(ids).first(std::min(ids.size(), static_cast<size_t>(options.sample))), nll,
            now.rows));
      if (progress) progress(++done, total);
    }
    text.nats_per_token /= static_cast<double>(windows.count * (windows.length - 1));
  }

  if (!now.rows.empty()) report.slots = now.rows[0].slots;
  for (const LayerCounts& layer : layers) report.moe_layers.push_back(layer.finish());
  for (LayerStats& layer : report.moe_layers)
    for (std::vector<TokenAffinity>& list : layer.favourites)
      for (TokenAffinity& token : list) token.text = shown_alone(tokenizer.piece(token.id));
  return report;
}

}  // namespace moe
