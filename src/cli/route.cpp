// A recipe worked out on given numbers, so that anyone can check one by hand.
#include "jobs/worked_routing.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/flags.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "jobs/route.h"

namespace moe::cli {
namespace {

struct Flags {
  RouteOptions route;
  std::string logits;
  bool json = false;
  Given given;
};

constexpr size_t kTokenLabel = 10, kNote = 15;  // columns before what a token, or a figure, says

struct LossMeaning {
  const char* name;
  const char* meaning;
};
constexpr LossMeaning kMeanings[] = {
    {"balance", "E sum_e f_e P_e, share of choices times mean probability; 1 when even"},
    {"z", "mean over tokens of logsumexp(logits)^2"},
    {"device", "the balance loss over groups of experts; 1 when they are even"},
    {"communication", "share of tokens that a group receives times its probability; 1 when even"},
    {"importance", "CV^2 of the combine weights summed over tokens; 0 when even"},
    {"load", "CV^2 of the load expected if the noise were drawn again; 0 when even"},
};

void print_note(std::string_view label, const std::string& text) {
  fmt::print("{:<{}}{}\n", label, kNote, wrapped(text, kNote));
}

std::string describe_capacity(const Json& r, const RoutingSpec& spec, int64_t pairs) {
  if (experts_choose(spec.select))
    return "experts take tokens; a token that none takes passes through the residual";
  if (r.at("capacity").is_null()) return "none: no token is dropped";
  return fmt::format("{} a buffer; {} of {} choices dropped", r["capacity"].dump(),
                     r.at("dropped").get<int64_t>(), pairs);
}

void print_reply(const Json& r, const RoutingSpec& spec) {
  const char* unsent = std::holds_alternative<KeepSecond>(spec.second) ? "dropped" : "not sent";
  fmt::print("{:>5}     experts and their weights\n", "token");
  for (size_t n = 0; n < r.at("experts").size(); ++n) {
    std::string line;
    for (size_t i = 0; i < r["experts"][n].size(); ++i) {
      const int64_t expert = r["experts"][n][i];
      const std::string entry =
          r["kept"][n][i].get<bool>()
              ? fmt::format("{}:{:.4f}", expert, r["weights"][n][i].get<double>())
              : fmt::format("{}:{}", expert, unsent);
      line += fmt::format("{}{:<11}", line.empty() ? "" : " ", entry);
    }
    while (line.ends_with(' ')) line.pop_back();
    fmt::print("{:>5}     {}\n", n,
               line.empty() ? "none: the residual alone passes" : wrapped(line, kTokenLabel));
  }
  fmt::print("\n");
  std::string counts;
  int64_t pairs = 0;
  for (const Json& c : r.at("counts")) {
    counts += fmt::format("{}{}", counts.empty() ? "" : " ", c.get<int64_t>());
    pairs += c.get<int64_t>();
  }
  print_note("counts", counts + " (choices an expert has, before any drop)");
  if (pairs > 0)
    print_note("evenness",
               fmt::format("max/mean - 1 = {:.4g}, CV^2 {:.4g}, entropy {:.4g} of an even load's",
                           r.at("max_vio").get<double>(), r.at("cv2").get<double>(),
                           r.at("entropy").get<double>()));
  print_note("capacity", describe_capacity(r, spec, pairs));
  for (const LossMeaning& loss : kMeanings)
    if (r.contains(loss.name))
      print_note(loss.name,
                 fmt::format("{:<10.6g} {}", r.at(loss.name).get<double>(), loss.meaning));
  for (const char* name : {"dlogits", "dclean", "dsigma", "dx", "dweight", "dnoise_weight"}) {
    if (!r.contains(name)) continue;
    fmt::print("\n{}\n", name);
    for (const Json& row : r.at(name)) {
      std::string line;
      for (const Json& x : row)
        line += fmt::format("{}{:.6g}", line.empty() ? "" : " ",
                            x.is_null() ? std::nan("") : x.get<double>());
      fmt::print("{:{}}{}\n", "", kTokenLabel, wrapped(line, kTokenLabel));
    }
  }
}

void describe_spec(const RouteOptions& f, const RoutingSpec& spec, const Json& input) {
  const std::string stages =
      f.eval ? fmt::format("evaluated {}", name_of(*f.eval)) : "stages of training";
  const std::string taken = experts_choose(spec.select) ? "" : fmt::format("{} of ", spec.slots());
  const std::string zero =
      spec.zero_experts > 0 ? fmt::format(" (the last {} of them zero)", spec.zero_experts) : "";
  fmt::print("{}, {}{} experts{}, {}\n", chosen_recipe(f.routing).name, taken, spec.experts, zero,
             stages);
  if (!std::holds_alternative<NoNoise>(spec.noise) &&
      !(input.contains("draw") && input["draw"] == true) && !input.contains("noise"))
    fmt::print("no noise is drawn: the file has none, and --draw was not given\n");
  fmt::print("\n");
}

int run_route(const Flags& f) {
  Json file = read_json(f.logits);
  const bool many = file.is_object() && file.contains("cases");
  const std::string reply =
      route_reply(f.route, file, f.logits,
                  [&](size_t i, const RoutingSpec& spec, const Json& input, const Json& worked) {
                    if (f.json) return;
                    if (i > 0) fmt::print("\n");
                    if (many) fmt::print("case {}: ", i);
                    describe_spec(f.route, spec, input);
                    print_reply(worked, spec);
                  });
  if (f.json) fmt::print("{}\n", reply);
  return 0;
}

}  // namespace

Action add_route(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list;
  list.add("logits", f->logits,
           "a JSON file: {\"logits\": [[E numbers] for each token]}; or \"x\" [T][D] and "
           "\"weight\" [E][D]; for hash routing \"ids\". Also \"noise\", "
           "\"bias\", \"sequences\", \"coef\", \"dweights\" and more (docs/recipes.md), or "
           "{\"cases\": [these, ...]}")
      .required();
  list.add(fields(f->route));
  list.add("json", f->json, "one JSON object on standard output");
  add_flags(app, std::move(list), f->given);
  return [f] { return run_route(*f); };
}

}  // namespace moe::cli
