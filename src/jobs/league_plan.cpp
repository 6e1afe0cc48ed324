#include "jobs/league_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"

namespace moe {
namespace {

int64_t nearest_power_of_two(int64_t n) {
  return int64_t{1} << std::lround(std::log2(static_cast<double>(std::max<int64_t>(n, 1))));
}

// What a rate of an arm must beat, and where it stands among them.
using Losses = std::map<double, double>;

Losses losses_of(const std::string& arm, uint64_t seed, const std::map<LeagueKey, double>& losses) {
  Losses own;
  for (const auto& [key, loss] : losses)
    if (key.arm == arm && key.seed == seed) own[key.lr] = loss;
  return own;
}

Losses::const_iterator best_of(const Losses& losses) {
  return std::min_element(losses.begin(), losses.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; });
}

// Those around the middle, the middle first.
std::vector<double> asked_rates(const LeagueRules& rules) {
  std::vector<double> rates = {rules.lr};
  for (int64_t i = 1; std::ssize(rates) < rules.rates; ++i)
    for (const double exponent : {-static_cast<double>(i), static_cast<double>(i)})
      if (std::ssize(rates) < rules.rates)
        rates.push_back(rules.lr * std::pow(kRateStep, exponent));
  return rates;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

struct Standing {
  std::string arm;
  double lr = 0, loss = 0;
};

// Arms that have the other seeds run too, with their best rates.
std::vector<Standing> finalists_of(const LeagueRules& rules, const std::vector<std::string>& arms,
                                   const std::map<LeagueKey, double>& losses) {
  std::vector<Standing> twin, others;
  for (const std::string& arm : arms) {
    const Losses own = losses_of(arm, rules.first_seed, losses);
    const auto best = best_of(own);
    if (best == own.end() || !std::isfinite(best->second)) continue;
    (arm == kTwin ? twin : others).push_back({arm, best->first, best->second});
  }
  std::stable_sort(others.begin(), others.end(),
                   [](const Standing& a, const Standing& b) { return a.loss < b.loss; });
  if (std::ssize(others) > rules.finalists) others.resize(static_cast<size_t>(rules.finalists));
  twin.insert(twin.end(), others.begin(), others.end());
  return twin;
}

}  // namespace

MatchedArm match_arm(const std::string& name, const LeagueEntry& entry, const WantedModel& shape,
                     int64_t times) {
  const Recipe& recipe = chosen_recipe(entry.wanted.routing);
  MatchedArm out{
      .name = name, .wanted = entry.wanted, .time = entry.time, .train = entry.train, .sets = {}};
  FieldList training = own_training_fields(out.train);
  for (const std::string& field : entry.sets)
    if (training.find(field) != nullptr) out.sets.push_back(field);
  WantedModel& w = out.wanted;
  WantedModel shared_by_all = shape;
  FieldList of_arm = shape_fields(w);
  for (const Field& from : shape_fields(shared_by_all))
    if (Json value = from.get(); !value.is_null() && !contains(entry.sets, from.name))
      of_arm.at(from.name).set(value);
  if (contains(entry.sets, "width") && !contains(entry.sets, "dense_width"))
    w.dense_width = *shape.dense_width * w.width / shape.width;
  const int64_t width = w.dense_width.value();
  w.routing.recipe = recipe.name;
  if (!recipe.has_router()) return out;
  const int64_t shared = w.shared_experts.value_or(recipe.shared.experts),
                widths = recipe.shared.experts > 0 ? recipe.shared.widths : 1;
  const int64_t in_units = shared * widths;
  if (!w.routing.top_k && recipe.top_k_is_fixed) w.routing.top_k = recipe.default_top_k;
  if (!w.routing.top_k)
    w.routing.top_k =
        std::max<int64_t>(1, nearest_power_of_two(recipe.default_top_k + in_units) - in_units);
  const int64_t units = *w.routing.top_k + in_units;
  if (!w.expert_width && width % std::max<int64_t>(1, units) != 0)
    fail_usage(
        "{}: {} experts a token, shared ones among them, do not divide the {} units of width that "
        "work for a token in every arm; give a @dense_width that {} divides",
        name, units, width, units);
  if (!w.expert_width) w.expert_width = width / units;
  w.shared_experts = shared;
  if (shared > 0 && !w.shared_width) w.shared_width = *w.expert_width * widths;
  const int64_t active = *w.routing.top_k * *w.expert_width + shared * w.shared_width.value_or(0);
  if (active != width && entry.time == 0)
    fail_usage(
        "{}: {} experts of width {} and {} shared of width {} make {} work for a token, and {} "
        "work in every other arm; change the entry, or @dense_width",
        name, *w.routing.top_k, *w.expert_width, shared, w.shared_width.value_or(0), active, width);
  if (!w.routing.experts)
    w.routing.experts = std::max(
        *w.routing.top_k, (times * width - shared * w.shared_width.value_or(0)) / *w.expert_width);
  return out;
}

TrainOptions own_training(const MatchedArm& arm, TrainOptions options) {
  MatchedArm copy = arm;
  FieldList to = own_training_fields(options), from = own_training_fields(copy.train);
  for (const std::string& field : arm.sets) to.at(field).set(from.at(field).get());
  return options;
}

std::string own_settings(const MatchedArm& arm, const WantedModel& shape) {
  MatchedArm copy = arm;
  WantedModel others = shape;
  std::vector<std::string> said;
  const auto say = [&](const Field& field) {
    const Json value = field.get();
    said.push_back(fmt::format("{} {}", field.name,
                               value.is_string() ? value.get<std::string>() : value.dump()));
  };
  const FieldList of_league = shape_fields(others);
  for (const Field& field : shape_fields(copy.wanted))
    if (field.get() != of_league.find(field.name)->get()) say(field);
  for (const Field& field : own_training_fields(copy.train))
    if (contains(arm.sets, field.name)) say(field);
  return fmt::format("{}", fmt::join(said, ", "));
}

LeagueRules LeagueRules::of(const std::string& arm) const {
  LeagueRules own = *this;
  if (const auto found = middles.find(arm); found != middles.end()) own.lr = found->second;
  return own;
}

void validate(const LeagueRules& rules) {
  if (!(rules.lr > 0)) fail_usage("@lr is {}; it must be above 0", rules.lr);
  for (const auto& [name, value, least] :
       {std::tuple("rates", rules.rates, 1), std::tuple("seeds", rules.seeds, 1),
        std::tuple("finalists", rules.finalists, 0)})
    if (value < least || value > 1000)
      fail_usage("{} is {}; it must be at least {} and at most 1000", field(name), value, least);
}

std::optional<double> next_rate(const LeagueRules& rules, const std::map<double, double>& losses) {
  for (const double rate : asked_rates(rules))
    if (!losses.contains(rate)) return rate;
  const auto best = best_of(losses);
  if (rules.rates == 1 || std::ssize(losses) >= rules.rates + kMostMoreRates) return {};
  // Where all diverged the smallest was too large still.
  if (best == losses.begin() || !std::isfinite(best->second))
    return losses.begin()->first / kRateStep;
  if (std::next(best) == losses.end()) return best->first * kRateStep;
  return {};
}

std::optional<LeagueKey> next_run(const LeagueRules& rules, const std::vector<std::string>& arms,
                                  const std::map<LeagueKey, double>& losses) {
  for (const std::string& arm : arms)
    if (const auto lr = next_rate(rules.of(arm), losses_of(arm, rules.first_seed, losses)))
      return LeagueKey{arm, *lr, rules.first_seed};
  for (const Standing& one : finalists_of(rules, arms, losses))
    for (int64_t i = 1; i < rules.seeds; ++i) {
      const LeagueKey key{one.arm, one.lr, rules.first_seed + static_cast<uint64_t>(i)};
      if (!losses.contains(key)) return key;
    }
  return {};
}

std::vector<std::string> arms_to_run(const LeagueRules& rules, const std::vector<std::string>& arms,
                                     const std::map<LeagueKey, double>& losses) {
  std::vector<std::string> left;
  for (const std::string& arm : arms)
    if (next_rate(rules.of(arm), losses_of(arm, rules.first_seed, losses))) left.push_back(arm);
  if (!left.empty()) return left;
  for (const Standing& one : finalists_of(rules, arms, losses))
    for (int64_t i = 1; i < rules.seeds; ++i)
      if (!losses.contains({one.arm, one.lr, rules.first_seed + static_cast<uint64_t>(i)})) {
        left.push_back(one.arm);
        break;
      }
  return left;
}

int64_t planned_runs(const LeagueRules& rules, const std::vector<std::string>& arms,
                     const std::map<LeagueKey, double>& losses) {
  int64_t runs = 0, others = 0;
  bool has_twin = false;
  for (const std::string& arm : arms) {
    const Losses own = losses_of(arm, rules.first_seed, losses);
    runs += std::ssize(own);
    for (const double rate : asked_rates(rules.of(arm))) runs += !own.contains(rate);
    if (arm == kTwin) has_twin = true;
    else ++others;
  }
  return runs + (rules.seeds - 1) * (has_twin + std::min(others, rules.finalists));
}

}  // namespace moe
