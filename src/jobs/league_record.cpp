#include "jobs/league_record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"

namespace moe {
namespace {

namespace fs = std::filesystem;

constexpr const char *kMatch = "/match.json", *kResult = "/result.json", *kClock = "/clock.json";

std::string shown(const Json& value) {
  return value.is_null()     ? "not given"
         : value.is_string() ? value.get<std::string>()
                             : value.dump();
}

// Read into a copy, so that both are spelled alike: 1 and 1.0, an absent field and its default.
Json record_of(const Json& match, const std::string& where) {
  LeagueOptions recorded;
  FieldList list = match_fields(recorded);
  read_record(list, match, where);
  return to_json(list);
}

Json model_json(const MatchedArm& arm) {
  MatchedArm copy = arm;
  return to_json(fields(copy.wanted));
}

Json training_json(const MatchedArm& arm) {
  MatchedArm copy = arm;
  const FieldList list = own_training_fields(copy.train);
  Json out = Json::object();
  for (const std::string& name : arm.sets) out[name] = list.find(name)->get();
  return out;
}

// All of it by the names of its fields.
Json arm_json(const MatchedArm& arm) {
  Json out = model_json(arm);
  out.update(training_json(arm));
  out["time"] = arm.time > 0 ? Json(arm.time) : Json();
  return out;
}

}  // namespace

FieldList match_fields(LeagueOptions& o) {
  FieldList list, setup = fields(o.setup), train = fields(o.setup.train);
  list.add(setup.take({"tokenizer"}));
  list.add(shape_fields(o.setup.model));
  FieldList training = train.in_group("Training");
  training.take({"threads", "expert_parallel", "replans"});
  list.add(std::move(training));
  list.add(train.take({"minutes", "hold_out", "mix"}));
  list.add("times", o.times, "");
  list.add("data", o.data, "");
  list.add("eval_data", o.eval_data, "");
  list.add("seeds", o.seeds, "");
  list.add("rates", o.rates, "");
  list.add("finalists", o.finalists, "");
  list.add("keep_models", o.keep_models, "");
  return list;
}

bool holds_league(const std::string& folder) { return fs::exists(folder + kMatch); }

std::vector<MatchedArm> take_record(LeagueOptions& o, const Given& given) {
  // More of these is a longer league, not another one; the text is compared by what it holds.
  constexpr std::array kOpen = {"seeds", "rates", "finalists", "data", "eval_data", "keep_models"};
  const std::string path = o.out + kMatch;
  const Json file = read_json(path);
  const JsonReader in(file, path);
  const Json recorded = record_of(in.value("match"), path);
  const bool fitted = recorded.at("minutes").get<double>() > 0;
  std::vector<std::string> changes;
  FieldList list = match_fields(o);
  Json missing = Json::object();
  for (Field& field : list) {
    const Json& was = recorded.at(field.name);
    // The steps and the warm-up of a preset or a file gave way to the minutes.
    const bool of_minutes =
        fitted && (field.name == "steps" || field.name == "warmup") && !given.by_caller(field.name);
    if (of_minutes) {
      field.set(was);
      continue;
    }
    if (!given.has(field.name)) {
      if (!was.is_null()) missing[field.name] = was;
      continue;
    }
    if (const Json now = field.get();
        now != was && std::find(kOpen.begin(), kOpen.end(), field.name) == kOpen.end())
      changes.push_back(
          fmt::format("{} was {} and is now {}", moe::field(field.name), shown(was), shown(now)));
  }
  if (!changes.empty())
    fail_usage(
        "{} holds a league of other rules: {}; name another folder with @out, or leave it out",
        o.out, fmt::join(changes, ", "));
  read_record(list, missing, path);
  std::vector<MatchedArm> arms;
  for (const JsonReader& one : in.objects("arms")) {
    MatchedArm& arm = arms.emplace_back();
    arm.name = one.get<std::string>("name");
    FieldList of_arm = fields(arm.wanted);
    read_record(of_arm, one.value("model"), path);
    arm.time = one.get<double>("time", 0);
    if (!one.has("train")) continue;
    FieldList of_training = own_training_fields(arm.train);
    const Json train = one.value("train");
    read_record(of_training, train, path);
    for (const auto& [name, value] : train.items()) arm.sets.push_back(name);
  }
  return arms;
}

void join(std::vector<MatchedArm>& known, const std::vector<MatchedArm>& arms) {
  for (const MatchedArm& arm : arms) {
    const auto same = std::find_if(known.begin(), known.end(),
                                   [&](const MatchedArm& one) { return one.name == arm.name; });
    if (same == known.end()) {
      known.push_back(arm);
      continue;
    }
    Json was = arm_json(*same), now = arm_json(arm);
    for (const auto& [name, value] : now.items()) was.emplace(name, Json());
    for (const auto& [name, value] : was.items())
      if (now.value(name, Json()) != value)
        fail_usage(
            "the league has an arm '{}' already, whose {} was {} and is now {}; give the entry "
            "another name",
            arm.name, field(name), shown(value), shown(now.value(name, Json())));
  }
}

void check_text(const std::string& folder, const LeagueText& text) {
  if (!holds_league(folder)) return;
  const Json file = read_json(folder + kMatch);
  const JsonReader in(file, folder + kMatch);
  for (const auto& [name, key, now] :
       {std::tuple("data", "text", text.data), std::tuple("eval_data", "held_out", text.held_out)})
    if (in.get<std::string>(key) != now)
      fail_usage(
          "the text of {} is another one than that of the runs in {}; name the same, or another "
          "folder with @out",
          field(name), folder);
}

void write_record(LeagueOptions& o, const std::vector<MatchedArm>& arms, const LeagueText& text) {
  Json out = {{"match", to_json(match_fields(o))},
              {"text", text.data},
              {"held_out", text.held_out},
              {"arms", Json::array()}};
  for (const MatchedArm& arm : arms) {
    Json one = {{"name", arm.name}, {"model", model_json(arm)}};
    if (arm.time > 0) one["time"] = arm.time, one["train"] = training_json(arm);
    out["arms"].push_back(std::move(one));
  }
  write_atomically(o.out + kMatch, out.dump(1) + "\n");
}

std::string run_folder(const std::string& out, const LeagueKey& key) {
  return fmt::format("{}/runs/{}/lr{:.4g}-seed{}", out, key.arm, key.lr, key.seed);
}

std::vector<LeagueRun> read_runs(const std::string& out, const std::vector<MatchedArm>& arms) {
  std::vector<LeagueRun> runs;
  for (const MatchedArm& arm : arms) {
    const std::string folder = out + "/runs/" + arm.name;
    if (!fs::is_directory(folder)) continue;
    std::vector<std::string> results;
    for (const auto& entry : fs::directory_iterator(folder))
      if (fs::exists(entry.path().string() + kResult))
        results.push_back(entry.path().string() + kResult);
    std::sort(results.begin(), results.end());
    for (const std::string& path : results) runs.push_back(read_league_run(read_json(path), path));
  }
  return runs;
}

std::optional<LeagueClock> read_clock(const std::string& out, const std::string& arm) {
  const std::string path = out + "/runs/" + arm + kClock;
  if (!fs::exists(path)) return {};
  const Json file = read_json(path);
  const JsonReader in(file, path);
  const double arm_ms = in.get<double>("arm_ms"), twin_ms = in.get<double>("twin_ms");
  return LeagueClock{arm_ms, twin_ms, in.get<double>("times", arm_ms / twin_ms)};
}

void write_clock(const std::string& out, const std::string& arm, const LeagueClock& clock) {
  const std::string folder = out + "/runs/" + arm;
  fs::create_directories(folder);
  const Json file = {{"arm_ms", clock.arm_ms}, {"twin_ms", clock.twin_ms}, {"times", clock.times}};
  write_atomically(folder + kClock, file.dump() + "\n");
}

void write_run(const std::string& folder, const LeagueRun& run) {
  write_atomically(folder + kResult, to_json(run).dump() + "\n");
}

}  // namespace moe
