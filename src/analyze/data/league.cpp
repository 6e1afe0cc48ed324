#include "analyze/data/league.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "core/order.h"

namespace moe {
namespace {

// Curves of runs with the same options have the same steps.
std::vector<std::pair<int64_t, double>> mean_curve(const std::vector<const LeagueRun*>& runs) {
  std::map<int64_t, std::pair<double, size_t>> sums;
  for (const LeagueRun* run : runs)
    for (const auto& [step, loss] : run->curve) {
      sums[step].first += loss;
      ++sums[step].second;
    }
  std::vector<std::pair<int64_t, double>> curve;
  for (const auto& [step, sum] : sums)
    if (sum.second == runs.size())
      curve.emplace_back(step, sum.first / static_cast<double>(sum.second));
  return curve;
}

// Of the runs at the best rate that came to their end.
void sum_up_row(LeagueRow& row, const std::vector<const LeagueRun*>& runs) {
  std::vector<double> seconds;
  const auto n = static_cast<double>(runs.size());
  for (const LeagueRun* run : runs) {
    row.losses.push_back(run->loss);
    row.loss += run->loss / n;
    row.dropped += run->dropped / n;
    row.max_vio += run->max_vio / n;
    seconds.push_back(run->seconds);
  }
  const auto [low, high] = std::minmax_element(row.losses.begin(), row.losses.end());
  row.range = *high - *low;
  row.seconds = middle_of(seconds);
  row.routing = runs.front()->routing;
  row.curve = mean_curve(runs);
}

// A row with no losses where no run of the first seed came to its end.
LeagueRow make_row(const LeagueArm& arm, const std::vector<const LeagueRun*>& runs,
                   uint64_t first_seed) {
  LeagueRow row;
  row.arm = arm;
  if (arm.clock) row.over_twin = arm.clock->times;
  std::map<double, double> rates;
  for (const LeagueRun* run : runs) {
    row.diverged += !run->diverged.empty();
    if (run->seed == first_seed) rates[run->lr] = loss_of(*run);
  }
  row.rates.assign(rates.begin(), rates.end());
  const auto best =
      std::min_element(row.rates.begin(), row.rates.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (best == row.rates.end() || !std::isfinite(best->second)) return row;
  row.lr = best->first;
  row.at_end = best == row.rates.begin() || std::next(best) == row.rates.end();
  std::vector<const LeagueRun*> at_best;
  for (const LeagueRun* run : runs)
    if (run->lr == row.lr && run->diverged.empty()) at_best.push_back(run);
  std::sort(at_best.begin(), at_best.end(), [&](const LeagueRun* a, const LeagueRun* b) {
    return std::pair(a->seed != first_seed, a->seed) < std::pair(b->seed != first_seed, b->seed);
  });
  sum_up_row(row, at_best);
  return row;
}

}  // namespace

double loss_of(const LeagueRun& run) {
  return run.diverged.empty() ? run.loss : std::numeric_limits<double>::infinity();
}

std::optional<double> share_to_reach(const std::vector<std::pair<int64_t, double>>& curve,
                                     double loss) {
  if (curve.empty()) return {};
  const auto last = static_cast<double>(curve.back().first);
  for (size_t i = 0; i < curve.size(); ++i) {
    if (curve[i].second > loss) continue;
    const auto step = static_cast<double>(curve[i].first);
    if (i == 0) return step / last;
    const auto before = static_cast<double>(curve[i - 1].first);
    const double fallen = curve[i - 1].second - curve[i].second;
    return (before + (step - before) * (curve[i - 1].second - loss) / fallen) / last;
  }
  return {};
}

League make_league(LeagueMatch match, const std::vector<LeagueArm>& arms,
                   const std::vector<LeagueRun>& runs, uint64_t first_seed) {
  League league{.match = std::move(match), .rows = {}, .waiting = {}};
  for (const LeagueArm& arm : arms) {
    std::vector<const LeagueRun*> own;
    for (const LeagueRun& run : runs)
      if (run.arm == arm.name && run.steps == arm.steps) own.push_back(&run);
    league.runs += std::ssize(own);
    if (own.empty()) league.waiting.push_back(arm.name);
    else league.rows.push_back(make_row(arm, own, first_seed));
  }
  for (LeagueRow& row : league.rows)
    if (row.over_twin && league.match.steps > 0)
      row.run_times = *row.over_twin * static_cast<double>(row.arm.steps) /
                      static_cast<double>(league.match.steps);
  std::stable_sort(league.rows.begin(), league.rows.end(),
                   [](const LeagueRow& a, const LeagueRow& b) {
                     if (a.losses.empty() || b.losses.empty())
                       return !a.losses.empty() && b.losses.empty();
                     return a.loss < b.loss;
                   });
  const LeagueRow* twin = find_row(league, kTwin);
  if (twin == nullptr) return league;
  const double twin_loss = twin->loss;
  for (LeagueRow& row : league.rows) {
    if (row.losses.empty()) continue;
    row.loss_change = row.loss - twin_loss;
    row.reaches_twin = share_to_reach(row.curve, twin_loss);
  }
  return league;
}

const LeagueRow* find_row(const League& league, std::string_view arm) {
  for (const LeagueRow& row : league.rows)
    if (row.arm.name == arm && !row.losses.empty()) return &row;
  return nullptr;
}

std::optional<double> noise_of(const League& league, const LeagueRow& a, const LeagueRow& b) {
  const auto several = [](const LeagueRow& row) { return row.losses.size() > 1; };
  if (several(a) && several(b)) return std::max(a.range, b.range);
  std::optional<double> widest;
  for (const LeagueRow& row : league.rows)
    if (several(row)) widest = std::max(widest.value_or(0), row.range);
  return widest;
}

namespace {

Json to_json(const LeagueRouting& r) {
  return {{"max_vio", r.max_vio},
          {"effective_experts", r.effective_experts},
          {"dead", r.dead},
          {"experts", r.experts},
          {"domain", r.domain ? Json(*r.domain) : Json()},
          {"vocabulary_input", r.vocabulary}};
}

LeagueRouting read_league_routing(const JsonReader& r) {
  LeagueRouting out;
  out.max_vio = r.get<double>("max_vio");
  out.effective_experts = r.get<double>("effective_experts");
  out.dead = r.get<int64_t>("dead");
  out.experts = r.get<int64_t>("experts");
  if (r.has("domain")) out.domain = r.get<double>("domain");
  out.vocabulary = r.get<double>("vocabulary_input");
  return out;
}

}  // namespace

Json to_json(const LeagueRun& r) {
  return {{"arm", r.arm},
          {"lr", r.lr},
          {"seed", r.seed},
          {"steps", r.steps},
          {"diverged", r.diverged.empty() ? Json() : Json(r.diverged)},
          {"loss", r.diverged.empty() ? Json(r.loss) : Json()},
          {"seconds", r.seconds},
          {"curve", r.curve},
          {"dropped", r.dropped},
          {"max_vio", r.max_vio},
          {"routing", r.routing ? to_json(*r.routing) : Json()}};
}

LeagueRun read_league_run(const Json& json, const std::string& where) {
  const JsonReader r(json, where);
  LeagueRun out;
  out.arm = r.get<std::string>("arm");
  out.lr = r.get<double>("lr");
  out.seed = static_cast<uint64_t>(r.get<int64_t>("seed"));
  out.steps = r.get<int64_t>("steps");
  out.diverged = r.get<std::string>("diverged", "");
  out.loss = r.get<double>("loss", 0);
  out.seconds = r.get<double>("seconds");
  for (const Json& point : r.value("curve"))
    out.curve.emplace_back(point.at(0).get<int64_t>(), point.at(1).get<double>());
  out.dropped = r.get<double>("dropped");
  out.max_vio = r.get<double>("max_vio");
  if (r.has("routing")) out.routing = read_league_routing(r.object("routing"));
  return out;
}

}  // namespace moe
