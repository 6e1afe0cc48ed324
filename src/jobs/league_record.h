// What a league keeps of itself in OUT/match.json, so that it can go on: what all runs have alike,
// and each arm's model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "jobs/league.h"

namespace moe {

// Of text that is there: its length and a hash.
struct LeagueText {
  std::string data, held_out;
};

// Of what is alike; views `options`.
FieldList match_fields(LeagueOptions& options);

bool holds_league(const std::string& folder);
// Takes what the caller left open from OUT/match.json and refuses, by name, what differs; returns
// the arms that it knows.
std::vector<MatchedArm> take_record(LeagueOptions&, const Given&);
// Refuses, by name, an arm that is another than the record's of its name; adds those that are new.
void join(std::vector<MatchedArm>& known, const std::vector<MatchedArm>& arms);
// Refuses other text than the record's; keeps what is new.
void check_text(const std::string& folder, const LeagueText&);
void write_record(LeagueOptions&, const std::vector<MatchedArm>&, const LeagueText&);

// OUT/runs/ARM/lr0.002-seed1
std::string run_folder(const std::string& out, const LeagueKey&);
// Runs of these arms that are done.
std::vector<LeagueRun> read_runs(const std::string& out, const std::vector<MatchedArm>&);
// What was timed of an arm, in OUT/runs/ARM/clock.json.
std::optional<LeagueClock> read_clock(const std::string& out, const std::string& arm);
void write_clock(const std::string& out, const std::string& arm, const LeagueClock&);
void write_run(const std::string& folder, const LeagueRun&);

}  // namespace moe
