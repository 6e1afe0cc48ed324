// Which of the selections of ops/routing.h each select stage is.
#include "moe/stages/select.h"

#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "moe/stages/stage_math.h"
#include "ops/routing.h"
#include "tensor/on_host.h"

namespace moe {

int64_t slots_per_token(const SelectStage& stage, int64_t experts) {
  return std::visit(Overloaded{
                        [&](const ExpertChoice&) { return experts; },
                        [&](const ThresholdChoice&) { return experts; },
                        [](const auto& by_token) { return by_token.k; },
                    },
                    stage);
}

void set_top_k(SelectStage& stage, int64_t k) {
  std::visit(Overloaded{
                 [&](ExpertChoice& c) { c.factor = static_cast<float>(k); },
                 [](ThresholdChoice&) {},
                 [&](auto& by_token) { by_token.k = k; },
             },
             stage);
}

const SelectionBias* selection_bias(const SelectStage& stage) {
  const auto of = [](const auto& c) { return c.bias ? &*c.bias : nullptr; };
  if (const auto* top = std::get_if<TopK>(&stage)) return of(*top);
  if (const auto* grouped = std::get_if<GroupedTopK>(&stage)) return of(*grouped);
  return nullptr;
}

bool needs_logits(const SelectStage& stage) { return !std::holds_alternative<HashChoice>(stage); }

bool experts_choose(const SelectStage& stage) {
  return std::holds_alternative<ExpertChoice>(stage) ||
         std::holds_alternative<ThresholdChoice>(stage);
}

int64_t tokens_per_expert(const ExpertChoice& stage, int64_t tokens, int64_t experts) {
  // The factor as the decimal that was asked for: 0.7f is a little less than 0.7, and 0.7 of 10
  // tokens are 7.
  const double wanted =
      shortest_decimal(stage.factor) * static_cast<double>(tokens) / static_cast<double>(experts);
  return std::clamp(static_cast<int64_t>(std::floor(wanted)), int64_t{1},
                    std::max(tokens, int64_t{1}));
}

void select_forward(Run& run, Routing& r, const Pass& pass, const SelectStage& stage) {
  const std::span<const int32_t> ids = pass.batch.ids;
  const int64_t tokens = needs_logits(stage) ? r.scores.rows() : pass.batch.tokens(),
                slots = slots_per_token(stage, r.experts);
  r.choice = run.saved.alloc(DType::i32, {tokens, slots});
  r.selected = run.saved.alloc(DType::i32, {tokens, slots});
  ops::select_all(run, r.selected);  // which is all of it but where experts choose
  std::visit(Overloaded{
                 [&](const TopK& top) {
                   if (top.sorted) ops::top_experts(run, r.choice, r.scores, r.bias);
                   else ops::top_set(run, r.choice, r.scores);
                 },
                 [&](const GroupedTopK& g) {
                   const ops::ExpertGroups groups{g.groups, g.keep, g.group_top};
                   ops::top_experts(run, r.choice, r.scores, r.bias, &groups);
                 },
                 [&](const NearBestChoice& near) {
                   ops::top_experts(run, r.choice, r.scores, {});
                   if (near.draw && !r.key.empty())
                     ops::draw_near_best(run, r.choice, r.scores, near.eps, r.key.fold(3));
                 },
                 [&](const ExpertChoice& by_expert) {
                   r.scopes = scope_bounds(by_expert.scope, pass.batch.bounds, tokens);
                   std::vector<int64_t> take;
                   for (size_t i = 0; i + 1 < r.scopes.size(); ++i)
                     take.push_back(
                         tokens_per_expert(by_expert, r.scopes[i + 1] - r.scopes[i], r.experts));
                   r.cutoff = run.saved.alloc(DType::f32, {r.experts});
                   ops::top_experts(run, r.choice, r.scores, {});
                   ops::top_tokens(run, r.selected, r.cutoff, r.choice, r.scores, r.scopes, take);
                 },
                 [&](const ThresholdChoice&) {
                   ops::top_experts(run, r.choice, r.scores, {});
                   if (r.threshold.empty())
                     fail_usage(
                         "a selection by threshold needs one threshold for each expert, and none "
                         "is given; they come from training by expert choice");
                   ops::reach_threshold(run, r.selected, r.choice, r.scores, r.threshold);
                 },
                 [&](const HashChoice& hash) {
                   for (size_t n = 0; n < ids.size(); ++n)
                     if (ids[n] < 0)
                       fail("hash routing: token {} has the id {}; ids begin at 0", n, ids[n]);
                   const RngKey seed = RngKey::from_seed(static_cast<uint64_t>(hash.seed));
                   if (hash.map == HashChoice::Map::modulo)
                     ops::count_on_from_ids(run, r.choice, ids, r.experts);
                   else ops::shuffle_by_ids(run, r.choice, ids, r.experts, seed);
                 },
             },
             stage);
}

void second_forward(Run& run, Tensor selected, Tensor w, const SecondStage& stage, RngKey key) {
  if (std::holds_alternative<KeepSecond>(stage)) return;
  if (w.cols() != 2)
    fail_usage(
        "a policy for the second choice needs two choices a token, not {}; use top-k 2 or keep "
        "every choice",
        w.cols());
  const RngKey draws = key.fold(1);
  OnHost host(run);
  w = host.read(w), selected = host.write(selected);
  each_token(run, w.rows(), [&](int64_t n) {
    const float first = w.row<float>(n)[0], second = w.row<float>(n)[1];
    const bool keep = std::visit(
        Overloaded{
            [](KeepSecond) { return true; },
            [&](const ThresholdSecond& t) { return second >= t.least * (t.relative ? first : 1); },
            [&](const RandomSecond& r) {
              return key.empty() || uniform(draws, static_cast<uint64_t>(n)) * r.full < second;
            },
        },
        stage);
    if (!keep) selected.row<int32_t>(n)[1] = 0;
  });
}

}  // namespace moe
