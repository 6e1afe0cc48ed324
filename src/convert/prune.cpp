#include "convert/prune.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "core/error.h"
#include "core/order.h"
#include "core/threads.h"
#include "core/words.h"
#include "moe/one_sequence.h"

namespace moe {
namespace {

const GroupedTopK* groups_of(const RoutingSpec& spec) {
  const auto* grouped = std::get_if<GroupedTopK>(&spec.select);
  return grouped != nullptr && grouped->groups > 1 ? grouped : nullptr;
}

// What the tokens of the calibration text did in one MoE layer.
struct Tally {
  std::vector<double> output;   // [E] sum of w |f(x)|
  std::vector<int64_t> tokens;  // [E]
};

// Adds what the rows of one forward give: the products before `down` are still there, so only that
// one is made again.
void add_rows(Run& run, Model& model, int64_t layer, const MoeLayer::Saved& saved, Tally& tally) {
  ExpertBank& experts = model.block(layer).ffn.experts;
  const Rows& rows = saved.rows;
  const int64_t count = rows.x.rows();
  ArenaScope scope(run.scratch);
  Tensor hidden = run.scratch.alloc(saved.experts.up.dtype, {count, saved.experts.up.cols()});
  Tensor out = run.scratch.alloc(DType::f32, {count, model.config().width});
  const Tensor weight = experts.weight_behind(rows);
  ops::ffn_act_forward(run, hidden, saved.experts.gate, saved.experts.up, weight,
                       model.config().act);
  ops::matmul_forward(run, out, hidden, experts.down, rows.offsets);
  if (experts.down_bias.present())
    ops::bias_forward_acc(run, out, experts.down_bias, weight, rows.offsets);
  std::vector<double> norms(static_cast<size_t>(count));
  parallel_for(run.threads, count, 64, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      double sum = 0;
      for (int64_t d = 0; d < out.cols(); ++d)
        sum +=
            static_cast<double>(out.row<float>(r)[d]) * static_cast<double>(out.row<float>(r)[d]);
      norms[static_cast<size_t>(r)] = std::sqrt(sum);
    }
  });
  for (size_t e = 0; e < tally.output.size(); ++e) {
    for (int64_t r = rows.offsets[e]; r < rows.offsets[e + 1]; ++r)
      tally.output[e] += norms[static_cast<size_t>(r)];
    tally.tokens[e] += rows.offsets[e + 1] - rows.offsets[e];
  }
}

// [L], empty at dense layers.
std::vector<Tally> tallies(Model& model, std::span<const int32_t> ids, const PruneOptions& o) {
  const ModelConfig& config = model.config();
  const RoutingSpec spec = eval_spec(config.routing);
  std::vector<Tally> all(static_cast<size_t>(config.layers));
  for (int64_t i = 0; i < config.layers; ++i)
    if (config.is_moe(i))
      all[static_cast<size_t>(i)] = {std::vector<double>(static_cast<size_t>(spec.experts)),
                                     std::vector<int64_t>(static_cast<size_t>(spec.experts))};
  Run run(o.threads, o.compute);
  const std::function<void(int64_t, const MoeLayer::Saved&)> listen =
      [&](int64_t layer, const MoeLayer::Saved& saved) {
        add_rows(run, model, layer, saved, all[static_cast<size_t>(layer)]);
      };
  const OneSequence sequence(o.window);
  for (int64_t window = 0; window < o.windows; ++window) {
    const Batch batch = sequence.of(
        ids.subspan(static_cast<size_t>(window * o.window), static_cast<size_t>(o.window)));
    ArenaScope scope(run.saved);
    ModelSaved saved;
    model.forward(run, {.batch = batch, .routing = &spec, .on_routing = &listen}, saved);
    if (o.progress) o.progress(window + 1, o.windows);
  }
  return all;
}

std::vector<double> saliency_of(const Tally& tally, Saliency kind) {
  std::vector<double> s(tally.output.size());
  for (size_t e = 0; e < s.size(); ++e) {
    const auto tokens = static_cast<double>(tally.tokens[e]);
    s[e] = kind == Saliency::output      ? tally.output[e]
           : kind == Saliency::frequency ? tokens
           : tokens > 0                  ? tally.output[e] / tokens
                                         : 0;
  }
  return s;
}

// The `count` largest of [begin, end), ascending.
void keep_best(const std::vector<double>& s, int64_t begin, int64_t end, int64_t count,
               std::vector<int64_t>& kept) {
  std::vector<int64_t> order = falling_order(
      std::span(s).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
  std::sort(order.begin(), order.begin() + count);
  for (int64_t i = 0; i < count; ++i) kept.push_back(begin + order[static_cast<size_t>(i)]);
}

PrunedLayer judge(int64_t layer, const Tally& tally, const RoutingSpec& spec,
                  const PruneOptions& o) {
  PrunedLayer result{.layer = layer,
                     .saliency = saliency_of(tally, o.saliency),
                     .tokens = tally.tokens,
                     .kept = {}};
  const int64_t groups = groups_of(spec) != nullptr ? groups_of(spec)->groups : 1,
                size = spec.experts / groups;
  for (int64_t g = 0; g < groups; ++g)
    keep_best(result.saliency, g * size, (g + 1) * size, o.experts / groups, result.kept);
  double tokens = 0, output = 0, kept_tokens = 0, kept_output = 0;
  for (size_t e = 0; e < tally.output.size(); ++e)
    tokens += static_cast<double>(tally.tokens[e]), output += tally.output[e];
  for (const int64_t e : result.kept) {
    kept_tokens += static_cast<double>(tally.tokens[static_cast<size_t>(e)]);
    kept_output += tally.output[static_cast<size_t>(e)];
  }
  result.lost_choices = tokens > 0 ? 1 - kept_tokens / tokens : 0;
  result.lost_output = output > 0 ? 1 - kept_output / output : 0;
  return result;
}

// Which numbers of experts may stay, from the rules of moe/recipes/validate.cpp: multiples of
// `step` from `least` on.
struct Staying {
  int64_t step = 1, least = 1;
  std::string why;
};

Staying staying(const RoutingOptions& routing) {
  const RoutingSpec spec = train_spec(routing), evaluated = eval_spec(routing);
  Staying s{1, spec.slots(), fmt::format("a token takes {}", spec.slots())};
  if (const auto* grouped = std::get_if<GroupedTopK>(&spec.select)) {
    // Of one group no score is asked for, unless a custom recipe says how it is made.
    const bool counts = grouped->groups > 1 || routing.recipe == kCustom;
    const int64_t top = counts ? grouped->group_top : 1,
                  chosen = (grouped->k + grouped->keep - 1) / grouped->keep;
    s.step = grouped->groups;
    s.least = grouped->groups * std::max(top, chosen);
    s.why = fmt::format(
        "a token takes {} from the best {} of {} groups, each of which keeps as many and counts by "
        "its best {}",
        grouped->k, grouped->keep, grouped->groups, top);
  }
  if (const auto* choice = std::get_if<ExpertChoice>(&spec.select)) {
    const auto* later = std::get_if<ExpertChoice>(&evaluated.select);
    const float factor = std::max(choice->factor, later != nullptr ? later->factor : 0.0f);
    s.least = static_cast<int64_t>(std::ceil(factor));
    s.why = fmt::format("a token gets {} on average", factor);
  }
  for (const std::optional<DeviceLoss>& loss : {spec.losses.device, spec.losses.communication})
    if (loss && s.step % loss->devices != 0) {
      s.step = std::lcm(s.step, loss->devices);
      s.why += fmt::format(", and a loss spreads them evenly over {} devices", loss->devices);
    }
  s.least = (s.least + s.step - 1) / s.step * s.step;
  return s;
}

void check_count(int64_t asked, int64_t experts, const Staying& s) {
  const int64_t most = (experts - 1) / s.step * s.step;
  if (most < s.least)
    fail_usage("none of the {} experts of an MoE layer can go: {}, so at least {} must stay",
               experts, s.why, s.least);
  const std::string give =
      s.least == most ? std::to_string(most)
      : s.step > 1    ? fmt::format("a multiple of {} from {} to {}", s.step, s.least, most)
                      : fmt::format("{} to {}", s.least, most);
  if (asked < 1 || asked >= experts)
    fail_usage("@experts is {}; the model has {} in each MoE layer, so give {}", asked, experts,
               give);
  if (asked < s.least || asked % s.step != 0)
    fail_usage("@experts is {}, but {}: give {}", asked, s.why, give);
}

ModelConfig pruned_config(const ModelConfig& config, const PruneOptions& o) {
  ModelConfig pruned = config;
  const RoutingSpec spec = eval_spec(config.routing);
  // Left open, the number of groups would be fitted to N, and could be another one.
  if (const auto* grouped = std::get_if<GroupedTopK>(&spec.select);
      grouped != nullptr && config.routing.recipe != kCustom &&
      (grouped->groups > 1 || !config.routing.expert_groups)) {
    pruned.routing.expert_groups = grouped->groups;
    pruned.routing.groups_kept = grouped->keep;
  }
  pruned.routing.experts = o.experts;
  validate(pruned);
  return pruned;
}

// Whether its first dimension counts the experts that a router chooses from.
bool is_by_expert(const Param& param) {
  return param.part == Part::router || param.part == Part::experts;
}

}  // namespace

const std::vector<std::string>& saliency_names() {
  static const std::vector<std::string> names = {"output", "mean", "frequency"};
  return names;
}

void check_prune(const ModelConfig& config, const PruneOptions& o) {
  if (config.moe_layer_count() == 0)
    fail_usage("the model is dense: it has no experts that could go");
  if (config.by_neuron())
    fail_usage(
        "the experts of recipe '{}' are single neurons; carve the dense model with another @budget "
        "instead",
        config.routing.recipe);
  if (config.routing.zero_experts > 0)
    fail_usage(
        "the model has zero experts, whose share of the choices would grow with every expert that "
        "goes; pruning it is not supported");
  if (std::holds_alternative<HashChoice>(eval_spec(config.routing).select))
    fail_usage(
        "recipe '{}' sends each token id to experts of fixed numbers; without some of them all "
        "others would move",
        config.routing.recipe);
  if (!config.table_layers.empty())
    fail_usage(
        "in {} layers a table says the experts of each token id by their numbers; without some of "
        "them it would name others",
        config.table_layers.size());
  check_count(o.experts, config.routing.experts, staying(config.routing));
  if (o.window < 1 || o.windows < 1)
    fail_usage("{} windows of {} tokens are no calibration; both must be at least 1", o.windows,
               o.window);
  pruned_config(config, o);
}

Pruned prune(Model& model, std::span<const int32_t> ids, const PruneOptions& o) {
  const ModelConfig& config = model.config();
  check_prune(config, o);
  if (static_cast<int64_t>(ids.size()) < o.windows * o.window)
    fail("the calibration text has {} tokens, {} of {} are needed: {}", ids.size(),
         counted(o.windows, "window"), o.window, o.windows * o.window);
  const std::vector<Tally> seen = tallies(model, ids, o);
  const RoutingSpec spec = eval_spec(config.routing);
  Pruned result;
  std::vector<const PrunedLayer*> of_layer(static_cast<size_t>(config.layers));
  for (int64_t i = 0; i < config.layers; ++i)
    if (config.is_moe(i)) result.layers.push_back(judge(i, seen[static_cast<size_t>(i)], spec, o));
  for (const PrunedLayer& layer : result.layers)
    of_layer[static_cast<size_t>(layer.layer)] = &layer;

  Assembly assembly(pruned_config(config, o));
  const std::string kept = fmt::format("{} of {} kept", o.experts, config.routing.experts);
  for (Param* to : assembly.model().params()) {
    const Param& from = source_of(*to, model);
    if (!is_by_expert(from)) {
      assembly.view(*to, from);
      continue;
    }
    const std::vector<int64_t>& chosen = of_layer[static_cast<size_t>(from.layer)]->kept;
    const int64_t each = from.value.numel() / from.value.shape[0];
    if (from.value.rank == 3) {
      std::vector<Tensor> matrices;
      for (const int64_t e : chosen) matrices.push_back(from.expert(e));
      assembly.bank(*to, matrices, kept, static_cast<int64_t>(chosen.size()) * each);
    } else {
      assembly.rows(*to, from, chosen, kept);
    }
    assembly.drop(words_of(from.part), "dropped", (config.routing.experts - o.experts) * each);
  }
  result.model = assembly.finish(numbers_of(model));
  result.parts = assembly.account();
  return result;
}

}  // namespace moe
