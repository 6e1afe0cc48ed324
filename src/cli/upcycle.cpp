// Makes a Mixture-of-Experts model of a dense one whose FFN is copied, and says how far it computes
// what the dense one does.
#include "jobs/upcycle.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/flags.h"
#include "cli/made_model.h"
#include "cli/screen.h"
#include "cli/verbs.h"

namespace moe::cli {
namespace {

struct Flags {
  UpcycleJob job;
  bool json = false;
  Given given;
};

void print_upcycled(const UpcycleReply& r) {
  print_parts(r.parts);
  print_result(r);
  const LogitDifference& d = r.difference;
  const std::string measured =
      fmt::format("largest logit difference over {}: {:.2g}, the largest logit being {:.3g}",
                  counted(d.tokens, "token"), d.largest, d.largest_logit);
  if (r.why_not_exact.empty()) {
    fmt::print(
        "step 0 computes what the dense model does: a token's weights count as 1 together ({})\n",
        measured);
    return;
  }
  fmt::print("step 0 is not the dense model: {} ({})\n", in_flags(r.why_not_exact), measured);
  if (r.weight_sum != 1)
    fmt::print(
        "a token whose logits are alike gets weights of {:.4g} together, so down was multiplied by "
        "{:.4g}\n",
        r.weight_sum, r.down_scale);
}

int run_upcycle(const Flags& f) {
  check_given(f.job, f.given);
  const UpcycleReply reply = upcycle_model(f.job, on_screen());
  if (f.json) print_json(to_json(reply, flag_of));
  else print_upcycled(reply);
  return 0;
}

}  // namespace

Action add_upcycle(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list = fields(f->job);
  list.add("json", f->json, "one JSON object on standard output");
  add_flags(app, std::move(list), f->given);
  return [f] { return run_upcycle(*f); };
}

}  // namespace moe::cli
