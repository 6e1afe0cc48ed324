#include "analyze/texts/league_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "analyze/pages/markup.h"
#include "core/words.h"

namespace moe {
namespace {

constexpr const char* kNoCell = "-";

std::string signed_loss(double x) { return fmt::format("{:+.4f}", x); }

std::string counted_runs(const League& league) {
  return fmt::format("{}{}", counted(league.runs, "run"), league.done ? "" : " so far");
}

std::string experts_cell(const LeagueArm& arm) {
  if (arm.experts == 1) return fmt::format("1 × {}", arm.expert_width);
  std::string text = fmt::format("{} of {} × {}", arm.top_k, arm.experts, arm.expert_width);
  if (arm.shared_experts > 0)
    text += fmt::format(" + {} × {}", arm.shared_experts, arm.shared_width);
  return text;
}

std::string loss_cell(const LeagueRow& row) {
  if (row.losses.empty()) return "diverged";
  std::string text = fmt::format("{:.4f}", row.loss);
  if (row.losses.size() > 1) text += fmt::format(" ({}, {:.4f})", row.losses.size(), row.range);
  return row.arm.not_causal.empty() ? text : text + " not causal";
}

std::vector<std::string> row_cells(const LeagueRow& row) {
  std::vector<std::string> cells = {row.arm.name, experts_cell(row.arm),
                                    human_count(static_cast<double>(row.arm.parameters)),
                                    loss_cell(row)};
  if (row.losses.empty()) {
    cells.resize(league_columns().size(), kNoCell);
    return cells;
  }
  cells.push_back(row.loss_change ? signed_loss(*row.loss_change) : kNoCell);
  cells.push_back(row.reaches_twin ? fmt::format("{:.2f}", *row.reaches_twin) : "never");
  cells.push_back(fmt::format("{:.0f}", row.seconds));
  cells.push_back(fmt::format("{}", row.arm.steps));
  cells.push_back(row.over_twin ? fmt::format("{:.2f}", *row.over_twin) : kNoCell);
  cells.push_back(row.run_times ? fmt::format("{:.2f}", *row.run_times) : kNoCell);
  cells.push_back(fmt::format("{:g}{}", row.lr, row.at_end ? " (at the end)" : ""));
  if (!row.routing) {
    cells.resize(league_columns().size(), kNoCell);
    return cells;
  }
  const LeagueRouting& r = *row.routing;
  cells.push_back(fmt::format("{:.2f}", row.max_vio));
  cells.push_back(fmt::format("{:.2f}", r.max_vio));
  cells.push_back(percent(r.effective_experts));
  cells.push_back(fmt::format("{} of {}", r.dead, r.experts));
  cells.push_back(fmt::format("{:.1f}%", 100 * row.dropped));
  cells.push_back(r.domain ? times(*r.domain) : kNoCell);
  cells.push_back(percent(r.vocabulary));
  return cells;
}

// "In 0.55 of the dense twin's time wide ends 0.0100 below it; seeds differ by 0.0040."
std::string timed_finding(const League& league, const LeagueRow& row, const LeagueRow& twin) {
  std::string text =
      fmt::format("In {:.2f} of the dense twin's time {} ends {} {} it",
                  row.run_times.value_or(row.arm.time), row.arm.name,
                  decimal(std::abs(*row.loss_change), 4), *row.loss_change < 0 ? "below" : "above");
  if (const auto noise = noise_of(league, row, twin))
    text += fmt::format("; seeds differ by {:.4f}", *noise);
  return text + ".";
}

std::string markdown_table(const std::vector<std::string>& heads,
                           const std::vector<std::vector<std::string>>& rows) {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string out = "|";
    for (const std::string& cell : cells) {
      std::string shown;
      for (const char c : cell) {
        if (c == '|') shown += '\\';
        shown += c;
      }
      out += fmt::format(" {} |", shown);
    }
    return out + "\n";
  };
  std::string out = line(heads) + "|";
  for (size_t i = 0; i < heads.size(); ++i) out += "---|";
  out += "\n";
  for (const auto& row : rows) out += line(row);
  return out;
}

}  // namespace

const std::vector<LeagueColumn>& league_columns() {
  static const std::vector<LeagueColumn> columns = {
      {"arm", "The recipe, or the name of the entry's file."},
      {"experts",
       "K of E routed experts × their FFN width + the shared ones: together as wide for a token as "
       "the dense twin's FFN, but of arms that have a time of their own."},
      {"parameters", "Numbers that the model holds."},
      {"loss",
       "Held-out loss after the last step at the best rate, nats a byte; of several seeds "
       "the mean, and in brackets how many and the largest less the smallest."},
      {"over dense", "That loss less the dense twin's: below 0 is better."},
      {"as good after",
       "The share of the steps after which the arm's held-out loss is the twin's "
       "last one, along its curve."},
      {"seconds",
       "Spent in steps of one run, the median of the seeds, as they were measured on "
       "this machine then."},
      {"steps", "Of one run."},
      {"step, times",
       "A step's time over one of the twin: of neighbouring steps in turns the median, measured "
       "before the runs."},
      {"run, times", "A run's time over one of the twin: its steps, each of that length."},
      {"rate",
       "The best of the learning rates, a factor of 2 apart; at the end: no worse one was "
       "run on both sides."},
      {"MaxVio",
       "In training, of each step's own tokens: how far the busiest expert is above the "
       "mean load; mean over layers and the last tenth of the steps."},
      {"MaxVio held-out",
       "The same over all held-out text at once, routed as the recipe is "
       "evaluated."},
      {"effective", "Exp of the entropy of the held-out load over E: 100% is even."},
      {"dead",
       "Experts of all layers that get under a hundredth of the mean load on held-out "
       "text."},
      {"dropped",
       "In training, the share of choices that found no room; mean over layers and the "
       "last tenth of the steps."},
      {"domain",
       "Domain specialisation: the largest share of a held-out domain's tokens that one "
       "expert has, in even shares; mean over layers. Needs several domains."},
      {"vocabulary",
       "Vocabulary specialisation of the input: how often an id goes to its "
       "favourite expert; mean over layers. Rises with K / E by itself."},
  };
  return columns;
}

std::vector<std::vector<std::string>> league_cells(const League& league) {
  std::vector<std::vector<std::string>> out;
  for (const LeagueRow& row : league.rows) out.push_back(row_cells(row));
  return out;
}

std::vector<Fact> league_facts(const League& league) {
  const LeagueMatch& m = league.match;
  std::vector<Fact> facts = {
      {"Arms", fmt::format("{}", league.rows.size()), counted_runs(league)},
      {"Tokens each", human_count(static_cast<double>(m.steps * m.step_tokens)),
       fmt::format("{} of {}", counted(m.steps, "step"), m.step_tokens)}};
  for (const LeagueRow& row : league.rows)
    if (!row.losses.empty() && row.arm.not_causal.empty()) {
      facts.push_back({"Lowest loss", fmt::format("{:.4f}", row.loss), row.arm.name});
      break;
    }
  if (const LeagueRow* twin = find_row(league, kTwin))
    facts.push_back({"Dense twin", fmt::format("{:.4f}", twin->loss), "nats a byte, held out"});
  return facts;
}

std::vector<Fact> league_rules(const League& league) {
  const LeagueMatch& m = league.match;
  std::vector<Fact> facts = {
      {"Model", m.shape, ""},
      {"Active work", fmt::format("{} of FFN width for each token in every arm", m.active_width),
       ""},
      {"Text", m.text, ""},
      {"Held out", m.held_out, ""},
      {"Tokenizer", m.tokenizer, ""},
      {"Budget",
       fmt::format("{} of {} tokens, the same batches in the same order for every arm of a seed{}",
                   counted(m.steps, "step"), m.step_tokens,
                   m.minutes > 0 ? fmt::format("; as many as the dense twin had time for in {:g} "
                                               "minutes",
                                               m.minutes)
                                 : ""),
       ""},
      {"Training", m.schedule, ""},
      {"Rates",
       m.rates == 1
           ? "1"
           : fmt::format("{} a factor of 2 apart, more where the best is at an end", m.rates),
       ""},
      {"Seeds",
       fmt::format("{} of the dense twin and of the best {}, one of the others", m.seeds,
                   m.finalists),
       ""},
      {"Machine", m.machine, "seconds are those of the runs as they went"}};
  for (const LeagueRow& row : league.rows)
    if (row.arm.time > 0)
      facts.push_back({row.arm.name,
                       fmt::format("not matched: {:g} of the dense twin's time{}", row.arm.time,
                                   row.arm.own.empty() ? "" : "; it sets " + row.arm.own),
                       ""});
  return facts;
}

std::vector<std::string> league_findings(const League& league) {
  std::vector<std::string> out;
  const LeagueRow* twin = find_row(league, kTwin);
  int64_t better = 0, others = 0;
  const LeagueRow* best = nullptr;
  for (const LeagueRow& row : league.rows) {
    if (row.losses.empty() || !row.arm.not_causal.empty() || row.arm.name == kTwin ||
        row.arm.time > 0)
      continue;
    if (best == nullptr) best = &row;
    ++others;
    better += row.loss_change.value_or(0) < 0;
  }
  if (twin == nullptr) return out;
  for (const LeagueRow& row : league.rows)
    if (row.arm.time > 0 && !row.losses.empty()) out.push_back(timed_finding(league, row, *twin));
  if (best == nullptr) return out;
  std::string first = fmt::format(
      "{} has the lowest loss of those that route, {} {} the dense twin's", best->arm.name,
      decimal(std::abs(*best->loss_change), 4), *best->loss_change < 0 ? "below" : "above");
  if (best->over_twin) first += fmt::format(", for {:.2f} of its time a step", *best->over_twin);
  if (const auto noise = noise_of(league, *best, *twin))
    first += fmt::format("; seeds differ by {:.4f}", *noise);
  out.push_back(first + ".");
  out.push_back(fmt::format("{} of {} that route end below the dense twin.", better, others));
  int64_t held = 0, judged = 0;
  for (const Verdict& v : judge(league)) {
    judged += v.outcome == Outcome::yes || v.outcome == Outcome::no;
    held += v.outcome == Outcome::yes;
  }
  if (judged > 0)
    out.push_back(
        fmt::format("{} of {} claims that could be judged held at this size.", held, judged));
  return out;
}

std::vector<std::string> league_troubles(const League& league) {
  std::vector<std::string> out, ends;
  if (!league.done)
    out.emplace_back("The league is not done: rows and verdicts are those of its runs so far.");
  if (!league.waiting.empty())
    out.push_back(fmt::format("Not run yet: {}.", fmt::join(league.waiting, ", ")));
  for (const LeagueRow& row : league.rows) {
    if (row.losses.empty()) out.push_back(fmt::format("{} diverged at every rate.", row.arm.name));
    else if (row.at_end) ends.push_back(row.arm.name);
  }
  if (!ends.empty())
    out.push_back(
        fmt::format("The best rate is at the end of those tried of {}: a better one may "
                    "lie beyond.",
                    fmt::join(ends, ", ")));
  return out;
}

std::string league_text(const League& league) {
  std::string out = "# A league of routing recipes\n\n";
  for (const std::string& line : league_troubles(league)) out += fmt::format("**{}**\n\n", line);
  for (const std::string& line : league_findings(league)) out += line + "\n\n";
  out += "![held-out loss by arm](league.svg)\n\n## The table\n\n";
  std::vector<std::string> heads;
  for (const LeagueColumn& c : league_columns()) heads.push_back(c.name);
  out += markdown_table(heads, league_cells(league)) + "\n";
  for (const LeagueColumn& c : league_columns())
    out += fmt::format("- **{}**: {}\n", c.name, c.what);
  out += "\n## What papers claim\n\n";
  std::vector<std::vector<std::string>> claims;
  for (const Verdict& v : judge(league))
    claims.push_back({std::string(v.claim->arm), std::string(v.claim->claim),
                      std::string(v.claim->source), std::string(name_of(v.outcome)), v.figure});
  if (claims.empty()) out += "No arm here has a claim in the table.\n";
  else out += markdown_table({"arm", "claim", "source", "here", "by"}, claims);
  out += "\n## The rules\n\n";
  for (const Fact& f : league_rules(league))
    out += fmt::format("- **{}**: {}{}\n", f.name, f.value, f.more.empty() ? "" : "; " + f.more);
  return out;
}

}  // namespace moe
