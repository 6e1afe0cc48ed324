#include "analyze/data/league_claims.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

namespace moe {
namespace {

constexpr std::string_view kScale = "about models and machines far beyond one like this";

// A paper's own comparison, at its own size and on its own text. What it holds against another
// recipe is held here against that recipe's row.
constexpr auto kClaims = std::to_array<Claim>({
    {"shazeer", "a sparse layer is better than a dense network of the same work for a token",
     "Shazeer et al. 2017, arXiv 1701.06538, section 5.1", ClaimTest::lower, "dense"},
    {"gshard", "quality grows with the number of experts, to 2,048 of them, at sublinear cost",
     "Lepikhin et al. 2020, arXiv 2006.16668, section 4", ClaimTest::none, "", 0, kScale},
    {"switch", "one expert for a token suffices: no worse than top-2",
     "Fedus et al. 2021, arXiv 2101.03961, sections 2.1 and 2.2", ClaimTest::no_higher, "gshard"},
    {"glam", "better than GPT-3 with a third of the energy of its training",
     "Du et al. 2021, arXiv 2112.06905, abstract", ClaimTest::none, "", 0, kScale},
    {"st-moe", "top-2 at a capacity factor of 1.25 is better than top-1",
     "Zoph et al. 2022, arXiv 2202.08906, section 5", ClaimTest::lower, "switch"},
    {"st-moe", "the router z-loss keeps training stable and costs no quality",
     "Zoph et al. 2022, arXiv 2202.08906, section 3", ClaimTest::none, "", 0,
     "models of this size do not become unstable"},
    {"expert-choice", "reaches the loss of top-2 (GShard) in less than half of the steps",
     "Zhou et al. 2022, arXiv 2202.09368, abstract and section 4.2", ClaimTest::steps, "gshard",
     0.5},
    {"nanomoe", "an MoE is better than the dense model at the same active work",
     "github wolfecameron/nanoMoE", ClaimTest::lower, "dense"},
    {"deepseek-moe", "finer experts and shared ones are better than GShard's at equal cost",
     "Dai et al. 2024, arXiv 2401.06066, section 4.2", ClaimTest::lower, "gshard"},
    {"deepseek-moe", "finer experts and shared ones are better than Switch's at equal cost",
     "Dai et al. 2024, arXiv 2401.06066, section 4.2", ClaimTest::lower, "switch"},
    {"deepseek-v3", "a selection bias balances the load and costs less quality than a loss does",
     "Wang et al. 2024, arXiv 2408.15664", ClaimTest::none, "", 0,
     "no other row differs in the balancing alone; enter one"},
    {"olmoe", "reaches the dense model's loss with a third of the tokens",
     "Muennighoff et al. 2024, arXiv 2409.02060, section 4.1", ClaimTest::steps, "dense", 1.0 / 3},
    {"olmoe", "tokens that choose experts are better than experts that choose tokens",
     "Muennighoff et al. 2024, arXiv 2409.02060, section 4.1", ClaimTest::lower, "expert-choice"},
    {"mixtral", "as good as Llama 2 70B with a fifth of the active parameters",
     "Jiang et al. 2024, arXiv 2401.04088, section 3", ClaimTest::none, "", 0, kScale},
    {"sparsemixer", "its gradient trains routers better than GShard's, late in training",
     "Liu et al. 2024, arXiv 2409.12136, section 2", ClaimTest::none, "", 0, kScale},
    {"qwen3-moe", "balance over the whole batch is better than over a micro-batch",
     "Qiu et al. 2025, arXiv 2501.11873", ClaimTest::none, "", 0,
     "no other row differs in that alone; enter one, and accumulate micro-batches"},
    {"hash", "a fixed table is as good as a learned top-1 router",
     "Roller et al. 2021, arXiv 2106.04426, abstract and section 5", ClaimTest::no_higher,
     "switch"},
});

std::string losses_of(const LeagueRow& own, const LeagueRow& other) {
  return fmt::format("{:.4f} against {}'s {:.4f}", own.loss, other.arm.name, other.loss);
}

// Whether a difference in the loss is one: below, within or above what seeds do.
Verdict judge_loss(const Claim& claim, const League& league, const LeagueRow& own,
                   const LeagueRow& other) {
  const std::optional<double> noise = noise_of(league, own, other);
  std::string figure = losses_of(own, other);
  if (!noise)
    return {&claim, Outcome::undecided,
            figure + "; one seed each, so nobody knows what chance does"};
  figure += fmt::format(", seeds differ by {:.4f}", *noise);
  const double above = own.loss - other.loss;
  // Seeds that differ much make nobody as good: what lies within them is open.
  if (claim.test == ClaimTest::no_higher && above <= 0) return {&claim, Outcome::yes, figure};
  return {&claim,
          std::abs(above) <= *noise ? Outcome::undecided
          : above < 0               ? Outcome::yes
                                    : Outcome::no,
          figure};
}

Verdict judge_steps(const Claim& claim, const LeagueRow& own, const LeagueRow& other) {
  const std::optional<double> share = share_to_reach(own.curve, other.loss);
  if (!share) return {&claim, Outcome::no, fmt::format("never reached: {}", losses_of(own, other))};
  // Evaluations are points: a run that is there at its first one may have been before.
  const double first =
      static_cast<double>(own.curve.front().first) / static_cast<double>(own.curve.back().first);
  if (*share > claim.share && *share <= first)
    return {&claim, Outcome::undecided,
            fmt::format("reached before the first evaluation, at {:.2f} of the steps", first)};
  return {&claim, *share <= claim.share ? Outcome::yes : Outcome::no,
          fmt::format("reached after {:.3f} of the steps; {:.3g} is claimed", *share, claim.share)};
}

// An arm of its own time is not the recipe on equal terms, whatever its name.
const LeagueRow* matched_row(const League& league, std::string_view arm) {
  const LeagueRow* row = find_row(league, arm);
  return row != nullptr && row->arm.time > 0 ? nullptr : row;
}

Verdict judge_claim(const Claim& claim, const League& league) {
  if (claim.test == ClaimTest::none)
    return {&claim, Outcome::untestable, std::string(claim.why_not)};
  const LeagueRow *own = matched_row(league, claim.arm), *other = matched_row(league, claim.other);
  for (const auto& [row, name] : {std::pair(own, claim.arm), std::pair(other, claim.other)})
    if (row == nullptr)
      return {&claim, Outcome::untestable, fmt::format("{} has no run that came to its end", name)};
  for (const LeagueRow* row : {own, other})
    if (!row->arm.not_causal.empty())
      return {&claim, Outcome::untestable,
              fmt::format("{}'s loss is falsely low: it is not causal", row->arm.name)};
  for (const LeagueRow* row : {own, other})
    if (row->at_end)
      return {&claim, Outcome::undecided,
              fmt::format("{}; {}'s best rate is at the end of those tried",
                          losses_of(*own, *other), row->arm.name)};
  return claim.test == ClaimTest::steps ? judge_steps(claim, *own, *other)
                                        : judge_loss(claim, league, *own, *other);
}

template <class T>
Json league_value(const std::optional<T>& x) {
  return x ? Json(*x) : Json();
}

Json league_row_json(const LeagueRow& row) {
  const bool ended = !row.losses.empty();
  Json rates = Json::array();
  for (const auto& [lr, loss] : row.rates)
    rates.push_back({{"lr", lr}, {"loss", std::isfinite(loss) ? Json(loss) : Json()}});
  Json out = {{"arm", row.arm.name},
              {"recipe", row.arm.recipe},
              {"source", row.arm.source},
              {"not_causal", row.arm.not_causal.empty() ? Json() : Json(row.arm.not_causal)},
              {"experts", row.arm.experts},
              {"top_k", row.arm.top_k},
              {"expert_width", row.arm.expert_width},
              {"shared_experts", row.arm.shared_experts},
              {"shared_width", row.arm.shared_width},
              {"parameters", row.arm.parameters},
              {"active_parameters", row.arm.active_parameters},
              {"rates", rates},
              {"diverged", row.diverged},
              {"losses", row.losses},
              {"loss_change", league_value(row.loss_change)},
              {"over_twin", league_value(row.over_twin)},
              {"run_times", league_value(row.run_times)},
              {"time", row.arm.time > 0 ? Json(row.arm.time) : Json()},
              {"sets", row.arm.own},
              {"steps", row.arm.steps},
              {"step_ms", row.arm.clock ? Json(row.arm.clock->arm_ms) : Json()},
              {"twin_step_ms", row.arm.clock ? Json(row.arm.clock->twin_ms) : Json()},
              {"reaches_twin", league_value(row.reaches_twin)},
              {"curve", row.curve}};
  out["lr"] = ended ? Json(row.lr) : Json();
  out["at_end"] = ended ? Json(row.at_end) : Json();
  for (const auto& [key, value] :
       {std::pair("loss", row.loss), std::pair("range", row.range),
        std::pair("seconds", row.seconds), std::pair("dropped", row.dropped),
        std::pair("step_max_vio", row.max_vio)})
    out[key] = ended ? Json(value) : Json();
  out["routing"] = Json();
  if (row.routing)
    out["routing"] = {{"max_vio", row.routing->max_vio},
                      {"effective_experts", row.routing->effective_experts},
                      {"dead", row.routing->dead},
                      {"experts", row.routing->experts},
                      {"domain", league_value(row.routing->domain)},
                      {"vocabulary_input", row.routing->vocabulary}};
  return out;
}

}  // namespace

std::span<const Claim> league_claims() { return kClaims; }

std::string_view name_of(Outcome outcome) {
  constexpr std::array kNames = {"held", "not held", "undecided", "not testable here"};
  return kNames.at(static_cast<size_t>(outcome));
}

std::vector<Verdict> judge(const League& league) {
  std::vector<Verdict> verdicts;
  for (const Claim& claim : kClaims)
    for (const LeagueRow& row : league.rows)
      if (row.arm.name == claim.arm && row.arm.time == 0)
        verdicts.push_back(judge_claim(claim, league));
  return verdicts;
}

Json to_json(const League& league) {
  const LeagueMatch& m = league.match;
  Json rows = Json::array(), claims = Json::array();
  for (const LeagueRow& row : league.rows) rows.push_back(league_row_json(row));
  for (const Verdict& v : judge(league))
    claims.push_back({{"arm", v.claim->arm},
                      {"claim", v.claim->claim},
                      {"source", v.claim->source},
                      {"against", v.claim->other.empty() ? Json() : Json(v.claim->other)},
                      {"verdict", name_of(v.outcome)},
                      {"figure", v.figure}});
  return {{"match",
           {{"shape", m.shape},
            {"text", m.text},
            {"held_out", m.held_out},
            {"tokenizer", m.tokenizer},
            {"schedule", m.schedule},
            {"machine", m.machine},
            {"active_width", m.active_width},
            {"steps", m.steps},
            {"step_tokens", m.step_tokens},
            {"rates", m.rates},
            {"seeds", m.seeds},
            {"finalists", m.finalists},
            {"minutes", m.minutes > 0 ? Json(m.minutes) : Json()}}},
          {"done", league.done},
          {"runs", league.runs},
          {"rows", rows},
          {"waiting", league.waiting},
          {"claims", claims}};
}

}  // namespace moe
