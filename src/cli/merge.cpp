// Makes one Mixture-of-Experts model of several dense ones, its routers out of prompts.
#include "jobs/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/flags.h"
#include "cli/made_model.h"
#include "cli/screen.h"
#include "cli/verbs.h"

namespace moe::cli {
namespace {

struct Flags {
  MergeJob job;
  bool json = false;
  Given given;
};

int run_merge(const Flags& f) {
  check_given(f.job, f.given);
  const MergeReply reply = merge_models(f.job, on_screen());
  if (f.json) {
    print_json(to_json(reply, flag_of));
    return 0;
  }
  print_parts(reply.parts);
  const auto [least, most] =
      std::minmax_element(reply.layers.begin(), reply.layers.end(),
                          [](const auto& a, const auto& b) { return a.condition < b.condition; });
  fmt::print("gates: {}; condition of a layer's gates from {} to {}\n",
             gates_names()[static_cast<size_t>(reply.gates)], condition_in_words(least->condition),
             condition_in_words(most->condition));
  print_result(reply);
  return 0;
}

}  // namespace

Action add_merge(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list = fields(f->job);
  list.add("json", f->json, "one JSON object on standard output");
  add_flags(app, std::move(list), f->given);
  return [f] { return run_merge(*f); };
}

}  // namespace moe::cli
