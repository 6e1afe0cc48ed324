// What papers claim about their routing, as one table, and whether it held in a league.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "analyze/data/league.h"

namespace moe {

// Loss is the held-out loss at the same tokens and the same active work.
enum class ClaimTest {
  lower,      // the arm's loss is below the other's
  no_higher,  // the arm's loss is not above the other's
  steps,      // the arm reaches the other's last loss after this share of the steps
  none,       // nothing here can show it; the row says why
};

struct Claim {
  std::string_view arm;     // a recipe
  std::string_view claim;   // what is claimed, in a phrase
  std::string_view source;  // paper and section
  ClaimTest test = ClaimTest::none;
  std::string_view other;    // the recipe that it is held against; none: of no test
  double share = 0;          // of the steps
  std::string_view why_not;  // of no test: why
};
// In the order of the recipe table.
std::span<const Claim> league_claims();

enum class Outcome { yes, no, undecided, untestable };
std::string_view name_of(Outcome);  // "held", "not held", "undecided", "not testable here"

struct Verdict {
  const Claim* claim = nullptr;
  Outcome outcome = Outcome::untestable;
  std::string figure;  // what it was judged by, or why it could not be
};
// One for each claim about an arm of the league, found by its name.
std::vector<Verdict> judge(const League&);

// All of a league, as its file has it.
Json to_json(const League&);

}  // namespace moe
